"""A matrix product that stays fast in bfloat16, forwards and backwards."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# On a CPU, in float32, up to so many rows are multiplied one by one with a weight of so
# many bytes or more, of which so many stay in the processor's cache.
_FEW, _LARGE, _CACHED = 4, 2**18, 2**23


def product(
    x: Float[Array, "... I"], weight: Float[Array, "O I"]
) -> Float[Array, "... O"]:
    """x · weightᵀ in float32, whatever the dtype of the two.

    So are its gradients summed, of a cotangent that is rounded to the dtype of `x`
    first: matrix units multiply two operands of one narrow dtype. (Left to itself, JAX
    multiplies a float32 cotangent with bfloat16 weights, for which a CPU is slow.)
    """
    return _product(x, weight)


@jax.custom_vjp
def _product(x: Array, weight: Array) -> Array:
    return _rows(x, weight)


def _forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rows(x, weight), (x, weight)


def _backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, weight = kept
    cotangent = cotangent.astype(x.dtype)
    to_x = _dot("...o,oi->...i", cotangent, weight).astype(x.dtype)
    # Both operands contract over their last or first axis, never both over the first:
    # for that a CPU has no fast kernel in bfloat16.
    columns = jnp.moveaxis(cotangent, -1, 0).reshape(weight.shape[0], -1)
    rows = x.reshape(-1, x.shape[-1])
    to_weight = _dot("ot,ti->oi", columns, rows).astype(weight.dtype)
    return to_x, to_weight


_product.defvjp(_forward, _backward)


def _rows(x: Float[Array, "... I"], weight: Float[Array, "O I"]) -> Array:
    """Of any number of rows, as a matrix: in a loop, and in bfloat16, a CPU would
    multiply rows on two axes with a transposed copy of the weight.
    """
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    count, on_cpu = rows.shape[0], None
    if x.dtype == jnp.bfloat16 and count == 1:
        on_cpu = _twice
    elif x.dtype == jnp.float32 and 1 < count <= _FEW and weight.nbytes >= _LARGE:
        on_cpu = _one_by_one
    if on_cpu is None:
        result = _as_they_are(rows, weight)
    else:
        result = jax.lax.platform_dependent(
            rows, weight, cpu=on_cpu, default=_as_they_are
        )
    return result.reshape(*x.shape[:-1], weight.shape[0])


def _as_they_are(rows: Array, weight: Array) -> Array:
    return _dot("ti,oi->to", rows, weight)


def _twice(row: Array, weight: Array) -> Array:
    """For a single row in bfloat16 a CPU has no fast kernel, for two it has."""
    return _dot("ti,oi->to", jnp.concatenate([row, row]), weight)[:1]


def _one_by_one(rows: Array, weight: Array) -> Array:
    """Each row by itself, with a part of the weight at a time that stays in the
    processor's cache: XLA multiplies a matrix and a vector as fast as memory is read,
    but a few rows at once in twice the time.
    """
    least = -(-weight.nbytes // _CACHED)
    even = (n for n in range(least, 2 * least) if weight.shape[0] % n == 0)
    parts = next(even, None)
    if parts is None:  # 32,003 tokens, say
        return _as_they_are(rows, weight)

    def multiply(part: Array) -> Array:
        return jax.lax.map(lambda row: _dot("i,oi->o", row, part), rows)

    if parts == 1:
        return multiply(weight)
    made = jax.lax.map(multiply, weight.reshape(parts, -1, weight.shape[1]))
    return made.swapaxes(0, 1).reshape(rows.shape[0], -1)


def _dot(how: str, x: Array, y: Array) -> Array:
    return jnp.einsum(how, x, y, preferred_element_type=jnp.float32)
