"""SentencePiece's BPE, as `tokenizers` runs it: pieces with ▁ for a space, merged in
the order of their scores, and bytes for what no piece covers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"


def make_encoder(
    vocab: dict[str, int], *, scores: list[float], whole: list[str], adds_space: bool
) -> "tokenizers.Tokenizer":
    """What encodes plain text.

    Args:
        vocab: the id of each piece that text may become.
        scores: of each id; a piece of a higher score is merged before others.
        whole: pieces that are found in a text before it is merged.
        adds_space: whether a text is read as if it began with a space.

    Raises:
        ImportError: the package `tokenizers` is missing.
    """
    try:
        from tokenizers import AddedToken, models, normalizers
        from tokenizers import Tokenizer as Encoder
    except ImportError as error:
        raise ImportError(
            "encoding text needs the package tokenizers: pip install 'specdec-jax[hub]'"
        ) from error
    apart = set(whole)
    merges = []
    for piece, i in vocab.items():
        if piece in apart:
            continue
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                merges.append((-scores[i], left, right, piece[:cut], piece[cut:]))
    merges.sort()
    pairs = [(left, right) for *_, left, right in merges]
    encoder = Encoder(models.BPE(vocab, pairs, byte_fallback=True, fuse_unk=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if adds_space:
        steps.insert(0, normalizers.Prepend(SPACE))
    encoder.normalizer = normalizers.Sequence(steps)
    encoder.add_tokens([AddedToken(piece, normalized=True) for piece in whole])
    return encoder


def bytes_of(tokens: list[str], *, texts: set[int], raw: set[int]) -> tuple[bytes, ...]:
    """What each token stands for; `texts` are themselves, `raw` are written <0x0A>."""
    return tuple(
        token.encode()
        if i in texts
        else bytes.fromhex(token[3:5])
        if i in raw
        else token.replace(SPACE, " ").encode()
        for i, token in enumerate(tokens)
    )
