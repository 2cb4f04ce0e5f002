"""Schedules in a word, and the files that they need."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specdec_jax._door_schedule import reports_confidence
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
SCHEDULES = ", ".join(("width:N", *_WEIGHING))


def is_schedule(word: str) -> bool:
    """Whether a word is one of a schedule, well-formed or not."""
    return word.partition(":")[0] in (_FIXED, *_WEIGHING)


def check_schedule(word: str, *, has_cost: bool) -> None:
    """Raise `ValueError` where a word means no schedule, or one that has nothing to
    weigh with: before anything is loaded.
    """
    kind, _, size = word.partition(":")
    if word in _WEIGHING and not has_cost:
        raise ValueError(
            f"{word} weighs tokens against seconds: give --costs a file that "
            "specdec-jax measure-cost has written for this model, drafter and machine"
        )
    if word not in _WEIGHING and not (kind == _FIXED and size.isdecimal()):
        raise ValueError(f"there is no schedule {word!r}: there are {SCHEDULES}")


def make_schedule(
    word: str, cost: CostTable | None, calibration: Calibration | None
) -> Schedule:
    """What a word means: `width:4` (of each row, the root included; with a cost table
    only while it pays), or a rule that weighs tokens against seconds.

    Raises:
        ValueError: see `check_schedule`; or the table does not reach so far.
    """
    check_schedule(word, has_cost=cost is not None)
    if cost is not None and word in _WEIGHING:
        return _WEIGHING[word](cost, calibration=calibration)
    return FixedWidth(int(word.partition(":")[2]), cost)


def load_tables(files: Sequence[Path]) -> list[CostTable]:
    """Of several drafters.

    Raises:
        ValueError: a file is none, or two are of the same drafter.
    """
    tables = [CostTable.load(file) for file in files]
    for i, table in enumerate(tables):
        if table.fingerprint in [x.fingerprint for x in tables[:i]]:
            raise ValueError(
                f"{files[i]} is of a drafter that another of --costs is of: measure "
                "all batches into one"
            )
    return tables


def find_cost(
    tables: Sequence[CostTable], target: Target, params: Params, drafter: Drafter
) -> CostTable | None:
    """The table of this drafter on this machine."""
    here = Fingerprint.of(target, params, drafter)
    return next((x for x in tables if x.fingerprint == here), None)


def calibrated(
    word: str,
    cost: CostTable | None,
    folder: Path | None,
    profile: Profile,
    target: Target,
    params: Params,
    drafter: Drafter,
    *,
    console: Console,
) -> Schedule:
    """What a word means, with the calibration that `specdec-jax calibrate` has put
    beside a head for this way of sampling; says where there is none and could be.
    """
    calibration = None
    if folder is not None and (folder / profile.file_name).exists():
        calibration = Calibration.load(folder, profile)
    schedule = make_schedule(word, cost, calibration)
    is_lacking = calibration is None and schedule.needs_confidence
    if is_lacking and reports_confidence(target, params, drafter):
        console.print(
            f"There is no {profile.file_name} beside the head: what it says of its "
            "drafts is taken as it is. specdec-jax calibrate makes one.",
            style="dim",
            soft_wrap=True,
        )
    return schedule
