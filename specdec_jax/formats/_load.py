"""Loading a published head for a target."""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Int, PyTree

from specdec_jax import _sharding
from specdec_jax._best_first import MarginalTree
from specdec_jax._cache import for_backend
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax._types import Target
from specdec_jax.drafters import DFlash, DSpark, Eagle, Eagle3
from specdec_jax.formats import _taps
from specdec_jax.formats._block_load import load_block_drafter
from specdec_jax.formats._block_words import is_block
from specdec_jax.formats._config import Said, said_by
from specdec_jax.formats._folder import check_tokenizer, open_drafter
from specdec_jax.formats._own import dtype_of, has_own_embedding
from specdec_jax.formats._vocabulary import ids_in
from specdec_jax.formats._words import (
    EMBEDDING,
    FUSION,
    KNOWN,
    OFFSETS,
    first_layer_in,
    tensor_name,
)
from specdec_jax.io import Folder, ParamPath, read_params
from specdec_jax.nn import TOKENS, Eagle3Config, Layout


def load_drafter(
    path: str | os.PathLike[str],
    target: Target,
    target_params: PyTree,
    *,
    tree: StaticTree | GrownTree | MarginalTree | None = None,
    taps: tuple[int | str, ...] | None = None,
    layout: Layout | None = None,
    dtype: DTypeLike | None = None,
    tokenizer_digest: str | None = None,
) -> tuple[Eagle | Eagle3 | DFlash | DSpark, PyTree]:
    """A published drafter and its parameters, on the target's mesh: a head of EAGLE's
    authors, of EAGLE-3's, of SpecForge, or of vLLM's speculators; a DFlash or a DSpark
    of z-lab, SpecForge, DeepSpec or speculators. The folder says itself which it is.

    It keeps rotary positions of its own (`rope_theta` of its config.json; where that is
    missing 10000, with a warning). An embedding in the folder that is the target's is
    left out, and shared; so is the output layer of a DFlash or a DSpark. A block stays
    as wide as it was trained: for fewer drafts replace the drafter's `drafts`.

    Args:
        path: a folder with config.json, and model.safetensors or pytorch_model.bin.
        target: which it was made for.
        target_params: the target's.
        tree: see `Eagle`; a `StaticTree` as EAGLE's unless given. See `DFlash`; none
            unless given.
        taps: of an EAGLE-3 head, a DFlash or a DSpark, where the folder does not say
            which, or wrongly: see `Eagle3`. Without either, those of its authors.
        layout: of a DFlash or a DSpark, where the folder does not say which, or
            wrongly (`check_layout` tells).
        dtype: of the drafter; that of the target's embedding unless given.
        tokenizer_digest: the target's `Tokenizer.digest()`, to refuse a folder that
            says that it was made for another tokenizer.

    Raises:
        ValueError: it was made for another target, or is of a kind that is not
            supported; keys of config.json or tensors are missing, left over, or not
            understood (all of them are listed); which tokens it knows is said nowhere,
            or in two ways.
        OSError: there is no such folder, or it lacks config.json or weights.
        ImportError: it is pickled, and the package `torch` is missing.
    """
    folder, digest = open_drafter(path)
    check_tokenizer(folder, digest, tokenizer_digest)
    if dtype is None:
        dtype = dtype_of(target, target_params)
    if is_block(folder):
        if isinstance(tree, StaticTree | GrownTree):
            raise ValueError(
                f"{folder.path}: a drafter of blocks takes a MarginalTree or none, not "
                f"{tree}"
            )
        how: dict[str, Any] = {"taps": taps, "layout": layout, "dtype": dtype}
        block, params = load_block_drafter(
            folder, target, target_params, tree=tree, **how
        )
        return for_backend(block), params
    said = said_by(folder, dtype=dtype)
    try:
        _check_target(said, folder, target)
        if layout is not None or isinstance(tree, MarginalTree):
            raise ValueError("an EAGLE head has neither slots with a layout nor laws")
        config = dataclasses.replace(
            said.config, own_embedding=has_own_embedding(folder, target, target_params)
        )
        tree = StaticTree() if tree is None else tree
        if not isinstance(config, Eagle3Config):
            if taps is not None:
                raise ValueError("it is no EAGLE-3 head: it taps the final state only")
            drafter: Eagle | Eagle3 = Eagle(config, tree)
        else:
            chosen = _chosen_taps(said, config, target) if taps is None else taps
            count = config.feature_width // target.width
            num_layers = target.num_layers
            taps = _taps.check_taps(chosen, count=count, num_layers=num_layers)
            drafter = Eagle3(config, tree, taps=taps)
        drafter.check(target)
        ids = None
        if isinstance(config, Eagle3Config):
            size = config.draft_vocab_size or target.vocab_size
            ids = ids_in(folder, size=size, vocab_size=target.vocab_size)
    except ValueError as error:
        raise ValueError(f"{folder.path}: {error}") from None
    params = _read(folder, drafter, target, target_params, ids)
    return for_backend(drafter), params


def _read(
    folder: Folder,
    drafter: Eagle | Eagle3,
    target: Target,
    target_params: PyTree,
    ids: Int[np.ndarray, " W"] | None,
) -> PyTree:
    abstract = dict(
        jax.eval_shape(lambda key: drafter.init_params(key, target), jax.random.key(0))
    )
    abstract.pop(TOKENS, None)
    layer, mesh = first_layer_in(folder), _sharding.mesh_of(target_params)
    shared = set() if drafter.config.own_embedding else {EMBEDDING}
    tables = {OFFSETS, KNOWN} if isinstance(drafter, Eagle3) else set()

    def read(path: ParamPath, name: str, index: Any) -> np.ndarray:
        return folder.read(name, index=index)

    params = read_params(
        folder,
        abstract,
        names=lambda path: tensor_name(path, layer),
        read=read,
        is_ignored=lambda name: name in shared | tables,
        mesh=mesh,
    )
    if ids is not None:
        everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        params[TOKENS] = jax.device_put(jnp.asarray(ids), everywhere)
    return params


def _check_target(said: Said, folder: Folder, target: Target) -> None:
    for what, made_for, found in (
        ("a vocabulary of", said.vocab_size, target.vocab_size),
        ("states of width", said.target_width or target.width, target.width),
    ):
        if made_for != found:
            raise ValueError(
                f"the head was made for a target with {what} {made_for}, but this one "
                f"has {found}"
            )
    fusion = folder.tensors.get(FUSION)
    if fusion is None or len(fusion.shape) != 2:
        raise ValueError(f"{FUSION} is missing, or no matrix")
    if isinstance(said.config, Eagle3Config) and fusion.shape[1] % target.width:
        raise ValueError(
            f"the head reads {fusion.shape[1]} numbers, which are no whole number of "
            f"the target's states of {target.width}: it was made for another one"
        )


def _chosen_taps(
    said: Said, config: Eagle3Config, target: Target
) -> tuple[int | str, ...]:
    num_layers = target.num_layers
    if said.outputs is not None:
        _taps.check_outputs(said.outputs, num_layers)
        found = tuple(said.outputs)
        if said.boundaries is None:
            return found
        if found != _taps.from_boundaries(said.boundaries, num_layers):
            raise ValueError(
                f"eagle_config taps after layers {said.outputs}, the key outside "
                f"before layers {said.boundaries}: pass the right ones as taps"
            )
        return found
    if said.boundaries is not None:
        return _taps.from_boundaries(said.boundaries, num_layers)
    count = config.feature_width // target.width
    if count != 3:
        raise ValueError(
            f"it reads {count} taps, and does not say of which layers: pass taps"
        )
    return _taps.usual_taps(num_layers)
