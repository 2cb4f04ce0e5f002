"""Pictures of a summary: speed-up by task, and acceptance."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_jax.bench._summary import ALL, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = Callable[["Axes", list[Summary]], None]


def check_matplotlib() -> None:
    """Raise `ImportError` where matplotlib is missing: say so before hours of work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "pictures need the package matplotlib: pip install 'specdec-jax[plot]'"
        ) from error


def plot(summaries: Sequence[Summary], file: Path) -> list[Path]:
    """Write `<stem>-speed.png`, `-histogram.png` and `-depth.png` beside `file`, with a
    panel for each temperature and batch size; return their paths.

    Raises:
        ImportError: matplotlib is missing.
    """
    check_matplotlib()
    panels: dict[str, Panel] = {
        "speed": _speed,
        "histogram": _histogram,
        "depth": _depth,
    }
    written = []
    for name, panel in panels.items():
        path = file.with_name(f"{file.stem}-{name}.png")
        _figure(panel, summaries, path)
        written.append(path)
    return written


def _figure(panel: Panel, summaries: Sequence[Summary], path: Path) -> None:
    from matplotlib.figure import Figure  # has no global state, unlike pyplot

    temperatures = list(dict.fromkeys(x.temperature for x in summaries))
    batches = list(dict.fromkeys(x.batch for x in summaries))
    tallest = max(len({x.task for x in summaries}), 6)
    figure = Figure(
        figsize=(4.8 * len(batches), (1.2 + 0.4 * tallest) * len(temperatures)),
        layout="constrained",
    )
    axes = figure.subplots(len(temperatures), len(batches), squeeze=False, sharex=True)
    for row, temperature in enumerate(temperatures):
        for column, batch in enumerate(batches):
            chosen = [
                x for x in summaries if (x.temperature, x.batch) == (temperature, batch)
            ]
            axis = axes[row, column]
            axis.set_title(f"temperature {temperature:g}, batch {batch}", fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
            panel(axis, chosen)
            if row + 1 < len(temperatures):
                axis.set_xlabel("")
            if column > 0:
                axis.set_ylabel("")
    if len({x.drafter for x in summaries}) > 1:
        axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _speed(axis: "Axes", summaries: list[Summary]) -> None:
    tasks = list(dict.fromkeys(x.task for x in summaries))
    drafters = list(dict.fromkeys(x.drafter for x in summaries))
    height = 0.8 / len(drafters)
    for i, drafter in enumerate(drafters):
        own = [x for x in summaries if x.drafter == drafter]
        medians = [x.ratio.median for x in own]
        errors = [
            [x.ratio.median - x.ratio.low for x in own],
            [x.ratio.high - x.ratio.median for x in own],
        ]
        middle = (i - (len(drafters) - 1) / 2) * height
        places = [tasks.index(x.task) + middle for x in own]
        style: Any = {"capsize": 3, "error_kw": {"linewidth": 1}, "alpha": 0.85}
        axis.barh(places, medians, height, xerr=errors, label=drafter, **style)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("speed of decoding over plain decoding")


def _histogram(axis: "Axes", summaries: list[Summary]) -> None:
    pooled = _pooled(summaries)
    width = 0.8 / max(len(pooled), 1)
    deepest = 0
    for i, x in enumerate(pooled):
        total = max(sum(x.histogram), 1)
        middle = (i - (len(pooled) - 1) / 2) * width
        places = [depth + middle for depth in range(len(x.histogram))]
        shares = [100 * steps / total for steps in x.histogram]
        axis.bar(places, shares, width, label=x.drafter)
        deepest = max(deepest, len(x.histogram))
    axis.set_xticks(range(deepest))
    axis.set_ylim(bottom=0)
    axis.set(xlabel="drafted tokens kept by a step", ylabel="% of steps")


def _depth(axis: "Axes", summaries: list[Summary]) -> None:
    for i, x in enumerate(_pooled(summaries)):
        colour = f"C{i}"
        depths = range(1, len(x.acceptance_by_depth) + 1)
        kept = [100 * share for share in x.acceptance_by_depth]
        axis.plot(depths, kept, "o-", color=colour, label=f"{x.drafter}: of all steps")
        conditional = [
            (depth, 100 * share)
            for depth, share in zip(depths, x.conditional_acceptance, strict=True)
            if share is not None
        ]
        axis.plot(
            [depth for depth, _ in conditional],
            [share for _, share in conditional],
            "o:",
            color=colour,
            fillstyle="none",
            label=f"{x.drafter}: where proposed, all before kept",
        )
        axis.set_xticks(depths)
    axis.set_ylim(0, 103)
    axis.set(xlabel="depth of the draft", ylabel="% accepted")
    axis.legend(fontsize=7)


def _pooled(summaries: list[Summary]) -> list[Summary]:
    """Over all tasks; where there is one task, that."""
    whole = [x for x in summaries if x.task == ALL] or summaries
    return [x for x in whole if x.histogram]
