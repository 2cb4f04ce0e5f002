"""What the configurations of published drafters have in common: sizes of a layer, and
rotary positions.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specdec_jax.formats._words import first_layer_in
from specdec_jax.io import Folder, Keys
from specdec_jax.nn import RoPE, rope_of

# What transformers leaves out of a nested configuration, where it is as usual.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 32000, "intermediate_size": 11008},
    "qwen3": {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
    },
}
USUAL = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
}
NOT_MATHS = (
    "max_position_embeddings",  # only sized a table of sines
    "tie_word_embeddings",  # the output layer is another one, or the target's
)


def sizes_of(
    folder: Folder,
    keys: Keys,
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    dtype: DTypeLike,
) -> dict[str, Any]:
    """What every drafter's configuration has, in the words of `EagleConfig`."""

    def count(name: str, default: int | None = None) -> int:
        return keys.count(name, default=defaults.get(name, default))

    width, heads = count("hidden_size"), count("num_attention_heads")
    kv_heads = count("num_key_value_heads", heads)
    # Configurations leave it out where it is not the usual one, too.
    query = folder.tensors.get(f"{first_layer_in(folder)}.self_attn.q_proj.weight")
    usual = width // heads if query is None else query.shape[0] // heads
    head_width = count("head_dim", max(1, usual))
    if heads % kv_heads:
        keys.wrong.append(
            f"num_key_value_heads of {kv_heads} do not divide num_attention_heads of "
            f"{heads}"
        )
    if head_width % 2:
        keys.wrong.append(f"head_dim is {head_width}, which has no halves to rotate")
    keys.only("hidden_act", "silu")
    keys.only("partial_rotary_factor", 1.0)
    for name in NOT_MATHS:
        keys.take(name)
    epsilon = defaults.get("rms_norm_eps", 1e-6)
    return {
        "width": width,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_width": head_width,
        "mlp_width": count("intermediate_size"),
        "num_layers": count("num_hidden_layers", 1),
        "norm_epsilon": keys.number("rms_norm_eps", default=epsilon),
        "rope": _rope(keys, values, head_width),
        "dtype": jnp.dtype(dtype).name,
    }


def _rope(keys: Keys, values: Mapping[str, Any], head_width: int) -> RoPE:
    """The head's own rotary positions, never its target's; newer files say them twice,
    and must say the same.
    """
    new, old = (
        table if isinstance(table := values.get(name), dict) else None
        for name in ("rope_parameters", "rope_scaling")
    )
    bases = [values.get("rope_theta")]
    bases += [table.get("rope_theta") for table in (new, old) if table is not None]
    bases = [base for base in bases if base is not None]
    if not bases:
        warnings.warn(
            "the head's configuration has no rope_theta, so it is 10000, as in its "
            "authors' code, whatever the target's is",
            stacklevel=6,
        )
    if len(set(map(str, bases))) > 1:
        keys.wrong.append(f"rope_theta is said to be {' and '.join(map(str, bases))}")
    if new is not None and old is not None and _rule(new) != _rule(old):
        keys.wrong.append("rope_parameters and rope_scaling say different things")
    return rope_of(keys, head_width)


def _rule(table: dict[str, Any]) -> dict[str, Any]:
    """A table of rotary positions without its base, in the newer spelling."""
    rest = {k: v for k, v in table.items() if k not in ("rope_theta", "type")}
    return {"rope_type": table.get("type", "default")} | rest


def target_width(keys: Keys) -> int | None:
    """Of the target's states, where it is said."""
    width = keys.take("target_hidden_size")
    return (
        None
        if width is None
        else Keys({"target_hidden_size": width}, keys.wrong).count("target_hidden_size")
    )


def layers_of(keys: Keys, name: str) -> list[int] | None:
    """A list of layers, if there is one."""
    layers = keys.take(name)
    is_list = isinstance(layers, list) and all(
        isinstance(layer, int) and not isinstance(layer, bool) for layer in layers
    )
    if layers is None or is_list:
        return layers
    keys.wrong.append(f"{name} is {layers!r}, not a list of layers")
    return None
