"""The `constrain` hook: a grammar holds at every token of every block."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    PLAIN_ROWS,
    PROMPTS,
    SEEDS,
    arguments,
    assert_same,
    expected_texts,
    sampling_of,
)

import specdec_jax as sd
from specdec_jax._types import Constraint

pytestmark = pytest.mark.usefixtures("quick_compile")

TOKENS = jnp.arange(7, dtype=jnp.int32)
OPEN, CLOSE, END, DEEPEST = 0, 1, 6, 3


def one_of(last, depth):
    """Balanced parentheses, at most three deep, with no token twice in a row; the text
    ends outside of them.
    """
    allowed = (TOKENS != OPEN) | (depth < DEEPEST)
    allowed &= (TOKENS != CLOSE) | (depth > 0)
    allowed &= (TOKENS != END) | (depth == 0)
    return allowed & (TOKENS != last)


GRAMMAR = Constraint(
    initial={"last": jnp.int32(-1), "depth": jnp.int32(0)},
    mask=lambda state: one_of(state["last"], state["depth"]),
    advance=lambda state, token: {
        "last": token,
        "depth": state["depth"]
        + (token == OPEN).astype(jnp.int32)
        - (token == CLOSE).astype(jnp.int32),
    },
)
ROWS = [{**row, "stop_ids": [END], "max_new_tokens": 40} for row in PLAIN_ROWS]


def allows(new) -> np.ndarray:
    """The grammar as a function of the text."""
    depth = list(new).count(OPEN) - list(new).count(CLOSE)
    last = new[-1] if len(new) else -1
    return np.asarray(one_of(jnp.int32(last), jnp.int32(depth)))


@pytest.mark.parametrize(
    "drafter", ["self", pytest.param("tree", marks=pytest.mark.slow)]
)
def test_constrained_text_is_the_same_one_by_one(drafter):
    sampling = sampling_of(ROWS, seed=SEEDS, constrain=GRAMMAR)
    generation = sd.generate(*arguments(drafter), PROMPTS, sampling=sampling)
    texts = expected_texts(ROWS, allows=allows)
    assert_same(generation, texts)
    assert texts != expected_texts(ROWS)  # the grammar did say something


@pytest.mark.parametrize(
    "rule", ["rejection", pytest.param("block", marks=pytest.mark.slow)]
)
def test_the_grammar_holds_under_every_rule(rule):
    """In blocks that were accepted too, and to the end of the text."""
    drafted = 0
    for seed in range(5):
        sampling = sampling_of(ROWS, seed=seed, constrain=GRAMMAR)
        generation = sd.generate(
            *arguments("iid"), PROMPTS, sampling=sampling, rule=rule
        )
        for row, reason, is_drafted in zip(
            generation.tokens, generation.reasons, generation.is_drafted, strict=True
        ):
            text = row.tolist()
            for i, token in enumerate(text):
                assert allows(text[:i])[token], text[: i + 1]
            if reason == "stop_id":
                assert text.count(OPEN) == text.count(CLOSE)
            drafted += int(is_drafted.sum())
    assert drafted > 50


def test_a_grammar_begins_anew_when_a_conversation_goes_on():
    sampling = sampling_of(ROWS, seed=SEEDS, constrain=GRAMMAR)
    first = sd.generate(*arguments("self"), PROMPTS, sampling=sampling)
    prompts = [
        [*prompt, *row.tolist(), 3]
        for prompt, row in zip(PROMPTS, first.tokens, strict=True)
    ]
    short = [{**row, "max_new_tokens": 9} for row in ROWS]
    going_on = sd.generate(
        *arguments("self"),
        prompts,
        sampling=sampling_of(short, seed=SEEDS, constrain=GRAMMAR),
        state=first.state,
    )
    assert_same(going_on, expected_texts(short, prompts, allows=allows))
