"""The door of `generate`, `stream` and `compile`: everything that can be wrong with a
call is said here, before anything runs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from specdec_jax import _run, _sharding
from specdec_jax._door_schedule import check_profile, check_schedule, is_chain
from specdec_jax._options import (
    NO_LIMIT,
    Request,
    Sampling,
    check_whole,
    make_request,
)
from specdec_jax._run import Program, State
from specdec_jax._schedule_types import Schedule
from specdec_jax._state import check_owner, check_unused, init_state, slots_for
from specdec_jax._types import Drafter, Params, Rule, Target
from specdec_jax.nn import BlockDrafter
from specdec_jax.nn._features import FeatureDrafter

Prompts = Sequence[Sequence[int]] | Int[np.ndarray, "B T"]
Logprobs = Literal["model", "sampled"] | None
CHUNKS = (64, 128, 256)  # prompt tokens that a row reads at once,
MOST = 1024  # and that a batch does: the scores are the largest temporary


class Call(NamedTuple):
    """What the programs take."""

    program: Program
    state: State
    request: Request


def prepare(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling | None,
    rule: Rule,
    max_length: int | None,
    samples: int = 1,
    logprobs: Logprobs = None,
    state: State | None = None,
    schedule: Schedule | None = None,
) -> Call:
    """Check a call and turn it into arrays; consumes `state`."""
    program = make_program(
        target, params, drafter, rule=rule, logprobs=logprobs, schedule=schedule
    )
    check_whole("samples", samples)
    rows = _check_prompts(prompts, target.vocab_size)
    if not isinstance(sampling, Sampling | None):
        raise ValueError(f"sampling is a Sampling, not {sampling!r}")
    sampling = Sampling() if sampling is None else sampling
    request = make_request(
        sampling, batch=len(rows), vocab_size=target.vocab_size, samples=samples
    )
    if schedule is not None:
        jax.eval_shape(lambda: schedule.init(len(rows) * samples))
        check_profile(program, request)
    limits = np.asarray(request.max_new_tokens)[::samples]
    _check_length(rows, limits, "model", target.max_length)
    if state is None:
        slots = _choose_slots(target, rows, limits, max_length)
        begun = init_state(target, drafter, len(rows), slots, program.mesh)
    elif max_length is not None:
        raise ValueError("a state has its slots already: use grow, not max_length")
    else:
        begun = state
        check_unused(begun)
        check_owner(target, drafter, begun)
        _check_extends(rows, begun)
    slots = begun.tokens.shape[1]
    _check_room(rows, limits, slots)
    model = getattr(drafter, "model", None)
    if model is not None:
        room = slots - np.array([len(prompt) for prompt in rows])
        _check_length(rows, np.minimum(limits, room), "draft model", model.max_length)
    read = _sharding.to_host(begun.cache.length)
    unread = max(len(prompt) - 1 - int(n) for prompt, n in zip(rows, read, strict=True))
    program = dataclasses.replace(program, chunk=choose_chunk(unread, len(rows)))
    begun = _known(begun, rows, program)
    if program.mesh is not None:
        request = _sharding.place(
            request, _sharding.row_shardings(request, program.mesh)
        )
    if samples > 1:
        begun = repeat(program, ingest(program, params, begun), samples)
        program = dataclasses.replace(program, chunk=0)
    return Call(program, begun, request)


def make_program(
    target: Target,
    params: Params,
    drafter: Drafter,
    *,
    rule: Rule,
    logprobs: Logprobs,
    schedule: Schedule | None = None,
) -> Program:
    """The static part of a call; raises `ValueError` where its parts do not go
    together.
    """
    if rule not in ("match", "rejection", "block"):
        raise ValueError(f'rule is "match", "rejection" or "block", not {rule!r}')
    check_params(params)
    if isinstance(drafter, type):
        raise ValueError(
            f"the drafter is an object, not a class: {drafter.__name__}(…)"
        )
    if logprobs not in (None, "model", "sampled"):
        raise ValueError(f'logprobs is "model", "sampled" or None, not {logprobs!r}')
    for tap in drafter.taps:
        is_layer = isinstance(tap, int) and -1 <= tap < target.num_layers
        if tap != "final" and not is_layer:
            raise ValueError(
                f"{drafter} taps layer {tap!r}, but the target has layers 0 … "
                f"{target.num_layers - 1} (and -1, the embedding, and 'final')"
            )
    model = getattr(drafter, "model", None)
    if model is not None and model.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model has {model.vocab_size} tokens, the target "
            f"{target.vocab_size}: they must share one vocabulary"
        )
    if isinstance(drafter, FeatureDrafter | BlockDrafter):
        drafter.check(target)
    is_learned = model is not None or hasattr(drafter, "init_params")
    if is_learned and not jax.tree.leaves(params.drafter):
        raise ValueError(f"{drafter} needs params.drafter, its own parameters")
    if rule == "block" and not is_chain(drafter):
        raise ValueError(f'rule "block" verifies chains; {drafter} drafts a tree')
    if rule == "match" and drafter.kind != "points":
        raise ValueError(
            f'{drafter} samples its drafts; rule "match" needs kind="points", which '
            'accepts more there (or use rule "rejection")'
        )
    if schedule is not None:
        check_schedule(schedule, target, params, drafter, rule)
    mesh = _sharding.mesh_of(params)
    return Program(target, drafter, rule, logprobs, 0, mesh, schedule)


def check_params(params: Params) -> None:
    """Raise `ValueError` for weights that are not wrapped in a `Params`."""
    if not isinstance(params, Params):
        raise ValueError(
            f"params is a Params(target=…, drafter=…), not a {type(params).__name__}: "
            "wrap the target's weights in one"
        )


def choose_chunk(unread: int, batch: int) -> int:
    """Prompt tokens to read at once: all of them in one turn if they
    are not too many; 0 where there is none.
    """
    if unread == 0:
        return 0
    sizes = [size for size in CHUNKS if size == CHUNKS[0] or batch * size <= MOST]
    return next((size for size in sizes if size >= unread), sizes[-1])


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def ingest(program: Program, params: Params, state: State) -> State:
    """Read the prompts and stop."""
    return _run.ingest(program, params, state)


@functools.partial(jax.jit, static_argnames=("program", "samples"))
def repeat(program: Program, state: State, samples: int) -> State:
    """Each row `samples` times."""
    repeated = jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), state)
    return _sharding.pin(repeated, program.mesh)


def _known(state: State, rows: list[np.ndarray], program: Program) -> State:
    """The state with all tokens of the prompts known, read or not."""
    tokens = np.zeros(state.tokens.shape, np.int32)
    for row, prompt in enumerate(rows):
        tokens[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in rows], np.int32)
    new = (jnp.asarray(tokens), jnp.asarray(lengths))
    if program.mesh is not None:
        new = _sharding.place(new, _sharding.row_shardings(new, program.mesh))
    return State(state.cache, state.drafter, *new)


def _check_prompts(prompts: Prompts, vocab_size: int) -> list[np.ndarray]:
    if len(prompts) == 0:
        raise ValueError("there is no prompt: a batch needs at least one row")
    rows = []
    for row, prompt in enumerate(prompts):
        try:
            ids = np.asarray(prompt)
        except ValueError:  # nested and ragged
            ids = np.empty((0, 0))
        if isinstance(prompt, str) or ids.ndim != 1:
            raise ValueError(
                f"prompt {row} must be a sequence of token ids: {prompt!r}"
            )
        if ids.size == 0:
            raise ValueError(f"prompt {row} is empty: give at least one token")
        if not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"prompt {row} must hold whole numbers, not {ids.dtype}")
        if ids.min() < 0 or ids.max() >= vocab_size:
            bad = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise ValueError(
                f"prompt {row} has token id {bad}, outside [0, {vocab_size})"
            )
        rows.append(ids.astype(np.int32))
    return rows


def check_max_length(target: Target, max_length: int) -> int:
    """`max_length` itself; `ValueError` where the target has fewer positions."""
    if not 1 <= check_whole("max_length", max_length, least=0) <= target.max_length:
        raise ValueError(
            f"max_length {max_length} is outside 1 … {target.max_length}, the "
            "positions that the model was made for"
        )
    return max_length


def _choose_slots(
    target: Target, rows: list[np.ndarray], limits: np.ndarray, max_length: int | None
) -> int:
    if max_length is not None:
        return check_max_length(target, max_length)
    if limits.max() == NO_LIMIT:
        raise ValueError(
            "nothing bounds the text: give sampling a max_new_tokens, or a max_length"
        )
    ends = [len(prompt) + int(new) for prompt, new in zip(rows, limits, strict=True)]
    return slots_for(target, max(ends))


def _check_length(
    rows: list[np.ndarray], limits: np.ndarray, model: str, max_length: int
) -> None:
    for row, (end, said) in enumerate(_ends(rows, limits)):
        if end > max_length:
            raise ValueError(
                f"{said} are {end} tokens (row {row}), beyond the {max_length} "
                f"positions that the {model} was made for"
            )


def _check_room(rows: list[np.ndarray], limits: np.ndarray, slots: int) -> None:
    for row, (end, said) in enumerate(_ends(rows, limits)):
        if end > slots:
            raise ValueError(
                f"{slots} slots cannot hold {said}: raise max_length to {end} "
                f"(row {row}; a state grows by grow)"
            )


def _ends(rows: list[np.ndarray], limits: np.ndarray) -> list[tuple[int, str]]:
    news = [1 if limit == NO_LIMIT else int(limit) for limit in limits]
    return [
        (len(row) + new, f"a prompt of {len(row)} and {new} new tokens")
        for row, new in zip(rows, news, strict=True)
    ]


def _check_extends(rows: list[np.ndarray], state: State) -> None:
    known, lengths = _sharding.to_host((state.tokens, state.length))
    if len(rows) != len(lengths):
        raise ValueError(f"{len(rows)} prompts for a state of {len(lengths)} rows")
    for row, prompt in enumerate(rows):
        old = known[row, : lengths[row]]
        same = min(len(old), len(prompt))
        parts = np.flatnonzero(old[:same] != prompt[:same])
        if len(parts) or len(prompt) < len(old):
            at = int(parts[0]) if len(parts) else len(prompt)
            raise ValueError(
                f"prompt {row} does not extend the {len(old)} tokens of its state: "
                f"they part at position {at}. A state only grows; start anew, or pass "
                "all of its tokens followed by the new ones"
            )
