"""Text to token ids and back."""

import codecs
import dataclasses
import functools
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

from specdec_jax.io import GGUF, Folder
from specdec_jax.text import _folder, _gguf
from specdec_jax.text._chat import render_chat

if TYPE_CHECKING:
    import tokenizers

_NO_NAMES = re.compile("(?!)")
# What tokenizers are told apart by: scripts, code, numbers, spaces, rare words.
_PROBE = (
    "It's 3:47 on 2026-11-30; 1,048,576 bytes aren't 112358132134 (or €5½).\n"
    '\tfor i in range(0x1F):  # naïve\n\t\tself.items[i] += f"{x!r}"\r\n\n'
    "Antidisestablishmentarianism; Fahrvergnügen; l'œuvre; señor.\n"
    "Привет, мир. 世界，你好。こんにちは。 안녕하세요 مرحبا שלום नमस्ते 👩‍🚀🎉\n"
    "        eight spaces, then    four  and two\n"
)
# Rare ideographs: whatever a template does to text, they keep their form.
_MARKS = range(0x20000, 0x2A6E0)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back, with the chat turns of one model.

    Attributes:
        bpe: the `tokenizers` model that encodes text between control tokens.
        token_bytes: what each id stands for. The text of a control token is its name.
        control_ids: ids with a meaning to the model only, like the end of a turn.
        bos_id: what starts a text, if anything does.
        eos_id: what ends one.
        pad_id: what fills unused places.
        stop_ids: every id that ends an answer: of the text, turn or message.
        add_bos: whether `encode` starts with `bos_id`.
        chat_template: in jinja2.
        drops_space: whether the space that begins a text is the encoder's own.
        inner: what encodes text after a control token, if it is not `bpe`.
    """

    bpe: "tokenizers.Tokenizer" = field(repr=False)
    token_bytes: tuple[bytes, ...] = field(repr=False)
    control_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    stop_ids: tuple[int, ...]
    add_bos: bool
    chat_template: str | None
    drops_space: bool = False
    inner: "tokenizers.Tokenizer | None" = field(default=None, repr=False)

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> "Tokenizer":
        """The tokenizer that a GGUF file's metadata describes.

        Raises:
            ValueError: the metadata lacks something, contradicts itself, or names a
                kind of tokenizer or pre-tokenizer that is not known here.
            ImportError: the package `tokenizers` is missing.
        """
        try:
            return cls(**_gguf.fields_of(gguf.metadata))
        except ValueError as error:
            raise ValueError(f"the tokenizer of {gguf.path}: {error}") from error

    @classmethod
    def from_folder(cls, folder: Folder) -> "Tokenizer":
        """The tokenizer of a Hugging Face folder: its tokenizer.json, with the chat
        template and the ids that end an answer from the files beside.

        Raises:
            ValueError: a file is damaged, or of a kind that is not known here.
            OSError: there is no tokenizer.json.
            ImportError: the package `tokenizers` is missing.
        """
        try:
            return cls(**_folder.fields_of(folder))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # Of files that are JSON, but not what they should be.
            said = error if isinstance(error, ValueError) else f"damaged ({error!r})"
            raise ValueError(f"the tokenizer of {folder.path}: {said}") from error

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return len(self.token_bytes)

    def digest(self) -> str:
        """What tells it from another tokenizer: of the ids of a text in many scripts.
        Two files of the same one agree, whatever padding they have.
        """
        ids = self._encode(_PROBE, _NO_NAMES)
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]

    def padded(self, vocab_size: int) -> "Tokenizer":
        """The same, with ids that stand for nothing up to the model's vocabulary."""
        missing = (b"",) * (vocab_size - self.vocab_size)
        return dataclasses.replace(self, token_bytes=self.token_bytes + missing)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """The ids of a text, after the id that starts one where the model wants it.

        Bytes that the vocabulary has no token for are dropped, as by `tokenizers`.

        Args:
            text: any.
            parse_special: read the names of control tokens as these tokens. False is
                for text from strangers, in which they stay text.
        """
        ids = self._encode(text, self._names if parse_special else _NO_NAMES)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of a conversation under the model's chat template.

        Only the template's own control tokens become control tokens: their names in a
        message stay text, so nobody ends a turn from inside it.

        Args:
            messages: each with a `role` and its `content`, both text.
            add_generation_prompt: end with what opens the model's own turn.

        Raises:
            ValueError: there is no chat template, it fails, or a message lacks its
                role or content.
        """
        if self.chat_template is None:
            raise ValueError("this model has no chat template: encode plain text")
        # In the messages, a mark goes between the characters of every such name, and
        # again when the rendered text is encoded: a character that occurs nowhere else.
        texts = json.dumps(
            [self.chat_template, *self._control, *messages],
            ensure_ascii=False,
            default=str,
        )
        mark = next(chr(code) for code in _MARKS if chr(code) not in texts)
        rendered = render_chat(
            self.chat_template,
            _map_texts(
                messages,
                lambda text: self._names.sub(lambda m: m[0].replace("", mark), text),
            ),
            add_generation_prompt=add_generation_prompt,
            bos_token=self._name(self.bos_id),
            eos_token=self._name(self.eos_id),
        )
        return self._encode(rendered, self._names, mark)

    def decode(self, ids: Iterable[SupportsIndex], *, skip_special: bool = True) -> str:
        """The text of some ids. Bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: each in the vocabulary.
            skip_special: leave out control tokens instead of writing their names.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        stream = self.stream(skip_special=skip_special)
        return stream.push(ids) + stream.finish()

    def stream(self, *, skip_special: bool = True) -> "StreamDecoder":
        """A decoder that takes ids as they come; see `decode` for the argument."""
        return StreamDecoder(self, skip_special=skip_special)

    @functools.cached_property
    def _control(self) -> dict[str, int]:
        """Control tokens by name, the longest first.

        A name of one character is left out: it could not be told from that character.
        """
        names = {self._name(token): token for token in self.control_ids}
        ordered = sorted(names, key=len, reverse=True)
        return {name: names[name] for name in ordered if len(name) > 1}

    @functools.cached_property
    def _names(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._control)) or "(?!)")

    def _name(self, token: int | None) -> str:
        return "" if token is None else self.token_bytes[token].decode()

    def _encode(self, text: str, names: re.Pattern[str], mark: str = "") -> list[int]:
        """Encode the control tokens that are named, and the text between, unmarked."""
        ids: list[int] = []
        start = 0
        for match in names.finditer(text):
            ids += self._merge(text[start : match.start()].replace(mark, ""), start)
            ids.append(self._control[match[0]])
            start = match.end()
        return ids + self._merge(text[start:].replace(mark, ""), start)

    def _merge(self, text: str, start: int) -> list[int]:
        encoder = self.bpe if start == 0 or self.inner is None else self.inner
        return encoder.encode(text, add_special_tokens=False).ids


class StreamDecoder:
    """Text from ids as they come. What it returns, put together, is `decode` of all.

    A character of several tokens is kept back until it is complete.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        """Start a text; see `Tokenizer.decode` for `skip_special`."""
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.control_ids if skip_special else frozenset[int]()
        self._drops_space = self._is_at_start = tokenizer.drops_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[SupportsIndex]) -> str:
        """The text that these ids complete.

        Raises:
            ValueError: an id is outside the vocabulary; none of these was taken.
        """
        tokens = [operator.index(token) for token in ids]
        size = len(self._token_bytes)
        for token in tokens:
            if not 0 <= token < size:
                raise ValueError(
                    f"token id {token} is outside the vocabulary: 0 to {size - 1}"
                )
        kept = (token for token in tokens if token not in self._skipped)
        text = self._decoder.decode(b"".join(self._token_bytes[i] for i in kept))
        if text and self._is_at_start:
            self._is_at_start = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What was kept back; the next `push` starts a new text."""
        self._is_at_start = self._drops_space
        return self._decoder.decode(b"", final=True)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Change every text in lists and mappings, whatever their depth; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value
