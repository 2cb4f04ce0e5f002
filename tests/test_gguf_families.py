"""GGUF files of every architecture that is understood, against the same weights in a
Hugging Face folder. Names and conventions are llama.cpp's (its `convert_hf_to_gguf.py`
and `gguf-py`), written down here anew.
"""

from typing import Any

import gguf
import jax
import numpy as np
import pytest
from folders import FAMILIES, SMALL, random_params, tensors_of, write_folder

from specdec_jax import _tree
from specdec_jax.io import GGUF, Folder
from specdec_jax.nn import Decoder
from specdec_jax.targets import ModuleTarget, from_folder, from_gguf
from specdec_jax.targets._huggingface import config_of

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# What a file of Gemma 3 cannot say, and llama.cpp takes for granted.
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"head_dim": None},
    "qwen3": {},
    "gemma3": {
        "num_hidden_layers": 7,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 12,
        "rope_local_base_freq": 10000.0,
    },
}


def name_in_gguf(name: str, family: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, number, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    layer = LAYER | GEMMA if family == "gemma3" else LAYER
    return f"blk.{number}.{layer[part]}.{kind}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbours, and stores Llama's queries and keys accordingly."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def stored(name: str, weight: np.ndarray, family: str, config: Any) -> np.ndarray:
    if family == "llama" and "q_proj" in name:
        return interleaved(weight, config["num_attention_heads"])
    if family == "llama" and "k_proj" in name:
        return interleaved(weight, config["num_key_value_heads"])
    if family == "gemma3" and "norm" in name:
        return weight + 1  # it multiplies by 1 + w
    return weight


def write_gguf(path: Any, family: str, config: Any, tensors: Any) -> Any:
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if family == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    for name, weight in tensors.items():
        data = stored(name, weight, family, config).astype(np.float32)
        writer.add_tensor(name_in_gguf(name, family), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", CHANGES)
def test_a_file_is_the_folder(family, tmp_path):
    config = SMALL | FAMILIES[family] | CHANGES[family]
    config = {key: value for key, value in config.items() if value is not None}
    target = ModuleTarget(Decoder, config_of(config, "tiny"))
    tensors = tensors_of(target, random_params(target))
    folder = Folder(write_folder(tmp_path / "folder", config, tensors))
    expected, wanted = from_folder(folder)
    path = write_gguf(tmp_path / "file.gguf", family, config, tensors)
    found, params = from_gguf(GGUF(path))
    tokens = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    np.testing.assert_allclose(
        logits_of(found, params, tokens),
        logits_of(expected, wanted, tokens),
        rtol=1e-5,
        atol=1e-5,
    )


def logits_of(target: ModuleTarget, params: Any, tokens: np.ndarray) -> np.ndarray:
    cache = target.init_cache(1, 16)
    block = _tree.causal_block(jax.numpy.asarray(tokens))
    output = target.forward(params, cache, block, ())
    return np.asarray(target.logits(params, output.hidden))
