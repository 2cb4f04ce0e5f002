"""What the config.json of a drafter of blocks says, in our words."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.typing import DTypeLike

from specdec_jax.formats._block_keys import heads_in, merged_in, steps_in, windows_in
from specdec_jax.formats._block_words import is_block, refuse_others
from specdec_jax.formats._layer import (
    DEFAULTS,
    NOT_MATHS,
    USUAL,
    layers_of,
    sizes_of,
    target_width,
)
from specdec_jax.formats._words import EMBEDDING, FUSION, HEAD
from specdec_jax.io import Folder, Keys
from specdec_jax.nn import InjectedConfig, Layout

_BLOCK_SIZE = 16  # z-lab's, where it is not said
_LAYERS_BEFORE = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
_CAUSAL = ("is_causal", "causal", "causal_head", "dflash_query_causal")
# Of trainings, or of how others serve: no part of what a body computes.
_TRAINING = ("num_anchors", "confidence_head_alpha", "loss_decay_gamma")
_SERVING = ("speculators_version", "speculators_config", "embed_requires_grad")


class BlockSaid(NamedTuple):
    """A drafter of blocks, as its folder describes it.

    Attributes:
        config: with an embedding and an output layer of its own where the folder has
            them, be they the target's or not.
        vocab_size: of the target that it was made for.
        target_width: of that target's states, where it is said.
        target_layers: how many layers that target has, where it is said.
        boundaries: layers before which the target's states are taken, where said.
        outputs: layers after which they are, where said.
        embedding_scale: of the rows of the target's table, as the body reads them.
    """

    config: InjectedConfig
    vocab_size: int
    target_width: int | None
    target_layers: int | None
    boundaries: list[int] | None
    outputs: list[int] | None
    embedding_scale: float


def block_said_by(
    folder: Folder, *, dtype: DTypeLike, layout: Layout | None = None
) -> BlockSaid:
    """What a folder says of its drafter, whichever format it has.

    Args:
        folder: of z-lab, SpecForge, DeepSpec or speculators.
        dtype: of the drafter.
        layout: instead of what the folder says.

    Raises:
        ValueError: the drafter is of a kind that is not supported; keys are missing,
            not understood, or of values that are not (all of them are listed).
    """
    if not is_block(folder):
        raise ValueError(f"{folder.path} holds neither a DFlash nor a DSpark")
    refuse_others(folder)
    wrong: list[str] = []
    read = _speculators if "speculators_model_type" in folder.config else _flat
    config, rest = read(folder, wrong, dtype, layout)
    if wrong:
        raise ValueError(f"{folder.path / 'config.json'}: " + "; ".join(wrong))
    try:
        return BlockSaid(InjectedConfig(**config), **rest)
    except ValueError as error:
        raise ValueError(f"{folder.path / 'config.json'}: {error}") from None


def _flat(
    folder: Folder, wrong: list[str], dtype: DTypeLike, layout: Layout | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of z-lab, SpecForge and DeepSpec, whose keys are in one table or in two."""
    values = merged_in(folder.config, wrong)
    keys = Keys(values, wrong)
    kind = keys.take("projector_type", default="dflash")
    if kind not in ("dflash", "dspark"):
        wrong.append(f"projector_type is {kind!r}, understood is 'dflash' or 'dspark'")
    classes = folder.config.get("architectures") or []
    # DeepSpec's DFlash has the slots of its DSpark.
    is_spark = kind == "dspark" or any("DSpark" in str(name) for name in classes)
    is_spark |= _TRAINING[0] in values
    keys.only("attention_mode", "gqa", "mha")
    keys.only("rope_is_neox_style", True)  # halves are rotated, not neighbours
    keys.only("output_multiplier", 1.0)
    keys.only("final_logit_softcapping", 0.0)
    common = _body(folder, keys, keys, {}, values, dtype)
    size = keys.take("block_size")
    if size is None and not is_spark:
        size = _BLOCK_SIZE
        warnings.warn(
            f"{folder.path / 'config.json'} has no block_size, so it is {size}, as in "
            "z-lab's code",
            stacklevel=5,
        )
    common["block_size"] = Keys({"block_size": size}, wrong).count("block_size")
    is_known = is_spark or "dflash_config" in folder.config
    is_known |= any("DFlash" in str(name) for name in classes)
    if not is_known and layout is None and "sample_from_anchor" not in values:
        wrong.append(
            "neither architectures nor dflash_config says which slots foretell what: "
            "pass layout"
        )
    is_first = keys.flag("sample_from_anchor", default=is_spark)
    windows, kinds = windows_in(keys, common["num_layers"])
    forced = [keys.take(name) for name in _CAUSAL]
    forced = {value for value in forced if value is not None}
    if len(forced) > 1 or not forced <= {True, False}:
        wrong.append(f"whether it is causal is said to be {sorted(map(str, forced))}")
    causal = (True in forced,) * len(kinds) if forced else kinds
    common |= {"windows": windows, "causal": causal if any(causal) else ()}
    common["layout"] = layout or _layout(is_first)
    boundaries = [layers_of(keys, name) for name in _LAYERS_BEFORE]
    outputs = layers_of(keys, "target_layer_ids")
    target_layers = keys.take("num_target_layers")
    if target_layers is not None:
        target_layers = Keys({"num_target_layers": target_layers}, wrong).count(
            "num_target_layers"
        )
    scale = keys.number("input_embedding_scale", default=1.0)
    for name in _TRAINING:
        keys.take(name)
    return _finish(
        keys,
        common,
        boundaries=next((x for x in boundaries if x is not None), None),
        outputs=outputs,
        target_layers=target_layers,
        embedding_scale=scale,
    )


def _speculators(
    folder: Folder, wrong: list[str], dtype: DTypeLike, layout: Layout | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes a config, and what else is said."""
    keys = Keys(dict(folder.config), wrong)
    is_spark = keys.take("speculators_model_type") == "dspark"
    draft_with = keys.table("speculators_config")
    for name in (*_SERVING, *NOT_MATHS):
        keys.take(name)
    layer = keys.table("transformer_layer_config") or {}
    kind = layer.get("model_type", "qwen3")
    if kind not in DEFAULTS:
        wrong.append(f"a layer of model_type {kind!r} is not understood")
    defaults = USUAL | DEFAULTS.get(kind, {})
    inner = Keys(dict(layer))
    common = _body(folder, inner, keys, defaults, layer, dtype)
    common["block_size"] = keys.count("block_size")
    windows, kinds = windows_in(inner, common["num_layers"])
    is_free = keys.flag("sliding_window_non_causal", default=False)
    common |= {
        "windows": windows,
        "anchored_windows": bool(windows),
        "causal": () if is_free or not any(kinds) else kinds,
    }
    wrong += [f"transformer_layer_config: {text}" for text in inner.left()]
    count = steps_in(draft_with)
    size = common["block_size"]
    usual = count == size if count in (size, size - 1) else is_spark
    is_first = keys.flag("sample_from_anchor", default=usual)
    if layout is None and count is not None and count > size - (not is_first):
        wrong.append(
            f"speculative_tokens is {count}, but a block of {size} foretells "
            f"{size - (not is_first)} where sample_from_anchor is {is_first}: pass "
            "layout"
        )
    common["layout"] = layout or _layout(is_first)
    markov = common["markov"]
    if common["layout"] != "anchor_first" and markov and markov.kind == "rnn":
        wrong.append(
            "markov_head_type is 'rnn', but sample_from_anchor is false: whether its "
            "memory starts before the anchor's slot is not agreed on"
        )
    boundaries = layers_of(keys, _LAYERS_BEFORE[0])
    if boundaries is None:
        wrong.append(f"{_LAYERS_BEFORE[0]} is missing")
    # It reads the table's rows as they are.
    return _finish(
        keys,
        common,
        boundaries=boundaries,
        outputs=None,
        target_layers=None,
        embedding_scale=1.0,
    )


def _body(
    folder: Folder,
    keys: Keys,
    heads: Keys,
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    dtype: DTypeLike,
) -> dict[str, Any]:
    """What every format has, in the words of `InjectedConfig`: decoder layers, which
    `keys` and `values` speak of, and the rest.
    """
    common = sizes_of(folder, keys, defaults, values, dtype)
    keys.only("attention_bias", False)  # of the output, too
    vocab_size = keys.count("vocab_size", default=defaults.get("vocab_size"))
    head, fusion = folder.tensors.get(HEAD), folder.tensors.get(FUSION)
    known = heads.count("draft_vocab_size", default=vocab_size)
    if known != vocab_size and head is None:
        heads.wrong.append(
            f"draft_vocab_size is {known} of {vocab_size}, but there is no {HEAD}, "
            "which such a drafter must bring"
        )
    mask = heads.take("mask_token_id")
    if not isinstance(mask, int) or isinstance(mask, bool) or mask < 0:
        said = "missing" if mask is None else f"{mask!r}, which is no token"
        heads.wrong.append(f"mask_token_id is {said}")
        mask = 0
    for name in ("bos_token_id", "eos_token_id"):
        real = values.get(name)
        if mask in (real if isinstance(real, list) else [real]):
            heads.wrong.append(f"mask_token_id is {mask}, a real token: {name}")
    fused = 0 if fusion is None or len(fusion.shape) != 2 else fusion.shape[1]
    if not fused:
        heads.wrong.append(f"{FUSION} is missing, or no matrix")
    return (
        common
        | heads_in(folder, heads, common["width"])
        | {
            "vocab_size": vocab_size,
            "mask_id": mask,
            "feature_width": fused,
            "own_embedding": EMBEDDING in folder.tensors,
            "own_head": head is not None,
            "draft_vocab_size": None if known == vocab_size or head is None else known,
        }
    )


def _layout(is_first: bool) -> Layout:
    return "anchor_first" if is_first else "anchor_discarded"


def _finish(
    keys: Keys, common: dict[str, Any], **rest: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    rest["vocab_size"] = common.pop("vocab_size")
    rest["target_width"] = target_width(keys)
    keys.wrong[:] = keys.left()
    return common, rest
