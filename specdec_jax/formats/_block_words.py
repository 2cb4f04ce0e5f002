"""What a drafter of blocks is known by, and what formats call its parameters."""

from collections.abc import Mapping
from typing import Any

from specdec_jax.formats._words import EMBEDDING, FUSION, HEAD
from specdec_jax.io import LAYER_NAMES, Folder, ParamPath

_TOP = {
    "embedding": EMBEDDING,
    "fusion.weight": FUSION,
    "fusion_norm.weight": "hidden_norm.weight",
    "norm.weight": "norm.weight",
    "head.weight": HEAD,
    "markov.before": "markov_head.markov_w1.weight",
    "markov.after.weight": "markov_head.markov_w2.weight",
    "markov.gate.weight": "markov_head.gate_proj.weight",
    "markov.gate.bias": "markov_head.gate_proj.bias",
    "markov.joint.weight": "markov_head.joint_proj.weight",
    "markov.joint.bias": "markov_head.joint_proj.bias",
    "confidence.projection.weight": "confidence_head.proj.weight",
    "confidence.projection.bias": "confidence_head.proj.bias",
}
MARKOV, CONFIDENCE, CONFIDENCE_BIAS = (
    _TOP[name]
    for name in (
        "markov.before",
        "confidence.projection.weight",
        "confidence.projection.bias",
    )
)
# Of speculators, whether read or refused.
_KINDS = ("dflash", "dspark", "dflash2", "domino", "xpress")
_CLASSES = ("DFlash", "DSpark", "Domino")
# Bodies that are built differently: words in the names of their tensors, and in what
# their configurations call them.
_OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "DFlash 2": (("candidate_selector.", "_conv."), ("DFlash2", "dflash2")),
    "Domino": (("prefix_gru.", "embed_proj."), ("Domino", "domino")),
    "xPress": ((), ("XPress", "xpress")),
    "a variant for Gemma 4": (
        ("layer_scalar", "feedforward_layernorm"),
        ("Gemma4", "gemma4"),
    ),
    "a part of DeepSeek V4": (("mtp.", "main_proj."), ("DeepseekV4", "deepseek_v4")),
    "a variant with fused projections": (
        ("qkv_proj.", ".g_proj.", "aux_hidden_norms."),
        (),
    ),
}


def is_block(folder: Folder) -> bool:
    """Whether a folder holds a drafter of blocks, of a kind that is read or not."""
    values = folder.config
    if (kind := values.get("speculators_model_type")) is not None:
        return kind in _KINDS
    return (
        "dflash_config" in values
        or "dspark_block_size" in values
        or "hidden_norm.weight" in folder.tensors
        or any(name in said for name in _CLASSES for said in _called(values))
    )


def refuse_others(folder: Folder) -> None:
    """Raise `ValueError` where the body is built differently from what is read."""
    said = _called(folder.config)
    for name, (tensors, words) in _OTHERS.items():
        found = [word for word in words if any(word in text for text in said)]
        found += [
            tensor
            for tensor in sorted(folder.tensors)
            if any(part in tensor for part in tensors)
        ]
        if "dspark_block_size" in folder.config and "V4" in name:
            found.append("dspark_block_size")
        if found:
            raise ValueError(
                f"{folder.path} holds {name}, which is not supported: see {found[0]}; "
                "understood are DFlash and DSpark"
            )


def block_tensor_name(path: ParamPath) -> str:
    """What all formats call a parameter."""
    match path:
        case ("layers", layer, *parts, kind):
            return f"layers.{layer}.{LAYER_NAMES['.'.join(map(str, parts))]}.{kind}"
    return _TOP[".".join(map(str, path))]


def _called(values: Mapping[str, Any]) -> list[str]:
    """What a configuration calls its drafter."""
    classes = values.get("architectures")
    inner = values.get("dflash_config")
    names = list(classes) if isinstance(classes, list) else []
    names += [values.get("speculators_model_type"), values.get("model_type")]
    if isinstance(inner, dict):
        names.append(inner.get("projector_type"))
    return [name for name in names if isinstance(name, str)]
