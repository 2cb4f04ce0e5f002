"""`specdec-jax evaluate`: what a drafter's drafts are worth, without a clock."""

import hashlib
import json
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax._digest import digest
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
    settings = _settings(command, params)
    found = _begin(command, settings)
    for name, way in drafters.items():
        rows = found.setdefault(name, [])
        for temperature in command.temperatures:
            if any(x.temperature == temperature for x in rows):
                continue
            with progress_bar(screens.err) as progress:
                bar = progress.add_task(f"{name}, T {temperature:g}", total=None)
                answers = measuring.answer(
                    model.target,
                    sd.Params(model.params, params),
                    way,
                    fitting,
                    temperatures=[temperature],
                    batch=command.answering.batch,
                    new_tokens=command.answering.new_tokens,
                    stop_ids=model.tokenizer.stop_ids,
                    report=lambda done, total, bar=bar, bars=progress: bars.update(
                        bar, completed=done, total=total
                    ),
                )
            rows += measuring.acceptances(answers)
            if command.output is not None:
                _write(command.output, settings | {"left_out": left_out}, found)
        _show(name, [x for x in rows if x.temperature in command.temperatures], screens)
    return 0


def _show(tree: str, rows: list[Acceptance], screens: Screens) -> None:
    table = plain_table(tree, "T", "prompts", "τ (95 %)", "kept by depth")
    for x in rows:
        table.add_row(
            x.task,
            f"{x.temperature:g}",
            str(x.prompts),
            f"{x.tau:.2f} ({x.low:.2f}–{x.high:.2f})",
            " ".join(f"{share:.0%}" for share in x.by_depth),
        )
    screens.out.print(table)


def _settings(command: Evaluate, params: PyTree) -> dict[str, Any]:
    """What all numbers of a file share."""
    texts = hashlib.sha256()
    for file in command.prompts:
        texts.update(file.read_bytes())
    return {
        "head": str(command.head),
        "weights": digest(params),
        "model": command.model.model,
        "dtype": command.model.dtype,
        "prompts": [Path(file).name for file in command.prompts],
        "prompts_sha256": texts.hexdigest()[:16],
        "per_task": command.answering.per_task,
        "max_prompt": command.answering.max_prompt,
        "new_tokens": command.answering.new_tokens,
    }


def _begin(command: Evaluate, settings: dict[str, Any]) -> dict[str, list[Acceptance]]:
    """What --output has of each tree.

    Raises:
        ValueError: it has no folder, is of something else, or of other settings.
    """
    file = command.output
    if file is None:
        return {}
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent} for {file.name}")
    if not file.exists():
        return {}
    try:
        before = json.loads(file.read_text("utf-8"))
        found = {
            name: [Acceptance.from_json(x) for x in rows]
            for name, rows in before["trees"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is no file of specdec-jax evaluate: give another --output"
        ) from error
    if command.restart:
        return {}
    measuring.check_same(file, before, settings)
    return found


def _write(
    file: Path, settings: dict[str, Any], found: dict[str, list[Acceptance]]
) -> None:
    trees = {name: [x.to_json() for x in rows] for name, rows in found.items()}
    text = json.dumps(settings | {"trees": trees}, indent=1, ensure_ascii=False) + "\n"
    beside = file.with_name(file.name + ".part")
    beside.write_text(text, "utf-8")
    beside.replace(file)
