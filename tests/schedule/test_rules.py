"""The rules by hand, and against all that could be chosen."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from confident import costs

from specdec_jax._types import Draft
from specdec_jax.schedule import (
    BestWidth,
    Calibration,
    EarlyStop,
    FixedWidth,
    LaggedBudget,
    Profile,
    Switch,
    survival,
)

TREE = (-1, 0, 1, 0, 1)


def draft_of(confidence, parents=None, valid=None):
    confidence = jnp.asarray(confidence, jnp.float32)
    shape = confidence.shape
    parents = range(-1, shape[1] - 1) if parents is None else parents
    parents = jnp.tile(jnp.array([parents], jnp.int32), (shape[0], 1))
    valid = jnp.ones(shape, bool) if valid is None else jnp.asarray(valid)
    return Draft(jnp.zeros(shape, jnp.int32), parents, valid, None, confidence)


def chosen(schedule, draft, running=None, state=None):
    """The width, the nodes, and the state after."""
    batch = draft.tokens.shape[0]
    running = np.ones(batch, bool) if running is None else np.array(running)
    state = schedule.init(batch) if state is None else state
    choice = schedule.choose(state, draft, jnp.asarray(running))
    width = schedule.widths[int(choice.chosen)]
    return width, np.asarray(choice.valid).astype(int).tolist(), choice.state


def test_survival_along_paths():
    draft = draft_of([[1.0, 0.5, 0.5, 0.25, 0.1]], TREE)
    np.testing.assert_allclose(
        survival(draft), [[1.0, 0.5, 0.25, 0.25, 0.05]], rtol=1e-5
    )


def test_survival_of_what_is_not_valid_or_not_known():
    draft = draft_of([[0.0, 0.5, jnp.nan, 0.5]], valid=[[True, True, True, True]])
    found = np.asarray(survival(draft))
    assert found[0, 0] == 1 and found[0, 2] < 1e-5 and np.isfinite(found).all()
    draft = draft_of([[1.0, 0.5, 0.5, 0.5]], valid=[[True, False, True, True]])
    np.testing.assert_array_equal(survival(draft), [[1, 0, 0, 0]])


def test_survival_never_grows():
    """To the last bit, in whatever order the compiler multiplies."""
    random = np.random.default_rng(0)
    confidence = 1 - random.random((64, 32)) ** 4 * 1e-3
    found = np.asarray(jax.jit(survival)(draft_of(confidence)))
    assert (np.diff(found, axis=1) <= 0).all()


def test_temperatures_by_depth():
    draft = draft_of([[1.0, 0.9, 0.9, 0.9, 0.9]], TREE)
    cold, warm = 1 / (1 + 1 / 9**2), 1 / (1 + 1 / 3)
    np.testing.assert_allclose(
        survival(draft, (0.5, 2.0)),
        [[1, cold, cold * warm, cold, cold * warm]],
        rtol=1e-5,
    )


def test_early_stop_by_hand():
    """Two rows, a token more for a tenth of a second: after .9 and .8 comes .3, which
    is below the rate so far.
    """
    schedule = EarlyStop(costs(1.0, 2.2, 3.4), fill=False)
    draft = draft_of([[1.0, 0.9, 0.3 / 0.9], [1.0, 0.2, 0.5]])
    # 2/1, 2.9/1.6: the first token costs .6 already.
    assert chosen(schedule, draft)[:2] == (1, [[1, 0, 0], [1, 0, 0]])
    schedule = EarlyStop(costs(1.0, 1.2, 1.4), fill=False)
    # 2/1 < 2.9/1.1 < 3.2/1.2 >= 3.4/1.3
    assert chosen(schedule, draft)[:2] == (3, [[1, 1, 1], [1, 0, 0]])
    full = EarlyStop(costs(1.0, 1.2, 1.4))
    assert chosen(full, draft)[:2] == (3, [[1, 1, 1], [1, 1, 1]])
    # The second row has ended: 1/1 < 1.9/1.2 >= 2.2/1.4
    assert chosen(schedule, draft, [True, False])[:2] == (2, [[1, 1, 0], [1, 0, 0]])
    assert chosen(schedule, draft, [False, False])[:2] == (1, [[1, 0, 0], [1, 0, 0]])


def test_early_stop_does_not_look_beyond_the_first_loss():
    schedule = EarlyStop(costs(1.0, 2.0, 2.01, 2.02), fill=False)
    draft = draft_of([[1.0, 0.99, 0.99, 0.99]])
    assert chosen(schedule, draft)[0] == 1
    assert chosen(BestWidth(schedule.cost), draft)[0] == 4


def test_ties_go_by_node_then_by_row():
    schedule = EarlyStop(costs(1.0, 1.5, 4.0), fill=False)
    draft = draft_of([[1.0, 1.0, 1.0]] * 2)
    # 2/1 < 3/1.25 < 4/1.5 >= 5/2.75
    assert chosen(schedule, draft)[:2] == (2, [[1, 1, 0], [1, 1, 0]])


def test_widths_are_rounded_up_and_filled():
    cost = costs(1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35)
    draft = draft_of([[1.0, 0.9, 0.9, 0.01, 0.01, 0.9, 0.9, 0.9]])
    schedule = EarlyStop(cost, widths=(1, 4, 8))
    assert chosen(schedule, draft)[:2] == (4, [[1, 1, 1, 1, 0, 0, 0, 0]])
    narrow = EarlyStop(cost, widths=(1, 2))
    assert chosen(narrow, draft)[:2] == (2, [[1, 1] + [0] * 6])


def test_trees_are_cut_closed_under_parents():
    random = np.random.default_rng(3)
    parents = np.array([-1, 0, 0, 1, 1, 2, 3, 3])
    schedule = EarlyStop(costs(*np.linspace(1, 1.6, 8)), fill=False)
    found = set()
    for _ in range(20):
        draft = draft_of(random.random((2, 8)), tuple(parents.tolist()))
        width, valid, _ = chosen(schedule, draft)
        valid = np.array(valid)
        assert (valid[:, 1:] <= valid[:, parents[1:]]).all()
        assert width == np.flatnonzero(valid.any(0)).max() + 1
        found.add(width)
    assert len(found) > 2


@pytest.mark.parametrize("is_unimodal", [True, False])
def test_early_stop_against_every_choice(is_unimodal):
    """Where each token costs more than the one before, the first loss is the end, and
    the rule is the best of all; on a staircase it may stay below.
    """
    random, gaps = np.random.default_rng(5), []
    for _ in range(12):
        steps = random.choice([0.01, 0.1, 0.3, 0.8], 3)
        steps = np.cumsum([1.0, *(np.sort(steps) if is_unimodal else steps)])
        schedule = EarlyStop(costs(*steps), fill=False)
        confidence = random.uniform(0.1, 1, (2, 4))
        confidence[:, 0] = 1
        _, valid, _ = chosen(schedule, draft_of(confidence))
        a = confidence.cumprod(1)[:, 1:]

        def rate(lengths, a=a, steps=steps):
            tokens = 2 + sum(row[:k].sum() for row, k in zip(a, lengths, strict=True))
            return tokens / np.interp(1 + sum(lengths) / 2, [1, 2, 3, 4], steps)

        best = max(map(rate, itertools.product(range(4), repeat=2)))
        gaps.append(best - rate([sum(row) - 1 for row in valid]))
    assert min(gaps) > -1e-5
    assert (max(gaps) < 1e-5) == is_unimodal


def test_best_width_is_the_best_width():
    random = np.random.default_rng(6)
    for _ in range(12):
        steps = np.cumsum([1.0, *random.choice([0.01, 0.1, 0.8], 3)])
        steps[-1] += 0.1
        confidence = random.uniform(0.1, 1, (2, 4))
        confidence[:, 0] = 1
        width, valid, _ = chosen(BestWidth(costs(*steps)), draft_of(confidence))
        rates = confidence.cumprod(1).sum(0).cumsum() / steps
        assert width == rates.argmax() + 1
        assert valid == [[1] * width + [0] * (4 - width)] * 2


def step(schedule, state, confidence, kept=1):
    """The width that is chosen for a draft, and the state after the step."""
    width, _, state = chosen(schedule, draft_of(confidence), state=state)
    index = jnp.int32(schedule.widths.index(width))
    length = jnp.full(len(confidence), kept, jnp.int32)
    return width, schedule.after(state, jnp.asarray(True), index, length)


@pytest.mark.parametrize("lag", [1, 2])
def test_a_lagged_budget_is_that_of_an_earlier_draft(lag):
    schedule = LaggedBudget(costs(1.0, 1.3, 1.6, 1.9), lag=lag, hysteresis=0.0)
    state, good, bad = schedule.init(1), [[1.0, 0.99, 0.99, 0.99]], [[1.0, 0.01, 0, 0]]
    seen = []
    for confidence in (bad, good, bad, bad, good):
        width, state = step(schedule, state, confidence)
        seen.append(width)
    of_draft = [1, 4, 1, 1]
    assert seen == [4] * lag + of_draft[: 5 - lag]  # unknown at first: everything


def test_hysteresis_keeps_the_width():
    draft, other = [[1.0, 0.60, 0.5, 0.5]], [[1.0, 0.64, 0.5, 0.5]]
    cost = costs(1.0, 1.61, 3.0, 4.0)
    widths = {}
    for hysteresis in (0.0, 0.1):
        schedule, widths[hysteresis] = LaggedBudget(cost, hysteresis=hysteresis), []
        state = schedule.init(1)
        for confidence in (draft, other, draft, other):
            width, state = step(schedule, state, confidence)
            widths[hysteresis].append(width)
    assert widths[0.0][1:] == [1, 2, 1]
    assert widths[0.1][1:] == [2, 2, 2]


def test_a_pause_forgets_the_past():
    schedule = LaggedBudget(costs(1.0, 1.3, 1.6, 1.9))
    state = schedule.init(1)
    _, state = step(schedule, state, [[1.0, 0.01, 0, 0]])
    assert chosen(schedule, draft_of([[1.0] * 4]), state=state)[0] == 1
    state = schedule.after(
        state, jnp.asarray(False), jnp.int32(0), jnp.ones(1, jnp.int32)
    )
    assert chosen(schedule, draft_of([[1.0] * 4]), state=state)[0] == 4


def test_fixed_width():
    draft = draft_of([[1.0] * 4] * 2)
    assert chosen(FixedWidth(3), draft)[:2] == (3, [[1, 1, 1, 0]] * 2)
    assert not FixedWidth(1).before(())
    assert FixedWidth(1).widths == (1,)
    with pytest.raises(ValueError, match="at least 1, the root, not 0"):
        FixedWidth(0)


def test_the_switch():
    """Off when the balance is spent, on trial again after a pause, and off trial once
    it has earned what it can.
    """
    switch = Switch(min_gain=0.1, hysteresis=0.2, credit=2.0, pause=5)
    state, seen = switch.init(), []

    def run(tokens, steps):
        nonlocal state
        seen.clear()
        for _ in range(steps):
            is_on = state.is_on
            length = jnp.array([tokens if is_on else 1, 0], jnp.int32)
            state = switch.after(state, is_on, jnp.float32(2.0), length)
            seen.append(int(state.is_on))
        return seen

    # 3 tokens at a price of 2, held to 1.1: 0.8 gained; 1 token: 1.2 lost.
    assert run(3, 10) == [1] * 10
    assert float(state.balance) == pytest.approx(6.0)  # three credits, no more
    assert run(1, 6) == [1, 1, 1, 1, 1, 0]
    assert run(1, 5) == [0] * 4 + [1] and bool(state.is_on_trial)
    assert run(1, 2) == [1, 0]  # of 2.0, 1.64 lost with each
    assert run(3, 5 + 11) == [0] * 4 + [1] * 12 and bool(state.is_on_trial)
    assert run(3, 1) == [1] and not state.is_on_trial  # 0.36 gained with each
    bad: list[dict[str, Any]] = [{"credit": 0.0}, {"pause": 0}, {"hysteresis": -0.1}]
    for options in bad:
        with pytest.raises(ValueError):
            Switch(**options)


def test_what_the_switch_is_worth():
    """Against plain decoding, of texts of 64 tokens: little is lost where drafts lose,
    nearly all is gained where they gain.
    """
    random = np.random.default_rng(0)
    after = jax.jit(Switch().after)
    price = jnp.float32(1.35)
    gains = {}
    for acceptance in (0.1, 0.7):
        seconds = 0.0
        for _ in range(60):
            state, tokens = Switch().init(), 0
            while tokens < 64:
                is_on = bool(state.is_on)
                length = 1 + int(is_on and random.random() < acceptance)
                seconds += float(price) if is_on else 1.0
                state = after(state, state.is_on, price, jnp.array([length]))
                tokens += length
        gains[acceptance] = 60 * 64 / seconds
    assert gains[0.1] > 0.97  # always on: 0.81
    assert gains[0.7] > 1.22  # always on: 1.26


def test_a_calibrated_schedule_uses_its_temperatures():
    calibration = Calibration(Profile("match", "points"), (0.1,))
    draft = draft_of([[1.0, 0.6, 0.6, 0.6]])
    cost = costs(1.0, 1.7, 2.4, 3.1)
    assert chosen(BestWidth(cost), draft)[0] == 1
    assert chosen(BestWidth(cost, calibration=calibration), draft)[0] == 4
