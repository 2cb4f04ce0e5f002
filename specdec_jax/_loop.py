"""One step — draft, forward, verify, cut, commit, update, emit — and the loops made of
it.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from specdec_jax import _cache, _sampling, _sharding, _stats, _stops, _tree, _verify
from specdec_jax._options import Request
from specdec_jax._stats import Stats
from specdec_jax._types import (
    Accepted,
    Cache,
    Draft,
    Drafter,
    History,
    Params,
    Rule,
    Sampler,
    Target,
    Verdict,
)

# Why a row ended; 0 while it runs.
REASONS = ("", "stop_id", "stop_string", "length", "full", "nan", "no_token")
STOP_ID, STOP_STRING, LENGTH, FULL, NAN, NO_TOKEN = range(1, len(REASONS))


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything static about a generation: one `Program` and one set of shapes is one
    executable.
    """

    target: Target
    drafter: Drafter
    rule: Rule
    logprobs: Literal["model", "sampled"] | None
    chunk: int  # prompt tokens read at once; 0 where there is nothing to read
    mesh: Mesh | None  # None on one device


class State(NamedTuple):
    """What a conversation needs to go on. The cache holds every token of a row but the
    newest, the root.
    """

    cache: Cache
    drafter: PyTree
    tokens: Int[Array, "B S"]
    length: Int[Array, " B"]  # tokens known


class Run(NamedTuple):
    """A generation under way: the state, and what this call alone keeps."""

    state: State
    start: Int[Array, " B"]  # where the new tokens begin
    stop_state: Int[Array, " B"] | None
    history: History | None
    constraint: PyTree | None
    reason: Int[Array, " B"]
    stats: Stats
    is_drafted: Bool[Array, "B S"]  # which tokens the drafter supplied
    logprobs: Float[Array, "B S"] | None


def ingest(program: Program, params: Params, state: State) -> State:
    """Read every known token but the last of each row, a chunk at a time, without a
    logit.
    """
    if program.chunk == 0:
        return state
    offsets = jnp.arange(program.chunk + 1, dtype=jnp.int32)[None, :]

    def unread(state: State) -> Int[Array, " B"]:
        return state.length - 1 - state.cache.length

    def read(state: State) -> State:
        at = jnp.minimum(
            state.cache.length[:, None] + offsets, state.tokens.shape[1] - 1
        )
        tokens = jnp.take_along_axis(state.tokens, at, axis=1)
        length = jnp.minimum(unread(state), program.chunk)
        chunk = tokens[:, :-1]
        output = program.target.forward(
            params.target, state.cache, _tree.causal_block(chunk), program.drafter.taps
        )
        path = jnp.broadcast_to(offsets[:, :-1], chunk.shape)
        cache = program.target.commit(state.cache, output.pending, path, length)
        following = jnp.take_along_axis(tokens, length[:, None], axis=1)[:, 0]
        accepted = Accepted(chunk, output.features, length, following)
        drafter = program.drafter.update(
            program.target, params, state.drafter, accepted
        )
        state = State(cache, drafter, state.tokens, state.length)
        return _sharding.pin(state, program.mesh)

    return jax.lax.while_loop(lambda state: (unread(state) > 0).any(), read, state)


def begin(program: Program, params: Params, state: State, request: Request) -> Run:
    """Read the prompt and set up what the steps need."""
    batch, slots = state.tokens.shape
    vocab_size = program.target.vocab_size
    history = None
    if request.options.penalties is not None:
        is_known = jnp.arange(slots, dtype=jnp.int32)[None, :] < state.length[:, None]
        rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
        prompted = jnp.zeros((batch, vocab_size), jnp.bool_)
        prompted = prompted.at[rows, jnp.where(is_known, state.tokens, vocab_size)].set(
            True, mode="drop"
        )
        history = History(prompted, jnp.zeros((batch, vocab_size), jnp.int32))
    constraint = None
    if request.options.constraint is not None:
        constraint = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x))),
            request.options.constraint.initial,
        )
    run = Run(
        state=ingest(program, params, state),
        start=state.length + 0,
        stop_state=None if request.stops is None else jnp.zeros(batch, jnp.int32),
        history=history,
        constraint=constraint,
        reason=jnp.zeros(batch, jnp.int32),
        stats=_stats.init_stats(batch, program.drafter.max_depth + 1),
        is_drafted=jnp.zeros((batch, slots), jnp.bool_),
        logprobs=None
        if program.logprobs is None
        else jnp.zeros((batch, slots), jnp.float32),
    )
    return _sharding.pin(run, program.mesh)


def step(program: Program, params: Params, request: Request, run: Run) -> Run:
    """One verification: every running row emits at least one token, or ends and says
    why.
    """
    target, drafter, state = program.target, program.drafter, run.state
    size = drafter.max_depth + 1
    root = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)[:, 0]
    sampler = make_sampler(program, request, run)
    with jax.named_scope("draft"):
        draft, drafter_state = drafter.draft(
            target, params, state.drafter, root, sampler
        )
    with jax.named_scope("forward"):
        block = _tree.draft_block(draft)
        output = target.forward(params.target, state.cache, block, drafter.taps)
        logits = target.logits(params.target, output.hidden)
    with jax.named_scope("verify"):
        path_tokens = _tree.path_tokens(
            draft.tokens, _tree.paths(draft.parents, size=size)
        )
        verdict, scores = _decide(program, draft, logits, path_tokens, sampler)
        emitted = _emitted(draft, verdict)
        length, reason, stop_state = _cut(request, run, emitted, verdict, scores)
        is_drafted = (
            jnp.arange(size, dtype=jnp.int32)[None, :] < verdict.length[:, None] - 1
        )
        following = jnp.take_along_axis(
            emitted, jnp.maximum(length - 1, 0)[:, None], axis=1
        )[:, 0]
    with jax.named_scope("commit"):
        cache = target.commit(state.cache, output.pending, verdict.path, length)
        features = jnp.take_along_axis(
            output.features, verdict.path[:, :, None], axis=1
        )
        tokens = jnp.take_along_axis(draft.tokens, verdict.path, axis=1)
        accepted = Accepted(tokens, features, length, following)
    with jax.named_scope("update"):
        drafter_state = drafter.update(target, params, drafter_state, accepted)
    with jax.named_scope("emit"):
        logprobs = run.logprobs
        if logprobs is not None:
            new = _logprobs(
                program, sampler, logits, path_tokens, verdict.path, emitted
            )
            logprobs = _cache.write(logprobs, new, state.length, length)
        history, constraint = run.history, run.constraint
        kept = jnp.where(
            jnp.arange(size, dtype=jnp.int32)[None, :] < length[:, None], emitted, -1
        )
        if history is not None:
            rows = jnp.arange(root.shape[0], dtype=jnp.int32)[:, None]
            ids = jnp.where(kept >= 0, kept, target.vocab_size)
            history = History(
                history.prompted, history.counts.at[rows, ids].add(1, mode="drop")
            )
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
            history=history,
            constraint=constraint,
            reason=reason,
            stats=_stats.record(run.stats, draft, block.depths, length),
            is_drafted=_cache.write(run.is_drafted, is_drafted, state.length, length),
            logprobs=logprobs,
        )
    return _sharding.pin(run, program.mesh)


def make_sampler(program: Program, request: Request, run: Run) -> Sampler:
    """What the law of each row's next token depends on."""
    return Sampler(
        options=request.options,
        keys=request.keys,
        base=run.state.cache.length,
        generated=run.state.length - run.start,
        history=run.history,
        constraint=run.constraint,
        noise=request.keys if program.rule == "match" else None,
    )


def is_running(run: Run) -> Bool[Array, ""]:
    """Whether any row still wants tokens."""
    return (run.reason == 0).any()


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
    request: Request,
    run: Run,
    emitted: Int[Array, "B P"],
    verdict: Verdict,
    scores: Float[Array, "B P"],
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, " B"] | None]:
    """How many of the emitted tokens stand (0 in a row that has ended), why the row
    ends, and the state of its stop strings.
    """
    slots = jnp.arange(emitted.shape[1], dtype=jnp.int32)[None, :]
    count = (
        (run.state.length - run.start)[:, None] + slots + 1
    )  # new tokens up to and including this one
    code = jnp.where(
        run.state.length[:, None] + slots + 1 >= run.state.tokens.shape[1], FULL, 0
    )
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
