"""Which tokens a head knows, as published: d2t, for each of them its id less its place;
t2d, for each of the target's whether it is known.
"""

import numpy as np
from jaxtyping import Bool, Int

from specdec_jax.formats._words import HEAD, KNOWN, OFFSETS
from specdec_jax.io import Folder


def ids_in(
    folder: Folder, *, size: int, vocab_size: int
) -> Int[np.ndarray, " W"] | None:
    """The target's ids of the `size` tokens that the drafter in a folder knows; None
    where it knows all of them.

    Raises:
        ValueError: as `known_ids`, or its output layer knows another number of them.
    """
    offsets, known = (
        folder.read_integers(name) if name in folder.tensors else None
        for name in (OFFSETS, KNOWN)
    )
    if (head := folder.tensors.get(HEAD)) is not None and head.shape[0] != size:
        raise ValueError(
            f"{HEAD} has {head.shape[0]} rows, but draft_vocab_size is {size}"
        )
    return known_ids(
        offsets,
        None if known is None else known.astype(bool),
        size=size,
        vocab_size=vocab_size,
    )


def known_ids(
    offsets: Int[np.ndarray, " W"] | None,
    known: Bool[np.ndarray, " V"] | None,
    *,
    size: int,
    vocab_size: int,
) -> Int[np.ndarray, " W"] | None:
    """The target's ids of the `size` tokens that a head knows, ascending; None where
    it knows all of them.

    Raises:
        ValueError: the tables are missing, of the wrong size, or say different things.
    """
    if offsets is None:
        if size == vocab_size and (known is None or known.all()):
            return None
        raise ValueError(
            f"d2t is missing: this head knows {size} of {vocab_size} tokens, and "
            "without it nobody can tell which"
        )
    if offsets.shape != (size,):
        raise ValueError(f"d2t is {offsets.shape}, but the head knows {size} tokens")
    is_zero = size < vocab_size and not offsets.any()
    if is_zero and known is None:
        raise ValueError(
            "d2t is all zeros, as where a training never filled it in, and there is no "
            f"t2d to say that the head really knows the first {size} tokens"
        )
    ids = offsets.astype(np.int64) + np.arange(size)
    if size and not (0 <= ids[0] and ids[-1] < vocab_size):
        raise ValueError(
            f"d2t leads to the ids {ids.min()} … {ids.max()}, but there are "
            f"{vocab_size} tokens"
        )
    if (np.diff(ids) <= 0).any():
        at = int(np.flatnonzero(np.diff(ids) <= 0)[0])
        raise ValueError(
            f"d2t leads place {at} to id {ids[at]}, and the next to {ids[at + 1]}: ids "
            "must ascend"
        )
    if known is not None:
        _check_known(ids, known, vocab_size, is_zero=is_zero)
    return None if size == vocab_size else ids.astype(np.int32)


def _check_known(
    ids: Int[np.ndarray, " W"],
    known: Bool[np.ndarray, " V"],
    vocab_size: int,
    *,
    is_zero: bool,
) -> None:
    if known.shape != (vocab_size,):
        raise ValueError(
            f"t2d is {known.shape}, but the target has {vocab_size} tokens"
        )
    if known.sum() != len(ids):
        said = "d2t is all zeros, and " if is_zero else ""
        raise ValueError(
            f"{said}t2d marks {known.sum()} tokens as known, but the head knows "
            f"{len(ids)}"
        )
    if parts := np.flatnonzero(np.flatnonzero(known) != ids).tolist():
        said = "d2t is all zeros: " if is_zero else ""
        raise ValueError(
            f"{said}d2t and t2d part at place {parts[0]}: {ids[parts[0]]} and "
            f"{np.flatnonzero(known)[parts[0]]}"
        )


def tables(
    ids: Int[np.ndarray, " W"], vocab_size: int
) -> tuple[Int[np.ndarray, " W"], Bool[np.ndarray, " V"]]:
    """d2t and t2d of a head that knows these ids."""
    known = np.zeros(vocab_size, bool)
    known[ids] = True
    return ids.astype(np.int64) - np.arange(len(ids)), known
