"""Things timed by turns, after a warm-up."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specdec_jax.bench import timed


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
