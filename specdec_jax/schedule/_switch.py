"""Speculation that loses is switched off, and tried again now and then."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class SwitchState(NamedTuple):
    """Of one batch. Sums are discounted, and of steps with a draft since the switch was
    last turned.
    """

    is_on: Bool[Array, ""]
    is_on_trial: Bool[Array, ""]  # switched on again, and not yet worth it
    steps: Int[Array, ""]  # since it was last turned
    emitted: Float[Array, ""]  # tokens
    owed: Float[Array, ""]  # tokens that plain decoding emits in as many seconds


@dataclasses.dataclass(frozen=True)
class Switch:
    """Compares what speculation has emitted with what plain decoding would have in the
    same time, by the cost table. It knows past steps alone, so no text depends on it.

    Args:
        min_gain: below a speed-up of 1 + `min_gain` drafting stops.
        hysteresis: to go on after a pause takes this much more.
        decay: what a step weighs in comparison with the next one.
        trial: steps with drafts before the switch is judged.
        pause: steps without.
    """

    min_gain: float = 0.02
    hysteresis: float = 0.03
    decay: float = 0.9
    trial: int = 8
    pause: int = 64

    def __post_init__(self):
        if self.trial < 1 or self.pause < 1:
            raise ValueError(
                f"trial and pause are steps, at least 1, not {self.trial} and "
                f"{self.pause}"
            )
        if not (0 < self.decay <= 1 and self.min_gain > -1 and self.hysteresis >= 0):
            raise ValueError(
                "decay must be in (0, 1], min_gain above -1 and hysteresis >= 0, not "
                f"{self.decay}, {self.min_gain} and {self.hysteresis}"
            )

    def init(self) -> SwitchState:
        """On."""
        return SwitchState(
            jnp.ones((), jnp.bool_),
            jnp.zeros((), jnp.bool_),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.float32),
            jnp.zeros((), jnp.float32),
        )

    def after(
        self,
        state: SwitchState,
        has_drafted: Bool[Array, ""],
        price: Float[Array, ""],
        length: Int[Array, " B"],
    ) -> SwitchState:
        """Judge anew after a step.

        Args:
            state: before it.
            has_drafted: whether it had a draft.
            price: seconds of that step over those of one of plain decoding.
            length: tokens that each row has emitted.
        """
        running = (length > 0).sum(dtype=jnp.float32)
        emitted = self.decay * state.emitted + length.sum(dtype=jnp.float32)
        owed = self.decay * state.owed + price * running
        emitted = jnp.where(has_drafted, emitted, state.emitted)
        owed = jnp.where(has_drafted, owed, state.owed)
        steps = state.steps + 1
        least = 1 + self.min_gain
        least = jnp.where(state.is_on_trial, least * (1 + self.hysteresis), least)
        is_judged = state.is_on & (steps >= self.trial)
        loses = is_judged & (emitted < least * owed)
        wakes = ~state.is_on & (steps >= self.pause)
        turns = loses | wakes
        return SwitchState(
            state.is_on ^ turns,
            (state.is_on_trial & ~is_judged) | wakes,
            jnp.where(turns, 0, steps),
            jnp.where(turns, 0.0, emitted),
            jnp.where(turns, 0.0, owed),
        )
