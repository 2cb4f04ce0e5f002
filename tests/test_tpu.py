"""The real TPU compiler, without a TPU: the cache is updated in place, never copied."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("tpu_child.py")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
def test_the_cache_is_aliased_and_never_copied():
    """Llama-3.1-8B's shape, batch 8, 4,096 slots, 16 nodes, on v5e:2x4."""
    environment = {**os.environ, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    run = subprocess.run(
        [sys.executable, str(CHILD), "32"],
        capture_output=True,
        text=True,
        env={**environment, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    # All of the cache is reused; what else is aliased are tokens and lengths.
    assert 0 <= found["aliased"] - found["cache"] < 2**20
    assert not found["copy"] and not found["transpose"] and not found["fusion"]
    # The compiler may stage a commit in VMEM and write it back: in place, not a copy.
    assert found["written back"] < 32
    # Besides, a few times one layer's scores of a prompt chunk (67 MB): with four of
    # them there is no room for half of the cache.
    assert found["temporary"] < 4 * found["scores"] <= found["cache"] / 2
