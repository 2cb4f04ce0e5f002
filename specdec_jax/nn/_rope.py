"""Rotary positions in the words of Hugging Face's configurations: read and said."""

import math
from typing import Any

import numpy as np

from specdec_jax.io import Keys
from specdec_jax.nn._layers import Llama3Stretch, RoPE

_TABLES = ("rope_parameters", "rope_scaling")


def rope_of(
    keys: Keys,
    head_width: int,
    *,
    theta: float = 10000.0,
    wrong: list[str] | None = None,
) -> RoPE:
    """Rotary positions, stretched as `rope_scaling` or `rope_parameters` says; what is
    wrong with them goes to `wrong`.
    """
    wrong = keys.wrong if wrong is None else wrong
    theta = keys.number("rope_theta", default=theta)
    scaling = Keys(keys.table(*_TABLES) or {})
    base = scaling.number("rope_theta", default=theta)
    kind = scaling.take("rope_type", "type", default="default")
    half = head_width // 2
    divisors: tuple[float, ...] = ()
    stretch = None
    match kind:
        case "default":
            pass
        case "linear":
            divisors = (scaling.number("factor"),) * half
        case "llama3":
            stretch = Llama3Stretch(
                scaling.number("factor"),
                scaling.number("low_freq_factor"),
                scaling.number("high_freq_factor"),
                scaling.count("original_max_position_embeddings"),
            )
            if stretch.low_freq_factor < stretch.high_freq_factor:
                divisors = llama3_divisors(base, half, stretch)
            elif not scaling.wrong:
                scaling.wrong.append("high_freq_factor is not above low_freq_factor")
        case _:
            wrong.append(f"a rope_type of {kind!r} is not understood")
            return RoPE(base)
    scaling.only("partial_rotary_factor", 1.0)
    wrong += [f"rope: {text}" for text in scaling.left()]
    return RoPE(base, divisors, stretch)


def rope_keys(rope: RoPE) -> dict[str, Any]:
    """The table `rope_parameters`, from which `rope_of` makes the same.

    Raises:
        ValueError: its divisors follow no rule that such a table can say.
    """
    if rope.stretch is not None:
        return {
            "rope_type": "llama3",
            "rope_theta": rope.base,
        } | rope.stretch._asdict()
    if not rope.divisors:
        return {"rope_type": "default", "rope_theta": rope.base}
    if len(set(rope.divisors)) > 1:
        raise ValueError(
            "these rotary positions are stretched by a rule that is not known, only "
            "its result: no config.json can say it"
        )
    return {"rope_type": "linear", "rope_theta": rope.base, "factor": rope.divisors[0]}


def llama3_divisors(
    base: float, half: int, stretch: Llama3Stretch
) -> tuple[float, ...]:
    """What Llama 3.1 divides each frequency by: waves much shorter than the original
    length stay, much longer ones stretch by `factor`, those between by a blend.
    """
    factor, low, high, length = stretch
    frequency = base ** (-np.arange(half) / half)
    turns = length * frequency / (2 * math.pi)  # of each wave within the length
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple((1 / ((1 - blend) / factor + blend)).tolist())
