"""`generate`, one executable, and `stream`, the same step driven by the host."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from specdec_jax import _loop, _run
from specdec_jax._door import Logprobs, Prompts, prepare
from specdec_jax._options import Request, Sampling
from specdec_jax._run import Program, Run, State
from specdec_jax._schedule_types import Schedule
from specdec_jax._sharding import to_host
from specdec_jax._state import check_unused
from specdec_jax._stats import Stats
from specdec_jax._types import Drafter, Params, Rule, Target


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
    schedule: Schedule | None = None,
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
        max_length: slots of the cache, prompt and new tokens together; by default what
            the call needs, rounded up to a power of two.
        samples: continuations per prompt, from one reading of it.
        logprobs: "model" for the log-probabilities of the model's own law, "sampled"
            for those of the law drawn from.
        state: of an earlier call, which this one consumes.
        schedule: how much of each draft to verify, and whether to draft at all (see
            `specdec_jax.schedule`); by default always, and everything.
        raise_on_failure: raise where a row ends with NaN logits or no token left.

    Returns:
        The new tokens, and the state to go on from.

    Raises:
        ValueError: for arguments that cannot be honoured, before anything runs.
        GenerationError: see `raise_on_failure`.
    """
    call = prepare(
        target,
        params,
        drafter,
        prompts,
        sampling=sampling,
        rule=rule,
        max_length=max_length,
        samples=samples,
        logprobs=logprobs,
        state=state,
        schedule=schedule,
    )
    run = run_program(call.program, params, call.state, call.request)
    return finish(run, raise_on_failure)


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
    schedule: Schedule | None = None,
    raise_on_failure: bool = True,
) -> "Stream":
    """`generate`, one step at a time: iterate over what each step emits.

    Arguments and errors are those of `generate`; the same arguments give the same
    tokens. Stop iterating whenever you like: `Stream.generation` is what there is so
    far, its state as good as any (but see `Sampling` on what is output).
    """
    call = prepare(
        target,
        params,
        drafter,
        prompts,
        sampling=sampling,
        rule=rule,
        max_length=max_length,
        samples=samples,
        logprobs=logprobs,
        state=state,
        schedule=schedule,
    )
    run = _begin(call.program, params, call.state, call.request)
    program = dataclasses.replace(call.program, chunk=0)  # a step reads no prompt
    return Stream(program, params, call.request, run, raise_on_failure)


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
        self._length = to_host(run.state.length)

    def __next__(self) -> Piece:
        if np.all(to_host(self._run.reason) > 0):
            if self._strict:
                finish(self._run, raise_on_failure=True)
            raise StopIteration
        check_unused(self._run.state)
        self._run = _step(self._program, self._params, self._request, self._run)
        before = self._length
        self._length, tokens, is_drafted = to_host(
            (self._run.state.length, self._run.state.tokens, self._run.is_drafted)
        )
        rows = list(zip(before, self._length, strict=True))
        return Piece(
            [tokens[i, a:b] for i, (a, b) in enumerate(rows)],
            [is_drafted[i, a:b] for i, (a, b) in enumerate(rows)],
        )

    @property
    def generation(self) -> Generation:
        """What there is so far; a row that has not ended has the reason "".

        Its state is this stream's own: passing it on ends the stream.
        """
        check_unused(self._run.state)
        return finish(self._run, raise_on_failure=False)


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def run_program(
    program: Program, params: Params, state: State, request: Request
) -> Run:
    run = _run.begin(program, params, state, request)
    return jax.lax.while_loop(
        _run.is_running, lambda run: _loop.step(program, params, request, run), run
    )


_begin = functools.partial(jax.jit, static_argnames="program", donate_argnames="state")(
    _run.begin
)
_step = functools.partial(jax.jit, static_argnames="program", donate_argnames="run")(
    _loop.step
)


def finish(run: Run, raise_on_failure: bool) -> Generation:
    small = run._replace(state=run.state._replace(cache=None, drafter=None))
    host = to_host(small._replace(history=None, constraint=None, schedule=None))
    spans = [slice(*ends) for ends in zip(host.start, host.state.length, strict=True)]

    def pick(rows: Any) -> list[np.ndarray]:
        return [row[span] for row, span in zip(rows, spans, strict=True)]

    generation = Generation(
        tokens=pick(host.state.tokens),
        reasons=[_run.REASONS[code] for code in host.reason],
        is_drafted=pick(host.is_drafted),
        logprobs=None if host.logprobs is None else pick(host.logprobs),
        stats=host.stats,
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
