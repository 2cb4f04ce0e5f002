"""What `specdec-jax bench` races: the names of the command line, made into decoders."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax._types import Drafter
from specdec_jax.bench import Decoding, Synthetic
from specdec_jax.cli._arguments_measuring import Bench
from specdec_jax.cli._heads import HeadName, load_head, read_name, with_tree
from specdec_jax.cli._options import ModelOptions
from specdec_jax.cli._schedules import calibrated, find_cost
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens
from specdec_jax.schedule import CostTable, Profile, Schedule

MODEL, HEAD = "draft-model:", "head:"

Way = Decoding | Synthetic


def heads_of(command: Bench) -> list[HeadName]:
    """Of the drafters that are heads."""
    return [_head(name) for name in command.drafters if name.startswith(HEAD)]


def calibrations_of(command: Bench) -> list[Path]:
    """What lies beside heads whose schedule may look at it."""
    folders = {head.folder for head in heads_of(command) if head.schedule is not None}
    return sorted(file for x in folders for file in x.glob("calibration-*.json"))


def make_ways(
    command: Bench,
    model: sd.LanguageModel,
    tables: Sequence[CostTable],
    screens: Screens,
) -> list[Way]:
    """Plain decoding, then the drafters.

    Raises:
        ValueError: a drafter or a schedule is none, or a table is of no drafter here.
    """
    plain = Decoding(
        measuring.PLAIN,
        model.target,
        sd.Params(model.params),
        sd.Plain(),
        command.new_tokens,
        tuple(model.tokenizer.stop_ids),
    )
    ways: list[Way] = [plain]
    unused = list(tables)
    loaded: dict[Path, tuple[Drafter, Any]] = {}  # weights once, however drafted with
    for name, label in _labels(command.drafters).items():
        if name.startswith(HEAD):
            head = _head(name)
            if head.folder not in loaded:
                loaded[head.folder] = load_head(head.folder, model)
            drafter, params = loaded[head.folder]
            drafter = with_tree(drafter, head.tree)
        else:
            head, (drafter, params) = None, _headless(name, command, model, screens)
        params = sd.Params(model.params, params)
        way = dataclasses.replace(plain, name=label, drafter=drafter, params=params)
        cost = find_cost(tables, model.target, params, drafter)
        unused = [table for table in unused if table is not cost]
        if head is not None and head.schedule is not None:
            schedules = _schedules(command, head, way, cost, screens)
            way = dataclasses.replace(way, schedules=schedules)
        ways.append(way)
    if unused:
        file = command.costs[tables.index(unused[0])]
        raise ValueError(
            f"{file} was measured with none of these drafters, or on another machine: "
            "measure anew, or leave it out"
        )
    if command.synthetic_acceptance is not None:
        replay = measuring.Replay(**_nodes(command))
        ways.append(Synthetic(plain, command.synthetic_acceptance, replay))
    return ways


def _headless(
    name: str, command: Bench, model: sd.LanguageModel, screens: Screens
) -> tuple[Drafter, Any]:
    """What a name means that is not a head's, and its own parameters."""
    if not name.startswith(MODEL):
        return sd.NGram(**_nodes(command)), ()
    options = ModelOptions(name.removeprefix(MODEL), command.model.dtype)
    draft = model if options == command.model else load(options, screens)
    return sd.DraftModel(draft.target, **_nodes(command)), draft.params


def _nodes(command: Bench) -> dict[str, Any]:
    return {} if command.nodes is None else {"num_nodes": command.nodes}


def _head(name: str) -> HeadName:
    return read_name(name.removeprefix(HEAD))


def _schedules(
    command: Bench,
    head: HeadName,
    way: Decoding,
    cost: CostTable | None,
    screens: Screens,
) -> dict[float, Schedule]:
    """What is said of how much to verify, with the calibration of each temperature."""
    assert head.schedule is not None
    return {
        temperature: calibrated(
            head.schedule,
            cost,
            head.folder,
            Profile("match", way.drafter.kind, temperature),
            way.target,
            way.params,
            way.drafter,
            console=screens.err,
        )
        for temperature in command.temperatures
    }


def predictable(
    command: Bench, ways: Sequence[Way], tables: Sequence[CostTable]
) -> list[dict[str, Any]]:
    """Seconds of a step's parts where all steps are alike, which they are without a
    schedule and with a drafter that always drafts, and a table knows them.
    """
    found = []
    for way in ways:
        if isinstance(way, Synthetic) or way.schedules or way.drafter.can_pass:
            continue
        table = find_cost(tables, way.target, way.params, way.drafter)
        nodes = way.drafter.num_nodes
        if table is None or nodes > table.widths[-1]:
            continue
        for batch in command.batches:
            if batch in table.batches:
                drafting = table.drafting(batch)
                (step,) = table.seconds(batch, [nodes]).tolist()
                found.append(
                    {
                        "drafter": way.name,
                        "batch": batch,
                        "nodes": nodes,
                        "temperature": table.temperature,
                        "slots": table.slots,
                        "plain": table.plain(batch),
                        "draft": drafting,
                        "verify": step - drafting,
                    }
                )
    return found


def _labels(names: Sequence[str]) -> dict[str, str]:
    """What tables call each drafter but plain decoding: a head by its folder's own
    name, which is short, unless another goes by that name too.
    """
    short = {name: name for name in names if name != measuring.PLAIN}
    for name in short:
        if name.startswith(HEAD):
            short[name] = _head(name).short
    taken = Counter([measuring.PLAIN, *short.values()])
    return {name: x if taken[x] == 1 else name for name, x in short.items()}
