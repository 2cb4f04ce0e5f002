"""Attention to the committed prefix and to the block itself: two sets of scores, one
softmax.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def attention(
    query: Float[Array, "B T Q H"],
    prefix_keys: Float[Array, "B K S H"],
    prefix_values: Float[Array, "B K S H"],
    length: Int[Array, " B"],
    block_keys: Float[Array, "B K U H"],
    block_values: Float[Array, "B K U H"],
    mask: Bool[Array, "B T U"],
    depths: Int[Array, "B T"],
    *,
    key_depths: Int[Array, "B U"] | None = None,
    window: int | None = None,
    scale: float | None = None,
) -> Float[Array, "B T Q H"]:
    """Scaled dot-product attention, Q a multiple of K (query head i reads key/value
    head i // (Q / K)).

    Every query sees the first `length` slots of the prefix, and of the block what
    `mask` says: itself at least. With a `window`, only the last so many positions of
    these, its own included; a position is `length` and a depth. The block may hold more
    keys than there are queries: `key_depths` are theirs (None: those of the queries).
    What lies in the prefix at or beyond `length` changes nothing, keys that are NaN
    included. `scale` multiplies the scores; by default head_width ** -0.5.
    """
    batch, size, heads, head_width = query.shape
    kv_heads, slots = prefix_keys.shape[1:3]
    wide = query.astype(prefix_keys.dtype)  # the cache may be wider than the weights
    grouped = wide.reshape(
        batch, size, kv_heads, heads // kv_heads, head_width
    ).transpose(0, 2, 3, 1, 4)
    scale = head_width**-0.5 if scale is None else scale
    grouped = grouped * jnp.asarray(scale, grouped.dtype)

    at = jnp.arange(slots, dtype=jnp.int32)[None, None, :]
    is_seen = at < length[:, None, None]
    if window is not None:
        oldest = length[:, None] + depths - window + 1
        is_seen = is_seen & (at >= oldest[:, :, None])
        key_depths = depths if key_depths is None else key_depths
        mask = mask & (depths[:, :, None] - key_depths[:, None, :] < window)
    prefix = scores(grouped, prefix_keys)
    prefix = jnp.where(is_seen[:, None, None, :, :], prefix, -jnp.inf)
    block = scores(grouped, block_keys)
    block = jnp.where(mask[:, None, None, :, :], block, -jnp.inf)

    best = jnp.maximum(prefix.max(-1, initial=-jnp.inf), block.max(-1))[..., None]
    prefix, block = jnp.exp(prefix - best), jnp.exp(block - best)
    total = prefix.sum(-1) + block.sum(-1)
    read = weighed(prefix.astype(prefix_values.dtype), prefix_values)
    read += weighed(block.astype(block_values.dtype), block_values)
    return (
        (read / total[..., None])
        .transpose(0, 3, 1, 2, 4)
        .reshape(query.shape)
        .astype(query.dtype)
    )


def scores(
    query: Float[Array, "B K G T H"], keys: Float[Array, "B K S H"]
) -> Float[Array, "B K G T S"]:
    """Each query's product with each key, in float32."""
    return _grouped("bkqh,bksh->bkqs", query, keys)


def weighed(
    weights: Float[Array, "B K G T S"], values: Float[Array, "B K S H"]
) -> Float[Array, "B K G T H"]:
    """The sum of the values with these weights, in float32."""
    return _grouped("bkqs,bksh->bkqh", weights, values)


def _grouped(how: str, x: Float[Array, "B K G T I"], y: Array) -> Array:
    """A product with the queries of a group on one axis: on two, a CPU would multiply
    them with a transposed copy of the cache.
    """
    batch, heads, group, size, inner = x.shape
    joined = x.reshape(batch, heads, group * size, inner)
    result = jnp.einsum(how, joined, y, preferred_element_type=jnp.float32)
    return result.reshape(batch, heads, group, size, result.shape[-1])
