"""A block body run on many blocks of a text at once, as it is trained (Chen et al.
2026, arXiv 2602.06036, §3.3).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax.nn._injected import InjectedBody, InjectedConfig


def block_states(
    body: InjectedBody,
    config: InjectedConfig,
    embedded: Float[Array, "B J C D"],
    features: Float[Array, "B T F"],
    positions: Int[Array, "B T"],
    texts: Int[Array, "B T"],
    anchors: Int[Array, "B J"],
) -> Float[Array, "B J C D"]:
    """The states of J blocks of C slots, each after what comes before its anchor in the
    anchor's text, and none seeing another.

    Args:
        body: the network.
        config: its own.
        embedded: what stands in the slots.
        features: taps of every token of the rows.
        positions: of the tokens, within their texts.
        texts: which of its row's each token belongs to.
        anchors: where in the row each block begins.
    """
    batch, blocks, slots, width = embedded.shape
    keys, values = body.context(features, positions)
    start = jnp.take_along_axis(positions, anchors, axis=1)
    at = start[:, :, None] + jnp.arange(slots, dtype=jnp.int32)[None, None, :]
    text = jnp.take_along_axis(texts, anchors, axis=1)
    rows = jnp.arange(texts.shape[1], dtype=jnp.int32)[None, None, :]
    is_before = (texts[:, None, :] == text[:, :, None]) & (rows < anchors[:, :, None])

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
        context = jnp.broadcast_to(
            is_before[:, :, None, :], (batch, blocks, slots, is_before.shape[2])
        )
        own = config.sees(layer)
        if window is not None and config.anchored_windows:
            ahead = start[:, :, None] - positions[:, None, :]
            context = context & (ahead <= window)[:, :, None]
        elif window is not None:
            ahead = at[:, :, :, None] - positions[:, None, None, :]
            context = context & (ahead < window)
            steps = jnp.arange(slots, dtype=jnp.int32)
            own = own & (steps[:, None] - steps[None, :] < window)
        return _attention(
            query, keys[layer], values[layer], key, value, context, own, scale
        )

    flat = (batch, blocks * slots)
    states = body(embedded.reshape(*flat, width), at.reshape(flat), attend)
    return states.reshape(embedded.shape)


def _attention(
    query: Float[Array, "B U Q H"],
    context_keys: Float[Array, "B T K H"],
    context_values: Float[Array, "B T K H"],
    keys: Float[Array, "B U K H"],
    values: Float[Array, "B U K H"],
    context: Bool[Array, "B J C T"],
    own: Bool[Array, "C C"],
    scale: float | None,
) -> Float[Array, "B U Q H"]:
    """Each slot reads the context that it sees and its own block: two sets of scores,
    one softmax, and no matrix of every slot against every other.
    """
    batch, blocks, slots, _ = context.shape
    heads, width = query.shape[2:]
    kv_heads = keys.shape[2]
    scale = width**-0.5 if scale is None else scale
    grouped = query.reshape(batch, -1, kv_heads, heads // kv_heads, width)
    grouped = grouped.transpose(0, 2, 3, 1, 4) * jnp.asarray(scale, query.dtype)
    in_blocks = grouped.reshape(*grouped.shape[:3], blocks, slots, width)
    keys, values = (
        x.reshape(batch, blocks, slots, kv_heads, width) for x in (keys, values)
    )
    wide = {"preferred_element_type": jnp.float32}
    before = jnp.einsum("bkguh,btkh->bkgut", grouped, context_keys, **wide)
    is_seen = context.reshape(batch, 1, 1, blocks * slots, -1)
    before = jnp.where(is_seen, before, -jnp.inf)
    inside = jnp.einsum("bkgjch,bjdkh->bkgjcd", in_blocks, keys, **wide)
    inside = jnp.where(own[None, None, None, None], inside, -jnp.inf)
    best = jnp.maximum(
        before.max(-1), inside.max(-1).reshape(*before.shape[:3], blocks * slots)
    )
    best = jax.lax.stop_gradient(best)
    before = jnp.exp(before - best[..., None])
    inside = jnp.exp(inside - best.reshape(inside.shape[:-1])[..., None])
    total = before.sum(-1) + inside.sum(-1).reshape(best.shape)
    dtype = query.dtype
    read = jnp.einsum("bkgut,btkh->bkguh", before.astype(dtype), context_values, **wide)
    read += jnp.einsum(
        "bkgjcd,bjdkh->bkgjch", inside.astype(dtype), values, **wide
    ).reshape(read.shape)
    read = (read / total[..., None]).transpose(0, 3, 1, 2, 4)
    return read.reshape(query.shape).astype(dtype)
