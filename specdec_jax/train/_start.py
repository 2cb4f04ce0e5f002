"""Where a drafter's parameters begin."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from specdec_jax._lesson import TrainableDrafter
from specdec_jax._types import Target
from specdec_jax.nn import TOKENS
from specdec_jax.train._corpus import Corpus

_PART = 64  # rows of a unit matrix at once
_SMALL = 2.0**-7  # far below where a soft cap bends


def start_params(
    target: Target,
    target_params: PyTree,
    drafter: TrainableDrafter,
    corpus: Corpus,
    key: Key[Array, ""],
) -> PyTree:
    """Random, but for an output layer of the drafter's own: it begins as the target's,
    over the tokens that the corpus' answers have most often.
    """
    params = drafter.init_params(key, target)
    if "head" not in params:
        return params
    weight = params["head"]["weight"]
    tokens = jnp.arange(target.vocab_size, dtype=jnp.int32)
    if TOKENS in params:
        chosen = most_frequent(corpus.answers(), weight.shape[0], target.vocab_size)
        params[TOKENS] = tokens = jnp.asarray(chosen)
    if weight.shape[1] == target.width:
        rows = output_rows(target, target_params, tokens)
        params["head"]["weight"] = rows.astype(weight.dtype)
    return params


def most_frequent(tokens: np.ndarray, count: int, vocab_size: int) -> np.ndarray:
    """Ids of the `count` most frequent tokens, int32, ascending; of equals the lower
    ones.
    """
    counts = np.bincount(tokens, minlength=vocab_size)
    chosen = np.argsort(-counts, kind="stable")[:count]
    return np.sort(chosen).astype(np.int32)


def output_rows(
    target: Target, params: PyTree, tokens: Int[Array, " W"]
) -> Float[Array, "W D"]:
    """The rows of the target's output layer that make the logits of these tokens: what
    it answers to small unit vectors.
    """
    width = target.width
    parts = [
        _answers(target, params, tokens, jnp.asarray(first), size=min(_PART, width))
        for first in range(0, width, _PART)
    ]
    return jnp.concatenate(parts, axis=0)[:width].T / _SMALL


@functools.partial(jax.jit, static_argnames=("target", "size"))
def _answers(
    target: Target, params: PyTree, tokens: Array, first: Array, *, size: int
) -> Float[Array, "C W"]:
    dtype = target.embed(params, jnp.zeros((1, 1), jnp.int32)).dtype
    at = first + jnp.arange(size, dtype=jnp.int32)
    is_one = at[:, None] == jnp.arange(target.width, dtype=jnp.int32)[None, :]
    unit = jnp.where(is_one, _SMALL, 0.0).astype(dtype)
    logits = target.logits(params, unit[None])
    return jnp.take(logits[0], tokens, axis=-1)
