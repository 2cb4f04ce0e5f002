"""Drafters from folders, and the trees that they draft, in a word."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import specdec_jax as sd
from specdec_jax._types import Drafter
from specdec_jax.cli._schedules import SCHEDULES, is_schedule
from specdec_jax.nn import BlockDrafter
from specdec_jax.text import Tokenizer

_TREES = (
    "chain:DEPTH, for a head of EAGLE static or grown:NODES,DEPTH,WIDTH, for DFlash "
    "slots:NODES"
)
_KINDS = ("chain", "static", "grown", "slots")
_USUAL = "grown:8,4,3"


class HeadName(NamedTuple):
    """What `FOLDER@TREE@SCHEDULE` names."""

    folder: Path
    tree: str | None = None
    schedule: str | None = None

    @property
    def short(self) -> str:
        """With the folder's own name only."""
        words = (self.folder.name, self.tree, self.schedule)
        return "@".join(word for word in words if word is not None)


def read_name(name: str) -> HeadName:
    """Of a folder, and of what it drafts and how much of that is verified, in any order
    and if it is said.

    Raises:
        ValueError: one of these is said twice, or something else is.
    """
    folder, *words = name.split("@")
    schedules = [word for word in words if is_schedule(word)]
    trees = [word for word in words if word.partition(":")[0] in _KINDS]
    if unknown := [word for word in words if word not in schedules + trees]:
        raise ValueError(
            f"{unknown[0]!r} in {name!r} is neither a tree ({_TREES}) nor a schedule "
            f"({SCHEDULES})"
        )
    if len(schedules) > 1 or len(trees) > 1:
        raise ValueError(f"{name!r} has two trees or two schedules: one of each")
    return HeadName(Path(folder), *(trees or [None]), *(schedules or [None]))


def load_head(
    path: Path, model: sd.LanguageModel, tree: str | None = None
) -> tuple[Drafter, object]:
    """A published head of this model, and its parameters, to draft the tree that a word
    means: by default a small grown one, or a block's whole chain.

    Raises:
        ValueError: it is none of this model's, or drafts no such tree.
    """
    drafter, params = sd.load_drafter(
        path,
        model.target,
        model.params,
        tokenizer_digest=model.tokenizer.digest(),
    )
    if isinstance(drafter, BlockDrafter):
        _check_mask(path, drafter.config.mask_id, model.tokenizer)
    return with_tree(drafter, tree), params


def _check_mask(path: Path, mask_id: int, tokenizer: Tokenizer) -> None:
    """Raise `ValueError` where an open slot would say what a text can say."""
    if mask_id in tokenizer.control_ids or mask_id >= len(tokenizer.token_bytes):
        return
    if text := tokenizer.token_bytes[mask_id]:
        raise ValueError(
            f"{path}: its mask token {mask_id} is a token of texts, {text!r}: the "
            "head is of another tokenizer, or its config is wrong"
        )


def with_tree(drafter: Drafter, word: str | None) -> Drafter:
    """The same drafter with the tree that a word means: `chain:5`, `static` (EAGLE's
    own 25 nodes), `grown:60,6,10` (nodes with the root, depth, width) or `slots:32`
    (the likeliest nodes of a block).

    Raises:
        ValueError: it means none, or none of this drafter.
    """
    is_eagle = isinstance(drafter, sd.Eagle | sd.Eagle3)
    if word is None and not is_eagle:
        return drafter
    kind, sizes = _read(_USUAL if word is None else word)
    match drafter, kind, sizes:
        case sd.Eagle() | sd.Eagle3(), "static", []:
            return dataclasses.replace(drafter, tree=sd.StaticTree())
        case sd.Eagle() | sd.Eagle3(), "chain", [depth]:
            tree = sd.GrownTree(num_nodes=depth + 1, depth=depth, width=1)
            return dataclasses.replace(drafter, tree=tree)
        case sd.Eagle() | sd.Eagle3(), "grown", [nodes, depth, width]:
            tree = sd.GrownTree(num_nodes=nodes, depth=depth, width=width)
            return dataclasses.replace(drafter, tree=tree)
        case sd.DFlash(), "chain", [depth]:
            return dataclasses.replace(drafter, drafts=depth, tree=None)
        case sd.DSpark(), "chain", [depth]:
            return dataclasses.replace(drafter, drafts=depth)
        case sd.DFlash(), "slots", [nodes]:
            return dataclasses.replace(drafter, tree=sd.MarginalTree(nodes))
    raise ValueError(
        f"{type(drafter).__name__} drafts no tree {word!r}: write {_TREES}"
    )


def _read(word: str) -> tuple[str, list[int] | None]:
    kind, _, sizes = word.partition(":")
    try:
        return kind, [int(size) for size in sizes.split(",")] if sizes else []
    except ValueError:
        return kind, None
