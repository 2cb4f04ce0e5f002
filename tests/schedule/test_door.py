"""Schedules that do not go together with the rest are refused in the caller's words."""

import dataclasses

import numpy as np
import pytest
from cases import NEAR, PROMPTS, TABLE, TOY, Guess
from confident import Confident, costs, tables

import specdec_jax as sd
from specdec_jax._door_schedule import profiles
from specdec_jax.schedule import (
    BestWidth,
    Calibration,
    EarlyStop,
    FixedWidth,
    LaggedBudget,
    Profile,
    Schedule,
)

COST = costs(1.0, 1.3, 1.6, 1.9)
PARAMS = tables(NEAR["logits"], np.full(TOY.num_contexts, 0.7))
WARM = sd.Sampling(max_new_tokens=4, temperature=0.7, top_p=0.9)


def attempt(schedule, drafter=None, params=PARAMS, call=sd.generate, **options):
    drafter = Confident(TOY, 4) if drafter is None else drafter
    options = {"sampling": sd.Sampling(max_new_tokens=4), **options}
    call(TOY, sd.Params(TABLE, params), drafter, PROMPTS, schedule=schedule, **options)


@dataclasses.dataclass(frozen=True)
class Tree(Confident):
    """Says that it draws a tree."""

    max_depth: int = 2  # type: ignore[assignment]


def test_all_are_schedules():
    for schedule in (
        EarlyStop(COST),
        LaggedBudget(COST),
        BestWidth(COST),
        FixedWidth(2),
    ):
        assert isinstance(schedule, Schedule)
        assert hash(schedule) == hash(dataclasses.replace(schedule))


IID = Confident(TOY, 4, "iid")


@pytest.mark.parametrize("call", [sd.generate, sd.stream])
@pytest.mark.parametrize(
    ("schedule", "options", "words"),
    [
        (BestWidth(COST), {"rule": "rejection", "drafter": IID}, "BestWidth looks at"),
        (BestWidth(COST), {"rule": "block", "drafter": IID}, 'text under rule "block"'),
        (FixedWidth(5), {}, "a width of 5, but .* has 4 nodes"),
        (EarlyStop(COST, widths=(2, 4)), {}, "ascend from 1.*not .2, 4"),
        (EarlyStop(COST, widths=(1, 3, 2)), {}, "ascend from 1"),
        (
            EarlyStop(COST),
            {"drafter": sd.DraftModel(TOY, num_nodes=4), "params": NEAR},
            "EarlyStop decides by the confidence of a draft.*reports none",
        ),
        (
            EarlyStop(costs(1.0, 2.0)),
            {"drafter": Guess(), "params": ()},
            "reports none: use FixedWidth",
        ),
        (
            LaggedBudget(costs(1.0, 1.3, rows=(1, 2))),
            {},
            "ends at 2 rows, and this batch has 3",
        ),
        (
            EarlyStop(
                COST, calibration=Calibration(Profile("rejection", "iid"), (1.0,))
            ),
            {},
            "calibration is for rule rejection, and the call has match",
        ),
        (
            BestWidth(
                COST, calibration=Calibration(Profile("match", "points"), (1.0,))
            ),
            {"sampling": WARM},
            "calibration is for temperature 0.0, and the call has 0.7",
        ),
        (
            BestWidth(
                COST,
                calibration=Calibration(Profile("match", "points", 0.7), (1.0,)),
            ),
            {"sampling": WARM},
            "calibration is for top_p 1.0, and the call has 0.9",
        ),
        (
            EarlyStop(COST),
            {"rule": "rejection", "drafter": Tree(TOY, 4, "iid")},
            "draws a tree.*use FixedWidth",
        ),
    ],
)
def test_refused(call, schedule, options, words):
    with pytest.raises(ValueError, match=words):
        attempt(schedule, call=call, **options)


def test_the_right_calibration_is_taken():
    profile = Profile("match", "points", 0.7, top_p=0.9)
    attempt(BestWidth(COST, calibration=Calibration(profile, (1.3,))), sampling=WARM)


def test_profiles_of_rows():
    sampling = sd.Sampling(
        max_new_tokens=4, temperature=[0.7, 0.0, 0.7], top_k=[3, 0, 3], min_p=0.1
    )
    stream = sd.stream(
        TOY, sd.Params(TABLE, PARAMS), IID, PROMPTS, sampling=sampling, rule="block"
    )
    assert profiles(stream._program, stream._request) == [
        Profile("block", "iid", 0.7, 3, 1.0, 0.1),
        Profile("block", "iid", 0.0, 0, 1.0, 0.1),
    ]
