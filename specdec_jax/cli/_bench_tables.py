"""How the results of `specdec-jax bench` look."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specdec_jax.bench import (
    ALL,
    PIECES,
    Results,
    Runner,
    Spread,
    Summary,
    Synthetic,
)
from specdec_jax.cli._show import count


def show(
    out: Console,
    results: Results,
    summaries: Sequence[Summary],
    runners: Sequence[Runner],
) -> None:
    """All tables, and what one has to know to read them."""
    out.print(_heading(results))
    for temperature, batch in dict.fromkeys(
        (x.temperature, x.batch) for x in summaries
    ):
        chosen = [
            x for x in summaries if (x.temperature, x.batch) == (temperature, batch)
        ]
        out.print(Text(f"\ntemperature {temperature:g}, batch {batch}", "bold"))
        out.print(_speeds(chosen))
        out.print(_acceptance(chosen))
    if results.costs:
        out.print(Text("\npredicted by --costs", "bold"))
        out.print(_predictions(results, summaries))
    if results.profile:
        out.print(Text("\none step, milliseconds", "bold"))
        out.print(_pieces(results))
    for line in _notes(results, runners):
        out.print(line, style="dim", soft_wrap=True)


def _heading(results: Results) -> Text:
    facts, arguments = results.machine, results.arguments
    load = "/".join(f"{x:.1f}" for x in facts["load"])
    return Text.assemble(
        (f"{arguments['model']} in {arguments['dtype']}", "bold"),
        f" on {facts['cpu'] or facts['device']}, {facts['cores']} cores, "
        f"jax {facts['jax']}, load {load}",
    )


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in names:
        is_text = name in ("task", "drafter", "")
        side = "left" if is_text else "right"
        table.add_column(name, justify=side, overflow="fold")  # whole, if narrow
    return table


def _speeds(summaries: Sequence[Summary]) -> Table:
    table = _table(
        "task", "drafter", "rows", "plain tok/s", "tok/s", "speed-up", "whole call",
        "τ", "same text",
    )  # fmt: skip
    for x in summaries:
        table.add_row(
            x.task,
            x.drafter,
            str(x.rows),
            f"{x.plain.median:.1f}",
            f"{x.speed.median:.1f}",
            x.ratio.show(),
            f"{x.whole_ratio.median:.2f}",
            "" if x.acceptance_length is None else f"{x.acceptance_length:.2f}",
            f"{x.same_text}/{x.rows}",
            style="bold" if x.task == ALL else None,
        )
    return table


def _acceptance(summaries: Sequence[Summary]) -> Table:
    """Over all tasks; where there is one task, that."""
    whole = [x for x in summaries if x.task == ALL] or summaries
    depths = max((len(x.acceptance_by_depth) for x in whole), default=0)
    table = _table("drafter", "", *map(str, range(1, depths + 1)))
    for x in whole:
        if not x.histogram:
            continue
        steps = sum(x.histogram)
        conditional = [
            f"{s:.0%}" if s is not None else "" for s in x.conditional_acceptance
        ]
        kept = [f"{share:.0%}" for share in x.acceptance_by_depth]
        exactly = [f"{number / steps:.0%}" for number in x.histogram[1:]]
        table.add_row(x.drafter, "accepted at least this deep", *kept)
        table.add_row("", "… where proposed, all before kept", *conditional)
        table.add_row("", "… exactly this deep", *exactly)
    return table


def _predictions(results: Results, summaries: Sequence[Summary]) -> Table:
    """τ and a step's parts make a speed-up; beside it what was measured, over all
    tasks.
    """
    table = _table(
        "drafter", "temperature", "batch", "plain ms", "draft ms", "verify ms", "τ",
        "predicted", "measured",
    )  # fmt: skip
    costs = {(x["drafter"], x["batch"]): x for x in results.costs}
    whole = [x for x in summaries if x.task == ALL] or summaries
    for x in whole:
        cost = costs.get((x.drafter, x.batch))
        if cost is None or x.acceptance_length is None:
            continue
        if bool(cost["temperature"]) != bool(x.temperature):  # noise costs time
            continue
        parts = [cost[name] for name in ("plain", "draft", "verify")]
        plain, draft, verify = parts
        table.add_row(
            x.drafter,
            f"{x.temperature:g}",
            str(x.batch),
            *(f"{1e3 * part:.1f}" for part in parts),
            f"{x.acceptance_length:.2f}",
            f"{x.acceptance_length * plain / (draft + verify):.2f}",
            f"{x.pooled_ratio:.2f}",
        )
    return table


def _pieces(results: Results) -> Table:
    table = _table("drafter", "temperature", "batch", "steps", *PIECES, "step")
    for record in results.profile:
        spreads = {k: Spread(*v) for k, v in record["milliseconds"].items()}
        whole = spreads["step"].median
        table.add_row(
            record["drafter"],
            f"{record['temperature']:g}",
            str(record["batch"]),
            str(record["steps"]),
            *(
                f"{spreads[piece].median:.2f} ({spreads[piece].median / whole:.0%})"
                for piece in PIECES
            ),
            spreads["step"].show(1),
        )
    return table


def _notes(results: Results, runners: Sequence[Runner]) -> list[str]:
    notes = [
        "Medians of batches (quartiles). Speed-up is of decoding alone, taken within "
        "each batch by turns; the whole call has the reading of the prompt too. "
        "Compiling and a first run are in no number. τ: tokens per verification.",
    ]
    if results.costs:
        slots = {cost["slots"] for cost in results.costs}
        notes.append(
            "Predicted: τ × plain / (draft + verify), of steps with "
            f"{', '.join(sorted(map(str, slots)))} slots, where --costs has such steps "
            "and all steps of a drafter are alike; measured: all tokens over all time."
        )
    if left_out := sum(results.left_out.values()):
        by_task = ", ".join(f"{n} of {task}" for task, n in results.left_out.items())
        notes.append(f"Left out as too long: {count(left_out, 'prompt')} ({by_task}).")
    if results.profile:
        notes.append(
            "draft: the drafter. verify: forward and logits. accept: the target's "
            "tokens, what agrees, commit, the drafter's update. rest: the step less "
            "these. Each piece is a call of its own."
        )
    for runner in runners:
        if isinstance(runner, Synthetic):
            notes.append(
                f"{runner.name} is no drafter: it is handed the text that plain "
                "decoding gave, each token spoilt with probability "
                f"{1 - runner.acceptance:g}. Its speed is that of a drafter of such "
                "acceptance and no cost, whatever the text; to be expected: τ "
                f"{runner.acceptance_length:.2f}, less where a text ends."
            )
    return notes
