"""The product that every layer is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax.nn import product


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
