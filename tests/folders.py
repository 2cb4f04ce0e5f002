"""Hugging Face folders of some kilobytes: a configuration of each family, and random
weights under the names that the hub gives them.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from specdec_jax.nn import Decoder
from specdec_jax.targets import ModuleTarget
from specdec_jax.targets._folder import _names
from specdec_jax.targets._huggingface import config_of

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 500.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 20},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 7,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": True,
    },
}


def tiny_target(family: str, **changes: Any) -> ModuleTarget:
    config = SMALL | FAMILIES[family] | changes
    return ModuleTarget(Decoder, config_of(config, family))


def random_params(target: ModuleTarget) -> Any:
    """No weight is what it starts as: norms and biases are random too."""
    params = target.init_params(jax.random.key(0))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [
        x + 0.3 * jax.random.normal(key, x.shape, x.dtype)
        for x, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def tensors_of(target: ModuleTarget, params: Any) -> dict[str, np.ndarray]:
    """The parameters under the hub's names."""
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = _names(tuple(key.key for key in path), target.config, "model.")
        if isinstance(names, str):
            tensors[names] = np.asarray(leaf)
            continue
        for name, part in zip(names, leaf, strict=True):
            tensors[name] = np.array(part.T if "down_proj" in name else part)
    return tensors


def write_folder(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    *,
    shards: int = 1,
) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    names = sorted(tensors)
    placed = {
        name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors"
        for i, name in enumerate(names)
    }
    for file in set(placed.values()):
        part = {name: tensors[name] for name in names if placed[name] == file}
        save_file(part, path / file)
    index = {"metadata": {}, "weight_map": placed}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
