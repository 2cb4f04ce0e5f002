"""What has been measured, in a file that a later run goes on from."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

_KIND = "specdec-jax bench"


@dataclasses.dataclass
class Results:
    """Everything measured so far.

    Attributes:
        arguments: of the run; another run with the same ones may go on from here.
        machine: what it began on.
        left_out: prompts that were too long, by task.
        groups: one record for each group of prompts, as `measure` returns them.
        profile: one record for each drafter, temperature and batch, if asked for.
        costs: one for each drafter and batch of which a cost table tells.
    """

    arguments: dict[str, Any]
    machine: dict[str, Any]
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    groups: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    profile: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    costs: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def done(self) -> set[tuple[str, float, int, int]]:
        """Keys of the groups that are there."""
        return {
            (x["task"], x["temperature"], x["batch"], x["part"]) for x in self.groups
        }

    def save(self, file: Path, summary: list[dict[str, Any]]) -> None:
        """Write all of it as JSON, a line for each group; whoever interrupts it loses
        nothing.
        """
        fields = dataclasses.asdict(self)
        head = {"kind": _KIND, "arguments": self.arguments, "machine": self.machine}
        rows = {
            "left_out": [self.left_out],
            "summary": summary,
            "profile": fields["profile"],
            "costs": fields["costs"],
            "groups": fields["groups"],
        }
        text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
        for name, records in rows.items():
            lines = [json.dumps(record, ensure_ascii=False) for record in records]
            text += f',\n "{name}": [\n  ' + ",\n  ".join(lines) + "\n ]"
        beside = file.with_name(file.name + ".part")
        beside.write_text(text + "\n}\n", "utf-8")
        os.replace(beside, file)


def begin(
    file: Path, arguments: dict[str, Any], machine: dict[str, Any], *, restart: bool
) -> Results:
    """What the file has of a run with these arguments, or nothing yet.

    Args:
        file: may not exist.
        arguments: plain JSON.
        machine: of a run that begins.
        restart: begin anew, whatever the file has.

    Raises:
        ValueError: the file is of something else, or of other arguments, or has no
            folder to be in.
    """
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent} for {file.name}")
    fresh = Results(arguments, machine)
    if not file.exists():
        return fresh
    try:
        found = json.loads(file.read_text("utf-8"))
        is_ours = found["kind"] == _KIND
    except (ValueError, KeyError, TypeError):
        is_ours, found = False, {}
    if not is_ours:
        raise ValueError(
            f"{file} is no file of specdec-jax bench: give another --output"
        )
    if restart:
        return fresh
    check_same(file, found["arguments"], arguments)
    return Results(
        arguments,
        found["machine"],
        found["left_out"][0],
        found["groups"],
        found["profile"],
    )


def check_same(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise `ValueError`, saying what differs, where a file is of a run with other
    arguments.
    """
    differing = [
        f"{name} {_said(before.get(name))}, now {_said(value)}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if differing:
        raise ValueError(
            f"{file} is of a run with other arguments ({'; '.join(differing)}): give "
            "another --output, or --restart to measure anew"
        )


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
