"""Top-k, top-p and min-p without sorting a vocabulary: each is a threshold on the
scores, found by bisection from a guess among the best few.

Ties at a threshold are all kept, so a filter never depends on the order of token ids;
so are NaNs, for whoever reports them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax import _sharding

# What top-k or top-p keeps is mostly within so few, and then guessed at once.
FEW = 64


def top_k(scores: Float[Array, "B N V"], k: Int[Array, " B"]) -> Float[Array, "B N V"]:
    """Keep the k largest scores of each row; the others become -inf."""
    wanted = jnp.clip(k, 1, scores.shape[-1])[:, None]
    best = _best(scores)
    count = jnp.cumsum(jnp.ones_like(best, jnp.int32), axis=-1)
    guess = _first(best, count >= wanted[:, :, None])
    return _keep(scores, guess, lambda kept: kept.sum(-1, dtype=jnp.int32) >= wanted)


def top_p(
    scores: Float[Array, "B N V"], p: Float[Array, " B"]
) -> Float[Array, "B N V"]:
    """Keep the smallest set of largest scores whose softmax mass is at least p; p >= 1
    keeps everything.
    """
    wanted = jnp.where(p >= 1, 0.0, p)[:, None]  # a rounded sum may never reach 1
    mass = jax.nn.softmax(scores, axis=-1)
    best = _best(scores)
    some = jnp.cumsum(_best(mass), axis=-1)
    kept = _keep(
        scores,
        _first(best, some >= wanted[:, :, None]),
        lambda kept: jnp.where(kept, mass, 0.0).sum(-1) >= wanted,
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
    return _sharding.top_k(scores, min(FEW, scores.shape[-1]), axis="vocab")[0]


def _first(
    best: Float[Array, "B N C"], is_enough: Bool[Array, "B N C"]
) -> Float[Array, "B N"]:
    """The first of the best that is enough; -inf where none is."""
    first = is_enough.argmax(-1, keepdims=True)
    found = jnp.take_along_axis(best, first, axis=-1)[:, :, 0]
    return jnp.where(is_enough.any(-1), found, -jnp.inf)


def _keep(
    scores: Float[Array, "B N V"],
    guess: Float[Array, "B N"],
    enough: Callable[[Bool[Array, "B N V"]], Bool[Array, "B N"]],
) -> Float[Array, "B N V"]:
    """Scores at or above the highest threshold that keeps enough, found by halving the
    ordered float bits.

    A guess only saves halvings: whatever it is, and however many the other rows need,
    it is `enough` that decides, of the same sum.
    """
    order, likely = _ordered(scores), _ordered(guess)

    def is_open(bounds):
        low, high, _ = bounds
        return (low + 1 < high).any()  # their difference may overflow

    def halve(bounds):
        low, high, turn = bounds  # enough at low, not enough at high
        middle = (low & high) + ((low ^ high) >> 1)
        probe = jnp.where(turn < 2, likely + turn, middle)  # the guess, and just above
        middle = jnp.where((low < probe) & (probe < high), probe, middle)
        good = enough(order >= middle[:, :, None])
        return jnp.where(good, middle, low), jnp.where(good, high, middle), turn + 1

    start = order.min(-1), order.max(-1) + 1, jnp.int32(0)
    threshold, *_ = jax.lax.while_loop(is_open, halve, start)
    is_kept = (order >= threshold[:, :, None]) | jnp.isnan(scores)
    return jnp.where(is_kept, scores, -jnp.inf)


def _ordered(scores: Float[Array, "..."]) -> Int[Array, "..."]:
    """Integers in the order of the floats they come from (0.0 and -0.0 are the same
    number).
    """
    bits = jax.lax.bitcast_convert_type(scores + 0.0, jnp.int32)
    return jnp.where(bits < 0, jnp.int32(-(2**31)) - bits, bits)
