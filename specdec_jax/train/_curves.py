"""A run's metrics as pictures."""

import json
from pathlib import Path
from typing import Any


def read_metrics(file: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a metrics.jsonl, of each step the newest, in order: a
    run that was resumed may have said a step twice.
    """
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    of_kind = {x["step"]: x for x in events if x["event"] == kind}
    return [of_kind[step] for step in sorted(of_kind)]


def plot_curves(metrics: Path, picture: Path) -> None:
    """Draw loss, accuracy by depth and τ over the steps.

    Raises:
        ImportError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # has no global state, unlike pyplot
    except ImportError as error:
        raise ImportError(
            "pictures need the package matplotlib: pip install 'specdec-jax[plot]'"
        ) from error
    trained, judged = (read_metrics(metrics, x) for x in ("trained", "evaluated"))
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    loss, accuracy, tau = figure.subplots(1, 3)
    steps = [x["step"] for x in trained]
    loss.plot(steps, [x["loss"] for x in trained], linewidth=0.8)
    loss.set(title="loss", xlabel="step", yscale="log")
    for depth in range(len(trained[0]["accuracy"]) if trained else 0):
        accuracy.plot(
            steps,
            [x["accuracy"][depth] for x in trained],
            linewidth=0.8,
            label=f"depth {depth + 1}",
        )
    accuracy.set(title="accuracy of the best guess", xlabel="step", ylim=(0, 1))
    if trained:
        accuracy.legend(fontsize="small")
    tau.plot([x["step"] for x in judged], [x["tau"] for x in judged], marker="o")
    tau.set(title="τ on held-out prompts", xlabel="step")
    for panel in (loss, accuracy, tau):
        panel.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)
