"""`NGram` against plain decoding, per task of Spec-Bench."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import specdec_jax as sd
from specdec_jax import bench
from specdec_jax.bench import Decoding, Group, Prompt, Runner, Spread

LONGEST = 960  # prompt tokens, so that 64 new ones fit in 1024 slots


def measure(
    model: sd.LanguageModel,
    prompts: list[Prompt],
    *,
    per_task: int,
    new_tokens: int,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """Every prompt once with each drafter, by turns."""
    groups = choose_groups(prompts, per_task)
    records = measure_groups(groups, our_runners(model, new_tokens), new_tokens, tick)
    return [summary.to_json() for summary in bench.summarise(records)]


def choose_groups(prompts: Sequence[Prompt], per_task: int) -> list[Group]:
    """Of each task `per_task` prompts that are not too long, alone and greedy."""
    chosen = []
    for task in dict.fromkeys(x.task for x in prompts):
        short = [x for x in prompts if x.task == task and len(x.ids) <= LONGEST]
        chosen += bench.spread_over(short, min(per_task, len(short)))
    return bench.make_groups(chosen, temperatures=[0.0], batches=[1])


def our_runners(model: sd.LanguageModel, new_tokens: int) -> list[Runner]:
    """Plain decoding and `NGram`."""
    drafters = {bench.PLAIN: sd.Plain(), "ngram": sd.NGram()}
    params, stop_ids = sd.Params(model.params), tuple(model.tokenizer.stop_ids)
    return [
        Decoding(name, model.target, params, drafter, new_tokens, stop_ids)
        for name, drafter in drafters.items()
    ]


def measure_groups(
    groups: Sequence[Group],
    runners: Sequence[Runner],
    limit: int,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """The records of all groups."""
    warm: set[Hashable] = set()
    records = []
    for turn, group in enumerate(groups):
        records.append(bench.measure(group, runners, limit=limit, turn=turn, warm=warm))
        tick()
    return records


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| task | prompts | new tokens | plain, tokens/s | NGram, tokens/s "
        "| speed-up | whole call | τ | same text |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['task']} | {row['rows']} | {row['new_tokens']} "
        f"| {Spread(*row['plain']).show(1)} | {Spread(*row['speed']).show(1)} "
        f"| {Spread(*row['ratio']).show()} | {Spread(*row['whole_ratio']).show()} "
        f"| {row['acceptance_length']:.2f} | {row['same_text']} of {row['rows']} |"
        for row in rows
    ]
    return "\n".join(lines)
