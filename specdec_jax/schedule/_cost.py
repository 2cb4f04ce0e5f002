"""What a step costs, by rows and by how many tokens of each the target reads."""

import bisect
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec_jax.schedule._fingerprint import Fingerprint

FLAT = 1.01  # less between the narrowest and the widest is noise
_FORMAT = "specdec-jax cost table 1"


class Work(NamedTuple):
    """What one forward of a model does, for a roofline."""

    weights: float  # bytes, read once whatever the batch
    flops: float  # operations a token
    cache: float = 0.0  # bytes of keys and values read for each row

    def seconds(
        self, batch: int, tokens: int, *, flops: float, bandwidth: float
    ) -> float:
        """The longer of arithmetic and traffic, each at its full rate."""
        return max(
            batch * tokens * self.flops / flops,
            (self.weights + batch * self.cache) / bandwidth,
        )


@dataclasses.dataclass(frozen=True)
class CostTable:
    """Seconds of a step's two parts, measured on the machine at hand (`measure_cost`)
    or computed (`CostTable.roofline`).

    Every row of a batch is read at the width of the widest, so what a step costs is a
    matter of rows and width; between entries the next larger one counts, as for a
    padded program.

    Args:
        batches: rows, ascending.
        widths: tokens that the target reads of each row, ascending, the first is 1.
        verify: seconds of a step without its draft, one tuple per batch, one number per
            width; never falling with either.
        draft: seconds of a draft, one number per batch.
        fingerprint: what was measured, where; None for a table that holds anywhere.
        temperature: of the measured steps.
        slots: of their cache.

    Raises:
        ValueError: for a table that is empty, not of this shape, not positive, falling,
            or flat: where the widest costs as much as the narrowest there is nothing to
            choose, or nothing was measured.
    """

    batches: tuple[int, ...]
    widths: tuple[int, ...]
    verify: tuple[tuple[float, ...], ...]
    draft: tuple[float, ...]
    fingerprint: Fingerprint | None = None
    temperature: float | None = None
    slots: int | None = None

    def __post_init__(self):
        for name, sizes in (("batches", self.batches), ("widths", self.widths)):
            if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
                raise ValueError(
                    f"a cost table needs ascending {name} of at least 1, not {sizes}"
                )
        if self.widths[0] != 1:
            raise ValueError(
                f"the first width of a cost table is 1, plain decoding, not "
                f"{self.widths[0]}"
            )
        rows = {len(row) for row in self.verify}
        if len(self.verify) != len(self.batches) or rows != {len(self.widths)}:
            raise ValueError(
                f"a cost table of {len(self.batches)} batches and {len(self.widths)} "
                f"widths needs as many numbers in verify, not {self.verify}"
            )
        if len(self.draft) != len(self.batches):
            raise ValueError(
                f"a cost table of {len(self.batches)} batches needs as many numbers in "
                f"draft, not {len(self.draft)}"
            )
        verify = np.array(self.verify)
        if not (np.isfinite(verify).all() and (verify > 0).all()):
            raise ValueError(f"seconds must be above 0, not {self.verify}")
        if not all(math.isfinite(x) and x >= 0 for x in self.draft):
            raise ValueError(f"seconds of a draft must be >= 0, not {self.draft}")
        if (np.diff(verify, axis=0) < 0).any() or (np.diff(verify, axis=1) < 0).any():
            raise ValueError(
                "more rows or more tokens cannot cost less: CostTable.monotone takes "
                "measurements as they come"
            )
        if (verify[:, -1] < FLAT * verify[:, 0]).all():
            raise ValueError(
                f"this cost table is flat: reading {self.widths[-1]} tokens costs as "
                "much as reading one, so there is nothing to choose. Measure anew, or "
                f"verify everything: FixedWidth({self.widths[-1]})"
            )

    @classmethod
    def monotone(
        cls,
        batches: Sequence[int],
        widths: Sequence[int],
        verify: Sequence[Sequence[float]],
        draft: Sequence[float],
        fingerprint: Fingerprint | None = None,
        **conditions: Any,
    ) -> "CostTable":
        """From measurements as they come, which may fall by chance: each entry is the
        largest of those with no more rows and no more tokens.
        """
        seconds = np.asarray(verify, np.float64)
        if seconds.ndim == 2:
            for axis in (0, 1):
                seconds = np.maximum.accumulate(seconds, axis=axis)
        return cls(
            tuple(batches),
            tuple(widths),
            tuple(map(tuple, seconds.tolist())),
            tuple(np.maximum(np.asarray(draft, np.float64), 0.0).tolist()),
            fingerprint,
            **conditions,
        )

    @classmethod
    def roofline(
        cls,
        *,
        flops: float,
        bandwidth: float,
        target: Work,
        drafter: Work,
        batches: Sequence[int],
        widths: Sequence[int],
        passes: int = 1,
        overhead: float = 0.0,
    ) -> "CostTable":
        """From a machine's rates, for one that is not at hand.

        Args:
            flops: operations a second.
            bandwidth: bytes a second.
            target: what its forward does.
            drafter: the same of one forward of the drafter, of one token per row.
            batches: rows.
            widths: tokens of each row.
            passes: forwards of the drafter in one draft.
            overhead: seconds of a step besides.
        """
        rates = {"flops": flops, "bandwidth": bandwidth}
        return cls.monotone(
            batches,
            widths,
            [
                [overhead + target.seconds(rows, width, **rates) for width in widths]
                for rows in batches
            ],
            [passes * drafter.seconds(rows, 1, **rates) for rows in batches],
        )

    def seconds(self, batch: int, widths: Sequence[int]) -> np.ndarray:
        """Of a step with a draft, at each of these widths.

        Raises:
            ValueError: for a batch or a width beyond the table.
        """
        row = self._row(batch)
        columns = [bisect.bisect_left(self.widths, width) for width in widths]
        if max(columns) == len(self.widths):
            raise ValueError(
                f"the cost table ends at {self.widths[-1]} tokens of a row, and the "
                f"schedule has a width of {max(widths)}: measure that too"
            )
        return np.array([self.draft[row] + self.verify[row][i] for i in columns])

    def drafting(self, batch: int) -> float:
        """Seconds of a draft."""
        return self.draft[self._row(batch)]

    def plain(self, batch: int) -> float:
        """Seconds of a step of plain decoding."""
        return self.verify[self._row(batch)][0]

    def _row(self, batch: int) -> int:
        row = bisect.bisect_left(self.batches, batch)
        if row == len(self.batches):
            raise ValueError(
                f"the cost table ends at {self.batches[-1]} rows, and this batch has "
                f"{batch}: measure that too"
            )
        return row

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        table: dict[str, Any] = dataclasses.asdict(self)
        text = json.dumps({"format": _FORMAT, **table}, indent=1) + "\n"
        Path(path).write_text(text, "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "CostTable":
        """Read what `save` wrote.

        Raises:
            ValueError: for any other file. Whether it is of this machine and this model
                is looked at where it is used.
        """
        try:
            table = json.loads(Path(path).read_text("utf-8"))
            if table.pop("format") != _FORMAT:
                raise ValueError("another format")
            said = table.pop("fingerprint")
            return cls(
                tuple(table.pop("batches")),
                tuple(table.pop("widths")),
                tuple(map(tuple, table.pop("verify"))),
                tuple(table.pop("draft")),
                None if said is None else Fingerprint(**said),
                **table,
            )
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no cost table") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is no cost table: {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
