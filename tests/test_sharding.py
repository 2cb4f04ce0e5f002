"""Eight devices say what one says; run in a child process, where a CPU can be eight."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from specdec_jax import _sharding, drafters, nn, targets

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
SIZES: dict[str, Any] = {
    "width": 32,
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_width": 8,
    "mlp_width": 64,
}
HEAD = nn.EagleConfig(**SIZES)
HEAD3 = nn.Eagle3Config(**SIZES, feature_width=96, draft_vocab_size=32)

SCRIPT = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
import specdec_jax as sd
from specdec_jax import _sharding, targets
from specdec_jax.nn import Decoder, DecoderConfig, Eagle3Config, EagleConfig, RoPE
from jax.sharding import AxisType

target = targets.ModuleTarget(Decoder, {config})
params = target.init_params(jax.random.key(0))
sampling = sd.Sampling(max_new_tokens=24, temperature=[0, 0.8, 0.8, 0], top_p=0.9)
prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [3, 3]]
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
placed = sd.shard(params, mesh)
tree = sd.GrownTree(num_nodes=8, depth=3, width=3)
eagle = sd.Eagle({head}, tree)
eagle3 = sd.Eagle3({head3}, tree, taps=(-1, 0, 1))
for drafter, own in [
    (sd.NGram(), ()),
    (sd.DraftModel(target, num_nodes=4), params),
    (eagle, eagle.init_params(jax.random.key(1), target)),
    (eagle3, eagle3.init_params(jax.random.key(1), target)),
]:
    spread = sd.shard(own, mesh) if own else ()
    for rule in ("match", "rejection"):
        one = sd.generate(target, sd.Params(params, own), drafter,
                          prompts, sampling=sampling, rule=rule)
        many = sd.generate(target, sd.Params(placed, spread), drafter,
                           prompts, sampling=sampling, rule=rule)
        for a, b in zip(one.tokens, many.tokens, strict=True):
            np.testing.assert_array_equal(a, b)
        keys = many.state.cache.keys[0]
        assert keys.sharding.spec[:2] == ("data", "model"), keys.sharding
        more = sd.generate(target, sd.Params(placed, spread), drafter,
                           [p + list(t) + [1] for p, t in zip(prompts, many.tokens)],
                           sampling=sampling, rule=rule, state=many.state)
        assert keys.is_deleted() and more.state.cache.keys[0].sharding == keys.sharding
scores = jax.random.randint(jax.random.key(2), (4, 3, 64), 0, 9).astype("float32")
for axis, last in (("vocab", "model"), (None, None)):
    split = jax.NamedSharding(mesh, jax.P("data", None, last))
    with _sharding.on(mesh):
        found = jax.jit(lambda x, axis=axis: _sharding.top_k(x, 20, axis=axis))(
            jax.device_put(scores, split))
    for ours, expected in zip(found, jax.lax.top_k(scores, 20), strict=True):
        np.testing.assert_array_equal(ours, expected)  # ties: the first
print("equal")
"""


# Two key/value heads for four chips: what does not divide is kept whole.
FAMILY_SCRIPT = """
import sys, tempfile
from pathlib import Path
from typing import Any
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
    filled = script.format(config=CONFIG, head=HEAD, head3=HEAD3, tests=tests)
    run = subprocess.run(
        [sys.executable, "-c", filled],
        capture_output=True,
        text=True,
    )
    assert run.stdout.endswith("equal\n"), run.stderr


@pytest.mark.parametrize("of", ["target", "eagle", "eagle 3"])
def test_the_table_covers_every_parameter(of):
    """Matrices are split over the model axis; norms, which tokens a head knows and the
    bias of what all chips add up are replicated.
    """
    target = targets.ModuleTarget(nn.Decoder, CONFIG)
    mesh = AbstractMesh((2, 4), ("data", "model"))
    makers = {
        "target": target.init_params,
        "eagle": lambda key: drafters.Eagle(HEAD).init_params(key, target),
        "eagle 3": lambda key: drafters.Eagle3(HEAD3).init_params(key, target),
    }
    params = jax.eval_shape(makers[of], jax.random.key(0))
    shardings = _sharding.param_shardings(params, mesh)
    for path, sharding in jax.tree_util.tree_leaves_with_path(shardings):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        is_whole = "norm" in name or name in ("tokens", "fusion.bias")
        assert ("model" in sharding.spec) != is_whole, path


def test_the_cache_of_a_head_is_spread_like_the_target_s():
    mesh = AbstractMesh((2, 4), ("data", "model"))
    state = jax.eval_shape(lambda: drafters.Eagle(HEAD).init(4, 16))
    found = _sharding.row_shardings(state, mesh)
    assert found.cache.keys[0].spec == PartitionSpec("data", "model", None, None)
    assert found.output.spec == PartitionSpec("data")


def test_an_axis_that_does_not_divide_is_replicated():
    mesh = AbstractMesh((1, 3), ("data", "model"))
    like = {"query": {"weight": jax.ShapeDtypeStruct((8, 4), "float32")}}
    found = _sharding.param_shardings(like, mesh)["query"]["weight"]
    assert found.spec == PartitionSpec(None, None)
