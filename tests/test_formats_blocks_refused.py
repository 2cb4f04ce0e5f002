"""DFlash and DSpark that cannot be read or written: what is said."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from blocks import DRAFTERS, SLOTS, inner, write
from heads import KNOWN, TARGET, WEIGHTS, load

import specdec_jax as sd
from specdec_jax import formats
from specdec_jax.drafters import DSpark
from specdec_jax.io import Folder

pytestmark = pytest.mark.usefixtures("quick_compile")

SPARK = "speculators, dspark"
NO_TENSOR = np.ones(3, np.float16)
BAD: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "DFlash 2": (
        "zlab", {"architectures": ["DFlash2DraftModel"]}, {}, "DFlash 2, which is not",
    ),
    "DFlash 2, its tensors": (
        "zlab", {}, {"candidate_selector.hidden_projection.weight": NO_TENSOR},
        "DFlash 2, which.*candidate_selector",
    ),
    "DFlash 2 of speculators": (
        "speculators", {"speculators_model_type": "dflash2"}, {}, "DFlash 2",
    ),
    "Domino": (
        "zlab", inner("zlab", "dflash_config", projector_type="domino"), {}, "Domino",
    ),
    "Gemma 4": (
        "deepspec", {"architectures": ["Gemma4DSparkModel"]}, {}, "Gemma 4, which is",
    ),
    "V4": ("zlab", {"dspark_block_size": 5}, {}, "DeepSeek V4, which.*dspark_block"),
    "fused": ("zlab", {}, {"layers.0.self_attn.qkv_proj.weight": NO_TENSOR}, "fused"),
    "another projector": (
        "zlab", inner("zlab", "dflash_config", projector_type="kda"), {}, "'kda', und",
    ),
    "latent attention": (
        "zlab", inner("zlab", "dflash_config", attention_mode="mla"), {}, "'mla', und",
    ),
    "neighbours rotated": (
        "zlab", {"rope_is_neox_style": False}, {}, "rope_is_neox_style is False",
    ),
    "softcap": (
        "zlab", {"final_logit_softcapping": 30.0}, {}, "softcapping is 30.0, und",
    ),
    "multiplier": ("zlab", {"output_multiplier": 2.0}, {}, "multiplier is 2.0"),
    "scale": ("zlab", {"input_embedding_scale": 2.0}, {}, "scale is 2.0: the body"),
    "sinks": ("zlab", {"attention_sink_bias": True}, {}, "sink_bias is not underst"),
    "biases": ("zlab", {"attention_bias": True}, {}, "attention_bias is True"),
    "yarn": ("zlab", {"rope_scaling": {"type": "yarn"}}, {}, "'yarn' is not underst"),
    "a key": (
        "zlab", inner("zlab", "dflash_config", shift_label=True), {}, "shift_label is",
    ),
    "a key of a layer": (
        SPARK, inner(SPARK, "transformer_layer_config", logit_scale=2.0), {},
        "transformer_layer_config: logit_scale is not",
    ),
    "no layout": (
        "zlab",
        {"architectures": None, "dflash_config": None}
        | {"mask_token_id": 60, "target_layer_ids": [1, 5]}, {},
        "says which slots foretell what: pass layout",
    ),
    "two widths": (
        "zlab", inner("zlab", "dflash_config", block_size=7), {},
        "block_size is said to be 5, and in dflash_config 7",
    ),
    "no width": ("deepspec", {"block_size": None}, {}, "block_size is missing"),
    "a block of the anchor": ("zlab", {"block_size": 1}, {}, "1 slots .* nothing"),
    "no mask": (
        "zlab", inner("zlab", "dflash_config", mask_token_id=None), {},
        "mask_token_id is missing",
    ),
    "a real mask": (
        "zlab", inner("zlab", "dflash_config", mask_token_id=4), {},
        "mask_token_id is 4, a real token: eos_token_id",
    ),
    "a mask beyond": (
        "zlab", inner("zlab", "dflash_config", mask_token_id=61), {},
        "mask_id 61 is beyond the 61 tokens",
    ),
    "Markov rank 0": (
        "deepspec", {"markov_rank": 0, "confidence_head_with_markov": True}, {},
        "confidence_head_with_markov is true, but markov_rank is 0",
    ),
    "Markov tables left": ("deepspec", {"markov_rank": 0}, {}, "markov_w1.* not under"),
    "Markov rank": ("deepspec", {"markov_rank": 5}, {}, r"markov_w1.* \(61, 6\), not"),
    "Markov kind": ("deepspec", {"markov_head_type": "x"}, {}, "type is 'x', unders"),
    "remembered from where": (
        SPARK, {"sample_from_anchor": False, "speculators_config": None}, {},
        "'rnn', but sample_from_anchor is false",
    ),
    "causal or not": (
        "zlab", {"is_causal": True, "dflash_query_causal": False}, {},
        r"causal is said to be \['False', 'True'\]",
    ),
    "no window": (
        "zlab, windows", {"use_sliding_window": False}, {}, "there is no sliding_wind",
    ),
    "kinds of layers": ("zlab", {"layer_types": ["full_attention"]}, {}, "one for"),
    "vocabulary": ("zlab", {"vocab_size": 60}, {}, "vocabulary of 60.* has 61"),
    "layers": ("zlab", {"num_target_layers": 9}, {}, "so many layers: 9.* has 8"),
    "width": ("zlab", {"target_hidden_size": 64}, {}, "width 64.* has 48"),
    "fusion": ("zlab", {}, {"fc.weight": np.ones((48, 100), np.float16)}, "reads 100"),
    "no fusion": ("zlab", {}, {"fc.weight": None}, "fc.weight is missing"),
    "three taps": (
        "zlab", inner("zlab", "dflash_config", target_layer_ids=[1, 3, 5]), {},
        "reads 2 taps, and 3 are named",
    ),
    "the last layer": (
        "zlab", inner("zlab", "dflash_config", target_layer_ids=[1, 7]), {},
        "after layer 7, the last.*pass taps",
    ),
    "no taps": (
        "speculators", {"aux_hidden_state_layer_ids": None}, {}, "ids is missing",
    ),
    "tensors": (
        "zlab", {}, {"norm.weight": None, "lm_head.bias": NO_TENSOR},
        "norm.weight is missing; lm_head.bias is not understood",
    ),
    "no head of its own": (
        "speculators", {}, {"lm_head.weight": None}, "13 of 61, but there is no",
    ),
    "no d2t": ("speculators", {}, {"d2t": None}, "d2t is missing.*knows 13 of 61"),
    "ids, not offsets": ("speculators", {}, {"d2t": KNOWN}, "leads to the ids"),
    "a tree for a DSpark": (SPARK, {}, {}, "a DSpark drafts a chain"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read(name, tmp_path):
    """In the user's words, and with the folder's name."""
    kind, changes, tensors, words = BAD[name]
    path = write(tmp_path / "drafter", kind, changes, tensors)
    tree = sd.MarginalTree(5) if name == "a tree for a DSpark" else None
    with pytest.raises(ValueError, match=words) as error:
        load(path, tree=tree)
    assert str(path) in str(error.value)


def test_another_width_of_blocks(tmp_path):
    """Fewer drafts are verified of a block that stays as wide as it was trained."""
    drafter, _ = load(write(tmp_path, "zlab"))
    fewer = dataclasses.replace(drafter, drafts=2)
    assert (fewer.max_depth, fewer.config.block_size) == (2, SLOTS)
    with pytest.raises(ValueError, match=r"4 tokens, so drafts is 1 … 4, not 7"):
        dataclasses.replace(drafter, drafts=7)


def test_trees_are_of_their_own_kind(tmp_path):
    path = write(tmp_path, "zlab")
    assert load(path, tree=sd.MarginalTree(5))[0].num_nodes == 5
    with pytest.raises(ValueError, match="takes a MarginalTree or none"):
        load(path, tree=sd.GrownTree(num_nodes=3, depth=2, width=1))


UNSAYABLE: dict[str, tuple[str, Any, str]] = {
    "DSpark as z-lab": ("zlab", DRAFTERS["specforge"], "it is a DSpark"),
    "DFlash as EAGLE": ("eagle", DRAFTERS["zlab"], "it is a DFlash"),
} | {
    f"{words}, {format}": (
        format,
        dataclasses.replace(
            DRAFTERS[name], config=dataclasses.replace(DRAFTERS[name].config, **change)
        ),
        words,
    )
    for format, name, change, words in (
        ("zlab", "zlab", {"layout": "anchor_first"}, "laid out anchor_first"),
        ("deepspec", "zlab", {}, "laid out anchor_discarded"),
        ("zlab", "zlab", {"query_key_norm": False}, "are not normed"),
        ("zlab", "zlab", {"attention_bias": True}, "have a bias"),
        ("zlab", "zlab", {"windows": (3, 4)}, "windows of several sizes"),
        ("zlab", "speculators", {}, "windows are counted from the anchor.* some tok"),
        ("speculators", "zlab, windows", {}, "windows are counted from each slot"),
        ("zlab", "zlab, windows", {"causal": (False, True)}, "layers are causal"),
        ("deepspec", "deepspec", {"causal": (True, True)}, "layers are causal"),
        ("zlab", "zlab", {"own_head": True}, "an output layer of its own"),
        ("specforge", "specforge", {"own_embedding": True}, "an embedding of its own"),
        (
            "speculators",
            SPARK,
            {"layout": "anchor_discarded"},
            "its Markov head remembers",
        ),
    )
}


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_a_format_cannot_say(name, tmp_path):
    format, drafter, words = UNSAYABLE[name]
    how: Any = {"format": format}
    params = drafter.init_params(jax.random.key(0), TARGET)
    with pytest.raises(ValueError, match=f"{format}' cannot say that .*{words}"):
        sd.save_drafter(tmp_path / "x", drafter, params, TARGET, **how)
    assert not list(tmp_path.iterdir())


def test_what_else_cannot_be_saved(tmp_path):
    spark = DSpark(dataclasses.replace(DRAFTERS["specforge"].config), (1, 5))
    params = spark.init_params(jax.random.key(0), TARGET)
    path = tmp_path / "x"
    with pytest.raises(ValueError, match="too: pass target_params"):
        sd.save_drafter(path, spark, params, TARGET, format="deepspec")
    how: Any = {"format": "specforge", "target_params": WEIGHTS}
    with pytest.raises(ValueError, match="leave target_params out"):
        sd.save_drafter(path, spark, params, TARGET, **how)
    last = dataclasses.replace(spark, taps=(1, 7))
    with pytest.raises(ValueError, match="cannot say that it taps 1, 7"):
        sd.save_drafter(path, last, params, TARGET, format="specforge")
    eagle = formats.said_by
    with pytest.raises(ValueError, match="no EAGLE head, but a drafter of blocks"):
        eagle(Folder(write(tmp_path / "z", "zlab")), dtype="float32")
