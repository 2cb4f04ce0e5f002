"""The filters against sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import _filters

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZES = (13, 397)  # below and beyond what is searched without a bisection
TOP_K, TOP_P, MIN_P = (
    jax.jit(x) for x in (_filters.top_k, _filters.top_p, _filters.min_p)
)


def hard_rows(size: int) -> np.ndarray:
    """ "B N V": what could go wrong with an order made of float bits."""
    random = np.random.default_rng(0)
    rows = random.normal(0, 3, (6, 9, size)).astype(np.float32)
    rows[:, 1] = np.round(rows[:, 1])  # ties, at any threshold
    rows[:, 2] = np.where(random.random(size) < 0.5, -np.inf, rows[:, 2])
    rows[:, 3] = np.where(
        np.arange(size) % 2, 0.0, -0.0
    )  # one number, two bit patterns
    rows[:, 3, :4] = [1.0, -1.0, 0.5, -np.inf]
    rows[:, 4] = 2.5  # all the same
    rows[:, 5] *= 1e30
    rows[:, 6] *= 1e-30
    rows[:, 7] = -np.abs(rows[:, 7])
    rows[:, 8] = -np.inf
    rows[:, 8, 4] = -3.0  # one token left
    return rows


def same(found: jax.Array, scores: np.ndarray, is_kept: np.ndarray) -> None:
    """What is kept keeps its bits; the rest is -inf."""
    expected = np.where(is_kept, scores, -np.inf)
    np.testing.assert_array_equal(
        np.asarray(found).view(np.int32), expected.astype(np.float32).view(np.int32)
    )


def every_row_alone(filter_, scores, amount) -> jax.Array:
    """A row that needs the bisection gives it to its whole batch: here it does not."""
    rows = [filter_(scores[i : i + 1], amount[i : i + 1]) for i in range(len(scores))]
    return jnp.concatenate(rows)


def together(filter_, scores, amount) -> jax.Array:
    return filter_(scores, amount)


@pytest.mark.parametrize("run", [together, every_row_alone])
@pytest.mark.parametrize("size", SIZES)
def test_top_k_is_sorting(size, run):
    scores = hard_rows(size)
    k = np.array([1, 2, 5, size - 1, size, size + 7], np.int32)
    ordered = np.sort(scores, axis=-1)[..., ::-1]
    threshold = np.stack([ordered[i, :, min(n, size) - 1] for i, n in enumerate(k)])
    same(run(TOP_K, scores, k), scores, scores >= threshold[..., None])


@pytest.mark.parametrize("run", [together, every_row_alone])
@pytest.mark.parametrize("size", SIZES)
def test_top_p_is_sorting(size, run):
    scores, p = hard_rows(size), np.array([1e-6, 0.3, 0.5, 0.9, 0.999, 1.0], np.float32)
    mass = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    mass /= mass.sum(-1, keepdims=True)
    larger = scores[..., None, :] > scores[..., :, None]
    before = (mass[..., None, :] * larger).sum(-1)  # the mass of all larger scores
    is_kept = (before < p[:, None, None]) | (p == 1)[:, None, None]
    same(run(TOP_P, scores, p), scores, is_kept)


@pytest.mark.parametrize("size", SIZES)
def test_min_p_is_dividing(size):
    scores, p = hard_rows(size), np.array([0.0, 1e-3, 0.1, 0.5, 0.9, 1.0], np.float32)
    below = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        same(MIN_P(scores, p), scores, below >= np.log(p)[:, None, None])


@pytest.mark.parametrize("filter_", [TOP_K, TOP_P])
def test_scores_of_both_signs_alone(filter_):
    """No other row keeps the search going."""
    scores = np.random.default_rng(2).normal(0, 3, (1, 1, 397)).astype(np.float32)
    amount = np.array([300], np.int32) if filter_ is TOP_K else np.array([0.999])
    wide = np.concatenate([scores, scores, -scores])
    alone = filter_(scores, amount.astype(amount.dtype))
    together = filter_(wide, np.repeat(amount, 3))
    np.testing.assert_array_equal(alone[0], together[0])
    assert 64 < np.isfinite(alone).sum() < 397


def test_a_mass_that_is_just_enough_is_so_beside_any_other():
    """Laws whose largest tokens have a mass of p, up to rounding: what else is in the
    batch, and whether it needs a longer search, must not matter.
    """
    flat = np.zeros(100, np.float32)
    rng, rounded = np.random.default_rng(3), 0
    for _ in range(40):
        parts = rng.integers(1, 20, 8)
        mass = np.sort(parts / parts.sum())[::-1]
        scores = np.full(100, -np.inf, np.float32)
        scores[:8] = np.log(mass)
        p = np.array([mass[: rng.integers(2, 7)].sum()], np.float32)
        alone = TOP_P(scores[None, None], p)[0, 0]
        beside = TOP_P(np.stack([scores, flat])[None], p)[0, 0]
        batched = TOP_P(np.stack([flat, scores])[:, None], np.repeat(p, 2))[1, 0]
        np.testing.assert_array_equal(alone, beside)
        np.testing.assert_array_equal(alone, batched)
        rounded += np.isfinite(alone).sum() != (np.cumsum(mass) < p[0]).sum() + 1
    assert rounded  # or nothing was near


def test_zeros_tie():
    """0.0 and -0.0 are one number: top-1 keeps both."""
    scores = jnp.array([[[-0.0, -1.0, 0.0, -2.0]]], jnp.float32)
    found = _filters.top_k(scores, jnp.array([1], jnp.int32))
    np.testing.assert_array_equal(np.isfinite(found), [[[True, False, True, False]]])


@pytest.mark.parametrize("p", [0.3, 0.5, 0.75])
def test_top_p_keeps_all_that_tie(p):
    """Of four equal tokens there is no smallest set: all are kept."""
    found = _filters.top_p(jnp.zeros((1, 1, 4)), jnp.array([p], jnp.float32))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("nan", [np.nan, -np.nan], ids=["nan", "-nan"])
@pytest.mark.parametrize(
    ("keep", "amount"),
    [(TOP_K, np.int32(1)), (TOP_P, np.float32(0.5)), (MIN_P, np.float32(0.5))],
    ids=["top_k", "top_p", "min_p"],
)
def test_nan_stays(keep, amount, nan):
    """What a broken model says must reach whoever reports it; a neighbour in the batch
    is spared. (Processors make NaN of either sign.)
    """
    scores = np.zeros((2, 1, 13), np.float32)
    scores[:, 0, 3] = [9.0, nan]
    found = np.asarray(keep(scores, np.full(2, amount)))
    assert np.isnan(found[1, 0, 3])
    np.testing.assert_array_equal(np.isfinite(found[0, 0]), np.arange(13) == 3)
