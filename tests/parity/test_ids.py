"""Token ids of Gemma's SentencePiece vocabulary against `transformers`' own conversion
of the same file.
"""

import json
from pathlib import Path

import pytest

from specdec_jax.io import GGUF, fetch
from specdec_jax.text import Tokenizer

transformers = pytest.importorskip("transformers")

TABLE = Path(__file__).parents[1] / "text" / "smollm2_ids.json"
MORE = ("", " ", "   three spaces", "tab\tand\n\n\nlines", "<b>bold</b>", "ﬁ ½ 数 🙂")


def test_gemma3():
    path = fetch("gemma3-270m")
    ours = Tokenizer.from_gguf(GGUF(path))
    theirs = transformers.AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name
    )
    assert ours.add_bos and ours.bos_id == 2
    texts = [*MORE, *(text for text, _ in json.loads(TABLE.read_text("utf-8")))]
    for text in texts:
        ids = ours.encode(text, parse_special=False)
        expected = theirs.encode(text, add_special_tokens=False)
        assert ids == [2, *expected], text
        assert ours.decode(ids) == text
