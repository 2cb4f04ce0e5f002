"""Saving a head as others publish theirs."""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree
from safetensors.numpy import save_file

from specdec_jax import _sharding
from specdec_jax._types import Target
from specdec_jax.drafters import Eagle, Eagle3
from specdec_jax.formats._say import config_for
from specdec_jax.formats._vocabulary import tables
from specdec_jax.formats._words import (
    EMBEDDING,
    FORMATS,
    KNOWN,
    OFFSETS,
    Format,
    first_layer,
    tensor_name,
)

_TOKENS = "tokens"  # see Eagle3


def save_drafter(
    path: str | os.PathLike[str],
    drafter: Eagle | Eagle3,
    params: PyTree,
    target: Target,
    *,
    format: Format,
    dtype: DTypeLike | None = jnp.bfloat16,
    target_params: PyTree | None = None,
    verifier: str | None = None,
) -> None:
    """Write config.json and model.safetensors into a new folder, which appears whole or
    not at all. Its tree is not part of a head.

    Args:
        path: of the new folder.
        drafter: the head.
        params: its parameters.
        target: which it was made for.
        format: whose (see `specdec_jax.formats`).
        dtype: of weights; None as they are.
        target_params: the target's, to write its embedding too, as some programs expect
            ("eagle", "speculators") that else look for it in the target; a head's own
            is always written.
        verifier: name or folder of the target, for whoever looks for it there
            ("speculators" only).

    Raises:
        ValueError: the format cannot say what this head is (all of it is listed), the
            head is not for this target, or there is something at `path` already.
    """
    folder = Path(path).absolute()
    if format not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"there is no format {format!r}; there are {known}")
    if folder.exists():
        raise ValueError(f"{folder} exists already: a head goes to a new folder")
    drafter.check(target)
    _check_params(drafter, params, target)
    dtype_name = jnp.dtype(drafter.config.dtype if dtype is None else dtype).name
    config = config_for(drafter, target, format, dtype_name, verifier)
    tensors = _tensors(drafter, params, target, first_layer(format), dtype)
    if target_params is not None and EMBEDDING not in tensors:
        ids = jnp.arange(target.vocab_size, dtype=jnp.int32)[None]
        table = _sharding.to_host(target.embed(target_params, ids)[0])
        tensors[EMBEDDING] = np.asarray(table).astype(jnp.dtype(dtype_name))
    begun = folder.with_name(f".{folder.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    # Readers in PyTorch ask for this word.
    save_file(tensors, begun / "model.safetensors", metadata={"format": "pt"})
    (begun / "model.safetensors").chmod(0o644)  # it would be the writer's alone
    (begun / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    begun.rename(folder)


def _check_params(drafter: Eagle | Eagle3, params: PyTree, target: Target) -> None:
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
    drafter: Eagle | Eagle3,
    params: PyTree,
    target: Target,
    layer: str,
    dtype: DTypeLike | None,
) -> dict[str, np.ndarray]:
    params = dict(params)
    ids = params.pop(_TOKENS, None)
    tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = tensor_name(tuple(key.key for key in path), layer)
        value = _sharding.to_host(leaf)
        kept = value if dtype is None else value.astype(jnp.dtype(dtype))
        tensors[name] = np.ascontiguousarray(kept)
    if ids is not None:
        known = np.asarray(_sharding.to_host(ids))
        tensors[OFFSETS], tensors[KNOWN] = tables(known, target.vocab_size)
    return tensors
