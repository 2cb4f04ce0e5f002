"""A reliability diagram."""

from pathlib import Path

import numpy as np

from specdec_jax.calibration._fit import Outcomes, survivals
from specdec_jax.calibration._scores import reliability
from specdec_jax.schedule import Calibration


def plot_reliability(
    outcomes: Outcomes, calibration: Calibration, picture: str | Path
) -> None:
    """Draw, for each depth, how often a survival came true against what was said, with
    the calibration and without it.

    Raises:
        ImportError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # has no global state, unlike pyplot
    except ImportError as error:
        raise ImportError(
            "pictures need the package matplotlib: pip install 'specdec-jax[plot]'"
        ) from error
    depths = len(calibration.temperatures)
    columns = min(depths, 4)
    rows = -(-depths // columns)
    figure = Figure(figsize=(3.2 * columns, 3.2 * rows), layout="constrained")
    panels = np.ravel(figure.subplots(rows, columns, squeeze=False))
    ways = {"as reported": (1.0,) * depths, "calibrated": calibration.temperatures}
    for depth, panel in enumerate(panels):
        if depth >= depths:
            panel.set_axis_off()
            continue
        panel.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        chosen = outcomes.is_drafted[:, depth]
        came = outcomes.is_accepted[chosen, depth]
        for name, temperatures in ways.items():
            said = survivals(outcomes, temperatures)[chosen, depth]
            mean, share, count = reliability(said, came)
            panel.scatter(
                mean, share, s=4 + 120 * count / max(count.sum(), 1), label=name
            )
        temperature = calibration.temperatures[depth]
        panel.set(
            title=f"depth {depth + 1}, temperature {temperature:.2f}",
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="said",
            ylabel="accepted",
        )
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.savefig(picture, format="png", dpi=110)
