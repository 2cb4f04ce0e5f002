"""Ahead-of-time compilation: the executable of a whole `generate`, and its needs."""

import dataclasses
import time
from typing import Any

import jax

from specdec_jax import _sharding
from specdec_jax._door import (
    Logprobs,
    Prompts,
    check_max_length,
    choose_chunk,
    make_program,
    prepare,
)
from specdec_jax._generate import Generation, finish, run_program
from specdec_jax._options import Sampling, check_whole, make_request
from specdec_jax._run import Program, State
from specdec_jax._schedule_types import Schedule
from specdec_jax._state import init_state
from specdec_jax._types import Drafter, Params, Rule, Target


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes per device. Donated arguments are reused for outputs (`aliased`)."""

    arguments: int
    outputs: int
    aliased: int
    temporary: int
    code: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A generation compiled for one batch size and number of slots; call it on prompts.

    Attributes:
        batch: rows.
        slots: of the cache.
        seconds: what lowering and compiling took.
        memory: bytes per device.
        cost: XLA's own estimate ("flops", "bytes accessed", …), loops counted once.
        executable: jax's compiled object; `executable.as_text()` is the program.
    """

    batch: int
    slots: int
    seconds: float
    memory: Memory
    cost: dict[str, float]
    executable: Any = dataclasses.field(repr=False)
    program: Program = dataclasses.field(repr=False)
    structure: Any = dataclasses.field(repr=False)

    def __call__(
        self,
        params: Params,
        prompts: Prompts,
        *,
        sampling: Sampling | None = None,
        state: State | None = None,
        raise_on_failure: bool = True,
    ) -> Generation:
        """As `generate`, with what was compiled.

        Raises:
            ValueError: besides `generate`'s reasons, where the call needs another
                program: another batch size, other options switched on.
        """
        program = self.program
        call = prepare(
            program.target,
            params,
            program.drafter,
            prompts,
            sampling=sampling,
            rule=program.rule,
            max_length=self.slots if state is None else None,
            samples=1,
            logprobs=program.logprobs,
            state=state,
            schedule=program.schedule,
        )
        if call.program.chunk and not program.chunk:
            raise ValueError(
                "compiled for prompts of one token: compile with a longer max_prompt"
            )
        found = _structure((params, call.state, call.request))
        if found != self.structure or call.program.mesh != program.mesh:
            raise ValueError(
                f"this was compiled for {self.batch} rows, {self.slots} slots and the "
                "sampling options of that call; another batch size, dtype or mesh, or "
                f"another option switched on, needs another program: {found} instead "
                f"of {self.structure}"
            )
        run = self.executable(params, call.state, call.request)
        return finish(run, raise_on_failure)


def compile(
    target: Target,
    params: Params,
    drafter: Drafter,
    *,
    batch: int,
    max_length: int,
    max_prompt: int | None = None,
    sampling: Sampling | None = None,
    rule: Rule = "match",
    logprobs: Logprobs = None,
    schedule: Schedule | None = None,
) -> Compiled:
    """Compile a whole generation ahead of time; nothing runs and nothing is allocated.

    Args:
        target: as for `generate`.
        params: arrays, or `jax.ShapeDtypeStruct`s (with shardings, for a mesh).
        drafter: as for `generate`.
        batch: rows.
        max_length: slots of the cache.
        max_prompt: tokens of the longest prompt, which sets how many are read at once;
            `max_length` by default. Longer prompts are read in more turns.
        sampling: which options are on; their values may differ from call to call.
        rule: as for `generate`.
        logprobs: as for `generate`.
        schedule: as for `generate`.

    Raises:
        ValueError: as `generate`.
    """
    program = make_program(
        target, params, drafter, rule=rule, logprobs=logprobs, schedule=schedule
    )
    check_whole("batch", batch)
    if max_prompt is not None:
        check_whole("max_prompt", max_prompt)
    if schedule is not None:
        jax.eval_shape(lambda: schedule.init(batch))
    slots = check_max_length(target, max_length)
    chunk = choose_chunk((max_prompt or slots) - 1, batch)
    program = dataclasses.replace(program, chunk=chunk)
    sampling = Sampling() if sampling is None else sampling
    abstract = jax.eval_shape(
        lambda: (
            init_state(target, drafter, batch, slots),
            make_request(sampling, batch=batch, vocab_size=target.vocab_size),
        )
    )
    if program.mesh is not None:
        abstract = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=sharding
            ),
            abstract,
            _sharding.row_shardings(abstract, program.mesh),
        )
    start = time.perf_counter()
    executable = run_program.lower(program, params, *abstract).compile()
    seconds = time.perf_counter() - start
    sizes: Any = executable.memory_analysis()
    return Compiled(
        batch=batch,
        slots=slots,
        seconds=seconds,
        memory=Memory(
            arguments=sizes.argument_size_in_bytes,
            outputs=sizes.output_size_in_bytes,
            aliased=sizes.alias_size_in_bytes,
            temporary=sizes.temp_size_in_bytes,
            code=sizes.generated_code_size_in_bytes,
        ),
        cost=dict(executable.cost_analysis() or {}),
        executable=executable,
        program=program,
        structure=_structure((params, *abstract)),
    )


def _structure(arguments: Any) -> Any:
    """What an executable depends on: the arrays there are, their shapes and dtypes."""
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple((x.shape, x.dtype) for x in leaves)
