"""`specdec-jax info` of a published head."""

import json
import math
from pathlib import Path

from rich.text import Text

from specdec_jax import formats
from specdec_jax.cli._show import Screens, plain_table
from specdec_jax.io import Folder
from specdec_jax.nn import Eagle3Config, EagleConfig, InjectedConfig


def head_folder(name: str) -> Folder | None:
    """The folder of that name, if it holds a head."""
    path = Path(name).expanduser()
    if not (path / "config.json").exists():
        return None
    folder, _ = formats.open_drafter(path)
    return folder if formats.FUSION in folder.tensors else None


def info_head(folder: Folder, screens: Screens, *, is_json: bool) -> int:
    """Say what a head is; status 0."""
    facts = _facts(folder)
    if is_json:
        screens.out.file.write(json.dumps({"head": str(folder.path)} | facts) + "\n")
        return 0
    screens.out.print(Text(str(folder.path), "bold"))
    table = plain_table("", "", header=False)
    table.columns[1].justify = "right"
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _said(value))
    screens.out.print(table)
    return 0


def _facts(folder: Folder) -> dict[str, object]:
    facts = _block_facts(folder) if formats.is_block(folder) else _eagle_facts(folder)
    facts["parameters"] = sum(
        math.prod(tensor.shape)
        for name, tensor in folder.tensors.items()
        if name not in (formats.OFFSETS, formats.KNOWN)
    )
    return facts


def _block_facts(folder: Folder) -> dict[str, object]:
    said = formats.block_said_by(folder, dtype="bfloat16")
    config = said.config
    is_spark = config.markov is not None or config.confidence != "none"
    facts: dict[str, object] = {
        "head_of": "DSpark" if is_spark else "DFlash",
        "target_width": said.target_width or config.width,
        "target_vocabulary": said.vocab_size,
        "vocabulary": config.draft_vocab_size or said.vocab_size,
        "taps_after_layers": _taps(said),
        "block": config.block_size,
        "drafts": config.num_drafts,
        "mask_id": config.mask_id,
    }
    if config.markov is not None:
        facts |= {"markov": config.markov.kind, "markov_rank": config.markov.rank}
    if is_spark:
        facts["confidence"] = config.confidence
    facts |= _sizes(config, folder)
    if any(config.windows):
        facts["windows"] = [x or 0 for x in config.windows]
    return facts


def _eagle_facts(folder: Folder) -> dict[str, object]:
    said = formats.said_by(folder, dtype="bfloat16")
    config = said.config
    is_third = isinstance(config, Eagle3Config)
    facts: dict[str, object] = {
        "head_of": "EAGLE-3" if is_third else "EAGLE, EAGLE-2",
        "target_width": said.target_width or config.width,
        "target_vocabulary": said.vocab_size,
    }
    if isinstance(config, Eagle3Config):
        facts["vocabulary"] = config.draft_vocab_size or said.vocab_size
        facts["taps_after_layers"] = _taps(said)
    facts |= _sizes(config, folder)
    if config.window is not None:
        facts["window"] = config.window
    return facts


def _taps(said: formats.Said | formats.BlockSaid) -> list[int] | None:
    if said.outputs or said.boundaries is None:
        return said.outputs
    return [x - 1 for x in said.boundaries]


def _sizes(config: EagleConfig | InjectedConfig, folder: Folder) -> dict[str, object]:
    return {
        "layers": config.num_layers,
        "width": config.width,
        "query_heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_width": config.head_width,
        "mlp_width": config.mlp_width,
        "rotary_base": config.rope.base,
        "brings_embedding": formats.EMBEDDING in folder.tensors,
    }


def _said(value: object) -> str:
    match value:
        case None:
            return "not said: those of the authors"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value))
        case int() | float():
            return f"{value:,}"
    return str(value)
