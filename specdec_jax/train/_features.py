"""What the target makes of each token of a corpus: once, and kept on disk; or anew for
every batch.
"""

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from specdec_jax._lesson import Lesson
from specdec_jax._types import Block, Target
from specdec_jax.train._batches import Rows, in_order, rows_at
from specdec_jax.train._corpus import Corpus

_SPARE = 1 << 30  # bytes that stay free on the disk


class Observed(NamedTuple):
    """What the target makes of each token."""

    features: Float[Array, "B T F"]
    hidden: Float[Array, "B T D"]


@functools.partial(jax.jit, static_argnames=("target", "taps"))
def observe(
    target: Target,
    params: PyTree,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    texts: Int[Array, "B T"],
    *,
    taps: tuple[int | str, ...],
) -> Observed:
    """Read whole texts, several to a row, each for itself."""
    batch = tokens.shape[0]
    nothing = jnp.zeros((*tokens.shape, 0), jnp.float32)
    none = jnp.zeros_like(texts, jnp.bool_)
    lesson = Lesson(tokens, positions, texts, none, nothing, nothing)
    block = Block(tokens, positions, lesson.sees())
    output = target.forward(params, target.init_cache(batch, 0), block, taps)
    return Observed(output.features, output.hidden)


class FeatureCache:
    """The same of a whole corpus in files, bfloat16, filled once and resumed where it
    was interrupted.
    """

    def __init__(
        self,
        folder: Path,
        corpus: Corpus,
        *,
        widths: tuple[int, int],
        length: int,
        name: str,
    ):
        """Open or make it; nothing is computed yet.

        Args:
            folder: of the files.
            corpus: whose tokens they describe.
            widths: of features and hidden.
            length: of a row; what a text has beyond it is left out.
            name: says of which target and taps; files of others are not used.

        Raises:
            ValueError: the folder holds another cache, or the disk too little room.
            OSError: the disk does not give the room.
        """
        self.folder, self.corpus, self._length = folder, corpus, length
        self._said = {
            "name": name,
            "corpus": corpus.digest(),
            "tokens": len(corpus.tokens),
            "widths": list(widths),
            "length": length,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self._meta = folder / "features.json"
        meta = json.loads(self._meta.read_text()) if self._meta.exists() else None
        if meta is not None and {k: meta.get(k) for k in self._said} != self._said:
            raise ValueError(
                f"{folder} holds features of another target, corpus or taps: name "
                "another folder, or delete it"
            )
        self.done = 0 if meta is None else int(meta["done"])  # rows of `in_order`
        paths = [folder / "features.bf16", folder / "hidden.bf16"]
        if meta is None:
            free = shutil.disk_usage(folder).free
            if self.size + _SPARE > free:
                raise ValueError(
                    f"features of {len(corpus.tokens):,} tokens take "
                    f"{self.size / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB "
                    "left: name another folder, take a part of the corpus, or compute "
                    "them online"
                )
            for path, width in zip(paths, widths, strict=True):
                _reserve(path, 2 * len(corpus.tokens) * width)
        self._arrays = [
            np.memmap(path, np.uint16, "r+", shape=(len(corpus.tokens), width))
            for path, width in zip(paths, widths, strict=True)
        ]
        if meta is None:
            self._note()

    @property
    def size(self) -> int:
        """Bytes on disk, when full."""
        return 2 * len(self.corpus.tokens) * sum(self._said["widths"])

    def fill(
        self,
        observe: Callable[[Rows], Observed],
        *,
        rows: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Compute what is missing, some rows at a time."""
        layout = in_order(self.corpus, length=self._length)
        total = len(layout[0])
        is_answer = self.corpus.is_answer()
        for first in range(self.done, total, rows):
            part = [x[first : first + rows] for x in layout]
            missing = rows - len(part[0])
            part = [np.pad(x, ((0, missing), (0, 0))) for x in part]
            seen = observe(rows_at(self.corpus, is_answer, *part))
            at, is_text = part[0], part[1] > 0
            for array, values in zip(self._arrays, seen, strict=True):
                stored = np.asarray(values.astype(jnp.bfloat16))[is_text]
                array[at[is_text]] = stored.view(np.uint16)
            self.done = min(first + rows, total)
            if self.done % (16 * rows) == 0 or self.done == total:
                for array in self._arrays:
                    array.flush()
                self._note()
            progress(self.done, total)

    def read(self, rows: Rows) -> Observed:
        """Of some rows."""
        return Observed(
            *(jnp.asarray(x[rows.at].view(ml_dtypes.bfloat16)) for x in self._arrays)
        )

    def _note(self) -> None:
        partial = self._meta.with_suffix(".part")
        partial.write_text(json.dumps(self._said | {"done": self.done}))
        partial.replace(self._meta)


def _reserve(path: Path, size: int) -> None:
    """A file of this size that has its place on the disk: a page of a mapped file that
    finds none would kill the process.
    """
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
