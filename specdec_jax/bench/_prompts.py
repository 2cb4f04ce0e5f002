"""Prompts of a jsonl file, by task, in groups that are decoded as one batch."""

import itertools
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_TASK = "prompts"  # of rows that name none


class Row(NamedTuple):
    """A line of the file: the first turn, if it has several."""

    name: str
    task: str
    text: str


class Prompt(NamedTuple):
    """The same in token ids."""

    name: str
    task: str
    ids: list[int]


class Group(NamedTuple):
    """Prompts of one task that are decoded at once, at one temperature."""

    task: str
    part: int  # among those of its task, temperature and batch
    temperature: float
    prompts: tuple[Prompt, ...]
    room: int = 0  # prompt tokens that the cache holds, where these are not more

    @property
    def longest(self) -> int:
        """Prompt tokens that the cache has to hold of a row."""
        return max(self.room, *(len(prompt.ids) for prompt in self.prompts))

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.prompts)

    @property
    def key(self) -> tuple[str, float, int, int]:
        """What tells it from the other groups of a file."""
        return self.task, self.temperature, self.batch, self.part

    @property
    def seeds(self) -> list[int]:
        """One for each prompt, the same in every batch."""
        return [zlib.crc32(prompt.name.encode()) for prompt in self.prompts]


def read_rows(file: Path) -> list[Row]:
    """All of a file, in its order. A line is an object with `turns`, a list of texts,
    or `prompt`, a text; `id` and `task` may be left out.

    Raises:
        ValueError: the file is not UTF-8, has no prompt, or a line is something else.
        OSError: it cannot be read.
    """
    try:
        lines = file.read_text("utf-8").split("\n")  # U+2028 may stand in a text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8: byte {error.start} is "
            f"0x{error.object[error.start]:02x}"
        ) from error
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise ValueError(f"there is no prompt in {file}")
    return [_row(line, f"{file}, line {number}", number) for number, line in numbered]


def choose_rows(
    rows: Sequence[Row], *, tasks: Sequence[str], per_task: int
) -> list[Row]:
    """Of each task `per_task` rows at even distances, or all if there are not so many.

    Args:
        rows: as in the file.
        tasks: which; all if there is none.
        per_task: at least 1.

    Raises:
        ValueError: there is no such task.
    """
    there = dict.fromkeys(row.task for row in rows)
    if unknown := [task for task in tasks if task not in there]:
        raise ValueError(
            f"there is no task {unknown[0]!r}: there are {', '.join(there)}"
        )
    chosen = []
    for task in tasks or there:
        of_task = [row for row in rows if row.task == task]
        chosen += spread_over(of_task, min(per_task, len(of_task)))
    return chosen


def encode_rows(
    rows: Sequence[Row], encode: Callable[[str], list[int]]
) -> list[Prompt]:
    """The same in token ids."""
    return [Prompt(row.name, row.task, encode(row.text)) for row in rows]


def make_groups(
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float],
    batches: Sequence[int],
    room: int = 0,
) -> list[Group]:
    """Every prompt at every temperature in a batch of every size. The last batch of a
    task is filled up with the task's first prompts. With `room` for the longest of all,
    they share their programs.
    """
    groups = []
    tasks = dict.fromkeys(prompt.task for prompt in prompts)
    for temperature, batch, task in itertools.product(temperatures, batches, tasks):
        of_task = [prompt for prompt in prompts if prompt.task == task]
        endless = itertools.cycle(of_task)
        for part in range(-(-len(of_task) // batch)):
            members = tuple(itertools.islice(endless, batch))
            groups.append(Group(task, part, temperature, members, room))
    return groups


def fresh_rows(group: Group, prompts: Sequence[Prompt]) -> int:
    """How many rows of a group of these prompts are not there only to fill it up."""
    of_task = sum(prompt.task == group.task for prompt in prompts)
    return min(group.batch, of_task - group.part * group.batch)


def spread_over(rows: Sequence[Any], count: int) -> list[Any]:
    """This many of them, at even distances."""
    if not 0 < count <= len(rows):
        raise ValueError(f"there are {len(rows)} prompts to choose {count} from")
    return [rows[i * len(rows) // count] for i in range(count)]


def _row(line: str, where: str, number: int) -> Row:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    text = None
    if isinstance(fields, dict):
        turns = fields.get("turns")
        text = turns[0] if isinstance(turns, list) and turns else fields.get("prompt")
    if not isinstance(text, str) or not text:
        raise ValueError(
            f'{where} has no prompt: write {{"prompt": "…"}} or {{"turns": ["…"]}}'
        )
    name, task = fields.get("id", number), fields.get("task", _TASK)
    return Row(str(name), str(task), text)
