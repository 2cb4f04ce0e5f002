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

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import specdec_jax as sd
from specdec_jax import bench as measuring
from specdec_jax._types import Drafter
from specdec_jax.bench import Decoding, Group, Prompt, Results, Synthetic
from specdec_jax.cli._arguments import Bench, ModelOptions
from specdec_jax.cli._bench_tables import show
from specdec_jax.cli._heads import load_head
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens
from specdec_jax.text import Tokenizer

_MODEL, _HEAD = "draft-model:", "head:"
_PROFILED = 32  # tokens

Way = Decoding | Synthetic


def bench(command: Bench, screens: Screens) -> int:
    """Measure what is missing, show all; status 0."""
    _check(command)
    if command.plot:
        measuring.check_matplotlib()
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
    encoded = measuring.encode_rows(rows, _encoder(command, model.tokenizer))
    runners = _runners(command, model, screens)
    prompts, results.left_out = _fitting(command, encoded, runners)
    groups = measuring.make_groups(
        prompts, temperatures=command.temperatures, batches=command.batches
    )
    try:
        with _progress(screens.err) as progress:
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
        is_known |= name.startswith((_MODEL, _HEAD)) and name not in (_MODEL, _HEAD)
        if not is_known:
            raise ValueError(
                f"there is no drafter {name!r}: there are ngram, plain, "
                "draft-model:NAME, where NAME is a known model or a file, and "
                "head:FOLDER or head:FOLDER@TREE"
            )
    share = command.synthetic_acceptance
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"--synthetic-acceptance must be in [0, 1], not {share}")
    if share is not None and any(command.temperatures):
        raise ValueError("--synthetic-acceptance goes with --temperatures 0 only")


def _identity(command: Bench) -> dict[str, Any]:
    """What makes results those of another run: plain JSON."""
    ways = ("profile", "plot", "output", "restart", "debug")
    fields = {k: v for k, v in dataclasses.asdict(command).items() if k not in ways}
    identity = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    digest = hashlib.sha256(command.prompts.read_bytes()).hexdigest()
    return identity | {
        "prompts": command.prompts.name,
        "prompts_sha256": digest[:16],
        "model": command.model.model,
        "dtype": command.model.dtype,
    }


def _encoder(command: Bench, tokenizer: Tokenizer) -> Any:
    if not command.chat or tokenizer.chat_template is None:
        return tokenizer.encode
    return lambda text: tokenizer.encode_chat([{"role": "user", "content": text}])


def _runners(command: Bench, model: sd.LanguageModel, screens: Screens) -> list[Way]:
    """Plain decoding, then the drafters."""
    plain = Decoding(
        measuring.PLAIN,
        model.target,
        sd.Params(model.params),
        sd.Plain(),
        command.new_tokens,
        tuple(model.tokenizer.stop_ids),
    )
    runners: list[Way] = [plain]
    for name, label in _labels(command.drafters).items():
        drafter, params = _drafter(name, command, model, screens)
        params = sd.Params(model.params, params)
        runners.append(
            dataclasses.replace(plain, name=label, drafter=drafter, params=params)
        )
    if command.synthetic_acceptance is not None:
        replay = measuring.Replay(**_nodes(command))
        runners.append(Synthetic(plain, command.synthetic_acceptance, replay))
    return runners


def _drafter(
    name: str, command: Bench, model: sd.LanguageModel, screens: Screens
) -> tuple[Drafter, Any]:
    """What a name means, and its own parameters."""
    if name.startswith(_HEAD):
        folder, tree = _head(name)
        return load_head(folder, model, tree)
    if not name.startswith(_MODEL):
        return sd.NGram(**_nodes(command)), ()
    options = ModelOptions(name.removeprefix(_MODEL), command.model.dtype)
    draft = model if options == command.model else load(options, screens)
    return sd.DraftModel(draft.target, **_nodes(command)), draft.params


def _nodes(command: Bench) -> dict[str, Any]:
    return {} if command.nodes is None else {"num_nodes": command.nodes}


def _head(name: str) -> tuple[Path, str | None]:
    """The folder, and the tree if it is said."""
    folder, _, tree = name.removeprefix(_HEAD).partition("@")
    return Path(folder), tree or None


def _labels(names: Sequence[str]) -> dict[str, str]:
    """What tables call each drafter but plain decoding: a head by its folder's own
    name, which is short, unless another goes by that name too.
    """
    short = {name: name for name in names if name != measuring.PLAIN}
    for name in short:
        if name.startswith(_HEAD):
            folder, tree = _head(name)
            short[name] = folder.name if tree is None else f"{folder.name}@{tree}"
    taken = Counter([measuring.PLAIN, *short.values()])
    return {name: x if taken[x] == 1 else name for name, x in short.items()}


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


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
