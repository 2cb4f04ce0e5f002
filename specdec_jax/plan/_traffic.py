"""What one step of an XLA program moves to and from HBM.

Counted are the instructions that a chip executes, from their results and operands in
HBM; buffers in VMEM are free. In particular:

* A fusion reads each operand once and writes its results; nothing inside it counts. Of
  an operand of which it only takes slices or gathers rows, it reads these.
* A dynamic-update-slice or scatter, fused or not, works in place: it writes its update
  and reads nothing of what it updates, unless its result lies in another memory.
* A copy between HBM and VMEM counts once, where it starts; so does a slice.
* Tuples, bitcasts and constants are free. Products that read an operand more than once,
  because it does not fit in VMEM, are counted as if they read it once.
* A loop counts as often as the compiler knows that it runs, else once. Of a conditional
  the branch with the most arithmetic counts, the one that reads a draft; among equals
  that which moves most, the one that samples.

Sizes are those of the arrays, without the padding of their tiles.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from specdec_jax.plan._arithmetic import flops
from specdec_jax.plan._hlo import Buffer, Instruction, Module
from specdec_jax.plan._sources import Sources

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all",
    "partition-id", "replica-id", "opt-barrier", "add-dependency", "domain",
}  # fmt: skip
_FREE_CALLS = ("ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound")
_SLICES = ("slice", "dynamic-slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # which operand is the update
# The target's, an EAGLE head's, and what is all that a drafter of blocks keeps.
_CACHE = re.compile(r"state\.((drafter\.)?cache|drafter)\.(keys|values)\b")
COLLECTIVES = (
    "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip


class Traffic(NamedTuple):
    """Bytes read from HBM, by where they came from, and written to it."""

    weights: int = 0
    cache: int = 0
    other: int = 0
    written: int = 0

    @property
    def read(self) -> int:
        """All that is read."""
        return self.weights + self.cache + self.other

    @property
    def total(self) -> int:
        """Both ways."""
        return self.read + self.written


class Collective(NamedTuple):
    """Exchanges of one kind between chips: how many, and what they return per chip."""

    times: int
    bytes: int


def executed(module: Module, computation: str) -> Iterator[tuple[Instruction, int]]:
    """The instructions that run, and how often; loops, calls and the branches taken
    are opened.
    """
    for instruction in module.computations[computation].values():
        match instruction.operation:
            case "while":
                for inner, times in executed(module, instruction.called("body")):
                    yield inner, times * instruction.trips
            case "conditional":
                yield from executed(module, _taken(module, instruction))
            case "call":
                yield from executed(module, instruction.called("to_apply"))
            case _:
                yield instruction, 1


def choice(module: Module, computation: str, count: int) -> list[str]:
    """The branches of the conditional of so many that has the most arithmetic.

    Raises:
        ValueError: there is none.
    """
    found = [
        x.branches
        for x in module.computations[computation].values()
        if x.operation == "conditional" and len(x.branches) == count
    ]
    if not found:
        raise ValueError(f"the program has no choice among {count} branches")
    return max(found, key=lambda names: max(step_flops(module, x) for x in names))


def step_traffic(module: Module, body: str) -> Traffic:
    """All of a loop's body, once."""
    home, sources = _homes(module), Sources(module)
    found = dict.fromkeys(Traffic._fields, 0)
    for instruction, times in executed(module, body):
        computation = home[instruction.name]
        read, written = moved(module, computation, instruction)
        found["written"] += times * written
        for operand, size in read.items():
            found[_kind(sources.of(computation, operand))] += times * size
    return Traffic(**found)


def _kind(names: set[str]) -> str:
    """Weights are arguments, and so is the cache; all else is made on the way."""
    if names and all(name.startswith("params.") for name in names):
        return "weights"
    if names and all(_CACHE.match(name) for name in names):
        return "cache"
    return "other"


def step_flops(module: Module, body: str) -> int:
    """Twice the multiplications of all products in a loop's body."""
    home = _homes(module)
    return sum(
        times * flops(module, home[instruction.name], instruction)
        for instruction, times in executed(module, body)
    )


def collectives(module: Module, body: str) -> dict[str, Collective]:
    """What chips exchange in a loop's body, by kind."""
    found: dict[str, Collective] = {}
    for instruction, times in executed(module, body):
        kind = instruction.operation.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        size = sum(buffer.bytes for buffer in _results(instruction))
        before = found.get(kind, Collective(0, 0))
        found[kind] = Collective(before.times + times, before.bytes + times * size)
    return found


def moved(
    module: Module, computation: str, instruction: Instruction
) -> tuple[dict[str, int], int]:
    """Bytes that one instruction reads, by operand, and that it writes; see this
    module's docstring.
    """
    operation = instruction.operation
    is_free = operation in _FREE or operation.endswith("-done")
    if operation == "custom-call":
        is_free = any(f'"{name}"' in instruction.attributes for name in _FREE_CALLS)
    if is_free:
        return {}, 0
    kind = operation.removesuffix("-start")
    scope = module.computations[computation]
    results = sum(buffer.bytes for buffer in _results(instruction) if buffer.is_hbm)
    read = {name: _hbm(scope[name]) for name in instruction.operands}
    if kind in _SLICES:
        taken = sum(buffer.bytes for buffer in _results(instruction))
        source = instruction.operands[0]
        read[source] = min(read[source], taken)
    elif kind in _UPDATES:
        update = scope[instruction.operands[_UPDATES[kind]]]
        read[instruction.operands[0]] = 0
        results = min(results, sum(buffer.bytes for buffer in update.buffers))
    elif kind == "fusion":
        inside = instruction.called("calls")
        in_place = any(buffer.is_hbm for buffer in instruction.buffers)
        for index, name in enumerate(instruction.operands):
            if read[name]:
                taken = _read(module, inside, index, in_place=in_place)
                read[name] = min(read[name], taken)
        results = _fusion_results(module, instruction)
    return read, results


def _fusion_results(module: Module, fusion: Instruction) -> int:
    inside = fusion.called("calls")
    root = module.root(inside)
    parts = (
        [module.computations[inside][name] for name in root.operands]
        if root.operation == "tuple"
        else [root]
    )
    if len(parts) != len(fusion.buffers):  # a tuple of tuples
        return _hbm(fusion)
    return sum(
        min(_written(module, inside, part), buffer.bytes)
        for part, buffer in zip(parts, fusion.buffers, strict=True)
        if buffer.is_hbm
    )


def _read(module: Module, computation: str, index: int, *, in_place: bool) -> int:
    """How much a fused computation takes of a parameter, if that lies in HBM."""
    scope = module.computations[computation]
    parameter = next(
        x
        for x in scope.values()
        if x.operation == "parameter" and x.inside == str(index)
    )
    whole = sum(buffer.bytes for buffer in parameter.buffers)

    def taken(name: str) -> int:
        if scope[name].is_root:  # handed on as it is
            return whole
        total = 0
        for user in scope.values():
            places = [i for i, operand in enumerate(user.operands) if operand == name]
            if not places:
                continue
            if user.operation == "bitcast":
                total += taken(user.name)
            elif user.operation in _SLICES and places == [0]:
                total += sum(buffer.bytes for buffer in user.buffers)
            elif user.operation in _UPDATES and places == [0] and in_place:
                pass
            elif user.operation == "fusion":
                inner = user.called("calls")
                total += sum(
                    _read(module, inner, place, in_place=in_place) for place in places
                )
            else:
                return whole
        return min(total, whole)

    return taken(parameter.name)


def _written(module: Module, computation: str, part: Instruction) -> int:
    """How much of a fusion's result is written anew."""
    scope = module.computations[computation]
    while part.operation == "bitcast":
        part = scope[part.operands[0]]
    if part.operation == "fusion" and len(part.buffers) == 1:
        inside = part.called("calls")
        return _written(module, inside, module.root(inside))
    if part.operation in _UPDATES:
        kept = scope[part.operands[0]]
        while kept.operation == "bitcast":
            kept = scope[kept.operands[0]]
        if kept.operation == "parameter":
            update = scope[part.operands[_UPDATES[part.operation]]]
            return sum(buffer.bytes for buffer in update.buffers)
    return sum(buffer.bytes for buffer in part.buffers)


def _results(instruction: Instruction) -> list[Buffer]:
    """The results; of what only starts, without the operands that it also lists."""
    buffers = list(instruction.buffers)
    operation = instruction.operation
    if not operation.endswith("-start") or not instruction.shape.startswith("("):
        return buffers
    if operation == "copy-start":  # (result, operand, context)
        return buffers[:1]
    if operation == "all-reduce-start":
        return buffers
    many = len(instruction.operands)
    return buffers[many : 2 * many] or buffers[:1]


def _hbm(instruction: Instruction) -> int:
    return sum(buffer.bytes for buffer in instruction.buffers if buffer.is_hbm)


def _taken(module: Module, conditional: Instruction) -> str:
    """The branch with the most arithmetic, and among equals the most traffic."""
    return max(
        conditional.branches,
        key=lambda branch: (
            step_flops(module, branch),
            step_traffic(module, branch).total,
        ),
    )


def _homes(module: Module) -> dict[str, str]:
    """The computation that each instruction is in."""
    return {
        name: computation
        for computation, instructions in module.computations.items()
        for name in instructions
    }
