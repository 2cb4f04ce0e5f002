"""Schedules in a word, and the files that they need."""

from collections.abc import Sequence
from pathlib import Path

from specdec_jax._types import Drafter, Params, Target
from specdec_jax.schedule import (
    BestWidth,
    Calibration,
    CostTable,
    EarlyStop,
    Fingerprint,
    FixedWidth,
    LaggedBudget,
    Profile,
    Schedule,
)

_WEIGHING = {
    "early-stop": EarlyStop,
    "lagged-budget": LaggedBudget,
    "best-width": BestWidth,
}
_FIXED = "width"


def is_schedule(word: str) -> bool:
    """Whether a word is one of a schedule, well-formed or not."""
    return word.partition(":")[0] in (_FIXED, *_WEIGHING)


def make_schedule(
    word: str, cost: CostTable | None, calibration: Calibration | None
) -> Schedule:
    """What a word means: `width:4` (of each row, the root included; with a cost table
    only while it pays), or a rule that weighs tokens against seconds.

    Raises:
        ValueError: it means none, or the rule has nothing to weigh with.
    """
    kind, _, size = word.partition(":")
    if word in _WEIGHING:
        if cost is None:
            raise ValueError(
                f"{word} weighs tokens against seconds: give --costs a file that "
                "specdec-jax measure-cost has written for this model, drafter and "
                "machine"
            )
        return _WEIGHING[word](cost, calibration=calibration)
    if kind == _FIXED and size.isdecimal():
        return FixedWidth(int(size), cost)
    raise ValueError(
        f"there is no schedule {word!r}: there are width:N, {', '.join(_WEIGHING)}"
    )


def find_cost(
    tables: Sequence[CostTable], target: Target, params: Params, drafter: Drafter
) -> CostTable | None:
    """The table of this drafter on this machine."""
    here = Fingerprint.of(target, params, drafter)
    return next((x for x in tables if x.fingerprint in (here, None)), None)


def find_calibration(folder: Path | None, profile: Profile) -> Calibration | None:
    """What `specdec-jax calibrate` has put beside a head, for this way of sampling."""
    if folder is None or not (folder / profile.file_name).exists():
        return None
    return Calibration.load(folder, profile)
