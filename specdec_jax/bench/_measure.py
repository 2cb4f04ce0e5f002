"""How fast a group of prompts is decoded, by several ways taking turns."""

import dataclasses
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from specdec_jax._door import choose_chunk
from specdec_jax._generate import Generation, generate
from specdec_jax._options import Sampling
from specdec_jax._schedule_types import Schedule
from specdec_jax._state import slots_for
from specdec_jax._stats import Stats
from specdec_jax._types import Drafter, Params, Target
from specdec_jax.bench._prompts import Group
from specdec_jax.bench._timing import timed

PLAIN = "plain"
_WARM = 4  # new tokens of a run that does not count


class Timed(NamedTuple):
    """One generation of a group. Reading is the prompt and the first token of each row,
    decoding all the rest; what the drafter did is of the rest.
    """

    reading: float  # seconds
    decoding: float  # seconds; 0 where the first token ended every row
    tokens: list[np.ndarray]
    stats: Stats | None  # summed over rows


@runtime_checkable
class Runner(Protocol):
    """A way to generate text, called by its name in results."""

    @property
    def name(self) -> str: ...

    def kind(self, group: Group) -> Hashable:
        """What its programs depend on: one of a kind runs once before it counts."""
        ...

    def run(self, group: Group, *, limit: int) -> Timed:
        """Generate at most `limit` tokens a row."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Decoding:
    """`generate` with one drafter.

    Args:
        name: in results.
        target: the model.
        params: of target and drafter.
        drafter: what proposes.
        new_tokens: the most that `run` will be asked for; it sets the cache's slots.
        stop_ids: end a row.
        schedules: how much of a draft is verified, by temperature; all by default.
    """

    name: str
    target: Target
    params: Params
    drafter: Drafter
    new_tokens: int
    stop_ids: tuple[int, ...]
    schedules: Mapping[float, Schedule] = dataclasses.field(default_factory=dict)

    def slots(self, group: Group) -> int:
        """Of the cache."""
        return slots_for(self.target, group.longest + self.new_tokens)

    def kind(self, group: Group) -> Hashable:
        """Slots, prompt tokens read at once, rows and schedule."""
        unread = max(len(prompt.ids) for prompt in group.prompts) - 1
        chunk = choose_chunk(unread, group.batch)
        schedule = self.schedules.get(group.temperature)
        return self.slots(group), chunk, group.batch, schedule

    def run(self, group: Group, *, limit: int) -> Timed:
        """In two calls, so that reading the prompt is timed apart."""
        prompts = [prompt.ids for prompt in group.prompts]
        slots = self.slots(group)
        reading, first = timed(
            lambda: self.generate(group, prompts, [1] * group.batch, max_length=slots)
        )
        is_over = np.array([reason == "stop_id" for reason in first.reasons])
        if is_over.all() or limit == 1:
            return Timed(reading, 0.0, first.tokens, None)
        texts = [
            [*prompt, *tokens.tolist()]
            for prompt, tokens in zip(prompts, first.tokens, strict=True)
        ]
        # A row that is over goes on for one token, which does not count.
        limits = [1 if over else limit - 1 for over in is_over]
        decoding, rest = timed(
            lambda: self.generate(group, texts, limits, state=first.state)
        )
        tokens = [
            begun if over else np.concatenate([begun, more])
            for begun, more, over in zip(
                first.tokens, rest.tokens, is_over, strict=True
            )
        ]
        stats = jax.tree.map(lambda x: np.asarray(x)[~is_over].sum(0)[None], rest.stats)
        return Timed(reading, decoding, tokens, stats)

    def generate(
        self, group: Group, prompts: Any, limits: list[int], **more: Any
    ) -> Generation:
        """The group's law, with these limits."""
        generation = generate(
            self.target,
            self.params,
            self.drafter,
            prompts,
            sampling=Sampling(
                temperature=group.temperature,
                seed=group.seeds,
                max_new_tokens=limits,
                stop_ids=self.stop_ids,
            ),
            schedule=self.schedules.get(group.temperature),
            **more,
        )
        jax.block_until_ready(generation.state)
        return generation


def measure(
    group: Group,
    runners: Sequence[Runner],
    *,
    limit: int,
    turn: int,
    warm: set[Hashable],
) -> dict[str, Any]:
    """Run every runner once, after a short run that does not count where a program may
    be new; and again where it was the first to read so many tokens at once, for which
    a program has a branch of its own.

    Args:
        group: what to decode.
        runners: the first of them is what the others' texts are compared with.
        limit: new tokens of each row.
        turn: its parity says which runner begins.
        warm: what has run before; filled here.

    Returns:
        What `Results.groups` keeps.
    """
    done: dict[str, Timed] = {}
    for runner in list(runners)[:: -1 if turn % 2 else 1]:
        kind = runner.name, runner.kind(group)
        if kind not in warm:
            warm |= {kind, *_branches(kind, runner.run(group, limit=min(_WARM, limit)))}
        run = runner.run(group, limit=limit)
        if new := _branches(kind, run) - warm:
            warm |= new
            run = runner.run(group, limit=limit)
        done[runner.name] = run
    expected = done[runners[0].name].tokens
    return {
        "task": group.task,
        "temperature": group.temperature,
        "batch": group.batch,
        "part": group.part,
        "load": round(os.getloadavg()[0], 2),
        "prompts": [prompt.name for prompt in group.prompts],
        "prompt_tokens": [len(prompt.ids) for prompt in group.prompts],
        "runs": {
            runner.name: _record(done[runner.name], expected) for runner in runners
        },
    }


def _branches(kind: Hashable, run: Timed) -> set[Hashable]:
    """What of a program has run: the widths, where they are counted, or else whether
    there were steps with drafts and without.
    """
    stats = run.stats
    if stats is None:
        return set()
    if stats.widths is not None:
        return {(kind, int(i)) for i in np.flatnonzero(np.sum(stats.widths, axis=0))}
    steps, drafted = np.sum(stats.steps), np.sum(stats.proposed[:, 1:2])
    found = {"drafted": drafted > 0, "alone": drafted < steps}
    return {(kind, name) for name, is_there in found.items() if is_there}


def _record(run: Timed, expected: list[np.ndarray]) -> dict[str, Any]:
    return {
        "reading": run.reading,
        "decoding": run.decoding,
        "new_tokens": [len(tokens) for tokens in run.tokens],
        "same_text": sum(map(np.array_equal, run.tokens, expected)),
        "stats": None
        if run.stats is None
        else {
            name: x[0].tolist()
            for name, x in run.stats._asdict().items()
            if x is not None
        },
    }
