"""Every test runs stricter than a user's program: shapes, types and promotions."""

import gc
import os
from collections.abc import Iterator

# Before jax is imported, and for child processes too. The extra `dev` installs libtpu
# for its compiler; without this, jax would look for a TPU in every process.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

# Before specdec_jax is imported: every call checks its annotated shapes and types. As
# for every type checker, an int will do for a float.
install_import_hook(
    "specdec_jax",
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what XLA compiles in pytest's cache, so that a second run is fast."""
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("xla")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture(scope="module")
def quick_compile() -> Iterator[None]:
    """Toy programs run for milliseconds; what they cost is their compilation."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Every program for a CPU maps a few dozen pieces of memory, and Linux lets a
    process have 65,530 of them: with all tests' programs alive, it would crash.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: what types would refuse reaches the library's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
