"""Speculative steps on slices of TPUs, as their compiler makes them; no TPU is needed.

    python benchmarks/tpu/compile.py

Of each model on the smallest slice that holds it, on eight chips and on 256 (of some on
one slice only; between those slices only "data" grows): what a step moves from and to
HBM over what it must, whether it copies the cache, whether all of the cache is reused,
and how long the step takes at least. NGram on every slice, EAGLE-3 on eight chips, and
there DFlash and DSpark for one model, the latter also with several widths to choose
from. Eight rows for each part of "data", 4,096 slots a row.
Rows that the result has already are left out, so that the script can be stopped at any
time and go on later.
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
from typing import Any, Literal

import jax
import tyro
from rich.console import Console

import specdec_jax as sd
from specdec_jax import plan, targets
from specdec_jax._types import Drafter

RESULT = Path(__file__).parents[1] / "results" / "tpu_compile.json"
CHIPS = {"llama-3.1-8b": "v5e", "qwen3-8b": "v5e", "llama-3.3-70b": "v6e"}
ONCE = {"qwen3-30b-a3b": "v6e:2x2", "gemma-3-12b": "v5e:2x4"}  # one row each
ROWS, SLOTS, WIDEST = 8, 4096, 8  # WIDEST: chips of "model", one for each kv head
TREE = sd.GrownTree(num_nodes=60, depth=8, width=10)
HEAD_CHIPS, ONCE_NODES = 8, 16
BLOCKS = "qwen3-8b"  # what DFlash and DSpark are published for
WIDTHS = ((), (1, 8), (1, 4, 8), (1, 2, 4, 6, 8))  # of DSpark
Key = tuple[str, str, str, int, tuple[int, ...]]
HEADER = """\
| model | slice | data × model | drafter, nodes | GB moved | over ideal | copies | \
cache reused | temporary | step ≥ | τ to gain | compiled in | besides |
| --- | --- | --- | --- | --: | --: | --: | --- | --: | --: | --: | --: | --- |
"""


Head = Literal["eagle3", "dflash", "dspark"]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Compile for TPUs and count what a step moves."""

    models: tuple[str, ...] = (*CHIPS, *ONCE)
    """Presets."""
    drafters: tuple[Head | Literal["ngram"], ...] = (
        "ngram",
        "eagle3",
        "dflash",
        "dspark",
    )
    """Plain decoding is NGram's with one node."""
    nodes: tuple[int, ...] = (1, 8, 16, 64)
    """Of NGram."""
    slices: tuple[str, ...] = ()
    """Like 2x4; by default the smallest that holds the model, that of eight chips, and
    the largest."""
    output: Path = RESULT
    """Where the result goes, and which rows there are already."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One program to compile."""

    model: str
    topology: plan.Topology
    drafter: Head | Literal["ngram"]
    nodes: int = 0  # of NGram; heads have their own
    widths: tuple[int, ...] = ()

    @property
    def mesh(self) -> dict[str, int]:
        model = min(self.topology.chips, WIDEST)
        return {"data": self.topology.chips // model, "model": model}

    @property
    def batch(self) -> int:
        return ROWS * self.mesh["data"]

    @property
    def key(self) -> Key:
        drafter = self.proposes
        name, nodes = type(drafter).__name__, drafter.num_nodes
        return self.model, self.topology.name, name, nodes, self.widths

    @property
    def proposes(self) -> Drafter:
        target = targets.preset(self.model)
        match self.drafter:
            case "eagle3":
                return plan.eagle3(target, TREE)
            case "dflash":
                return plan.dflash(target, None)
            case "dspark":
                return plan.dspark(target)
        return sd.Plain() if self.nodes == 1 else sd.NGram(num_nodes=self.nodes)

    @property
    def schedule(self) -> sd.schedule.Schedule | None:
        """What it weighs does not change what is compiled."""
        if not self.widths:
            return None
        seconds = (tuple(map(float, self.widths)),)
        cost = sd.schedule.CostTable((self.batch,), self.widths, seconds, (0.0,))
        return sd.schedule.EarlyStop(cost)

    def measure(self) -> dict[str, Any]:
        found = plan.plan(
            self.model,
            targets.preset(self.model),
            [self.proposes],
            self.topology,
            self.mesh,
            batch=self.batch,
            slots=SLOTS,
            schedule=self.schedule,
        ).numbers()
        (step,) = found.pop("steps")
        return found | {"step": step}


def rows(arguments: Arguments) -> Iterator[Row]:
    """All that were asked for, the small slices first."""
    for model in arguments.models:
        if model in ONCE:
            yield Row(model, plan.topology(ONCE[model]), "ngram", ONCE_NODES)
            continue
        chip = plan.CHIPS[CHIPS.get(model, "v5e")]
        target = targets.preset(model)
        topologies = [
            plan.topology(f"{chip.name}:{grid}")
            for grid in arguments.slices or chip.slices
        ]
        each = [Row(model, topology, "ngram") for topology in topologies]
        each = [row for row in each if _held(row, target) < chip.memory]
        if not arguments.slices:
            eight = [row for row in each if row.topology.chips == HEAD_CHIPS]
            each = list(dict.fromkeys([each[0], *eight, each[-1]]))
        for row in each:
            if "ngram" in arguments.drafters:
                for nodes in arguments.nodes:
                    yield dataclasses.replace(row, nodes=nodes)
            if row.topology.chips != HEAD_CHIPS:
                continue
            if "eagle3" in arguments.drafters:
                yield dataclasses.replace(row, drafter="eagle3")
            if "dflash" in arguments.drafters and model == BLOCKS:
                yield dataclasses.replace(row, drafter="dflash")
            if "dspark" in arguments.drafters and model == BLOCKS:
                for widths in WIDTHS:
                    yield dataclasses.replace(row, drafter="dspark", widths=widths)


def _held(row: Row, target: targets.ModuleTarget) -> int:
    return plan.sizes(target, batch=row.batch, slots=SLOTS, mesh=row.mesh).held


def place_of(entry: dict[str, Any]) -> tuple[Any, ...]:
    step, chips = entry["step"], math.prod(entry["mesh"].values())
    order = ("Plain", "NGram", "Eagle3", "DFlash", "DSpark")
    place = order.index(step["drafter"]), step["nodes"], len(widths_of(step))
    return entry["model"], chips, *place


def key_of(entry: dict[str, Any]) -> Key:
    step = entry["step"]
    drafted = step["drafter"], step["nodes"], widths_of(step)
    return entry["model"], entry["topology"], *drafted


def widths_of(step: dict[str, Any]) -> tuple[int, ...]:
    """Those that a schedule chooses from; in JSON they are words."""
    return tuple(map(int, step.get("widths", {})))


def reason(entry: dict[str, Any]) -> str:
    """What a step moves besides weights and cache once, where it is over a tenth, and
    what the mesh wastes.
    """
    step, copies = entry["step"], entry["sizes"]["copies"]
    wasted = f"kv heads of all on each of {copies} chips" if copies > 1 else ""
    if step["excess"] <= 1.1:
        return wasted
    ideal = 2 * (step["ideal"] - step["ideal_half"])  # of the cache
    again = {
        "weights again": step["traffic"]["weights"] - (step["ideal"] - ideal),
        "cache again": step["traffic"]["cache"] - ideal,
        "made and read": step["traffic"]["other"],
        "written": step["traffic"]["written"],
    }
    large = {name: size for name, size in again.items() if size > 0.01 * step["ideal"]}
    parts = [f"{name} {size / 1e9:.2f} GB" for name, size in large.items()]
    return ", ".join(parts + [wasted] * bool(wasted))


def drafter_of(step: dict[str, Any]) -> str:
    name: str = step["drafter"]
    name = {"Plain": "plain", "Eagle3": "EAGLE-3"}.get(name, name)
    if widths := widths_of(step):
        return f"{name}, {' or '.join(map(str, widths))}"
    return name if step["nodes"] == 1 else f"{name}, {step['nodes']}"


def table(entries: list[dict[str, Any]]) -> str:
    """The rows in Markdown, each step beside plain decoding's; README has it."""
    plain = {
        (x["model"], x["topology"]): x["step"]["seconds"]
        for x in entries
        if x["step"]["nodes"] == 1
    }
    lines = [HEADER]
    for x in entries:
        step = x["step"]
        cache = x["sizes"]["cache"] + step["drafter_cache"]
        alone = plain.get((x["model"], x["topology"]))
        cells = (
            x["model"],
            x["topology"],
            f"{x['mesh']['data']} × {x['mesh']['model']}",
            drafter_of(step),
            f"{step['traffic']['total'] / 1e9:.2f}",
            f"{step['excess']:.3f}",
            str(step["cache_copies"]),
            "all" if step["aliased"] >= cache else "NOT ALL",
            f"{step['temporary'] / 1e9:.2f} GB",
            f"{step['seconds'] * 1e3:.2f} ms",
            "" if alone is None else f"{step['seconds'] / alone:.2f}",
            f"{step['compile_seconds']:.0f} s",
            reason(x),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def main(arguments: Arguments) -> int:
    """Measure what is missing, save after each row, show all there are; the exit
    status.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    errors = Console(stderr=True)
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
    print(table(sorted(entries.values(), key=place_of)))
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
