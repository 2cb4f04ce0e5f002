"""A generation under way: what it is made of, and how it begins."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from specdec_jax import _sharding, _stats, _tree
from specdec_jax._options import Request
from specdec_jax._schedule_types import Schedule
from specdec_jax._stats import Stats
from specdec_jax._types import (
    Accepted,
    Cache,
    Drafter,
    History,
    Params,
    Rule,
    Sampler,
    Target,
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
    schedule: Schedule | None = None  # None: draft always, verify everything


class State(NamedTuple):
    """What a conversation needs to go on. The cache holds every token of a row but the
    newest, the root.
    """

    cache: Cache
    drafter: PyTree
    tokens: Int[Array, "B S"]
    length: Int[Array, " B"]  # tokens known

    @property
    def root(self) -> Int[Array, " B"]:
        """The newest token of each row."""
        last = self.length[:, None] - 1
        return jnp.take_along_axis(self.tokens, last, axis=1)[:, 0]


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
    schedule: PyTree = None  # state of the program's schedule


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

    with _sharding.on(program.mesh):
        return jax.lax.while_loop(lambda state: (unread(state) > 0).any(), read, state)


def begin(program: Program, params: Params, state: State, request: Request) -> Run:
    """Read the prompt and set up what the steps need."""
    batch, slots = state.tokens.shape
    vocab_size, schedule = program.target.vocab_size, program.schedule
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
        stats=_stats.init_stats(
            batch,
            program.drafter.max_depth + 1,
            num_nodes=None if schedule is None else program.drafter.num_nodes,
        ),
        is_drafted=jnp.zeros((batch, slots), jnp.bool_),
        logprobs=None
        if program.logprobs is None
        else jnp.zeros((batch, slots), jnp.float32),
        schedule=None if schedule is None else schedule.init(batch),
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
