"""Nodes in order of survival until one costs more than it brings (DSpark, Cheng et al.
2026, arXiv 2607.05147, Algorithm 1).
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax._schedule_types import Choice
from specdec_jax._types import Draft
from specdec_jax.schedule._base import Costed, CostedState, within


@dataclasses.dataclass(frozen=True)
class EarlyStop(Costed):
    """Take the nodes of all rows together, the likeliest first (at equal survival the
    lower node, then the lower row), and stop before the first that does not raise the
    tokens a second.

    It stops at the first and does not look for the best of all: a node's confidence
    reads the tokens above it, and to decide on them by it would bias the text under
    "rejection". So it is exact under every rule, but does not see beyond a step of the
    cost. A number of tokens between two widths is priced between them; then the width
    is rounded up to the next, and every row is read at the width of the widest. So for
    many rows whose confidences differ `LaggedBudget` keeps closer to what it pays for.

    Args:
        fill: verify whatever is read anyhow, which costs nothing; otherwise each row
            has its own length within the width. Neither looks at a node's own token.
    """

    fill: bool = True

    def choose(
        self, state: CostedState, draft: Draft, is_running: Bool[Array, " B"]
    ) -> Choice:
        """One sort, one sum, the first that is not more."""
        found = self.survival(draft, is_running)
        batch, num_nodes = draft.tokens.shape
        running = is_running.sum(dtype=jnp.float32)
        count, rank = first_drop(
            found[:, 1:],
            running,
            jnp.asarray(self.widths, jnp.float32),
            self.seconds(batch),
        )
        taken = jnp.zeros((batch, num_nodes), jnp.bool_).at[:, 0].set(True)
        taken = taken.at[:, 1 : found.shape[1]].set(rank < count)
        nodes = jnp.arange(1, num_nodes + 1, dtype=jnp.int32)[None, :]
        needed = jnp.where(taken, nodes, 0).max()
        widths = jnp.asarray(self.widths, jnp.int32)
        index = jnp.searchsorted(widths, needed).astype(jnp.int32)
        valid = within(draft, widths[index]) if self.fill else taken
        return Choice(index, valid, state)


def first_drop(
    survival: Float[Array, "B M"],
    running: Float[Array, ""],
    widths: Float[Array, " W"],
    seconds: Float[Array, " W"],
) -> tuple[Int[Array, ""], Int[Array, "B M"]]:
    """How many nodes to take, and the place of each in the order."""
    batch, size = survival.shape
    flat = survival.T.reshape(-1)  # so that ties go by node, then by row
    order = jnp.argsort(-flat, stable=True).astype(jnp.int32)
    total = jnp.cumsum(flat[order])
    tokens = running + jnp.concatenate([jnp.zeros(1, jnp.float32), total])
    count = jnp.arange(tokens.shape[0], dtype=jnp.float32)
    each = 1 + count / jnp.maximum(running, 1.0)  # tokens read of a row, on average
    rate = tokens / jnp.interp(each, widths, seconds)
    rises = rate[1:] > rate[:-1]
    place = jnp.arange(order.shape[0], dtype=jnp.int32)
    rank = jnp.zeros_like(order).at[order].set(place).reshape(size, batch).T
    return jnp.cumprod(rises.astype(jnp.int32)).sum(dtype=jnp.int32), rank
