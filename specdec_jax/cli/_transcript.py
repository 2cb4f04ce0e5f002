"""The text of a row while its tokens come in."""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_jax import _stops
from specdec_jax.text import Tokenizer


class Segment(NamedTuple):
    """Text, and whether the drafter supplied the token that completed it."""

    text: str
    is_drafted: bool


class Transcript:
    """What of a row may be shown: whole characters, and nothing that is, or may yet
    become, a stop string.

    Attributes:
        text: all that `push` and `finish` have returned.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop_strings: Sequence[str], *, unchecked: int
    ):
        """Start a text. In its first `unchecked` tokens stop strings do not count."""
        self.text = ""
        self._decoder = tokenizer.stream()
        self._stop_strings = stop_strings
        self._unchecked = unchecked
        self._count = 0
        self._held: list[Segment] = []

    def push(self, tokens: Sequence[int], is_drafted: Sequence[bool]) -> list[Segment]:
        """What these tokens let be shown; none come in a row that has ended."""
        if not len(tokens):
            return []
        # The row goes on: what looked like a whole stop string was none, as where a
        # control token stands in between.
        text = self._held_text()
        shown = self._show(len(text) - self._open_end(text))
        for token, drafted in zip(tokens, is_drafted, strict=True):
            self._held.append(Segment(self._decoder.push([token]), drafted))
            self._count += 1
            if self._count <= self._unchecked:
                shown += self._show(len(self._held_text()))
        text = self._held_text()
        whole = len(_stops.trim(text, self._stop_strings))
        return shown + self._show(min(whole, len(text) - self._open_end(text)))

    def finish(self, *, is_stopped: bool) -> list[Segment]:
        """The rest, now that the row has ended; `is_stopped`: by a stop string."""
        self._held.append(Segment(self._decoder.finish(), False))
        text = self._held_text()
        stop_strings = self._stop_strings if is_stopped else ()
        return self._show(len(_stops.trim(text, stop_strings)))

    def _held_text(self) -> str:
        return "".join(segment.text for segment in self._held)

    def _open_end(self, text: str) -> int:
        """How many characters at the end may begin a stop string."""
        sizes = [
            size
            for stop in self._stop_strings
            for size in range(1, len(stop))
            if text.endswith(stop[:size])
        ]
        return max(sizes, default=0)

    def _show(self, size: int) -> list[Segment]:
        """Take the first `size` characters of what is held."""
        held, self._held = self._held, []
        shown = []
        for text, is_drafted in held:
            if now := text[:size]:
                shown.append(Segment(now, is_drafted))
            if later := text[size:]:
                self._held.append(Segment(later, is_drafted))
            size = max(size - len(text), 0)
        self.text += "".join(segment.text for segment in shown)
        return shown
