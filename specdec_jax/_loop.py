"""One step: draft, forward, verify, cut, commit, update, emit."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_jax import (
    _cache,
    _sampling,
    _scheduling,
    _sharding,
    _stats,
    _stops,
    _tree,
    _verify,
)
from specdec_jax._options import Request
from specdec_jax._run import (
    FULL,
    LENGTH,
    NAN,
    NO_TOKEN,
    STOP_ID,
    STOP_STRING,
    Program,
    Run,
    State,
    make_sampler,
)
from specdec_jax._types import (
    Accepted,
    Draft,
    History,
    Params,
    Pending,
    Sampler,
    Verdict,
)


def step(program: Program, params: Params, request: Request, run: Run) -> Run:
    """One verification: a running row emits a token at least, or ends and says why."""
    with _sharding.on(program.mesh):
        return _step(program, params, request, run)


def _step(program: Program, params: Params, request: Request, run: Run) -> Run:
    target, drafter, state = program.target, program.drafter, run.state
    sampler = make_sampler(program, request, run)
    with jax.named_scope("draft"):
        planned = _scheduling.plan(program, params, run, state.root, sampler)
        draft, drafter_state = planned.draft, planned.drafter
    with jax.named_scope("verify"):
        verified = _verify_draft(program, params, run, planned, sampler)
        length, reason, stop_state = _cut(request, run, verified)
    with jax.named_scope("commit"):
        path, emitted = verified.verdict.path, verified.emitted
        cache = target.commit(state.cache, verified.pending, path, length)
    with jax.named_scope("update"):
        following = jnp.take_along_axis(
            emitted, jnp.maximum(length - 1, 0)[:, None], axis=1
        )[:, 0]
        tokens = jnp.take_along_axis(draft.tokens, path, axis=1)
        accepted = Accepted(tokens, verified.features, length, following)
        drafter_state = drafter.update(target, params, drafter_state, accepted)
    with jax.named_scope("emit"):
        slots = jnp.arange(emitted.shape[1], dtype=jnp.int32)[None, :]
        kept = jnp.where(slots < length[:, None], emitted, -1)
        is_drafted = slots < verified.verdict.length[:, None] - 1
        constraint = run.constraint
        if request.options.constraint is not None:
            moved = _sampling.constraint_states(
                request.options.constraint, constraint, kept[:, None, :]
            )
            constraint = jax.tree.map(lambda x: x[:, 0], moved)
        run = Run(
            state=State(
                cache,
                drafter_state,
                _cache.write(state.tokens, emitted, state.length, length),
                state.length + length,
            ),
            start=run.start,
            stop_state=stop_state,
            history=_counted(run.history, kept),
            constraint=constraint,
            reason=reason,
            stats=_stats.record(run.stats, draft, length, planned.width),
            is_drafted=_cache.write(run.is_drafted, is_drafted, state.length, length),
            logprobs=None
            if run.logprobs is None or verified.logprobs is None
            else _cache.write(run.logprobs, verified.logprobs, state.length, length),
            schedule=_scheduling.learn(program, planned, length),
        )
    return _sharding.pin(run, program.mesh)


class _Verified(NamedTuple):
    """A verdict before it is cut, and what goes with the nodes of its path."""

    verdict: Verdict
    emitted: Int[Array, "B P"]  # the accepted drafts and the token after them
    scores: Float[Array, "B P"]  # of each emitted token: finite, if there is such a one
    logprobs: Float[Array, "B P"] | None
    features: Float[Array, "B P F"]
    pending: Pending


def _verify_draft(
    program: Program,
    params: Params,
    run: Run,
    planned: _scheduling.Planned,
    sampler: Sampler,
) -> _Verified:
    """Read the draft as wide as planned and judge it."""
    draft = planned.draft
    target, cache = program.target, run.state.cache
    num_nodes, size = program.drafter.num_nodes, program.drafter.max_depth + 1

    def verify(width: int) -> _Verified:
        narrow = _tree.prefix(draft, width)
        block = _tree.draft_block(narrow)
        output = target.forward(params.target, cache, block, program.drafter.taps)
        logits = target.logits(params.target, output.hidden)
        path_tokens = _tree.path_tokens(
            narrow.tokens, _tree.paths(narrow.parents, size=size)
        )
        verdict, scores = _decide(program, narrow, logits, path_tokens, sampler)
        emitted = _emitted(narrow, verdict)
        logprobs = None
        if program.logprobs is not None:
            logprobs = _logprobs(
                program, sampler, logits, path_tokens, verdict.path, emitted
            )
        missing = [(0, 0), (0, 0), (0, num_nodes - width), (0, 0)]
        return _Verified(
            verdict,
            emitted,
            scores,
            logprobs,
            jnp.take_along_axis(output.features, verdict.path[:, :, None], axis=1),
            jax.tree.map(lambda x: jnp.pad(x, missing), output.pending),
        )

    if planned.chosen is None:
        return verify(num_nodes)
    branches = [functools.partial(verify, width) for width in planned.widths]
    return jax.lax.switch(planned.chosen, branches)


def _decide(
    program: Program,
    draft: Draft,
    logits: Float[Array, "B N V"],
    path_tokens: Int[Array, "B N P"],
    sampler: Sampler,
) -> tuple[Verdict, Float[Array, "B P"]]:
    """The verdict of the program's rule, and for each emitted token a score that is
    finite if there is such a token.
    """
    size = program.drafter.max_depth + 1
    if program.rule == "match":
        tokens, node_scores = _sampling.draw(sampler, logits, path_tokens)
        verdict = _verify.match(draft, tokens, size=size)
        return verdict, jnp.take_along_axis(node_scores, verdict.path, axis=1)
    rule = _verify.rejection if program.rule == "rejection" else _verify.block
    log_p = _sampling.law(sampler, logits, path_tokens)
    coins = _sampling.accept_coins(sampler, num_nodes=draft.tokens.shape[1])
    path, length, log_law = rule(
        draft, log_p, coins, kind=program.drafter.kind, size=size
    )
    noise = _sampling.step_noise(
        sampler, _sampling.NEXT, 0, vocab_size=logits.shape[-1]
    )
    token, score = _sampling.sample(log_law, noise)
    is_last = jnp.arange(size, dtype=jnp.int32)[None, :] == length[:, None] - 1
    return Verdict(path, length, token), jnp.where(is_last, score[:, None], 0.0)


def _emitted(draft: Draft, verdict: Verdict) -> Int[Array, "B P"]:
    """The accepted drafts and the token after them; slots beyond hold tokens of no
    meaning.
    """
    size = verdict.path.shape[1]
    shifted = jnp.take_along_axis(
        draft.tokens, jnp.pad(verdict.path[:, 1:], ((0, 0), (0, 1))), axis=1
    )
    is_last = jnp.arange(size, dtype=jnp.int32)[None, :] == verdict.length[:, None] - 1
    return jnp.where(is_last, verdict.next[:, None], shifted)


def _cut(
    request: Request, run: Run, verified: _Verified
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, " B"] | None]:
    """How many of the emitted tokens stand (0 in a row that has ended), why the row
    ends, and the state of its stop strings.
    """
    emitted, verdict, scores = verified.emitted, verified.verdict, verified.scores
    slots = jnp.arange(emitted.shape[1], dtype=jnp.int32)[None, :]
    total = run.state.length[:, None] + slots + 1  # tokens known, this one included
    count = total - run.start[:, None]  # of them new
    code = jnp.where(total >= run.state.tokens.shape[1], FULL, 0)
    code = jnp.where(count >= request.max_new_tokens[:, None], LENGTH, code)
    stop_states = None
    stop_state = run.stop_state
    if request.stops is not None and stop_state is not None:
        is_early = jnp.zeros_like(count, jnp.bool_)
        if request.options.min_new_tokens is not None:
            is_early = count <= request.options.min_new_tokens[:, None]
        stop_states = _stops.advance(request.stops, stop_state, emitted, is_early)
        code = jnp.where(stop_states == _stops.STOPPED, STOP_STRING, code)
    is_stop = (emitted[:, :, None] == request.options.stop_ids[:, None, :]).any(-1)
    code = jnp.where(is_stop, STOP_ID, code)
    has_failed = ~jnp.isfinite(scores)
    code = jnp.where(has_failed, jnp.where(jnp.isneginf(scores), NO_TOKEN, NAN), code)

    ends = (code > 0) & (slots < verdict.length[:, None])
    first = ends.argmax(-1).astype(jnp.int32)[:, None]
    code = jnp.where(ends.any(-1), jnp.take_along_axis(code, first, axis=1)[:, 0], 0)
    stands = first[:, 0] + jnp.take_along_axis(~has_failed, first, axis=1)[:, 0].astype(
        jnp.int32
    )
    is_running = run.reason == 0
    length = jnp.where(is_running, jnp.where(code > 0, stands, verdict.length), 0)
    if stop_state is not None and stop_states is not None:
        last = jnp.take_along_axis(
            stop_states, jnp.maximum(length - 1, 0)[:, None], axis=1
        )[:, 0]
        stop_state = jnp.where(length > 0, last, stop_state)
    return length, jnp.where(is_running, code, run.reason), stop_state


def _counted(history: History | None, kept: Int[Array, "B P"]) -> History | None:
    """The history with a row's new tokens, -1 where there is none."""
    if history is None:
        return None
    rows = jnp.arange(kept.shape[0], dtype=jnp.int32)[:, None]
    ids = jnp.where(kept >= 0, kept, history.counts.shape[1])
    return History(history.prompted, history.counts.at[rows, ids].add(1, mode="drop"))


def _logprobs(
    program: Program,
    sampler: Sampler,
    logits: Float[Array, "B N V"],
    path_tokens: Int[Array, "B N P"],
    path: Int[Array, "B P"],
    emitted: Int[Array, "B P"],
) -> Float[Array, "B P"]:
    """Of each emitted token under the law asked for, at the node that it follows."""
    logits = jnp.take_along_axis(logits, path[:, :, None], axis=1)
    if program.logprobs == "sampled":
        laws = _sampling.law(
            sampler, logits, jnp.take_along_axis(path_tokens, path[:, :, None], axis=1)
        )
    else:
        laws = _sampling.log_softmax(logits)
    return jnp.take_along_axis(laws, emitted[:, :, None], axis=2)[:, :, 0]
