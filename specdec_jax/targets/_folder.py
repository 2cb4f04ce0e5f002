"""Targets from Hugging Face folders."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import PyTree

from specdec_jax.io import LAYER_NAMES, Folder, ParamPath, read_params
from specdec_jax.nn import Decoder, DecoderConfig
from specdec_jax.targets._huggingface import config_of
from specdec_jax.targets._module import ModuleTarget

_LAYER = LAYER_NAMES | {"mlp.router": "mlp.gate"}
_SANDWICH = {
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_EXPERT = {
    "expert_gate": "gate_proj",
    "expert_up": "up_proj",
    "expert_down": "down_proj",
}
# Where the decoder is inside a model that also sees, which is not read.
_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
_VISION = ("vision_tower.", "multi_modal_projector.")


def from_folder(
    folder: Folder, *, dtype: DTypeLike = jnp.float32, mesh: Mesh | None = None
) -> tuple[ModuleTarget, PyTree]:
    """The target that a Hugging Face folder holds, and its parameters: of the model
    types llama, mistral, qwen2, qwen3, qwen3_moe and gemma3.

    Weights go one by one straight into `dtype` and onto `mesh`.

    Raises:
        ValueError: another model type, keys of config.json that are not understood (or
            missing, or of a value that is not understood), tensors that are missing,
            left over or of the wrong shape; each time all of them are listed.
    """
    config = config_of(folder.config, str(folder.path / "config.json"), dtype=dtype)
    target = ModuleTarget(Decoder, config)
    prefix = next(
        (p for p in _PREFIXES if f"{p}embed_tokens.weight" in folder.tensors),
        _PREFIXES[0],
    )

    def names(path: ParamPath) -> str | list[str]:
        return _names(path, config, prefix)

    def is_ignored(name: str) -> bool:
        return (
            name.endswith("rotary_emb.inv_freq")
            or (config.tied and name.endswith("lm_head.weight"))
            or (prefix != _PREFIXES[0] and any(part in name for part in _VISION))
        )

    params = read_params(
        folder,
        jax.eval_shape(target.init_params, jax.random.key(0)),
        names=names,
        read=lambda path, name, index: folder.read(name, index=index),
        is_ignored=is_ignored,
        is_transposed=lambda path: path[-1] == "expert_down",
        mesh=mesh,
    )
    return target, params


def _names(path: ParamPath, config: DecoderConfig, prefix: str) -> str | list[str]:
    """The tensor that is a parameter, or the tensors that are stacked to be it."""
    match path:
        case ("embedding",):
            return f"{prefix}embed_tokens.weight"
        case ("norm", "weight"):
            return f"{prefix}norm.weight"
        case ("head", "weight"):
            return "lm_head.weight"
        case (_, layer, "mlp", str(part)) if part in _EXPERT and config.experts:
            return [
                f"{prefix}layers.{layer}.mlp.experts.{i}.{_EXPERT[part]}.weight"
                for i in range(config.experts.count)
            ]
        case (_, layer, *parts, kind):
            table = _LAYER | (_SANDWICH if config.sandwich else {})
            name = table[".".join(map(str, parts))]
            return f"{prefix}layers.{layer}.{name}.{kind}"
    raise AssertionError(path)
