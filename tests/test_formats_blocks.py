"""DFlash and DSpark as others publish them: what is read, and how it is written."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blocks import (
    COPIES,
    DRAFTERS,
    PUBLISHED,
    SIZED,
    inner,
    published,
    write,
)
from folders import random_params, tiny_target
from heads import KNOWN, TARGET, WEIGHTS, assert_same, load
from safetensors.numpy import load_file

import specdec_jax as sd
from specdec_jax import formats
from specdec_jax._cache import for_backend
from specdec_jax.drafters import DFlash, DSpark
from specdec_jax.io import Folder
from specdec_jax.nn import InjectedConfig, MarkovConfig

pytestmark = pytest.mark.usefixtures("quick_compile")
every_drafter = pytest.mark.parametrize("name", PUBLISHED)


def format_of(name: str) -> Any:
    return name.split(",")[0]


@every_drafter
def test_what_is_published_is_read_and_written_as_it_was(name, tmp_path):
    """All of it, in our words; then the same names, shapes and values."""
    _, tensors = published(name)
    drafter, params = load(write(tmp_path / "theirs", name), dtype=jnp.float16)
    config = dataclasses.replace(DRAFTERS[name].config, dtype="float16")
    assert drafter == dataclasses.replace(DRAFTERS[name], config=config)
    layer = params["layers"][1]
    for ours, theirs in (
        (params["fusion"]["weight"], "fc"),
        (params["fusion_norm"]["weight"], "hidden_norm"),
        (params["norm"]["weight"], "norm"),
        (layer["attention_norm"]["weight"], "layers.1.input_layernorm"),
        (layer["mlp_norm"]["weight"], "layers.1.post_attention_layernorm"),
        (layer["attention"]["value"]["weight"], "layers.1.self_attn.v_proj"),
        (layer["attention"]["key_norm"]["weight"], "layers.1.self_attn.k_norm"),
    ):
        np.testing.assert_array_equal(ours, tensors[f"{theirs}.weight"])
    if "markov" in params:
        for ours, theirs in (
            (params["markov"]["before"], "w1"),
            (params["markov"]["after"]["weight"], "w2"),
        ):
            wanted = tensors[f"markov_head.markov_{theirs}.weight"]
            np.testing.assert_array_equal(ours, wanted)
    if "tokens" in params:
        assert params["tokens"].tolist() == KNOWN.tolist()
    ours = tmp_path / "new" / "ours"
    how = {"format": format_of(name), "dtype": jnp.float16}
    sd.save_drafter(ours, drafter, params, TARGET, **how)
    found = load_file(ours / "model.safetensors")
    assert found.keys() == tensors.keys()
    for key, value in tensors.items():
        assert found[key].dtype == value.dtype, key
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    again, same = load(ours, dtype=jnp.float16)
    assert again == for_backend(drafter)
    assert_same(same, params)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("name", ["zlab, windows", "specforge", "speculators, dspark"])
def test_round_trips_are_bitwise(name, dtype, tmp_path):
    config = dataclasses.replace(DRAFTERS[name].config, dtype=jnp.dtype(dtype).name)
    drafter = dataclasses.replace(DRAFTERS[name], config=config)
    params = drafter.init_params(jax.random.key(0), TARGET)
    path = tmp_path / "x"
    sd.save_drafter(path, drafter, params, TARGET, format=format_of(name), dtype=dtype)
    again, same = load(path, dtype=dtype)
    assert again == for_backend(drafter)
    assert_same(same, params)
    assert json.loads((path / "config.json").read_text())["dtype"] == config.dtype


def test_from_format_to_format(tmp_path):
    """A DSpark that three of them can say, a DFlash that three can, copies of the
    target's included.
    """
    spark = dataclasses.replace(
        DRAFTERS["specforge"].config, markov=MarkovConfig(4), confidence="none"
    )
    flash = InjectedConfig(**SIZED)
    for drafter, names in (
        (DSpark(spark, (0, 6)), ("specforge", "deepspec", "speculators")),
        (DFlash(flash, (0, 6)), ("zlab", "specforge", "speculators")),
    ):
        params = drafter.init_params(jax.random.key(1), TARGET)
        for format in names:
            has_copies = format in ("deepspec", "speculators")
            path = tmp_path / f"{type(drafter).__name__} {format}"
            how: Any = {"format": format, "dtype": None}
            sd.save_drafter(
                path,
                drafter,
                params,
                TARGET,
                target_params=WEIGHTS if has_copies else None,
                **how,
            )
            stored = load_file(path / "model.safetensors")
            for name, table in COPIES.items():
                assert (name in stored) == has_copies
                if has_copies:
                    np.testing.assert_array_equal(stored[name], table)
            again, same = load(path)
            assert again == for_backend(drafter), format
            assert_same(same, params)


def test_the_targets_copies_are_shared(tmp_path):
    """Each by itself, rounded or not; what differs is the drafter's own."""
    for i, (dtype, changed) in enumerate(
        [(np.float32, None), (np.float16, None), (np.float32, "lm_head.weight")]
    ):
        copies = {name: x.astype(dtype) for name, x in COPIES.items()}
        if changed:
            copies[changed][5, 3] += 1
        path = write(tmp_path / str(i), "deepspec", {}, copies)
        drafter, params = load(path)
        assert not drafter.config.own_embedding and "embedding" not in params
        assert drafter.config.own_head is (changed is not None)
        assert ("head" in params) is (changed is not None)
        if changed:
            np.testing.assert_array_equal(params["head"]["weight"], copies[changed])


# --- Conventions ----------------------------------------------------------------------


def config_in(path, **options: Any) -> InjectedConfig:
    return formats.block_said_by(Folder(path), dtype="float32", **options).config


def test_taps_are_those_after_layers(tmp_path):
    """z-lab's count from 0 after layers; speculators' before; both must agree."""
    assert load(write(tmp_path / "a", "speculators, dspark"))[0].taps == (-1, 6)
    none = inner("zlab", "dflash_config", target_layer_ids=None)
    assert load(write(tmp_path / "b", "zlab", none))[0].taps == (1, 5)
    assert load(tmp_path / "b", taps=(3, 0))[0].taps == (3, 0)
    both = {"eagle_aux_hidden_state_layer_ids": [2, 6]}
    assert load(write(tmp_path / "c", "zlab", both))[0].taps == (1, 5)
    both = {"eagle_aux_hidden_state_layer_ids": [1, 5]}
    with pytest.raises(ValueError, match=r"after layers \[1, 5\], the other"):
        load(write(tmp_path / "d", "zlab", both))
    theirs = inner("zlab", "dflash_config", target_layer_ids=[2, 6])
    with pytest.warns(UserWarning, match=r"look like .*pass taps=\(1, 5\)"):
        assert load(write(tmp_path / "e", "zlab", theirs))[0].taps == (2, 6)
    with pytest.warns(UserWarning, match=r"before layers .*pass taps=\(1, 5\)"):
        changes = {"aux_hidden_state_layer_ids": [1, 5]}
        assert load(write(tmp_path / "f", "speculators", changes))[0].taps == (0, 4)


def test_default_taps_are_those_of_the_authors():
    """Of their checkpoints: layers of the target, taps."""
    from specdec_jax.formats._taps import spread_taps

    for layers, taps in (
        (36, (1, 9, 17, 25, 33)),
        (32, (1, 8, 15, 22, 29)),
        (24, (1, 6, 11, 16, 21)),
        (40, (1, 6, 11, 16, 22, 27, 32, 37)),
        (48, (1, 12, 23, 34, 45)),
        (61, (1, 12, 24, 35, 47, 58)),
        (64, (1, 10, 18, 27, 35, 44, 52, 61)),
        (30, (1, 6, 11, 17, 22, 27)),
        (9, (4,)),
    ):
        assert spread_taps(layers, len(taps)) == taps


def test_layouts(tmp_path):
    """What is said, else what the format means; and what is asked for before that."""
    zlab = write(tmp_path / "a", "zlab")
    assert config_in(zlab).layout == "anchor_discarded"
    assert config_in(zlab, layout="anchor_first").layout == "anchor_first"
    said = inner("zlab", "dflash_config", sample_from_anchor=True)
    assert config_in(write(tmp_path / "b", "zlab", said)).layout == "anchor_first"
    flash = {"architectures": ["Qwen3DFlashModel"]}  # DeepSpec's, by num_anchors
    path = write(tmp_path / "f", "deepspec, plain", flash)
    assert config_in(path).layout == "anchor_first"
    unsaid: dict[str, Any] = {"sample_from_anchor": None}
    path = write(tmp_path / "c", "speculators, dspark", unsaid)
    assert config_in(path).layout == "anchor_first"
    few = PUBLISHED["speculators"][0]["speculators_config"]  # B - 1 tokens
    both = unsaid | {"speculators_config": few, "markov_head_type": "gated"}
    path = write(tmp_path / "d", "speculators, dspark", both)
    assert config_in(path).layout == "anchor_discarded"
    many = {"sample_from_anchor": False, "markov_head_type": "gated"}
    path = write(tmp_path / "e", "speculators, dspark", many)
    with pytest.raises(ValueError, match="tokens is 5, but a block of 5 foretells 4"):
        config_in(path)
    assert config_in(path, layout="anchor_first").layout == "anchor_first"


def test_windows_and_causality(tmp_path):
    """Layers with a window are causal in the block unless it is said otherwise."""
    for i, (name, changes, windows, causal) in enumerate(
        (
            ("zlab, windows", {"is_causal": False}, (4, None), ()),
            ("zlab, windows", {"is_causal": True}, (4, None), (True, True)),
            ("zlab", {"is_causal": True}, (), (True, True)),
            ("zlab", inner("zlab", "dflash_config", causal=True), (), (True, True)),
            ("deepspec", {"dflash_query_causal": True}, (), (True, True)),
            ("zlab", {"dflash_query_causal": False}, (), ()),
            (
                "zlab, windows",
                {"layer_types": None, "max_window_layers": 1},
                (None, 4),
                (False, True),
            ),
            ("zlab, windows", {"layer_types": None}, (), ()),
            ("speculators", {"sliding_window_non_causal": True}, (4, None), ()),
        )
    ):
        config = config_in(write(tmp_path / str(i), name, changes))
        assert (config.windows, config.causal) == (windows, causal), i
        assert config.anchored_windows == (name == "speculators")


def test_causality_is_written_where_it_is_not_as_usual(tmp_path):
    for i, (windows, causal) in enumerate(
        (((4, None), ()), ((), (True, True)), ((4, None), (True, True)), ((4, 4), ()))
    ):
        config = InjectedConfig(windows=windows, causal=causal, **SIZED)
        drafter = DFlash(config, (1, 5))
        params = drafter.init_params(jax.random.key(0), TARGET)
        path = tmp_path / str(i)
        sd.save_drafter(path, drafter, params, TARGET, format="zlab", dtype=None)
        assert load(path)[0] == drafter


def test_heads_that_are_not_said_are_those_there_are(tmp_path):
    """And a confidence head without a bias has a bias of 0."""
    said = {name: None for name in ("markov_rank", "enable_confidence_head")}
    said |= {"confidence_head_with_markov": None}
    changes = inner("specforge", "dflash_config", **said)
    drafter, _ = load(write(tmp_path / "a", "specforge", changes))
    assert drafter.config == DRAFTERS["specforge"].config
    bias: dict[str, Any] = {"confidence_head.proj.bias": None}
    with pytest.warns(UserWarning, match="read as a head without a bias"):
        drafter, params = load(write(tmp_path / "b", "specforge", {}, bias))
    assert params["confidence"]["projection"]["bias"].tolist() == [0.0]
    wanted = jax.eval_shape(lambda: drafter.init_params(jax.random.key(0), TARGET))
    assert jax.tree.structure(params) == jax.tree.structure(wanted)
    _, tensors = published("specforge")
    old: dict[str, Any] = {
        name: None for name in tensors if name.startswith(("markov", "confidence"))
    }
    old |= {f"logit_head.{name}": tensors[name] for name in old}
    _, params = load(write(tmp_path / "c", "specforge", {}, old))
    assert_same(params, load(write(tmp_path / "d", "specforge"))[1])


def test_the_usual_block_of_z_lab_is_16(tmp_path):
    path = write(tmp_path, "zlab", {"block_size": None})
    with pytest.warns(UserWarning, match="no block_size, so it is 16"):
        assert config_in(path).block_size == 16


def test_a_scaled_embedding_is_the_targets(tmp_path):
    """Where both say the same."""
    target = tiny_target("gemma3", num_hidden_layers=8)
    weights = random_params(target)
    scale = {"input_embedding_scale": 6.93}  # of 48 ** 0.5, rounded
    drafter, params = sd.load_drafter(
        write(tmp_path / "a", "zlab", scale), target, weights
    )
    assert not drafter.config.own_embedding
    how: Any = {"format": "zlab", "dtype": None}
    sd.save_drafter(tmp_path / "b", drafter, params, target, **how)
    assert sd.load_drafter(tmp_path / "b", target, weights)[0] == drafter
    with pytest.raises(ValueError, match="input_embedding_scale is 1.0.*times 6.9"):
        sd.load_drafter(write(tmp_path / "c", "zlab"), target, weights)
    with pytest.raises(ValueError, match="input_embedding_scale is 6.93.*times 1.0"):
        load(tmp_path / "a")
    how["format"] = "speculators"
    with pytest.raises(ValueError, match="the target reads its embedding times 6.9"):
        sd.save_drafter(tmp_path / "d", drafter, params, target, **how)


@pytest.mark.parametrize("name", ["zlab, windows", "speculators, dspark"])
def test_the_same_text_with_and_without(name, tmp_path):
    drafter, params = load(write(tmp_path, name))
    prompts = [[1, 2, 3, 4, 5], [7], [9] * 20]
    sampling = sd.Sampling(max_new_tokens=12, temperature=0.8, seed=4)
    fast, plain = (
        sd.generate(TARGET, sd.Params(WEIGHTS, x), y, prompts, sampling=sampling)
        for x, y in ((params, drafter), (None, sd.Plain()))
    )
    assert [x.tolist() for x in fast.tokens] == [x.tolist() for x in plain.tokens]
