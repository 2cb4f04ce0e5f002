"""`specdec-jax evaluate`: what a drafter's drafts are worth, without a clock."""

import json
from pathlib import Path
from typing import Any

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax.bench import Acceptance
from specdec_jax.cli._arguments_measuring import Evaluate
from specdec_jax.cli._heads import load_head, with_tree
from specdec_jax.cli._prompts import load_prompts
from specdec_jax.cli._show import Screens, plain_table, progress_bar


def evaluate(command: Evaluate, screens: Screens) -> int:
    """Answer the prompts with every tree and show what was accepted; status 0."""
    model, fitting, left_out = load_prompts(command, screens)
    drafter, params = load_head(command.head, model)
    drafters = {name: with_tree(drafter, name) for name in command.trees}
    found: dict[str, list[Acceptance]] = {}
    for name, way in drafters.items():
        with progress_bar(screens.err) as progress:
            bar = progress.add_task(name, total=None)
            answers = measuring.answer(
                model.target,
                sd.Params(model.params, params),
                way,
                fitting,
                temperatures=command.temperatures,
                batch=command.answering.batch,
                new_tokens=command.answering.new_tokens,
                stop_ids=model.tokenizer.stop_ids,
                report=lambda done, total, bar=bar, progress=progress: progress.update(
                    bar, completed=done, total=total
                ),
            )
        found[name] = measuring.acceptances(answers)
        _show(name, found[name], screens)
    if command.output is not None:
        _write(command, found, left_out)
    return 0


def _show(tree: str, found: list[Acceptance], screens: Screens) -> None:
    table = plain_table(tree, "T", "prompts", "τ (95 %)", "kept by depth")
    for x in found:
        table.add_row(
            x.task,
            f"{x.temperature:g}",
            str(x.prompts),
            f"{x.tau:.2f} ({x.low:.2f}–{x.high:.2f})",
            " ".join(f"{share:.0%}" for share in x.by_depth),
        )
    screens.out.print(table)


def _write(
    command: Evaluate, found: dict[str, list[Acceptance]], left_out: int
) -> None:
    said: dict[str, Any] = {
        "head": str(command.head),
        "model": command.model.model,
        "dtype": command.model.dtype,
        "prompts": [Path(file).name for file in command.prompts],
        "left_out": left_out,
        "new_tokens": command.answering.new_tokens,
        "trees": {name: [x.to_json() for x in rows] for name, rows in found.items()},
    }
    assert command.output is not None
    text = json.dumps(said, indent=1, ensure_ascii=False) + "\n"
    command.output.write_text(text, "utf-8")
