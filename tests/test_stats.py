"""What is counted, and the identities between the counts."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    DRAFTERS,
    FULL_ROWS,
    PROMPTS,
    SEEDS,
    arguments,
    sampling_of,
    with_limit,
)

import specdec_jax as sd
from specdec_jax import _stats, _tree
from specdec_jax._types import Draft

pytestmark = pytest.mark.usefixtures("quick_compile")


def record(steps: list[tuple[list[bool], int]]) -> _stats.Stats:
    """One row that drafts a chain of three: what was valid, how many tokens stood."""
    stats = _stats.init_stats(1, 4)
    parents = _tree.chain(1, 4)
    for valid, length in steps:
        nodes = jnp.asarray([[True, *valid]])
        draft = Draft(jnp.zeros((1, 4), jnp.int32), parents, nodes)
        stats = _stats.record(stats, draft, jnp.asarray([length], jnp.int32))
    return stats


def test_counts_of_hand_written_steps():
    stats = record(
        [
            ([True, True, True], 4),  # all kept
            ([True, True, True], 2),  # one kept
            ([True, False, False], 1),  # none kept
            ([False, False, False], 1),  # nothing proposed
            ([True, True, True], 0),  # the row had ended
        ]
    )
    assert stats.steps.tolist() == [4]
    assert stats.drafted.tolist() == [7]
    assert stats.proposed.tolist() == [[4, 3, 2, 2]]
    assert stats.chances.tolist() == [[4, 3, 2, 1]]
    assert stats.accepted.tolist() == [[2, 1, 0, 1]]
    assert stats.histogram().tolist() == [2, 1, 0, 1]
    assert stats.acceptance_length() == 2.0
    assert stats.acceptance_length_by_row().tolist() == [2.0]
    assert stats.acceptance_by_depth().tolist() == [0.5, 0.25, 0.25]
    assert stats.conditional_acceptance().tolist() == [2 / 3, 0.5, 1.0]


def test_conditional_acceptance_counts_the_same_steps_above_and_below():
    """Depth 2 was proposed where depth 1 failed, and not where depth 1 was kept: it has
    never had a chance.
    """
    stats = record([([True, True, False], 1), ([True, False, False], 2)])
    np.testing.assert_array_equal(stats.conditional_acceptance(), [0.5, np.nan, np.nan])


def test_nothing_yet():
    stats = _stats.init_stats(2, 3)
    assert stats.acceptance_length() == 0.0
    assert np.isnan(stats.acceptance_length_by_row()).all()
    assert stats.acceptance_by_depth().tolist() == [0.0, 0.0]
    assert np.isnan(stats.conditional_acceptance()).all()


@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "iid"])
def test_identities(drafter):
    """Of texts that were cut by stop ids and limits in the middle of blocks."""
    rows = with_limit(FULL_ROWS, 40)
    generation = sd.generate(
        *arguments(drafter), PROMPTS, sampling=sampling_of(rows, seed=SEEDS)
    )
    stats = generation.stats
    emitted = np.array([len(row) for row in generation.tokens])
    kept = stats.accepted @ np.arange(stats.accepted.shape[1])
    np.testing.assert_array_equal(stats.steps + kept, emitted)
    np.testing.assert_array_equal(stats.accepted.sum(1), stats.steps)
    np.testing.assert_array_equal(stats.proposed[:, 0], stats.steps)
    assert (kept <= stats.drafted).all()
    assert (stats.proposed.sum(1) - stats.steps <= stats.drafted).all()
    np.testing.assert_allclose(stats.acceptance_length_by_row(), emitted / stats.steps)
    length = stats.acceptance_length()
    assert length == pytest.approx(emitted.sum() / stats.steps.sum())
    assert length == pytest.approx(1 + stats.acceptance_by_depth().sum())
    histogram = stats.histogram()
    assert length - 1 == pytest.approx(
        histogram @ np.arange(len(histogram)) / histogram.sum()
    )
    by_depth = stats.acceptance_by_depth()
    assert (np.diff(by_depth) <= 0).all()
    conditional = stats.conditional_acceptance()
    assert ((conditional >= 0) & (conditional <= 1) | np.isnan(conditional)).all()
    # A kept draft was supplied by the drafter; the last one of a row may have been cut
    # down to what the target would have said itself.
    supplied = np.array([row.sum() for row in generation.is_drafted])
    assert ((supplied - kept >= 0) & (supplied - kept <= 1)).all()
