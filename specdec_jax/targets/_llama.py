"""The Llama family from a GGUF file."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from specdec_jax.io import GGUF
from specdec_jax.nn import Decoder, DecoderConfig
from specdec_jax.targets._module import ModuleTarget

# Keys of the family that are understood; any other could change the arithmetic.
_KEYS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
    "rope.dimension_count", "vocab_size",
}  # fmt: skip
# Our parameter → its tensor in a layer of the file.
_LAYER = {
    ("attention_norm", "weight"): "attn_norm",
    ("attention", "query", "weight"): "attn_q",
    ("attention", "key", "weight"): "attn_k",
    ("attention", "value", "weight"): "attn_v",
    ("attention", "output", "weight"): "attn_output",
    ("mlp_norm", "weight"): "ffn_norm",
    ("mlp", "gate", "weight"): "ffn_gate",
    ("mlp", "up", "weight"): "ffn_up",
    ("mlp", "down", "weight"): "ffn_down",
}


def llama_from_gguf(
    gguf: GGUF, *, dtype: DTypeLike = jnp.float32
) -> tuple[ModuleTarget, PyTree]:
    """The target that a GGUF file of the Llama architecture holds, and its parameters.

    Weights are dequantised one by one, straight into `dtype`.

    Raises:
        ValueError: another architecture, keys that are not understood, tensors that
            are missing, left over or of the wrong shape (all of them listed).
    """
    config = _config(gguf, jnp.dtype(dtype).name)
    target = ModuleTarget(Decoder, config)
    names = _names(config)
    _check_tensors(gguf, names, config)
    params: dict[str | int, Any] = {}
    heads = {"query": config.num_heads, "key": config.num_kv_heads}
    for (*outer, last), name in names.items():
        weight = gguf.read(name, np.float32)
        if outer and outer[-1] in heads:
            weight = _unpermuted(weight, heads[outer[-1]])
        inside = params
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = jnp.asarray(weight, dtype)
    return target, params


def _config(gguf: GGUF, dtype: str) -> DecoderConfig:
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"{gguf.path} holds a model of architecture {architecture!r}; "
            "'llama' is understood"
        )
    prefix = "llama."
    keys = {
        key.removeprefix(prefix): value
        for key, value in gguf.metadata.items()
        if key.startswith(prefix)
    }
    unknown = sorted(set(keys) - _KEYS)
    missing = sorted(
        {"block_count", "embedding_length", "feed_forward_length", "context_length",
         "attention.head_count", "attention.layer_norm_rms_epsilon"} - set(keys)
    )  # fmt: skip
    if unknown or missing:
        raise ValueError(
            f"{gguf.path}: configuration keys not understood: {unknown}, "
            f"missing: {missing}"
        )
    heads, width = keys["attention.head_count"], keys["embedding_length"]
    head_width = keys.get("attention.key_length", width // heads)
    rotated = keys.get("rope.dimension_count", head_width)
    if (
        rotated != head_width
        or keys.get("attention.value_length", head_width) != head_width
    ):
        raise ValueError(
            f"{gguf.path}: heads of {head_width} with {rotated} rotated dimensions and "
            f"values of {keys.get('attention.value_length')} are not understood"
        )
    if "token_embd.weight" not in gguf.tensors:
        raise ValueError(f"{gguf.path} lacks the tensor token_embd.weight")
    return DecoderConfig(
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        width=width,
        num_layers=keys["block_count"],
        num_heads=heads,
        num_kv_heads=keys.get("attention.head_count_kv", heads),
        head_width=head_width,
        mlp_width=keys["feed_forward_length"],
        max_length=keys["context_length"],
        rope_base=keys.get("rope.freq_base", 10000.0),
        norm_epsilon=keys["attention.layer_norm_rms_epsilon"],
        tied="output.weight" not in gguf.tensors,
        dtype=dtype,
    )


def _names(config: DecoderConfig) -> dict[tuple[str | int, ...], str]:
    """Every parameter's path, and its tensor in the file."""
    names: dict[tuple[str | int, ...], str] = {
        ("embedding",): "token_embd.weight",
        ("norm", "weight"): "output_norm.weight",
    }
    if not config.tied:
        names["head", "weight"] = "output.weight"
    for i in range(config.num_layers):
        for path, name in _LAYER.items():
            names["layers", i, *path] = f"blk.{i}.{name}.weight"
    return names


def _check_tensors(
    gguf: GGUF, names: dict[tuple[str | int, ...], str], config: DecoderConfig
) -> None:
    kv_heads = config.num_kv_heads * config.head_width
    heads = config.num_heads * config.head_width
    width, mlp_width = config.width, config.mlp_width
    shapes = {
        "embedding": (config.vocab_size, width), "head": (config.vocab_size, width),
        "query": (heads, width), "key": (kv_heads, width), "value": (kv_heads, width),
        "output": (width, heads), "gate": (mlp_width, width), "up": (mlp_width, width),
        "down": (width, mlp_width),
    }  # fmt: skip
    wrong = []
    for path, name in names.items():
        part = str(path[0] if len(path) == 1 else path[-2])
        wanted = shapes.get(part, (width,))
        if name not in gguf.tensors:
            wrong.append(f"{name} is missing")
        elif gguf.tensors[name].shape != wanted:
            wrong.append(f"{name} is {gguf.tensors[name].shape}, not {wanted}")
    left = sorted(set(gguf.tensors) - set(names.values()))
    wrong += [f"{name} is not understood" for name in left]
    if wrong:
        raise ValueError(f"{gguf.path}: " + "; ".join(wrong))


def _unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the halves that RoPE rotates against each other; we do not."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
