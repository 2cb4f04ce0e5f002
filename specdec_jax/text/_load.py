"""A model with its tokenizer, by name or from a file."""

import os
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import PyTree

from specdec_jax._types import Target
from specdec_jax.io import GGUF, MODELS, fetch
from specdec_jax.targets import llama_from_gguf
from specdec_jax.text._tokenizer import Tokenizer


class LanguageModel(NamedTuple):
    """Text in, text out: what `load` returns.

    `params` are the target's own, as in `Params(target=model.params)`.
    """

    target: Target
    params: PyTree
    tokenizer: Tokenizer


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: DTypeLike = jnp.float32,
    progress: bool = True,
) -> LanguageModel:
    """A language model of the Llama family and its tokenizer.

    Args:
        name_or_path: a name of `io.MODELS`, which is downloaded the first time, or the
            path of a GGUF file. A name goes before a file that is called the same:
            write `./name` for the file.
        dtype: of parameters and cache.
        progress: show the download, if standard error is a terminal.

    Raises:
        ValueError: the file is no GGUF, is damaged, holds another architecture, or its
            tokenizer does not fit its model.
        OSError: there is neither a model of that name nor a file, or it cannot be read.
        RuntimeError: the model could not be downloaded.
        ImportError: a package of the extra `hub` is missing.
    """
    gguf = GGUF(_file(name_or_path, progress=progress))
    tokenizer = Tokenizer.from_gguf(gguf)  # first: it is quick to say what is wrong
    target, params = llama_from_gguf(gguf, dtype=dtype)
    if tokenizer.vocab_size != target.vocab_size:
        raise ValueError(
            f"{gguf.path} has a tokenizer of {tokenizer.vocab_size} tokens, but a "
            f"model of {target.vocab_size}: they do not belong together"
        )
    return LanguageModel(target, params, tokenizer)


def _file(name_or_path: str | os.PathLike[str], *, progress: bool) -> Path:
    if name_or_path in MODELS:
        return fetch(str(name_or_path), progress=progress)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the GGUF file inside it")
    if not path.exists():
        known = ", ".join(sorted(MODELS))
        raise FileNotFoundError(
            f"there is neither a file {str(path)!r} nor a model of that name; the "
            f"models known by name are: {known}"
        )
    return path
