"""Eight devices say what one says; run in a child process, where a CPU can be eight."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from specdec_jax import _sharding, nn, targets

CONFIG = nn.DecoderConfig(
    vocab_size=64,
    width=32,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_width=8,
    mlp_width=64,
    max_length=64,
)

SCRIPT = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
import specdec_jax as sd
from specdec_jax import targets
from specdec_jax.nn import Decoder, DecoderConfig, RoPE
from jax.sharding import AxisType

target = targets.ModuleTarget(Decoder, {config})
params = target.init_params(jax.random.key(0))
sampling = sd.Sampling(max_new_tokens=24, temperature=[0, 0.8, 0.8, 0], top_p=0.9)
prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [3, 3]]
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
placed = sd.shard(params, mesh)
for drafter, both in [
    (sd.NGram(), False),
    (sd.DraftModel(target, num_nodes=4), True),
]:
    for rule in ("match", "rejection"):
        one = sd.generate(target, sd.Params(params, params if both else ()), drafter,
                          prompts, sampling=sampling, rule=rule)
        many = sd.generate(target, sd.Params(placed, placed if both else ()), drafter,
                           prompts, sampling=sampling, rule=rule)
        for a, b in zip(one.tokens, many.tokens, strict=True):
            np.testing.assert_array_equal(a, b)
        keys = many.state.cache.keys[0]
        assert keys.sharding.spec[:2] == ("data", "model"), keys.sharding
        more = sd.generate(target, sd.Params(placed, placed if both else ()), drafter,
                           [p + list(t) + [1] for p, t in zip(prompts, many.tokens)],
                           sampling=sampling, rule=rule, state=many.state)
        assert keys.is_deleted() and more.state.cache.keys[0].sharding == keys.sharding
print("equal")
"""


# Two key/value heads for four chips: what does not divide is kept whole.
FAMILY_SCRIPT = """
import sys, tempfile
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
import specdec_jax as sd
from jax.sharding import AxisType
from specdec_jax.io import Folder
from specdec_jax.targets import from_folder
sys.path.insert(0, {tests!r})
from folders import FAMILIES, SMALL, write_folder
from folders import random_params, tensors_of, tiny_target

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
sampling = sd.Sampling(max_new_tokens=16, temperature=[0, 0.8])
prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [4, 5]]
for family in FAMILIES:
    target = tiny_target(family, vocab_size=64)
    params = random_params(target)
    config = SMALL | FAMILIES[family] | dict(vocab_size=64)
    with tempfile.TemporaryDirectory() as path:
        write_folder(Path(path), config, tensors_of(target, params), shards=2)
        read, placed = from_folder(Folder(path), mesh=mesh)
        assert read == target
    shared = [x for x in jax.tree.leaves(placed) if "model" in x.sharding.spec]
    assert len(shared) > 3 * target.num_layers
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    drafter = sd.NGram(shortest=1)
    one, many = (
        sd.generate(target, sd.Params(p), drafter, prompts, sampling=sampling)
        for p in (params, placed)
    )
    for a, b in zip(one.tokens, many.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [SCRIPT, FAMILY_SCRIPT], ids=["rules", "families"])
def test_eight_devices_say_what_one_says(script):
    tests = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, "-c", script.format(config=CONFIG, tests=tests)],
        capture_output=True,
        text=True,
    )
    assert run.stdout.endswith("equal\n"), run.stderr


def test_the_table_covers_every_parameter():
    """Matrices are split over the model axis; norms are replicated."""
    target = targets.ModuleTarget(nn.Decoder, CONFIG)
    mesh = AbstractMesh((2, 4), ("data", "model"))
    params = jax.eval_shape(target.init_params, jax.random.key(0))
    shardings = _sharding.param_shardings(params, mesh)
    for path, sharding in jax.tree_util.tree_leaves_with_path(shardings):
        is_norm = "norm" in jax.tree_util.keystr(path)
        assert ("model" in sharding.spec) != is_norm, path


def test_an_axis_that_does_not_divide_is_replicated():
    mesh = AbstractMesh((1, 3), ("data", "model"))
    like = {"query": {"weight": jax.ShapeDtypeStruct((8, 4), "float32")}}
    found = _sharding.param_shardings(like, mesh)["query"]["weight"]
    assert found.spec == PartitionSpec(None, None)
