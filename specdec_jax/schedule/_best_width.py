"""The width of most tokens a second, by what this draft says of itself."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool

from specdec_jax._schedule_types import Choice
from specdec_jax._types import Draft
from specdec_jax.schedule._base import Costed, CostedState, within
from specdec_jax.schedule._survival import tokens_by_width


@dataclasses.dataclass(frozen=True)
class BestWidth(Costed):
    """Of all widths the best, by the confidences of the draft at hand.

    The best there is under "match". Under the other rules it would bias the text, since
    a confidence deep in the draft gives away the tokens above it; there it is refused.
    """

    anticipates: bool = dataclasses.field(default=True, init=False)

    def choose(
        self, state: CostedState, draft: Draft, is_running: Bool[Array, " B"]
    ) -> Choice:
        """Arg-max, at equal rates the narrowest."""
        found = self.survival(draft, is_running)
        tokens = tokens_by_width(found, is_running, self.widths)
        rate = tokens / self.seconds(draft.tokens.shape[0])
        index = rate.argmax().astype(jnp.int32)
        width = jnp.asarray(self.widths, jnp.int32)[index]
        return Choice(index, within(draft, width), state)
