"""Parameters saved and read again: the same bits, or what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folders import random_params, tiny_target

from specdec_jax.io import load_params, save_params


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe"])
def test_read_as_written(family, tmp_path):
    target = tiny_target(family)
    params = random_params(target)
    params["norm"]["weight"] = params["norm"]["weight"].astype(jnp.bfloat16)
    like = jax.eval_shape(lambda: params)
    save_params(tmp_path / "params", params)
    read = load_params(tmp_path / "params", like)
    assert jax.tree.structure(read) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, read, params)
    assert read["norm"]["weight"].dtype == jnp.bfloat16


def test_what_cannot_be_saved_or_read(tmp_path):
    params = {"weight": jnp.ones((2, 3))}
    like = jax.eval_shape(lambda: params)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_params(tmp_path / "params", like)
    save_params(tmp_path / "params", params)
    with pytest.raises(ValueError, match="exists already"):
        save_params(tmp_path / "params", params)
    other = {"bias": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
    with pytest.raises(ValueError, match="bias is missing; weight is too much"):
        load_params(tmp_path / "params", other)
    wide = {"weight": jax.ShapeDtypeStruct((2, 4), jnp.float32)}
    with pytest.raises(ValueError, match=r"weight is \(2, 3\), not \(2, 4\)"):
        load_params(tmp_path / "params", wide)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no parameters"):
        load_params(tmp_path / "empty", like)
