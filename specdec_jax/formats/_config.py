"""What the config.json of a published head says, in our words."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from specdec_jax.formats._words import FUSION, HEAD, first_layer_in
from specdec_jax.io import Folder, Keys
from specdec_jax.nn import Eagle3Config, EagleConfig, RoPE, rope_of


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


# What transformers leaves out of a nested configuration, where it is as usual.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 32000, "intermediate_size": 11008},
    "qwen3": {"vocab_size": 151936, "intermediate_size": 22016},
}
_USUAL = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
}
_NOT_MATHS = (
    "max_position_embeddings",  # only sized a table of sines
    "tie_word_embeddings",  # the output layer is another one, or the target's
)


def said_by(folder: Folder, *, dtype: DTypeLike) -> Said:
    """What a folder says of its head, whichever format it has.

    Raises:
        ValueError: keys are missing, not understood, or of values that are not; all of
            them are listed.
    """
    values = folder.config
    where = folder.path / "config.json"
    wrong: list[str] = []
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
        **_common(folder, keys, {}, values, dtype),
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
    outputs = _layers(inner)
    boundaries = _layers(keys)
    wrong += [f"eagle_config: {text}" for text in inner.left()]
    config = Eagle3Config(
        **_common(folder, keys, {}, values, dtype),
        **_switches(folder, keys, vocab_size),
        attention_bias=keys.flag("qkv_bias", default=False)
        | keys.flag("attention_bias", default=False),
    )
    width = _target_width(keys)
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
    if kind not in _DEFAULTS:
        known = " and ".join(_DEFAULTS)
        raise ValueError(
            f"{folder.path / 'config.json'}: a layer of model_type {kind!r} is not "
            f"understood; understood are {known}"
        )
    inner, defaults = Keys(dict(layer)), _USUAL | _DEFAULTS[kind]
    vocab_size = inner.count("vocab_size", default=defaults["vocab_size"])
    inner.only("attention_bias", False)  # of the output, too
    common = _common(folder, inner, defaults, layer, dtype)
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
    width, boundaries = _target_width(keys), _layers(keys)
    for name in _NOT_MATHS:
        keys.take(name)
    return _finish(keys, Said(config, vocab_size, width, boundaries))


def _finish(keys: Keys, said: Said) -> Said:
    left = keys.left()
    keys.wrong[:] = left
    return said


def _common(
    folder: Folder,
    keys: Keys,
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    dtype: DTypeLike,
) -> dict[str, Any]:
    """What every head's configuration has, in the words of `EagleConfig`."""

    def count(name: str, default: int | None = None) -> int:
        return keys.count(name, default=defaults.get(name, default))

    width, heads = count("hidden_size"), count("num_attention_heads")
    kv_heads = count("num_key_value_heads", heads)
    # Configurations leave it out where it is not the usual one, too.
    query = folder.tensors.get(f"{first_layer_in(folder)}.self_attn.q_proj.weight")
    usual = width // heads if query is None else query.shape[0] // heads
    head_width = count("head_dim", max(1, usual))
    if heads % kv_heads:
        keys.wrong.append(
            f"num_key_value_heads of {kv_heads} do not divide num_attention_heads of "
            f"{heads}"
        )
    if head_width % 2:
        keys.wrong.append(f"head_dim is {head_width}, which has no halves to rotate")
    keys.only("hidden_act", "silu")
    keys.only("partial_rotary_factor", 1.0)
    for name in _NOT_MATHS:
        keys.take(name)
    epsilon = defaults.get("rms_norm_eps", 1e-6)
    return {
        "width": width,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_width": head_width,
        "mlp_width": count("intermediate_size"),
        "num_layers": count("num_hidden_layers", 1),
        "norm_epsilon": keys.number("rms_norm_eps", default=epsilon),
        "rope": _rope(keys, values, head_width),
        "dtype": jnp.dtype(dtype).name,
    }


def _rope(keys: Keys, values: Mapping[str, Any], head_width: int) -> RoPE:
    """The head's own rotary positions, never its target's; newer files say them twice,
    and must say the same.
    """
    new, old = (
        table if isinstance(table := values.get(name), dict) else None
        for name in ("rope_parameters", "rope_scaling")
    )
    bases = [values.get("rope_theta")]
    bases += [table.get("rope_theta") for table in (new, old) if table is not None]
    bases = [base for base in bases if base is not None]
    if not bases:
        warnings.warn(
            "the head's configuration has no rope_theta, so it is 10000, as in its "
            "authors' code, whatever the target's is",
            stacklevel=6,
        )
    if len(set(map(str, bases))) > 1:
        keys.wrong.append(f"rope_theta is said to be {' and '.join(map(str, bases))}")
    if new is not None and old is not None and _rule(new) != _rule(old):
        keys.wrong.append("rope_parameters and rope_scaling say different things")
    return rope_of(keys, head_width)


def _rule(table: dict[str, Any]) -> dict[str, Any]:
    """A table of rotary positions without its base, in the newer spelling."""
    rest = {k: v for k, v in table.items() if k not in ("rope_theta", "type")}
    return {"rope_type": table.get("type", "default")} | rest


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


def _target_width(keys: Keys) -> int | None:
    width = keys.take("target_hidden_size")
    return (
        None
        if width is None
        else Keys({"target_hidden_size": width}, keys.wrong).count("target_hidden_size")
    )


def _layers(keys: Keys) -> list[int] | None:
    name = "eagle_aux_hidden_state_layer_ids"
    layers = keys.take(name)
    is_list = isinstance(layers, list) and all(
        isinstance(layer, int) and not isinstance(layer, bool) for layer in layers
    )
    if layers is None or is_list:
        return layers
    keys.wrong.append(f"{name} is {layers!r}, not a list of layers")
    return None


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
