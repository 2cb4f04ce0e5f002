"""Where the time of a step goes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from specdec_jax import _loop, _run, _sampling, _tree, _verify
from specdec_jax._door import prepare
from specdec_jax._options import Request, Sampling
from specdec_jax._run import Program, Run
from specdec_jax._types import (
    Accepted,
    Cache,
    Draft,
    Params,
    Sampler,
    TargetOutput,
)
from specdec_jax.bench._measure import Decoding
from specdec_jax.bench._prompts import Group
from specdec_jax.bench._timing import Spread, timed

PIECES = ("draft", "verify", "accept", "rest")
_ROUNDS = 3


def profile(decoding: Decoding, group: Group, *, limit: int) -> dict[str, Any]:
    """Milliseconds of a step and of its pieces, under the rule "match".

    draft
        the drafter's `draft`.
    verify
        the target's `forward` of the draft and the logits of every node; of the root
        alone in a step without a draft.
    accept
        the target's own token at every node, what of the draft agrees, `commit` of
        that to the cache, and the drafter's `update`.
    rest
        the step as a whole less these: stop ids and limits, text, statistics. The whole
        is one program, so XLA may fuse across the pieces; where they cost more apart
        than together, this is negative.

    Every piece is a program of its own, timed on the very state that the whole step
    goes on from, copied beforehand where the piece consumes it. Each has the overhead
    of a call, some tenths of a millisecond, which the loop of `generate` does not have:
    on a toy this is most of what is seen.

    Args:
        decoding: what is profiled.
        group: its prompts are read first, untimed.
        limit: new tokens of each row.

    Returns:
        Means over the steps of the text: medians and quartiles of several repetitions,
        after one that does not count.
    """
    repeated = [_one_text(decoding, group, limit) for _ in range(1 + _ROUNDS)][1:]
    milliseconds = {
        name: Spread.of([1e3 * steps[name].mean() for steps in repeated])
        for name in (*PIECES, "step")
    }
    return {
        "drafter": decoding.name,
        "task": group.task,
        "temperature": group.temperature,
        "batch": group.batch,
        "steps": len(repeated[0]["step"]),
        "milliseconds": milliseconds,
    }


def _one_text(decoding: Decoding, group: Group, limit: int) -> dict[str, np.ndarray]:
    """Seconds of each piece in each step."""
    call = prepare(
        decoding.target,
        decoding.params,
        decoding.drafter,
        [prompt.ids for prompt in group.prompts],
        sampling=Sampling(
            temperature=group.temperature,
            seed=group.seeds,
            max_new_tokens=limit,
            stop_ids=decoding.stop_ids,
        ),
        rule="match",
        max_length=decoding.slots(group),
        samples=1,
        logprobs=None,
        state=None,
    )
    program, params, request = call.program, decoding.params, call.request
    run = _begin(program, params, call.state, request)
    rows = []
    while np.any(np.asarray(run.reason) == 0):
        pieces = _pieces(program, params, request, run)
        jax.block_until_ready(run)
        whole, run = timed(lambda run=run: _step(program, params, request, run))
        rows.append((*pieces, whole - sum(pieces), whole))
    return dict(zip((*PIECES, "step"), np.array(rows).T, strict=True))


def _pieces(
    program: Program, params: Params, request: Request, run: Run
) -> tuple[float, float, float]:
    state = run.state
    root, sampler = _ready(_root_and_sampler(program, request, run))
    kept = _ready(jax.tree.map(jnp.copy, state.drafter))
    drafting, (draft, kept) = timed(
        lambda: _draft(program, params, kept, root, sampler)
    )
    is_drafted = np.asarray(draft.valid)[:, 1:] & (np.asarray(run.reason) == 0)[:, None]
    can_narrow = program.drafter.can_pass and not is_drafted.any()
    draft = _ready(_tree.prefix(draft, 1)) if can_narrow else draft
    verifying, (output, logits) = timed(
        lambda: _read(program, params, state.cache, draft)
    )
    cache = _ready(jax.tree.map(jnp.copy, state.cache))
    running = _ready(run.reason == 0)
    accepting, _ = timed(
        lambda: _accept(
            program, params, cache, kept, draft, output, logits, sampler, running
        )
    )
    return drafting, verifying, accepting


_ready = jax.block_until_ready
_begin = jax.jit(_run.begin, static_argnums=0, donate_argnums=2)
_step = jax.jit(_loop.step, static_argnums=0, donate_argnums=3)


@functools.partial(jax.jit, static_argnames="program")
def _root_and_sampler(
    program: Program, request: Request, run: Run
) -> tuple[Int[Array, " B"], Sampler]:
    return run.state.root, _run.make_sampler(program, request, run)


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def _draft(
    program: Program,
    params: Params,
    state: PyTree,
    root: Int[Array, " B"],
    sampler: Sampler,
) -> tuple[Draft, PyTree]:
    return program.drafter.draft(program.target, params, state, root, sampler)


@functools.partial(jax.jit, static_argnames="program")
def _read(
    program: Program, params: Params, cache: Cache, draft: Draft
) -> tuple[TargetOutput, Float[Array, "B N V"]]:
    block, taps = _tree.draft_block(draft), program.drafter.taps
    output = program.target.forward(params.target, cache, block, taps)
    return output, program.target.logits(params.target, output.hidden)


@functools.partial(
    jax.jit, static_argnames="program", donate_argnames=("cache", "state")
)
def _accept(
    program: Program,
    params: Params,
    cache: Cache,
    state: PyTree,
    draft: Draft,
    output: TargetOutput,
    logits: Float[Array, "B N V"],
    sampler: Sampler,
    is_running: Array,
) -> tuple[Cache, PyTree]:
    size = program.drafter.max_depth + 1
    paths = _tree.paths(draft.parents, size=size)
    path_tokens = _tree.path_tokens(draft.tokens, paths)
    tokens, _ = _sampling.draw(sampler, logits, path_tokens)
    verdict = _verify.match(draft, tokens, size=size)
    length = jnp.where(is_running, verdict.length, 0)
    cache = program.target.commit(cache, output.pending, verdict.path, length)
    accepted = Accepted(
        jnp.take_along_axis(draft.tokens, verdict.path, axis=1),
        jnp.take_along_axis(output.features, verdict.path[:, :, None], axis=1),
        length,
        verdict.next,
    )
    return cache, program.drafter.update(program.target, params, state, accepted)
