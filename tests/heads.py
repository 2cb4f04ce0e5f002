"""Heads of some kilobytes as others publish them: names and shapes are written down by
hand, not taken from the code that reads them.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from folders import random_params, tiny_target, write_folder

import specdec_jax as sd
from specdec_jax.drafters import Eagle3
from specdec_jax.nn import Eagle3Config, EagleConfig, Llama3Stretch, RoPE
from specdec_jax.nn._rope import llama3_divisors

V, H, WIDTH = 61, 32, 48  # tokens, a width of a head's own, and the target's
MLP, HEADS, KV_HEADS, D = 40, 4, 2, 10
KNOWN = np.array([0, 1, 3, 4, 9, 10, 11, 30, 31, 32, 33, 58, 60])
SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": D,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-4,
    "vocab_size": V,
}
COMMON: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
    "use_cache": True,
    "rope_theta": 700.0,
}


def _layer(width: int, inputs: int, prefix: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.self_attn.q_proj.weight": (HEADS * D, inputs),
        f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * D, inputs),
        f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * D, inputs),
        f"{prefix}.self_attn.o_proj.weight": (width, HEADS * D),
        f"{prefix}.mlp.gate_proj.weight": (MLP, width),
        f"{prefix}.mlp.up_proj.weight": (MLP, width),
        f"{prefix}.mlp.down_proj.weight": (width, MLP),
        f"{prefix}.post_attention_layernorm.weight": (width,),
    }


def _eagle3(width: int, prefix: str, taps: int = 3) -> dict[str, tuple[int, ...]]:
    return {
        "fc.weight": (width, taps * WIDTH),
        **_layer(width, 2 * width, prefix),
        f"{prefix}.input_layernorm.weight": (width,),
        f"{prefix}.hidden_norm.weight": (width,),
        "norm.weight": (width,),
        "lm_head.weight": (len(KNOWN), width),
    }


def _second(width: int) -> dict[str, tuple[int, ...]]:
    return {
        **_layer(width, width, "layers.1"),
        "layers.1.input_layernorm.weight": (width,),
    }


_SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "draft_vocab_size": len(KNOWN),
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "x", "architectures": ["LlamaForCausalLM"]},
    },
    "embed_requires_grad": False,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
}
_QKV = {
    f"layers.0.self_attn.{x}_proj.bias": (n * D,)
    for x, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
}
_ROPE = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Of each: config.json, and shapes of weights, for a target of 8 layers.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "eagle": (
        {"architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH} | SIZES | COMMON,
        {
            "embed_tokens.weight": (V, WIDTH),
            "fc.weight": (WIDTH, 2 * WIDTH),
            "fc.bias": (WIDTH,),
            **_layer(WIDTH, WIDTH, "layers.0"),
        },
    ),
    "eagle, qwen2": (
        {"hidden_size": WIDTH, "bias": False, "qkv_bias": True}
        | SIZES
        | COMMON
        | {"num_hidden_layers": 2, "use_sliding_window": False, "sliding_window": 64},
        {
            "fc.weight": (WIDTH, 2 * WIDTH),
            **_layer(WIDTH, WIDTH, "layers.0"),
            **_second(WIDTH),
            **_QKV,
            **{name.replace("s.0", "s.1"): shape for name, shape in _QKV.items()},
        },
    ),
    "eagle3": (
        {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(KNOWN),
            "hidden_size": WIDTH,
        }
        | SIZES
        | COMMON,
        _eagle3(WIDTH, "midlayer"),
    ),
    "eagle3, narrow": (
        {
            "draft_vocab_size": len(KNOWN),
            "hidden_size": H,
            "target_hidden_size": WIDTH,
        }
        | SIZES
        | COMMON,
        {"embed_tokens.weight": (V, H), **_eagle3(H, "midlayer")},
    ),
    "specforge": (
        {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(KNOWN),
            "hidden_size": WIDTH,
            "fc_norm": True,
            "norm_output": True,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": _ROPE | {"rope_theta": 700.0},
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
            },
        }
        | SIZES
        | COMMON,
        {
            **_eagle3(WIDTH, "midlayer"),
            **{f"fc_norm.{i}.weight": (WIDTH,) for i in range(3)},
        },
    ),
    "speculators": (
        _SPECULATORS
        | {
            "norm_before_residual": True,
            "norm_before_fc": True,
            "norm_output": True,
            "transformer_layer_config": {
                **SIZES,
                "hidden_size": WIDTH,
                "num_hidden_layers": 2,
                "rope_parameters": LLAMA3 | {"rope_theta": 700.0},
                "sliding_window": 4,
                "layer_types": ["sliding_attention"] * 2,
            },
        },
        {
            "input_norm.weight": (3 * WIDTH,),
            **_eagle3(WIDTH, "layers.0"),
            **_second(WIDTH),
        },
    ),
    "speculators, qwen3": (
        _SPECULATORS
        | {
            "eagle_aux_hidden_state_layer_ids": [0, 7],
            "transformer_layer_config": {
                **SIZES,
                "model_type": "qwen3",
                "hidden_size": WIDTH,
                "rope_theta": 700.0,
                "layer_types": ["full_attention"],
                "use_sliding_window": False,
            },
        },
        {
            **_eagle3(WIDTH, "layers.0", taps=2),
            "layers.0.self_attn.q_norm.weight": (D,),
            "layers.0.self_attn.k_norm.weight": (D,),
        },
    ),
}


# The same in our words.
SIZED: Any = dict(
    num_heads=4,
    num_kv_heads=2,
    head_width=10,
    mlp_width=40,
    rope=RoPE(700.0),
    norm_epsilon=1e-4,
)
SIZED3 = SIZED | {"feature_width": 144, "draft_vocab_size": len(KNOWN)}
STRETCH = Llama3Stretch(8.0, 1.0, 4.0, 32)
CONFIGS: dict[str, Any] = {
    "eagle": EagleConfig(width=48, own_embedding=True, **SIZED),
    "eagle, qwen2": EagleConfig(
        width=48, num_layers=2, fusion_bias=False, attention_bias=True, **SIZED
    ),
    "eagle3": Eagle3Config(width=48, **SIZED3),
    "eagle3, narrow": Eagle3Config(width=32, own_embedding=True, **SIZED3),
    "specforge": Eagle3Config(
        width=48, norm_each_tap=3, **SIZED3 | {"rope": RoPE(700.0, (2.0,) * 5)}
    ),
    "speculators": Eagle3Config(
        width=48,
        num_layers=2,
        window=4,
        norm_before_fusion=True,
        norm_before_residual=True,
        recycle_normed=True,
        **SIZED3 | {"rope": RoPE(700.0, llama3_divisors(700.0, 5, STRETCH), STRETCH)},
    ),
    "speculators, qwen3": Eagle3Config(
        width=48, query_key_norm=True, **SIZED3 | {"feature_width": 96}
    ),
}
PLAIN = Eagle3(CONFIGS["eagle3"], taps=(1, 3, 4))


def published(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A configuration, and random tensors in float16."""
    config, shapes = PUBLISHED[name]
    random = np.random.default_rng(4)
    tensors: dict[str, np.ndarray] = {
        key: (0.3 * random.normal(size=shape)).astype(np.float16)
        for key, shape in shapes.items()
    }
    if "lm_head.weight" in tensors:
        tensors["d2t"] = KNOWN - np.arange(len(KNOWN))
        tensors["t2d"] = np.isin(np.arange(V), KNOWN)
    return dict(config), tensors


TARGET = tiny_target("llama", num_hidden_layers=8)
WEIGHTS = random_params(TARGET)


def load(path: Path, **options: Any) -> tuple[Any, Any]:
    return sd.load_drafter(path, TARGET, WEIGHTS, **options)


def write(
    path: Path,
    name: str,
    changes: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """A published folder, some of it changed, or left out where it is None."""
    return write_changed(path, *published(name), changes, tensors)


def write_changed(
    path: Path,
    config: dict[str, Any],
    stored: dict[str, Any],
    changes: dict[str, Any] | None,
    tensors: dict[str, Any] | None,
) -> Path:
    for values, news in ((config, changes or {}), (stored, tensors or {})):
        for key, new in news.items():
            values.pop(key, None) if new is None else values.update({key: new})
    return write_folder(path, config, stored)


def nested(**changes: Any) -> dict[str, Any]:
    config, _ = PUBLISHED["speculators"]
    layer = config["transformer_layer_config"] | changes
    kept = {key: value for key, value in layer.items() if value is not None}
    return {"transformer_layer_config": kept}


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
