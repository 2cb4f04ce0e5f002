"""Texts in rows of one length, shuffled anew in every epoch, by grain."""

import bisect
from typing import Any, NamedTuple

import numpy as np

from specdec_jax.train._corpus import Corpus

_BINS = 32  # rows of a batch that are packed at once, times the rows of a batch
_GROUP = 256  # texts that `pack` packs together


class Rows(NamedTuple):
    """Some rows of texts as a lesson has them; `at` is where each token is in the
    corpus, 0 where there is none.
    """

    tokens: np.ndarray
    positions: np.ndarray
    texts: np.ndarray
    is_answer: np.ndarray
    at: np.ndarray


class _Texts:
    """Of each text its places in the corpus, the first `length` of them."""

    def __init__(self, corpus: Corpus, length: int):
        self._starts, self._lengths = corpus.starts, corpus.lengths
        self._length = length

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        start, length = int(self._starts[index]), int(self._lengths[index])
        return {"at": np.arange(start, start + min(length, self._length))}


class Batches:
    """Endless batches of rows, in an order that `seed` decides.

    `state` is all that is needed to go on from here: a small JSON value.
    """

    def __init__(self, corpus: Corpus, *, rows: int, length: int, seed: int):
        grain = _grain()
        self._corpus, self._is_answer = corpus, corpus.is_answer()
        texts = grain.MapDataset.source(_Texts(corpus, length)).seed(seed)
        packed = grain.experimental.BestFitPackIterDataset(
            texts.shuffle().repeat().to_iter_dataset(),
            length_struct={"at": length},
            num_packing_bins=rows * _BINS,
            seed=seed,
        )
        self._rows = iter(packed.batch(rows, drop_remainder=True))

    def __next__(self) -> Rows:
        packed = next(self._rows)
        at, texts = packed["at"], packed["at_segment_ids"].astype(np.int32)
        return rows_at(self._corpus, self._is_answer, at, texts, packed["at_positions"])

    @property
    def state(self) -> Any:
        """Where the batches are."""
        return self._rows.get_state()

    @state.setter
    def state(self, state: Any) -> None:
        self._rows.set_state(state)


def _grain() -> Any:
    try:
        import grain
        import grain.experimental
    except ImportError as error:
        raise ImportError(
            "training needs the package grain: pip install 'specdec-jax[train]'"
        ) from error
    return grain


def rows_at(
    corpus: Corpus,
    is_answer: np.ndarray,
    at: np.ndarray,
    texts: np.ndarray,
    positions: np.ndarray,
) -> Rows:
    """The rows whose tokens are at these places of a corpus."""
    is_text = texts > 0
    return Rows(
        np.where(is_text, corpus.tokens[at], 0).astype(np.int32),
        positions.astype(np.int32),
        texts,
        is_answer[at] & is_text,
        at,
    )


def pack(corpus: Corpus, *, length: int, texts: int) -> tuple[np.ndarray, ...]:
    """The first `texts` once, and the rest of their last group, in few rows: `at`,
    texts and positions "B T". A text longer than a row is cut. No group shares a row
    with another, so more texts only add rows.
    """
    sizes = np.minimum(corpus.lengths, length)
    rows: list[list[int]] = []
    for first in range(0, texts, _GROUP):
        rows += _pack_group(sizes, first, min(first + _GROUP, len(sizes)), length)
    at, numbers, positions = np.zeros((3, len(rows), length), np.int64)
    for i, row in enumerate(rows):
        used = 0
        for number, text in enumerate(row, start=1):
            here, start = slice(used, used + sizes[text]), corpus.starts[text]
            at[i, here] = np.arange(start, start + sizes[text])
            numbers[i, here] = number
            positions[i, here] = np.arange(sizes[text])
            used += sizes[text]
    return at, numbers.astype(np.int32), positions


def _pack_group(
    sizes: np.ndarray, first: int, last: int, length: int
) -> list[list[int]]:
    """Texts `first` … `last` - 1 in rows; the longest that still fits comes next."""
    order = (first + np.argsort(sizes[first:last], kind="stable")).tolist()
    ordered = sizes[order].tolist()
    rows: list[list[int]] = []
    while order:
        room, row = length, []
        while fitting := bisect.bisect_right(ordered, room):
            room -= ordered.pop(fitting - 1)
            row.append(order.pop(fitting - 1))
        rows.append(row)
    return rows
