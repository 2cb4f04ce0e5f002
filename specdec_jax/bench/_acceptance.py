"""What drafts are worth, apart from any clock: tokens per verification, by task, with
an interval.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specdec_jax._generate import generate
from specdec_jax._options import Sampling
from specdec_jax._stats import Stats
from specdec_jax._types import Params, Target
from specdec_jax.bench._prompts import Prompt, fresh_rows, make_groups
from specdec_jax.bench._summary import ALL

_DRAWS = 2000  # of the bootstrap
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Of one task, or of all, at one temperature.

    Attributes:
        task: or "all tasks".
        temperature: of the answers.
        prompts: that were answered.
        tau: tokens emitted per verification.
        low: below it τ lies with a probability of 2.5 %, by a bootstrap over prompts.
        high: the same above.
        by_depth: share of the verifications that kept a token at depth 1, 2, …
        conditional: share of those that got so far and proposed this deep.
    """

    task: str
    temperature: float
    prompts: int
    tau: float
    low: float
    high: float
    by_depth: tuple[float, ...]
    conditional: tuple[float | None, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> "Acceptance":
        """What `to_json` has made."""
        depths: dict[str, Any] = {
            name: tuple(said[name]) for name in ("by_depth", "conditional")
        }
        return cls(**(said | depths))


class Answers(NamedTuple):
    """What was proposed and accepted in answering the prompts of a task."""

    task: str
    temperature: float
    stats: Stats


def answer(
    target: Target,
    params: Params,
    drafter: Any,
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float],
    batch: int,
    new_tokens: int,
    stop_ids: Sequence[int],
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Answers]:
    """Answer every prompt at every temperature, in batches of one task; each prompt has
    a seed of its own, whatever batch it is in.
    """
    groups = make_groups(prompts, temperatures=temperatures, batches=[batch])
    longest = max(len(prompt.ids) for prompt in prompts)
    answers = []
    for number, group in enumerate(groups):
        generation = generate(
            target,
            params,
            drafter,
            [prompt.ids for prompt in group.prompts],
            sampling=Sampling(
                temperature=group.temperature,
                max_new_tokens=new_tokens,
                stop_ids=tuple(stop_ids),
                seed=group.seeds,
            ),
            max_length=longest + new_tokens,
        )
        fresh = fresh_rows(group, prompts)
        stats = jax.tree.map(lambda x, n=fresh: np.asarray(x)[:n], generation.stats)
        answers.append(Answers(group.task, group.temperature, stats))
        report(number + 1, len(groups))
    return answers


def acceptances(answers: Sequence[Answers]) -> list[Acceptance]:
    """By temperature: every task in its order, then all together."""
    found = []
    for temperature in dict.fromkeys(x.temperature for x in answers):
        of_one = [x for x in answers if x.temperature == temperature]
        tasks = dict.fromkeys(x.task for x in of_one)
        for task in [*tasks, *([ALL] if len(tasks) > 1 else [])]:
            chosen = [x.stats for x in of_one if task in (x.task, ALL)]
            stats = jax.tree.map(lambda *x: np.concatenate(x), *chosen)
            found.append(_acceptance(task, temperature, stats))
    return found


def _acceptance(task: str, temperature: float, stats: Stats) -> Acceptance:
    steps = np.asarray(stats.steps, np.float64)
    histogram = np.asarray(stats.accepted, np.float64)
    kept = histogram @ np.arange(histogram.shape[1])
    random = np.random.default_rng(0)
    drawn = random.integers(len(steps), size=(_DRAWS, len(steps)))
    taus = 1 + kept[drawn].sum(1) / np.maximum(steps[drawn].sum(1), 1)
    low, high = np.quantile(taus, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    conditional = stats.conditional_acceptance()
    return Acceptance(
        task,
        temperature,
        len(steps),
        stats.acceptance_length(),
        float(low),
        float(high),
        tuple(stats.acceptance_by_depth().tolist()),
        tuple(None if np.isnan(x) else float(x) for x in conditional),
    )
