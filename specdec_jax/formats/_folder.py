"""The folder of a drafter, and whose texts it was made for."""

import os

from specdec_jax.formats._words import TOKENIZER
from specdec_jax.io import Folder, open_folder


def open_drafter(path: str | os.PathLike[str]) -> tuple[Folder, str | None]:
    """A folder, its config.json without what no format has a word for: the digest of
    its target's tokenizer, if it says one.

    Raises:
        ValueError, OSError, ImportError: see `specdec_jax.io.open_folder`.
    """
    folder = open_folder(path)
    config = dict(folder.config)
    digest = config.pop(TOKENIZER, None)
    folder.config = config
    return folder, digest


def check_tokenizer(folder: Folder, digest: str | None, found: str | None) -> None:
    """Raise `ValueError` where the digests of two tokenizers are known and differ."""
    if None not in (digest, found) and digest != found:
        raise ValueError(
            f"{folder.path}: the head was made for a target with another tokenizer "
            f"({TOKENIZER} {digest}, but this one's is {found}): the same ids would "
            "mean other texts"
        )
