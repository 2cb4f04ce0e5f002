"""Top-k, top-p and min-p without sorting a vocabulary: each is a threshold on the
scores, found by bisection.

Ties at a threshold are all kept, so a filter never depends on the order of token ids;
so are NaNs, for whoever reports them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def top_k(scores: Float[Array, "B N V"], k: Int[Array, " B"]) -> Float[Array, "B N V"]:
    """Keep the k largest scores of each row; the others become -inf."""
    wanted = jnp.clip(k, 1, scores.shape[-1])[:, None]
    return _keep(scores, lambda kept: kept.sum(-1, dtype=jnp.int32) >= wanted)


def top_p(
    scores: Float[Array, "B N V"], p: Float[Array, " B"]
) -> Float[Array, "B N V"]:
    """Keep the smallest set of largest scores whose softmax mass is at least p; p >= 1
    keeps everything.
    """
    mass = jax.nn.softmax(scores, axis=-1)
    wanted = jnp.where(p >= 1, 0.0, p)[:, None]  # a rounded sum may never reach 1
    kept = _keep(scores, lambda kept: jnp.where(kept, mass, 0.0).sum(-1) >= wanted)
    return jnp.where((p >= 1)[:, None, None], scores, kept)


def min_p(
    scores: Float[Array, "B N V"], p: Float[Array, " B"]
) -> Float[Array, "B N V"]:
    """Keep the tokens at least p times as likely as the likeliest."""
    floor = scores.max(-1, keepdims=True) + jnp.log(p)[:, None, None]
    return jnp.where(scores < floor, -jnp.inf, scores)  # a NaN is not below anything


def _keep(
    scores: Float[Array, "B N V"],
    enough: Callable[[Bool[Array, "B N V"]], Bool[Array, "B N"]],
) -> Float[Array, "B N V"]:
    """Scores at or above the highest threshold that keeps enough, which 32 halvings of
    the ordered float bits find exactly.
    """
    order = _ordered(scores)

    def halve(_, bounds):
        low, high = bounds  # enough at low, not enough at high
        middle = (low & high) + ((low ^ high) >> 1)
        good = enough(order >= middle[:, :, None])
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    low = order.min(-1)
    high = order.max(-1) + 1
    threshold, _ = jax.lax.fori_loop(0, 32, halve, (low, high))
    is_kept = (order >= threshold[:, :, None]) | jnp.isnan(scores)
    return jnp.where(is_kept, scores, -jnp.inf)


def _ordered(scores: Float[Array, "B N V"]) -> Int[Array, "B N V"]:
    """Integers in the order of the floats they come from (0.0 and -0.0 are the same
    number).
    """
    bits = jax.lax.bitcast_convert_type(scores + 0.0, jnp.int32)
    return jnp.where(bits < 0, jnp.int32(-(2**31)) - bits, bits)
