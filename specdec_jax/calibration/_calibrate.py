"""From held-out prompts to a calibration, and to a picture of it."""

from pathlib import Path

import numpy as np

from specdec_jax._door import Prompts
from specdec_jax._options import Sampling
from specdec_jax._types import Drafter, Params, Rule, Target
from specdec_jax.calibration._collect import collect
from specdec_jax.calibration._fit import Loss, Outcomes, fit, survivals
from specdec_jax.calibration._plot import plot_reliability
from specdec_jax.calibration._scores import score
from specdec_jax.schedule import Calibration, Profile, Score


def calibrate(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling,
    rule: Rule = "match",
    loss: Loss = "ece",
    max_length: int | None = None,
    picture: str | Path | None = None,
) -> Calibration:
    """Fit a drafter's confidence to what is accepted of its drafts.

    It holds for the rule, the drafter's kind and the sampling that it was fitted under,
    and is refused for others. `Calibration.save` writes it beside the drafter, and
    schedules take it.

    Args:
        target: as for `generate`, and so are the others.
        params: of target and drafter.
        drafter: a chain that reports confidence.
        prompts: that the drafter was not trained on. The texts of every second one are
            fitted, the others judge the fit.
        sampling: of the texts; one way for all rows.
        rule: of verification.
        loss: "ece" or "nll", see `fit`.
        max_length: slots of the cache.
        picture: a file to draw the reliability of each depth to.

    Raises:
        ValueError: for less than two prompts, and as `collect`.
    """
    if len(prompts) < 2:
        raise ValueError(
            "calibrate needs two prompts at least: one to fit, one to judge"
        )
    if loss not in ("ece", "nll"):
        raise ValueError(f'loss is "ece" or "nll", not {loss!r}')
    outcomes, profile = collect(
        target,
        params,
        drafter,
        prompts,
        sampling=sampling,
        rule=rule,
        max_length=max_length,
    )
    found, judged = judged_fit(outcomes, profile, loss)
    if picture is not None:
        plot_reliability(judged, found, picture)
    return found


def judged_fit(
    outcomes: Outcomes, profile: Profile, loss: Loss
) -> tuple[Calibration, Outcomes]:
    """Fitted on every second text, judged on the others; these are returned too."""
    is_fitted = outcomes.text % 2 == 0
    if is_fitted.all() or not is_fitted.any():
        raise ValueError(
            "one half of the texts has no step that counts, and the last one never "
            "does: ask for more prompts, or more new tokens"
        )
    temperatures = fit(outcomes.of(is_fitted), loss)
    judged = outcomes.of(~is_fitted)
    bare = (1.0,) * len(temperatures)
    return Calibration(
        profile,
        temperatures,
        before=_scores(judged, bare),
        after=_scores(judged, temperatures),
        steps=len(outcomes.text),
    ), judged


def _scores(judged: Outcomes, temperatures: tuple[float, ...]) -> tuple[Score, ...]:
    said = survivals(judged, temperatures)
    return tuple(
        score(said[chosen, depth], judged.is_accepted[chosen, depth])
        for depth, chosen in enumerate(np.moveaxis(judged.is_drafted, 1, 0))
    )
