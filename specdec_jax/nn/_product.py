"""A matrix product that stays fast in bfloat16, forwards and backwards."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
    multiply rows on two axes with a transposed copy of the weight. For a single such
    row it has no fast kernel, for two it has.
    """

    def as_they_are(rows: Array, weight: Array) -> Array:
        return _dot("ti,oi->to", rows, weight)

    def twice(rows: Array, weight: Array) -> Array:
        return _dot("ti,oi->to", jnp.concatenate([rows, rows]), weight)[:1]

    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if rows.shape[0] == 1 and x.dtype == jnp.bfloat16:
        result = jax.lax.platform_dependent(
            rows, weight, cpu=twice, default=as_they_are
        )
    else:
        result = as_they_are(rows, weight)
    return result.reshape(*x.shape[:-1], weight.shape[0])


def _dot(how: str, x: Array, y: Array) -> Array:
    return jnp.einsum(how, x, y, preferred_element_type=jnp.float32)
