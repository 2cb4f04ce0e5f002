"""Stop ids and stop strings: the automaton by itself, and where it ends a text."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    PLAIN_ROWS,
    PROMPTS,
    SEEDS,
    N,
    arguments,
    assert_same,
    expected_texts,
    sampling_of,
)

import specdec_jax as sd
from specdec_jax import _stops

pytestmark = pytest.mark.usefixtures("quick_compile")

# What the toy's tokens spell: a stop string may begin, end and lie inside of one, a
# character takes two tokens, and one token spells nothing.
BYTES = (b"a", b"b", b"aab", b"\xc3", b"\xa9", b"ba", b"")


def ends_after(table: _stops.StopTable, rows: list[list[int]]) -> list[int | None]:
    """How many tokens of each row it takes until a stop string has occurred."""
    tokens = jnp.asarray(rows, jnp.int32)
    start, nothing = jnp.zeros(len(rows), jnp.int32), jnp.zeros(tokens.shape, bool)
    found = _stops.advance(table, start, tokens, nothing) == _stops.STOPPED
    return [int(row.argmax()) + 1 if row.any() else None for row in np.asarray(found)]


def ends_after_by_looking(strings: list[str], row: list[int]) -> int | None:
    for length in range(1, len(row) + 1):
        spelled = b"".join(BYTES[token] for token in row[:length])
        if any(string.encode() in spelled for string in strings):
            return length
    return None


@pytest.mark.parametrize(
    "strings",
    [
        ["aab"],  # in "aaab" it begins again before it fails
        ["abab", "ba"],
        ["é"],  # half of it in one token, half in the next
        ["b", "aaa", "éé", "abba"],
        ["aaaab", "aab", "ab"],  # each the end of another
        ["aa", "aab"],  # one hides the other
    ],
    ids=" ".join,
)
def test_the_automaton_finds_what_a_search_finds(strings):
    """In every text of five tokens."""
    rows = [list(row) for row in itertools.product(range(7), repeat=5)]
    table = _stops.stop_table([strings] * len(rows), BYTES)
    assert ends_after(table, rows) == [
        ends_after_by_looking(strings, row) for row in rows
    ]


def test_each_row_has_its_own_strings():
    """Rows with the same strings share a table; one without never stops."""
    strings = [["ab"], [], ["b"], ["ab"]]
    table = _stops.stop_table(strings, BYTES)
    assert table.next_state.shape[0] == 3
    assert ends_after(table, [[0, 0, 1]] * 4) == [3, None, 3, 3]


def test_tables_of_other_strings_have_the_same_shape():
    shapes = {
        _stops.stop_table([strings], BYTES).next_state.shape
        for strings in (["a"], ["aab", "bb"], ["a" * 31])
    }
    assert len(shapes) == 1


def test_trim_cuts_at_the_first_of_the_strings():
    assert _stops.trim("one. two; three", [";", ". "]) == "one"
    assert _stops.trim("one", ["!"]) == "one"


# --- In generated text ----------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["self", "tree"])
def test_a_stop_id_ends_a_row_at_any_slot_of_a_block(drafter):
    """Nothing after it, whichever token of a block it is, whatever the draft was."""
    slots = set()
    for shift in range(14):
        prompts = [[shift % 7, *prompt] for prompt in PROMPTS]
        rows = [
            {**row, "stop_ids": [(shift + i) % 7, (shift // 7 + i + 1) % 7]}
            for i, row in enumerate(PLAIN_ROWS)
        ]
        rows = [{**row, "max_new_tokens": 40} for row in rows]
        generation = sd.generate(
            *arguments(drafter), prompts, sampling=sampling_of(rows, seed=SEEDS)
        )
        assert_same(generation, expected_texts(rows, prompts))
        slots |= {(len(tokens) - 1) % N for tokens in generation.tokens}
    assert slots == set(range(N))


STRINGS = (["aab", "é"], ["ba"], [])


@pytest.mark.parametrize("least", [0, 3, 6])
@pytest.mark.parametrize(
    "drafter", ["self", pytest.param("tree", marks=pytest.mark.slow)]
)
def test_stop_strings(drafter, least):
    """Per row, across blocks, inside of tokens; before `min_new_tokens` nothing is
    looked at, wherever blocks begin.
    """
    reasons, slots = set(), set()
    for shift in range(14):
        prompts = [[shift % 7, shift // 7, *prompt] for prompt in PROMPTS]
        rows = [
            {**row, "stop_strings": strings, "min_new_tokens": (least, 1, 1)[i]}
            | {"max_new_tokens": 20, "stop_ids": [3] if i == 2 else []}
            for i, (row, strings) in enumerate(zip(PLAIN_ROWS, STRINGS, strict=True))
        ]
        generation = sd.generate(
            *arguments(drafter),
            prompts,
            sampling=sampling_of(rows, seed=SEEDS, token_bytes=BYTES),
        )
        assert_same(generation, expected_texts(rows, prompts, token_bytes=BYTES))
        reasons |= set(generation.reasons)
        slots |= {
            (len(tokens) - 1) % N
            for tokens, reason in zip(
                generation.tokens, generation.reasons, strict=True
            )
            if reason == "stop_string"
        }
    assert {"stop_string", "stop_id"} <= reasons
    assert len(slots) > 1


def test_text_of_the_prompt_is_not_looked_at():
    """A stop string that begins in the prompt does not end the answer."""
    prompts = [[5, 0], [6, 0], [1, 0]]
    strings = (["aa", "ab"], ["aa", "ab", "é"], ["aab"])
    rows = [
        {**row, "stop_strings": strings[i], "max_new_tokens": 6}
        | {"min_new_tokens": (0, 0, 1)[i]}
        for i, row in enumerate(PLAIN_ROWS)
    ]
    generation = sd.generate(
        *arguments("self"),
        prompts,
        sampling=sampling_of(rows, seed=SEEDS, token_bytes=BYTES),
    )
    assert_same(generation, expected_texts(rows, prompts, token_bytes=BYTES))
    first = generation.tokens[0].tolist()
    assert BYTES[first[0]][:1] in (b"a", b"b"), "or it would have ended there"
    assert len(first) > 1
