"""What holds of EAGLE's drafters whatever they draft, on whole generations."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from cases import DECODER, some_slow
from oracle import Oracle

import specdec_jax as sd
from specdec_jax import _door, _run, _state
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax.nn import Eagle3Config, EagleConfig

pytestmark = pytest.mark.usefixtures("quick_compile")

TOY = sd.Toy(scale=6.0)  # mostly certain of the next token, as language models are
TABLE = TOY.init_params(jax.random.key(0))
TREES: dict[str, Any] = {
    "chain": StaticTree("0 00 000"),
    "static": StaticTree("0 1 2 00 01 10 000 001 100"),
    "grown": GrownTree(num_nodes=14, depth=3, width=4),
}
DEPTH = 3
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7, 12], [0, 0, 11])

SIZES: dict[str, Any] = {
    "width": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_width": 6,
    "mlp_width": 20,
}
HEAD = EagleConfig(**SIZES)
HEAD3 = Eagle3Config(**SIZES, feature_width=48, draft_vocab_size=5, num_layers=2)
TAPS = (-1, 0, "final")
HEADS: dict[str, Any] = {
    "eagle": sd.Eagle(HEAD, TREES["static"]),
    "eagle, drawn": sd.Eagle(HEAD, TREES["static"], kind="without_replacement"),
    "eagle 2": sd.Eagle(HEAD, TREES["grown"]),
    "eagle 3": sd.Eagle3(HEAD3, TREES["grown"], taps=TAPS),
    "eagle 3, chain": sd.Eagle3(HEAD3, TREES["chain"], taps=TAPS),
    "eagle 3, drawn": sd.Eagle3(
        HEAD3, TREES["static"], kind="without_replacement", taps=TAPS
    ),
}
WEIGHTS = DECODER.init_params(jax.random.key(5))
every_tree = pytest.mark.parametrize("tree", some_slow(TREES, fast=("grown",)))
every_head = pytest.mark.parametrize("name", HEADS)


def foresee(tree: str, prompts: Sequence, state: Any = None, **options: Any):
    """A generation of the toy with its oracle."""
    return sd.generate(
        TOY,
        sd.Params(TABLE),
        Oracle(tree=TREES[tree]),
        prompts,
        sampling=sd.Sampling(**options),
        max_length=None if state else 48,
        state=state,
    )


def plain(prompts: Sequence, **options: Any) -> list[list[int]]:
    found = sd.generate(
        TOY,
        sd.Params(TABLE),
        sd.Plain(),
        prompts,
        sampling=sd.Sampling(**options),
        max_length=48,
    )
    return [x.tolist() for x in found.tokens]


def head_of(name: str) -> tuple[Any, sd.Params, Any]:
    drafter = HEADS[name]
    params = drafter.init_params(jax.random.key(7), DECODER)
    return DECODER, sd.Params(WEIGHTS, params), drafter


def read_afresh(target, params, drafter, state: Any, *, chunk: int = 64) -> Any:
    """The state of someone who reads the same tokens for the first time."""
    batch, slots = state.tokens.shape
    rule = "match" if drafter.kind == "points" else "rejection"
    program = _door.make_program(target, params, drafter, rule=rule, logprobs=None)
    program = dataclasses.replace(program, chunk=chunk)
    new = _state.init_state(target, drafter, batch, slots)
    tokens, length = jax.tree.map(np.asarray, (state.tokens, state.length))
    new = new._replace(tokens=tokens, length=length)
    return jax.jit(_run.ingest, static_argnums=0)(program, params, new)


def assert_same_state(state: Any, other: Any, rows: Any = slice(None)) -> None:
    """Caches up to their lengths, and what the head goes on from."""
    for ours, theirs in ((state, other), (state.drafter, other.drafter)):
        length = np.asarray(ours.cache.length[rows])
        np.testing.assert_array_equal(length, theirs.cache.length)
        np.testing.assert_array_equal(length, state.length[rows] - 1)
        for name in ("keys", "values"):
            for a, b in zip(
                getattr(ours.cache, name), getattr(theirs.cache, name), strict=True
            ):
                slots = np.arange(a.shape[2])
                is_held = (slots < length[:, None])[:, None, :, None]
                np.testing.assert_allclose(
                    np.where(is_held, a[rows], 0), np.where(is_held, b, 0), atol=1e-4
                )
    np.testing.assert_allclose(
        state.drafter.output[rows], other.drafter.output, atol=1e-4
    )


# --- An oracle, and a fool ------------------------------------------------------------


@every_tree
@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.7]
)
def test_an_oracle_is_always_right(tree, temperature):
    """Under `match` it is whatever the temperature: it hears the target's noise."""
    sampling = {
        "temperature": temperature,
        "seed": 3,
        "max_new_tokens": 5 * (1 + DEPTH),
    }
    generation = foresee(tree, PROMPTS, **sampling)
    assert generation.stats.acceptance_length() == 1 + DEPTH
    assert [x.tolist() for x in generation.tokens] == plain(PROMPTS, **sampling)


@pytest.mark.slow
@every_tree
def test_a_fool_is_hardly_ever_right(tree):
    """And the text is the same."""
    toy = sd.Toy(vocab_size=31)
    drafter = sd.Eagle(dataclasses.replace(HEAD, width=toy.width), TREES[tree])
    params = sd.Params(
        toy.init_params(jax.random.key(1)), drafter.init_params(jax.random.key(2), toy)
    )
    sampling = sd.Sampling(temperature=[0.0, 0.8, 1.0], seed=5, max_new_tokens=40)
    one, other = (
        sd.generate(toy, params, x, PROMPTS, sampling=sampling)
        for x in (drafter, sd.Plain())
    )
    assert [x.tolist() for x in one.tokens] == [x.tolist() for x in other.tokens]
    assert 1.0 < one.stats.acceptance_length() < 1.5


# --- Where a text ends ----------------------------------------------------------------


@every_tree
def test_a_stop_at_every_slot_of_a_path(tree):
    """What comes after it was never said: not in the text, not in a cache."""
    prompt = next(
        [a, b]
        for a in range(13)
        for b in range(13)
        if len(set(plain([[a, b]], max_new_tokens=1 + DEPTH)[0])) == 1 + DEPTH
    )
    text = plain([prompt], max_new_tokens=1 + DEPTH)[0]
    generation = foresee(
        tree, [prompt] * (1 + DEPTH), stop_ids=[[token] for token in text]
    )
    assert generation.reasons == ["stop_id"] * (1 + DEPTH)
    for slot, tokens in enumerate(generation.tokens):
        assert tokens.tolist() == text[: slot + 1]
    oracle = TOY, sd.Params(TABLE), Oracle(tree=TREES[tree])
    assert_same_state(generation.state, read_afresh(*oracle, generation.state))


@every_tree
def test_a_limit_or_a_full_cache_at_every_slot_of_a_path(tree):
    """The last rows have no limit but the cache's 48 slots."""
    limits: list[int | None] = [*range(1, 2 * DEPTH + 3)]
    prompts = [[3, 1, 4]] * len(limits)
    for room in range(1, DEPTH + 3):
        prompts.append([(7 * i) % 13 for i in range(48 - room)])
        limits.append(None)
    generation = foresee(tree, prompts, max_new_tokens=limits)
    assert {
        (x is None, y) for x, y in zip(limits, generation.reasons, strict=True)
    } == {
        (False, "length"),
        (True, "full"),
    }
    assert [x.tolist() for x in generation.tokens] == plain(
        prompts, max_new_tokens=limits
    )
    oracle = TOY, sd.Params(TABLE), Oracle(tree=TREES[tree])
    assert_same_state(generation.state, read_afresh(*oracle, generation.state))


@pytest.mark.slow
@every_tree
def test_a_prompt_of_one_token(tree):
    """There is no feature yet: nothing is proposed, once."""
    generation = foresee(tree, [[5], [5, 5]], max_new_tokens=1 + 2 * (1 + DEPTH))
    stats = generation.stats
    assert np.asarray(stats.steps).tolist() == [3, 3]
    assert np.asarray(stats.proposed)[:, 1].tolist() == [2, 3]


@every_tree
def test_a_second_turn(tree):
    """Going on is as if it had all been one prompt."""
    first = foresee(tree, PROMPTS, max_new_tokens=[2, 7, 9], temperature=0.5, seed=8)
    prompts = [
        [*prompt, *said.tolist(), *more]
        for prompt, said, more in zip(
            PROMPTS, first.tokens, ([1, 2, 3], [], [4]), strict=True
        )
    ]
    sampling = {"max_new_tokens": [8, 3, 6], "temperature": 0.5, "seed": 8}
    second = foresee(tree, prompts, first.state, **sampling)
    fresh = foresee(tree, prompts, **sampling)
    for one, other in zip(second.tokens, fresh.tokens, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(second.stats, fresh.stats, strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same_state(second.state, fresh.state)


# --- States of real heads -------------------------------------------------------------


@pytest.mark.slow
@every_head
def test_caches_are_those_of_a_fresh_reading(name):
    """However many steps there were, and wherever they were cut; and a row among others
    is that row alone.
    """
    case = head_of(name)
    prompts = [[3, 1, 4, 1, 5, 2, 6, 5, 0], [4], [6, 0, 2, 1]]
    rule = "match" if case[2].kind == "points" else "rejection"
    for seed in range(4):
        random = np.random.default_rng(seed)
        limits = random.integers(1, 30, 3).tolist()
        seeds = random.integers(0, 2**32, 3).tolist()
        temperatures = random.choice([0.0, 0.7, 1.0], 3).tolist()

        def say(rows: list[int], limits=limits, seeds=seeds, heat=temperatures) -> Any:
            sampling = sd.Sampling(
                temperature=[heat[row] for row in rows],
                max_new_tokens=[limits[row] for row in rows],
                seed=[seeds[row] for row in rows],
            )
            return sd.generate(
                *case,
                [prompts[row] for row in rows],
                sampling=sampling,
                rule=rule,
                max_length=48,
            )

        together = say([0, 1, 2])
        assert_same_state(together.state, read_afresh(*case, together.state))
        row = seed % 3
        alone = say([row])
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert_same_state(together.state, alone.state, rows=slice(row, row + 1))


@pytest.mark.slow
@every_head
def test_a_prompt_may_be_read_in_any_chunks(name):
    case = head_of(name)
    state = _state.init_state(DECODER, case[2], 3, 32)
    tokens = np.random.default_rng(0).integers(0, 7, (3, 32)).astype(np.int32)
    state = state._replace(tokens=tokens, length=np.array([20, 1, 7], np.int32))
    whole = read_afresh(*case, state)
    for chunk in (1, 2, 5):
        assert_same_state(read_afresh(*case, state, chunk=chunk), whole)
