"""Which formats there are, and what they call the parameters of a drafter."""

from typing import Literal, get_args

from specdec_jax.io import LAYER_NAMES, Folder, ParamPath

Format = Literal["eagle", "eagle3", "specforge", "speculators", "zlab", "deepspec"]
FORMATS: tuple[Format, ...] = get_args(Format)
VERSION = "0.9.0"  # of speculators, whose keys these are
TOKENIZER = "target_tokenizer"  # our own word: its digest

_TOP = {
    "embedding": "embed_tokens.weight",
    "fusion.weight": "fc.weight",
    "fusion.bias": "fc.bias",
    "fusion_norm.weight": "input_norm.weight",
    "norm.weight": "norm.weight",
    "head.weight": "lm_head.weight",
}
_LAYER = LAYER_NAMES | {"token_norm": "input_layernorm"}
EMBEDDING, FUSION, HEAD = (
    _TOP[x] for x in ("embedding", "fusion.weight", "head.weight")
)
# Not parameters: the ids of the tokens that a head knows, less their places; and
# whether a head knows each of the target's tokens.
OFFSETS, KNOWN = "d2t", "t2d"
_MIDLAYER = "midlayer"


def tensor_name(path: ParamPath, first_layer: str) -> str:
    """What a parameter of a head is called, its first layer being called so."""
    match path:
        case ("tap_norms", tap, kind):
            return f"fc_norm.{tap}.{kind}"
        case ("layers", layer, *parts, kind):
            name = ".".join(map(str, parts))
            where = first_layer if layer == 0 else f"layers.{layer}"
            if name == "state_norm":
                said = "hidden_norm" if layer == 0 else "input_layernorm"
            else:
                said = _LAYER[name]
            return f"{where}.{said}.{kind}"
    return _TOP[".".join(map(str, path))]


def first_layer(format: Format) -> str:
    """What a format calls the first layer."""
    return _MIDLAYER if format in ("eagle3", "specforge") else "layers.0"


def first_layer_in(folder: Folder) -> str:
    """What a folder calls the first layer."""
    has_midlayer = any(name.startswith(f"{_MIDLAYER}.") for name in folder.tensors)
    return _MIDLAYER if has_midlayer else "layers.0"


def refuse_unsayable(format: Format, missing: list[str]) -> None:
    """Raise `ValueError` where a format has no words for something."""
    if missing:
        raise ValueError(
            f"the format {format!r} cannot say that " + ", nor that ".join(missing)
        )
