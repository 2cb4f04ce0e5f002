"""Plain decoding against the greedy `generate` of PyTorch's `transformers`."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from _timing import by_turns

import specdec_jax as sd
from specdec_jax._state import slots_for
from specdec_jax.bench import Prompt, Spread, cores
from specdec_jax.io import fetch

LENGTHS = (50, 150, 400)  # of the prompts, about


def measure(
    model: sd.LanguageModel,
    prompts: list[Prompt],
    *,
    new_tokens: int,
    rounds: int,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """The whole call, prompt included, and a call for the first token alone."""
    import torch
    import transformers

    torch.set_num_threads(cores())
    file = fetch("smollm2-135m-instruct")
    their_model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    their_model.generation_config.eos_token_id = None  # only the limit ends a text
    texts: dict[tuple[str, int], np.ndarray] = {}

    def ours(prompt: Prompt, limit: int) -> Any:
        generation = sd.generate(
            model.target,
            sd.Params(model.params),
            sd.Plain(),
            [prompt.ids],
            sampling=sd.Sampling(max_new_tokens=limit),
            max_length=slots_for(model.target, len(prompt.ids) + new_tokens),
        )
        texts["ours", limit] = generation.tokens[0]
        return generation.state

    def theirs(prompt: Prompt, limit: int) -> None:
        ids = torch.tensor([prompt.ids])
        with torch.inference_mode():
            text = their_model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=limit,
                pad_token_id=0,
            )
        texts["theirs", limit] = text[0, ids.shape[1] :].numpy()

    rows = []
    for length in LENGTHS:
        prompt = min(prompts, key=lambda x: abs(len(x.ids) - length))
        calls = {
            f"{call.__name__} {limit}": functools.partial(call, prompt, limit)
            for limit in (1, new_tokens)
            for call in (ours, theirs)
        }
        seconds = by_turns(calls, rounds=rounds, tick=tick)
        our_whole = seconds[f"ours {new_tokens}"]
        our_rest = our_whole - seconds["ours 1"]
        their_whole = seconds[f"theirs {new_tokens}"]
        their_rest = their_whole - seconds["theirs 1"]
        text, their_text = texts["ours", new_tokens], texts["theirs", new_tokens]
        assert len(text) == len(their_text) == new_tokens
        rows.append(
            {
                "prompt": prompt.name,
                "prompt_tokens": len(prompt.ids),
                "new_tokens": new_tokens,
                "threads": {"jax": cores(), "torch": torch.get_num_threads()},
                "same_text": bool(np.array_equal(text, their_text)),
                "ours": Spread.of(new_tokens / our_whole),
                "theirs": Spread.of(new_tokens / their_whole),
                "ratio": Spread.of(their_whole / our_whole),
                "ratio_after_first": Spread.of(their_rest / our_rest),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| prompt | new tokens | specdec_jax, tokens/s | transformers, tokens/s "
        "| ratio | after the first token | same text |",
        "| --: | --: | --: | --: | --: | --: | --- |",
    ]
    lines += [
        f"| {row['prompt_tokens']} | {row['new_tokens']} "
        f"| {Spread(*row['ours']).show(1)} | {Spread(*row['theirs']).show(1)} "
        f"| {Spread(*row['ratio']).show()} "
        f"| {Spread(*row['ratio_after_first']).show()} "
        f"| {'yes' if row['same_text'] else 'no'} |"
        for row in rows
    ]
    return "\n".join(lines)
