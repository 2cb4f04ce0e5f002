"""Targets from GGUF files."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import PyTree

from specdec_jax.io import GGUF, ParamPath, read_params
from specdec_jax.nn import Decoder, DecoderConfig, RoPE
from specdec_jax.targets._module import ModuleTarget

# Keys that are understood, after the architecture's name; any other could change the
# arithmetic.
_REQUIRED = {
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.layer_norm_rms_epsilon",
}  # fmt: skip
_OPTIONAL = {
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "rope.freq_base", "rope.dimension_count", "vocab_size", "rope.scaling.type",
    "rope.scaling.factor",
}  # fmt: skip
# Of each architecture: keys besides, and what sets it apart in our configuration.
_FAMILIES: dict[str, tuple[set[str], dict[str, Any]]] = {
    "llama": (set(), {}),
    "qwen2": (set(), {"attention_bias": True}),
    "qwen3": (set(), {"query_key_norm": True}),
    "gemma3": (
        {"attention.sliding_window"},
        {
            "query_key_norm": True,
            "activation": "gelu_tanh",
            "sandwich": True,
            # Files hold norms with the one added, and neither of these two:
            "local_rope": RoPE(10000.0),
        },
    ),
}
_GEMMA3_PERIOD = 6  # every sixth layer sees everything
# Our parameter → its tensor in a layer of the file.
_LAYER = {
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention_post_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "mlp_post_norm": "post_ffw_norm",
}
_ROPE_DIVISORS = "rope_freqs.weight"


def from_gguf(
    gguf: GGUF, *, dtype: DTypeLike = jnp.float32, mesh: Mesh | None = None
) -> tuple[ModuleTarget, PyTree]:
    """The target that a GGUF file holds, and its parameters: of the architectures
    llama, qwen2, qwen3 and gemma3.

    Weights are dequantised one by one, straight into `dtype`, and onto `mesh`.

    Raises:
        ValueError: another architecture, keys that are not understood, tensors that
            are missing, left over or of the wrong shape (all of them listed).
    """
    architecture = gguf.metadata.get("general.architecture")
    config = gguf_config(gguf, dtype=dtype)
    target = ModuleTarget(Decoder, config)
    permuted = {"query": config.num_heads, "key": config.num_kv_heads}

    def read(path: ParamPath, name: str, index: Any) -> np.ndarray:
        weight = gguf.read(name, np.float32)
        # llama.cpp interleaves what Llama rotates; other families stay as published.
        if architecture == "llama" and path[-2:-1] and path[-2] in permuted:
            weight = _unpermuted(weight, permuted[str(path[-2])])
        return weight[index]

    params = read_params(
        gguf,
        jax.eval_shape(target.init_params, jax.random.key(0)),
        names=_name,
        read=read,
        is_ignored=lambda name: name == _ROPE_DIVISORS,
        mesh=mesh,
    )
    return target, params


def gguf_config(gguf: GGUF, *, dtype: DTypeLike = jnp.float32) -> DecoderConfig:
    """Our configuration from a file's keys.

    Raises:
        ValueError: another architecture, or keys that are not understood.
    """
    architecture = gguf.metadata.get("general.architecture")
    if architecture not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ValueError(
            f"{gguf.path} holds a model of architecture {architecture!r}; understood "
            f"are {known}"
        )
    further, special = _FAMILIES[architecture]
    prefix = f"{architecture}."
    keys = {
        key.removeprefix(prefix): value
        for key, value in gguf.metadata.items()
        if key.startswith(prefix)
    }
    unknown = sorted(keys.keys() - _REQUIRED - _OPTIONAL - further)
    missing = sorted((_REQUIRED | further) - keys.keys())
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
    divisors: tuple[float, ...] = ()
    if _ROPE_DIVISORS in gguf.tensors:
        divisors = tuple(gguf.read(_ROPE_DIVISORS).tolist())
    match keys.get("rope.scaling.type", "none"):
        case "none":
            pass
        case "linear" if not divisors and keys.get("rope.scaling.factor", 0) > 0:
            divisors = (keys["rope.scaling.factor"],) * (head_width // 2)
        case kind:
            raise ValueError(
                f"{gguf.path}: rope.scaling.type {kind!r} with a factor of "
                f"{keys.get('rope.scaling.factor')} is not understood"
            )
    layers = keys["block_count"]
    if architecture == "gemma3":
        window = keys["attention.sliding_window"]
        special = special | {
            "embedding_scale": width**0.5,
            # The 27B alone scales by the width, and no key says so.
            "attention_scale": (width / heads) ** -0.5 if layers == 62 else None,
            "windows": tuple(
                None if (i + 1) % _GEMMA3_PERIOD == 0 else window for i in range(layers)
            ),
        }
    return DecoderConfig(
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        width=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=keys.get("attention.head_count_kv", heads),
        head_width=head_width,
        mlp_width=keys["feed_forward_length"],
        max_length=keys["context_length"],
        rope=RoPE(keys.get("rope.freq_base", 10000.0), divisors),
        norm_epsilon=keys["attention.layer_norm_rms_epsilon"],
        tied="output.weight" not in gguf.tensors,
        dtype=jnp.dtype(dtype).name,
        **special,
    )


def _name(path: ParamPath) -> str:
    """The tensor that holds a parameter."""
    match path:
        case ("embedding",):
            return "token_embd.weight"
        case ("norm", "weight"):
            return "output_norm.weight"
        case ("head", "weight"):
            return "output.weight"
        case (_, layer, *part, kind):
            return f"blk.{layer}.{_LAYER['.'.join(map(str, part))]}.{kind}"
    raise AssertionError(path)


def _unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the halves that RoPE rotates against each other; we do not."""
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
