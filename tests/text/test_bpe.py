"""How text is cut before merging, and the bytes of tokens."""

import pytest
import tokenizers

from specdec_jax.text._bpe import PRE_TOKENIZERS, bytes_of, make_encoder

ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "1 2", "1 1", "11 1"]
VOCAB = {
    token: i
    for i, token in enumerate([*ALPHABET, *(m.replace(" ", "") for m in MERGES)])
}


def encode(pre: str, text: str, merges: list[str] = MERGES) -> list[str]:
    """The tokens of a text."""
    encoder = make_encoder(PRE_TOKENIZERS[pre], vocab=VOCAB, merges=merges, whole=[])
    return encoder.encode(text).tokens


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["1", "1", "1", "2"]),
        ("qwen2", ["1", "1", "1", "2"]),
        ("llama-bpe", ["111", "2"]),
        ("gpt-2", ["11", "12"]),
        ("default", ["11", "12"]),
    ],
)
def test_digits(pre, expected):
    assert encode(pre, "1112") == expected


CUTS = {
    "gpt-2": [
        "I",
        "'",
        "LL",
        " say",
        "  ",
        " 1234",
        "\n",
        "\n",
        "it",
        "'s",
        "?!",
        "\n",
    ],
    "smollm": [
        *["I", "'", "LL", " say", "   ", "1", "2", "3", "4"],
        *["\n", "\n", "it", "'s", "?!", "\n"],
    ],
    "llama-bpe": [
        *["I", "'LL", " say", "  ", " ", "123", "4"],
        *["\n\n", "it", "'s", "?!\n"],
    ],
    "qwen2": [
        *["I", "'LL", " say", "  ", " ", "1", "2", "3", "4"],
        *["\n\n", "it", "'s", "?!\n"],
    ],
}


@pytest.mark.parametrize("pre", CUTS)
def test_pre_tokenizers(pre):
    """Where the models' own tokenizer.json cut a text, told by merging nothing."""
    encoder = make_encoder(PRE_TOKENIZERS[pre], vocab=VOCAB, merges=[], whole=[])
    text = "I'LL say   1234\n\nit's?!\n"
    cuts = encoder.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cuts] == CUTS[pre]


def test_whole_words_before_merges():
    """Llama 3 takes a piece that is a token, though no merge leads to it."""
    merges = [merge for merge in MERGES if merge != "hell o"]
    assert encode("gpt-2", "hello", merges) == ["hell", "o"]
    assert encode("llama-bpe", "hello", merges) == ["hello"]


def test_normalization():
    assert encode("qwen2", "e\u0301") == encode("qwen2", "\u00e9")
    assert encode("gpt-2", "e\u0301") != encode("gpt-2", "\u00e9")


def test_tokens_that_are_found_before_all():
    whole = make_encoder(
        PRE_TOKENIZERS["gpt-2"], vocab=VOCAB, merges=MERGES, whole=["ll"]
    )
    assert whole.encode("hello").tokens == ["he", "ll", "o"]


def test_bytes():
    assert sorted(bytes_of(ALPHABET, texts=set())) == [bytes([i]) for i in range(256)]
    tokens = ["Ġhe", "Ċ", "Ã©", "Ġ", "日"]
    expected = (b" he", b"\n", b"\xc3\xa9", "Ġ".encode(), "日".encode())
    assert bytes_of(tokens, texts={3}) == expected
