"""`specdec-jax bench`: drafters on prompts, against plain decoding."""

import dataclasses
import hashlib
import math
import shlex
import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax.bench import Decoding, Group, Prompt, Results, Synthetic
from specdec_jax.cli._arguments_measuring import Bench
from specdec_jax.cli._bench_tables import show
from specdec_jax.cli._bench_ways import (
    HEAD,
    MODEL,
    Way,
    calibrations_of,
    heads_of,
    make_ways,
    predictable,
)
from specdec_jax.cli._heads import read_name
from specdec_jax.cli._prompts import encoder
from specdec_jax.cli._schedules import check_schedule, load_tables
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens, progress_bar

_PROFILED = 32  # tokens


def bench(command: Bench, screens: Screens) -> int:
    """Measure what is missing, show all; status 0."""
    _check(command)
    if command.plot:
        measuring.check_matplotlib()
    tables = load_tables(command.costs)
    for head in heads_of(command):
        if head.schedule is not None:
            check_schedule(head.schedule, has_cost=bool(tables))
    rows = measuring.choose_rows(
        measuring.read_rows(command.prompts),
        tasks=command.tasks,
        per_task=command.per_task,
    )
    machine = measuring.machine(shlex.join(["specdec-jax", *sys.argv[1:]]))
    results = measuring.begin(
        command.output, _identity(command), machine, restart=command.restart
    )
    model = load(command.model, screens)
    encode = encoder(model.tokenizer) if command.chat else model.tokenizer.encode
    encoded = measuring.encode_rows(rows, encode)
    runners = make_ways(command, model, tables, screens)
    results.costs = predictable(command, runners, tables)
    prompts, results.left_out = _fitting(command, encoded, runners)
    groups = measuring.make_groups(
        prompts,
        temperatures=command.temperatures,
        batches=command.batches,
        room=max(len(prompt.ids) for prompt in prompts),
    )
    try:
        with progress_bar(screens.err) as progress:
            _measure_all(command, results, groups, runners, progress)
    except KeyboardInterrupt:
        screens.err.print(
            f"Interrupted: {len(results.groups)} of {len(groups)} batches are in "
            f"{command.output}; the same command goes on.",
            soft_wrap=True,
        )
        return 130
    summaries = measuring.summarise(results.groups)
    show(screens.out, results, summaries, runners)
    written = [command.output]
    if command.plot and summaries:
        written += measuring.plot(summaries, command.output)
    screens.err.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
    return 0


def _measure_all(
    command: Bench,
    results: Results,
    groups: Sequence[Group],
    runners: Sequence[Way],
    progress: Progress,
) -> None:
    """What is not there yet, saving after each group."""
    done, warm = results.done, set[Hashable]()
    bar = progress.add_task("", total=len(groups))
    for turn, group in enumerate(groups):
        progress.update(
            bar, description=f"{group.task}, T {group.temperature:g} × {group.batch}"
        )
        if group.key not in done:
            record = measuring.measure(
                group, runners, limit=command.new_tokens, turn=turn, warm=warm
            )
            results.groups.append(record)
            _save(command, results)
        progress.advance(bar)
    if command.profile:
        _profile_all(command, results, groups, runners, progress)
    _save(command, results)


def _profile_all(
    command: Bench,
    results: Results,
    groups: Sequence[Group],
    runners: Sequence[Way],
    progress: Progress,
) -> None:
    """Every runner on the first group of each temperature and batch size."""
    first = {(x.temperature, x.batch): x for x in reversed(groups)}
    done = {(x["drafter"], x["temperature"], x["batch"]) for x in results.profile}
    bar = progress.add_task("profile", total=len(first) * len(runners))
    limit = min(command.new_tokens, _PROFILED)
    for group in reversed(first.values()):
        for runner in runners:
            if (runner.name, group.temperature, group.batch) not in done:
                decoding = (
                    runner.decoding(group, limit=limit)
                    if isinstance(runner, Synthetic)
                    else runner
                )
                results.profile.append(measuring.profile(decoding, group, limit=limit))
                _save(command, results)
            progress.advance(bar)


def _save(command: Bench, results: Results) -> None:
    summaries = measuring.summarise(results.groups)
    results.save(command.output, [summary.to_json() for summary in summaries])


def _check(command: Bench) -> None:
    """Raise `ValueError` for what cannot be measured, before anything is read."""
    for name, values, is_good, wanted in (
        ("--per-task", (command.per_task,), lambda x: x >= 1, "at least 1"),
        ("--new-tokens", (command.new_tokens,), lambda x: x >= 2, "at least 2"),
        ("--batches", command.batches, lambda x: x >= 1, "at least 1"),
        (
            "--temperatures",
            command.temperatures,
            lambda x: x >= 0 and math.isfinite(x),
            "0 or above",
        ),
    ):
        for value in values:
            if not is_good(value):
                raise ValueError(f"{name} must be {wanted}, not {value}")
    for name, values in (
        ("--batches", command.batches),
        ("--temperatures", command.temperatures),
        ("--drafters", command.drafters),
    ):
        if not values:
            raise ValueError(f"{name} needs at least one value")
        value, times = Counter(values).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{name} has {value} twice")
    for name in command.drafters:
        is_known = name in ("ngram", measuring.PLAIN)
        is_known |= name.startswith((MODEL, HEAD)) and name not in (MODEL, HEAD)
        if not is_known:
            raise ValueError(
                f"there is no drafter {name!r}: there are ngram, plain, "
                "draft-model:NAME, where NAME is a known model or a file, and "
                "head:FOLDER, with @TREE, @SCHEDULE or both after it"
            )
    share = command.synthetic_acceptance
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"--synthetic-acceptance must be in [0, 1], not {share}")
    if share is not None and any(command.temperatures):
        raise ValueError("--synthetic-acceptance goes with --temperatures 0 only")
    heads = heads_of(command)
    are_all = len(heads) == len(command.drafters)
    if command.nodes is not None and are_all and share is None:
        raise ValueError("--nodes is not for heads: say it in their @TREE")
    if command.profile and any(head.schedule is not None for head in heads):
        raise ValueError(
            "--profile takes apart steps that are all alike, and a schedule's are not: "
            "leave one of them out"
        )


def _identity(command: Bench) -> dict[str, Any]:
    """What makes results those of another run: plain JSON."""
    ways = ("profile", "plot", "output", "restart", "debug")
    fields = {k: v for k, v in dataclasses.asdict(command).items() if k not in ways}
    identity = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    # Absent where there are none, as in results of before there were any.
    weighed = [*identity.pop("costs"), *calibrations_of(command)]
    if weighed:
        identity["weighed"] = [f"{file.name} {_digest(file)}" for file in weighed]
    heads = [
        read_name(name.removeprefix("head:")).folder
        for name in command.drafters
        if name.startswith("head:")
    ]
    files = sorted({x for head in heads for x in head.glob("*.safetensors")})
    if files:
        identity["weights"] = [f"{x.parent.name} {_digest(x)}" for x in files]
    return identity | {
        "prompts": command.prompts.name,
        "prompts_sha256": _digest(command.prompts),
        "model": command.model.model,
        "dtype": command.model.dtype,
    }


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _fitting(
    command: Bench, prompts: Sequence[Prompt], runners: Sequence[Way]
) -> tuple[list[Prompt], dict[str, int]]:
    """The prompts that are not too long, and how many of each task are.

    Raises:
        ValueError: all are.
    """
    decodings = [runner for runner in runners if isinstance(runner, Decoding)]
    models = [decodings[0].target] + [
        x.drafter.model for x in decodings if isinstance(x.drafter, sd.DraftModel)
    ]
    longest = min(model.max_length for model in models) - command.new_tokens
    if command.max_prompt is not None:
        longest = min(longest, command.max_prompt)
    fitting = [prompt for prompt in prompts if len(prompt.ids) <= longest]
    if not fitting:
        raise ValueError(
            f"all {len(prompts)} prompts have more than {max(longest, 0)} tokens, "
            f"which is the most with --new-tokens {command.new_tokens} and --max-prompt"
        )
    left_out = Counter(prompt.task for prompt in prompts if len(prompt.ids) > longest)
    return fitting, dict(left_out)
