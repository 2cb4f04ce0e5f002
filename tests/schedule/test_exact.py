"""No schedule that ships moves the law by a bit; those that look ahead do.

Three tokens of a vocabulary of three, drafts of depth three, costs with steps; one row,
and two rows that share a schedule, whose joint law must be the product.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from confident import costs, jagged
from enumeration import begin, reference
from scripted import TOY, V, q_law
from worlds import DEPTH, distance, drafts_of, lengths, survivals, world

import specdec_jax as sd
from specdec_jax.schedule import (
    BestWidth,
    Calibration,
    EarlyStop,
    LaggedBudget,
    Profile,
)
from specdec_jax.schedule._base import CostedState
from specdec_jax.schedule._lagged import Lagged

pytestmark = pytest.mark.usefixtures("quick_compile")

TEXTS = ((1,), (2, 1, 1, 0))
TEMPERATURES = (1.0, 1.4)
EXACT = 1e-6
SEEDS = range(8)


@functools.cache
def play():
    laws = [
        reference(text, temperature=t)
        for text, t in zip(TEXTS, TEMPERATURES, strict=True)
    ]
    return begin(TEXTS, laws, sd.Sampling(temperature=TEMPERATURES))


@functools.cache
def worlds(rule, kind, rows=1):
    return [world(rule, kind, play(), which) for which in range(rows)]


def confidences(seed):
    """Of each context, far apart, so that what is looked at shows."""
    random = np.random.default_rng(seed)
    return random.choice([0.05, 0.5, 0.8, 0.98], TOY.num_contexts)


def calibration(*temperatures):
    return Calibration(Profile("rejection", "iid", 1.0), temperatures)


def tv(schedule, here, seed, state=None):
    which, draft = drafts_of(here, confidences(seed), TOY)
    state = schedule.init(len(here)) if state is None else state
    return distance(here, which, lengths(schedule, state, draft))


def early_stops(cost):
    return [
        EarlyStop(cost),
        EarlyStop(cost, fill=False),
        EarlyStop(cost, widths=(1, 2, 4)),
        EarlyStop(cost, widths=(1, 2, 4), fill=False),
        EarlyStop(cost, widths=(1, 3)),
        EarlyStop(cost, calibration=calibration(0.4, 3.0), fill=False),
    ]


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("rows", [1, 2])
def test_early_stop(rule, rows):
    here = worlds(rule, "iid", rows)
    for seed in SEEDS if rows == 1 else SEEDS[:3]:
        schedules = early_stops(jagged(seed))
        for schedule in (schedules[seed % 6], schedules[(seed + 3) % 6]):
            assert tv(schedule, here, seed) < EXACT, (schedule, seed)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("rows", [1, 2])
def test_lagged_budget(rule, rows):
    """Whatever the past was."""
    here, chosen = worlds(rule, "iid", rows), set()
    for seed in SEEDS:
        schedule = LaggedBudget(jagged(seed))
        past = np.random.default_rng(seed).uniform(0.2, 1, (rows, 4)).cumprod(1)
        state = schedule.init(rows)
        own = Lagged((jnp.asarray(past, jnp.float32),), state.own.chosen)
        state = CostedState(state.switch, own)
        which, draft = drafts_of(here, confidences(seed), TOY)
        length = lengths(schedule, state, draft)
        chosen |= set(length.ravel().tolist())
        assert distance(here, which, length) < EXACT
    assert len(chosen) > 1


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_points_may_be_cut_anywhere(rule):
    """Nothing is drawn, so nothing can be given away: each draft by itself leaves the
    law alone, at every length. So `match` is exact under every schedule.
    """
    (here,) = worlds(rule, "points")
    error = np.abs(here.law - here.wanted).sum((-1, -2, -3)) / 2
    assert error.shape == (len(here.draft.weight), DEPTH + 1)
    assert error.max() < EXACT


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_every_length_by_itself_is_exact(rule):
    (here,) = worlds(rule, "iid")
    which = np.arange(len(here.draft.weight))[:, None]
    for length in range(DEPTH + 1):
        assert distance([here], which, np.full_like(which, length)) < EXACT


# --- What must fail -------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("rows", [1, 2])
def test_argmax_over_current_confidences_is_biased(rule, rows):
    """At a cost that a sure draft is worth, and no other."""
    cost = costs(1.0, 1.8, 1.95, 2.1) if rows == 1 else costs(1.0, 1.4, 1.45, 1.9)
    here, schedule = worlds(rule, "iid", rows), BestWidth(cost)
    seeds = SEEDS if rows == 1 else SEEDS[:4]
    assert max(tv(schedule, here, seed) for seed in seeds) > 1e-2


def by_rule(rule):
    """The distance under a rule from (draft's own q "n DEPTH", survival "n DEPTH") to
    lengths.
    """
    (here,) = worlds("rejection", "iid")
    tokens = here.draft.tokens[:, 1:].tolist()
    q = np.array(
        [
            [q_law((*here.text, *row[:k]))[row[k]] for k in range(DEPTH)]
            for row in tokens
        ]
    )
    found = []
    for seed in SEEDS:
        length = rule(q, survivals(here, confidences(seed), TOY))
        which = np.arange(len(q))[:, None]
        found.append(distance([here], which, np.asarray(length)[:, None]))
    return max(found)


def until(is_good):
    """How many from the first on."""
    return np.cumprod(is_good, axis=1).sum(1)


SCALE = np.array([0.7, 0.2, 3.0])
LEAKS = {
    "a token by its own probability": lambda q, a: until(q >= 0.3),
    "the same of the path": lambda q, a: until(np.cumprod(q, 1) >= 0.2),
    "a calibration that is not monotone, counted": lambda q, a: (a * SCALE >= 0.25).sum(
        1
    ),
    "a least gain, asked of the end": lambda q, a: np.where(
        a.sum(1) > 1.5, until(a > 0.3), 0
    ),
}
TIGHT = {
    "by confidence": lambda q, a: until(a >= 0.4),
    "after a token by its own probability": lambda q, a: np.minimum(
        1 + until(q >= 0.3), DEPTH
    ),
    "a calibration that is not monotone, its running least": lambda q, a: (
        np.minimum.accumulate(a * SCALE, 1) >= 0.25
    ).sum(1),
}


@pytest.mark.parametrize("name", LEAKS)
def test_leaks(name):
    assert by_rule(LEAKS[name]) > 1e-2


@pytest.mark.parametrize("name", TIGHT)
def test_their_tight_counterparts(name):
    assert by_rule(TIGHT[name]) < EXACT


def test_the_worlds_are_rich_enough():
    (here,) = worlds("rejection", "iid")
    assert here.wanted.sum() == pytest.approx(1)
    assert np.abs(here.law.sum((-1, -2, -3)) - 1).max() < EXACT
    # What a length does to the text of one draft is no trifle.
    assert np.abs(here.law[:, 0] - here.law[:, DEPTH]).max() > 0.1
    assert V == 3
