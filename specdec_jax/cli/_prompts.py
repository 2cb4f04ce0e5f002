"""Prompts of files, encoded for a model."""

from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_jax import bench as measuring
from specdec_jax.bench import Prompt, Row
from specdec_jax.cli._arguments_measuring import Calibrate, Evaluate
from specdec_jax.text import LanguageModel, Tokenizer


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


def check_answering(command: Evaluate | Calibrate) -> None:
    """Raise `ValueError` for what nothing can be answered with."""
    for name, value in (
        ("--per-task", command.per_task),
        ("--new-tokens", command.new_tokens),
        ("--batch", command.batch),
        ("--max-prompt", 1 if command.max_prompt is None else command.max_prompt),
        ("the number of --temperatures", len(command.temperatures)),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def fitting_prompts(
    rows: Sequence[Row], model: LanguageModel, *, new_tokens: int, most: int | None
) -> list[Prompt]:
    """As a user's turns, without those that have more than `most` tokens, or leave no
    room for an answer.

    Raises:
        ValueError: all are.
    """
    longest = model.target.max_length - new_tokens
    if most is not None:
        longest = min(longest, most)
    tokenizer = model.tokenizer
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
