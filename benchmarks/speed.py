"""How fast: ratios of things timed by turns in one process.

    python benchmarks/speed.py                       # all parts
    python benchmarks/speed.py --parts step blocks   # these anew, the others kept
    python benchmarks/speed.py --parts               # print what there is

Writes results/speed.json and speed.png, and prints the tables of README.md.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import _speed_blocks
import _speed_lookup
import _speed_step
import _speed_tasks
import _speed_training
import _speed_transformers
import tyro
from _evaluation import DATA, read_prompts
from _machine import RESULTS, machine, save, set_up
from _speed_plot import plot
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

import specdec_jax as sd

Part = Literal["transformers", "step", "blocks", "tasks", "lookup", "training"]
TABLES: dict[Part, Callable[[Any], str]] = {
    "transformers": _speed_transformers.table,
    "step": _speed_step.table,
    "blocks": _speed_blocks.table,
    "tasks": _speed_tasks.table,
    "lookup": _speed_lookup.table,
    "training": _speed_training.table,
}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Speed of specdec_jax on SmolLM2-135M-Instruct in float32, batch 1."""

    parts: tuple[Part, ...] = tuple(TABLES)
    """What to measure."""
    rounds: int = 9
    """Repetitions of each measurement, but one for each prompt of a task."""
    new_tokens: int = 64
    """Of each generation."""
    prompts: int = 10
    """Of each task."""
    data: Path = DATA
    """Folder of the evaluation files."""
    output: Path = RESULTS / "speed.json"
    """Where results are kept; the plot goes beside."""


def measure(part: Part, arguments: Arguments, tick: Callable[[], None]) -> Any:
    """One part's record."""
    model = sd.load("smollm2-135m-instruct")
    prompts = read_prompts(arguments.data / "spec_bench.jsonl", model.tokenizer)
    rounds, new_tokens = arguments.rounds, arguments.new_tokens
    match part:
        case "transformers":
            return _speed_transformers.measure(
                model, prompts, new_tokens=new_tokens, rounds=rounds, tick=tick
            )
        case "step":
            return _speed_step.measure(
                model, prompts, new_tokens=new_tokens, rounds=rounds, tick=tick
            )
        case "blocks":
            return _speed_blocks.measure(model, rounds=rounds, tick=tick)
        case "training":
            return _speed_training.measure(model, rounds=rounds, tick=tick)
        case "tasks" | "lookup":
            by_task = _speed_tasks if part == "tasks" else _speed_lookup
            return by_task.measure(
                model,
                prompts,
                per_task=arguments.prompts,
                new_tokens=new_tokens,
                tick=tick,
            )


def main(arguments: Arguments) -> None:
    """Measure, save after each part, print all tables."""
    set_up()
    console = Console()
    file = arguments.output
    results: dict[Part, Any] = json.loads(file.read_text()) if file.exists() else {}
    columns = (
        SpinnerColumn(),
        "{task.description}: {task.completed}",
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for part in arguments.parts:
            bar = progress.add_task(part, total=None)
            before = machine()
            record = measure(part, arguments, lambda bar=bar: progress.advance(bar))
            results[part] = {"machine": before, "record": record}
            save(file, results)
    for part, table in TABLES.items():
        if part in results:
            facts = results[part]["machine"]
            record = json.loads(json.dumps(results[part]["record"]))
            said = ", ".join(f"{key} {value}" for key, value in facts.items() if value)
            print(f"\n## {part}\n\n{said}\n\n{table(record)}")
    plot(results, file.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
