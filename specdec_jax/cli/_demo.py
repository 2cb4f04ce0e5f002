"""`specdec-jax demo`: the same text with and without speculation, and how fast."""

import os
import statistics
import time
from typing import NamedTuple

import jax
import numpy as np
from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import specdec_jax as sd
from specdec_jax._state import slots_for
from specdec_jax.cli._arguments import Demo
from specdec_jax.cli._cases import CASES, Case
from specdec_jax.cli._setup import load_both
from specdec_jax.cli._show import DRAFTED, Screens, coloured, count
from specdec_jax.cli._transcript import Transcript
from specdec_jax.text import Tokenizer

# How far apart scores are that rounding may swap. A number of bfloat16 has eight bits:
# as large as twenty it is off by up to a sixteenth, and two are compared.
_TIES = {"float32": 1e-3, "bfloat16": 0.125}
_RUNS = 3  # of each, taking turns; their median is shown


class Result(NamedTuple):
    """One way of answering: what came, and the median of its seconds."""

    generation: sd.Generation
    seconds: float

    @property
    def tokens(self) -> list[int]:
        """The answer."""
        return self.generation.tokens[0].tolist()

    @property
    def speed(self) -> float:
        """Tokens per second, the reading of the prompt included."""
        return len(self.tokens) / self.seconds


def demo(command: Demo, screens: Screens) -> int:
    """Show every case, then the table; status 1 if a text is another one."""
    out = screens.out
    if command.drafting.rule != "match":
        raise ValueError(
            "the demo holds texts against each other token by token, which only --rule "
            "match leaves the same"
        )
    if command.drafting.drafter == "plain":
        raise ValueError("the demo shows plain decoding anyway: choose another drafter")
    start = time.perf_counter()
    model, drafter, params = load_both(command.model, command.drafting, screens)
    load_seconds = time.perf_counter() - start
    prompts = [
        model.tokenizer.encode_chat([{"role": "user", "content": case.text}])
        for case in CASES
    ]
    slots = slots_for(
        model.target, max(map(len, prompts)) + command.max_new_tokens
    )  # one size for all prompts: two programs to compile, not two a prompt
    programs: dict[str, sd.Compiled] = {}
    for way in (sd.Plain(), drafter):
        with screens.err.status("Compiling; next time it is quicker …"):
            programs[type(way).__name__] = sd.compile(
                model.target,
                params,
                way,
                batch=1,
                max_length=slots,
            )
    out.print(_heading(command.model.model, load_seconds, programs))
    table, is_lossless = _table(), True
    for case, prompt in zip(CASES, prompts, strict=True):
        sampling = sd.Sampling(
            temperature=case.temperature,
            seed=1,
            max_new_tokens=command.max_new_tokens,
            stop_ids=model.tokenizer.stop_ids,
        )
        with screens.err.status(f"{case.title}, {case.law} …"):
            plain, speculative = _race(programs, params, prompt, sampling)
        _show_case(screens, model, case, plain, speculative)
        if plain.tokens == speculative.tokens:
            out.print(_same(speculative))
        else:
            report = sd.check_lossless(
                model.target,
                params,
                drafter,
                [prompt],
                sampling=sampling,
                max_length=slots,
                tolerance=_TIES[command.model.dtype],
            )
            is_lossless &= report.is_lossless and len(report.divergences) > 0
            out.print(_other(report, model.tokenizer))
        _add_row(table, case, plain, speculative)
    out.print(table)
    out.print(
        f"Speeds include the reading of the prompt: medians of {_RUNS} runs, taking "
        "turns.",
        style="dim",
    )
    return 0 if is_lossless else 1


def _heading(name: str, load_seconds: float, programs: dict[str, sd.Compiled]) -> Text:
    compiled = ", ".join(
        f"{key} {program.seconds:.1f} s" for key, program in programs.items()
    )
    return Text.assemble(
        (name, "bold"),
        f" on {jax.devices()[0].device_kind}, {os.cpu_count()} cores, "
        f"jax {jax.__version__}\n",
        (f"loaded in {load_seconds:.1f} s; compiled: {compiled}", "dim"),
    )


def _race(
    programs: dict[str, sd.Compiled],
    params: sd.Params,
    prompt: list[int],
    sampling: sd.Sampling,
) -> list[Result]:
    """Every program once for warmth and `_RUNS` times for its speed, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    generations = {}
    for _ in range(1 + _RUNS):
        for name, program in programs.items():
            start = time.perf_counter()
            generations[name] = program(params, [prompt], sampling=sampling)
            seconds[name].append(time.perf_counter() - start)
    return [
        Result(generations[name], statistics.median(seconds[name][1:]))
        for name in programs
    ]


def _show_case(
    screens: Screens,
    model: sd.LanguageModel,
    case: Case,
    plain: Result,
    speculative: Result,
) -> None:
    """The prompt, and both texts side by side."""
    out = screens.out
    out.rule(Text(f"{case.title}, {case.law}", "bold"), align="left")
    out.print(Text(case.text, "dim"))
    grid = Table.grid(expand=True)
    panels = []
    for title, result in (("plain", plain), ("speculative", speculative)):
        transcript = Transcript(model.tokenizer, (), unchecked=0)
        is_drafted = result.generation.is_drafted[0].tolist()
        segments = transcript.push(result.tokens, is_drafted)
        segments += transcript.finish(is_stopped=False)
        panels.append(Panel(coloured(segments), title=title, title_align="left"))
        grid.add_column(ratio=1)
    grid.add_row(*panels)
    out.print(grid)


def _same(speculative: Result) -> Text:
    drafted = int(speculative.generation.is_drafted[0].sum())
    return Text.assemble(
        ("✓ ", DRAFTED),
        f"The same {count(len(speculative.tokens), 'token')}; ",
        (f"{drafted} of them drafted", DRAFTED),
        ".",
    )


def _other(report: sd.LosslessReport, tokenizer: Tokenizer) -> Text:
    """Where the texts part, and whether rounding may decide there."""
    said = []
    for at in report.divergences:
        first, second = (
            repr(tokenizer.decode([token], skip_special=False)) if token >= 0 else "end"
            for token in (at.expected, at.found)
        )
        is_near = abs(at.gap) < report.tolerance
        said.append(
            f"Token {at.position + 1} differs: plain {first}, speculative {second}; "
            f"their scores are {abs(at.gap):.1e} apart, "
            + ("a near-tie that rounding decides." if is_near else "a fault.")
        )
    is_tie = report.is_lossless and bool(said)
    return Text(
        "\n".join(said) or "The texts differ, but not when repeated: a fault.",
        "yellow" if is_tie else "red",
    )


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("prompt")
    for name in ("tokens", "plain", "speculative", "speed-up", "τ", "drafts kept"):
        table.add_column(name, justify="right")
    return table


def _add_row(table: Table, case: Case, plain: Result, speculative: Result) -> None:
    stats = speculative.generation.stats
    kept = int(speculative.generation.is_drafted[0].sum())
    drafted = int(np.sum(stats.drafted))
    table.add_row(
        f"{case.title}, {case.law}",
        str(len(plain.tokens)),
        f"{plain.speed:.1f} tok/s",
        f"{speculative.speed:.1f} tok/s",
        f"{speculative.speed / plain.speed:.2f}×",
        f"{stats.acceptance_length():.2f}",
        f"{kept}/{drafted}" + (f" = {kept / drafted:.0%}" if drafted else ""),
    )
