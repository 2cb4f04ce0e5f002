"""Temperatures that make a drafter's confidence come true, for one way of sampling."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_jax._types import Kind, Rule

_FORMAT = "specdec-jax calibration 1"


@dataclasses.dataclass(frozen=True)
class Profile:
    """What the acceptance of a draft depends on besides the models: Σ min(p, q) under
    "rejection" is more than what "match" accepts, and both change with the law.

    Args:
        rule: of verification.
        kind: how the drafter draws.
        temperature: and the filters, as in `Sampling`.
        top_k: see there.
        top_p: see there.
        min_p: see there.
    """

    rule: Rule
    kind: Kind
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def file_name(self) -> str:
        """Where `Calibration.save` puts it, beside the drafter."""
        parts = [f"{self.rule}-{self.kind}-t{self.temperature:g}"]
        parts += [f"k{self.top_k}"] if self.top_k else []
        parts += [f"p{self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"m{self.min_p:g}"] if self.min_p else []
        return f"calibration-{'-'.join(parts)}.json"

    def check(self, wanted: "Profile") -> None:
        """Raise `ValueError`, saying what differs, if that is not the same."""
        for name, mine in dataclasses.asdict(self).items():
            asked = getattr(wanted, name)
            if mine != asked:
                raise ValueError(
                    f"this calibration is for {name} {mine}, and the call has {asked}: "
                    "calibrate for that too, or leave the calibration out"
                )


@dataclasses.dataclass(frozen=True)
class Score:
    """How true the survival of one depth is, on texts that were not fitted.

    Args:
        ece: expected calibration error, in 20 bins of equal width.
        auroc: how well it ranks; NaN where all or none were accepted.
        brier: mean squared error.
    """

    ece: float
    auroc: float
    brier: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What `calibrate` returns, and schedules take.

    Args:
        profile: what it holds for.
        temperatures: of the logits of confidence, by depth.
        before: by depth, with all temperatures 1.
        after: by depth, with these.
        steps: verifications that it was fitted and judged on.
    """

    profile: Profile
    temperatures: tuple[float, ...]
    before: tuple[Score, ...] = ()
    after: tuple[Score, ...] = ()
    steps: int = 0

    def __post_init__(self):
        if not self.temperatures or not all(0 < x < 1e6 for x in self.temperatures):
            raise ValueError(f"temperatures must be above 0, not {self.temperatures}")

    def save(self, folder: str | Path) -> Path:
        """Write it into a folder, such as the drafter's own, under the name of its
        profile; returns where.

        The temperatures also stand under the key that TensorRT-LLM reads, those of
        SGLang are the same as here.
        """
        path = Path(folder) / self.profile.file_name
        content = {
            "format": _FORMAT,
            **dataclasses.asdict(self),
            "before": [_said(score) for score in self.before],
            "after": [_said(score) for score in self.after],
            "sts_temperatures": self.temperatures,
        }
        text = json.dumps(content, indent=1, allow_nan=False)
        path.write_text(text + "\n", "utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path, profile: Profile | None = None) -> "Calibration":
        """Read one file, or from a folder the one of this profile.

        Raises:
            ValueError: for any other file, or one for another profile.
            FileNotFoundError: there is none.
        """
        path = Path(path)
        if path.is_dir() and profile is not None:
            path = path / profile.file_name
        try:
            content: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if content["format"] != _FORMAT:
                raise KeyError("format")
            found = cls(
                Profile(**content["profile"]),
                tuple(content["temperatures"]),
                _scores(content["before"]),
                _scores(content["after"]),
                content["steps"],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is no calibration: {error!r}") from error
        if profile is not None:
            found.profile.check(profile)
        return found


def _said(score: Score) -> dict[str, float | None]:
    """For JSON, which has no NaN."""
    fields = dataclasses.asdict(score).items()
    return {name: None if math.isnan(x) else x for name, x in fields}


def _scores(entries: Sequence[dict[str, float | None]]) -> tuple[Score, ...]:
    return tuple(
        Score(**{name: math.nan if x is None else x for name, x in entry.items()})
        for entry in entries
    )
