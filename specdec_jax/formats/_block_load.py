"""Loading a published drafter of blocks for a target."""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import PyTree

from specdec_jax import _sharding
from specdec_jax._best_first import MarginalTree
from specdec_jax._types import Target
from specdec_jax.drafters import DFlash, DSpark
from specdec_jax.formats import _taps
from specdec_jax.formats._block_config import BlockSaid, block_said_by
from specdec_jax.formats._block_words import (
    CONFIDENCE_BIAS,
    block_tensor_name,
)
from specdec_jax.formats._own import has_own_embedding, has_own_head
from specdec_jax.formats._vocabulary import ids_in
from specdec_jax.formats._words import EMBEDDING, HEAD, KNOWN, OFFSETS
from specdec_jax.io import Folder, ParamPath, read_params
from specdec_jax.nn import TOKENS, BlockDrafter, Layout

_OLD = "logit_head."  # that SpecForge's first heads were kept under


def load_block_drafter(
    folder: Folder,
    target: Target,
    target_params: PyTree,
    *,
    tree: MarginalTree | None,
    taps: tuple[int | str, ...] | None,
    layout: Layout | None,
    dtype: DTypeLike,
) -> tuple[DFlash | DSpark, PyTree]:
    """See `load_drafter`."""
    said = block_said_by(folder, dtype=dtype, layout=layout)
    try:
        _check_target(said, target)
        config = dataclasses.replace(
            said.config,
            own_embedding=has_own_embedding(folder, target, target_params),
            own_head=said.config.draft_vocab_size is not None
            or has_own_head(folder, target, target_params),
        )
        if not config.own_embedding:
            _check_scale(said, target)
        taps = _taps.check_taps(
            _chosen_taps(said, target) if taps is None else taps,
            count=config.feature_width // target.width,
            num_layers=target.num_layers,
        )
        if config.markov is None and config.confidence == "none":
            drafter: DFlash | DSpark = DFlash(config, taps, tree=tree)
        elif tree is not None:
            raise ValueError("a DSpark drafts a chain, so it takes no tree")
        else:
            drafter = DSpark(config, taps)
        drafter.check(target)
        size = config.draft_vocab_size or target.vocab_size
        ids = ids_in(folder, size=size, vocab_size=target.vocab_size)
    except ValueError as error:
        raise ValueError(f"{folder.path}: {error}") from None
    params = _read(folder, drafter, target, target_params)
    if ids is not None:
        mesh = _sharding.mesh_of(target_params)
        everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        params[TOKENS] = jax.device_put(jnp.asarray(ids), everywhere)
    return drafter, params


def _read(
    folder: Folder, drafter: BlockDrafter, target: Target, target_params: PyTree
) -> PyTree:
    abstract = dict(
        jax.eval_shape(lambda key: drafter.init_params(key, target), jax.random.key(0))
    )
    abstract.pop(TOKENS, None)
    no_bias = None
    if "confidence" in abstract and _name(folder, CONFIDENCE_BIAS) is None:
        no_bias = abstract["confidence"]["projection"]["bias"]
        weight = abstract["confidence"]["projection"]["weight"]
        abstract["confidence"] = {"projection": {"weight": weight}}
        warnings.warn(
            f"{folder.path} has no {CONFIDENCE_BIAS}: read as a head without a bias",
            stacklevel=4,
        )
    config = drafter.config
    ignored = {OFFSETS, KNOWN}
    ignored |= set() if config.own_embedding else {EMBEDDING}
    ignored |= set() if config.own_head else {HEAD}

    def names(path: ParamPath) -> str:
        name = block_tensor_name(path)
        return _name(folder, name) or name

    def read(path: ParamPath, name: str, index: Any) -> np.ndarray:
        return folder.read(name, index=index)

    params = read_params(
        folder,
        abstract,
        names=names,
        read=read,
        is_ignored=lambda name: name in ignored,
        mesh=_sharding.mesh_of(target_params),
    )
    if no_bias is not None:
        params["confidence"]["projection"]["bias"] = jnp.zeros_like(no_bias)
    return params


def _name(folder: Folder, name: str) -> str | None:
    """What the folder calls a tensor, if it has it."""
    return next((x for x in (name, _OLD + name) if x in folder.tensors), None)


def _check_target(said: BlockSaid, target: Target) -> None:
    for what, made_for, found in (
        ("a vocabulary of", said.vocab_size, target.vocab_size),
        ("states of width", said.target_width or target.width, target.width),
        ("so many layers:", said.target_layers or target.num_layers, target.num_layers),
    ):
        if made_for != found:
            raise ValueError(
                f"the drafter was made for a target with {what} {made_for}, but this "
                f"one has {found}"
            )
    if said.config.feature_width % target.width:
        raise ValueError(
            f"the body reads {said.config.feature_width} numbers, which are no whole "
            f"number of the target's states of {target.width}: it was made for another "
            "one"
        )


def _check_scale(said: BlockSaid, target: Target) -> None:
    """The body reads the target's embedding as the target does, or its own."""
    scale = embedding_scale(target)
    if not np.isclose(said.embedding_scale, scale, rtol=2**-8):
        raise ValueError(
            f"input_embedding_scale is {said.embedding_scale}: the body was made for "
            f"rows of the embedding times that, and this target reads them times "
            f"{scale}"
        )


def embedding_scale(target: Target) -> float:
    """What a target multiplies the rows of its embedding by."""
    return getattr(getattr(target, "config", None), "embedding_scale", 1.0)


def _chosen_taps(said: BlockSaid, target: Target) -> tuple[int | str, ...]:
    """Those that the folder says, in either convention; else z-lab's."""
    num_layers, config = target.num_layers, said.config
    count = config.feature_width // target.width
    usual = _taps.spread_taps(num_layers, count)
    outputs, before = said.outputs, said.boundaries
    if before is not None:
        shifted = [layer - 1 for layer in before]
        if outputs is not None and outputs != shifted:
            raise ValueError(
                f"target_layer_ids taps after layers {outputs}, the other key before "
                f"layers {before}: pass the right ones as taps"
            )
        _warn(before == list(usual), before, "before", usual)
        outputs = shifted
    elif outputs is not None:
        _warn(outputs == [tap + 1 for tap in usual], outputs, "after", usual)
    elif count != config.num_layers:  # where z-lab's code has no default either
        raise ValueError(
            f"it reads {count} taps, and does not say of which layers: pass taps"
        )
    taps = usual if outputs is None else tuple(outputs)
    if num_layers - 1 in taps:
        raise ValueError(
            f"it taps after layer {num_layers - 1}, the last, which is before the last "
            "norm to some and after it to others: pass taps"
        )
    return taps


def _warn(is_likely: bool, said: list[int], where: str, usual: tuple[int, ...]) -> None:
    """Where layers of one convention look like those of the other."""
    if is_likely:
        warnings.warn(
            f"it taps {where} layers {said}, as its format means them, but they look "
            f"like those of another format: if acceptance is low, pass taps={usual} "
            "(check_layout tells)",
            stacklevel=6,
        )
