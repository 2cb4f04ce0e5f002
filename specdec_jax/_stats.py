"""What a person asks of a generation: how much was proposed, and how much of it was
right.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_jax import _tree
from specdec_jax._types import Draft


class Stats(NamedTuple):
    """Counts per row. A step is one verification; the prompt is none."""

    steps: Int[Array, " B"]
    drafted: Int[Array, " B"]  # valid nodes proposed, roots not counted
    proposed: Int[Array, "B P"]  # steps with a valid node at this depth; slot 0: steps
    chances: Int[Array, "B P"]  # such steps that kept all up to the depth before
    # Histogram: steps that emitted this many tokens beside one. That is how many drafts
    # they kept, but for a step that a limit or a stop cuts behind a draft: one more.
    accepted: Int[Array, "B P"]
    # Histogram: steps that verified this many nodes and one more; under a schedule.
    widths: Int[Array, "B N"] | None = None

    def acceptance_length(self) -> float:
        """τ: tokens emitted per verification, the target's own included, pooled over
        rows.
        """
        steps = int(np.sum(self.steps))
        return 1 + float(np.sum(_kept(self))) / steps if steps else 0.0

    def acceptance_length_by_row(self) -> np.ndarray:
        """τ of each row; NaN for a row without a step."""
        steps = np.asarray(self.steps, np.float64)
        return np.divide(
            steps + _kept(self),
            steps,
            out=np.full(steps.shape, np.nan),
            where=steps > 0,
        )

    def acceptance_by_depth(self) -> np.ndarray:
        """Share of all steps that kept a token at depth 1, 2, …; τ is 1 + their sum."""
        return _reached(self)[1:] / max(int(np.sum(self.steps)), 1)

    def conditional_acceptance(self) -> np.ndarray:
        """Share of the steps that kept depth d - 1 and proposed depth d which kept
        depth d, for d = 1, 2, …; NaN where there is none.
        """
        reached = _reached(self)
        chances = np.asarray(self.chances).sum(0)[1:]
        return np.divide(
            reached[1:], chances, out=np.full(chances.shape, np.nan), where=chances > 0
        )

    def histogram(self) -> np.ndarray:
        """Steps that kept exactly 0, 1, 2, … drafted tokens."""
        return np.asarray(self.accepted).sum(0)


def init_stats(batch: int, size: int, *, num_nodes: int | None = None) -> Stats:
    """No step yet; with `num_nodes`, widths are counted too."""

    def zeros(*shape: int) -> Array:
        return jnp.zeros(shape, jnp.int32)

    by_depth = [zeros(batch, size) for _ in range(3)]
    widths = None if num_nodes is None else zeros(batch, num_nodes)
    return Stats(zeros(batch), zeros(batch), *by_depth, widths=widths)


def record(
    stats: Stats,
    draft: Draft,
    length: Int[Array, " B"],
    width: Int[Array, ""] | None = None,
) -> Stats:
    """Add a step that verified so many nodes and emitted `length` tokens per row; no
    step to a row without any.
    """
    depths = _tree.depths(draft.parents)
    counts = (length > 0).astype(jnp.int32)
    size = stats.accepted.shape[1]
    slots = jnp.arange(size, dtype=jnp.int32)[None, :]
    at_depth: Bool[Array, "B N P"] = (
        depths[:, :, None] == slots[:, None, :]
    ) & draft.valid[:, :, None]
    proposed = at_depth.any(1) & (counts > 0)[:, None]
    return Stats(
        stats.steps + counts,
        stats.drafted + counts * draft.valid[:, 1:].sum(-1, dtype=jnp.int32),
        stats.proposed + proposed.astype(jnp.int32),
        stats.chances + (proposed & (slots <= length[:, None])).astype(jnp.int32),
        stats.accepted
        + (slots == length[:, None] - 1).astype(jnp.int32) * counts[:, None],
        stats.widths
        if stats.widths is None or width is None
        else stats.widths.at[:, width - 1].add(counts),
    )


def _kept(stats: Stats) -> np.ndarray:
    accepted = np.asarray(stats.accepted)
    return accepted @ np.arange(accepted.shape[1])


def _reached(stats: Stats) -> np.ndarray:
    """Steps that kept at least this many drafted tokens."""
    return np.asarray(stats.accepted).sum(0)[::-1].cumsum()[::-1]
