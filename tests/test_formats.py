"""Heads as others publish them: what is read, and how it is written."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folders import random_params, tiny_target
from heads import (
    CONFIGS,
    KNOWN,
    PLAIN,
    PUBLISHED,
    TARGET,
    WEIGHTS,
    V,
    assert_same,
    load,
    nested,
    published,
    write,
)
from safetensors.numpy import load_file

import specdec_jax as sd
from specdec_jax._cache import for_backend
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax.drafters import Eagle, Eagle3
from specdec_jax.io import Folder
from specdec_jax.nn import RoPE

pytestmark = pytest.mark.usefixtures("quick_compile")

TAPS = {"eagle": ("final",), "speculators, qwen3": (-1, 6)}
every_head = pytest.mark.parametrize("name", PUBLISHED)


def format_of(name: str) -> Any:
    return name.split(",")[0]


@every_head
def test_what_is_published_is_read(name, tmp_path):
    """All of it, in our words, with the embedding that is not the target's."""
    _, tensors = published(name)
    drafter, params = load(write(tmp_path, name))
    kind = Eagle if format_of(name) == "eagle" else Eagle3
    assert drafter == dataclasses.replace(
        kind(CONFIGS[name]),
        **({} if kind is Eagle else {"taps": TAPS.get(name, (1, 3, 4))}),
    )
    count = sum(x.size for key, x in tensors.items() if key not in ("d2t", "t2d"))
    if kind is Eagle3:
        assert params["tokens"].tolist() == KNOWN.tolist()
        assert params["tokens"].dtype == jnp.int32
        count += len(KNOWN)
    assert count == sum(x.size for x in jax.tree.leaves(params))
    np.testing.assert_array_equal(params["fusion"]["weight"], tensors["fc.weight"])
    layer = "midlayer" if "midlayer.hidden_norm.weight" in tensors else "layers.0"
    for ours, theirs in (
        (params["layers"][0]["attention"]["query"], "self_attn.q_proj"),
        (params["layers"][0]["mlp"]["down"], "mlp.down_proj"),
        (params["layers"][0]["mlp_norm"], "post_attention_layernorm"),
    ):
        wanted = tensors[f"{layer}.{theirs}.weight"].astype(np.float32)
        np.testing.assert_array_equal(ours["weight"], wanted)
    if kind is Eagle3:
        first = params["layers"][0]
        for norm, theirs in (
            ("token_norm", "input_layernorm"),
            ("state_norm", "hidden_norm"),
        ):
            wanted = tensors[f"{layer}.{theirs}.weight"]
            np.testing.assert_array_equal(first[norm]["weight"], wanted)


@every_head
def test_what_is_read_is_written_as_it_was(name, tmp_path):
    """The same names, shapes and values, in the dtype asked for; then read again."""
    drafter, params = load(write(tmp_path / "theirs", name), dtype=jnp.float16)
    ours = tmp_path / "new" / "ours"
    sd.save_drafter(
        ours, drafter, params, TARGET, format=format_of(name), dtype=jnp.float16
    )
    _, tensors = published(name)
    found = load_file(ours / "model.safetensors")
    assert found.keys() == tensors.keys()
    for key, value in tensors.items():
        assert found[key].dtype == value.dtype, key
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    again, same = load(ours, dtype=jnp.float16)
    assert again == for_backend(drafter)
    assert_same(same, params)
    assert not list(ours.parent.glob(".*"))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bf16", "f32"])
@every_head
def test_round_trips_are_bitwise(name, dtype, tmp_path):
    kind = Eagle if format_of(name) == "eagle" else Eagle3
    config = dataclasses.replace(CONFIGS[name], dtype=jnp.dtype(dtype).name)
    more = {} if kind is Eagle else {"taps": TAPS.get(name, (1, 3, 4))}
    drafter: Any = kind(config, **more)
    params = noisy(drafter)
    how = {} if dtype == jnp.bfloat16 else {"dtype": dtype}
    sd.save_drafter(
        tmp_path / "x", drafter, params, TARGET, format=format_of(name), **how
    )
    again, same = load(tmp_path / "x", dtype=dtype)
    assert again == for_backend(drafter)
    assert_same(same, params)
    said = json.loads((tmp_path / "x" / "config.json").read_text())
    assert said.get("torch_dtype", said.get("dtype")) == jnp.dtype(dtype).name


def noisy(drafter: Any) -> Any:
    params = drafter.init_params(jax.random.key(0), TARGET)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        structure,
        [
            x + jax.random.normal(key, x.shape, x.dtype)
            if jnp.issubdtype(x.dtype, jnp.floating)
            else x
            for x, key in zip(leaves, keys, strict=True)
        ],
    )


def test_from_format_to_format_and_back(tmp_path):
    """A head that all formats of EAGLE-3 can say."""
    before = load(write(tmp_path / "0", "eagle3"))
    drafter, params = before
    for i, format in enumerate(("specforge", "speculators", "eagle3")):
        path = tmp_path / format
        kind: Any = format
        sd.save_drafter(path, drafter, params, TARGET, format=kind, dtype=None)
        drafter, params = load(path)
        assert drafter == before[0], i
        assert_same(params, before[1])


CHAIN, GROWN = StaticTree("0 00 000"), GrownTree(num_nodes=7, depth=3, width=2)


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("eagle", CHAIN),
        pytest.param("eagle, qwen2", GROWN, marks=pytest.mark.slow),
        ("eagle3, narrow", GROWN),
        pytest.param("speculators", CHAIN, marks=pytest.mark.slow),
    ],
)
def test_the_same_text_with_and_without(name, tree, tmp_path):
    """With an embedding of its own, of another width, and with all the switches."""
    drafter, params = load(write(tmp_path, name), tree=tree)
    prompts = [[1, 2, 3, 4, 5], [7], [9] * 20]
    sampling = sd.Sampling(max_new_tokens=12, temperature=0.8, seed=4)
    fast = sd.generate(
        TARGET, sd.Params(WEIGHTS, params), drafter, prompts, sampling=sampling
    )
    plain = sd.generate(
        TARGET, sd.Params(WEIGHTS), sd.Plain(), prompts, sampling=sampling
    )
    assert [x.tolist() for x in fast.tokens] == [x.tolist() for x in plain.tokens]


# --- The embedding --------------------------------------------------------------------


def test_the_targets_embedding_is_shared(tmp_path):
    """A copy is dropped, rounded or not; any other is kept and read."""
    table = np.asarray(WEIGHTS["embedding"])
    for i, (dtype, is_copy) in enumerate(
        [(np.float32, True), (np.float16, True), (np.float32, False)]
    ):
        copy = table.astype(dtype)
        copy[5, 3] += 0 if is_copy else 1
        path = write(tmp_path / str(i), "eagle", {}, {"embed_tokens.weight": copy})
        drafter, params = load(path)
        assert drafter.config.own_embedding is not is_copy
        assert ("embedding" in params) is not is_copy
        if not is_copy:
            np.testing.assert_array_equal(params["embedding"], copy)
    shared, _ = load(
        write(tmp_path / "none", "eagle", {}, {"embed_tokens.weight": None})
    )
    assert not shared.config.own_embedding


def test_the_targets_embedding_is_written_where_asked(tmp_path):
    """And shared again."""
    before = load(write(tmp_path / "a", "eagle3"))
    how: dict[str, Any] = {"format": "speculators", "target_params": WEIGHTS}
    sd.save_drafter(tmp_path / "b", *before, TARGET, dtype=None, **how)
    table = load_file(tmp_path / "b" / "model.safetensors")["embed_tokens.weight"]
    np.testing.assert_array_equal(table, WEIGHTS["embedding"])
    drafter, params = load(tmp_path / "b")
    assert drafter == before[0]
    assert_same(params, before[1])


def test_a_head_of_its_own_width_needs_its_own_embedding(tmp_path):
    path = write(tmp_path, "eagle3, narrow", {}, {"embed_tokens.weight": None})
    with pytest.raises(
        ValueError, match="of 32 numbers.*have 48.*embedding of its own"
    ):
        load(path)


def test_t2d_can_vouch_for_the_first_tokens(tmp_path):
    """Then d2t is zero and right."""
    size = len(KNOWN)
    path = write(
        tmp_path,
        "eagle3",
        {},
        {"d2t": np.zeros(size, np.int64), "t2d": np.arange(V) < size},
    )
    _, params = load(path)
    assert params["tokens"].tolist() == list(range(size))


def test_a_head_that_knows_all_tokens_has_no_tables(tmp_path):
    tensors = {"lm_head.weight": np.ones((V, 48), np.float16)}
    without: dict[str, Any] = {"d2t": None, "t2d": None}
    full: dict[str, Any] = {"d2t": np.zeros(V, np.int64), "t2d": np.ones(V, bool)}
    for i, tables in enumerate([without, full]):
        config = {"draft_vocab_size": None}
        path = write(tmp_path / str(i), "eagle3", config, tensors | tables)
        drafter, params = load(path)
        assert drafter.config.draft_vocab_size is None and "tokens" not in params


def test_a_missing_base_of_rotations_is_ten_thousand(tmp_path):
    """Never the target's, and not silently."""
    path = write(tmp_path, "eagle3", {"rope_theta": None})
    with pytest.warns(UserWarning, match="no rope_theta, so it is 10000"):
        drafter, _ = load(path)
    assert drafter.config.rope == RoPE(10000.0)


def test_taps(tmp_path):
    """Where a folder says nothing, those of the authors; else what is said or asked."""
    authors = write(tmp_path / "a", "eagle3")
    assert load(authors)[0].taps == (1, 3, 4)
    assert load(authors, taps=(0, -1, "final"))[0].taps == (0, -1, "final")
    vllm = {"eagle_aux_hidden_state_layer_ids": [0, 1, 7]}
    assert load(write(tmp_path / "b", "eagle3", vllm))[0].taps == (-1, 0, 6)
    # What looks like the other convention is taken as said, and not silently.
    other = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}}
    path = write(tmp_path / "c", "specforge", other)
    with pytest.warns(UserWarning, match=r"looks like .* pass taps=\(1, 3, 4\)"):
        assert load(path)[0].taps == (2, 4, 5)
    shallow = tiny_target("llama")  # of 3 layers
    with pytest.raises(ValueError, match="3 layers is too shallow .*: pass taps"):
        sd.load_drafter(authors, shallow, random_params(shallow))
    two = np.ones((48, 96), np.float16)
    with pytest.raises(ValueError, match="reads 2 taps, and does not say of which"):
        load(write(tmp_path / "d", "eagle3", {}, {"fc.weight": two}))
    with pytest.raises(ValueError, match="no EAGLE-3 head"):
        load(write(tmp_path / "e", "eagle"), taps=(0, 1, 2))


def test_a_head_width_that_is_not_said_is_that_of_its_weights(tmp_path):
    drafter, _ = load(write(tmp_path, "eagle3", {"head_dim": None}))
    assert drafter.config.head_width == 10


def test_usual_values_of_a_nested_configuration_may_be_missing(tmp_path):
    """transformers leaves them out."""
    config = nested(rms_norm_eps=None)
    drafter, _ = load(write(tmp_path, "speculators", config))
    assert drafter.config.norm_epsilon == 1e-6


def test_the_verifier_is_named(tmp_path):
    params = PLAIN.init_params(jax.random.key(0), TARGET)
    path = tmp_path / "x"
    sd.save_drafter(
        path, PLAIN, params, TARGET, format="speculators", verifier="org/model"
    )
    config = Folder(path).config
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/model"
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
