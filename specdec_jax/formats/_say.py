"""The config.json of a head, in the words of each format."""

from typing import Any

from specdec_jax._types import Target
from specdec_jax.drafters import Eagle, Eagle3
from specdec_jax.formats._taps import to_boundaries, usual_taps
from specdec_jax.formats._words import VERSION, Format, refuse_unsayable
from specdec_jax.nn import EagleConfig, rope_keys

_OF_BLOCKS = ("zlab", "deepspec")
_DEFAULT_STEPS = 3  # that others draft with a head, unless told otherwise


def config_for(
    drafter: Eagle | Eagle3,
    target: Target,
    format: Format,
    dtype: str,
    verifier: str | None,
) -> dict[str, Any]:
    """The config.json, for weights of that dtype.

    Raises:
        ValueError: the format has no words for this head.
    """
    refuse_unsayable(format, _unsayable(drafter, target, format, verifier))
    if isinstance(drafter, Eagle):
        return _eagle(drafter, target, dtype)
    if format == "speculators":
        return _speculators(drafter, target, dtype, verifier)
    return _eagle3(drafter, target, format, dtype)


def _unsayable(
    drafter: Eagle | Eagle3, target: Target, format: Format, verifier: str | None
) -> list[str]:
    config, num_layers = drafter.config, target.num_layers
    if isinstance(drafter, Eagle) != (format == "eagle") or format in _OF_BLOCKS:
        return [f"it is {type(drafter).__name__}"]
    is_nested = format == "speculators"
    missing = {
        "each row sees a window only": config.window is not None and not is_nested,
        "the target is called so": verifier is not None and not is_nested,
    }
    if isinstance(drafter, Eagle3):
        is_plain = format == "eagle3"
        taps = drafter.taps
        has_words = all(
            isinstance(tap, int) and (not is_nested or tap + 1 < num_layers)
            for tap in taps
        )
        missing |= {
            f"it taps {', '.join(map(str, taps))}": not has_words
            or (is_plain and taps != _usual(num_layers)),
            "the fusion has a bias": config.fusion_bias,
            "queries, keys and values have a bias": config.attention_bias and is_nested,
            "queries and keys are normed": config.query_key_norm and not is_nested,
            "states are recycled normed": config.recycle_normed and not is_nested,
            "taps are normed": (config.norm_before_fusion or config.norm_each_tap > 0)
            and is_plain,
            "the residual stream starts normed": config.norm_before_residual
            and is_plain,
            "taps are normed alone and together": config.norm_before_fusion
            and config.norm_each_tap > 0,
            f"it has {config.num_layers} layers": config.num_layers > 1
            and not is_nested,
        }
    return [said for said, is_so in missing.items() if is_so]


def _usual(num_layers: int) -> tuple[int, ...] | None:
    try:
        return usual_taps(num_layers)
    except ValueError:
        return None


def _layer(config: EagleConfig, target: Target) -> dict[str, Any]:
    """Of every format, in the words of a Llama."""
    return {
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "num_hidden_layers": config.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_length,
    }


def _old_rope(config: EagleConfig) -> dict[str, Any]:
    """Rotary positions as before transformers 5, which the authors' code reads."""
    table = rope_keys(config.rope)
    theta = table.pop("rope_theta")
    is_stretched = table["rope_type"] != "default"
    return {"rope_theta": theta, "rope_scaling": table if is_stretched else None}


def _eagle(drafter: Eagle, target: Target, dtype: str) -> dict[str, Any]:
    config = drafter.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_layer(config, target),
        **_old_rope(config),
        "bias": config.fusion_bias,
        "qkv_bias": config.attention_bias,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }


def _eagle3(
    drafter: Eagle3, target: Target, format: Format, dtype: str
) -> dict[str, Any]:
    config = drafter.config
    values = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_layer(config, target),
        **_old_rope(config),
        "draft_vocab_size": config.draft_vocab_size or target.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
    if config.attention_bias:
        values["attention_bias"] = True
    if config.width != target.width:
        values["target_hidden_size"] = target.width
    if format == "specforge":
        values["rope_parameters"] = rope_keys(config.rope)
        values["eagle_config"] = {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": list(drafter.taps),
        }
        values |= _switches(drafter)
    return values


def _switches(drafter: Eagle3) -> dict[str, Any]:
    config = drafter.config
    switches = {
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fusion,
        "fc_norm": config.norm_each_tap > 0,
    }
    return {name: True for name, is_on in switches.items() if is_on}


def _speculators(
    drafter: Eagle3, target: Target, dtype: str, verifier: str | None
) -> dict[str, Any]:
    config = drafter.config
    kind = "qwen3" if config.query_key_norm else "llama"
    layer = {"model_type": kind, **_layer(config, target)}
    layer |= {"rope_parameters": rope_keys(config.rope), "attention_bias": False}
    if config.window is not None:
        layer |= {
            "sliding_window": config.window,
            "layer_types": ["sliding_attention"] * config.num_layers,
        }
        if kind == "qwen3":
            layer["use_sliding_window"] = True
    # Missing switches are off; readers of every version know them then.
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": config.draft_vocab_size or target.vocab_size,
        "target_hidden_size": target.width,
        "eagle_aux_hidden_state_layer_ids": to_boundaries(
            tuple(tap for tap in drafter.taps if isinstance(tap, int))
        ),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fusion,
        "fc_norm": config.norm_each_tap > 0,
        "norm_output": config.recycle_normed,
        "embed_requires_grad": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": _DEFAULT_STEPS,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "tie_word_embeddings": False,
        "dtype": dtype,
    }
