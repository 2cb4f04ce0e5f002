"""Prompts of files, encoded for a model."""

from collections.abc import Callable, Sequence

from specdec_jax import bench as measuring
from specdec_jax.bench import Prompt
from specdec_jax.cli._arguments_measuring import Calibrate, Evaluate
from specdec_jax.cli._options import AnsweringOptions
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens
from specdec_jax.text import LanguageModel, Tokenizer


def load_prompts(
    command: Evaluate | Calibrate, screens: Screens
) -> tuple[LanguageModel, list[Prompt], int]:
    """The model, some prompts of each task of each file as a user's turns, and how many
    were left out: they are too long, or leave no room for an answer.

    Raises:
        ValueError: for a file of something else, options that nothing can be answered
            with, and where all prompts are too long.
    """
    options, files = command.answering, command.prompts
    _check(options, command.temperatures)
    rows = [
        row
        for file in files
        for row in measuring.choose_rows(
            measuring.read_rows(file), tasks=(), per_task=options.per_task
        )
    ]
    model = load(command.model, screens)
    longest = model.target.max_length - options.new_tokens
    if options.max_prompt is not None:
        longest = min(longest, options.max_prompt)
    prompts = measuring.encode_rows(rows, encoder(model.tokenizer))
    fitting = [prompt for prompt in prompts if len(prompt.ids) <= longest]
    if not fitting:
        raise ValueError(f"all {len(prompts)} prompts have more than {longest} tokens")
    return model, fitting, len(prompts) - len(fitting)


def _check(options: AnsweringOptions, temperatures: Sequence[float]) -> None:
    most = options.max_prompt
    for name, value in (
        ("--per-task", options.per_task),
        ("--new-tokens", options.new_tokens),
        ("--batch", options.batch),
        ("--max-prompt", 1 if most is None else most),
        ("the number of --temperatures", len(temperatures)),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Of a user's turn, where there is a chat template."""
    if tokenizer.chat_template is None:
        return tokenizer.encode
    return lambda text: tokenizer.encode_chat([{"role": "user", "content": text}])
