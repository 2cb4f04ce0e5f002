"""`specdec-jax fetch`: a model by name, and where it is."""

import json

from rich.table import Table
from rich.text import Text

from specdec_jax import io
from specdec_jax.cli._arguments import Fetch
from specdec_jax.cli._show import Screens, plain_table


def fetch(command: Fetch, screens: Screens) -> int:
    """Download a model, or list what there is; the exit status."""
    if command.model is None:
        return _list(command, screens)
    path = io.fetch(command.model)  # shows its own progress
    said = json.dumps({"model": command.model, "path": str(path)})
    screens.out.file.write(f"{said if command.json else path}\n")
    return 0


def _list(command: Fetch, screens: Screens) -> int:
    folder = io.cache_folder()
    there = {
        name: (folder / source.file) if (folder / source.file).is_file() else None
        for name, source in io.MODELS.items()
    }
    if command.json:
        models = [
            {"model": name, "path": None if path is None else str(path)}
            for name, path in there.items()
        ]
        screens.out.file.write(json.dumps({"models": models}) + "\n")
        return 0
    table: Table = plain_table("model", "where it is")
    for name, path in there.items():
        place = Text("not fetched yet", "dim") if path is None else Text(str(path))
        table.add_row(name, place)
    screens.out.print(table)
    return 0
