"""The committed prefix: one write per step, at each row's own length."""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from specdec_jax._types import Cache, Pending

_Model = TypeVar("_Model", bound=Any)


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


def cache_of(config: Any, batch: int, slots: int) -> Cache:
    """An empty cache of a network, of its `cache_dtype` if the config has one."""
    return init_cache(
        layers=config.num_layers,
        batch=batch,
        kv_heads=config.num_kv_heads,
        slots=slots,
        head_width=config.head_width,
        dtype=jnp.dtype(getattr(config, "cache_dtype", None) or config.dtype),
    )


def for_backend(model: _Model) -> _Model:
    """A target or a drafter as it runs on this machine: beside weights of bfloat16 a
    CPU keeps a cache of float32, since XLA would copy one of bfloat16 at every step.
    """
    config = model.config
    if config.dtype != "bfloat16" or jax.default_backend() != "cpu":
        return model
    config = dataclasses.replace(config, cache_dtype="float32")
    return dataclasses.replace(model, config=config)


def commit(
    cache: Cache, pending: Pending, path: Int[Array, "B P"], length: Int[Array, " B"]
) -> Cache:
    """Append the first `length` entries of `path`; what does not fit is dropped."""
    slots = slots_after(cache.length, path.shape[1], length, cache.keys[0].shape[2])

    def append(kept: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(
            _append(*both, path, slots) for both in zip(kept, new, strict=True)
        )

    return Cache(
        append(cache.keys, pending.keys),
        append(cache.values, pending.values),
        cache.length + length,
    )


def slots_after(
    start: Int[Array, " B"], size: int, length: Int[Array, " B"], capacity: int
) -> Int[Array, "B P"]:
    """Where `length` new entries of each row go.

    The rest go beyond `capacity`, each to its own slot, for `mode="drop"` to drop.
    """
    offsets = jnp.arange(size, dtype=jnp.int32)[None, :]
    slots = start[:, None] + offsets
    is_in = (offsets < length[:, None]) & (slots < capacity)
    return jnp.where(is_in, slots, capacity + offsets)


def write(
    buffer: Shaped[Array, "B S"],
    new: Shaped[Array, "B P"],
    start: Int[Array, " B"],
    length: Int[Array, " B"],
) -> Shaped[Array, "B S"]:
    """Write the first `length` of `new` into each row of `buffer`, from `start` on.

    What does not fit is dropped.
    """
    slots = slots_after(start, new.shape[1], length, buffer.shape[1])
    rows = jnp.arange(buffer.shape[0], dtype=jnp.int32)[:, None]
    return buffer.at[rows, slots].set(new, mode="drop", unique_indices=True)


def _append(
    kept: Float[Array, "B K S H"],
    new: Float[Array, "B K T H"],
    path: Int[Array, "B P"],
    slots: Int[Array, "B P"],
) -> Float[Array, "B K S H"]:
    chosen = jnp.take_along_axis(new, path[:, None, :, None], axis=2)
    heads = jnp.arange(kept.shape[1], dtype=jnp.int32)[None, :, None]
    slots = slots[:, None, :]
    # The TPU's compiler must not see that all heads write to the same slots: it would
    # keep the heads of a slot together, and copy the cache into that layout and back.
    slots = jnp.where(slots < kept.shape[2], slots, slots + heads)

    def write_head(kept: Array, chosen: Array, slots: Array) -> Array:
        return kept.at[slots].set(chosen, mode="drop", unique_indices=True)

    return jax.vmap(jax.vmap(write_head))(kept, chosen, slots)
