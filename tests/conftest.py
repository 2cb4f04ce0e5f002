"""Every test runs stricter than a user's program: shapes, types and promotions."""

import os

# Before jax is imported, and for child processes too. The extra `dev` installs libtpu
# for its compiler; without this, jax would look for a TPU in every process.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from jaxtyping import install_import_hook

# Before specdec_jax is imported: every call checks its annotated shapes and types.
install_import_hook("specdec_jax", "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what XLA compiles in pytest's cache, so that a second run is fast."""
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("xla")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
