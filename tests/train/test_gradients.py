"""Gradients by hand against those of jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax.nn import chunked_sum, product


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product(dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2, 5, 8)).astype(dtype)
    weight = jax.random.normal(keys[1], (6, 8)).astype(dtype)
    cotangent = jax.random.normal(keys[2], (2, 5, 6))

    def plain(x, weight):
        wide = jnp.einsum(
            "bti,oi->bto", x.astype(jnp.float32), weight.astype(jnp.float32)
        )
        return (wide * cotangent).sum()

    expected = jax.grad(plain, (0, 1))(x, weight)
    found = jax.grad(lambda x, w: (product(x, w) * cotangent).sum(), (0, 1))(x, weight)
    tolerance = 1e-5 if dtype == "float32" else 0.06
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(
            a.astype(jnp.float32), b.astype(jnp.float32), atol=tolerance, rtol=tolerance
        )
    assert product(x, weight).dtype == jnp.float32


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (8, 6), (2, 60), (7,)])
def test_every_shape_has_a_kernel(shape):
    """A CPU lacks some in bfloat16, and says so only when it runs."""
    x, weight = jnp.ones((*shape, 48), jnp.bfloat16), jnp.ones((61, 48), jnp.bfloat16)
    said = jax.jit(lambda x, w: product(x, w).astype(x.dtype))(x, weight)
    assert said.shape == (*shape, 61) and (said == 48).all()
    to_x, to_weight = jax.jit(jax.grad(lambda x, w: product(x, w).sum(), (0, 1)))(
        x, weight
    )
    assert (to_x == 61).all() and (to_weight == x.size // 48).all()


def test_chunks_are_the_whole():
    keys = jax.random.split(jax.random.key(1), 3)
    weight = jax.random.normal(keys[0], (7, 4))
    states = jax.random.normal(keys[1], (2, 6, 4))
    goal = jax.random.normal(keys[2], (2, 6, 7))

    def part(weight, scale, states, goal):
        said = jnp.tanh(product(states, weight)) * scale
        distance = (said - goal) ** 2
        return distance.sum(), (said > goal).sum(dtype=jnp.float32)

    scale = jnp.float32(3.0)
    whole = jax.value_and_grad(lambda w, s: part(w, scale, s, goal)[0] * 2.0, (0, 1))(
        weight, states
    )
    chunked = jax.value_and_grad(
        lambda w, s: chunked_sum(part, 2, w, scale, s, goal)[0] * 2.0, (0, 1)
    )(weight, states)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5),
        chunked,
        whole,
    )
    beside = chunked_sum(part, 3, weight, scale, states, goal)[1]
    assert beside == part(weight, scale, states, goal)[1]
