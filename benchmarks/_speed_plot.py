"""The picture of the speeds."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from specdec_jax.bench import Spread  # noqa: E402


def plot(results: dict[Any, Any], file: Path) -> None:
    """Cost of a block, and speed-up per task, as far as they have been measured."""
    panels = [part for part in ("blocks", "tasks") if part in results]
    if not panels:
        return
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(5 * len(panels), 4),
        squeeze=False,
        layout="constrained",
    )
    for part, axis in zip(panels, axes[0], strict=True):
        record = results[part]["record"]
        (_blocks if part == "blocks" else _tasks)(axis, record)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _blocks(axis: Any, record: dict[str, Any]) -> None:
    rows = record["rows"]
    tokens = [row["tokens"] for row in rows]
    ratios = [Spread(*row["ratio"]) for row in rows]
    axis.plot(tokens, [x.median for x in ratios], "o-")
    axis.fill_between(
        tokens, [x.low for x in ratios], [x.high for x in ratios], alpha=0.3
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks(tokens, [str(x) for x in tokens])
    axis.set_ylim(bottom=0)
    axis.set(xlabel="tokens in the block", ylabel="cost over one token")


def _tasks(axis: Any, rows: list[dict[str, Any]]) -> None:
    names = [row["task"].replace("_", " ") for row in rows]
    ratios = [Spread(*row["ratio"]) for row in rows]
    medians = [x.median for x in ratios]
    errors = [
        [x.median - x.low for x in ratios],
        [x.high - x.median for x in ratios],
    ]
    axis.barh(names, medians, xerr=errors, capsize=3)
    axis.axvline(1, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.set(xlabel="NGram's speed over plain decoding")
