"""Hugging Face's configurations in our words: one decoder, and what sets a family
apart.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specdec_jax.nn import DecoderConfig, ExpertsConfig, RoPE

# What says nothing about the forward pass of inference.
_HARMLESS = {
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "boi_token_index", "chunk_size_feed_forward", "dtype", "eoi_token_index",
    "eos_token_id", "id2label", "image_token_index", "initializer_range", "label2id",
    "mm_tokens_per_image", "model_type", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type",
    "return_dict", "router_aux_loss_coef", "torch_dtype", "transformers_version",
    "use_cache", "vision_config", "cache_implementation", "unsloth_fixed",
}  # fmt: skip


class _Keys:
    """A configuration's keys, each taken once; what is left over was not understood."""

    def __init__(self, values: dict[str, Any]):
        self._left = dict(values)
        self.wrong: list[str] = []

    def take(self, *names: str, default: Any = None, absent: Any = None) -> Any:
        """The value under the first of these names that has one, else the default;
        `absent` where there is none of the keys, not even with a null.
        """
        is_absent = not any(name in self._left for name in names)
        found = [
            value for name in names if (value := self._left.pop(name, None)) is not None
        ]
        return found[0] if found else absent if is_absent and absent else default

    def need(self, *names: str, default: Any = None) -> Any:
        """The value of a key that there must be, under one of its names."""
        value = self.take(*names, default=default)
        if value is None:
            self.wrong.append(f"{names[0]} is missing")
            return 1
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """A key that may be missing, or have one of these values."""
        value = self._left.pop(name, None)
        if value is not None and value not in allowed:
            said = " or ".join(map(repr, allowed))
            self.wrong.append(f"{name} is {value!r}, understood is {said}")

    def left(self) -> list[str]:
        """What was wrong, and the keys that nobody took, unless they say nothing: an
        option that is off does not.
        """
        return self.wrong + [
            f"{name} is not understood"
            for name, value in sorted(self._left.items())
            if name not in _HARMLESS and value not in (None, False)
        ]


def config_of(
    config: Any, where: str, *, dtype: DTypeLike = jnp.float32
) -> DecoderConfig:
    """Our configuration from that of Hugging Face.

    Raises:
        ValueError: see `from_folder`; it begins with `where`.
    """
    values = dict(config)
    if isinstance(values.get("text_config"), dict):  # a model that also sees
        values = {**values, **values.pop("text_config")}
    kind = values.get("model_type")
    if kind not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ValueError(f"{where}: the model_type is {kind!r}; understood are {known}")
    keys = _Keys(values)
    defaults, family = _FAMILIES[kind]
    width = keys.need("hidden_size")
    heads = keys.need(
        "num_attention_heads", default=defaults.get("num_attention_heads")
    )
    head_width = keys.take("head_dim", default=defaults.get("head_dim", width // heads))
    layers = keys.need("num_hidden_layers")
    common: dict[str, Any] = {
        "vocab_size": keys.need("vocab_size", default=defaults.get("vocab_size")),
        "width": width,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": keys.take(
            "num_key_value_heads", default=defaults.get("num_key_value_heads", heads)
        ),
        "head_width": head_width,
        "mlp_width": keys.need("intermediate_size"),
        "max_length": keys.need(
            "max_position_embeddings", default=defaults.get("max_position_embeddings")
        ),
        "norm_epsilon": keys.take("rms_norm_eps", default=1e-6),
        "tied": keys.take("tie_word_embeddings", default=defaults.get("tied", False)),
        "dtype": jnp.dtype(dtype).name,
    }
    activation = defaults.get("activation", "silu")
    keys.only("hidden_act", activation)
    keys.only("hidden_activation", activation)
    keys.only("partial_rotary_factor", 1.0)
    special = family(keys, common)
    if "rope" not in special:
        special["rope"] = _rope(keys, head_width, theta=defaults.get("theta", 10000.0))
    if wrong := keys.left():
        raise ValueError(f"{where}: " + "; ".join(wrong))
    return DecoderConfig(**common, **special)


def _llama(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {}


def _mistral(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    window = keys.take("sliding_window", absent=4096)
    return {} if window is None else {"windows": (window,) * common["num_layers"]}


def _qwen2(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": True} | _qwen_windows(keys, common)


def _qwen3(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {"query_key_norm": True} | _qwen_windows(keys, common)


def _qwen3_moe(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    keys.only("decoder_sparse_step", 1)
    keys.only("mlp_only_layers", [])
    experts = ExpertsConfig(
        count=keys.need("num_experts", "num_local_experts"),
        per_token=keys.need("num_experts_per_tok"),
        width=keys.need("moe_intermediate_size"),
        normalize=keys.take("norm_topk_prob", default=False),
    )
    return _qwen3(keys, common) | {"experts": experts}


def _gemma3(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        keys.only(name)
    layers, head_width = common["num_layers"], common["head_width"]
    window = keys.take("sliding_window", default=4096)
    period = keys.take("sliding_window_pattern", "_sliding_window_pattern", default=6)
    kinds = keys.take("layer_types") or [
        "sliding_attention" if (i + 1) % period else "full_attention"
        for i in range(layers)
    ]
    given = keys.take("rope_parameters")
    if given is None:
        local = RoPE(keys.take("rope_local_base_freq", default=10000.0))
        rope = _rope(keys, head_width, theta=1e6)
    else:
        parts = [given.get(kind) for kind in ("full_attention", "sliding_attention")]
        if not all(isinstance(part, dict) for part in parts):
            keys.wrong.append("rope_parameters lack full_ or sliding_attention")
            parts = [{}, {}]
        rope, local = (
            _rope(_Keys({"rope_parameters": part}), head_width, wrong=keys.wrong)
            for part in parts
        )
        for said_already in ("rope_local_base_freq", "rope_theta", "rope_scaling"):
            keys.take(said_already)
    return {
        "rope": rope,
        "local_rope": local,
        "windows": _windows(keys, kinds, window),
        "query_key_norm": True,
        "activation": "gelu_tanh",
        "unit_offset": True,
        "sandwich": True,
        "embedding_scale": common["width"] ** 0.5,
        "attention_scale": keys.take("query_pre_attn_scalar", default=256) ** -0.5,
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
    str, tuple[dict[str, Any], Callable[[_Keys, dict[str, Any]], dict[str, Any]]]
] = {
    "llama": ({}, _llama),
    "mistral": ({}, _mistral),
    "qwen2": ({}, _qwen2),
    "qwen3": ({}, _qwen3),
    "qwen3_moe": ({}, _qwen3_moe),
    "gemma3_text": (_GEMMA3, _gemma3),
    "gemma3": (_GEMMA3, _gemma3),
}


def _qwen_windows(keys: _Keys, common: dict[str, Any]) -> dict[str, Any]:
    """Windows of the layers from max_window_layers on, if they are used at all."""
    window = keys.take("sliding_window", absent=4096)
    first = keys.take("max_window_layers", default=28)
    kinds = keys.take("layer_types")
    if not keys.take("use_sliding_window", default=False) or window is None:
        return {}
    kinds = kinds or [
        "sliding_attention" if i >= first else "full_attention"
        for i in range(common["num_layers"])
    ]
    return {"windows": _windows(keys, kinds, window)}


def _windows(keys: _Keys, kinds: list[str], window: int) -> tuple[int | None, ...]:
    known = {"sliding_attention": window, "full_attention": None}
    strange = sorted(set(kinds) - known.keys())
    if strange:
        keys.wrong.append(f"layer_types of {strange} are not understood")
        return ()
    return tuple(known[kind] for kind in kinds)


_LLAMA3 = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "length": "original_max_position_embeddings",
}


def _rope(
    keys: _Keys,
    head_width: int,
    *,
    theta: float = 10000.0,
    wrong: list[str] | None = None,
) -> RoPE:
    """Rotary positions, stretched as `rope_scaling` or `rope_parameters` says."""
    wrong = keys.wrong if wrong is None else wrong
    theta = keys.take("rope_theta", default=theta)
    given = keys.take("rope_parameters", "rope_scaling", default={})
    scaling = _Keys(given)
    base = float(scaling.take("rope_theta", default=theta))
    kind = scaling.take("rope_type", "type", default="default")
    half = head_width // 2
    divisors: tuple[float, ...] = ()
    match kind:
        case "default":
            pass
        case "linear":
            divisors = (float(scaling.need("factor")),) * half
        case "llama3":
            told = {name: scaling.need(key) for name, key in _LLAMA3.items()}
            if not scaling.wrong:
                divisors = llama3_divisors(base, half, **told)
        case _:
            wrong.append(f"a rope_type of {kind!r} is not understood")
            return RoPE(base)
    scaling.only("partial_rotary_factor", 1.0)
    wrong += [f"rope: {text}" for text in scaling.left()]
    return RoPE(base, divisors)


def llama3_divisors(
    base: float, half: int, *, factor: float, low: float, high: float, length: int
) -> tuple[float, ...]:
    """What Llama 3.1 divides each frequency by: waves much shorter than the original
    length stay, much longer ones stretch by `factor`, those between by a blend.
    """
    frequency = base ** (-np.arange(half) / half)
    turns = length * frequency / (2 * math.pi)  # of each wave within the length
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple((1 / ((1 - blend) / factor + blend)).tolist())
