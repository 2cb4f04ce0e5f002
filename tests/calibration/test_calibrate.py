"""Confidence that is made to come true, and measured."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest
from cases import NEAR, TABLE, TOY
from confident import Confident, tables

import specdec_jax as sd
from specdec_jax.calibration import (
    Outcomes,
    calibrate,
    collect,
    fit,
    join,
    plot_reliability,
)
from specdec_jax.calibration._calibrate import judged_fit
from specdec_jax.calibration._fit import GRID, sigmoid, survivals
from specdec_jax.calibration._scores import auroc, brier, ece
from specdec_jax.schedule import Calibration, EarlyStop, Profile, Score

pytestmark = pytest.mark.usefixtures("quick_compile")

PROFILE = Profile("rejection", "iid", 1.0)
DRAFTER = Confident(TOY, 4, "iid")
# The truth: the acceptance of a draft drawn from q is Σ min(p, q).
P, Q = (
    np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    for x in (np.asarray(TABLE["logits"]), np.asarray(NEAR["logits"]))
)
TRUTH = np.minimum(P, Q).sum(-1)
PROMPTS = [[i % 7, i // 7 % 7] for i in range(32)]
SAMPLING = sd.Sampling(temperature=1.0, max_new_tokens=40)


def drafter_params(temperature):
    """A drafter whose logits are `temperature` times the true ones."""
    logit = np.log(TRUTH / (1 - TRUTH))
    return tables(NEAR["logits"], sigmoid(temperature * logit))


def outcomes(seed, temperatures, steps=4000):
    """Steps of a drafter whose logit at each depth is the truth's times that."""
    random = np.random.default_rng(seed)
    logit = random.normal(1.0, 1.5, (steps, len(temperatures)))
    came = np.logical_and.accumulate(random.random(logit.shape) < sigmoid(logit), 1)
    valid = np.ones(logit.shape, bool)
    return Outcomes(logit * temperatures, valid, came, np.arange(steps))


def test_scores_by_hand():
    said = np.array([0.1, 0.1, 0.9, 0.9])
    came = np.array([False, True, True, True])
    assert ece(said, came) == pytest.approx((0.4 + 0.1) / 2)
    assert brier(said, came) == pytest.approx((0.01 + 0.81 + 0.01 + 0.01) / 4)
    # Pairs: (0.1 hit, 0.1 miss) a tie, two hits above the miss.
    assert auroc(said, came) == pytest.approx((0.5 + 1 + 1) / 3)
    assert ece(np.array([1.0]), np.array([True])) == 0
    assert np.isnan(auroc(said, np.ones(4, bool)))
    nothing = np.array([]), np.array([], bool)
    assert np.isnan(ece(*nothing)) and np.isnan(brier(*nothing))


@pytest.mark.parametrize("loss", ["ece", "nll"])
def test_temperatures_are_found(loss):
    """Within a step or two of the grid, each depth its own."""
    wanted = (2.0, 0.5, 1.0)
    found = fit(outcomes(0, wanted), loss)
    np.testing.assert_allclose(np.log(found), np.log(wanted), atol=0.3)
    assert set(np.round(found, 6)) <= set(np.round(GRID, 6))


def test_it_is_judged_on_other_texts():
    calibration, judged = judged_fit(outcomes(1, (3.0, 2.5)), PROFILE, "ece")
    assert (judged.text % 2 == 1).all()
    assert calibration.steps == 4000
    for before, after in zip(calibration.before, calibration.after, strict=True):
        assert after.ece < before.ece / 2
        assert after.brier < before.brier
    # At the first depth it is a monotone map, which ranks as before.
    assert calibration.after[0].auroc == pytest.approx(calibration.before[0].auroc)


def test_batches_are_joined():
    """Texts are numbered through, also past a batch of which nothing counts."""
    whole = outcomes(2, (1.0, 1.0), steps=6)
    parts = [
        whole.of(np.arange(6) < 2),
        whole.of(np.zeros(6, bool)),
        whole.of(np.arange(6) >= 2)._replace(text=np.array([0, 0, 1, 3])),
    ]
    found = join(parts)
    np.testing.assert_array_equal(found.text, [0, 1, 2, 2, 3, 5])
    np.testing.assert_array_equal(found.logit, whole.logit)


def test_nothing_to_fit():
    """With too few steps a depth has the temperature of the one above."""
    some = outcomes(2, (2.0, 2.0))
    some.is_drafted[:, 1] = False
    found = fit(some)
    assert found[0] == found[1] != 1
    with pytest.raises(ValueError, match="one half of the texts"):
        judged_fit(some.of(some.text % 2 == 0), PROFILE, "ece")


def test_outcomes_of_real_texts():
    """What is said is the truth here, and so it comes true."""
    params = sd.Params(TABLE, drafter_params(1.0))
    found, profile = collect(
        TOY, params, DRAFTER, PROMPTS, sampling=SAMPLING, rule="rejection"
    )
    assert profile == PROFILE
    assert found.logit.shape == found.is_accepted.shape == (len(found.text), 3)
    assert (np.diff(found.is_accepted.astype(int), axis=1) <= 0).all()
    assert set(found.text) == set(range(32))
    said = survivals(found, (1.0,) * 3)
    for depth in range(3):
        p, came = said[:, depth], found.is_accepted[:, depth]
        sigma = np.sqrt((p * (1 - p)).sum()) / len(p)
        assert abs(p.mean() - came.mean()) < 4 * sigma


def test_calibrate(tmp_path):
    """A drafter that is too sure, on texts of its own; then it schedules."""
    params = sd.Params(TABLE, drafter_params(3.0))
    picture = tmp_path / "reliability.png"
    found = calibrate(
        TOY,
        params,
        DRAFTER,
        PROMPTS,
        sampling=SAMPLING,
        rule="rejection",
        loss="nll",
        picture=picture,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(1.5 < x < 6 for x in found.temperatures)
    assert found.after[0].ece < found.before[0].ece
    path = found.save(tmp_path)
    assert path.name == "calibration-rejection-iid-t1.json"
    assert Calibration.load(tmp_path, PROFILE) == found
    written = json.loads(path.read_text())
    assert written["temperatures"] == written["sts_temperatures"]
    from confident import costs

    schedule = EarlyStop(costs(1.0, 1.3, 1.6, 1.9), calibration=found)
    sd.generate(
        TOY,
        params,
        DRAFTER,
        [[1]],
        sampling=SAMPLING,
        rule="rejection",
        schedule=schedule,
    )


def test_files(tmp_path):
    calibration = Calibration(PROFILE, (1.0, 2.0))
    path = calibration.save(tmp_path)
    assert Calibration.load(path) == calibration
    nowhere = dataclasses.replace(
        calibration, before=(Score(0.1, math.nan, 0.2),), after=(Score(0, 1, 0),)
    )
    assert "NaN" not in nowhere.save(tmp_path).read_text()
    found = Calibration.load(path)
    assert math.isnan(found.before[0].auroc) and found.before[0].ece == 0.1
    assert found.after == nowhere.after
    other = Profile("match", "points")
    with pytest.raises(
        ValueError, match="is for rule rejection, and the call has matc"
    ):
        Calibration.load(path, other)
    with pytest.raises(FileNotFoundError):
        Calibration.load(tmp_path, other)
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no calibration"):
        Calibration.load(path)
    names = {
        Profile("match", "points", 0.5, 20, 0.9, 0.1).file_name,
        other.file_name,
    }
    assert names == {
        "calibration-match-points-t0.5-k20-p0.9-m0.1.json",
        "calibration-match-points-t0.json",
    }
    with pytest.raises(ValueError, match="temperatures must be above 0"):
        Calibration(PROFILE, (0.0,))


@pytest.mark.parametrize(
    ("drafter", "sampling", "words"),
    [
        (sd.DraftModel(TOY, num_nodes=3), SAMPLING, "reports no confidence"),
        (
            Confident(TOY, 4),
            sd.Sampling(temperature=[0.0, 1.0], max_new_tokens=3),
            "these rows have 2",
        ),
    ],
)
def test_refused(drafter, sampling, words):
    params = sd.Params(TABLE, drafter_params(1.0) if "Conf" in repr(drafter) else NEAR)
    with pytest.raises(ValueError, match=words):
        calibrate(TOY, params, drafter, [[1], [2]], sampling=sampling)


def test_too_little():
    params = sd.Params(TABLE, drafter_params(1.0))
    with pytest.raises(ValueError, match="two prompts at least"):
        calibrate(TOY, params, DRAFTER, [[1]], sampling=SAMPLING, rule="rejection")


def test_matplotlib_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found, judged = judged_fit(outcomes(3, (2.0,), 100), PROFILE, "ece")
    with pytest.raises(ImportError, match="plot"):
        plot_reliability(judged, found, tmp_path / "x.png")
