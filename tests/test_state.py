"""Going on from a returned state: the same as a fresh run on the whole conversation."""

import copy
import itertools

import jax
import numpy as np
import pytest
from cases import (
    DRAFTERS,
    FULL_ROWS,
    PLAIN_ROWS,
    PROMPTS,
    SEEDS,
    TOY,
    arguments,
    sampling_of,
    with_limit,
)

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")

MORE = ([5, 5, 1], [0], [])  # what is added to each row before it goes on


def conversation(prompts, *rest) -> list[list[int]]:
    """Prompts, answers, prompts …, row by row."""
    return [
        [int(token) for part in parts for token in part]
        for parts in zip(prompts, *rest, strict=True)
    ]


def assert_equal(one: sd.Generation, other: sd.Generation) -> None:
    """Tokens, reasons and every count: a drafter whose state were not the same would
    propose something else.
    """
    assert one.reasons == other.reasons
    for a, b in itertools.chain(
        zip(one.tokens, other.tokens, strict=True),
        zip(one.is_drafted, other.is_drafted, strict=True),
        zip(one.stats, other.stats, strict=True),
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [PLAIN_ROWS, FULL_ROWS], ids=["plain", "full"])
@pytest.mark.parametrize("drafter", ["ngram", "near"])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_going_on_is_a_fresh_run(drafter, rows, stop):
    """After a stop id in the middle of a block, a limit, and nothing at all; history
    counts what was said before as prompt.
    """
    first = [{**row, "stop_ids": [stop]} for row in with_limit(rows, 14)]
    generation = sd.generate(
        *arguments(drafter), PROMPTS, sampling=sampling_of(first, seed=SEEDS)
    )
    assert "stop_id" in generation.reasons
    prompts = conversation(PROMPTS, generation.tokens, MORE)
    again = sampling_of(with_limit(rows, 20), seed=SEEDS[::-1])
    going_on = sd.generate(
        *arguments(drafter), prompts, sampling=again, state=generation.state
    )
    fresh = sd.generate(*arguments(drafter), prompts, sampling=again)
    assert_equal(going_on, fresh)
    assert max(map(len, going_on.tokens)) == 20


def test_going_on_under_rejection():
    """Its noise too is named by seed and position."""
    sampling = sd.Sampling(temperature=0.9, max_new_tokens=9)
    options = {"rule": "rejection", "sampling": sampling}
    generation = sd.generate(*arguments("iid"), PROMPTS, **options)
    prompts = conversation(PROMPTS, generation.tokens, MORE)
    going_on = sd.generate(
        *arguments("iid"), prompts, state=generation.state, **options
    )
    assert_equal(going_on, sd.generate(*arguments("iid"), prompts, **options))


def begun(drafter: str = "near") -> tuple[list[list[int]], sd.Generation]:
    """A first answer, and what the conversation goes on with."""
    generation = sd.generate(*arguments(drafter), PROMPTS, sampling=SAMPLING)
    return conversation(PROMPTS, generation.tokens, MORE), generation


SAMPLING = sampling_of(with_limit(PLAIN_ROWS, 10), seed=SEEDS)


def test_results_outlive_the_state():
    """Going on overwrites the state, never what was returned before."""
    prompts, generation = begun()
    before = copy.deepcopy(results(generation))
    sd.generate(*arguments("near"), prompts, sampling=SAMPLING, state=generation.state)
    jax.tree.map(np.testing.assert_array_equal, before, results(generation))


def results(generation: sd.Generation) -> list:
    return [generation.tokens, generation.is_drafted, list(generation.stats)]


def test_a_consumed_state_is_refused():
    prompts, generation = begun()
    state = generation.state
    going_on = {"sampling": SAMPLING, "state": state}
    sd.generate(*arguments("near"), prompts, **going_on)
    for use in (
        lambda: sd.generate(*arguments("near"), prompts, **going_on),
        lambda: sd.stream(*arguments("near"), prompts, **going_on),
        lambda: sd.copy(state),
        lambda: sd.grow(TOY, DRAFTERS["near"][0], state, max_length=128),
    ):
        with pytest.raises(ValueError, match="consumed by an earlier call"):
            use()


def test_a_state_with_hardly_anything_in_it_is_consumed_too():
    prompts, generation = begun("plain")
    state = generation.state
    sd.generate(*arguments("plain"), prompts, sampling=SAMPLING, state=state)
    with pytest.raises(ValueError, match="consumed by an earlier call"):
        sd.copy(state)
    state = begun("plain")[1].state
    sd.grow(TOY, DRAFTERS["plain"][0], state, max_length=65)
    with pytest.raises(ValueError, match="consumed by an earlier call"):
        sd.copy(state)


def test_a_copy_goes_on_by_itself():
    prompts, generation = begun()
    kept = sd.copy(generation.state)
    one = sd.generate(
        *arguments("near"), prompts, sampling=SAMPLING, state=generation.state
    )
    other = sd.generate(*arguments("near"), prompts, sampling=SAMPLING, state=kept)
    assert_equal(one, other)


def test_a_grown_state_goes_on():
    drafter = "near"
    prompts, generation = begun(drafter)
    state = sd.grow(TOY, DRAFTERS[drafter][0], generation.state, max_length=128)
    assert state.tokens.shape[1] == 128
    sampling = sampling_of(with_limit(PLAIN_ROWS, 100), seed=SEEDS)
    going_on = sd.generate(*arguments(drafter), prompts, sampling=sampling, state=state)
    assert_equal(going_on, sd.generate(*arguments(drafter), prompts, sampling=sampling))


def test_a_state_grows_to_the_models_positions_and_no_further():
    toy = sd.Toy(vocab_size=7, max_length=100)
    _, generation = begun()
    drafter = DRAFTERS["near"][0]
    state = sd.grow(toy, drafter, generation.state, max_length=80)
    assert state.tokens.shape[1] == 80
    for wrong in (79, 101):
        with pytest.raises(ValueError, match=f"max_length {wrong} .*100"):
            sd.grow(toy, drafter, state, max_length=wrong)


def test_a_refused_call_leaves_the_state_alone():
    prompts, generation = begun()
    going_on = {"sampling": SAMPLING, "state": generation.state}
    for drafter in ("ngram", "plain"):
        with pytest.raises(ValueError, match="another target or drafter"):
            sd.generate(*arguments(drafter), prompts, **going_on)
    with pytest.raises(ValueError, match="part at position 4"):
        other = [*prompts[0][:4], 6 - prompts[0][4], *prompts[0][5:]]
        sd.generate(*arguments("near"), [other, *prompts[1:]], **going_on)
    with pytest.raises(ValueError, match=r"prompt 1 .* part at position 10"):
        shorter = [prompts[0], prompts[1][:-2], prompts[2]]
        sd.generate(*arguments("near"), shorter, **going_on)
    with pytest.raises(ValueError, match="2 prompts for a state of 3 rows"):
        sd.generate(
            *arguments("near"),
            prompts[:2],
            sampling=sd.Sampling(max_new_tokens=1),
            state=generation.state,
        )
    with pytest.raises(ValueError, match="raise max_length to 65.*grow"):
        long = [prompts[0] + [1] * 33, *prompts[1:]]
        sd.generate(*arguments("near"), long, **going_on)
    with pytest.raises(ValueError, match="use grow, not max_length"):
        sd.generate(*arguments("near"), prompts, **going_on, max_length=64)
    sd.generate(*arguments("near"), prompts, **going_on)
