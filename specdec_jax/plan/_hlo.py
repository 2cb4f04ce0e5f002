"""Reading the text of an optimised XLA program."""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?(%[\w.\-]+) \(.*\{\s*$")
# A tuple's type has blanks in it, but none follows a closing parenthesis inside.
_LINE = re.compile(
    r"\s+(ROOT )?(%[\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\(([^)]*)\)?(.*)"
)
_BUFFER = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Buffer(NamedTuple):
    """An array that an instruction makes, without the padding of its tiles."""

    bits: int  # of an element
    dims: tuple[int, ...]
    is_hbm: bool  # no other memory is named; S(1) is the chip's own, VMEM
    layout: str  # order of the axes, without those of size 1, and tiles

    @property
    def elements(self) -> int:
        """How many numbers."""
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """What they take."""
        return self.elements * self.bits // 8


class Instruction(NamedTuple):
    """One line of a program."""

    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    inside: str  # what stands between the parentheses
    attributes: str
    is_root: bool

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Its results; those of nested tuples in one row."""
        return _buffers(self.shape)

    def called(self, key: str) -> str:
        """The computation under that attribute; "" where there is none."""
        found = re.search(rf"\b{key}=(%[\w.\-]+)", self.attributes)
        return found[1] if found else ""

    @property
    def branches(self) -> list[str]:
        """The computations that a conditional chooses from."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if listed:
            return re.findall(r"%[\w.\-]+", listed[1])
        return [self.called("true_computation"), self.called("false_computation")]

    @property
    def trips(self) -> int:
        """How often a loop runs, as far as the compiler knows; else 1."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else 1


Computation = dict[str, Instruction]  # in order


class Module(NamedTuple):
    """A program: its computations by name."""

    computations: dict[str, Computation]
    entry: str

    def fused(self) -> set[str]:
        """The computations that are the inside of a fusion."""
        return {
            x.called("calls") for x in self.instructions() if x.operation == "fusion"
        }

    def instructions(self) -> Iterator[Instruction]:
        """All of them."""
        for computation in self.computations.values():
            yield from computation.values()

    def root(self, computation: str) -> Instruction:
        """What a computation returns."""
        return next(x for x in self.computations[computation].values() if x.is_root)


def parse(text: str) -> Module:
    """A program from `executable.as_text()`.

    Raises:
        ValueError: the text is no such program.
    """
    computations: dict[str, Computation] = {}
    entry = ""
    current: Computation = {}
    for line in text.splitlines():
        if line[:1] in "%E" and (header := _HEADER.match(line)):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif found := _LINE.match(line):
            root, name, shape, operation, inside, attributes = found.groups()
            operands = tuple(re.findall(r"%[\w.\-]+", inside))
            current[name] = Instruction(
                name, shape, operation, operands, inside, attributes, bool(root)
            )
    if not entry:
        raise ValueError("this is no text of an XLA program: it has no ENTRY")
    return Module(computations, entry)


def decoding_loop(module: Module) -> str:
    """The body of the loop that decodes, told from that of the prompt by the scope
    "verify" of its steps.

    Raises:
        ValueError: there is not exactly one.
    """
    bodies = {
        x.called("body")
        for x in module.computations[module.entry].values()
        if x.operation == "while"
    }
    found = [
        body
        for body in bodies
        if any("/verify/" in x.attributes for x in module.computations[body].values())
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} loops of the program verify drafts, not one")
    return found[0]


@functools.lru_cache(maxsize=1 << 16)
def _buffers(shape: str) -> tuple[Buffer, ...]:
    found = []
    for dtype, dims, layout in _BUFFER.findall(shape):
        digits = re.search(r"\d+", dtype)
        bits = 8 if dtype == "pred" else int(digits[0]) if digits else 0
        sizes = tuple(int(n.removeprefix("<=")) for n in dims.split(",") if n)
        order, _, tiles = layout.strip("{}").partition(":")
        axes = [i for i in order.split(",") if i and sizes[int(i)] > 1]
        tiles = re.sub(r"S\(\d+\)", "", tiles)
        is_hbm = "S(" not in layout
        found.append(Buffer(bits, sizes, is_hbm, f"{','.join(axes)}:{tiles}"))
    return tuple(found)
