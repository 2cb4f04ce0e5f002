"""Sums over a block that would be too large at once: logits of every position."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

# (params, constants, states of some positions, the rest of them) -> what is summed.
Part = Callable[
    [PyTree, PyTree, Float[Array, "B C D"], PyTree],
    tuple[Float[Array, ""], PyTree],
]


def chunked_sum(
    part: Part,
    size: int,
    params: PyTree,
    constants: PyTree,
    states: Float[Array, "B T D"],
    rest: PyTree,
) -> tuple[Float[Array, ""], Any]:
    """The sum of `part` over chunks of `size` positions, and of what it returns beside.

    Differentiable in `params` and `states`: the gradients are taken chunk by chunk
    while the sum is, so that nothing of a chunk outlives it, nor is computed twice.

    Args:
        part: pure, and of no tracer that is not among its arguments.
        size: of a chunk; it must divide T.
        params: that the gradient is wanted of.
        constants: whatever else `part` reads whole.
        states: that the gradient is wanted of.
        rest: arrays "B T …" that go with the states.
    """
    return _sum(part, size, params, constants, states, rest)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(
    part: Part, size: int, params: PyTree, constants: PyTree, states: Array, rest: Any
) -> tuple[Array, PyTree]:
    first, chunk = _chunks(states.shape[1], size, (states, rest))

    def step(total: Any, start: Array) -> tuple[Any, None]:
        new = part(params, constants, *chunk(start))
        return jax.tree.map(jnp.add, total, new), None

    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(part, params, constants, *chunk(first[0])),
    )
    return jax.lax.scan(step, zeros, first)[0]


def _forward(
    part: Part, size: int, params: PyTree, constants: PyTree, states: Array, rest: Any
) -> tuple[tuple[Array, PyTree], tuple[PyTree, Array]]:
    first, chunk = _chunks(states.shape[1], size, (states, rest))
    differentiate = jax.value_and_grad(part, argnums=(0, 2), has_aux=True)

    def step(total: Any, start: Array) -> tuple[Any, Array]:
        some, more = chunk(start)
        value, (to_params, to_states) = differentiate(params, constants, some, more)
        # Many small gradients: their sum is float32.
        to_params = jax.tree.map(lambda x: x.astype(jnp.float32), to_params)
        return jax.tree.map(jnp.add, total, (value, to_params)), to_states

    some, more = chunk(first[0])
    value = jax.eval_shape(part, params, constants, some, more)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), value)
    none = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    (value, to_params), to_states = jax.lax.scan(step, (zeros, none), first)
    to_params = jax.tree.map(lambda x, y: x.astype(y.dtype), to_params, params)
    to_states = to_states.swapaxes(0, 1).reshape(states.shape)
    return value, (to_params, to_states)


def _backward(
    part: Part,
    size: int,
    gradients: tuple[PyTree, Array],
    cotangent: tuple[Array, PyTree],
) -> tuple[PyTree, None, Array, None]:
    to_params, to_states = jax.tree.map(
        lambda x: x * cotangent[0].astype(x.dtype), gradients
    )
    return to_params, None, to_states, None


_sum.defvjp(_forward, _backward)


def _chunks(total: int, size: int, arrays: Any) -> tuple[Array, Callable[[Array], Any]]:
    """Where the chunks begin, and the chunk of `arrays` that begins somewhere."""
    assert total % size == 0, (total, size)

    def chunk(start: Array) -> Any:
        return jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1), arrays
        )

    return jnp.arange(0, total, size, dtype=jnp.int32), chunk
