"""`specdec-jax generate`: one prompt, streamed, and how fast it was."""

import json
import math
import sys
from collections.abc import Sequence

import jax
import numpy as np
from rich.text import Text

from specdec_jax._state import slots_for
from specdec_jax.cli._answer import Answer, Options, answer, warm_up
from specdec_jax.cli._arguments import Generate
from specdec_jax.cli._setup import Setup, set_up
from specdec_jax.cli._show import (
    Screens,
    count,
    depth_table,
    numbers_of,
    show_legend,
    versions,
    widths_of,
    write,
    writer,
)
from specdec_jax.cli._transcript import Segment
from specdec_jax.text import Tokenizer


def generate(command: Generate, screens: Screens) -> int:
    """Continue or answer a prompt; the exit status."""
    text = _read_prompt(command)
    setup = set_up(
        command.model, command.drafting, command.scheduling, command.sampling, screens
    )
    prompt = _encode(command, text, setup.model.tokenizer)
    end = len(prompt) + command.sampling.max_new_tokens
    options = Options(
        rule=command.drafting.rule,
        max_length=slots_for(setup.model.target, end)
        if command.max_length is None
        else command.max_length,
        samples=command.samples,
        logprobs=command.logprobs,
    )
    with screens.err.status("Compiling; next time it is quicker …"):
        compile_seconds = warm_up(setup, prompt, options)
    later: list[list[Segment]] = [[] for _ in range(command.samples)]
    if not command.json:
        show_legend(screens, command.drafting.drafter)
        _title(screens, 0, command.samples)
    with writer(screens) as write_on:

        def show(row: int, segments: list[Segment]) -> None:
            if row == 0 and not command.json:
                write_on(segments)
            else:
                later[row] += segments

        try:
            result = answer(setup, prompt, options, show)
        finally:  # an error goes on a line of its own
            screens.out.file.write("" if command.json else "\n")
    if command.json:
        seconds = {
            "load": setup.load_seconds,
            "compile": compile_seconds,
            "prompt": result.prompt_seconds,
            "decode": result.decode_seconds,
        }
        screens.out.file.write(_json(text, prompt, result, seconds))
    else:
        for row in range(1, command.samples):
            _title(screens, row, command.samples)
            write(screens.out, [*later[row], Segment("\n", False)])
        _show_numbers(screens, setup, prompt, result, compile_seconds)
    return 130 if result.is_interrupted else 0


def _read_prompt(command: Generate) -> str:
    if (command.prompt is None) == (command.file is None):
        raise ValueError("give a prompt, - for standard input, or --file: one of them")
    if command.file is not None:
        return command.file.read_text(encoding="utf-8")
    return sys.stdin.read() if command.prompt == "-" else str(command.prompt)


def _encode(command: Generate, text: str, tokenizer: Tokenizer) -> list[int]:
    if not command.chat or tokenizer.chat_template is None:
        if command.system is not None:
            raise ValueError("--system needs --chat, and a model with a chat template")
        return tokenizer.encode(text)
    messages = [{"role": "user", "content": text}]
    if command.system is not None:
        messages.insert(0, {"role": "system", "content": command.system})
    return tokenizer.encode_chat(messages)


def _title(screens: Screens, row: int, samples: int) -> None:
    if samples > 1:
        screens.err.print(Text(f"Sample {row + 1} of {samples}", "bold"))


def _show_numbers(
    screens: Screens,
    setup: Setup,
    prompt: Sequence[int],
    result: Answer,
    compile_seconds: float,
) -> None:
    generation = result.generation
    new = sum(map(len, generation.tokens))
    stats = generation.stats
    lines = [
        f"{count(new, 'token')} in {result.decode_seconds:.2f} s: "
        f"{new / result.decode_seconds:.1f} tokens/s",
        f"τ {stats.acceptance_length():.2f} tokens per verification, in "
        f"{count(int(np.sum(stats.steps)), 'verification')}",
        f"before: loading {setup.load_seconds:.1f} s, compiling "
        f"{compile_seconds:.1f} s, prompt of {count(len(prompt), 'token')} "
        f"{result.prompt_seconds:.2f} s",
        f"ended by: {', '.join(why or 'Ctrl-C' for why in generation.reasons)}",
    ]
    if widths := widths_of(stats):
        said = ", ".join(f"{x} in {count(n, 'step')}" for x, n in widths.items())
        lines.append(f"tokens read at once: {said}")
    if generation.logprobs is not None:
        mean = np.concatenate(generation.logprobs).mean()
        lines.append(f"log-probability {mean:.3f} per token")
    screens.err.print()
    for line in lines:
        screens.err.print(line, highlight=False)
    if np.sum(stats.drafted):
        screens.err.print(depth_table(stats))


def _json(
    text: str, prompt: list[int], result: Answer, seconds: dict[str, float]
) -> str:
    generation = result.generation
    new = sum(map(len, generation.tokens))
    samples = [
        {
            "text": result.texts[row],
            "tokens": tokens.tolist(),
            "suppliers": [
                "draft" if is_drafted else "target"
                for is_drafted in generation.is_drafted[row]
            ],
            "reason": generation.reasons[row],
            "logprobs": None
            if generation.logprobs is None
            else [
                x if math.isfinite(x) else None
                for x in generation.logprobs[row].tolist()
            ],
        }
        for row, tokens in enumerate(generation.tokens)
    ]
    return (
        json.dumps(
            {
                "prompt": {"text": text, "tokens": prompt},
                "samples": samples,
                "stats": numbers_of(generation.stats),
                "seconds": seconds,
                "tokens_per_second": new / seconds["decode"],
                "device": jax.devices()[0].device_kind,
                "versions": versions(),
            },
            ensure_ascii=False,
            allow_nan=False,
        )
        + "\n"
    )
