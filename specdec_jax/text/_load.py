"""A model with its tokenizer, by name or from files."""

import os
import re
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import PyTree

from specdec_jax._cache import for_backend
from specdec_jax._types import Target
from specdec_jax.io import GGUF, MODELS, Folder, fetch
from specdec_jax.targets import from_folder, from_gguf
from specdec_jax.text._tokenizer import Tokenizer

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_HUB_COPIES = ["consolidated*"]  # the same weights once more
_DTYPES = ("float32", "bfloat16", "float16")


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
    mesh: Mesh | None = None,
    progress: bool = True,
) -> LanguageModel:
    """A language model and its tokenizer.

    Args:
        name_or_path: a name of `io.MODELS`, which is downloaded the first time; the
            path of a GGUF file; the path of a Hugging Face folder; or a name on the
            Hugging Face hub (owner/name). They are tried in this order: write `./name`
            for a file that is called like a model.
        dtype: of parameters, and of the cache; but a CPU keeps a cache of float32, as
            it would copy one of bfloat16 at every step.
        mesh: of devices to spread the parameters over, as `shard` does; no device holds
            more than its part, also while loading.
        progress: show the download, if standard error is a terminal.

    Raises:
        ValueError: the files are damaged, hold an architecture or a configuration that
            is not understood, or a tokenizer that does not fit its model.
        OSError: there is nothing of that name, or it cannot be read.
        RuntimeError: the model could not be downloaded.
        ImportError: a package of the extra `hub` is missing.
    """
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in _DTYPES:
        raise ValueError(f"dtype is one of {', '.join(_DTYPES)}, not {name!r}")
    source = _source(name_or_path, progress=progress)
    if isinstance(source, Folder):
        tokenizer = Tokenizer.from_folder(source)  # first: quick to say what is wrong
        target, params = from_folder(source, dtype=dtype, mesh=mesh)
    else:
        tokenizer = Tokenizer.from_gguf(source)
        target, params = from_gguf(source, dtype=dtype, mesh=mesh)
    target = for_backend(target)
    # Published embeddings are often padded beyond the tokenizer, never the reverse.
    is_padded = isinstance(source, Folder) and tokenizer.vocab_size < target.vocab_size
    if is_padded:
        tokenizer = tokenizer.padded(target.vocab_size)
    if tokenizer.vocab_size != target.vocab_size:
        raise ValueError(
            f"{source.path} has a tokenizer of {tokenizer.vocab_size} tokens, but a "
            f"model of {target.vocab_size}: they do not belong together"
        )
    return LanguageModel(target, params, tokenizer)


def _source(name_or_path: str | os.PathLike[str], *, progress: bool) -> GGUF | Folder:
    if name_or_path in MODELS:
        return GGUF(fetch(str(name_or_path), progress=progress))
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return Folder(path)
    if path.exists():
        return GGUF(path)
    if _HUB_NAME.fullmatch(str(name_or_path)):
        return Folder(_from_hub(str(name_or_path)))
    known = ", ".join(sorted(MODELS))
    raise FileNotFoundError(
        f"there is neither a file {str(path)!r} nor a model of that name; the models "
        f"known by name are {known}, and those of the Hugging Face hub as owner/name"
    )


def _from_hub(name: str) -> Path:
    """The hub's folder in its own cache, downloaded where it is not there yet."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            "models of the hub need the package huggingface_hub: "
            "pip install 'specdec-jax[hub]'"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_COPIES
        )
        return Path(folder)
    except Exception as error:  # of the network, the hub, or the disk
        raise RuntimeError(
            f"{name} could not be fetched from the Hugging Face hub (and there is no "
            f"file of that name): {error}"
        ) from error
