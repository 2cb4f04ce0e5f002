"""Does speculation change a token? SmolLM2, rule `match`, against plain decoding.

    python benchmarks/exactness.py

Every prompt is decoded plainly and alone, then with each drafter, alone and in batches
whose rows differ in length, sampling and seed. Tokens must be equal up to the first
divergence, and there the scores of the two candidates, recomputed by one-token
decoding, less than `NEAR` apart. A model that drafts for itself must moreover have
every draft accepted, unless the limit cuts it or its two best scores are that close.
The status is 1 where this does not hold.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from _evaluation import DATA, read_prompts
from _machine import RESULTS, machine, save, set_up
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import specdec_jax as sd
from specdec_jax._options import make_request
from specdec_jax._rescore import next_scores
from specdec_jax._state import slots_for
from specdec_jax.bench import Prompt, spread_over

NEAR = 1e-3
SAMPLINGS: dict[str, dict[str, float]] = {
    "t 0": {"temperature": 0.0},
    "t 0.7": {"temperature": 0.7},
    "t 1, top-p 0.9, penalty 1.1": {
        "temperature": 1.0,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
    },
}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Exactness of speculative decoding in float32."""

    model: str = "smollm2-135m-instruct"
    """A known name, or a path."""
    prompts: int = 32
    """Of the evaluation files, at even distances."""
    max_prompt: int = 400
    """Tokens; longer prompts are left out."""
    new_tokens: int = 96
    """Of each row; nothing else ends one."""
    batches: tuple[int, ...] = (1, 8)
    """Rows at once."""
    data: Path = DATA
    """Folder of the evaluation files."""
    output: Path = RESULTS / "exactness.json"
    """Where the result goes."""


class Row(NamedTuple):
    """What is decoded: the same tokens with every drafter, in every batch."""

    prompt: Prompt
    sampling: str
    seed: int


@dataclasses.dataclass
class Tally:
    """What one drafter did in batches of one size under one sampling."""

    drafter: str
    batch: int
    sampling: str
    rows: int = 0
    tokens: int = 0  # compared: up to a row's first divergence
    divergences: int = 0
    rejections: int = 0  # where a model drafted for itself
    emitted: int = 0
    steps: int = 0


class Parting(NamedTuple):
    """Two candidates for one token, and what they score by one-token decoding."""

    kind: str  # "divergence" or "rejection"
    drafter: str
    batch: int
    sampling: str
    prompt: str
    position: int  # new tokens before
    tokens: tuple[int, int]  # the likelier first
    scores: tuple[float, float]

    @property
    def is_near(self) -> bool:
        return self.scores[0] - self.scores[1] < NEAR


@dataclasses.dataclass(frozen=True)
class Decoding:
    """One model, which drafts for itself too, and one length of text."""

    model: sd.LanguageModel
    new_tokens: int
    slots: int

    def generate(self, drafter: Any, rows: Sequence[Row]) -> sd.Generation:
        return sd.generate(
            self.model.target,
            sd.Params(self.model.params, self.model.params),
            drafter,
            [row.prompt.ids for row in rows],
            sampling=self.sampling(rows),
            max_length=self.slots,
        )

    def sampling(self, rows: Sequence[Row]) -> sd.Sampling:
        default = sd.Sampling()
        options = [SAMPLINGS[row.sampling] for row in rows]
        per_row: dict[str, Any] = {
            name: [option.get(name, getattr(default, name)) for option in options]
            for name in ("temperature", "top_p", "repetition_penalty")
        }
        seed = [row.seed for row in rows]
        return sd.Sampling(seed=seed, max_new_tokens=self.new_tokens, **per_row)

    def part(
        self, tally: Tally, kind: str, row: Row, tokens: Sequence[int], pair: Any = None
    ) -> Parting:
        """Two candidates after `tokens` of a row; by default the two best."""
        target = self.model.target
        request = make_request(
            self.sampling([row]), batch=1, vocab_size=target.vocab_size
        )
        scores = next_scores(
            target,
            sd.Params(self.model.params),
            request,
            row.prompt.ids,
            np.asarray(tokens, np.int32),
            self.slots,
        )
        pair = np.argsort(scores)[-2:] if pair is None else np.asarray(pair)
        first, second = pair[np.argsort(-scores[pair])].tolist()
        return Parting(
            kind,
            tally.drafter,
            tally.batch,
            tally.sampling,
            row.prompt.name,
            len(tokens),
            (first, second),
            (float(scores[first]), float(scores[second])),
        )


def chosen_prompts(arguments: Arguments, model: sd.LanguageModel) -> list[Prompt]:
    """From all files, the shortest first, so that those of a batch belong together."""
    files = sorted(arguments.data.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"there are no evaluation prompts in {arguments.data}")
    prompts = [x for file in files for x in read_prompts(file, model.tokenizer)]
    short = [x for x in prompts if len(x.ids) <= arguments.max_prompt]
    return sorted(spread_over(short, arguments.prompts), key=lambda x: len(x.ids))


def batches(prompts: Sequence[Prompt], size: int) -> Iterator[list[Row]]:
    """Every prompt under every sampling once; the rows of a batch differ in both."""
    kinds = list(SAMPLINGS)
    for start in range(0, len(prompts), size):
        for turn in range(len(kinds)):
            yield [
                Row(prompts[i], kinds[(i + turn) % len(kinds)], seed=1000 + i)
                for i in range(start, min(start + size, len(prompts)))
            ]


def rejections(is_drafted: Sequence[bool], max_depth: int) -> list[int]:
    """Where a step kept fewer than all of its drafts: the target's own token there."""
    found, kept = [], 0
    for position, drafted in enumerate(is_drafted):
        if not drafted and kept < max_depth:
            found.append(position)
        kept = kept + 1 if drafted else 0
    return found


def compare(
    decoding: Decoding,
    tally: Tally,
    row: Row,
    plain: np.ndarray,
    generation: sd.Generation,
    index: int,
) -> Iterator[Parting]:
    """Count a row of a speculative batch, and say where it parts from plain decoding,
    or a model from itself.
    """
    tokens = generation.tokens[index]
    assert len(plain) == len(tokens) == decoding.new_tokens
    parts = np.flatnonzero(plain != tokens)
    tally.rows += 1
    tally.tokens += int(parts[0]) + 1 if len(parts) else len(tokens)
    tally.emitted += len(tokens)
    tally.steps += int(generation.stats.steps[index])
    if len(parts):
        at = int(parts[0])
        tally.divergences += 1
        pair = plain[at], tokens[at]
        yield decoding.part(tally, "divergence", row, plain[:at].tolist(), pair)
    if tally.drafter == "DraftModel(self)":
        depth = len(generation.stats.accepted[index]) - 1
        for at in rejections(generation.is_drafted[index].tolist(), depth):
            tally.rejections += 1
            yield decoding.part(tally, "rejection", row, tokens[:at].tolist())


def run(arguments: Arguments, console: Console) -> dict[str, Any]:
    """All of it; what is returned is what is saved."""
    facts, start = machine(), time.perf_counter()
    model = sd.load(arguments.model)
    prompts = chosen_prompts(arguments, model)
    longest = max(len(x.ids) for x in prompts) + arguments.new_tokens
    slots = slots_for(model.target, longest)
    decoding = Decoding(model, arguments.new_tokens, slots)
    drafters = {
        "NGram": sd.NGram(),
        "DraftModel(self)": sd.DraftModel(model.target),
    }
    tallies: dict[tuple[str, int, str], Tally] = {}
    partings: list[Parting] = []
    plain: dict[tuple[str, str], np.ndarray] = {}
    sizes = (1, *(size for size in arguments.batches for _ in drafters))
    total = sum(len(SAMPLINGS) * -(-len(prompts) // size) for size in sizes)
    with Progress(console=console) as progress:
        bar = progress.add_task("plain", total=total)
        for [row] in batches(prompts, 1):
            tokens = decoding.generate(sd.Plain(), [row]).tokens[0]
            plain[row.prompt.name, row.sampling] = tokens
            progress.advance(bar)
        for size in arguments.batches:
            for name, drafter in drafters.items():
                progress.update(bar, description=f"{name}, batches of {size}")
                for rows in batches(prompts, size):
                    generation = decoding.generate(drafter, rows)
                    for index, row in enumerate(rows):
                        key = name, size, row.sampling
                        tally = tallies.setdefault(key, Tally(*key))
                        expected = plain[row.prompt.name, row.sampling]
                        partings += compare(
                            decoding, tally, row, expected, generation, index
                        )
                    progress.advance(bar)
    return {
        "machine": facts,
        "model": arguments.model,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "prompts": [(prompt.name, len(prompt.ids)) for prompt in prompts],
        "settings": [dataclasses.asdict(tally) for tally in tallies.values()],
        "partings": [x._asdict() | {"is_near": x.is_near} for x in partings],
        "tokens": sum(tally.tokens for tally in tallies.values()),
        "rows": sum(tally.rows for tally in tallies.values()),
        "divergences": sum(tally.divergences for tally in tallies.values()),
        "is_exact": all(parting.is_near for parting in partings),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """The settings as a table, then every parting."""
    names = ("drafter", "batch", "sampling", "rows", "tokens")
    found = ("divergences", "rejections")
    table = Table(*names, "τ", *found, box=box.MARKDOWN)
    for entry in result["settings"]:
        tau = f"{entry['emitted'] / entry['steps']:.2f}"
        table.add_row(
            *(str(entry[x]) for x in names), tau, *(str(entry[x]) for x in found)
        )
    console.print(table)
    for parting in result["partings"]:
        console.print(parting)
    console.print(
        f"{result['tokens']} tokens in {result['rows']} rows, "
        f"{result['divergences']} divergences, {result['minutes']} minutes: "
        + ("exact" if result["is_exact"] else "NOT exact: a parting is no near-tie")
    )


def main(arguments: Arguments) -> int:
    """Run, show and save; the exit status."""
    set_up()
    console = Console(width=110)  # of the widest line
    with jax.default_matmul_precision("highest"):
        result = run(arguments, console)
    show(result, console)
    save(arguments.output, result)
    return 0 if result["is_exact"] else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
