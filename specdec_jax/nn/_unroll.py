"""A head run on its own states, every row of a text at once (EAGLE-3's training-time
test, Li et al. 2025, arXiv 2503.01840, §3.2).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax.nn._attention import scores, weighed


class Rows(NamedTuple):
    """Keys and values of every depth so far, of each layer: depth 0 is the genuine
    rows, and of the others a row sees none but its own.
    """

    keys: tuple[tuple[Float[Array, "B K T H"], ...], ...] = ()
    values: tuple[tuple[Float[Array, "B K T H"], ...], ...] = ()


def next_states(
    head: Any,
    embedded: Float[Array, "B T D"],
    states: Float[Array, "B T D"],
    positions: Int[Array, "B T"],
    sees: Bool[Array, "B T T"],
    rows: Rows,
) -> tuple[Float[Array, "B T D"], Rows]:
    """What `head` makes of every row one depth further on, where each stands at its
    position in the text and the depth; and the rows with it.
    """
    depth = len(rows.keys)
    keys: list[Array] = []
    values: list[Array] = []

    def attend(
        layer: int,
        query: Array,
        key: Array,
        value: Array,
        /,
        *,
        window: int | None = None,
        scale: float | None = None,
    ) -> Array:
        keys.append(key.swapaxes(1, 2))
        values.append(value.swapaxes(1, 2))
        mask = sees
        if window is not None:
            ahead = positions[:, :, None] + depth - positions[:, None, :]
            mask = sees & (ahead < window)
        return _attention(
            query,
            [of_depth[layer] for of_depth in (*rows.keys, keys)],
            [of_depth[layer] for of_depth in (*rows.values, values)],
            mask,
            scale,
        )

    output = head(embedded, states, positions + depth, attend)
    return output, Rows((*rows.keys, tuple(keys)), (*rows.values, tuple(values)))


def _attention(
    query: Float[Array, "B T Q H"],
    keys: list[Float[Array, "B K T H"]],
    values: list[Float[Array, "B K T H"]],
    mask: Bool[Array, "B T T"],
    scale: float | None,
) -> Float[Array, "B T Q H"]:
    """The genuine rows that `mask` shows, and a row's own of each later depth: two sets
    of scores, one softmax, and no matrix of a row against every depth.
    """
    batch, size, heads, width = query.shape
    kv_heads = keys[0].shape[1]
    scale = width**-0.5 if scale is None else scale
    grouped = query.reshape(batch, size, kv_heads, heads // kv_heads, width)
    grouped = grouped.transpose(0, 2, 3, 1, 4) * jnp.asarray(scale, query.dtype)
    genuine = scores(grouped, keys[0])
    genuine = jnp.where(mask[:, None, None], genuine, -jnp.inf)
    own = [
        jnp.einsum("bkgth,bkth->bkgt", grouped, x, preferred_element_type=jnp.float32)
        for x in keys[1:]
    ]
    best = genuine.max(-1)
    for score in own:
        best = jnp.maximum(best, score)
    best = jax.lax.stop_gradient(best)
    weights = jnp.exp(genuine - best[..., None])
    total = weights.sum(-1)
    read = weighed(weights.astype(query.dtype), values[0])
    for score, value in zip(own, values[1:], strict=True):
        weight = jnp.exp(score - best)
        total = total + weight
        read = read + weight[..., None] * value[:, :, None].astype(jnp.float32)
    read = (read / total[..., None]).transpose(0, 3, 1, 2, 4)
    return read.reshape(query.shape).astype(query.dtype)
