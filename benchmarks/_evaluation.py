"""Prompts of the evaluation files, as chat turns in token ids."""

from pathlib import Path

from specdec_jax.bench import Prompt, encode_rows, read_rows
from specdec_jax.text import Tokenizer

# Beside the checkout; every script takes another folder.
DATA = Path(__file__).parents[2] / "shared" / "data" / "eval"


def read_prompts(file: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """All of a file, in its order, under the model's chat template if it has one."""

    def encode(text: str) -> list[int]:
        if tokenizer.chat_template is None:
            return tokenizer.encode(text, parse_special=False)
        return tokenizer.encode_chat([{"role": "user", "content": text}])

    return encode_rows(read_rows(file), encode)
