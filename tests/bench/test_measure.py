"""What is timed is `generate`, and nothing is counted twice."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import specdec_jax as sd
from specdec_jax._generate import run_program
from specdec_jax.bench import (
    ALL,
    PIECES,
    Decoding,
    Group,
    Prompt,
    Replay,
    Spread,
    Synthetic,
    make_groups,
    measure,
    profile,
    summarise,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

TARGET = sd.Toy()
PARAMS = sd.Params(TARGET.init_params(jax.random.key(0)))
NEW = 12
# Some rows of MANY begin with it, at both temperatures.
STOP = int(PARAMS.target["logits"][TARGET.context([0, 2, 3])].argmax())
PLAIN = Decoding("plain", TARGET, PARAMS, sd.Plain(), NEW, (STOP,))
NGRAM = dataclasses.replace(PLAIN, name="ngram", drafter=sd.NGram(num_nodes=4))
PROMPTS = [Prompt(f"p/{i}", "p", [i, 2, 3, 2][: 2 + i % 3]) for i in range(3)]
MANY = [Prompt(f"p/{i}", "p", [i % 13, 2 + i // 13, 3]) for i in range(39)]


def group(temperature: float = 0.0, prompts: list[Prompt] = PROMPTS) -> Group:
    return Group("p", 0, temperature, tuple(prompts))


def whole(decoding: Decoding, group: Group, limit: int) -> sd.Generation:
    """The same in one call."""
    return sd.generate(
        decoding.target,
        decoding.params,
        decoding.drafter,
        [prompt.ids for prompt in group.prompts],
        sampling=sd.Sampling(
            temperature=group.temperature,
            seed=group.seeds,
            max_new_tokens=limit,
            stop_ids=[STOP],
        ),
    )


@pytest.mark.parametrize("decoding", [PLAIN, NGRAM], ids=lambda x: x.name)
@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_two_calls_are_one(decoding, temperature):
    """Text and counts are those of `generate`, rows that end early included."""
    batch = group(temperature, MANY)
    run, expected = decoding.run(batch, limit=NEW), whole(decoding, batch, NEW)
    for found, tokens in zip(run.tokens, expected.tokens, strict=True):
        np.testing.assert_array_equal(found, tokens)
    lengths = [len(tokens) for tokens in run.tokens]
    assert min(lengths) == 1 < max(lengths)  # a row that the first token ended
    assert run.stats is not None and run.reading > 0 and run.decoding > 0
    emitted = run.stats.acceptance_length() * run.stats.steps.sum()
    assert emitted == pytest.approx(sum(lengths) - len(lengths))


def test_nothing_left_to_decode():
    """No decoding, and no statistics, where the first token ends every row."""
    batch = group(0.0, MANY[:1])
    record = measure(batch, [PLAIN, NGRAM], limit=NEW, turn=0, warm=set())
    assert record["runs"]["ngram"]["decoding"] == 0
    (summary,) = summarise([record])
    assert np.isnan(summary.ratio.median) and summary.acceptance_length is None
    assert summary.to_json()["ratio"] == [None] * 3


@dataclasses.dataclass
class Counted:
    """A runner that knows how often it was asked."""

    name: str
    calls: list[tuple[str, int]]

    def kind(self, group):
        return group.batch

    def run(self, group, *, limit):
        self.calls.append((self.name, limit))
        return PLAIN.run(group, limit=limit)


def test_warm_up_and_turns():
    """One of a kind runs shortly before it counts; who begins alternates."""
    calls: list[tuple[str, int]] = []
    runners = [Counted("plain", calls), Counted("other", calls)]
    warm = set()
    for turn in range(2):
        measure(group(), runners, limit=NEW, turn=turn, warm=warm)
    assert calls == [
        ("plain", 4), ("plain", NEW), ("other", 4), ("other", NEW),
        ("other", NEW), ("plain", NEW),
    ]  # fmt: skip


@pytest.mark.parametrize(("room", "programs"), [(0, 5), (80, 3)])
def test_kinds_are_programs(room, programs):
    """Once every kind has run, nothing is compiled: not in what is timed. Where all
    have room for the longest, chunks are all that differs.
    """
    prompts = [Prompt(f"{n}", f"{n}", [1] * n) for n in (3, 20, 60, 62, 70, 80)]
    groups = make_groups(prompts, temperatures=[0.0, 0.5], batches=[1], room=room)
    program: Any = run_program
    program.clear_cache()
    for x in {PLAIN.kind(x): x for x in groups}.values():
        PLAIN.run(x, limit=4)
    compiled = program._cache_size()
    for x in groups:
        PLAIN.run(x, limit=NEW)
    assert program._cache_size() == compiled == programs  # slots and chunks


def test_a_branch_that_was_not_warm_runs_again():
    """A text without a match, then one with: the wide branch runs once in vain."""
    calls: list[tuple[str, int]] = []

    class Looking(Counted):
        def run(self, group, *, limit):
            self.calls.append((self.name, limit))
            run = NGRAM.run(group, limit=limit)
            drafted = int(group.prompts[0].name)
            assert run.stats is not None
            proposed = np.array([[4, drafted, 0, 0]])
            stats = run.stats._replace(steps=np.array([4]), proposed=proposed)
            return run._replace(stats=stats)

    warm = set()
    runners = [Looking("ngram", calls)]
    for drafted in (0, 2, 0, 3, 4):
        groups = group(0.0, [Prompt(str(drafted), "p", [1, 2, 3])])
        measure(groups, runners, limit=NEW, turn=0, warm=warm)
    expected = [4, NEW, NEW, NEW, NEW, NEW, NEW]
    assert [limit for _, limit in calls] == expected


def test_summary():
    """By hand: two groups of two rows."""
    stats = {"steps": 2, "drafted": 4, "proposed": [2, 2], "chances": [2, 2]}
    plain = {"reading": 1.0, "decoding": 4.0, "new_tokens": [3, 3], "same_text": 2}
    fast = plain | {"decoding": 2.0, "stats": stats | {"accepted": [0, 2]}}
    slow = plain | {"decoding": 8.0, "stats": stats | {"accepted": [2, 0]}}
    groups = [
        {"task": task, "temperature": 0.0, "batch": 2, "part": 0}
        | {"runs": {"plain": plain | {"stats": None}, "x": run}}
        for task, run in (("a", fast), ("b", slow))
    ]
    a, b, both = summarise(groups)
    assert (a.task, b.task, both.task) == ("a", "b", ALL)
    assert a.plain == Spread(1.0, 1.0, 1.0) and a.ratio.median == 2.0
    assert a.whole_ratio.median == pytest.approx((6 / 3) / (6 / 5))
    assert (a.acceptance_length, b.acceptance_length) == (2.0, 1.0)
    assert both.pooled_ratio == pytest.approx(8 / 10)
    assert both.ratio.median == pytest.approx((2.0 + 0.5) / 2)
    assert both.histogram == [2, 2] and both.acceptance_by_depth == [0.5]
    assert both.conditional_acceptance == [0.5]
    assert (both.rows, both.new_tokens, both.same_text) == (4, 12, 4)


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_synthetic_acceptance(acceptance):
    """The text is plain decoding's, and each depth is accepted as often as asked."""
    plain = dataclasses.replace(PLAIN, new_tokens=200, stop_ids=())
    prompts = [Prompt(f"p/{i}", "p", [i % 13, i // 13, 4]) for i in range(32)]
    batch = group(0.0, prompts)
    synthetic = Synthetic(plain, acceptance, Replay(4))
    run = synthetic.run(batch, limit=200)
    for found, tokens in zip(
        run.tokens, plain.run(batch, limit=200).tokens, strict=True
    ):
        np.testing.assert_array_equal(found, tokens)
    assert run.stats is not None
    # At least 800 chances at each depth: 0.07 is four standard deviations.
    assert run.stats.chances[0, 1:].min() > (800 if acceptance else -1)
    assert run.stats.conditional_acceptance()[0] == pytest.approx(acceptance, abs=0.07)
    if acceptance:
        found = run.stats.conditional_acceptance()
        np.testing.assert_allclose(found, acceptance, atol=0.07)
    assert run.stats.acceptance_length() == pytest.approx(
        synthetic.acceptance_length, rel=0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram", "synthetic"])
def test_profile(name):
    """The pieces are those of every step of the text, and add up to the step."""
    batch = group()
    decoding = NGRAM
    if name == "synthetic":
        decoding = Synthetic(PLAIN, 0.5, Replay(3)).decoding(batch, limit=NEW)
    record = profile(decoding, batch, limit=NEW)
    steps = np.asarray(whole(decoding, batch, NEW).stats.steps).max()
    assert record["steps"] == steps
    assert set(record["milliseconds"]) == {*PIECES, "step"}
    for piece in ("draft", "verify", "accept", "step"):
        assert record["milliseconds"][piece].median > 0
