"""The same width in every step."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_jax._schedule_types import Choice
from specdec_jax._types import Draft
from specdec_jax.schedule._base import within
from specdec_jax.schedule._cost import CostTable
from specdec_jax.schedule._switch import Switch


@dataclasses.dataclass(frozen=True)
class FixedWidth:
    """Verify the first `width` nodes, whatever the drafter thinks of them.

    Args:
        width: nodes, the root included; 1 is plain decoding.
        cost: where given, drafting stops when it loses.
        switch: when that is.
    """

    width: int
    cost: CostTable | None = None
    switch: Switch = Switch()
    anticipates: bool = dataclasses.field(default=False, init=False)
    needs_confidence: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"a width is at least 1, the root, not {self.width}")
        if self.cost is not None:
            self.cost.seconds(self.cost.batches[0], self.widths)

    @property
    def widths(self) -> tuple[int, ...]:
        """The root alone, for steps without a draft, and the width."""
        return (1, self.width) if self.width > 1 else (1,)

    def init(self, batch: int) -> Any:
        """On."""
        if self.cost is None:
            return ()
        self.cost.plain(batch)
        return self.switch.init()

    def before(self, state: Any) -> Bool[Array, ""]:
        """As the switch says; never at width 1."""
        if self.cost is None or self.width == 1:
            return jnp.asarray(self.width > 1)
        return state.is_on

    def choose(self, state: Any, draft: Draft, is_running: Bool[Array, " B"]) -> Choice:
        """The width."""
        last = jnp.full((), len(self.widths) - 1, jnp.int32)
        return Choice(last, within(draft, jnp.int32(self.width)), state)

    def after(
        self,
        state: Any,
        has_drafted: Bool[Array, ""],
        index: Int[Array, ""],
        length: Int[Array, " B"],
    ) -> Any:
        """Tell the switch."""
        if self.cost is None:
            return state
        batch = length.shape[0]
        seconds = jnp.asarray(self.cost.seconds(batch, self.widths), jnp.float32)
        price = seconds[index] / self.cost.plain(batch)
        return self.switch.after(state, has_drafted, price, length)
