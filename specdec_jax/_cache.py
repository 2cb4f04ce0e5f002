"""The committed prefix: one write per step, at each row's own length."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from specdec_jax._types import Cache, Pending


def init_cache(
    *,
    layers: int,
    batch: int,
    kv_heads: int,
    slots: int,
    head_width: int,
    dtype: DTypeLike,
) -> Cache:
    """An empty cache, all zeros."""

    def zeros() -> tuple[
        Array, ...
    ]:  # every buffer its own: a donated buffer may stand only once among the arguments
        return tuple(
            jnp.zeros((batch, kv_heads, slots, head_width), dtype)
            for _ in range(layers)
        )

    return Cache(zeros(), zeros(), jnp.zeros(batch, jnp.int32))


def commit(
    cache: Cache, pending: Pending, path: Int[Array, "B P"], length: Int[Array, " B"]
) -> Cache:
    """Append the first `length` entries of `path`, in order; what lies beyond the last
    slot is dropped, never clamped.
    """
    slots = slots_after(
        cache.length, path.shape[1], length, cache.keys[0].shape[2] if cache.keys else 0
    )
    return Cache(
        tuple(
            _append(kept, new, path, slots)
            for kept, new in zip(cache.keys, pending.keys, strict=True)
        ),
        tuple(
            _append(kept, new, path, slots)
            for kept, new in zip(cache.values, pending.values, strict=True)
        ),
        cache.length + length,
    )


def slots_after(
    start: Int[Array, " B"], size: int, length: Int[Array, " B"], capacity: int
) -> Int[Array, "B P"]:
    """Where `length` new entries of each row go; `capacity`, which `mode="drop"` drops,
    for the rest.
    """
    offsets = jnp.arange(size, dtype=jnp.int32)[None, :]
    slots = start[:, None] + offsets
    return jnp.where((offsets < length[:, None]) & (slots < capacity), slots, capacity)


def write(
    buffer: Int[Array, "B S"],
    new: Int[Array, "B P"],
    start: Int[Array, " B"],
    length: Int[Array, " B"],
) -> Int[Array, "B S"]:
    """Write the first `length` of `new` into each row of `buffer` from `start` on; what
    does not fit is dropped.
    """
    slots = slots_after(start, new.shape[1], length, buffer.shape[1])
    rows = jnp.arange(buffer.shape[0], dtype=jnp.int32)[:, None]
    return buffer.at[rows, slots].set(new, mode="drop")


def _append(
    kept: Float[Array, "B K S H"],
    new: Float[Array, "B K T H"],
    path: Int[Array, "B P"],
    slots: Int[Array, "B P"],
) -> Float[Array, "B K S H"]:
    rows = jnp.arange(kept.shape[0], dtype=jnp.int32)[:, None]
    chosen = jnp.take_along_axis(new, path[:, None, :, None], axis=2)
    return kept.at[rows, :, slots].set(chosen.swapaxes(1, 2), mode="drop")
