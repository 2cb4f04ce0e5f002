"""Heads as published ones are, of the target's own sizes."""

from typing import Any

from specdec_jax._best_first import MarginalTree
from specdec_jax._grow import GrownTree
from specdec_jax.drafters import DFlash, DSpark, Eagle, Eagle3
from specdec_jax.nn import Eagle3Config, EagleConfig, InjectedConfig, MarkovConfig
from specdec_jax.targets import ModuleTarget

HEAD_TOKENS = (
    32000  # tokens of an EAGLE-3 head, of a larger vocabulary the most frequent
)


def eagle(target: ModuleTarget, tree: GrownTree) -> Eagle:
    """EAGLE-2: a head read by the target's own output layer, with a grown tree."""
    return Eagle(EagleConfig(**_sizes(target)), tree)


def eagle3(target: ModuleTarget, tree: GrownTree) -> Eagle3:
    """EAGLE-3 over three taps, early, in the middle and late.

    Raises:
        ValueError: the target has too few layers for these.
    """
    layers = target.num_layers
    taps = (1, layers // 2 - 1, layers - 4)
    if not taps[0] < taps[1] < taps[2]:
        raise ValueError(
            f"EAGLE-3 taps layers 1, N / 2 - 1 and N - 4 of N, which must be three: a "
            f"model of {layers} layers is too shallow"
        )
    config = Eagle3Config(
        **_sizes(target),
        feature_width=len(taps) * target.width,
        draft_vocab_size=HEAD_TOKENS if target.vocab_size > HEAD_TOKENS else None,
    )
    return Eagle3(config, tree, taps=taps)


def dflash(target: ModuleTarget, tree: MarginalTree | None) -> DFlash:
    """DFlash: five layers over five taps, blocks of 16.

    Raises:
        ValueError: the target has too few layers for these.
    """
    taps = _even_taps(target.num_layers)
    config = InjectedConfig(**_block_sizes(target, taps), block_size=16)
    return DFlash(config, taps, tree=tree)


def dspark(target: ModuleTarget) -> DSpark:
    """DSpark: the same body with blocks of 7, a Markov head of rank 256, and one for
    confidence.

    Raises:
        ValueError: the target has too few layers for these.
    """
    taps = _even_taps(target.num_layers)
    config = InjectedConfig(
        **_block_sizes(target, taps),
        block_size=7,
        layout="anchor_first",
        markov=MarkovConfig(rank=256),
        confidence="state and markov",
    )
    return DSpark(config, taps)


def _even_taps(layers: int, count: int = 5) -> tuple[int, ...]:
    """From the second layer to the third from the end, as DFlash's authors place them
    (to the even of two neighbours, like Python's `round`).
    """
    taps = tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))
    if len(set(taps)) < count:
        raise ValueError(
            f"a block drafter taps {count} layers: a model of {layers} is too shallow"
        )
    return taps


def _block_sizes(target: ModuleTarget, taps: tuple[int, ...]) -> dict[str, Any]:
    sizes = _sizes(target)
    del sizes["fusion_bias"]
    return sizes | {
        "num_layers": 5,
        "feature_width": len(taps) * target.width,
        "mask_id": target.vocab_size - 1,
        "query_key_norm": True,
    }


def _sizes(target: ModuleTarget) -> dict[str, Any]:
    config = target.config
    return {
        "width": config.width,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_width": config.head_width,
        "mlp_width": config.mlp_width,
        "rope": config.rope,
        "norm_epsilon": config.norm_epsilon,
        "fusion_bias": False,
        "attention_bias": config.attention_bias,
        "dtype": config.dtype,
    }
