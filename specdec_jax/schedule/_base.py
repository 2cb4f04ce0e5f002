"""What all schedules that weigh tokens against seconds have in common."""

import abc
import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from specdec_jax._schedule_types import Choice
from specdec_jax._types import Draft
from specdec_jax.schedule._calibration import Calibration
from specdec_jax.schedule._cost import CostTable
from specdec_jax.schedule._survival import survival
from specdec_jax.schedule._switch import Switch, SwitchState


class CostedState(NamedTuple):
    """Of one batch."""

    switch: SwitchState
    own: PyTree  # what the rule itself remembers


@dataclasses.dataclass(frozen=True)
class Costed(abc.ABC):
    """A rule that has the price of each width.

    Args:
        cost: of a step.
        widths: that the program is compiled for, ascending from 1; each is one more
            forward to compile. The table's own by default.
        calibration: of the drafter's confidence; as it says by default.
        switch: when to stop drafting.
    """

    cost: CostTable
    widths: tuple[int, ...] = ()
    calibration: Calibration | None = None
    switch: Switch = Switch()
    anticipates: bool = dataclasses.field(default=False, init=False)
    needs_confidence: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self):
        object.__setattr__(self, "widths", tuple(self.widths) or self.cost.widths)
        self.cost.seconds(self.cost.batches[0], self.widths)

    def init(self, batch: int) -> CostedState:
        """On, and nothing known."""
        self.cost.plain(batch)
        return CostedState(self.switch.init(), self.forget(batch))

    def before(self, state: CostedState) -> Bool[Array, ""]:
        """As the switch says."""
        return state.switch.is_on

    @abc.abstractmethod
    def choose(
        self, state: CostedState, draft: Draft, is_running: Bool[Array, " B"]
    ) -> Choice:
        """The rule."""

    def after(
        self,
        state: CostedState,
        has_drafted: Bool[Array, ""],
        index: Int[Array, ""],
        length: Int[Array, " B"],
    ) -> CostedState:
        """Tell the switch; what is known of drafts is forgotten in a pause."""
        batch = length.shape[0]
        price = self.seconds(batch)[index] / self.cost.plain(batch)
        switch = self.switch.after(state.switch, has_drafted, price, length)
        return CostedState(switch, self.kept(state.own, has_drafted, batch))

    def forget(self, batch: int) -> PyTree:
        """What the rule remembers at first: nothing."""
        return ()

    def kept(self, own: PyTree, has_drafted: Bool[Array, ""], batch: int) -> PyTree:
        """What of it is still good after a step."""
        return own

    def seconds(self, batch: int) -> Float[Array, " W"]:
        """Of a step with a draft, at each width."""
        return jnp.asarray(self.cost.seconds(batch, self.widths), jnp.float32)

    def survival(
        self, draft: Draft, is_running: Bool[Array, " B"]
    ) -> Float[Array, "B N"]:
        """Calibrated, of the nodes that can be verified; 0 in rows that have ended."""
        temperatures = () if self.calibration is None else self.calibration.temperatures
        found = survival(draft, temperatures)[:, : self.widths[-1]]
        return jnp.where(is_running[:, None], found, 0.0)


def within(draft: Draft, width: Int[Array, ""]) -> Bool[Array, "B N"]:
    """The first `width` nodes of each row."""
    nodes = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
    return jnp.broadcast_to(nodes[None, :] < width, draft.tokens.shape)
