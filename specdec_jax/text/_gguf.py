"""What a tokenizer is made of, from the metadata of a GGUF file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdec_jax.text import _bpe, _pieces

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # of token_type


def fields_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Tokenizer`; see `Tokenizer.from_gguf`."""

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    tokens, kinds = _lists(get, "tokens", "token_type")
    if len(kinds) != len(tokens):
        raise ValueError(f"it has {len(tokens)} tokens, but {len(kinds)} token types")
    size = metadata.get(f"{metadata.get('general.architecture')}.vocab_size")
    if size not in (None, len(tokens)):
        raise ValueError(f"it has {len(tokens)} tokens, but the model {size}")
    if len(set(tokens)) != len(tokens):
        raise ValueError("two of its tokens are the same")

    named = {
        key: get(f"{key}_token_id") for key in ("bos", "eos", "padding", "eot", "eom")
    }
    for key, token in named.items():
        if token is not None and not 0 <= token < len(tokens):
            raise ValueError(
                f"{key}_token_id is {token}, but it has {len(tokens)} tokens"
            )
    stops = [named[key] for key in ("eos", "eot", "eom") if named[key] is not None]
    control = {i for i, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL)}
    control.update(stops, [] if named["bos"] is None else [named["bos"]])
    whole = {i for i, kind in enumerate(kinds) if kind == _USER_DEFINED} - control
    match get("model"):
        case "gpt2":
            encoder, token_bytes, add_bos = _byte_level(get, tokens, control, whole)
        case "llama":
            raw = {i for i, kind in enumerate(kinds) if kind == _BYTE}
            encoder, token_bytes, add_bos = _from_pieces(
                get, tokens, control, whole, raw
            )
        case model:
            raise ValueError(
                f"its model is {model!r}; known are 'gpt2', byte-level BPE, and "
                "'llama', SentencePiece"
            )
    return {
        "bpe": encoder,
        "token_bytes": token_bytes,
        "control_ids": frozenset(control),
        "bos_id": named["bos"],
        "eos_id": named["eos"],
        "pad_id": named["padding"],
        "stop_ids": tuple(dict.fromkeys(stops)),
        "add_bos": bool(get("add_bos_token", add_bos)),
        "chat_template": metadata.get("tokenizer.chat_template"),
        "drops_space": get("model") == "llama" and bool(get("add_space_prefix", True)),
    }


_Parts = tuple["tokenizers.Tokenizer", tuple[bytes, ...], bool]


def _byte_level(
    get: Any, tokens: list[str], control: set[int], whole: set[int]
) -> _Parts:
    if (name := get("pre", "default")) not in _bpe.PRE_TOKENIZERS:
        known = ", ".join(sorted(_bpe.PRE_TOKENIZERS))
        raise ValueError(f"its pre-tokenizer is {name!r}; known are {known}")
    pre = _bpe.PRE_TOKENIZERS[name]
    (merges,) = _lists(get, "merges")
    encoder = _bpe.make_encoder(
        pre,
        vocab={token: i for i, token in enumerate(tokens) if i not in control},
        merges=merges,
        whole=[tokens[i] for i in sorted(whole)],
    )
    return encoder, _bpe.bytes_of(tokens, texts=control | whole), pre.add_bos


def _from_pieces(
    get: Any, tokens: list[str], control: set[int], whole: set[int], raw: set[int]
) -> _Parts:
    (scores,) = _lists(get, "scores")
    if len(scores) != len(tokens):
        raise ValueError(f"it has {len(tokens)} tokens, but {len(scores)} scores")
    encoder = _pieces.make_encoder(
        {token: i for i, token in enumerate(tokens) if i not in control},
        scores=scores,
        whole=[tokens[i] for i in sorted(whole)],
        adds_space=bool(get("add_space_prefix", True)),
    )
    token_bytes = _pieces.bytes_of(tokens, texts=control | whole, raw=raw)
    return encoder, token_bytes, True


def _lists(get: Any, *keys: str) -> list[list[Any]]:
    values = [get(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if not isinstance(value, list):
            raise ValueError(f"the file has no list tokenizer.ggml.{key}")
    return values
