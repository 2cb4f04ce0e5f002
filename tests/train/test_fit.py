"""A run: what it learns, that it goes on where it stopped, and what ends it."""

import dataclasses
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from specdec_jax import train
from specdec_jax._lesson import Lesson
from specdec_jax._types import Params
from specdec_jax.train import _batches
from specdec_jax.train._batches import Batches
from specdec_jax.train._run import Run

pytestmark = pytest.mark.usefixtures("quick_compile")


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


class Stopped(Exception):
    pass


def stop_at(step):
    def report(event):
        if isinstance(event, train.Evaluated) and event.step >= step:
            raise Stopped

    return report


@pytest.mark.parametrize("name", small.RUNS)
def test_half_and_half_is_the_whole(name, tmp_path):
    """2N steps are N, a stop, and N more: bitwise, data and noise included."""
    recipe = small.recipe(name)
    whole = small.fit(recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        # Stopped when step 6 has been judged, before it is saved: 3 is what there is.
        small.fit(recipe, tmp_path / "half", report=stop_at(6))
    rest = small.fit(recipe, tmp_path / "half")
    assert rest.step == whole.step
    assert_same(rest.params, whole.params)
    assert rest.tau == whole.tau
    lines = (tmp_path / "half" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [3, 3, 6, 6, 6, 6]


def test_online_is_cached(tmp_path):
    """But for the bfloat16 that the cache keeps."""
    cached = small.fit(small.recipe("eagle 3"), tmp_path / "cached")
    data = dataclasses.replace(small.recipe("eagle 3").data, features="online")
    online = small.fit(small.recipe("eagle 3", data=data), tmp_path / "online")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=0.02),
        cached.params,
        online.params,
    )


def test_a_second_run_takes_the_features_that_are_there(tmp_path):
    seen = []
    for name in ("one", "two"):
        small.fit(
            small.recipe("eagle 3", steps=1),
            tmp_path / name,
            cache=tmp_path / "features",
            report=lambda event: seen.append(type(event).__name__),
        )
    first = seen.index("Evaluated")
    assert "Filled" in seen[:first] and "Filled" not in seen[first:]


def test_a_part_needs_a_part_of_the_features(tmp_path, monkeypatch):
    """And all of them go on from there."""
    monkeypatch.setattr(_batches, "_GROUP", 4)
    rows = {}
    for fraction in (0.25, 1.0):
        data = dataclasses.replace(small.recipe("eagle 3").data, fraction=fraction)
        filled = rows.setdefault(fraction, [])
        fitted = small.fit(
            small.recipe("eagle 3", steps=1, data=data),
            tmp_path / str(fraction),
            cache=tmp_path / "features",
            report=lambda event, filled=filled: (
                filled.append(event) if isinstance(event, train.Filled) else None
            ),
        )
    part, whole = rows.values()
    assert part[-1].total < whole[-1].total / 2
    assert whole[0].done > part[-1].done
    alone = small.fit(small.recipe("eagle 3", steps=1), tmp_path / "alone")
    assert_same(fitted.params, alone.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", small.RUNS)
def test_it_learns_by_heart(name, tmp_path):
    """Fifty texts, over and over: the loss falls, and drafts of what was learned are
    right. DSpark, which learns whole laws and confidences, takes longer.
    """
    steps = 1000 if name == "dspark" else 300
    recipe = small.recipe(
        name,
        steps=steps,
        evaluation=train.Evaluation(every=steps, prompts=8, new_tokens=16),
        data=train.Data(length=64, rows=4, held_out=8),
        optimizer=train.Optimizer(peak=1e-2, warmup=10),
    )
    losses, right = [], []

    def report(event):
        if isinstance(event, train.Trained):
            losses.append(event.loss)
            right.append(event.accuracy[0])

    fitted = small.fit(recipe, tmp_path, report=report)
    assert np.mean(losses[-3:]) < 0.5 * losses[0]
    assert right[0] < 0.2 and np.mean(right[-3:]) > 0.4, right
    corpus = small.corpus().part(0, 8)
    stats = train.simulate(
        small.TARGET,
        Params(small.WEIGHTS, fitted.params),
        fitted.drafter,
        corpus.prompts(),
        new_tokens=16,
        temperature=0.0,
        stop_ids=(),
    )
    assert stats.acceptance_length() > 1.3


def test_parts_of_a_batch_are_a_batch(tmp_path):
    """Gradients are added before a step, every label counting the same."""
    gradients = []
    for rows, accumulate in ((4, 1), (2, 2)):
        data = train.Data(length=64, rows=rows, held_out=8, accumulate=accumulate)
        run = Run(
            small.recipe("eagle 3", data=data),
            small.TARGET,
            small.WEIGHTS,
            small.corpus(),
            tmp_path,
            None,
            (),
            lambda event: None,
        )
        source = Batches(run.learned, rows=4, length=64, seed=0)
        lesson = _lesson(run, next(source), accumulate)
        state, metrics = run.step(small.WEIGHTS, run.initial(), lesson)
        gradients.append((state.params, metrics))
    (one, first), (two, second) = gradients
    np.testing.assert_allclose(first.loss, second.loss, rtol=1e-5)
    assert first.labels == second.labels
    np.testing.assert_allclose(first.gradient_norm, second.gradient_norm, rtol=1e-4)


def _lesson(run, rows, parts):
    seen = run.observe(rows, tuple(run.drafter.taps))
    arrays = (*rows[:4], *seen)
    split = [jnp.asarray(x).reshape(parts, -1, *x.shape[1:]) for x in arrays]
    return Lesson(*split)


PROGRAM = """
import hashlib, sys
sys.path[:0] = {path!r}
import jax
from pathlib import Path
import numpy as np
import small
from specdec_jax import train

recipe = small.recipe("eagle 3", steps=10,
    evaluation=train.Evaluation(every=2, prompts=1, new_tokens=2))
fitted = small.fit(recipe, Path({folder!r}), report=lambda x: print(x, flush=True))
said = hashlib.sha256()
for leaf in jax.tree.leaves(fitted.params):
    said.update(np.asarray(leaf).tobytes())
print("end", fitted.step, said.hexdigest())
"""


@pytest.mark.slow
def test_killed_while_it_saves(tmp_path):
    """A process that dies in the middle leaves the checkpoints before, and the next
    one ends as if nothing had been: bitwise.
    """

    def run(name, *, kill_after=None):
        path, folder = [p for p in sys.path if p], str(tmp_path / name)
        command = [sys.executable, "-c", PROGRAM.format(path=path, folder=folder)]
        lines = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                lines.append(line)
                if kill_after is not None and line.startswith(kill_after):
                    time.sleep(0.005)
                    child.send_signal(signal.SIGKILL)
        return lines

    killed = run("killed", kill_after="Evaluated(step=6,")
    assert not killed[-1].startswith("end")
    resumed, whole = run("killed"), run("whole")
    first = next(line for line in resumed if line.startswith("Trained"))
    assert first.startswith(("Trained(step=4,", "Trained(step=6,", "Trained(step=8,"))
    assert resumed[-1] == whole[-1] and whole[-1].startswith("end")


def test_nan_ends_it_and_says_where(tmp_path):
    """The last checkpoint stays, and nothing is learned from the batch."""
    weights = jax.tree.map(jnp.asarray, small.WEIGHTS)
    embedding = weights["embedding"].at[5].set(jnp.nan)
    recipe = small.recipe("eagle 3")
    with pytest.raises(train.TrainingError, match="step 1: the loss is (nan|inf)"):
        train.fit(
            recipe,
            small.TARGET,
            weights | {"embedding": embedding},
            small.corpus(),
            tmp_path,
        )


def test_a_disk_that_is_too_small(tmp_path, monkeypatch):
    """Said before anything is computed, with how much it would take."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**6))
    with pytest.raises(ValueError, match="tokens take 0.0 GB and .* has 0.0 GB left"):
        small.fit(small.recipe("eagle"), tmp_path)
    monkeypatch.undo()

    def full(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        small.fit(small.recipe("eagle"), tmp_path)
    monkeypatch.undo()
    small.fit(small.recipe("eagle", steps=1), tmp_path / "more")


def wait_for(path, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.01)


def test_a_disk_that_is_full_while_saving(tmp_path):
    """An error of the disk; what was saved before stays, and the run goes on from it
    when there is room again.
    """
    recipe = small.recipe(
        "eagle", steps=3, evaluation=train.Evaluation(every=1, prompts=1, new_tokens=2)
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event):
        if isinstance(event, train.Evaluated) and event.step == 2:
            wait_for(tmp_path / "checkpoints" / "1")  # it is written meanwhile
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # bytes

    try:
        with pytest.raises(OSError, match="no checkpoint: File too large"):
            small.fit(recipe, tmp_path, report=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    judged = []

    def note(event):
        if isinstance(event, train.Evaluated):
            judged.append(event.step)

    small.fit(recipe, tmp_path, report=note)
    assert judged == [2, 3]  # from the first step's


def test_what_the_first_judgement_would_refuse(tmp_path):
    """Is refused before any step."""
    drawn = dataclasses.replace(small.DSPARK, kind="iid")
    recipe = dataclasses.replace(small.recipe("dspark"), drafter=drawn)
    with pytest.raises(ValueError, match="drafts of kind \"points\", not 'iid'"):
        small.fit(recipe, tmp_path)
    judged = train.Evaluation(every=3, prompts=2, new_tokens=10_000)
    with pytest.raises(ValueError, match="10000 new ones.*beyond the"):
        small.fit(small.recipe("dspark", evaluation=judged), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_pruned_markov_head_is_trained(tmp_path):
    """Labels that it leaves no chance teach it nothing, rather than infinity."""
    config = small.DSPARK.config
    assert config.markov is not None
    markov = dataclasses.replace(config.markov, top_k=2)
    config = dataclasses.replace(config, markov=markov)
    pruned = dataclasses.replace(small.DSPARK, config=config)
    recipe = dataclasses.replace(small.recipe("dspark"), drafter=pruned)
    losses = []

    def note(event):
        if isinstance(event, train.Trained):
            losses.append(event.loss)

    small.fit(recipe, tmp_path, report=note)
    assert losses and np.isfinite(losses).all()


def test_a_mask_that_texts_have_is_refused(tmp_path):
    """An open slot must not look like a token of a text."""
    config = dataclasses.replace(small.DFLASH.config, mask_id=5)
    drafter = dataclasses.replace(small.DFLASH, config=config)
    recipe = dataclasses.replace(small.recipe("dflash"), drafter=drafter)
    with pytest.raises(ValueError, match="mask_id 5 is a token of the texts"):
        small.fit(recipe, tmp_path)


def test_features_of_another_target_are_refused(tmp_path):
    """In a folder that runs share."""
    recipe, corpus = small.recipe("eagle", steps=1), small.corpus()
    cache = tmp_path / "features"
    small.fit(recipe, tmp_path / "one", cache=cache)
    other = jax.tree.map(lambda x: 1.5 * x, small.WEIGHTS)
    with pytest.raises(ValueError, match="features of another target"):
        train.fit(recipe, small.TARGET, other, corpus, tmp_path / "two", cache=cache)


def test_a_step_consumes_its_state_alone():
    """Not the parameters and the key that the state was made of."""
    recipe, key = small.recipe("eagle"), jax.random.key(0)
    optimizer = recipe.optimizer.make(recipe.steps)
    params = recipe.drafter.init_params(key, small.TARGET)
    state = train.init_state(params, optimizer, key)
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    assert not key.is_deleted()
    assert not any(x.is_deleted() for x in jax.tree.leaves(params))


def test_another_corpus_or_target_is_refused(tmp_path):
    """Even where features are computed anew, and nothing else would notice."""
    data = dataclasses.replace(small.recipe("eagle").data, features="online")
    recipe = small.recipe("eagle", steps=1, data=data)
    small.fit(recipe, tmp_path)
    other = jax.tree.map(lambda x: -x, small.WEIGHTS)
    with pytest.raises(ValueError, match="the target's parameters was"):
        train.fit(recipe, small.TARGET, other, small.corpus(), tmp_path)
    with pytest.raises(ValueError, match="the corpus was"):
        train.fit(recipe, small.TARGET, small.WEIGHTS, small.corpus(40), tmp_path)


def test_another_recipe_is_refused(tmp_path):
    small.fit(small.recipe("eagle", steps=1), tmp_path)
    changed = small.recipe("eagle", steps=1, optimizer=train.Optimizer(peak=1e-4))
    with pytest.raises(ValueError, match="optimizer.peak was 0.003, is 0.0001.*warmup"):
        small.fit(changed, tmp_path)


def test_it_ends_early(tmp_path):
    """After so many judgements without a better one."""
    judged = train.Evaluation(every=1, prompts=1, new_tokens=2, patience=2)
    seen = []

    def report(event):
        if isinstance(event, train.Evaluated):
            seen.append(event.is_best)

    small.fit(
        small.recipe("eagle", steps=30, evaluation=judged), tmp_path, report=report
    )
    assert len(seen) < 30 and seen[-2:] == [False, False]


def test_what_cannot_be(tmp_path):
    wrong = dataclasses.replace(
        small.recipe("eagle"), objective=train.TrainingTimeTest()
    )
    with pytest.raises(ValueError, match="trains Eagle3, no other drafter"):
        small.fit(wrong, tmp_path / "a")
    data = train.Data(held_out=60, length=64)
    with pytest.raises(ValueError, match="60 texts, of which 60 are held out"):
        small.fit(small.recipe("eagle", data=data), tmp_path / "b")
    with pytest.raises(ValueError, match="evaluation.prompts is 16, but data.held_out"):
        train.Recipe(
            "x", small.EAGLE, train.FeatureRegression(), train.Data(held_out=4)
        )
    with pytest.raises(ValueError, match='decay is "cosine", "linear" or "constant"'):
        train.Optimizer(decay="cos")
