"""Prompts of the evaluation files, as chat turns in token ids."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specdec_jax.text import Tokenizer

# Beside the checkout; every script takes another folder.
DATA = Path(__file__).parents[2] / "shared" / "data" / "eval"


class Prompt(NamedTuple):
    """The first turn of an evaluation row, under the model's chat template if it has
    one.
    """

    name: str
    task: str
    ids: list[int]


def read_prompts(file: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """All of a file, in its order."""

    def encode(text: str) -> list[int]:
        if tokenizer.chat_template is None:
            return tokenizer.encode(text, parse_special=False)
        return tokenizer.encode_chat([{"role": "user", "content": text}])

    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [Prompt(row["id"], row["task"], encode(row["turns"][0])) for row in rows]


def spread_over(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """This many of them, at even distances."""
    if not 0 < count <= len(prompts):
        raise ValueError(f"there are {len(prompts)} prompts to choose {count} from")
    return [prompts[i * len(prompts) // count] for i in range(count)]
