"""Seconds that can be compared, and their spread."""

import time
from collections.abc import Callable
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
        """Of a sequence of numbers; NaN where it is empty."""
        numbers = np.asarray(values, np.float64)
        if not numbers.size:
            return cls(float("nan"), float("nan"), float("nan"))
        low, median, high = np.percentile(numbers, [25, 50, 75])
        return cls(float(median), float(low), float(high))

    def show(self, digits: int = 2) -> str:
        """`median (low–high)`; empty for NaN."""
        if self.median != self.median:
            return ""
        return (
            f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"
        )


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until everything that a call returns is there, and what it returns."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result
