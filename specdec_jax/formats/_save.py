"""Saving a drafter as others publish theirs."""

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree
from safetensors.numpy import save_file

from specdec_jax import _sharding
from specdec_jax._types import Target
from specdec_jax.drafters import DFlash, DSpark, Eagle, Eagle3
from specdec_jax.formats._block_say import block_config_for
from specdec_jax.formats._block_words import block_tensor_name
from specdec_jax.formats._own import embedding_of, head_of
from specdec_jax.formats._say import config_for
from specdec_jax.formats._vocabulary import tables
from specdec_jax.formats._words import (
    EMBEDDING,
    FORMATS,
    HEAD,
    KNOWN,
    OFFSETS,
    TOKENIZER,
    Format,
    first_layer,
    tensor_name,
)
from specdec_jax.io import ParamPath
from specdec_jax.nn import TOKENS

_Trained = Eagle | Eagle3 | DFlash | DSpark


def save_drafter(
    path: str | os.PathLike[str],
    drafter: _Trained,
    params: PyTree,
    target: Target,
    *,
    format: Format,
    dtype: DTypeLike | None = jnp.bfloat16,
    target_params: PyTree | None = None,
    verifier: str | None = None,
    tokenizer_digest: str | None = None,
) -> None:
    """Write config.json and model.safetensors into a new folder, which appears whole or
    not at all. How it drafts (its tree, kind, drafts, top_k) is not part of it.

    Args:
        path: of the new folder.
        drafter: that was trained.
        params: its parameters.
        target: which it was made for.
        format: whose (see `specdec_jax.formats`).
        dtype: of weights; None as they are.
        target_params: the target's, to write its embedding too, as some programs expect
            ("eagle", "speculators") that else look for it in the target; and of a
            DFlash or a DSpark its output layer ("deepspec", which needs them, and
            "speculators"). A drafter's own are always written.
        verifier: name or folder of the target, for whoever looks for it there
            ("speculators" only).
        tokenizer_digest: the target's `Tokenizer.digest()`, by which `load_drafter`
            knows another tokenizer. A key of our own; other programs skip it.

    Raises:
        ValueError: the format cannot say what this drafter is (all of it is listed),
            the drafter is not for this target, or there is something at `path`
            already.
    """
    folder = Path(path).absolute()
    if format not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"there is no format {format!r}; there are {known}")
    if folder.exists():
        raise ValueError(f"{folder} exists already: a drafter goes to a new folder")
    drafter.check(target)
    _check_params(drafter, params, target)
    dtype_name = jnp.dtype(drafter.config.dtype if dtype is None else dtype).name
    if isinstance(drafter, DFlash | DSpark):
        config = block_config_for(drafter, target, format, dtype_name, verifier)
        tensors = _tensors(params, target, block_tensor_name, dtype)
        _add_copies(tensors, drafter, target, target_params, format, dtype_name)
    else:
        config = config_for(drafter, target, format, dtype_name, verifier)
        name = functools.partial(tensor_name, first_layer=first_layer(format))
        tensors = _tensors(params, target, name, dtype)
        if target_params is not None and EMBEDDING not in tensors:
            table = embedding_of(target, target_params)
            tensors[EMBEDDING] = table.astype(jnp.dtype(dtype_name))
    if tokenizer_digest is not None:
        config[TOKENIZER] = tokenizer_digest
    begun = folder.with_name(f".{folder.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    # Readers in PyTorch ask for this word.
    save_file(tensors, begun / "model.safetensors", metadata={"format": "pt"})
    (begun / "model.safetensors").chmod(0o644)  # it would be the writer's alone
    (begun / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    begun.rename(folder)


def _add_copies(
    tensors: dict[str, np.ndarray],
    drafter: DFlash | DSpark,
    target: Target,
    target_params: PyTree | None,
    format: Format,
    dtype: str,
) -> None:
    """What is the target's, where the format has it too."""
    is_own = drafter.config.own_embedding and drafter.config.own_head
    if target_params is None:
        if format == "deepspec" and not is_own:
            raise ValueError(
                "the format 'deepspec' holds the target's embedding and output layer, "
                "too: pass target_params"
            )
        return
    if format in ("zlab", "specforge"):
        raise ValueError(
            f"the format {format!r} holds nothing of the target: leave target_params "
            "out"
        )
    for name, copied in ((EMBEDDING, embedding_of), (HEAD, head_of)):
        if name not in tensors:
            table = copied(target, target_params)
            tensors[name] = np.ascontiguousarray(table.astype(jnp.dtype(dtype)))


def _check_params(drafter: _Trained, params: PyTree, target: Target) -> None:
    def shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
        return {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    abstract = jax.eval_shape(
        lambda key: drafter.init_params(key, target), jax.random.key(0)
    )
    found, wanted = shapes(params), shapes(abstract)
    if strange := sorted(
        name
        for name in found.keys() | wanted.keys()
        if found.get(name) != wanted.get(name)
    ):
        raise ValueError(f"these are no parameters of {drafter}: see {strange}")


def _tensors(
    params: PyTree,
    target: Target,
    name_of: Callable[[ParamPath], str],
    dtype: DTypeLike | None,
) -> dict[str, np.ndarray]:
    params = dict(params)
    ids = params.pop(TOKENS, None)
    tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = name_of(tuple(key.key for key in path))
        value = _sharding.to_host(leaf)
        kept = value if dtype is None else value.astype(jnp.dtype(dtype))
        tensors[name] = np.ascontiguousarray(kept)
    if ids is not None:
        known = np.asarray(_sharding.to_host(ids))
        tensors[OFFSETS], tensors[KNOWN] = tables(known, target.vocab_size)
    return tensors
