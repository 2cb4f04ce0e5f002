"""The real TPU compiler, without a TPU: the cache is updated in place, never copied,
and a step moves little more than it must.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("tpu_child.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
    ),
]


def compiled(*arguments: str | int) -> dict[str, Any]:
    """What the child found."""
    run = subprocess.run(
        [sys.executable, str(CHILD), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_tiny_model_on_one_chip():
    """Sizes, arithmetic and exchanges as computed by hand."""
    batch, slots, nodes = 4, 1024, 8
    found = compiled("tiny", "v5e:1x1", 1, batch, slots, nodes)
    (step,) = found["steps"]
    # Of a layer: query, output 256 × 512, key, value 256 × 256, MLP 3 × 256 × 512.
    products = 2 * (2 * 256 * 512 + 2 * 256 * 256 + 3 * 256 * 512) + 256 * 512
    parameters = products + 512 * 256 + 5 * 256
    assert found["sizes"]["parameters"] == parameters
    assert found["sizes"]["weights"] == 2 * parameters
    assert found["sizes"]["cache"] == 2 * 2 * batch * 2 * slots * 128 * 2
    tokens = batch * nodes
    attention = 2 * 2 * tokens * 4 * 128 * (slots + nodes) * 2
    assert step["flops"] == pytest.approx(2 * tokens * products + attention, rel=0.05)
    assert step["collectives"] == {} and step["cache_copies"] == 0
    assert 0 <= step["aliased"] - found["sizes"]["cache"] < 2**17
    # What is so small may stay in VMEM from step to step: there is no lower bound.
    assert step["excess"] < 1.5


def test_the_cache_is_aliased_and_never_copied():
    """Llama-3.1-8B, batch 8, 4,096 slots, 16 nodes, on v5e:2x4."""
    found = compiled("llama-3.1-8b", "v5e:2x4", 8, 8, 4096, 16)
    (step,) = found["steps"]
    cache, scores = found["sizes"]["cache"], found["scores"]
    # All of the cache is reused; what else is aliased are tokens and lengths.
    assert 0 <= step["aliased"] - cache < 2**20
    assert step["cache_copies"] == 0
    # The compiler may stage a commit in VMEM and write it back: in place, not a copy.
    assert step["written_back"] < 32
    # Besides, a few times one layer's scores of a prompt chunk (67 MB): with four of
    # them there is no room for half of the cache.
    assert step["temporary"] < 4 * scores <= cache / 2
    assert 0.98 < step["excess"] < 1.1


def test_a_tiny_head_over_four_chips():
    """Both caches are reused and not copied; of the scores over the head's vocabulary,
    spread over two chips, only the best are exchanged, and rows of "data" stay apart.
    """
    batch, slots, width = 4, 1024, 4
    found = compiled("tiny", "v5e:2x2", 2, batch, slots, 16, 3, width)
    (step,) = found["steps"]
    cache = found["sizes"]["cache"] + step["drafter_cache"]
    assert step["drafter_cache"] == found["sizes"]["cache"] / 2
    assert 0 <= step["aliased"] - cache < 2**17
    assert step["cache_copies"] == 0
    # All exchanges of the best together are less than the scores of one level.
    scores = batch / 2 * width * 256 * 4
    assert step["collectives"]["all-gather"]["bytes"] < scores


def test_both_caches_are_aliased_and_never_copied():
    """Llama-3.1-8B with EAGLE-3, 60 nodes eight deep, on v5e:2x4."""
    found = compiled("llama-3.1-8b", "v5e:2x4", 8, 8, 4096, 60, 8, 10)
    (step,) = found["steps"]
    cache = found["sizes"]["cache"] + step["drafter_cache"]
    assert 0 <= step["aliased"] - cache < 2**20
    assert step["cache_copies"] == 0
    assert step["temporary"] < 4 * found["scores"]
    # Above a tenth: scores and noise of eight levels, which VMEM, full of the head's
    # weights, does not hold.
    assert 1 < step["excess"] < 1.2
    gathered = step["collectives"]["all-gather"]["bytes"]
    assert gathered < 8 * 10 * 32000 * 4
