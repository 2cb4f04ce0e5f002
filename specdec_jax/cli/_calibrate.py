"""`specdec-jax calibrate`: a head's confidence, made to come true."""

from pathlib import Path
from typing import Any

from rich.progress import Progress

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax import calibration
from specdec_jax._types import Drafter
from specdec_jax.bench import Prompt
from specdec_jax.calibration import Outcomes
from specdec_jax.cli._arguments_measuring import Calibrate
from specdec_jax.cli._heads import load_head
from specdec_jax.cli._prompts import load_prompts
from specdec_jax.cli._show import Screens, plain_table, progress_bar
from specdec_jax.schedule import Calibration, Profile


def calibrate(command: Calibrate, screens: Screens) -> int:
    """Fit and judge at each temperature, show, and write; status 0."""
    folder = command.head if command.output is None else command.output
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} for the calibration")
    if command.plot:
        measuring.check_matplotlib()
    model, prompts, _ = load_prompts(command, screens)
    drafter, head = load_head(command.head, model)
    params = sd.Params(model.params, head)
    for temperature in command.temperatures:
        with progress_bar(screens.err) as progress:
            outcomes, profile = _outcomes(
                command, model, drafter, params, prompts, temperature, progress
            )
        found, judged = calibration.judged_fit(outcomes, profile, command.loss)
        _show(found, len(prompts), screens)
        written = [found.save(folder)]
        if command.plot:
            written.append(written[0].with_suffix(".png"))
            calibration.plot_reliability(judged, found, written[-1])
        screens.err.print(f"Written: {_listed(written)}", soft_wrap=True)
    return 0


def _outcomes(
    command: Calibrate,
    model: sd.LanguageModel,
    drafter: Drafter,
    params: sd.Params,
    prompts: list[Prompt],
    temperature: float,
    progress: Progress,
) -> tuple[Outcomes, Profile]:
    """Of all prompts, batch by batch; the last one is filled up, and what that adds is
    left out.
    """
    groups = measuring.make_groups(
        prompts, temperatures=[temperature], batches=[command.answering.batch]
    )
    slots = max(len(prompt.ids) for prompt in prompts) + command.answering.new_tokens
    bar = progress.add_task(f"temperature {temperature:g}", total=len(groups))
    parts: list[Outcomes] = []
    found: Any = None
    for group in groups:
        outcomes, found = calibration.collect(
            model.target,
            params,
            drafter,
            [prompt.ids for prompt in group.prompts],
            sampling=sd.Sampling(
                temperature=temperature,
                top_k=command.top_k,
                top_p=command.top_p,
                min_p=command.min_p,
                max_new_tokens=command.answering.new_tokens,
                stop_ids=model.tokenizer.stop_ids,
                seed=group.seeds,
            ),
            rule=command.rule,
            max_length=slots,
        )
        fresh = measuring.fresh_rows(group, prompts)
        parts.append(outcomes.of(outcomes.text < fresh))
        progress.advance(bar)
    return calibration.join(parts), found


def _show(found: Calibration, prompts: int, screens: Screens) -> None:
    profile = found.profile
    table = plain_table(
        f"{profile.rule}, T {profile.temperature:g}",
        "temperature",
        "ECE",
        "AUROC",
        "Brier",
    )
    for depth, (temperature, before, after) in enumerate(
        zip(found.temperatures, found.before, found.after, strict=True), 1
    ):
        table.add_row(
            f"depth {depth}",
            f"{temperature:.2f}",
            f"{before.ece:.3f} → {after.ece:.3f}",
            f"{before.auroc:.3f} → {after.auroc:.3f}",
            f"{before.brier:.3f} → {after.brier:.3f}",
        )
    screens.out.print(table)
    screens.out.print(
        f"{found.steps:,} verifications of {prompts} prompts; judged on every second.",
        style="dim",
    )


def _listed(files: list[Path]) -> str:
    return ", ".join(map(str, files))
