"""Times that can be compared: taken by turns, after a warm-up, with their spread."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np


class Spread(NamedTuple):
    """The median of repeated measurements, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> "Spread":
        low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75])
        return cls(float(median), float(low), float(high))

    def show(self, digits: int = 2) -> str:
        return (
            f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"
        )


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until everything that a call returns is there, and what it returns."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def by_turns(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int, tick: Callable[[], None]
) -> dict[str, np.ndarray]:
    """Seconds of each call in each round, after one of each that does not count.

    Rounds go through the calls in alternating order, so that none always comes first.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name in list(calls)[:: 1 if round_ % 2 else -1]:
            taken, _ = timed(calls[name])
            if round_ > 0:
                seconds[name].append(taken)
            tick()
    return {name: np.array(values) for name, values in seconds.items()}
