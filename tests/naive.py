"""What generations are held against: the target's text, one token at a time.

No cache, no batch, no tree, and no JAX but for the noise, which a seed and a position
name.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax.targets import ModuleTarget

Row = Mapping[str, Any]  # fields of `Sampling`, for one row
Logits = Callable[[Sequence[int]], np.ndarray]


class Text(NamedTuple):
    """One row of a `Generation`."""

    tokens: list[int]
    reason: str
    logprobs: list[float]  # under the model's own law
    sampled: list[float]  # under the law drawn from


def toy_logits(toy: sd.Toy, params: Any) -> Logits:
    """The row of the table that rules after a prefix."""
    table = np.asarray(params["logits"], np.float64)
    return lambda prefix: table[toy.context(prefix)]


def module_logits(target: ModuleTarget, params: Any, *, size: int) -> Logits:
    """A forward of the whole prefix each time, filled up to `size` tokens."""

    @jax.jit
    def logits_of(tokens: Array) -> Array:
        cache = target.init_cache(1, 0)
        output = target.forward(params, cache, _tree.causal_block(tokens[None]), ())
        return target.logits(params, output.hidden)[0]

    def logits(prefix: Sequence[int]) -> np.ndarray:
        tokens = np.zeros(size, np.int32)
        tokens[: len(prefix)] = prefix
        return np.asarray(logits_of(tokens)[len(prefix) - 1], np.float64)

    return logits


def decode_one_by_one(
    logits: Logits,
    prompt: Sequence[int],
    row: Row,
    *,
    seed: int,
    fold: int | None = None,
    slots: int = 64,
    token_bytes: Sequence[bytes] = (),
    allows: Callable[[Sequence[int]], np.ndarray] | None = None,
) -> Text:
    """The text that `match` must emit for one row.

    Args:
        logits: after any prefix.
        prompt: of the row.
        row: its options.
        seed: its own.
        fold: its number, where the seed is shared by all rows.
        slots: of the cache, which ends a text.
        token_bytes: what each token spells.
        allows: which tokens may follow the new ones so far.
    """
    text = Text([], "", [], [])
    temperature = row.get("temperature", 0.0)
    while not text.reason:
        raw = logits([*prompt, *text.tokens])
        scores = _adjusted(raw, prompt, text.tokens, row)
        if allows is not None:
            scores = np.where(allows(text.tokens), scores, -np.inf)
        if np.isneginf(scores).all():
            return text._replace(reason="no_token")
        if not scores.max() < np.inf:
            return text._replace(reason="nan")
        if temperature > 0:
            scores = _filtered(scores / temperature, row)
            position = len(prompt) + len(text.tokens)
            token = int(np.argmax(scores + gumbel(seed, fold, len(raw))[position]))
        else:
            token = int(np.argmax(scores))
            scores = np.where(np.arange(len(raw)) == token, 0.0, -np.inf)
        new = [*text.tokens, token]
        text = Text(
            new,
            _reason(prompt, new, row, slots, token_bytes),
            [*text.logprobs, float(_log_softmax(raw)[token])],
            [*text.sampled, float(_log_softmax(scores)[token])],
        )
    return text


@functools.lru_cache
def gumbel(seed: int, fold: int | None, vocab_size: int) -> np.ndarray:
    """The noise of each absolute position."""
    key = jax.random.key(np.uint32(seed))
    key = key if fold is None else jax.random.fold_in(key, fold)
    key = jax.random.fold_in(key, 0)

    def at(position: Array) -> Array:
        return jax.random.gumbel(
            jax.random.fold_in(key, position), (vocab_size,), jnp.float32
        )

    return np.asarray(jax.vmap(at)(jnp.arange(512, dtype=jnp.int32)))


def _adjusted(
    raw: np.ndarray, prompt: Sequence[int], new: Sequence[int], row: Row
) -> np.ndarray:
    scores = raw.copy()
    for token, amount in row.get("bias", {}).items():
        scores[token] += amount
    repetition = row.get("repetition_penalty", 1.0)
    for token in {*prompt, *new}:
        score = scores[token]
        scores[token] = score / repetition if score > 0 else score * repetition
    for token in set(new):
        scores[token] -= row.get("presence_penalty", 0.0)
        scores[token] -= row.get("frequency_penalty", 0.0) * new.count(token)
    scores[list(row.get("banned_ids", ()))] = -np.inf
    if row.get("allowed_ids") is not None:
        scores[~np.isin(np.arange(len(raw)), row["allowed_ids"])] = -np.inf
    if len(new) < row.get("min_new_tokens", 0):
        scores[list(row.get("stop_ids", ()))] = -np.inf
    return scores


def _filtered(scores: np.ndarray, row: Row) -> np.ndarray:
    if row.get("top_k"):
        scores = np.where(scores >= np.sort(scores)[-row["top_k"]], scores, -np.inf)
    if row.get("top_p", 1.0) < 1:
        order = np.argsort(-scores)
        mass = np.exp(_log_softmax(scores))[order].cumsum()
        last = order[np.searchsorted(mass, row["top_p"])]
        scores = np.where(scores >= scores[last], scores, -np.inf)
    if row.get("min_p", 0.0) > 0:
        least = scores.max() + np.log(row["min_p"])
        scores = np.where(scores >= least, scores, -np.inf)
    return scores


def _reason(
    prompt: Sequence[int],
    new: Sequence[int],
    row: Row,
    slots: int,
    token_bytes: Sequence[bytes],
) -> str:
    if new[-1] in row.get("stop_ids", ()):
        return "stop_id"
    looked_at = new[row.get("min_new_tokens", 0) :] if token_bytes else ()
    spelled = b"".join(token_bytes[token] for token in looked_at)
    if any(string.encode() in spelled for string in row.get("stop_strings", ())):
        return "stop_string"
    if len(new) >= (row.get("max_new_tokens") or np.inf):
        return "length"
    return "full" if len(prompt) + len(new) >= slots else ""


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())
