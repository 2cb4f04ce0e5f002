"""What a tokenizer is made of, from a Hugging Face folder: tokenizer.json and the small
files beside it.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdec_jax.io import Folder
from specdec_jax.text import _bpe, _pieces

if TYPE_CHECKING:
    import tokenizers


def fields_of(folder: Folder) -> dict[str, Any]:
    """The fields of `Tokenizer`; see `Tokenizer.from_folder`."""
    described = folder.read_json("tokenizer.json")
    config = _optional(folder, "tokenizer_config.json")
    generation = _optional(folder, "generation_config.json")
    added = {token["content"]: token for token in described.get("added_tokens", [])}
    full = _encoder(described)
    vocab = full.get_vocab(with_added_tokens=True)
    bos_id, eos_id, pad_id = (
        _id(config.get(f"{key}_token"), vocab) for key in ("bos", "eos", "pad")
    )
    size = max(vocab.values()) + 1
    stops = [] if eos_id is None else [eos_id]
    for value in (generation.get("eos_token_id"), folder.config.get("eos_token_id")):
        stops += _ids(value, size)
    control = {token["id"] for token in added.values() if token.get("special")}
    control |= {*stops, *([] if bos_id is None else [bos_id])}
    # Control tokens are found by us, so that text from strangers can be kept from them.
    marked = [x | {"special": x["id"] in control} for x in added.values()]
    plain = _encoder({**described, "added_tokens": marked, "post_processor": None})
    plain.encode_special_tokens = True
    inner = _encoder(_within(described | {"added_tokens": marked}))
    inner.encode_special_tokens = True
    tokens = [""] * size
    for token, i in vocab.items():
        tokens[i] = token
    texts = {token["id"] for token in added.values()} | control
    first = full.encode("a", add_special_tokens=True).ids
    return {
        "bpe": plain,
        "inner": inner,
        "token_bytes": _bytes(described, tokens, texts),
        "control_ids": frozenset(control),
        "bos_id": bos_id,
        "eos_id": eos_id,
        "pad_id": pad_id,
        "stop_ids": tuple(dict.fromkeys(stops)),
        "add_bos": bos_id is not None and first[:1] == [bos_id],
        "chat_template": _template(folder, config),
        "drops_space": "Strip" in _decoders(described),
    }


def _encoder(described: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "encoding text needs the package tokenizers: pip install 'specdec-jax[hub]'"
        ) from error
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(described))
    except Exception as error:  # the very class that it raises
        raise ValueError(f"tokenizer.json is not understood: {error}") from error


def _within(described: Mapping[str, Any]) -> dict[str, Any]:
    """The same for what is not the beginning of a text, where that makes a difference:
    Metaspace may put its space only there.
    """
    pre = described.get("pre_tokenizer") or {}
    parts = [
        part | {"prepend_scheme": "never"}
        if part.get("prepend_scheme") == "first"
        else part
        for part in pre.get("pretokenizers", [pre])
    ]
    inside = pre | {"pretokenizers": parts} if "pretokenizers" in pre else parts[0]
    return {**described, "pre_tokenizer": inside or None, "post_processor": None}


def _bytes(
    described: Mapping[str, Any], tokens: list[str], texts: set[int]
) -> tuple[bytes, ...]:
    """What each token stands for, as the file's decoder reads it."""
    kinds = _decoders(described)
    if "ByteLevel" in kinds:
        return _bpe.bytes_of(tokens, texts)
    if "ByteFallback" in kinds:
        raw = {
            i
            for i, token in enumerate(tokens)
            if len(token) == 6 and token.startswith("<0x") and i not in texts
        }
        return _pieces.bytes_of(tokens, texts=texts, raw=raw)
    raise ValueError(
        f"the decoder of tokenizer.json ({', '.join(sorted(kinds))}) is not "
        "understood: byte-level BPE and SentencePiece are"
    )


def _decoders(described: Mapping[str, Any]) -> set[str]:
    """The kinds of decoder that a file combines."""
    decoder = described.get("decoder") or {}
    return {part.get("type", "none") for part in decoder.get("decoders", [decoder])}


def _template(folder: Folder, config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or in the tokenizer's configuration."""
    file = folder.path / "chat_template.jinja"
    if file.exists():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _optional(folder: Folder, name: str) -> dict[str, Any]:
    return folder.read_json(name) if (folder.path / name).exists() else {}


def _id(token: Any, vocab: Mapping[str, int]) -> int | None:
    """The id of a token that is named, or described by an object."""
    name = token.get("content") if isinstance(token, Mapping) else token
    if name is None:
        return None
    if name not in vocab:
        raise ValueError(f"tokenizer_config.json names {name!r}, which is no token")
    return vocab[name]


def _ids(value: Any, size: int) -> list[int]:
    """One id, several or none, each of the vocabulary."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for i in ids:
        if not isinstance(i, int) or not 0 <= i < size:
            raise ValueError(f"eos_token_id {i!r} is no id of its {size} tokens")
    return ids
