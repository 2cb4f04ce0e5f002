"""Speculation that loses is switched off, and tried again now and then."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class SwitchState(NamedTuple):
    """Of one batch."""

    is_on: Bool[Array, ""]
    is_on_trial: Bool[Array, ""]  # switched on again, and not yet worth it
    steps: Int[Array, ""]  # since it was last turned
    balance: Float[Array, ""]  # tokens of a row that may still be lost


_MOST = 3.0  # credits that a balance can grow to: what was gained long ago is forgotten


@dataclasses.dataclass(frozen=True)
class Switch:
    """A balance, in tokens of a row: each step with a draft adds what it has emitted
    and takes what plain decoding emits in the same time, by the cost table. Below zero
    drafting stops. It knows past steps alone, so no text depends on it.

    Args:
        min_gain: the speed-up that speculation is held to is 1 + `min_gain`.
        hysteresis: after a pause it is so much more, until it has proven worth it.
        credit: the balance that drafting begins with, and again after each pause: the
            tokens that finding out may cost. Three times as much is the most.
        pause: steps without drafts, once it has lost.
    """

    min_gain: float = 0.02
    hysteresis: float = 0.03
    credit: float = 1.25
    pause: int = 64

    def __post_init__(self):
        if self.pause < 1:
            raise ValueError(f"pause is steps, at least 1, not {self.pause}")
        if not (self.credit > 0 and self.min_gain > -1 and self.hysteresis >= 0):
            raise ValueError(
                "credit must be above 0, min_gain above -1 and hysteresis >= 0, not "
                f"{self.credit}, {self.min_gain} and {self.hysteresis}"
            )

    def init(self) -> SwitchState:
        """On."""
        return SwitchState(
            jnp.ones((), jnp.bool_),
            jnp.zeros((), jnp.bool_),
            jnp.zeros((), jnp.int32),
            jnp.full((), self.credit, jnp.float32),
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
        running = jnp.maximum((length > 0).sum(dtype=jnp.float32), 1.0)
        emitted = length.sum(dtype=jnp.float32) / running
        least = 1 + self.min_gain
        least = jnp.where(state.is_on_trial, least * (1 + self.hysteresis), least)
        most = _MOST * self.credit
        balance = jnp.minimum(state.balance + emitted - least * price, most)
        balance = jnp.where(has_drafted, balance, state.balance)
        steps = state.steps + 1
        loses = state.is_on & (balance < 0)
        wakes = ~state.is_on & (steps >= self.pause)
        turns = loses | wakes
        return SwitchState(
            state.is_on ^ turns,
            (state.is_on_trial & ~loses & (balance < most)) | wakes,
            jnp.where(turns, 0, steps),
            jnp.where(turns, jnp.float32(self.credit), balance),
        )
