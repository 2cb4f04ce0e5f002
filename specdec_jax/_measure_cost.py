"""What a step costs on the machine at hand."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_jax import _loop, _run
from specdec_jax._door import prepare
from specdec_jax._options import Request, Sampling
from specdec_jax._run import Program, Run
from specdec_jax._schedule_types import Choice
from specdec_jax._types import Draft, Drafter, Kind, Params, Rule, Target
from specdec_jax.schedule import CostTable, Fingerprint

_PROMPT = 8  # tokens
_STEPS = 4  # in one call, so that the call itself hardly counts


def measure_cost(
    target: Target,
    params: Params,
    drafter: Drafter,
    *,
    batches: Sequence[int],
    widths: Sequence[int],
    slots: int,
    rule: Rule = "match",
    temperature: float = 0.0,
    rounds: int = 7,
    report: Callable[[str], None] | None = None,
) -> CostTable:
    """Time whole steps of the program that `generate` runs, and tell their parts.

    A step is timed at each width, and once without its draft; the draft is what the
    step at width 1 takes longer with it than without. All programs of a batch are
    compiled and run once before anything counts, then take turns. The text that is
    decoded is of no matter: every step reads as many tokens, and a row that has ended
    costs as much as one that runs.

    Args:
        target: as for `generate`, and so are the others.
        params: of target and drafter, where they will be.
        drafter: whose drafts are timed.
        batches: rows.
        widths: nodes that the target reads of each row; 1 is added, and the drafter's
            own number is the most.
        slots: of the cache. What they are used for does not matter, their number does.
        rule: of verification.
        temperature: 0, or another: noise costs time too.
        rounds: turns, of which the median counts.
        report: is told of every batch when it is done.

    Raises:
        ValueError: for widths that the drafter does not have, too few slots, whatever
            `generate` refuses, and where the result is flat: see `CostTable`.
    """
    widths = sorted({1, *widths})
    if not batches or rounds < 1:
        raise ValueError("measure_cost needs a batch and a round at least")
    if widths[0] < 1 or widths[-1] > drafter.num_nodes:
        raise ValueError(
            f"widths must be 1 … {drafter.num_nodes}, the nodes of {drafter}, not "
            f"{widths}"
        )
    verify, draft = [], []
    for batch in sorted(set(batches)):
        plain, *steps = _seconds(
            target, params, drafter, batch, widths, slots, rule, temperature, rounds
        )
        drafting = max(steps[0] - plain, 0.0)
        draft.append(drafting)
        verify.append([plain, *(x - drafting for x in steps[1:])])
        if report is not None:
            said = ", ".join(f"{1e3 * x:.3g}" for x in verify[-1])
            report(f"{batch} rows: verify {said} ms, draft {1e3 * drafting:.3g} ms")
    return CostTable.monotone(
        sorted(set(batches)),
        widths,
        verify,
        draft,
        Fingerprint.of(target, params, drafter),
        temperature=temperature,
        slots=slots,
    )


def _seconds(
    target: Target,
    params: Params,
    drafter: Drafter,
    batch: int,
    widths: list[int],
    slots: int,
    rule: Rule,
    temperature: float,
    rounds: int,
) -> list[float]:
    """Of a step without a draft, and of one at each width."""
    prompts = np.arange(batch * _PROMPT).reshape(batch, _PROMPT) % target.vocab_size
    call = prepare(
        target,
        params,
        drafter,
        prompts,
        sampling=Sampling(temperature=temperature),
        rule=rule,
        max_length=slots,
        samples=1,
        logprobs=None,
        state=None,
    )
    run = _begin(call.program, params, call.state, call.request)
    programs = [
        dataclasses.replace(
            call.program, chunk=0, drafter=_Sure(drafter), schedule=_Forced(width)
        )
        for width in (0, *widths)
    ]
    taken = np.zeros((rounds + 1, len(programs)))
    for turn in range(rounds + 1):
        for i, program in enumerate(programs):
            state = program.schedule.init(batch) if program.schedule else None
            begun = run._replace(schedule=state)
            taken[turn, i] = _timed(program, params, call.request, begun)
    return (np.median(taken[1:], axis=0) / _STEPS).tolist()


def _timed(program: Program, params: Params, request: Request, run: Run) -> float:
    owned = jax.block_until_ready(jax.tree.map(jnp.copy, run))
    start = time.perf_counter()
    jax.block_until_ready(_steps(program, params, request, owned))
    return time.perf_counter() - start


_begin = jax.jit(_run.begin, static_argnames="program", donate_argnames="state")


@functools.partial(jax.jit, static_argnames="program", donate_argnames="run")
def _steps(program: Program, params: Params, request: Request, run: Run) -> Run:
    return jax.lax.fori_loop(
        0, _STEPS, lambda _, run: _loop.step(program, params, request, run), run
    )


@dataclasses.dataclass(frozen=True)
class _Forced:
    """Always this width; 0 is a step without a draft."""

    width: int
    anticipates: bool = dataclasses.field(default=False, init=False)
    needs_confidence: bool = dataclasses.field(default=False, init=False)

    @property
    def widths(self) -> tuple[int, ...]:
        return (1,) if self.width < 2 else (1, self.width)

    def init(self, batch: int) -> Any:
        # Data, or the compiler would leave out the branches that are not taken.
        return jnp.asarray(self.width, jnp.int32)

    def before(self, state: Any) -> Bool[Array, ""]:
        return state > 0

    def choose(self, state: Any, draft: Draft, is_running: Bool[Array, " B"]) -> Choice:
        index = jnp.minimum(state - 1, len(self.widths) - 1)
        return Choice(index, jnp.ones_like(draft.valid), state)

    def after(
        self,
        state: Any,
        has_drafted: Bool[Array, ""],
        index: Int[Array, ""],
        length: Int[Array, " B"],
    ) -> Any:
        return state


@dataclasses.dataclass(frozen=True)
class _Sure:
    """A drafter that always has a guess, so that every step is as wide as it should."""

    drafter: Drafter

    @property
    def taps(self) -> tuple[int | str, ...]:
        return self.drafter.taps

    @property
    def num_nodes(self) -> int:
        return self.drafter.num_nodes

    @property
    def max_depth(self) -> int:
        return self.drafter.max_depth

    @property
    def kind(self) -> Kind:
        return self.drafter.kind

    @property
    def can_pass(self) -> bool:
        return False

    def init(self, batch: int, slots: int) -> Any:
        return self.drafter.init(batch, slots)

    def draft(
        self,
        target: Target,
        params: Params,
        state: Any,
        root: Int[Array, " B"],
        sampler: Any,
    ) -> tuple[Draft, Any]:
        draft, state = self.drafter.draft(target, params, state, root, sampler)
        return draft._replace(valid=jnp.ones_like(draft.valid)), state

    def update(self, target: Target, params: Params, state: Any, accepted: Any) -> Any:
        return self.drafter.update(target, params, state, accepted)
