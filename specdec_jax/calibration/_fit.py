"""Temperatures depth by depth (sequential temperature scaling: DSpark, Cheng et al.
2026, arXiv 2607.05147, §3.2.1).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from specdec_jax.calibration._scores import ece

Loss = Literal["ece", "nll"]
GRID = np.geomspace(0.125, 8.0, 49)
FEWEST = 20  # steps to fit a depth by; with fewer it has the temperature above it


class Outcomes(NamedTuple):
    """What a chain said of its nodes, and what became of them: one row for each step of
    each text.
    """

    logit: Float[np.ndarray, "n depth"]  # of confidence
    is_drafted: Bool[np.ndarray, "n depth"]  # valid, and all above it
    is_accepted: Bool[np.ndarray, "n depth"]  # and all above it
    text: np.ndarray  # "n": which one

    def of(self, chosen: Bool[np.ndarray, " n"]) -> "Outcomes":
        """Some of the steps."""
        return Outcomes(*(x[chosen] for x in self))


def join(parts: Sequence[Outcomes]) -> Outcomes:
    """Of several batches, their texts numbered through."""
    texts = np.cumsum([0, *(part.text.max(initial=-1) + 1 for part in parts)])
    shifted = [
        part._replace(text=part.text + before)
        for part, before in zip(parts, texts[:-1], strict=True)
    ]
    return Outcomes(*(np.concatenate(x) for x in zip(*shifted, strict=True)))


def fit(outcomes: Outcomes, loss: Loss = "ece") -> tuple[float, ...]:
    """One temperature for each depth.

    With "ece" that whose survival, the product with the depths above as already fitted,
    has the least calibration error; with "nll" that under which the outcomes of steps
    that had accepted all above are likeliest, which is smoother and needs fewer steps.
    At equal loss the one nearest 1.
    """
    found: list[float] = []
    above = np.ones(len(outcomes.logit))
    grid = sorted(GRID.tolist(), key=lambda x: abs(np.log(x)))
    for depth in range(outcomes.logit.shape[1]):
        logit, came = outcomes.logit[:, depth], outcomes.is_accepted[:, depth]
        chosen = outcomes.is_drafted[:, depth]
        if loss == "nll" and depth:
            chosen = chosen & outcomes.is_accepted[:, depth - 1]
        best = found[-1] if found else 1.0
        if chosen.sum() >= FEWEST:
            losses = [
                ece(above[chosen] * sigmoid(logit[chosen] / x), came[chosen])
                if loss == "ece"
                else float(
                    np.mean(np.logaddexp(0, np.where(came, -1, 1) * logit / x)[chosen])
                )
                for x in grid
            ]
            best = grid[int(np.argmin(losses))]
        found.append(best)
        above = above * sigmoid(logit / best)
    return tuple(found)


def survivals(
    outcomes: Outcomes, temperatures: tuple[float, ...]
) -> Float[np.ndarray, "n depth"]:
    """Of every node, as `schedule.survival`."""
    return np.cumprod(sigmoid(outcomes.logit / np.array(temperatures)), axis=1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Without overflow."""
    return np.exp(-np.logaddexp(0, -x))
