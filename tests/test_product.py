"""The product that every layer is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax.nn import _product, product
from specdec_jax.nn._attention import attention
from specdec_jax.nn._table import look_up


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (1,), (1, 2), (3, 1), (2, 2, 5)])
def test_a_row_is_the_same_whatever_is_beside_it(dtype, shape):
    """One row alone, which a CPU computes as two, included; and so are its gradients,
    summed in float32 of a cotangent of the row's dtype.
    """
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(*shape, 24)), dtype)
    weight = jnp.asarray(random.normal(size=(7, 24)), dtype)
    cotangent = jnp.asarray(random.normal(size=(*shape, 7)), jnp.float32)
    found, pull = jax.vjp(jax.jit(product), x, weight)
    to_x, to_weight = pull(cotangent)
    wide = [np.asarray(y, np.float64) for y in (x, weight)]
    rounded = np.asarray(cotangent.astype(dtype), np.float64)
    assert found.dtype == jnp.float32 and found.shape == (*shape, 7)
    np.testing.assert_allclose(found, wide[0] @ wide[1].T, atol=1e-5)
    error = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(
        to_x.astype(jnp.float32), rounded @ wide[1], atol=error, rtol=error
    )
    expected = rounded.reshape(-1, 7).T @ wide[0].reshape(-1, 24)
    np.testing.assert_allclose(
        to_weight.astype(jnp.float32), expected, atol=error, rtol=error
    )


@pytest.mark.parametrize("shape", [(1, 2), (4,), (2, 2), (1, 5)])
@pytest.mark.parametrize("parts", [1, 3])
def test_few_rows_of_a_large_weight(shape, parts, monkeypatch):
    """Which a CPU multiplies one by one, and with parts of the weight in turn."""
    monkeypatch.setattr(_product, "_CACHED", 2**20 // parts)
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(*shape, 256)), jnp.float32)
    weight = jnp.asarray(random.normal(size=(1023, 256)), jnp.float32)
    found = jax.jit(lambda x, weight: product(x, weight))(x, weight)
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(found, expected, atol=1e-4)
    if x.size // 256 < 5:
        alone = [jax.jit(_product.product)(row, weight) for row in x.reshape(-1, 256)]
        np.testing.assert_array_equal(found.reshape(-1, 1023), np.stack(alone))


def test_a_weight_that_has_no_even_parts(monkeypatch):
    """Row by row of the weight would take ten times as long."""
    monkeypatch.setattr(_product, "_CACHED", 2**18)
    x, weight = jnp.ones((2, 256)), jnp.ones((1021, 256))
    program = jax.jit(lambda x, weight: product(x, weight)).lower(x, weight)
    assert "while" not in program.as_text()


@pytest.mark.parametrize("shape", [(1, 4), (2, 3)])
def test_no_weight_is_transposed(shape):
    """Rows on two axes, in a loop and in bfloat16, a CPU would multiply with a copy."""
    x, weight = jnp.zeros((*shape, 24), "bfloat16"), jnp.zeros((56, 24), "bfloat16")

    def loop(x, weight):
        def step(_, x):
            return x + product(x, weight)[..., :24].astype(x.dtype)

        return jax.lax.fori_loop(0, 3, step, x)

    program = jax.jit(loop).lower(x, weight).compile().as_text() or ""
    assert "bf16[56,24]{1,0}" in program and "bf16[24,56]" not in program


def test_no_cache_is_transposed():
    """Nor the keys where queries are on two axes, those of a group and those of a
    block.
    """
    query, keys = jnp.zeros((1, 4, 6, 16)), jnp.zeros((1, 2, 40, 16))
    block, mask = jnp.zeros((1, 2, 4, 16)), jnp.ones((1, 4, 4), jnp.bool_)
    length, depths = jnp.array([9]), jnp.arange(4)[None]
    arguments = (query, keys, keys, length, block, block, mask, depths)
    program = jax.jit(attention).lower(*arguments).compile().as_text() or ""
    assert "2,40,16]" in program and "2,16,40]" not in program


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_table_is_read_as_it_is(dtype):
    """In a loop a CPU would first make a float32 copy of all of it, in bfloat16."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(512, 16)), dtype)
    ids = jnp.array([[3, 511, 0]], jnp.int32)

    def loop(table, ids):
        def step(i, x):
            return x + look_up(table, (ids + i) % 512).astype(jnp.float32)

        return jax.lax.fori_loop(0, 3, step, jnp.zeros((1, 3, 16)))

    program = jax.jit(loop).lower(table, ids).compile()
    memory = program.memory_analysis()
    assert memory is not None and memory.temp_size_in_bytes < table.nbytes
    rows = [
        np.asarray(table, np.float32)[(np.asarray(ids) + i) % 512] for i in range(3)
    ]
    np.testing.assert_allclose(program(table, ids), sum(rows), rtol=1e-6)
