"""Prompts of files, encoded for a model."""

from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_jax import bench as measuring
from specdec_jax.bench import Prompt, Row
from specdec_jax.text import Tokenizer


def read_files(files: Sequence[Path], per_task: int) -> list[Row]:
    """Some rows of each task of each file.

    Raises:
        ValueError: for a file of something else.
    """
    rows = []
    for file in files:
        rows += measuring.choose_rows(
            measuring.read_rows(file), tasks=(), per_task=per_task
        )
    return rows


def fitting_prompts(
    rows: Sequence[Row], tokenizer: Tokenizer, longest: int
) -> list[Prompt]:
    """As a user's turns, without those of more than so many tokens.

    Raises:
        ValueError: all are.
    """
    prompts = measuring.encode_rows(rows, encoder(tokenizer))
    fitting = [prompt for prompt in prompts if len(prompt.ids) <= longest]
    if not fitting:
        raise ValueError(f"all {len(prompts)} prompts have more than {longest} tokens")
    return fitting


def encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Of a user's turn, where there is a chat template."""
    if tokenizer.chat_template is None:
        return tokenizer.encode
    return lambda text: tokenizer.encode_chat([{"role": "user", "content": text}])
