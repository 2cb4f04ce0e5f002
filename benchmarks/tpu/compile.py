"""Speculative steps on slices of TPUs, as their compiler makes them; no TPU is needed.

    python benchmarks/tpu/compile.py

Of each model, from the smallest slice that holds it to 256 chips: what a step moves
from and to HBM over what it must, whether it copies the cache, whether all of the cache
is reused, and how long the step takes at least. Eight rows for each part of "data",
4,096 slots a row. Rows that the result has already are left out, so that the script can
be stopped at any time and go on later.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

import specdec_jax as sd
from specdec_jax import plan, targets

RESULT = Path(__file__).parents[1] / "results" / "tpu_compile.json"
CHIPS = {"llama-3.1-8b": "v5e", "qwen3-8b": "v5e", "llama-3.3-70b": "v6e"}
ROWS, SLOTS, WIDEST = 8, 4096, 8  # WIDEST: chips of "model", one for each kv head


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Compile for TPUs and count what a step moves."""

    models: tuple[str, ...] = tuple(CHIPS)
    """Presets."""
    nodes: tuple[int, ...] = (1, 8, 16, 64)
    """Of NGram; 1 is plain decoding."""
    slices: tuple[str, ...] = ()
    """Like 2x4; by default all that hold the model."""
    output: Path = RESULT
    """Where the result goes, and which rows there are already."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One program to compile."""

    model: str
    topology: plan.Topology
    nodes: int

    @property
    def mesh(self) -> dict[str, int]:
        model = min(self.topology.chips, WIDEST)
        return {"data": self.topology.chips // model, "model": model}

    @property
    def batch(self) -> int:
        return ROWS * self.mesh["data"]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.model, self.topology.name, self.nodes

    def measure(self) -> dict[str, Any]:
        drafter = sd.Plain() if self.nodes == 1 else sd.NGram(num_nodes=self.nodes)
        found = plan.plan(
            self.model,
            targets.preset(self.model),
            [drafter],
            self.topology,
            self.mesh,
            batch=self.batch,
            slots=SLOTS,
        ).numbers()
        (step,) = found.pop("steps")
        return found | {"step": step}


def rows(arguments: Arguments) -> Iterator[Row]:
    """All that were asked for, the small slices first."""
    for model in arguments.models:
        chip = plan.CHIPS[CHIPS.get(model, "v5e")]
        target = targets.preset(model)
        for grid in arguments.slices or chip.slices:
            topology = plan.topology(f"{chip.name}:{grid}")
            row = Row(model, topology, 1)
            size = plan.sizes(target, batch=row.batch, slots=SLOTS, mesh=row.mesh)
            if size.held < chip.memory:
                for nodes in arguments.nodes:
                    yield dataclasses.replace(row, nodes=nodes)


def place_of(entry: dict[str, Any]) -> tuple[str, int, int]:
    chips = math.prod(entry["mesh"].values())
    return entry["model"], chips, entry["step"]["nodes"]


def key_of(entry: dict[str, Any]) -> tuple[str, str, int]:
    return entry["model"], entry["topology"], entry["step"]["nodes"]


def reason(entry: dict[str, Any]) -> str:
    """What a step moves besides weights and cache once, where it is over a tenth."""
    step = entry["step"]
    if step["excess"] <= 1.1:
        return ""
    ideal = entry["sizes"]["cache"]
    again = {
        "weights again": step["traffic"]["weights"] - (step["ideal"] - ideal),
        "cache again": step["traffic"]["cache"] - ideal,
        "made and read": step["traffic"]["other"],
        "written": step["traffic"]["written"],
    }
    large = {name: size for name, size in again.items() if size > 0.01 * step["ideal"]}
    return ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in large.items())


def show(entries: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table, each with plain decoding's step beside it."""
    plain = {
        (x["model"], x["topology"]): x["step"]["seconds"]
        for x in entries
        if x["step"]["nodes"] == 1
    }
    table = Table(
        "model", "slice", "data × model", "nodes", "GB moved", "over ideal", "copies",
        "cache reused", "temporary", "step ≥", "τ to gain", "besides",
        box=box.MARKDOWN,
    )  # fmt: skip
    for x in entries:
        step = x["step"]
        moved = step["traffic"]["total"] / 1e9
        alone = plain.get((x["model"], x["topology"]))
        table.add_row(
            x["model"],
            x["topology"],
            f"{x['mesh']['data']} × {x['mesh']['model']}",
            str(step["nodes"]),
            f"{moved:.2f}",
            f"{step['excess']:.3f}",
            f"{step['cache_copies']}, {step['cache_copies_in_step']} a step",
            "all" if step["aliased"] >= x["sizes"]["cache"] else "NOT ALL",
            f"{step['temporary'] / 1e9:.2f} GB",
            f"{step['seconds'] * 1e3:.2f} ms",
            "" if alone is None else f"{step['seconds'] / alone:.2f}",
            reason(x),
        )
    console.print(table)


def main(arguments: Arguments) -> int:
    """Measure what is missing, save after each row, show all; the exit status."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    console, errors = Console(width=180), Console(stderr=True)
    path = arguments.output
    saved = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": []}
    entries = {key_of(entry): entry for entry in saved["rows"]}
    wanted = list(rows(arguments))
    for number, row in enumerate(wanted, 1):
        if row.key in entries:
            continue
        start = time.perf_counter()
        errors.print(f"{number} of {len(wanted)}: {row.key}", highlight=False)
        entries[row.key] = row.measure() | {
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("specdec-jax", "jax", "libtpu")
            },
            "wall_seconds": round(time.perf_counter() - start, 1),
            "load": round(os.getloadavg()[0], 1),  # tells whether others were at work
        }
        order = sorted(entries.values(), key=place_of)
        text = json.dumps({"rows": order}, indent=1, ensure_ascii=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", "utf-8")
    show([entries[row.key] for row in wanted], console)
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
