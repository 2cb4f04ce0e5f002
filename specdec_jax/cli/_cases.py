"""What the demo asks."""

from typing import NamedTuple


class Case(NamedTuple):
    """A prompt, and how it is answered."""

    title: str
    text: str
    temperature: float = 0.0

    @property
    def law(self) -> str:
        """The sampling, in words."""
        return f"temperature {self.temperature}" if self.temperature else "greedy"


_SUMMARY = """\
Summarize this email.

Dear all, the library will be closed from Monday to Wednesday because the heating is
being repaired. Books that are due on these days can be returned on Thursday without a
fee. The reading room on the second floor stays open; please use the entrance on Mill
Street. If you have any questions, ask at the desk or write to the library."""
_CODE = """\
Add type annotations to this class:

```python
class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height

    def perimeter(self):
        return 2 * (self.width + self.height)
```"""
_CHAT = "What are three good reasons to learn to cook?"
CASES = (
    Case("Summary", _SUMMARY),
    Case("Code", _CODE),
    Case("Chat", _CHAT),
    Case("Chat", _CHAT, temperature=0.8),
)
