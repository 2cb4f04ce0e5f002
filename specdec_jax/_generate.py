"""`generate`, one executable, and `stream`, the same step driven by the host."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_jax import _loop
from specdec_jax._loop import Program, Run, State
from specdec_jax._options import NO_LIMIT, Request, Sampling, make_request
from specdec_jax._stats import Stats
from specdec_jax._types import Drafter, Params, Rule, Target

Prompts = Sequence[Sequence[int]] | Int[np.ndarray, "B T"]
Logprobs = Literal["model", "sampled"] | None
_CHUNKS = (32, 128)
_SLOTS = 64  # caches hold a power of two, at least this


class GenerationError(RuntimeError):
    """A row ended because its logits were NaN or left no token; `generation` holds what
    there is.
    """

    def __init__(self, message: str, generation: "Generation"):
        super().__init__(message)
        self.generation = generation


@dataclasses.dataclass(frozen=True)
class Generation:
    """What `generate` returns, one entry per row (the samples of a prompt follow each
    other).

    Attributes:
        tokens: the new tokens, a stop id included where one ended the row.
        reasons: why each row ended: "stop_id", "stop_string", "length", "full", "nan",
            "no_token"; "" where it has not.
        is_drafted: which of the new tokens the drafter supplied.
        logprobs: of the new tokens, if asked for.
        stats: what was proposed and accepted.
        state: to go on from; it is consumed by the call that it is passed to.
    """

    tokens: list[np.ndarray]
    reasons: list[str]
    is_drafted: list[np.ndarray]
    logprobs: list[np.ndarray] | None
    stats: Stats
    state: State


def generate(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling | None = None,
    rule: Rule = "match",
    max_length: int | None = None,
    samples: int = 1,
    logprobs: Logprobs = None,
    state: State | None = None,
    raise_on_failure: bool = True,
) -> Generation:
    """Continue each prompt with the target's own text, several tokens per forward.

    Args:
        target: the model whose law the text has.
        params: of target and drafter.
        drafter: what proposes; `Plain()` is plain decoding.
        prompts: token ids, ragged; when continuing, the whole conversation so far.
        sampling: how tokens are chosen and when rows end; greedy by default.
        rule: "match" gives the same tokens as plain decoding with the same seed;
            "rejection" accepts more where the drafter samples ("iid"), under the same
            law; "block" accepts more still, for chains.
        max_length: slots of the cache, prompt and new tokens together; rounded up.
        samples: continuations per prompt, from one reading of it.
        logprobs: "model" for the log-probabilities of the model's own law, "sampled"
            for those of the law drawn from.
        state: of an earlier call, which this one consumes.
        raise_on_failure: raise where a row ends with NaN logits or no token left.

    Returns:
        The new tokens, and the state to go on from.

    Raises:
        ValueError: for arguments that cannot be honoured, before anything runs.
        GenerationError: see `raise_on_failure`.
    """
    call = _prepare(
        target, params, drafter, prompts, sampling, rule, max_length, samples,
        logprobs, state,
    )  # fmt: skip
    run = _generate(call.program, params, call.state, call.request)
    return _finish(run, raise_on_failure)


def stream(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling | None = None,
    rule: Rule = "match",
    max_length: int | None = None,
    samples: int = 1,
    logprobs: Logprobs = None,
    state: State | None = None,
    raise_on_failure: bool = True,
) -> "Stream":
    """`generate`, one step at a time: iterate over what each step emits.

    Arguments and errors are those of `generate`; the same arguments give the same
    tokens. Stop iterating whenever you like: `Stream.generation` is what there is so
    far, its state as good as any.
    """
    call = _prepare(
        target, params, drafter, prompts, sampling, rule, max_length, samples,
        logprobs, state,
    )  # fmt: skip
    run = _begin(call.program, params, call.state, call.request)
    return Stream(call.program, params, call.request, run, raise_on_failure)


class Piece(NamedTuple):
    """What one step emitted, per row (nothing for a row that has ended)."""

    tokens: list[np.ndarray]
    is_drafted: list[np.ndarray]


class Stream(Iterator[Piece]):
    """A generation under way."""

    def __init__(
        self, program: Program, params: Params, request: Request, run: Run, strict: bool
    ):
        self._program, self._params, self._request = program, params, request
        self._run, self._strict = run, strict
        self._length = np.asarray(run.state.length)

    def __next__(self) -> Piece:
        if not np.any(np.asarray(self._run.reason) == 0):
            if self._strict:
                _finish(self._run, raise_on_failure=True)
            raise StopIteration
        self._run = _step(self._program, self._params, self._request, self._run)
        before, self._length = self._length, np.asarray(self._run.state.length)
        rows = list(zip(before, self._length, strict=True))
        tokens = np.asarray(self._run.state.tokens)
        is_drafted = np.asarray(self._run.is_drafted)
        return Piece(
            [tokens[i, a:b] for i, (a, b) in enumerate(rows)],
            [is_drafted[i, a:b] for i, (a, b) in enumerate(rows)],
        )

    @property
    def generation(self) -> Generation:
        """What there is so far; a row that has not ended has the reason "".

        Its state is this stream's own: passing it on ends the stream.
        """
        return _finish(self._run, raise_on_failure=False)


def copy(state: State) -> State:
    """A state of its own, to go on from twice."""
    _check_unused(state)
    return jax.tree.map(jnp.copy, state)


def grow(target: Target, drafter: Drafter, state: State, *, max_length: int) -> State:
    """The same conversation in a larger cache; consumes `state`.

    Raises:
        ValueError: if `max_length` is less than what the state has room for already.
    """
    _check_unused(state)
    batch, slots = state.tokens.shape
    if max_length < slots:
        raise ValueError(
            f"max_length {max_length} is below the {slots} slots there are"
        )
    bigger = jax.eval_shape(
        lambda: _new_state(target, drafter, batch, _slots_for(max_length))
    )

    def pad(x: Array, like: jax.ShapeDtypeStruct) -> Array:
        return jnp.pad(
            x, [(0, n - m) for n, m in zip(like.shape, x.shape, strict=True)]
        )

    return jax.tree.map(pad, state, bigger)


class _Call(NamedTuple):
    program: Program
    state: State
    request: Request


def _prepare(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    sampling: Sampling | None,
    rule: Rule,
    max_length: int | None,
    samples: int,
    logprobs: Logprobs,
    state: State | None,
) -> _Call:
    """The door: everything that can be wrong is said here, before anything runs."""
    sampling = Sampling() if sampling is None else sampling
    check_fit(target, drafter, rule)
    if logprobs not in (None, "model", "sampled"):
        raise ValueError(f'logprobs is "model", "sampled" or None, not {logprobs!r}')
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    rows = _check_prompts(prompts, target.vocab_size)
    request = make_request(
        sampling, batch=len(rows), vocab_size=target.vocab_size, samples=samples
    )
    limits = np.asarray(request.max_new_tokens)[::samples]
    if state is None:
        slots = _choose_slots(target, rows, limits, max_length)
        state = _fresh_state(target, drafter, len(rows), slots)
        read = np.zeros(len(rows), np.int32)
    else:
        if max_length is not None:
            raise ValueError("a state has its slots already: use grow, not max_length")
        _check_unused(state)
        _check_extends(rows, state)
        slots = state.tokens.shape[1]
        read = np.asarray(state.cache.length)
    _check_room(rows, limits, slots, target.max_length)
    tokens = np.zeros((len(rows), slots), np.int32)
    for row, prompt in enumerate(rows):
        tokens[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in rows], np.int32)
    state = state._replace(tokens=jnp.asarray(tokens), length=jnp.asarray(lengths))
    unread = int((lengths - 1 - read).max())
    chunk = next((size for size in (0, *_CHUNKS) if size >= unread), _CHUNKS[-1])
    program = Program(target, drafter, rule, logprobs, chunk)
    if samples > 1:
        state = _repeat(_ingest(program, params, state), samples)
        program = dataclasses.replace(program, chunk=0)
    return _Call(program, state, request)


def check_fit(target: Target, drafter: Drafter, rule: Rule) -> None:
    """Raise `ValueError` where target, drafter and rule do not go together."""
    if rule not in ("match", "rejection", "block"):
        raise ValueError(f'rule is "match", "rejection" or "block", not {rule!r}')
    for tap in drafter.taps:
        if tap != "final" and not (
            isinstance(tap, int) and -1 <= tap < target.num_layers
        ):
            raise ValueError(
                f"{drafter} taps layer {tap!r}, but the target has layers 0 … "
                f"{target.num_layers - 1} (and -1, the embedding, and 'final')"
            )
    vocab_size = getattr(
        getattr(drafter, "model", None), "vocab_size", target.vocab_size
    )
    if vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model has {vocab_size} tokens, the target {target.vocab_size}: "
            "they must share one vocabulary"
        )
    if rule == "block" and drafter.num_nodes != drafter.max_depth + 1:
        raise ValueError(f'rule "block" verifies chains; {drafter} drafts a tree')
    if rule == "match" and drafter.kind == "iid":
        raise ValueError(
            f'{drafter} samples its drafts; rule "match" needs kind="points", which '
            'accepts more there (or use rule "rejection")'
        )


def _check_prompts(prompts: Prompts, vocab_size: int) -> list[np.ndarray]:
    if len(prompts) == 0:
        raise ValueError("there is no prompt: a batch needs at least one row")
    rows = []
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, str) or np.ndim(prompt) != 1:
            raise ValueError(
                f"prompt {row} must be a sequence of token ids: {prompt!r}"
            )
        ids = np.asarray(prompt)
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


def _choose_slots(
    target: Target, rows: list[np.ndarray], limits: np.ndarray, max_length: int | None
) -> int:
    if max_length is not None:
        if not 1 <= max_length <= target.max_length:
            raise ValueError(
                f"max_length {max_length} is outside 1 … {target.max_length}, the "
                "positions that the model was made for"
            )
        return max_length
    ends = [
        len(prompt) + int(limit) for prompt, limit in zip(rows, limits, strict=True)
    ]
    if max(limits) == NO_LIMIT:
        raise ValueError(
            "nothing bounds the text: give sampling a max_new_tokens, or a max_length"
        )
    return min(_slots_for(max(ends)), max(target.max_length, 1))


def _slots_for(length: int) -> int:
    return max(_SLOTS, 1 << (length - 1).bit_length())


def _check_room(
    rows: list[np.ndarray], limits: np.ndarray, slots: int, max_length: int
) -> None:
    for row, (prompt, limit) in enumerate(zip(rows, limits, strict=True)):
        new = 1 if limit == NO_LIMIT else int(limit)
        end = len(prompt) + new
        if end > max_length:
            raise ValueError(
                f"prompt {row} of {len(prompt)} and {new} new tokens are {end}, beyond "
                f"the {max_length} positions that the model was made for"
            )
        if end > slots:
            raise ValueError(
                f"{slots} slots cannot hold a prompt of {len(prompt)} and {new} new "
                f"tokens (row {row}): raise max_length to {end}"
            )


def _check_unused(state: State) -> None:
    if any(x.is_deleted() for x in jax.tree.leaves(state) if isinstance(x, jax.Array)):
        raise ValueError(
            "this state was consumed by an earlier call: go on from the state which "
            "that call returned, or keep a copy(state) before"
        )


def _check_extends(rows: list[np.ndarray], state: State) -> None:
    known, lengths = np.asarray(state.tokens), np.asarray(state.length)
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


def _new_state(target: Target, drafter: Drafter, batch: int, slots: int) -> State:
    return State(
        cache=target.init_cache(batch, slots),
        drafter=drafter.init(batch, slots),
        tokens=jnp.zeros((batch, slots), jnp.int32),
        length=jnp.ones(batch, jnp.int32),
    )


_fresh_state = functools.partial(
    jax.jit, static_argnames=("target", "drafter", "batch", "slots")
)(_new_state)


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def _generate(program: Program, params: Params, state: State, request: Request) -> Run:
    run = _loop.begin(program, params, state, request)
    return jax.lax.while_loop(
        _loop.is_running, lambda run: _loop.step(program, params, request, run), run
    )


_begin = functools.partial(jax.jit, static_argnames="program", donate_argnames="state")(
    _loop.begin
)
_step = functools.partial(jax.jit, static_argnames="program", donate_argnames="run")(
    _loop.step
)
_ingest = functools.partial(
    jax.jit, static_argnames="program", donate_argnames="state"
)(_loop.ingest)


@functools.partial(jax.jit, static_argnames="samples")
def _repeat(state: State, samples: int) -> State:
    return jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), state)


def _finish(run: Run, raise_on_failure: bool) -> Generation:
    start, end = np.asarray(run.start), np.asarray(run.state.length)
    spans = [slice(int(a), int(b)) for a, b in zip(start, end, strict=True)]

    def pick(x: Any) -> list[np.ndarray]:
        return [row[span] for row, span in zip(np.asarray(x), spans, strict=True)]

    generation = Generation(
        tokens=pick(run.state.tokens),
        reasons=[_loop.REASONS[code] for code in np.asarray(run.reason)],
        is_drafted=pick(run.is_drafted),
        logprobs=None if run.logprobs is None else pick(run.logprobs),
        stats=jax.tree.map(np.asarray, run.stats),
        state=run.state,
    )
    failed = [
        i for i, why in enumerate(generation.reasons) if why in ("nan", "no_token")
    ]
    if failed and raise_on_failure:
        why = generation.reasons[failed[0]]
        said = {
            "nan": "its logits are NaN or infinite: look at the weights and the dtype",
            "no_token": "bias, banned_ids, allowed_ids, min_new_tokens and constrain "
            "together left no token",
        }[why]
        raise GenerationError(
            f"row {failed[0]} ended after {len(generation.tokens[failed[0]])} tokens: "
            f"{said} ({len(failed)} of {len(spans)} rows; raise_on_failure=False "
            "returns what there is)",
            generation,
        )
    return generation
