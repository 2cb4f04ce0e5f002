"""Schedules in the one program: the same text, fewer nodes, one executable."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import NEAR, PROMPTS, SEEDS, TABLE, TOY
from confident import Confident, costs, tables

import specdec_jax as sd
from specdec_jax import _door, _generate, _loop, _run
from specdec_jax.schedule import (
    BestWidth,
    EarlyStop,
    FixedWidth,
    LaggedBudget,
    Switch,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

N = 4
SURE = np.random.default_rng(0).uniform(0.05, 1.0, TOY.num_contexts)
GOOD = tables(NEAR["logits"], SURE)
BAD = tables(-TABLE["logits"], SURE)  # certain of what the target likes least
COST = costs(1.0, 1.3, 1.6, 1.9, draft=0.2)
QUICK = Switch(credit=1.0, pause=4)
SAMPLING = sd.Sampling(temperature=[0.0, 0.8, 1.0], seed=SEEDS, max_new_tokens=40)
SCHEDULES = {
    "early stop": EarlyStop(COST, switch=QUICK),
    "early stop, rows by themselves": EarlyStop(COST, fill=False, switch=QUICK),
    "early stop, two widths": EarlyStop(COST, widths=(1, 3), switch=QUICK),
    "lagged": LaggedBudget(COST, switch=QUICK),
    "best width": BestWidth(COST, switch=QUICK),
    "fixed": FixedWidth(3),
    "fixed, switched": FixedWidth(4, COST, QUICK),
    "plain": FixedWidth(1),
}


def generate(params, schedule, call=sd.generate, **options):
    drafter = options.pop("drafter", Confident(TOY, N))
    options = {"sampling": SAMPLING, "schedule": schedule, **options}
    return call(TOY, sd.Params(TABLE, params), drafter, PROMPTS, **options)


def widths_of(generation: sd.Generation) -> np.ndarray:
    """Of each row, how many steps verified 1, 2, … nodes."""
    widths = generation.stats.widths
    assert widths is not None
    return np.asarray(widths)


@functools.cache
def expected():
    plain = sd.generate(TOY, sd.Params(TABLE), sd.Plain(), PROMPTS, sampling=SAMPLING)
    return [row.tolist() for row in plain.tokens]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("params", [GOOD, BAD], ids=["good", "bad"])
def test_same_seed_same_tokens(name, params):
    """Whatever is drafted, verified, or switched off and on."""
    generation = generate(params, SCHEDULES[name])
    assert [row.tolist() for row in generation.tokens] == expected()
    widths = widths_of(generation)
    np.testing.assert_array_equal(widths.sum(1), generation.stats.steps)
    unused = [w - 1 for w in range(1, N + 1) if w not in SCHEDULES[name].widths]
    assert not widths[:, unused].any()


def test_every_kind_of_step_was_there():
    """Or the test above would not say what it says."""
    width = widths_of(generate(GOOD, SCHEDULES["best width"])).sum(0)
    assert (width > 0).sum() > 2, width
    ragged = generate(GOOD, SCHEDULES["early stop, rows by themselves"]).stats
    filled = generate(GOOD, SCHEDULES["early stop"]).stats
    assert ragged.drafted.sum() < filled.drafted.sum()


def test_speculation_that_loses_is_switched_off_and_tried_again():
    """With the default switch: a few steps, 64 without a draft, a few again."""
    sampling = dataclasses.replace(SAMPLING, max_new_tokens=90)
    plain = sd.generate(TOY, sd.Params(TABLE), sd.Plain(), PROMPTS, sampling=sampling)
    for schedule in (FixedWidth(4, COST), LaggedBudget(COST)):
        stream = generate(BAD, schedule, sd.stream, sampling=sampling)
        drafted = []
        before = np.zeros(3, np.int32)
        for _ in stream:
            after = np.asarray(stream._run.stats.drafted)
            drafted.append(int((after - before).max() > 0))
            before = after
        assert [row.tolist() for row in stream.generation.tokens] == [
            row.tolist() for row in plain.tokens
        ]
        tried = drafted.index(0)
        assert 1 <= tried <= 4
        again = tried + 64
        assert drafted[tried:again] == [0] * 64 and drafted[again] == 1
        assert not any(drafted[again + 4 :])


def test_speculation_that_wins_is_left_on():
    self = tables(TABLE["logits"], np.ones(TOY.num_contexts))
    generation = generate(self, LaggedBudget(COST))
    assert widths_of(generation)[:, :-1].sum() == 0
    assert generation.stats.acceptance_length() > 3.5


def test_a_drafter_without_a_guess_is_read_at_width_1():
    ngram = sd.NGram(num_nodes=N, shortest=2)
    bare = generate((), None, drafter=ngram)
    generation = generate((), FixedWidth(N), drafter=ngram)
    assert [row.tolist() for row in generation.tokens] == expected()
    assert set(np.flatnonzero(widths_of(generation).sum(0))) == {0, N - 1}
    np.testing.assert_array_equal(generation.stats.accepted, bare.stats.accepted)


def test_a_stream_is_a_generation():
    for name in ("lagged", "early stop"):
        whole = generate(GOOD, SCHEDULES[name])
        stream = generate(GOOD, SCHEDULES[name], sd.stream)
        for _ in stream:
            pass
        found = stream.generation
        assert [row.tolist() for row in found.tokens] == expected()
        jax.tree.map(np.testing.assert_array_equal, found.stats, whole.stats)


def test_a_conversation_goes_on():
    """After a turn that was switched off, with `update` alone, drafts are as good."""
    self = tables(TABLE["logits"], np.ones(TOY.num_contexts))
    first = generate(self, FixedWidth(1))
    texts = [
        [*prompt, *row.tolist()]
        for prompt, row in zip(PROMPTS, first.tokens, strict=True)
    ]
    sampling = dataclasses.replace(SAMPLING, max_new_tokens=12)
    second = sd.generate(
        TOY,
        sd.Params(TABLE, self),
        Confident(TOY, N),
        texts,
        sampling=sampling,
        state=first.state,
        schedule=FixedWidth(N),
    )
    assert second.stats.acceptance_length() > 3.5


def size(program: Any) -> int:
    """Executables of a jitted function."""
    return program._cache_size()


def test_one_program():
    """Widths, switching and what is drafted are data."""
    generate(GOOD, SCHEDULES["lagged"])
    count = size(_generate.run_program)
    generate(BAD, SCHEDULES["lagged"])
    generate(GOOD, LaggedBudget(costs(1.0, 1.3, 1.6, 1.9, draft=0.2), switch=QUICK))
    assert size(_generate.run_program) == count
    generate(GOOD, LaggedBudget(costs(1.0, 1.3, 1.6, 2.0, draft=0.2), switch=QUICK))
    assert size(_generate.run_program) == count + 1  # so the count can fail
    stream = generate(GOOD, SCHEDULES["early stop"], sd.stream)
    next(stream)
    count = size(_generate._step)
    for _ in stream:
        pass
    assert size(_generate._step) == count


def test_ahead_of_time():
    compiled = sd.compile(
        TOY,
        sd.Params(TABLE, GOOD),
        Confident(TOY, N),
        batch=3,
        max_length=64,
        sampling=SAMPLING,
        schedule=SCHEDULES["best width"],
    )
    found = compiled(sd.Params(TABLE, GOOD), PROMPTS, sampling=SAMPLING)
    assert [row.tolist() for row in found.tokens] == expected()
    assert widths_of(found).sum() == found.stats.steps.sum()


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_a_narrow_verification_is_a_wide_one_with_less_valid(rule):
    """To the bit, so that what is enumerated at full width holds at every width."""
    kind = "points" if rule == "match" else "iid"

    @dataclasses.dataclass(frozen=True)
    class Cut(Confident):
        width: int = N

        def draft(self, target, params, state, root, sampler):
            draft, state = super().draft(target, params, state, root, sampler)
            nodes = jnp.arange(self.num_nodes, dtype=jnp.int32)[None, :]
            return draft._replace(valid=draft.valid & (nodes < self.width)), state

    for width in (2, 3):
        narrow = generate(
            GOOD, FixedWidth(width), rule=rule, drafter=Confident(TOY, N, kind)
        )
        wide = generate(GOOD, None, rule=rule, drafter=Cut(TOY, N, kind, width=width))
        for a, b in zip(narrow.tokens, wide.tokens, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(narrow.stats.accepted, wide.stats.accepted)


# --- The noise of a step --------------------------------------------------------------


@pytest.mark.parametrize("noise", ["step", "position"])
def test_a_lagged_budget_needs_noise_of_the_step(noise):
    """One row, 20,000 times: its budget comes from the draft before, of the same
    positions in part. With noise of its own that says nothing about this draft; with
    noise of the position it does, and the law is another.

    A uniform drafter, a target of 0.8 and 0.2. The last node is worth reading, and all
    before it with it, where the node above it is a 0.
    """

    @dataclasses.dataclass(frozen=True)
    class Telling(Confident):
        def draft(self, target, params, state, root, sampler):
            draft, state = super().draft(target, params, state, root, sampler)
            last = jnp.where(draft.tokens[:, 2] == 0, 0.98, 0.02)
            confidence = jnp.full(draft.tokens.shape, 0.9).at[:, 3].set(last)
            return draft._replace(confidence=confidence), state

    toy, worlds = sd.Toy(vocab_size=2), 20_000
    count = toy.num_contexts
    target = np.tile(np.log([0.8, 0.2]), (count, 1)).astype(np.float32)
    drafter = Telling(toy, 4, "iid", noise)
    params = sd.Params(
        {"logits": jnp.asarray(target)}, tables(np.zeros((count, 2)), np.ones(count))
    )
    always = Switch(credit=99.0)
    schedule = LaggedBudget(costs(1.0, 2.0, 2.9, 3.2), hysteresis=0.0, switch=always)
    call = _door.prepare(
        toy,
        params,
        drafter,
        [[1]],
        sampling=sd.Sampling(temperature=1.0, max_new_tokens=9),
        rule="rejection",
        max_length=16,
        samples=1,
        logprobs=None,
        state=None,
        schedule=schedule,
    )

    @jax.jit
    @jax.vmap
    def texts(seed):
        keys = jax.random.key(seed)[None]
        request = call.request._replace(keys=keys)
        run = _run.begin(call.program, params, call.state, request)
        run = jax.lax.fori_loop(
            0, 4, lambda _, run: _loop.step(call.program, params, request, run), run
        )
        return run.state.tokens[0, 1:5], run.stats.widths[0]

    tokens, widths = texts(jnp.arange(worlds, dtype=jnp.uint32))
    assert (np.asarray(widths).sum(0) > worlds / 20).sum() > 1  # budgets do differ
    wrong = np.abs((np.asarray(tokens) == 0).mean(0) - 0.8)
    sigma = np.sqrt(0.8 * 0.2 / worlds)
    if noise == "step":
        assert wrong.max() < 4 * sigma, wrong
    else:
        assert wrong.max() > 8 * sigma, wrong
