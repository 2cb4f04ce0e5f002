"""`specdec-jax info`: what a model or a head is, and how much memory it needs."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from rich.table import Table
from rich.text import Text

from specdec_jax import io, plan
from specdec_jax._cache import for_backend
from specdec_jax.cli._arguments import Info
from specdec_jax.cli._info_head import head_folder, info_head
from specdec_jax.cli._show import Screens, count, gigabytes, plain_table
from specdec_jax.nn import Decoder, DecoderConfig
from specdec_jax.targets import PRESETS, ModuleTarget, preset
from specdec_jax.targets._folder import config_of
from specdec_jax.targets._gguf import gguf_config

_SLOTS = 4096  # of a cache that nobody chose the length of


class Device(NamedTuple):
    """Where a model would run: its memory, and whose that is."""

    name: str
    memory: int
    source: str


def info(command: Info, screens: Screens) -> int:
    """Say what a model is, or list what there is; the exit status."""
    if command.model is None:
        return _list(command, screens)
    if (head := head_folder(command.model)) is not None:
        return info_head(head, screens, is_json=command.json)
    target = _target(command.model, command.dtype)
    slots = command.max_length or min(_SLOTS, target.max_length)
    if command.batch < 1 or not 1 <= slots <= target.max_length:
        raise ValueError(
            f"--batch {command.batch} --max-length {slots}: a batch has a row at "
            f"least, and this model was made for {target.max_length:,} positions"
        )
    size = plan.sizes(target, batch=command.batch, slots=slots)
    scores = plan.score_bytes(
        target, batch=command.batch, slots=slots, mesh={"data": 1, "model": 1}
    )
    device = _device()
    needed = size.held + scores
    numbers = {
        "model": command.model,
        "architecture": _facts(target.config),
        "parameters": size.parameters,
        "dtype": command.dtype,
        "weight_bytes": size.weights,
        "cache_bytes_per_token": plan.token_bytes(target),
        "batch": command.batch,
        "max_length": slots,
        "cache_bytes": size.cache,
        "score_bytes": scores,
        "needed_bytes": needed,
        "device": device._asdict(),
        "fits": needed <= device.memory,
    }
    if command.json:
        screens.out.file.write(json.dumps(numbers) + "\n")
        return 0
    screens.out.print(Text(command.model, "bold"))
    table = _table()
    for name, value in _facts(target.config).items():
        table.add_row(name.replace("_", " "), _said(value))
    table.add_section()
    table.add_row("parameters", f"{size.parameters:,}")
    table.add_row(f"weights in {command.dtype}", gigabytes(size.weights))
    table.add_row("cache per token", gigabytes(plan.token_bytes(target)))
    table.add_section()
    rows = f"{count(command.batch, 'row')} of {count(slots, 'token')}"
    table.add_row(f"cache of {rows}", gigabytes(size.cache))
    table.add_row("scores while reading a prompt", gigabytes(scores))
    table.add_row("all together", Text(gigabytes(needed), "bold"))
    style = "green" if needed <= device.memory else "red"
    said = "enough" if needed <= device.memory else "not enough"
    table.add_row(
        f"{device.source} ({device.name})",
        Text.assemble(gigabytes(device.memory), ": ", (said, style)),
    )
    screens.out.print(table)
    return 0


def _target(name: str, dtype: str) -> ModuleTarget:
    """The target of that name, or a file's as it would run here; no weight is read."""
    if name in PRESETS:
        return preset(name, dtype=jnp.dtype(dtype))
    path = io.fetch(name) if name in io.MODELS else Path(name).expanduser()
    if path.is_dir():
        where = str(path / "config.json")
        config = config_of(io.Folder(path).config, where, dtype=jnp.dtype(dtype))
    elif path.exists():
        config = gguf_config(io.GGUF(path), dtype=jnp.dtype(dtype))
    else:
        known = ", ".join([*sorted(io.MODELS), *sorted(PRESETS)])
        raise FileNotFoundError(
            f"there is neither a file {name!r} nor a model of that name; the models "
            f"known by name are {known}"
        )
    return for_backend(ModuleTarget(Decoder, config))


def _facts(config: DecoderConfig) -> dict[str, object]:
    """What a person asks of an architecture."""
    windows = [window for window in config.windows if window is not None]
    facts: dict[str, object] = {
        "layers": config.num_layers,
        "width": config.width,
        "query_heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_width": config.head_width,
        "mlp_width": config.mlp_width,
        "vocabulary": config.vocab_size,
        "positions": config.max_length,
        "tied_embedding": config.tied,
    }
    if config.experts is not None:
        del facts["mlp_width"]
        facts["experts"] = config.experts.count
        facts["experts_per_token"] = config.experts.per_token
        facts["expert_width"] = config.experts.width
    if windows:
        facts["layers_with_window"] = len(windows)
        facts["window"] = max(windows)
    return facts


def _device() -> Device:
    """The first device, with its own memory where the backend tells, else the host's.

    On a CPU they are the same.
    """
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return Device(device.device_kind, stats["bytes_limit"], "memory")
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Device(device.device_kind, pages * size, "memory of the host")


def _list(command: Info, screens: Screens) -> int:
    known = {name: "to run" for name in io.MODELS} | {
        name: "shapes only" for name in PRESETS
    }
    if command.json:
        screens.out.file.write(
            json.dumps({"models": list(io.MODELS), "presets": list(PRESETS)}) + "\n"
        )
        return 0
    table = plain_table("model", "known")
    for name, how in known.items():
        table.add_row(name, how)
    screens.out.print(table)
    return 0


def _table() -> Table:
    table = plain_table("", "", header=False)
    table.columns[1].justify = "right"
    return table


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"
