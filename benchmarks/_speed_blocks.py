"""What a block of T tokens costs, and what bounds it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _timing import by_turns
from jaxtyping import Array, Float

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._types import Block, Cache, Target
from specdec_jax.bench import Spread

SIZES = (1, 2, 4, 8, 16, 32)
SLOTS, COMMITTED = 512, 256
_SUMMED = 2**28  # float32: a GiB, more than any cache holds
_MATRIX = 3072


@functools.partial(jax.jit, static_argnames="target")
def _read(
    target: Target, params: Any, cache: Cache, block: Block
) -> Float[Array, "B T V"]:
    return target.logits(params, target.forward(params, cache, block, ()).hidden)


@jax.jit
def _multiply(params: Any, x: Float[Array, "T I"]) -> Float[Array, ""]:
    """The products of a block with every matrix, one after the other."""
    last = jnp.float32(0)
    for weight in jax.tree.leaves(params):
        if weight.ndim == 2:
            y = jnp.einsum("ti,oi->to", x[:, : weight.shape[1]] + last, weight)
            last = 1e-9 * y[-1, -1]  # so that the next one has to wait
    return last


def measure(
    model: sd.LanguageModel, *, rounds: int, tick: Callable[[], None]
) -> dict[str, Any]:
    """Forward and logits of a block after half a cache; the machine's own rates."""
    target: Any = model.target
    params = model.params
    cache = target.init_cache(1, SLOTS)
    cache = cache._replace(length=jnp.full(1, COMMITTED, jnp.int32))
    calls, products = {}, {}
    widest = max(target.config.width, target.config.mlp_width)
    for size in SIZES:
        block = _tree.causal_block(jnp.ones((1, size), jnp.int32))
        calls[str(size)] = functools.partial(_read, target, params, cache, block)
        x = jnp.ones((size, widest), jnp.float32)
        products[str(size)] = functools.partial(_multiply, params, x)
    seconds = by_turns(calls, rounds=rounds, tick=tick)
    multiplying = by_turns(products, rounds=rounds, tick=tick)
    rates = _rates(rounds, tick)

    weights = jax.tree.leaves(params)
    matrices = sum(x.size for x in weights if x.ndim == 2)  # tied: the head once
    cached = sum(x.nbytes for x in (*cache.keys, *cache.values))
    rows = []
    for size in SIZES:
        taken = seconds[str(size)]
        bytes_read = sum(x.nbytes for x in weights) + cached
        # A multiplication and an addition for every weight, key and value.
        heads = target.config.num_heads // target.config.num_kv_heads
        operations = 2 * size * (matrices + heads * cached // 4)
        rows.append(
            {
                "tokens": size,
                "ms": Spread.of(1e3 * taken),
                "ratio": Spread.of(taken / seconds["1"]),
                "products_ms": Spread.of(1e3 * multiplying[str(size)]),
                "gigabytes_per_second": bytes_read / np.median(taken) / 1e9,
                "gigaflops": operations / np.median(taken) / 1e9,
            }
        )
    return {"slots": SLOTS, "committed": COMMITTED, "rates": rates, "rows": rows}


def _rates(rounds: int, tick: Callable[[], None]) -> dict[str, Spread]:
    """GB/s of a large sum, GFLOP/s of a large product, in the same float32."""
    values = jnp.ones((2**10, _SUMMED // 2**10), jnp.float32)
    square = jnp.ones((_MATRIX, _MATRIX), jnp.float32)
    total = jax.jit(lambda x: x.sum(-1))
    product = jax.jit(lambda x: x @ x)
    seconds = by_turns(
        {"sum": lambda: total(values), "product": lambda: product(square)},
        rounds=rounds,
        tick=tick,
    )
    return {
        "gigabytes_per_second": Spread.of(values.nbytes / seconds["sum"] / 1e9),
        "gigaflops": Spread.of(2 * _MATRIX**3 / seconds["product"] / 1e9),
    }


def table(record: dict[str, Any]) -> str:
    """Markdown."""
    bytes_rate, flop_rate = (
        Spread(*record["rates"][name]) for name in ("gigabytes_per_second", "gigaflops")
    )
    lines = [
        f"The machine: {bytes_rate.show(1)} GB/s summing 1 GiB, "
        f"{flop_rate.show(0)} GFLOP/s multiplying two {_MATRIX} × {_MATRIX} matrices, "
        "in float32.",
        "",
        "| tokens T | ms | cost over T = 1 | its products alone, ms "
        "| GB/s | of the machine's | GFLOP/s | of the machine's |",
        "| --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['tokens']} | {Spread(*row['ms']).show(1)} "
        f"| {Spread(*row['ratio']).show()} | {Spread(*row['products_ms']).show(1)} "
        f"| {row['gigabytes_per_second']:.1f} "
        f"| {row['gigabytes_per_second'] / bytes_rate.median:.0%} "
        f"| {row['gigaflops']:.0f} | {row['gigaflops'] / flop_rate.median:.0%} |"
        for row in record["rows"]
    ]
    return "\n".join(lines)
