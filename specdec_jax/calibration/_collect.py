"""What a drafter says of its drafts, and what becomes of them, on texts of its own."""

import numpy as np

from specdec_jax._door import Prompts, prepare
from specdec_jax._door_schedule import is_chain, profiles, reports_confidence
from specdec_jax._measure_acceptance import judged_drafts
from specdec_jax._options import Sampling
from specdec_jax._types import Drafter, Params, Rule, Target
from specdec_jax.calibration._fit import Outcomes
from specdec_jax.schedule import Profile

_NEVER = 1e-6  # as in `schedule.survival`


def collect(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Prompts,
    *,
    sampling: Sampling,
    rule: Rule = "match",
    max_length: int | None = None,
) -> tuple[Outcomes, Profile]:
    """Decode with every draft verified as a whole, so that nothing is left out by what
    was said of it. The step that ends a text does not count: what it accepted was cut.

    Raises:
        ValueError: for trees, drafters that report no confidence, rows that are sampled
            in different ways, and what `generate` refuses.
    """
    if not is_chain(drafter):
        raise ValueError(f"confidence is calibrated on chains; {drafter} drafts a tree")
    call = prepare(
        target,
        params,
        drafter,
        prompts,
        sampling=sampling,
        rule=rule,
        max_length=max_length,
    )
    found = profiles(call.program, call.request)
    if len(found) > 1:
        raise ValueError(
            "a calibration is for one way of sampling, and these rows have "
            f"{len(found)}: calibrate for each"
        )
    if not reports_confidence(target, params, drafter):
        raise ValueError(f"{drafter} reports no confidence: nothing to calibrate")
    parts = []
    for step in judged_drafts(call, params):
        draft, counts = step.draft, np.flatnonzero(~step.is_over)
        said = np.asarray(draft.confidence, np.float64)[counts, 1:]
        said = np.clip(np.nan_to_num(said), _NEVER, 1 - _NEVER)
        depth = np.arange(1, drafter.num_nodes)
        kept = (step.after - step.before)[counts, None] - 1
        is_drafted = np.logical_and.accumulate(draft.valid[counts, 1:], 1)
        logit = np.log(said) - np.log1p(-said)
        parts.append(Outcomes(logit, is_drafted, depth <= kept, counts))
    return Outcomes(*(np.concatenate(x) for x in zip(*parts, strict=True))), found[0]
