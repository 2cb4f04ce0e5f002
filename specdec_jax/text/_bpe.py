"""Byte-level BPE: how text is cut before merging, and the bytes of tokens."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

# The regular expressions are those of the models' tokenizer.json.
_CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging. `pattern` None is GPT-2's."""

    pattern: str | None = None
    each_digit: bool = False
    normalize: bool = False  # to NFC
    whole_words: bool = False  # a piece that is a token is one, whatever the merges
    add_bos: bool = False  # where the file does not say


PRE_TOKENIZERS = {
    "default": PreTokenizer(),
    "gpt-2": PreTokenizer(),
    "llama-bpe": PreTokenizer(
        _CASELESS + r"\p{N}{1,3}" + _REST, whole_words=True, add_bos=True
    ),
    "qwen2": PreTokenizer(_CASELESS + r"\p{N}" + _REST, normalize=True),
    "smollm": PreTokenizer(each_digit=True),
}
"""By the names that llama.cpp gives them in `tokenizer.ggml.pre`."""


def make_encoder(
    pre: PreTokenizer, *, vocab: dict[str, int], merges: list[str], whole: list[str]
) -> "tokenizers.Tokenizer":
    """What encodes plain text.

    Args:
        pre: how text is cut before merging.
        vocab: the id of each token that text may become.
        merges: pairs of tokens, a space between them, the first to be merged first.
        whole: tokens that are found in a text before it is cut.

    Raises:
        ValueError: a merge is of, or makes, what is no token.
        ImportError: the package `tokenizers` is missing.
    """
    try:
        from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
        from tokenizers import Tokenizer as Encoder
    except ImportError as error:
        raise ImportError(
            "encoding text needs the package tokenizers: pip install 'specdec-jax[hub]'"
        ) from error
    pairs = [(left, right) for left, _, right in (m.partition(" ") for m in merges)]
    try:
        encoder = Encoder(models.BPE(vocab, pairs, ignore_merges=pre.whole_words))
    except Exception as error:  # the very class that it raises
        raise ValueError(f"its merges do not fit its tokens: {error}") from error
    if pre.normalize:
        encoder.normalizer = normalizers.NFC()
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if pre.each_digit:
        cuts.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern is not None:
        cuts.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    is_gpt2 = pre.pattern is None
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=is_gpt2))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    encoder.add_tokens([AddedToken(token, normalized=False) for token in whole])
    return encoder


def bytes_of(tokens: list[str], texts: set[int]) -> tuple[bytes, ...]:
    """What each token stands for: a byte a character, but for the ids in `texts`."""
    alphabet = _alphabet()
    return tuple(
        bytes(alphabet[character] for character in token)
        if i not in texts and alphabet.keys() >= set(token)
        else token.encode()  # as `tokenizers` reads what is not of the alphabet
        for i, token in enumerate(tokens)
    )


@functools.cache
def _alphabet() -> dict[str, int]:
    """GPT-2's character of each byte: itself if printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }
