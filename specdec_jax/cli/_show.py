"""How text and numbers look. Text goes to standard output, the rest to the error."""

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from specdec_jax._stats import Stats
from specdec_jax.cli._transcript import Segment

DRAFTED = "green"
_BAR = 20  # columns of the longest bar
# What would move the cursor or change colours, but for tab and newline.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_SHOWN = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\t\n"}


class Screens(NamedTuple):
    """Standard output and standard error."""

    out: Console
    err: Console


def versions() -> dict[str, str]:
    """What is at work."""
    return {
        "specdec_jax": importlib.metadata.version("specdec-jax"),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "python": platform.python_version(),
    }


def write(console: Console, segments: Iterable[Segment]) -> None:
    """Continue a text. On a terminal drafted tokens are coloured and control characters
    harmless; elsewhere the text is written as it is.
    """
    for text, is_drafted in segments:
        if console.is_terminal:
            style = DRAFTED if is_drafted else None
            console.out(text.translate(_SHOWN), style=style, end="", highlight=False)
        else:
            console.file.write(text)
    console.file.flush()


@contextlib.contextmanager
def writer(screens: Screens) -> Iterator[Callable[[Sequence[Segment]], None]]:
    """`write` to standard output, and a sign of life before the first text."""
    with screens.err.status("Reading …") as status:

        def write_on(segments: Sequence[Segment]) -> None:
            if segments:
                status.stop()
                write(screens.out, segments)

        yield write_on


def coloured(segments: Iterable[Segment]) -> Text:
    """The same for panels."""
    return Text.assemble(
        *(
            (text.translate(_SHOWN), DRAFTED if is_drafted else "")
            for text, is_drafted in segments
        )
    )


def show_legend(screens: Screens, drafter: str) -> None:
    """Say what the colours mean, where there are any."""
    if screens.out.color_system and not screens.out.no_color and drafter != "plain":
        legend = Text.assemble(
            (f"■ drafted by {drafter}", DRAFTED), "  ■ the model's own"
        )
        screens.err.print(legend)


def count(number: int, thing: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def gigabytes(size: float) -> str:
    """`1.23 GB`, in the decimal unit that suits the size."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size:,.0f} B"


def plain_table(*columns: str, header: bool = True) -> Table:
    """A table with a line under its header and under each section."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_header=header
    )
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def progress_bar(console: Console, *, is_kept: bool = False) -> Progress:
    """Of things that are counted; gone when they are done unless it is kept, and only
    on a terminal.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=not is_kept,
        disable=not console.is_terminal,
    )


def depth_table(stats: Stats) -> Table:
    """Acceptance by depth, unconditional and conditional, and the histogram; as deep as
    anything was proposed.
    """
    histogram, proposed = stats.histogram(), np.asarray(stats.proposed).sum(0)
    shares = [1.0, *stats.acceptance_by_depth()]
    conditional = [np.nan, *stats.conditional_acceptance()]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("drafts kept", "at least", "where proposed", "exactly", ""):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for depth in np.flatnonzero(proposed):
        share = conditional[depth]
        table.add_row(
            str(depth),
            f"{shares[depth]:.0%}",
            "" if np.isnan(share) else f"{share:.0%}",
            f"{histogram[depth] / histogram.sum():.0%}",
            f"{histogram[depth]:,}",
            "█" * round(_BAR * int(histogram[depth]) / int(histogram.max())),
        )
    return table


def numbers_of(stats: Stats) -> dict[str, object]:
    """The same for a program: every share in [0, 1], None where there is none."""
    conditional = [
        None if np.isnan(share) else float(share)
        for share in stats.conditional_acceptance()
    ]
    return {
        "steps": int(np.sum(stats.steps)),
        "drafted": int(np.sum(stats.drafted)),
        "acceptance_length": stats.acceptance_length(),
        "acceptance_by_depth": stats.acceptance_by_depth().tolist(),
        "conditional_acceptance": conditional,
        "histogram": stats.histogram().tolist(),
        "widths": widths_of(stats),
    }


def widths_of(stats: Stats) -> dict[int, int] | None:
    """Steps that read so many tokens of each row; None where that was no choice."""
    if stats.widths is None:
        return None
    counts = np.asarray(stats.widths).sum(0)
    return {int(i) + 1: int(counts[i]) for i in np.flatnonzero(counts)}
