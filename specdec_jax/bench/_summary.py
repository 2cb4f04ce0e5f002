"""From groups to what is shown: per task and over all, speed-up and acceptance."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec_jax._stats import Stats
from specdec_jax.bench._measure import PLAIN
from specdec_jax.bench._timing import Spread

ALL = "all tasks"


class Summary(NamedTuple):
    """One drafter on one task, at one temperature and batch size. Speeds are tokens per
    second of all rows together, medians over groups with their quartiles; a ratio is
    taken within each group first.
    """

    task: str
    drafter: str
    temperature: float
    batch: int
    rows: int
    new_tokens: int
    same_text: int  # rows whose text is that of plain decoding
    plain: Spread  # of decoding alone, as all but `whole`
    speed: Spread
    ratio: Spread
    whole_ratio: Spread  # of the call, the reading of the prompt included
    pooled_ratio: float  # all tokens over all seconds
    acceptance_length: float | None  # τ, pooled over rows; None where it is not known
    acceptance_by_depth: list[float]  # share of steps that kept depth 1, 2, …
    conditional_acceptance: list[float | None]  # where the depth before was kept
    histogram: list[int]  # steps that kept exactly 0, 1, 2, … drafted tokens

    def to_json(self) -> dict[str, Any]:
        """Plain, and without NaN."""
        return {
            name: [None if math.isnan(x) else x for x in value]
            if isinstance(value, Spread)
            else None
            if isinstance(value, float) and math.isnan(value)
            else value
            for name, value in self._asdict().items()
        }


def summarise(groups: Sequence[dict[str, Any]]) -> list[Summary]:
    """By temperature and batch size; in each the tasks, then all of them together; in
    each the drafters, plain decoding left out.
    """
    summaries = []
    for temperature, batch in dict.fromkeys(
        (group["temperature"], group["batch"]) for group in groups
    ):
        chosen = [
            group
            for group in groups
            if (group["temperature"], group["batch"]) == (temperature, batch)
        ]
        tasks = list(dict.fromkeys(group["task"] for group in chosen))
        for task in [*tasks, ALL] if len(tasks) > 1 else tasks:
            members = [group for group in chosen if task in (group["task"], ALL)]
            summaries += [
                _summary(task, drafter, members)
                for drafter in members[0]["runs"]
                if drafter != PLAIN
            ]
    return summaries


def pooled_stats(runs: Sequence[dict[str, Any]]) -> Stats | None:
    """Of several runs as of one row; None where nothing was decoded, or is known."""
    known = [run["stats"] for run in runs if run["stats"] is not None]
    if not known:
        return None
    return Stats(
        **{name: np.sum([[x[name]] for x in known], axis=0) for name in known[0]}
    )


def _summary(task: str, drafter: str, groups: list[dict[str, Any]]) -> Summary:
    pairs = [(group["runs"][PLAIN], group["runs"][drafter]) for group in groups]
    decoded = [pair for pair in pairs if all(run["decoding"] for run in pair)]
    runs = [run for _, run in pairs]
    stats = pooled_stats(runs)

    def pooled(which: int) -> float:
        tokens = sum(_decoded_tokens(pair[which]) for pair in decoded)
        return tokens / sum(pair[which]["decoding"] for pair in decoded)

    return Summary(
        task=task,
        drafter=drafter,
        temperature=groups[0]["temperature"],
        batch=groups[0]["batch"],
        rows=sum(len(run["new_tokens"]) for run in runs),
        new_tokens=sum(sum(run["new_tokens"]) for run in runs),
        same_text=sum(run["same_text"] for run in runs),
        plain=Spread.of([decoding_speed(plain) for plain, _ in decoded]),
        speed=Spread.of([decoding_speed(run) for _, run in decoded]),
        ratio=Spread.of(
            [decoding_speed(run) / decoding_speed(plain) for plain, run in decoded]
        ),
        whole_ratio=Spread.of(
            [whole_speed(run) / whole_speed(plain) for plain, run in pairs]
        ),
        pooled_ratio=pooled(1) / pooled(0) if decoded else math.nan,
        acceptance_length=None if stats is None else stats.acceptance_length(),
        acceptance_by_depth=[] if stats is None else _list(stats.acceptance_by_depth()),
        conditional_acceptance=[]
        if stats is None
        else [None if math.isnan(x) else x for x in stats.conditional_acceptance()],
        histogram=[] if stats is None else _list(stats.histogram()),
    )


def _decoded_tokens(run: dict[str, Any]) -> int:
    """All but the first of each row."""
    return sum(run["new_tokens"]) - len(run["new_tokens"])


def decoding_speed(run: dict[str, Any]) -> float:
    """Tokens per second after the first of each row."""
    return _decoded_tokens(run) / run["decoding"]


def whole_speed(run: dict[str, Any]) -> float:
    """Tokens per second of the call, the reading of the prompt included."""
    return sum(run["new_tokens"]) / (run["reading"] + run["decoding"])


def _list(values: np.ndarray) -> list[Any]:
    return values.tolist()
