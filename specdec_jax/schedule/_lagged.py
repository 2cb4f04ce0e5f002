"""A budget from drafts of earlier steps (DSpark, Cheng et al. 2026, arXiv 2607.05147,
§5.2).
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax._schedule_types import Choice
from specdec_jax._types import Draft
from specdec_jax.schedule._base import Costed, CostedState, within
from specdec_jax.schedule._survival import tokens_by_width


class Lagged(NamedTuple):
    """The survival of earlier drafts, the oldest first, and the width in use."""

    past: tuple[Float[Array, "B N"], ...]
    chosen: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class LaggedBudget(Costed):
    """Of all widths the best, by the survival that drafts of `lag` steps ago had. A row
    of which nothing is known yet counts as accepting everything.

    The budget is the best of all, so it crosses steps of the cost that `EarlyStop`
    stays before, and it is fixed before anything of this step is drawn. That makes it
    exact under every rule, *if* a step's draft has noise of its own: were the noise
    that of a token's position, an earlier draft of the same position would give away
    this one. Ours is keyed by the root's position at the start of the step
    (`_sampling.step_noise`), which every step moves on, so no step ever draws with the
    noise of another.

    In one program every row is read at the width of the widest, so a budget of nodes is
    a width, and the best use of it is all nodes of all rows within.

    Args:
        lag: in steps. The published scheduler needs 2, because its host runs ahead;
            here 1 is enough.
        hysteresis: another width is chosen if it is better than the present one by
            more than this.
    """

    lag: int = 1
    hysteresis: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        if self.lag < 1 or self.hysteresis < 0:
            raise ValueError(
                f"lag is a number of steps, at least 1, and hysteresis at least 0, not "
                f"{self.lag} and {self.hysteresis}"
            )

    def forget(self, batch: int) -> Lagged:
        """Nothing is known, and everything is verified."""
        shape = (batch, self.widths[-1])
        past = tuple(jnp.ones(shape, jnp.float32) for _ in range(self.lag))
        return Lagged(past, jnp.full((), len(self.widths) - 1, jnp.int32))

    def kept(self, own: Lagged, has_drafted: Bool[Array, ""], batch: int) -> Lagged:
        """Drafts from before a pause say nothing any more."""
        anew = self.forget(batch)
        return Lagged(
            tuple(
                jnp.where(has_drafted, old, new)
                for old, new in zip(own.past, anew.past, strict=True)
            ),
            jnp.where(has_drafted, own.chosen, anew.chosen),
        )

    def choose(
        self, state: CostedState, draft: Draft, is_running: Bool[Array, " B"]
    ) -> Choice:
        """Arg-max over the past; then remember the present."""
        own: Lagged = state.own
        tokens = tokens_by_width(own.past[0], is_running, self.widths)
        rate = tokens / self.seconds(draft.tokens.shape[0])
        best = rate.argmax().astype(jnp.int32)
        is_better = rate[best] > (1 + self.hysteresis) * rate[own.chosen]
        index = jnp.where(is_better, best, own.chosen)
        width = jnp.asarray(self.widths, jnp.int32)[index]
        own = Lagged((*own.past[1:], self.survival(draft, is_running)), index)
        return Choice(index, within(draft, width), CostedState(state.switch, own))
