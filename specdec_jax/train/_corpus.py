"""Texts to learn from: prompts, and what the target answered."""

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ARRAYS = ("tokens", "lens", "plen")


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Texts one after another.

    Attributes:
        tokens: of all, int32.
        lengths: of each text.
        prompt_lengths: how many of a text's first tokens are its prompt.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    prompt_lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """Where each text begins among the tokens."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def num_answer_tokens(self) -> int:
        """Of all texts."""
        return int((self.lengths - self.prompt_lengths).sum())

    def is_answer(self) -> np.ndarray:
        """Of each token, whether it is the target's own."""
        at = np.arange(len(self.tokens)) - np.repeat(self.starts, self.lengths)
        return at >= np.repeat(self.prompt_lengths, self.lengths)

    def answers(self) -> np.ndarray:
        """The answers' tokens."""
        return self.tokens[self.is_answer()]

    def prompts(self) -> list[list[int]]:
        """Of each text."""
        ends = self.starts + self.prompt_lengths
        pairs = zip(self.starts, ends, strict=True)
        return [self.tokens[start:end].tolist() for start, end in pairs]

    def part(self, first: int, last: int) -> "Corpus":
        """Texts `first` … `last` - 1."""
        start = int(self.lengths[:first].sum())
        end = start + int(self.lengths[first:last].sum())
        return Corpus(
            self.tokens[start:end],
            self.lengths[first:last],
            self.prompt_lengths[first:last],
        )

    def digest(self) -> str:
        """What tells it from another corpus."""
        said = hashlib.sha256()
        for array in (self.tokens, self.lengths, self.prompt_lengths):
            said.update(np.ascontiguousarray(array, np.int32).tobytes())
        return said.hexdigest()[:16]


def load_corpus(paths: Sequence[str | os.PathLike[str]], *, vocab_size: int) -> Corpus:
    """All texts of some files: `tokens`, `lens` and `plen` arrays in each (npz).

    Raises:
        ValueError: a file is damaged, lacks an array or contradicts itself; a token is
            not of the vocabulary; nothing is an answer.
        OSError: a file cannot be read.
    """
    if not paths:
        raise ValueError("there is no corpus: name the .npz files of one")
    parts = [_load(Path(path)) for path in paths]
    corpus = Corpus(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    if corpus.tokens.min(initial=0) < 0 or corpus.tokens.max(initial=0) >= vocab_size:
        raise ValueError(
            f"the corpus has token {corpus.tokens.max()}, but the target's ids are "
            f"below {vocab_size}: it was written by another model"
        )
    if corpus.num_answer_tokens == 0:
        raise ValueError(
            "no token of the corpus is an answer: everywhere plen equals lens, so "
            "there is nothing to learn"
        )
    return corpus


def save_corpus(path: str | os.PathLike[str], corpus: Corpus, **more: Any) -> None:
    """Write a file that `load_corpus` reads; `more` goes beside, one entry a text."""
    file = Path(path)
    small = np.uint16 if corpus.tokens.max(initial=0) < 2**16 else np.int32
    partial = file.with_name(file.name + ".part")
    with partial.open("wb") as out:
        arrays: dict[str, Any] = {
            "tokens": corpus.tokens.astype(small),
            "lens": corpus.lengths.astype(np.int32),
            "plen": corpus.prompt_lengths.astype(np.int32),
        }
        np.savez_compressed(out, **arrays, **more)
    partial.replace(file)


def _load(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [name for name in _ARRAYS if name not in file.files]
            if missing:
                raise ValueError(f"{path} has no array {' or '.join(missing)}")
            tokens, lengths, prompts = (file[name] for name in _ARRAYS)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is cut short or no .npz file: {error}") from None
    if any(x.ndim != 1 or x.dtype.kind not in "iu" for x in (tokens, lengths, prompts)):
        raise ValueError(f"{path}: its arrays must be lists of whole numbers")
    tokens, lengths, prompts = (x.astype(np.int32) for x in (tokens, lengths, prompts))
    if len(lengths) != len(prompts) or lengths.sum() != len(tokens):
        raise ValueError(
            f"{path} contradicts itself: {len(tokens)} tokens, lens for "
            f"{lengths.sum()}, {len(lengths)} lens, {len(prompts)} plen"
        )
    if (prompts < 0).any() or (prompts > lengths).any() or (lengths < 1).any():
        raise ValueError(f"{path}: a text is empty, or shorter than its prompt")
    return tokens, lengths, prompts
