"""A program's schedule within a step: whether to draft, and how much of it to read."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from specdec_jax import _tree
from specdec_jax._run import Program, Run
from specdec_jax._types import Draft, Params, Sampler


class Planned(NamedTuple):
    """A draft and how much of it is verified: nodes beyond are not valid."""

    draft: Draft
    drafter: PyTree  # the drafter's state after it
    widths: tuple[int, ...]  # that the program is compiled for
    chosen: Int[Array, ""] | None  # into them; None where there is one only
    has_drafted: Bool[Array, ""] | None
    schedule: PyTree

    @property
    def width(self) -> Int[Array, ""] | None:
        """Nodes that are read of each row; None where that is no choice."""
        if self.chosen is None:
            return None
        return jnp.asarray(self.widths, jnp.int32)[self.chosen]


def plan(
    program: Program, params: Params, run: Run, root: Int[Array, " B"], sampler: Sampler
) -> Planned:
    """Draft, if the schedule wants to, and choose a width: 1 where no running row has a
    draft.
    """
    drafter, schedule, state = program.drafter, program.schedule, run.state.drafter
    is_running = run.reason == 0

    def propose() -> tuple[Draft, PyTree]:
        return drafter.draft(program.target, params, state, root, sampler)

    if schedule is None:
        draft, state = propose()
        widths, index = (drafter.num_nodes,), None
        if drafter.can_pass:
            widths = (1, drafter.num_nodes)
            index = _has_draft(draft, is_running).astype(jnp.int32)
        return Planned(draft, state, widths, index, None, None)

    def drafted() -> tuple[Draft, PyTree, Int[Array, ""], PyTree]:
        draft, after = propose()
        choice = schedule.choose(run.schedule, draft, is_running)
        draft = draft._replace(valid=draft.valid & choice.valid)
        return draft, after, choice.chosen, choice.state

    def passed() -> tuple[Draft, PyTree, Int[Array, ""], PyTree]:
        like = jax.eval_shape(drafted)[0]
        draft = _tree.root_alone(like, root)
        return draft, state, jnp.zeros((), jnp.int32), run.schedule

    has_drafted = schedule.before(run.schedule)
    draft, state, index, own = jax.lax.cond(has_drafted, drafted, passed)
    nodes = jnp.arange(drafter.num_nodes, dtype=jnp.int32)[None, :]
    width = jnp.asarray(schedule.widths, jnp.int32)[index]
    draft = draft._replace(valid=draft.valid & (nodes < width))
    index = jnp.where(_has_draft(draft, is_running), index, 0)
    return Planned(draft, state, schedule.widths, index, has_drafted, own)


def learn(program: Program, planned: Planned, length: Int[Array, " B"]) -> PyTree:
    """The schedule's state after a step that emitted so many tokens per row."""
    if (
        program.schedule is None
        or planned.chosen is None
        or planned.has_drafted is None
    ):
        return None
    return program.schedule.after(
        planned.schedule, planned.has_drafted, planned.chosen, length
    )


def _has_draft(draft: Draft, is_running: Bool[Array, " B"]) -> Bool[Array, ""]:
    return (draft.valid[:, 1:] & is_running[:, None]).any()
