"""Stop strings as a table over tokens.

An Aho–Corasick automaton over bytes (Aho and Corasick 1975), one state per row of text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

START, STOPPED = 0, 1  # STOPPED is the state once a stop string has occurred, for good
_MOST = 4096  # bytes of a row's strings: the table has a state for each, and a token
_STATES = 32  # tables are padded to a multiple: other strings need no other program


class StopTable(NamedTuple):
    """`next_state[group, state, token]`; rows with the same strings are one group."""

    next_state: Int[Array, "G Q V"]
    group: Int[Array, " B"]


def stop_table(
    strings: Sequence[Sequence[str]], token_bytes: Sequence[bytes]
) -> StopTable:
    """The table of each row's strings, compiled once per distinct set.

    Args:
        strings: for each row, the strings that end it (none: never).
        token_bytes: the bytes that each token stands for, V of them.

    Raises:
        ValueError: for an empty string, which every text contains, or very long ones.
    """
    sets = [tuple(sorted(set(row))) for row in strings]
    if any("" in row for row in sets):
        raise ValueError('a stop string is empty: every text contains ""')
    for row in sets:
        if (size := sum(len(string.encode()) for string in row)) > _MOST:
            raise ValueError(
                f"the stop strings of a row have {size:,} bytes together: at most "
                f"{_MOST:,} are possible"
            )
    distinct = sorted(set(sets))
    tables = [
        _token_table([string.encode() for string in row], token_bytes)
        for row in distinct
    ]
    size = -(-max(len(table) for table in tables) // _STATES) * _STATES
    padded = np.zeros((len(tables), size, len(token_bytes)), np.int16)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table
    return StopTable(
        jnp.asarray(padded),
        jnp.asarray([distinct.index(row) for row in sets], jnp.int32),
    )


def advance(
    table: StopTable,
    state: Int[Array, " B"],
    tokens: Int[Array, "B P"],
    ignored: Bool[Array, "B P"],
) -> Int[Array, "B P"]:
    """The state after each of a row's tokens in turn; after one that is ignored, text
    begins anew.
    """
    states = []
    for i in range(tokens.shape[1]):
        state = table.next_state[table.group, state, tokens[:, i]].astype(jnp.int32)
        state = jnp.where(ignored[:, i], START, state)
        states.append(state)
    return jnp.stack(states, axis=1)


def trim(text: str, strings: Sequence[str]) -> str:
    """`text` up to the first occurrence of any of the strings."""
    return text[
        : min(
            [text.find(string) for string in strings if string in text],
            default=len(text),
        )
    ]


def _token_table(patterns: list[bytes], token_bytes: Sequence[bytes]) -> np.ndarray:
    """Follow every token's bytes from every state at once."""
    step = _byte_table(patterns)
    lengths = np.array([len(token) for token in token_bytes])
    width = max(int(lengths.max(initial=0)), 1)
    spelled = np.zeros((len(token_bytes), width), np.uint8)
    for token, raw in enumerate(token_bytes):
        spelled[token, : len(raw)] = np.frombuffer(raw, np.uint8)
    states = np.repeat(
        np.arange(len(step), dtype=np.int16)[:, None], len(token_bytes), axis=1
    )
    for i in range(width):
        longer = np.flatnonzero(lengths > i)
        states[:, longer] = step[states[:, longer], spelled[longer, i]]
    return states


def _byte_table(patterns: list[bytes]) -> np.ndarray:
    """`step[state, byte]`; a state is the longest end of the text that begins a
    pattern.
    """
    prefixes = sorted(
        {pattern[:i] for pattern in patterns for i in range(len(pattern))} | {b""},
        key=lambda p: (len(p), p),
    )
    index = {
        prefix: i + (i > 0) for i, prefix in enumerate(prefixes)
    }  # leaves 1 free for STOPPED
    step = np.zeros((len(prefixes) + 1, 256), np.int16)
    step[STOPPED] = STOPPED
    for prefix, state in index.items():
        fallback = (
            step[index[_longest_end(prefix, index)]]
            if prefix
            else np.zeros(256, np.int16)
        )
        step[state] = fallback
        for byte in range(256):
            text = prefix + bytes([byte])
            if text in index:
                step[state, byte] = index[text]
            if any(text.endswith(pattern) for pattern in patterns):
                step[state, byte] = STOPPED
    return step


def _longest_end(prefix: bytes, index: dict[bytes, int]) -> bytes:
    """The longest proper end of `prefix` that is itself a prefix of some pattern."""
    return next(prefix[i:] for i in range(1, len(prefix) + 1) if prefix[i:] in index)
