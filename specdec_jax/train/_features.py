"""What the target makes of each token of a corpus: once, and kept on disk; or anew for
every batch.
"""

import functools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from specdec_jax import _sharding
from specdec_jax._lesson import Lesson
from specdec_jax._types import Block, Target
from specdec_jax.train._batches import Rows, pack, rows_at
from specdec_jax.train._corpus import Corpus

_FINAL = "final"  # the tap after the last norm
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
    """The same of a whole corpus in files, one for each tap, bfloat16: filled once,
    resumed where that was interrupted, and shared by drafters of other taps.
    """

    def __init__(
        self,
        folder: Path,
        corpus: Corpus,
        taps: Sequence[int | str],
        *,
        width: int,
        length: int,
        name: str,
    ):
        """Open or make it; nothing is computed yet.

        Args:
            folder: of the files.
            corpus: whose tokens they describe.
            taps: that are wanted; the state after the last norm always is.
            width: of each.
            length: of a row; what a text has beyond it is left out.
            name: says of which target; files of others are not used.

        Raises:
            ValueError: the folder holds another cache, or the disk too little room.
            OSError: the disk does not give the room.
        """
        self.folder, self.corpus, self._length = folder, corpus, length
        self._taps, self._width = tuple(taps), width
        self._said = {
            "name": name,
            "corpus": corpus.digest(),
            "tokens": len(corpus.tokens),
            "width": width,
            "length": length,
            "layout": 2,  # of `pack`: 1 had one group
        }
        self.done = {tap: self._done(tap) for tap in (*self._taps, _FINAL)}
        new = [tap for tap, done in self.done.items() if done is None]
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if len(new) * self.size + (_SPARE if new else 0) > free:
            raise ValueError(
                f"features of {len(corpus.tokens):,} tokens take "
                f"{len(new) * self.size / 1e9:.1f} GB and {folder} has "
                f"{free / 1e9:.1f} GB left: name another folder, take a part of the "
                "corpus, or compute them online"
            )
        for tap in new:
            _reserve(self._file(tap), self.size)
            self._note(tap, 0)
        shape = (len(corpus.tokens), width)
        self._arrays = {
            tap: np.memmap(self._file(tap), np.uint16, "r+", shape=shape)
            for tap in self.done
        }

    @property
    def size(self) -> int:
        """Bytes on disk of one tap, when full."""
        return 2 * len(self.corpus.tokens) * self._width

    def fill(
        self,
        observe: Callable[[Rows, tuple[int | str, ...]], Observed],
        *,
        rows: int,
        texts: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Compute what is missing of the first `texts`, some rows at a time."""
        layout = pack(self.corpus, length=self._length, texts=texts)
        total = len(layout[0])
        missing = tuple(x for x, done in self.done.items() if (done or 0) < total)
        if not missing:
            return
        is_answer = self.corpus.is_answer()
        for first in range(min(self.done[x] or 0 for x in missing), total, rows):
            part = [x[first : first + rows] for x in layout]
            lacking = rows - len(part[0])
            part = [np.pad(x, ((0, lacking), (0, 0))) for x in part]
            seen = observe(rows_at(self.corpus, is_answer, *part), missing)
            at, is_text = part[0], part[1] > 0
            values = _sharding.to_host(seen.features.astype(jnp.bfloat16))[is_text]
            for tap, stored in zip(
                missing, np.split(values, len(missing), 1), strict=True
            ):
                self._arrays[tap][at[is_text]] = stored.view(np.uint16)
            done = min(first + rows, total)
            if done % (16 * rows) == 0 or done == total:
                for tap in missing:
                    self._arrays[tap].flush()
                    self._note(tap, done)
            progress(done, total)

    def read(self, rows: Rows) -> Observed:
        """Of some rows."""
        parts = [self._arrays[tap][rows.at] for tap in (*self._taps, _FINAL)]
        *taps, hidden = (part.view(ml_dtypes.bfloat16) for part in parts)
        return Observed(jnp.asarray(np.concatenate(taps, -1)), jnp.asarray(hidden))

    def _file(self, tap: int | str) -> Path:
        return self.folder / f"tap-{tap}.bf16"

    def _done(self, tap: int | str) -> int | None:
        """Rows of `pack` that a tap's file has; None where there is no file."""
        meta = self._file(tap).with_suffix(".json")
        if not meta.exists():
            return None
        said = json.loads(meta.read_text("utf-8"))
        if {name: said.get(name) for name in self._said} != self._said:
            raise ValueError(
                f"{self.folder} holds features of another target or corpus, or of rows "
                "of another length: name another folder, or delete it"
            )
        return int(said["done"])

    def _note(self, tap: int | str, done: int) -> None:
        self.done[tap] = done
        meta = self._file(tap).with_suffix(".json")
        partial = meta.with_suffix(".part")
        partial.write_text(json.dumps(self._said | {"done": done}), "utf-8")
        partial.replace(meta)


def _reserve(path: Path, size: int) -> None:
    """A file of this size that has its place on the disk: a page of a mapped file that
    finds none would kill the process.
    """
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
