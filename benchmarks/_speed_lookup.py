"""Ours against the greedy `generate` of PyTorch's `transformers`: plain decoding, and
prompt lookup, each in both.
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from _speed_tasks import choose_groups, measure_groups, our_runners

import specdec_jax as sd
from specdec_jax import bench
from specdec_jax.bench import Group, Prompt, Spread, Timed, timed
from specdec_jax.io import fetch

PAIRS = {"plain": bench.PLAIN, "lookup": "ngram"}  # their name, ours
_LOOKED_UP = sd.NGram().num_nodes - 1  # as many drafts in both


@dataclasses.dataclass(frozen=True, eq=False)
class Theirs:
    """Their `generate`, one prompt at a time."""

    name: str
    model: Any
    options: dict[str, Any]

    def kind(self, group: Group) -> Hashable:
        """Nothing is compiled."""
        return ()

    def run(self, group: Group, *, limit: int) -> Timed:
        """The whole call; a call for the first token is its reading."""
        (prompt,) = group.prompts
        reading, _ = timed(lambda: self._generate(prompt, 1, {}))
        whole, tokens = timed(lambda: self._generate(prompt, limit, self.options))
        decoding = max(whole - reading, 0.0) if len(tokens) > 1 else 0.0
        return Timed(whole - decoding, decoding, [tokens], None)

    def _generate(
        self, prompt: Prompt, limit: int, options: dict[str, Any]
    ) -> np.ndarray:
        import torch

        ids = torch.tensor([prompt.ids])
        with torch.inference_mode():
            text = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=limit,
                pad_token_id=0,
                **options,
            )
        return text[0, ids.shape[1] :].numpy()


def measure(
    model: sd.LanguageModel,
    prompts: list[Prompt],
    *,
    per_task: int,
    new_tokens: int,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """Every prompt once each way, by turns: the same weights, ids and threads."""
    import torch
    import transformers

    torch.set_num_threads(bench.cores())
    file = fetch("smollm2-135m-instruct")
    their_model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    their_model.generation_config.eos_token_id = list(model.tokenizer.stop_ids)
    theirs = [
        Theirs("their plain", their_model, {}),
        Theirs("their lookup", their_model, {"prompt_lookup_num_tokens": _LOOKED_UP}),
    ]
    runners = [*our_runners(model, new_tokens), *theirs]
    groups = choose_groups(prompts, per_task)
    records = measure_groups(groups, runners, new_tokens, tick)
    tasks = dict.fromkeys(record["task"] for record in records)
    return [
        _row(task, [x for x in records if task in (x["task"], bench.ALL)])
        for task in [*tasks, bench.ALL]
    ]


def _row(task: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Speeds of the whole call, and how many times theirs ours are."""
    row: dict[str, Any] = {
        "task": task,
        "prompts": len(records),
        "threads": bench.cores(),
        "their_same_text": sum(x["runs"]["their plain"]["same_text"] for x in records),
    }
    for kind, own in PAIRS.items():
        pairs = [(x["runs"][own], x["runs"][f"their {kind}"]) for x in records]
        decoded = [pair for pair in pairs if all(run["decoding"] for run in pair)]
        row[kind] = {
            "ours": Spread.of([bench.whole_speed(x) for x, _ in pairs]),
            "theirs": Spread.of([bench.whole_speed(x) for _, x in pairs]),
            "ratio": Spread.of(
                [bench.whole_speed(x) / bench.whole_speed(y) for x, y in pairs]
            ),
            "ratio_after_first": Spread.of(
                [bench.decoding_speed(x) / bench.decoding_speed(y) for x, y in decoded]
            ),
        }
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| task | prompts | | specdec_jax, tokens/s | transformers, tokens/s "
        "| ratio | after the first token | same text |",
        "| --- | --: | --- | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        for kind in PAIRS:
            spreads = {name: Spread(*value) for name, value in row[kind].items()}
            is_first = kind == "plain"
            lines.append(
                f"| {row['task'] if is_first else ''} "
                f"| {row['prompts'] if is_first else ''} | {kind} "
                f"| {spreads['ours'].show(1)} | {spreads['theirs'].show(1)} "
                f"| {spreads['ratio'].show()} "
                f"| {spreads['ratio_after_first'].show()} | "
                + (
                    f"{row['their_same_text']} of {row['prompts']} |"
                    if is_first
                    else "|"
                )
            )
    return "\n".join(lines)
