"""SentencePiece's BPE against its definition: the best-scoring pair of neighbours that
makes a piece is merged, the leftmost first, until there is none.
"""

import random

import gguf
import pytest

from specdec_jax.io import GGUF
from specdec_jax.text import Tokenizer

SPACE = "▁"
RAW = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL = ["<pad>", "<eos>", "<bos>"]
WHOLE = ["\n\n", "<tag>"]
TEXTS = ("", "abc", " ab  cab", "aéb", "a\n\nb\n", "<tag>a<bos>", "caba" * 30, "🙂 ab")


def pieces() -> list[str]:
    """Letters, and two hundred random longer ones that are made of them."""
    rng = random.Random(0)
    found = ["a", "b", "c", "d", SPACE, "\n"]
    while len(found) < 200:
        piece = rng.choice(found) + rng.choice(found)
        if piece not in found and len(piece) < 8 and "\n" not in piece:
            found.append(piece)
    rng.shuffle(found)  # so that a part may score less than what it makes
    return found


TOKENS = [*CONTROL, *WHOLE, *RAW, *pieces()]
SCORES = [-1000.0 if token in CONTROL else -float(i) for i, token in enumerate(TOKENS)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write(tmp_path_factory.mktemp("pieces") / "pieces.gguf")


def write(path, **changes) -> Tokenizer:
    kinds = [
        3 if x in CONTROL else 4 if x in WHOLE else 6 if x in RAW else 1 for x in TOKENS
    ]
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores(changes.get("scores", SCORES))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_add_space_prefix(changes.get("prefix", False))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Tokenizer.from_gguf(GGUF(path))


def merged(text: str) -> list[int]:
    """By the definition."""
    ids = {piece: i for i, piece in enumerate(TOKENS)}
    parts = list(text.replace(" ", SPACE))
    while True:
        best = max(
            (
                (SCORES[ids[a + b]], -i)
                for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
                if a + b in ids
            ),
            default=None,
        )
        if best is None:
            break
        at = -best[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [
        i
        for part in parts
        for i in ([ids[part]] if part in ids else [ids[RAW[b]] for b in part.encode()])
    ]


def test_random_texts(tokenizer):
    rng = random.Random(1)
    for _ in range(200):
        text = "".join(rng.choice("abcd é") for _ in range(rng.randrange(40)))
        assert tokenizer.encode(text) == [2, *merged(text)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    decoder = tokenizer.stream()
    assert "".join(decoder.push([i]) for i in ids) + decoder.finish() == text


def test_whole_pieces_and_control_tokens(tokenizer):
    ids = {piece: i for i, piece in enumerate(TOKENS)}
    assert tokenizer.encode("\n\n\n") == [2, ids["\n\n"], ids["\n"]]
    assert tokenizer.encode("<tag><eos>") == [2, ids["<tag>"], 1]
    assert 1 not in tokenizer.encode("<eos>", parse_special=False)


def test_a_space_before_the_text(tmp_path):
    """As in Llama 2: it is there for the merges, and not in what comes back."""
    spaced = write(tmp_path / "prefix.gguf", prefix=True)
    for text in ("ab", " ab", "cab a", ""):
        ids = spaced.encode(text)
        assert ids == [2, *(merged(" " + text) if text else [])]
        assert spaced.decode(ids) == text


def test_scores_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"it has 461 tokens, but 1 scores"):
        write(tmp_path / "scores.gguf", scores=[0.0])
