"""The config.json of a drafter of blocks, in the words of each format."""

from typing import Any

from specdec_jax._types import Target
from specdec_jax.formats._block_load import embedding_scale
from specdec_jax.formats._taps import to_boundaries
from specdec_jax.formats._words import VERSION, Format, refuse_unsayable
from specdec_jax.nn import BlockDrafter, rope_keys

_ANCHORS = 512  # of DeepSpec's recipes, whose code asks for the key
_CLASSES = {
    ("zlab", False): "DFlashDraftModel",
    ("specforge", False): "DFlashDraftModel",
    ("specforge", True): "DSparkDraftModel",
    ("deepspec", False): "Qwen3DSparkModel",  # its DFlash, too
    ("deepspec", True): "Qwen3DSparkModel",
}

_NESTED = {"dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator"}


def block_config_for(
    drafter: BlockDrafter,
    target: Target,
    format: Format,
    dtype: str,
    verifier: str | None,
) -> dict[str, Any]:
    """The config.json, for weights of that dtype.

    Raises:
        ValueError: the format has no words for this drafter.
    """
    refuse_unsayable(format, _unsayable(drafter, target, format, verifier))
    if format == "speculators":
        return _speculators(drafter, target, dtype, verifier)
    config = drafter.config
    taps = {"mask_token_id": config.mask_id, "target_layer_ids": list(drafter.taps)}
    values: dict[str, Any] = {
        "architectures": [_CLASSES[format, _has_heads(drafter)]],
        "model_type": "qwen3",
        **_layer(drafter, target),
        **_rope(drafter),
        **_windows(drafter),
        "block_size": config.block_size,
        "num_target_layers": target.num_layers,
        "dtype": dtype,
    }
    if format == "deepspec":
        return values | taps | _heads(drafter) | {"num_anchors": _ANCHORS}
    if _has_heads(drafter):
        taps |= {"projector_type": "dspark"} | _heads(drafter)
    causal, sliding = _causal(drafter)
    if causal != sliding:  # which they are unless it is said
        values["is_causal"] = causal[0]
    scale = embedding_scale(target)
    if scale != 1.0:
        values["input_embedding_scale"] = scale
    return values | {"dflash_config": taps}


def _has_heads(drafter: BlockDrafter) -> bool:
    config = drafter.config
    return config.markov is not None or config.confidence != "none"


def _unsayable(
    drafter: BlockDrafter, target: Target, format: Format, verifier: str | None
) -> list[str]:
    config, is_nested = drafter.config, format == "speculators"
    has_heads = _has_heads(drafter)
    kind = type(drafter).__name__
    if not is_nested and (format, has_heads) not in _CLASSES:
        return [f"it is a {kind}"]
    usual = "anchor_first" if has_heads or format == "deepspec" else "anchor_discarded"
    windows = {window for window in config.windows if window is not None}
    causal, sliding = _causal(drafter)
    is_usual = causal == sliding or not any(causal)
    scale = embedding_scale(target)
    missing = {
        f"its slots are laid out {config.layout}": not is_nested
        and config.layout != usual,
        f"it taps {', '.join(map(str, drafter.taps))}": target.num_layers - 1
        in drafter.taps,
        "its Markov head remembers, and the anchor's slot says nothing": is_nested
        and config.markov is not None
        and config.markov.kind == "rnn"
        and config.layout != "anchor_first",
        "queries, keys and values have a bias": config.attention_bias,
        "queries and keys are not normed": not config.query_key_norm,
        "its layers have windows of several sizes": len(windows) > 1,
        "it has windows": format == "deepspec" and bool(windows),
        "windows are counted from the anchor": config.anchored_windows
        and not is_nested,
        "windows are counted from each slot": bool(windows)
        and is_nested
        and not config.anchored_windows,
        "these layers are causal": not (is_usual or (all(causal) and not is_nested))
        or (format == "deepspec" and any(causal)),
        "it has an embedding of its own": config.own_embedding
        and format in ("zlab", "specforge"),
        "it has an output layer of its own": config.own_head
        and format in ("zlab", "specforge"),
        "it knows some tokens only": config.draft_vocab_size is not None
        and not is_nested,
        f"its states are {config.width} wide, the target's {target.width}": config.width
        != target.width
        and not is_nested,
        f"the target reads its embedding times {scale}": scale != 1.0
        and not config.own_embedding
        and format in ("deepspec", "speculators"),
        "the target is called so": verifier is not None and not is_nested,
    }
    return [said for said, is_so in missing.items() if is_so]


def _causal(drafter: BlockDrafter) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which layers are causal, and which have a window."""
    config = drafter.config
    windows = config.windows or (None,) * config.num_layers
    return (
        config.causal or (False,) * config.num_layers,
        tuple(window is not None for window in windows),
    )


def _layer(drafter: BlockDrafter, target: Target) -> dict[str, Any]:
    """Of every format, in the words of a Qwen3."""
    config = drafter.config
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
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }


def _rope(drafter: BlockDrafter) -> dict[str, Any]:
    """As before transformers 5, which the published ones have."""
    table = rope_keys(drafter.config.rope)
    theta = table.pop("rope_theta")
    is_stretched = table["rope_type"] != "default"
    return {"rope_theta": theta, "rope_scaling": table if is_stretched else None}


def _windows(drafter: BlockDrafter) -> dict[str, Any]:
    config = drafter.config
    windows = config.windows or (None,) * config.num_layers
    has = [window for window in windows if window is not None]
    return {
        "layer_types": [
            "full_attention" if window is None else "sliding_attention"
            for window in windows
        ],
        "sliding_window": has[0] if has else None,
        "use_sliding_window": bool(has),
        "max_window_layers": config.num_layers,
    }


def _heads(drafter: BlockDrafter) -> dict[str, Any]:
    config = drafter.config
    markov = config.markov
    said: dict[str, Any] = {"markov_rank": 0 if markov is None else markov.rank}
    if markov is not None:
        said["markov_head_type"] = markov.kind
    said["enable_confidence_head"] = config.confidence != "none"
    said["confidence_head_with_markov"] = config.confidence == "state and markov"
    return said


def _speculators(
    drafter: BlockDrafter, target: Target, dtype: str, verifier: str | None
) -> dict[str, Any]:
    config = drafter.config
    name = "dspark" if _has_heads(drafter) else "dflash"
    layer = {"model_type": "qwen3", **_layer(drafter, target), **_windows(drafter)}
    layer |= {"rope_parameters": rope_keys(config.rope)}
    values = {
        "architectures": [
            "DSparkSpeculator" if name == "dspark" else "DFlashSpeculator"
        ],
        "speculators_model_type": name,
        "speculators_version": VERSION,
        "draft_vocab_size": config.draft_vocab_size or target.vocab_size,
        "target_hidden_size": target.width,
        "block_size": config.block_size,
        "mask_token_id": config.mask_id,
        "aux_hidden_state_layer_ids": to_boundaries(
            tuple(tap for tap in drafter.taps if isinstance(tap, int))
        ),
        "sample_from_anchor": config.layout == "anchor_first",
        "sliding_window_non_causal": any(config.windows) and not any(config.causal),
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": name,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.num_drafts,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "tie_word_embeddings": False,
        "dtype": dtype,
    }
    return values | (_heads(drafter) if name == "dspark" else {})
