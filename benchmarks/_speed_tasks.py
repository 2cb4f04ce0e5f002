"""`NGram` against plain decoding, per task of Spec-Bench."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from _evaluation import Prompt, spread_over
from _timing import Spread, timed

import specdec_jax as sd
from specdec_jax._door import choose_chunk
from specdec_jax._state import slots_for

LONGEST = 960  # prompt tokens, so that 64 new ones fit in 1024 slots
DRAFTERS = {"plain": sd.Plain(), "ngram": sd.NGram()}


class Timed(NamedTuple):
    """One generation."""

    reading: float  # seconds for the prompt and the first token
    decoding: float  # seconds for the rest
    tokens: np.ndarray
    steps: int  # of the rest


def measure(
    model: sd.LanguageModel,
    prompts: list[Prompt],
    *,
    per_task: int,
    new_tokens: int,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """Every prompt once with each drafter, by turns, after one that does not count."""
    rows = []
    warm: set[tuple[str, int, int]] = set()
    for task in dict.fromkeys(x.task for x in prompts):
        all_of_task = [x for x in prompts if x.task == task]
        short = [x for x in all_of_task if len(x.ids) <= LONGEST]
        runs: list[dict[str, Timed]] = []
        for turn, prompt in enumerate(spread_over(short, per_task)):
            done = {}
            for name in list(DRAFTERS)[:: 1 if turn % 2 else -1]:
                slots = slots_for(model.target, len(prompt.ids) + new_tokens)
                # What a program depends on.
                kind = (name, slots, choose_chunk(len(prompt.ids) - 1, batch=1))
                if kind not in warm:
                    _generate(model, name, prompt, new_tokens)
                    warm.add(kind)
                done[name] = _generate(model, name, prompt, new_tokens)
            runs.append(done)
            tick()
        rows.append(_summary(task, runs, left_out=len(all_of_task) - len(short)))
    return rows


def _generate(
    model: sd.LanguageModel, name: str, prompt: Prompt, new_tokens: int
) -> Timed:
    """In two calls, so that reading the prompt is timed apart."""
    params, drafter = sd.Params(model.params), DRAFTERS[name]
    stop_ids = model.tokenizer.stop_ids

    def generate(ids: list[int], limit: int, **more: Any) -> sd.Generation:
        sampling = sd.Sampling(max_new_tokens=limit, stop_ids=stop_ids)
        generation = sd.generate(
            model.target, params, drafter, [ids], sampling=sampling, **more
        )
        jax.block_until_ready(generation.state)
        return generation

    slots = slots_for(model.target, len(prompt.ids) + new_tokens)
    reading, first = timed(lambda: generate(prompt.ids, 1, max_length=slots))
    tokens = first.tokens[0]
    if first.reasons[0] == "stop_id":
        return Timed(reading, 0.0, tokens, 0)
    ids = [*prompt.ids, *tokens.tolist()]
    decoding, rest = timed(lambda: generate(ids, new_tokens - 1, state=first.state))
    tokens = np.concatenate([tokens, rest.tokens[0]])
    return Timed(reading, decoding, tokens, int(rest.stats.steps[0]))


def _summary(
    task: str, runs: list[dict[str, Timed]], *, left_out: int
) -> dict[str, Any]:
    ngram = [run["ngram"] for run in runs]
    decoded = [run for run in runs if run["plain"].steps and run["ngram"].steps]

    def speed(run: Timed) -> float:
        return (len(run.tokens) - 1) / run.decoding

    def whole(run: Timed) -> float:
        return len(run.tokens) / (run.reading + run.decoding)

    return {
        "task": task,
        "prompts": len(runs),
        "left_out": left_out,
        "same_text": sum(
            np.array_equal(run["plain"].tokens, run["ngram"].tokens) for run in runs
        ),
        "new_tokens": sum(len(run.tokens) for run in ngram),
        "plain": Spread.of([speed(run["plain"]) for run in decoded]),
        "ngram": Spread.of([speed(run["ngram"]) for run in decoded]),
        "ratio": Spread.of(
            [speed(run["ngram"]) / speed(run["plain"]) for run in decoded]
        ),
        "whole_ratio": Spread.of(
            [whole(run["ngram"]) / whole(run["plain"]) for run in runs]
        ),
        "acceptance_length": sum(len(run.tokens) - 1 for run in ngram)
        / max(1, sum(run.steps for run in ngram)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| task | prompts (left out) | new tokens | plain, tokens/s | NGram, tokens/s "
        "| speed-up | whole call | τ | same text |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['task']} | {row['prompts']} ({row['left_out']}) | {row['new_tokens']} "
        f"| {Spread(*row['plain']).show(1)} | {Spread(*row['ngram']).show(1)} "
        f"| {Spread(*row['ratio']).show()} | {Spread(*row['whole_ratio']).show()} "
        f"| {row['acceptance_length']:.2f} | {row['same_text']} of {row['prompts']} |"
        for row in rows
    ]
    return "\n".join(lines)
