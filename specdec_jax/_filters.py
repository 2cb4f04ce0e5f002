"""Top-k, top-p and min-p without sorting a vocabulary: each is a threshold on the
scores, found among the best few, or else by bisection.

Ties at a threshold are all kept, so a filter never depends on the order of token ids;
so are NaNs, for whoever reports them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# What top-k or top-p keeps is mostly within so few, and then ten times cheaper to find.
FEW = 64


def top_k(scores: Float[Array, "B N V"], k: Int[Array, " B"]) -> Float[Array, "B N V"]:
    """Keep the k largest scores of each row; the others become -inf."""
    wanted = jnp.clip(k, 1, scores.shape[-1])[:, None]
    best = _best(scores)
    count = jnp.cumsum(jnp.ones_like(best, jnp.int32), axis=-1)
    return _keep(
        scores,
        best,
        count >= wanted[:, :, None],
        lambda kept: kept.sum(-1, dtype=jnp.int32) >= wanted,
    )


def top_p(
    scores: Float[Array, "B N V"], p: Float[Array, " B"]
) -> Float[Array, "B N V"]:
    """Keep the smallest set of largest scores whose softmax mass is at least p; p >= 1
    keeps everything.
    """
    wanted = jnp.where(p >= 1, 0.0, p)[:, None]  # a rounded sum may never reach 1
    largest = scores.max(-1, keepdims=True)
    weight = jnp.exp(scores - largest)
    total = weight.sum(-1)
    best = _best(scores)
    mass = jnp.cumsum(jnp.exp(best - largest), axis=-1) / total[:, :, None]
    kept = _keep(
        scores,
        best,
        mass >= wanted[:, :, None],
        lambda kept: jnp.where(kept, weight, 0.0).sum(-1) / total >= wanted,
    )
    return jnp.where((p >= 1)[:, None, None], scores, kept)


def min_p(
    scores: Float[Array, "B N V"], p: Float[Array, " B"]
) -> Float[Array, "B N V"]:
    """Keep the tokens at least p times as likely as the likeliest."""
    floor = scores.max(-1, keepdims=True) + jnp.log(p)[:, None, None]
    return jnp.where(scores < floor, -jnp.inf, scores)  # a NaN is not below anything


def _best(scores: Float[Array, "B N V"]) -> Float[Array, "B N C"]:
    """The few largest scores, in order."""
    return jax.lax.top_k(scores, min(FEW, scores.shape[-1]))[0]


def _keep(
    scores: Float[Array, "B N V"],
    best: Float[Array, "B N C"],
    is_enough: Bool[Array, "B N C"],
    enough: Callable[[Bool[Array, "B N V"]], Bool[Array, "B N"]],
) -> Float[Array, "B N V"]:
    """Scores at or above the highest threshold that keeps enough: the first of the best
    that is, where every row has one; 32 halvings of the ordered float bits find it
    exactly in any case.
    """
    order = _ordered(scores)

    def look() -> Int[Array, "B N"]:
        first = is_enough.argmax(-1, keepdims=True)
        return _ordered(jnp.take_along_axis(best, first, axis=-1)[:, :, 0])

    def bisect() -> Int[Array, "B N"]:
        def halve(_, bounds):
            low, high = bounds  # enough at low, not enough at high
            middle = (low & high) + ((low ^ high) >> 1)
            good = enough(order >= middle[:, :, None])
            return jnp.where(good, middle, low), jnp.where(good, high, middle)

        return jax.lax.fori_loop(0, 32, halve, (order.min(-1), order.max(-1) + 1))[0]

    threshold = jax.lax.cond(is_enough.any(-1).all(), look, bisect)
    is_kept = (order >= threshold[:, :, None]) | jnp.isnan(scores)
    return jnp.where(is_kept, scores, -jnp.inf)


def _ordered(scores: Float[Array, "..."]) -> Int[Array, "..."]:
    """Integers in the order of the floats they come from (0.0 and -0.0 are the same
    number).
    """
    bits = jax.lax.bitcast_convert_type(scores + 0.0, jnp.int32)
    return jnp.where(bits < 0, jnp.int32(-(2**31)) - bits, bits)
