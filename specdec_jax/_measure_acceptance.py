"""How often a drafter's guesses of each rank and depth are right."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from specdec_jax import _run
from specdec_jax._door import Call, Prompts, prepare
from specdec_jax._loop import step
from specdec_jax._options import Request, Sampling
from specdec_jax._run import Program, Run
from specdec_jax._types import Draft, Drafter, Params, Rule, Target

_begin = jax.jit(_run.begin, static_argnames="program", donate_argnames="state")


def measure_acceptance(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling,
    rule: Rule = "match",
    max_length: int | None = None,
) -> Float[np.ndarray, "depth rank"]:
    """The table that `fit_tree` takes, from texts generated with the drafter itself.

    A node's valid children are ranked in their order. An entry is in how many of the
    steps that accepted a node with a child of this rank, that child was accepted; 0
    where there was none. What the drafter's tree does not have is not seen, so give it
    a wide one: every node with as many children as ranks are asked about.

    Args:
        target: as for `generate`, and so are the others.
        params: of target and drafter.
        drafter: what is measured.
        prompts: token ids, ragged.
        sampling: of the texts.
        rule: that the tree is to be used under.
        max_length: slots of the cache.

    Raises:
        ValueError: for what `generate` refuses.
    """
    call = prepare(
        target,
        params,
        drafter,
        prompts,
        sampling=sampling,
        rule=rule,
        max_length=max_length,
    )
    accepted = np.zeros((drafter.max_depth, drafter.num_nodes))
    tried = np.zeros(accepted.shape)
    for judged in judged_drafts(call, params):
        draft, tokens = judged.draft, judged.tokens
        for row, (start, end) in enumerate(
            zip(judged.before, judged.after, strict=True)
        ):
            node = 0
            for depth, token in enumerate(tokens[row, start:end]):
                is_child = (draft.parents[row] == node) & draft.valid[row]
                children = np.flatnonzero(is_child)
                tried[depth : depth + 1, : len(children)] += 1
                found = np.flatnonzero(draft.tokens[row, children] == token)
                if not len(found):
                    break
                accepted[depth, found[0]] += 1
                node = children[found[0]]
    ranks = max(1, int(tried.any(0).sum()))
    return (accepted / np.maximum(tried, 1))[:, :ranks]


class JudgedDraft(NamedTuple):
    """What a step drafted, and what became of it; NumPy's arrays."""

    draft: Draft
    tokens: Int[np.ndarray, "B S"]  # known after the step
    before: Int[np.ndarray, " B"]  # tokens known before it
    after: Int[np.ndarray, " B"]
    is_over: Bool[np.ndarray, " B"]  # rows that have ended


def judged_drafts(call: Call, params: Params) -> Iterator[JudgedDraft]:
    """The steps of a call, one by one, until every row has ended."""
    run = _begin(call.program, params, call.state, call.request)
    before, is_over = np.asarray(run.state.length), np.asarray(run.reason) > 0
    while not is_over.all():
        run, draft = _step_and_draft(call.program, params, call.request, run)
        after, is_over = np.asarray(run.state.length), np.asarray(run.reason) > 0
        yield JudgedDraft(
            jax.tree.map(np.asarray, draft),
            np.asarray(run.state.tokens),
            before,
            after,
            is_over,
        )
        before = after


@functools.partial(jax.jit, static_argnames="program", donate_argnames="run")
def _step_and_draft(
    program: Program, params: Params, request: Request, run: Run
) -> tuple[Run, Draft]:
    """A step, and the draft that it judges."""
    state = run.state
    root = state.root
    sampler = _run.make_sampler(program, request, run)
    draft, _ = program.drafter.draft(
        program.target, params, state.drafter, root, sampler
    )
    return step(program, params, request, run), draft
