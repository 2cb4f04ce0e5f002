"""Hugging Face's configurations in our words: one decoder, and what sets a family
apart.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specdec_jax.io import Keys
from specdec_jax.nn import DecoderConfig, ExpertsConfig, RoPE, rope_of


def config_of(
    config: Any, where: str, *, dtype: DTypeLike = jnp.float32
) -> DecoderConfig:
    """Our configuration from that of Hugging Face.

    Raises:
        ValueError: see `from_folder`; it begins with `where`.
    """
    values = dict(config)
    if isinstance(inner := values.pop("text_config", None), dict):
        values |= inner  # a model that also sees
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ValueError(f"{where}: the model_type is {kind!r}; understood are {known}")
    keys = Keys(values)
    defaults, family = _FAMILIES[kind]

    def count(name: str, default: int | None = None) -> int:
        return keys.count(name, default=defaults.get(name, default))

    width, heads = count("hidden_size"), count("num_attention_heads")
    head_width = count("head_dim", max(1, width // heads))
    common: dict[str, Any] = {
        "vocab_size": count("vocab_size"),
        "width": width,
        "num_layers": count("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": count("num_key_value_heads", heads),
        "head_width": head_width,
        "mlp_width": count("intermediate_size"),
        "max_length": count("max_position_embeddings"),
        "norm_epsilon": keys.number("rms_norm_eps", default=1e-6),
        "tied": keys.flag("tie_word_embeddings", default=defaults.get("tied", False)),
        "dtype": jnp.dtype(dtype).name,
    }
    if heads % common["num_kv_heads"]:
        keys.wrong.append(
            f"num_key_value_heads of {common['num_kv_heads']} do not divide "
            f"num_attention_heads of {heads}"
        )
    if head_width % 2:
        keys.wrong.append(f"head_dim is {head_width}, which has no halves to rotate")
    activation = defaults.get("activation", "silu")
    keys.only("hidden_act", activation)
    keys.only("hidden_activation", activation)
    keys.only("partial_rotary_factor", 1.0)
    keys.only("rope_interleaved", False)
    special = family(keys, common)
    if "rope" not in special:
        special["rope"] = rope_of(keys, head_width)
    if wrong := keys.left():
        raise ValueError(f"{where}: " + "; ".join(wrong))
    return DecoderConfig(**common, **special)


def _llama(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {}


def _mistral(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    window = _window(keys)
    return {} if window is None else {"windows": (window,) * common["num_layers"]}


def _qwen2(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": True} | _qwen_windows(keys, common)


def _qwen3(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {"query_key_norm": True} | _qwen_windows(keys, common)


def _qwen3_moe(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    keys.only("decoder_sparse_step", 1)
    keys.only("mlp_only_layers", [])
    experts = ExpertsConfig(
        count=keys.count("num_experts", "num_local_experts"),
        per_token=keys.count("num_experts_per_tok"),
        width=keys.count("moe_intermediate_size"),
        normalize=keys.flag("norm_topk_prob", default=False),
    )
    if experts.per_token > experts.count:
        keys.wrong.append(
            f"num_experts_per_tok is {experts.per_token}, of {experts.count} experts"
        )
    return _qwen3(keys, common) | {"experts": experts}


def _gemma3(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        keys.only(name)
    head_width = common["head_width"]
    window = keys.count("sliding_window", default=4096)
    period = keys.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    given = keys.table("rope_parameters")
    if given is None:
        local = RoPE(keys.number("rope_local_base_freq", default=10000.0))
        rope = rope_of(keys, head_width, theta=1e6)
    else:
        parts = [given.get(kind) for kind in ("full_attention", "sliding_attention")]
        if not all(isinstance(part, dict) for part in parts):
            keys.wrong.append("rope_parameters lack full_ or sliding_attention")
            parts = [{}, {}]
        rope, local = (
            rope_of(Keys({"rope_parameters": part}), head_width, wrong=keys.wrong)
            for part in parts
        )
        for said_already in ("rope_local_base_freq", "rope_theta", "rope_scaling"):
            keys.take(said_already)
    return {
        "rope": rope,
        "local_rope": local,
        "windows": _windows(keys, common, window, lambda i: (i + 1) % period > 0),
        "query_key_norm": True,
        "activation": "gelu_tanh",
        "unit_offset": True,
        "sandwich": True,
        "embedding_scale": common["width"] ** 0.5,
        "attention_scale": keys.number("query_pre_attn_scalar", default=256.0) ** -0.5,
    }


# Published files leave out what is Gemma3TextConfig's own default.
_GEMMA3: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tied": True,
    "activation": "gelu_pytorch_tanh",
}
_FAMILIES: dict[
    str, tuple[dict[str, Any], Callable[[Keys, dict[str, Any]], dict[str, Any]]]
] = {
    "llama": ({}, _llama),
    "mistral": ({}, _mistral),
    "qwen2": ({}, _qwen2),
    "qwen3": ({}, _qwen3),
    "qwen3_moe": ({}, _qwen3_moe),
    "gemma3_text": (_GEMMA3, _gemma3),
    "gemma3": (_GEMMA3, _gemma3),
}


def _qwen_windows(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    """Windows of the layers from max_window_layers on, if they are used at all."""
    window = _window(keys)
    first = keys.take("max_window_layers", default=28)
    if not keys.flag("use_sliding_window", default=False) or window is None:
        keys.take("layer_types")
        return {}
    return {"windows": _windows(keys, common, window, lambda i: i >= first)}


def _window(keys: Keys) -> int | None:
    """Positions that a layer sees: of these configurations, one that does not say has
    4,096, one that says null has no window.
    """
    if (window := keys.take("sliding_window", absent=4096)) is None:
        return None
    return Keys({"sliding_window": window}, keys.wrong).count("sliding_window")


def _windows(
    keys: Keys,
    common: dict[str, Any],
    window: int,
    is_windowed: Callable[[int], bool],
) -> tuple[int | None, ...]:
    """Of each layer, as `layer_types` says, or else by its number."""
    layers = range(common["num_layers"])
    known = {"sliding_attention": window, "full_attention": None}
    kinds = keys.take("layer_types")
    if kinds is None:
        return tuple(window if is_windowed(i) else None for i in layers)
    if not isinstance(kinds, list) or len(kinds) != len(layers):
        keys.wrong.append(f"layer_types is {kinds!r}, not of {len(layers)} layers")
        return ()
    if strange := sorted({str(kind) for kind in kinds} - known.keys()):
        keys.wrong.append(f"layer_types of {strange} are not understood")
        return ()
    return tuple(known[kind] for kind in kinds)
