"""How true probabilities are."""

import numpy as np
from jaxtyping import Bool, Float

from specdec_jax.schedule import Score

BINS = 20


def score(said: Float[np.ndarray, " n"], came: Bool[np.ndarray, " n"]) -> Score:
    """All three of them."""
    return Score(ece(said, came), auroc(said, came), brier(said, came))


def reliability(
    said: Float[np.ndarray, " n"], came: Bool[np.ndarray, " n"]
) -> tuple[
    Float[np.ndarray, " bins"], Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]
]:
    """Of bins of equal width: what was said on average, how often it came true, and how
    often it was said; NaN in the first two where it never was.
    """
    which = np.minimum((said * BINS).astype(int), BINS - 1)
    count = np.bincount(which, minlength=BINS).astype(float)
    sums = (
        np.bincount(which, weights=weights.astype(float), minlength=BINS)
        for weights in (said, came)
    )
    with np.errstate(invalid="ignore"):
        mean, share = (total / count for total in sums)
    return mean, share, count


def ece(said: Float[np.ndarray, " n"], came: Bool[np.ndarray, " n"]) -> float:
    """Expected calibration error: the mean distance between what a bin says and how
    often it comes true; NaN of nothing.
    """
    if not len(said):
        return float("nan")
    mean, share, count = reliability(said, came)
    return float(np.nansum(np.abs(mean - share) * count) / count.sum())


def auroc(said: Float[np.ndarray, " n"], came: Bool[np.ndarray, " n"]) -> float:
    """How often what came true was thought likelier than what did not, ties by half;
    NaN where there is one of them only.
    """
    hits, misses = int(came.sum()), int((~came).sum())
    if not hits or not misses:
        return float("nan")
    values, inverse, counts = np.unique(said, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    rank = below + (counts + 1) / 2
    return float((rank[inverse][came].sum() - hits * (hits + 1) / 2) / (hits * misses))


def brier(said: Float[np.ndarray, " n"], came: Bool[np.ndarray, " n"]) -> float:
    """Mean squared error; NaN of nothing."""
    return float(np.mean((said - came) ** 2)) if len(said) else float("nan")
