"""Drafters of blocks of some kilobytes as others publish them: names and shapes are
written down by hand, not taken from the code that reads them.
"""

from pathlib import Path
from typing import Any

import numpy as np
from heads import KNOWN, LLAMA3, STRETCH, TARGET, WEIGHTS, V, write_changed

from specdec_jax.drafters import DFlash, DSpark
from specdec_jax.nn import InjectedConfig, MarkovConfig, RoPE
from specdec_jax.nn._rope import llama3_divisors

WIDTH, MLP, HEADS, KV_HEADS, D = 48, 40, 4, 2, 10
LAYERS, SLOTS, RANK = 2, 5, 6
W = len(KNOWN)
SIZES: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": D,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-4,
    "vocab_size": V,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": [3, 4],
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "use_cache": True,
}
FULL: dict[str, Any] = {
    "layer_types": ["full_attention"] * LAYERS,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": LAYERS,
}
SLIDING: dict[str, Any] = FULL | {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "use_sliding_window": True,
}
ROPE = {"rope_theta": 700.0, "rope_scaling": None}


def _body() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, 2 * WIDTH),
        "hidden_norm.weight": (WIDTH,),
        "norm.weight": (WIDTH,),
    }
    for i in range(LAYERS):
        shapes |= {
            f"layers.{i}.input_layernorm.weight": (WIDTH,),
            f"layers.{i}.post_attention_layernorm.weight": (WIDTH,),
            f"layers.{i}.self_attn.q_proj.weight": (HEADS * D, WIDTH),
            f"layers.{i}.self_attn.k_proj.weight": (KV_HEADS * D, WIDTH),
            f"layers.{i}.self_attn.v_proj.weight": (KV_HEADS * D, WIDTH),
            f"layers.{i}.self_attn.o_proj.weight": (WIDTH, HEADS * D),
            f"layers.{i}.self_attn.q_norm.weight": (D,),
            f"layers.{i}.self_attn.k_norm.weight": (D,),
            f"layers.{i}.mlp.gate_proj.weight": (MLP, WIDTH),
            f"layers.{i}.mlp.up_proj.weight": (MLP, WIDTH),
            f"layers.{i}.mlp.down_proj.weight": (WIDTH, MLP),
        }
    return shapes


def _markov(known: int = V) -> dict[str, tuple[int, ...]]:
    return {
        "markov_head.markov_w1.weight": (V, RANK),
        "markov_head.markov_w2.weight": (known, RANK),
    }


def _confidence(inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        "confidence_head.proj.weight": (1, inputs),
        "confidence_head.proj.bias": (1,),
    }


def _speculators(name: str, drafts: int) -> dict[str, Any]:
    return {
        "architectures": [f"{name}Speculator"],
        "speculators_model_type": name.lower(),
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": name.lower(),
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": drafts}
            ],
            "verifier": {"name_or_path": "x", "architectures": ["LlamaForCausalLM"]},
        },
        "block_size": SLOTS,
        "mask_token_id": 60,
        "target_hidden_size": WIDTH,
    }


_ZLAB: dict[str, Any] = (
    SIZES
    | ROPE
    | {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "num_target_layers": 8,
        "dtype": "bfloat16",
    }
)
_PLACES = {"mask_token_id": 60, "target_layer_ids": [1, 5]}
# Of each: config.json, and shapes of weights, for a target of 8 layers.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "zlab": (_ZLAB | FULL | {"block_size": SLOTS, "dflash_config": _PLACES}, _body()),
    "zlab, windows": (
        _ZLAB | SLIDING | {"dflash_config": _PLACES | {"block_size": SLOTS}},
        _body(),
    ),
    "specforge": (
        _ZLAB
        | FULL
        | {
            "architectures": ["DSparkDraftModel"],
            "block_size": SLOTS,
            "dflash_config": _PLACES
            | {
                "projector_type": "dspark",
                "markov_rank": RANK,
                "markov_head_type": "gated",
                "confidence_head_alpha": 1.0,
                "enable_confidence_head": True,
                "confidence_head_with_markov": True,
            },
        },
        {
            **_body(),
            **_markov(),
            "markov_head.gate_proj.weight": (RANK, WIDTH + RANK),
            "markov_head.gate_proj.bias": (RANK,),
            **_confidence(WIDTH + RANK),
        },
    ),
    "deepspec": (
        SIZES
        | FULL
        | _PLACES
        | {
            "architectures": ["Qwen3DSparkModel"],
            "rope_parameters": LLAMA3 | {"rope_theta": 700.0},
            "target_layer_ids": [-1, 6],
            "num_target_layers": 8,
            "block_size": SLOTS,
            "num_anchors": 512,
            "enable_confidence_head": True,
            "confidence_head_with_markov": False,
            "markov_rank": RANK,
            "markov_head_type": "vanilla",
        },
        {
            "embed_tokens.weight": (V, WIDTH),
            "lm_head.weight": (V, WIDTH),
            **_body(),
            **_markov(),
            **_confidence(WIDTH),
        },
    ),
    "deepspec, plain": (
        SIZES
        | FULL
        | ROPE
        | _PLACES
        | {
            "architectures": ["Qwen3DSparkModel"],
            "num_target_layers": 8,
            "block_size": SLOTS,
            "num_anchors": 512,
            "enable_confidence_head": False,
            "markov_rank": 0,
        },
        {
            "embed_tokens.weight": (V, WIDTH),
            "lm_head.weight": (V, WIDTH),
            **_body(),
        },
    ),
    "speculators": (
        _speculators("DFlash", SLOTS - 1)
        | {
            "draft_vocab_size": W,
            "aux_hidden_state_layer_ids": [2, 6],
            "sample_from_anchor": False,
            "sliding_window_non_causal": False,
            "transformer_layer_config": SIZES | ROPE | SLIDING,
        },
        {"lm_head.weight": (W, WIDTH), **_body()},
    ),
    "speculators, dspark": (
        _speculators("DSpark", SLOTS)
        | {
            "draft_vocab_size": W,
            "aux_hidden_state_layer_ids": [0, 7],
            "sample_from_anchor": True,
            "sliding_window_non_causal": False,
            "markov_rank": RANK,
            "markov_head_type": "rnn",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "transformer_layer_config": SIZES | ROPE | FULL,
        },
        {
            "lm_head.weight": (W, WIDTH),
            **_body(),
            **_markov(W),
            "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + WIDTH),
            "markov_head.joint_proj.bias": (3 * RANK,),
            **_confidence(WIDTH + RANK),
        },
    ),
}
# The same in our words.
SIZED: Any = dict(
    width=48,
    num_heads=4,
    num_kv_heads=2,
    head_width=10,
    mlp_width=40,
    num_layers=2,
    feature_width=96,
    block_size=5,
    mask_id=60,
    rope=RoPE(700.0),
    norm_epsilon=1e-4,
)
FEW: Any = {"own_head": True, "draft_vocab_size": W}
OWN: Any = {"own_embedding": True, "own_head": True}
FIRST: Any = {"layout": "anchor_first"}
DRAFTERS: dict[str, Any] = {
    "zlab": DFlash(InjectedConfig(**SIZED), (1, 5)),
    "zlab, windows": DFlash(
        InjectedConfig(windows=(4, None), causal=(True, False), **SIZED), (1, 5)
    ),
    "specforge": DSpark(
        InjectedConfig(
            markov=MarkovConfig(6, "gated"),
            confidence="state and markov",
            **FIRST,
            **SIZED,
        ),
        (1, 5),
    ),
    "deepspec": DSpark(
        InjectedConfig(
            markov=MarkovConfig(6),
            confidence="state",
            **FIRST,
            **OWN,
            **SIZED
            | {"rope": RoPE(700.0, llama3_divisors(700.0, 5, STRETCH), STRETCH)},
        ),
        (-1, 6),
    ),
    "deepspec, plain": DFlash(InjectedConfig(**FIRST, **OWN, **SIZED), (1, 5)),
    "speculators": DFlash(
        InjectedConfig(
            windows=(4, None),
            anchored_windows=True,
            causal=(True, False),
            **FEW,
            **SIZED,
        ),
        (1, 5),
    ),
    "speculators, dspark": DSpark(
        InjectedConfig(
            markov=MarkovConfig(6, "rnn"),
            confidence="state and markov",
            **FIRST,
            **FEW,
            **SIZED,
        ),
        (-1, 6),
    ),
}
COPIES = {
    "embed_tokens.weight": np.asarray(WEIGHTS["embedding"]),
    "lm_head.weight": np.asarray(WEIGHTS["head"]["weight"]),
}


def published(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A configuration, and random tensors in float16."""
    config, shapes = PUBLISHED[name]
    random = np.random.default_rng(4)
    tensors: dict[str, np.ndarray] = {
        key: (0.3 * random.normal(size=shape)).astype(np.float16)
        for key, shape in shapes.items()
    }
    if name.startswith("speculators"):
        tensors["d2t"] = KNOWN - np.arange(W)
        tensors["t2d"] = np.isin(np.arange(V), KNOWN)
    return dict(config), tensors


def write(
    path: Path,
    name: str,
    changes: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """A published folder, some of it changed, or left out where it is None."""
    return write_changed(path, *published(name), changes, tensors)


def inner(name: str, table: str, **changes: Any) -> dict[str, Any]:
    """The table of a published configuration, some of it changed or left out."""
    said = PUBLISHED[name][0][table] | changes
    return {table: {key: value for key, value in said.items() if value is not None}}


assert TARGET.num_layers == 8
