"""`specdec-jax measure-cost`: what a step costs on this machine."""

import specdec_jax as sd
from specdec_jax.cli._arguments_measuring import MeasureCost
from specdec_jax.cli._setup import load_both
from specdec_jax.cli._show import Screens, plain_table
from specdec_jax.schedule import CostTable


def measure_cost(command: MeasureCost, screens: Screens) -> int:
    """Measure, show and write; status 0."""
    if not command.output.parent.is_dir():
        raise ValueError(f"there is no folder {command.output.parent}")
    if command.drafting.drafter == "plain":
        raise ValueError("plain decoding reads one token: there is nothing to choose")
    model, drafter, params = load_both(command.model, command.drafting, screens)
    with screens.err.status("Compiling and measuring …"):
        table = sd.measure_cost(
            model.target,
            params,
            drafter,
            batches=command.batches,
            widths=command.widths or usual_widths(drafter.num_nodes),
            slots=command.slots,
            rule=command.drafting.rule,
            temperature=command.temperature,
            report=lambda said: screens.err.print(said, style="dim", soft_wrap=True),
        )
    _show(table, screens)
    table.save(command.output)
    screens.err.print(f"Written: {command.output}", soft_wrap=True)
    return 0


def usual_widths(nodes: int) -> list[int]:
    """1, 2, 4, … and all."""
    return [*(2**i for i in range(nodes.bit_length()) if 2**i < nodes), nodes]


def _show(table: CostTable, screens: Screens) -> None:
    shown = plain_table("rows", "draft", *(f"read {width}" for width in table.widths))
    for batch, draft, verify in zip(
        table.batches, table.draft, table.verify, strict=True
    ):
        shown.add_row(str(batch), *(f"{1e3 * x:.2f} ms" for x in (draft, *verify)))
    screens.out.print(shown)
    screens.out.print(
        "Of a step: its draft, and all else with so many tokens read of each row; 1 is "
        "plain decoding.",
        style="dim",
    )
