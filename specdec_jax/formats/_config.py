"""What the config.json of a published head says, in our words."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.typing import DTypeLike

from specdec_jax.formats._block_words import is_block
from specdec_jax.formats._layer import (
    DEFAULTS,
    NOT_MATHS,
    USUAL,
    layers_of,
    sizes_of,
    target_width,
)
from specdec_jax.formats._words import FUSION, HEAD, first_layer_in
from specdec_jax.io import Folder, Keys
from specdec_jax.nn import Eagle3Config, EagleConfig

_TAPS = "eagle_aux_hidden_state_layer_ids"


class Said(NamedTuple):
    """A head, as its folder describes it.

    Attributes:
        config: but for what its tensors say: `own_embedding`.
        vocab_size: of the target that it was made for.
        target_width: of that target's states, where it is said.
        boundaries: layers before which the target's states are taken, where said.
        outputs: layers after which they are, where said.
    """

    config: EagleConfig | Eagle3Config
    vocab_size: int
    target_width: int | None
    boundaries: list[int] | None = None
    outputs: list[int] | None = None


def said_by(folder: Folder, *, dtype: DTypeLike) -> Said:
    """What a folder says of its head, whichever format it has.

    Raises:
        ValueError: keys are missing, not understood, or of values that are not; all of
            them are listed.
    """
    values = folder.config
    where = folder.path / "config.json"
    wrong: list[str] = []
    if is_block(folder):
        raise ValueError(f"{where}: it is no EAGLE head, but a drafter of blocks")
    if "speculators_model_type" in values:
        said = _speculators(folder, values, wrong, dtype)
    elif HEAD in folder.tensors or first_layer_in(folder) == "midlayer":
        said = _eagle3(folder, values, wrong, dtype)
    else:
        said = _eagle(folder, values, wrong, dtype)
    if wrong:
        raise ValueError(f"{where}: " + "; ".join(wrong))
    return said


def _eagle(
    folder: Folder, values: Mapping[str, Any], wrong: list[str], dtype: DTypeLike
) -> Said:
    keys = Keys(dict(values), wrong)
    vocab_size = keys.count("vocab_size")
    config = EagleConfig(
        **sizes_of(folder, keys, {}, values, dtype),
        fusion_bias=keys.flag("bias", default=True),
        attention_bias=keys.flag("qkv_bias", default=False),
    )
    _no_window(keys)
    return _finish(keys, Said(config, vocab_size, None))


def _eagle3(
    folder: Folder, values: Mapping[str, Any], wrong: list[str], dtype: DTypeLike
) -> Said:
    """The authors', and SpecForge's."""
    keys = Keys(dict(values), wrong)
    vocab_size = keys.count("vocab_size")
    keys.only("bias", False)
    # Of SpecForge: a norm before the output layer, which there always is.
    keys.only("norm_output", True)
    inner = Keys(keys.table("eagle_config") or {})
    inner.only("use_aux_hidden_state", True)
    outputs = layers_of(inner, _TAPS)
    boundaries = layers_of(keys, _TAPS)
    wrong += [f"eagle_config: {text}" for text in inner.left()]
    config = Eagle3Config(
        **sizes_of(folder, keys, {}, values, dtype),
        **_switches(folder, keys, vocab_size),
        attention_bias=keys.flag("qkv_bias", default=False)
        | keys.flag("attention_bias", default=False),
    )
    width = target_width(keys)
    _no_window(keys)
    return _finish(keys, Said(config, vocab_size, width, boundaries, outputs))


def _speculators(
    folder: Folder, values: Mapping[str, Any], wrong: list[str], dtype: DTypeLike
) -> Said:
    keys = Keys(dict(values), wrong)
    keys.only("speculators_model_type", "eagle3")
    # Neither how many tokens others draft with it, nor how strictly they accept them,
    # nor whether its embedding was trained, is part of a head.
    for name in ("speculators_version", "speculators_config", "embed_requires_grad"):
        keys.take(name)
    layer = keys.table("transformer_layer_config") or {}
    kind = layer.get("model_type", "qwen3")
    if kind not in DEFAULTS:
        known = " and ".join(DEFAULTS)
        raise ValueError(
            f"{folder.path / 'config.json'}: a layer of model_type {kind!r} is not "
            f"understood; understood are {known}"
        )
    inner, defaults = Keys(dict(layer)), USUAL | DEFAULTS[kind]
    vocab_size = inner.count("vocab_size", default=defaults["vocab_size"])
    inner.only("attention_bias", False)  # of the output, too
    common = sizes_of(folder, inner, defaults, layer, dtype)
    window = _window(inner, common["num_layers"])
    wrong += [f"transformer_layer_config: {text}" for text in inner.left()]
    recycle_normed = keys.flag("norm_output", default=False)
    config = Eagle3Config(
        **common,
        **_switches(folder, keys, vocab_size),
        window=window,
        query_key_norm=kind == "qwen3",
        recycle_normed=recycle_normed,
    )
    width, boundaries = target_width(keys), layers_of(keys, _TAPS)
    for name in NOT_MATHS:
        keys.take(name)
    return _finish(keys, Said(config, vocab_size, width, boundaries))


def _finish(keys: Keys, said: Said) -> Said:
    left = keys.left()
    keys.wrong[:] = left
    return said


def _switches(folder: Folder, keys: Keys, vocab_size: int) -> dict[str, Any]:
    """What is of EAGLE-3 only and in one place in all formats."""
    head, fusion = folder.tensors.get(HEAD), folder.tensors.get(FUSION)
    rows = vocab_size if head is None else head.shape[0]
    size = keys.count("draft_vocab_size", default=rows)
    does_norm_each = keys.flag("fc_norm", default=False)
    does_norm_all = keys.flag("norm_before_fc", default=False)
    if does_norm_each and does_norm_all:
        keys.wrong.append("fc_norm and norm_before_fc are both true: only one can be")
    taps = sum(name.startswith("fc_norm.") for name in folder.tensors)
    return {
        "draft_vocab_size": None if size == vocab_size else size,
        "feature_width": 0 if fusion is None else fusion.shape[-1],
        "norm_before_fusion": does_norm_all,
        "norm_each_tap": max(1, taps) if does_norm_each else 0,
        "norm_before_residual": keys.flag("norm_before_residual", default=False),
    }


def _no_window(keys: Keys) -> None:
    """The code that defines these formats has no window; it is enough to say so."""
    if keys.take("use_sliding_window") is False:
        keys.take("sliding_window")
        keys.take("max_window_layers")
        keys.take("layer_types")


def _window(keys: Keys, num_layers: int) -> int | None:
    """What every layer has, as `layer_types` says."""
    kinds = keys.take("layer_types")
    window = keys.take("sliding_window")
    is_on = keys.take("use_sliding_window")
    first = keys.take("max_window_layers", default=28)
    if kinds is None:
        if is_on and window is not None and first < num_layers:
            keys.wrong.append("layer_types is missing, but use_sliding_window is true")
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        keys.wrong.append(f"layer_types is {kinds!r}, not of {num_layers} layers")
        return None
    if set(kinds) == {"full_attention"} or window is None:
        return None
    if set(kinds) != {"sliding_attention"}:
        keys.wrong.append(
            f"layer_types is {kinds!r}: understood are sliding_attention or "
            "full_attention, the same for all layers"
        )
        return None
    return Keys({"sliding_window": window}, keys.wrong).count("sliding_window")
