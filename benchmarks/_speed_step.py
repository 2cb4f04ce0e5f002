"""What a step of `generate` adds to its bare parts: draft, forward, logits and argmax,
update.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import specdec_jax as sd
from specdec_jax import _loop, _run, _tree
from specdec_jax._door import prepare
from specdec_jax._options import Request
from specdec_jax._run import Program, Run, State
from specdec_jax._types import Accepted, Draft
from specdec_jax.bench import Prompt, Spread, timed

SLOTS = 512
HEAD = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct" / "eagle3"
TREE = sd.GrownTree(num_nodes=8, depth=4, width=3)  # the command line's
SAMPLINGS = {
    "temperature 0": sd.Sampling(),
    "temperature 0.8, top-p 0.9": sd.Sampling(temperature=0.8, top_p=0.9),
}

_begin = jax.jit(_run.begin, static_argnums=0, donate_argnums=2)
_step = jax.jit(_loop.step, static_argnums=0, donate_argnums=3)


@functools.partial(jax.jit, static_argnames="program")
def _draft(
    program: Program, params: sd.Params, request: Request, run: Run
) -> tuple[Draft, Any]:
    sampler = _run.make_sampler(program, request, run)
    drafter, state = program.drafter, run.state.drafter
    return drafter.draft(program.target, params, state, run.state.root, sampler)


@functools.partial(jax.jit, static_argnames=("program", "width"))
def _read(
    program: Program, params: sd.Params, run: Run, draft: Draft, width: int
) -> tuple[Int[Array, "B T"], Float[Array, "B P F"]]:
    block = _tree.draft_block(_tree.prefix(draft, width))
    target = program.target
    output = target.forward(params.target, run.state.cache, block, program.drafter.taps)
    path = jnp.minimum(jnp.arange(program.drafter.max_depth + 1), width - 1)
    tokens = target.logits(params.target, output.hidden).argmax(-1)
    return tokens, output.features[:, path]


@functools.partial(jax.jit, static_argnames="program")
def _update(
    program: Program, params: sd.Params, state: Any, features: Float[Array, "B P F"]
) -> Any:
    tokens = jnp.zeros(features.shape[:2], jnp.int32)
    accepted = Accepted(tokens, features, tokens[:, 0] + 1, tokens[:, 0])
    return program.drafter.update(program.target, params, state, accepted)


@dataclasses.dataclass(frozen=True)
class Case:
    """A drafter, a sampling, and a conversation with nothing left to read."""

    model: sd.LanguageModel
    drafter: Any
    params: sd.Params
    sampling: sd.Sampling
    ids: list[int]
    state: State

    def inside(self) -> float:
        """Seconds of all steps but the first in the loop of `generate`: a whole call
        less one of a single step.
        """
        limit = self.sampling.max_new_tokens
        return self._generate(limit) - self._generate(1)

    def alone(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Per step of the same text: seconds of the step by itself, seconds of its bare
        parts with a block of the same width, and that width.
        """
        call = prepare(
            self.model.target,
            self.params,
            self.drafter,
            [self.ids],
            sampling=self.sampling,
            rule="match",
            max_length=None,
            samples=1,
            logprobs=None,
            state=sd.copy(self.state),
        )
        program = call.program
        run = _begin(program, self.params, call.state, call.request)
        rows, drafted = [], 0
        while not run.reason[0]:
            step, run = timed(
                lambda run=run: _step(program, self.params, call.request, run)
            )
            # Where a step has no draft, it reads the root alone.
            before, drafted = drafted, int(run.stats.drafted[0])
            width = self.drafter.num_nodes if drafted > before else 1
            drafting, (draft, state) = timed(
                lambda run=run: _draft(program, self.params, call.request, run)
            )
            reading, (_, features) = timed(
                functools.partial(_read, program, self.params, run, draft, width)
            )
            updating, _ = timed(
                functools.partial(_update, program, self.params, state, features)
            )
            rows.append((step, drafting + reading + updating, width))
        step, bare, width = np.array(rows).T
        return step, bare, width

    def _generate(self, limit: Any) -> float:
        state = jax.block_until_ready(sd.copy(self.state))
        seconds, _ = timed(
            lambda: (
                sd.generate(
                    self.model.target,
                    self.params,
                    self.drafter,
                    [self.ids],
                    sampling=dataclasses.replace(self.sampling, max_new_tokens=limit),
                    state=state,
                ).state
            )
        )
        return seconds


def measure(
    model: sd.LanguageModel,
    prompts: list[Prompt],
    *,
    new_tokens: int,
    rounds: int,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """For each drafter and sampling, after a round that does not count."""
    prompt = min(prompts, key=lambda x: abs(len(x.ids) - SLOTS // 2))
    rows = []
    head, weights = sd.load_drafter(HEAD, model.target, model.params, tree=TREE)
    for drafter, own in ((sd.Plain(), ()), (sd.NGram(), ()), (head, weights)):
        params = sd.Params(model.params, own)
        first = sd.generate(
            model.target,
            params,
            drafter,
            [prompt.ids],
            sampling=sd.Sampling(max_new_tokens=1),
            max_length=SLOTS,
        )
        ids = [*prompt.ids, *first.tokens[0].tolist()]
        for name, sampling in SAMPLINGS.items():
            sampling = dataclasses.replace(sampling, max_new_tokens=new_tokens)
            case = Case(model, drafter, params, sampling, ids, first.state)
            row = _measure_case(case, rounds, tick)
            row |= {"drafter": type(drafter).__name__, "sampling": name}
            rows.append(row | {"prompt_tokens": len(prompt.ids), "slots": SLOTS})
    return rows


def _measure_case(case: Case, rounds: int, tick: Callable[[], None]) -> dict[str, Any]:
    inside, alone, bare = [], [], []
    width = np.zeros(0)
    for _ in range(1 + rounds):
        total = case.inside()
        step, forward, width = case.alone()
        steps = len(width) - 1  # but the first
        inside.append(total / steps)
        alone.append(step[1:].sum() / steps)
        bare.append(forward[1:].sum() / steps)
        tick()
    inside, alone, bare = (np.array(x[1:]) for x in (inside, alone, bare))
    return {
        "steps": {int(w): int((width[1:] == w).sum()) for w in sorted(set(width[1:]))},
        "bare_ms": Spread.of(1e3 * bare),
        "inside_ms": Spread.of(1e3 * inside),
        "inside_ratio": Spread.of(inside / bare),
        "alone_ms": Spread.of(1e3 * alone),
        "alone_ratio": Spread.of(alone / bare),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| drafter | sampling | steps × width | bare parts, ms "
        "| step in `generate`, ms | ratio | step alone, ms | ratio |",
        "| --- | --- | --- | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        steps = ", ".join(f"{n} × {width}" for width, n in row["steps"].items())
        lines.append(
            f"| {row['drafter']} | {row['sampling']} | {steps} "
            f"| {Spread(*row['bare_ms']).show(1)} "
            f"| {Spread(*row['inside_ms']).show(1)} "
            f"| {Spread(*row['inside_ratio']).show(3)} "
            f"| {Spread(*row['alone_ms']).show(1)} "
            f"| {Spread(*row['alone_ratio']).show(3)} |"
        )
    return "\n".join(lines)
