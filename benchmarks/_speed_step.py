"""What a step of `generate` adds to its forward, logits and argmax."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _evaluation import Prompt
from _timing import Spread, timed
from jaxtyping import Array, Int

import specdec_jax as sd
from specdec_jax import _loop, _tree
from specdec_jax._door import prepare
from specdec_jax._loop import State
from specdec_jax._types import Block, Cache, Target

SLOTS = 512
SAMPLINGS = {
    "temperature 0": sd.Sampling(),
    "temperature 0.8, top-p 0.9": sd.Sampling(temperature=0.8, top_p=0.9),
}

_begin = jax.jit(_loop.begin, static_argnums=0, donate_argnums=2)
_step = jax.jit(_loop.step, static_argnums=0, donate_argnums=3)


@functools.partial(jax.jit, static_argnames="target")
def _bare(target: Target, params: Any, cache: Cache, block: Block) -> Int[Array, "B T"]:
    output = target.forward(params, cache, block, ())
    return target.logits(params, output.hidden).argmax(-1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A drafter, a sampling, and a conversation with nothing left to read."""

    model: sd.LanguageModel
    drafter: Any
    sampling: sd.Sampling
    ids: list[int]
    state: State

    def inside(self, new_tokens: int) -> float:
        """Seconds per step in the loop of `generate`: a long call less a short one."""
        short, first = self._generate(1)
        long, steps = self._generate(new_tokens)
        return (long - short) / (steps - first)

    def alone(self, count: int) -> tuple[float, float]:
        """Seconds of a step by itself, and of its forward, logits and argmax; medians
        of `count` turns.
        """
        call = prepare(
            self.model.target,
            self._params,
            self.drafter,
            [self.ids],
            sampling=dataclasses.replace(self.sampling, max_new_tokens=count),
            rule="match",
            max_length=None,
            samples=1,
            logprobs=None,
            state=sd.copy(self.state),
        )
        run = _begin(call.program, self._params, call.state, call.request)
        tokens = jnp.zeros((1, self.drafter.num_nodes), jnp.int32)
        block = _tree.causal_block(tokens)
        seconds = []
        for _ in range(count):
            cache = run.state.cache
            bare, _ = timed(
                lambda cache=cache: _bare(
                    self.model.target, self.model.params, cache, block
                )
            )
            step, run = timed(
                lambda run=run: _step(call.program, self._params, call.request, run)
            )
            seconds.append((step, bare))
        step, bare = np.median(seconds, axis=0).tolist()
        return step, bare

    def _generate(self, limit: int) -> tuple[float, int]:
        """Seconds and steps."""
        state = jax.block_until_ready(sd.copy(self.state))
        stats = []

        def call() -> State:
            done = sd.generate(
                self.model.target,
                self._params,
                self.drafter,
                [self.ids],
                sampling=dataclasses.replace(self.sampling, max_new_tokens=limit),
                state=state,
            )
            stats.append(done.stats)
            return done.state

        seconds, _ = timed(call)
        return seconds, int(stats[0].steps[0])

    @property
    def _params(self) -> sd.Params:
        return sd.Params(self.model.params)


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
    for drafter in (sd.Plain(), sd.NGram()):
        first = sd.generate(
            model.target,
            sd.Params(model.params),
            drafter,
            [prompt.ids],
            sampling=sd.Sampling(max_new_tokens=1),
            max_length=SLOTS,
        )
        ids = [*prompt.ids, *first.tokens[0].tolist()]
        for name, sampling in SAMPLINGS.items():
            case = Case(model, drafter, sampling, ids, first.state)
            seconds = []
            for _ in range(1 + rounds):
                seconds.append((case.inside(new_tokens), *case.alone(new_tokens)))
                tick()
            inside, alone, bare = np.array(seconds[1:]).T
            rows.append(
                {
                    "drafter": type(drafter).__name__,
                    "nodes": drafter.num_nodes,
                    "sampling": name,
                    "prompt_tokens": len(prompt.ids),
                    "slots": SLOTS,
                    "bare_ms": Spread.of(1e3 * bare),
                    "inside_ms": Spread.of(1e3 * inside),
                    "inside_ratio": Spread.of(inside / bare),
                    "alone_ms": Spread.of(1e3 * alone),
                    "alone_ratio": Spread.of(alone / bare),
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| drafter | nodes | sampling | forward + logits + argmax, ms "
        "| step in `generate`, ms | ratio | step alone, ms | ratio |",
        "| --- | --: | --- | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['drafter']} | {row['nodes']} | {row['sampling']} "
        f"| {Spread(*row['bare_ms']).show(1)} "
        f"| {Spread(*row['inside_ms']).show(1)} "
        f"| {Spread(*row['inside_ratio']).show(3)} "
        f"| {Spread(*row['alone_ms']).show(1)} "
        f"| {Spread(*row['alone_ratio']).show(3)} |"
        for row in rows
    ]
    return "\n".join(lines)
