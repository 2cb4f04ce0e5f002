"""What a folder may bring of its target: an embedding and an output layer, which are
shared where they are the target's copies.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from specdec_jax import _sharding
from specdec_jax._types import Target
from specdec_jax.formats._words import EMBEDDING, HEAD
from specdec_jax.io import Folder

_ROWS = 4096  # of an embedding that are compared at once
_NUMBERS = 128  # of a state, whose columns of an output layer are


def dtype_of(target: Target, target_params: PyTree) -> np.dtype:
    """Of the target's embedding."""
    return embedded(target, target_params, np.zeros(1, np.int32)).dtype


def has_own_embedding(folder: Folder, target: Target, target_params: PyTree) -> bool:
    """Whether the folder brings an embedding that is not the target's."""
    stored = folder.tensors.get(EMBEDDING)
    if stored is None:
        return False
    if stored.shape != (target.vocab_size, target.width):
        return True
    for start in range(0, target.vocab_size, _ROWS):
        ids = np.arange(start, min(start + _ROWS, target.vocab_size), dtype=np.int32)
        theirs = np.asarray(embedded(target, target_params, ids))
        ours = folder.read(EMBEDDING, index=(slice(start, start + len(ids)),))
        if not _is_copy(ours, theirs).all():
            return True
    return False


def has_own_head(folder: Folder, target: Target, target_params: PyTree) -> bool:
    """Whether the folder brings an output layer that is not the target's."""
    stored = folder.tensors.get(HEAD)
    if stored is None:
        return False
    if stored.shape != (target.vocab_size, target.width):
        return True
    dtype = dtype_of(target, target_params)
    for start in range(0, target.width, _NUMBERS):
        part = slice(start, min(start + _NUMBERS, target.width))
        theirs = head_columns(target, target_params, part).astype(dtype)
        ours = folder.read(HEAD, index=(slice(None), part))
        if not _is_copy(ours, theirs).all():
            return True
    return False


def embedding_of(target: Target, target_params: PyTree) -> Float[np.ndarray, "V D"]:
    """The target's embedding, as it enters its first layer."""
    ids = np.arange(target.vocab_size, dtype=np.int32)
    return np.asarray(_sharding.to_host(embedded(target, target_params, ids)))


def head_of(target: Target, target_params: PyTree) -> Float[np.ndarray, "V D"]:
    """The weights of the target's output layer, which is linear."""
    parts = [
        head_columns(target, target_params, slice(start, start + _NUMBERS))
        for start in range(0, target.width, _NUMBERS)
    ]
    return np.concatenate(parts, axis=1)


def embedded(
    target: Target, target_params: PyTree, ids: Int[np.ndarray, " W"]
) -> Array:
    """What the target reads of tokens."""
    return target.embed(target_params, jnp.asarray(ids)[None])[0]


def head_columns(
    target: Target, target_params: PyTree, part: slice
) -> Float[np.ndarray, "V C"]:
    """Of the target's output layer: the logits of states with a single 1."""
    at = jnp.arange(target.width, dtype=jnp.int32)[part]
    dtype = dtype_of(target, target_params)
    states = jax.nn.one_hot(at, target.width, dtype=dtype)
    with jax.default_matmul_precision("highest"):
        logits = target.logits(target_params, states[None])[0]
    return np.asarray(_sharding.to_host(logits)).T


def _is_copy(
    ours: Float[np.ndarray, "A B"], theirs: Float[np.ndarray, "A B"]
) -> Bool[np.ndarray, "A B"]:
    """A copy may have been rounded to the dtype of the drafter, or ours of the
    target.
    """
    return (ours == theirs.astype(ours.dtype)) | (ours.astype(theirs.dtype) == theirs)
