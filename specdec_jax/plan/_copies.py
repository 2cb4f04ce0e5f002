"""Does a program copy its cache? The proof is in what it writes to HBM."""

from typing import NamedTuple

from specdec_jax.plan._hlo import Instruction, Module
from specdec_jax.plan._sources import COMPUTED, Sources

_MAKES = ("copy", "copy-done", "transpose", "fusion")
_FLOATS = ("f32", "bf16", "f16")
_ARITHMETIC = {
    "convolution",
    "dot",
    "exponential",
    "float multiply",  # of whole numbers it may say where something is
    "reduce",
    "rng-bit-generator",
}


class Copies(NamedTuple):
    """Instructions, of all of a program, that write to HBM at least as many numbers as
    one layer's keys have on a chip, whatever their shape; not those which update in
    place.

    Attributes:
        moved: copies, transposes and fusions that only move numbers, and not those of
            weights alone: there should be none.
        weights: the same of weights alone, in a layout of the compiler's liking.
        written_back: copies from VMEM, where the compiler stages some commits: the
            cache goes back to its own place.
        computed: fusions with products, exponentials or sums inside, whatever only
            moves their results, and what reads nothing as large: scores, logits, states
            of a prompt.
    """

    moved: list[Instruction]
    weights: list[Instruction]
    written_back: list[Instruction]
    computed: list[Instruction]


def cache_copies(module: Module, elements: int) -> Copies:
    """Those of a program whose layers have keys of so many elements on a chip."""
    inside = module.fused()

    def computes(fusion: Instruction) -> bool:
        return bool(_operations(module, fusion) & _ARITHMETIC)

    sources = Sources(module, elements=elements, computes=computes)
    found = Copies([], [], [], [])
    for name, computation in module.computations.items():
        if name in inside:
            continue
        for instruction in computation.values():
            is_large = any(
                buffer.is_hbm and buffer.elements >= elements
                for buffer in instruction.buffers
            )
            if instruction.operation not in _MAKES or not is_large:
                continue
            if instruction.operation == "fusion":
                if _is_in_place(instruction):
                    continue
                if computes(instruction):
                    found.computed.append(instruction)
                    continue
            elif instruction.operation != "transpose" and _is_staged(
                computation, instruction
            ):
                found.written_back.append(instruction)
                continue
            names = sources.of_operands(name, instruction) - {COMPUTED}
            is_weight = all(x.startswith("params") for x in names)
            kind = found.weights if is_weight else found.moved
            (kind if names else found.computed).append(instruction)
    return found


def _is_in_place(fusion: Instruction) -> bool:
    return '"aliasing_operands":{"lists":[{' in fusion.attributes


def _is_staged(computation: dict[str, Instruction], copy: Instruction) -> bool:
    """Whether a copy comes out of VMEM as it was there, not in another layout."""
    source = computation[copy.operands[0]]
    if source.operation == "copy-start":
        source = computation[source.operands[0]]
    (result,) = copy.buffers
    return any(
        not buffer.is_hbm and buffer.layout == result.layout
        for buffer in source.buffers
    )


def _operations(module: Module, fusion: Instruction) -> set[str]:
    """What a fusion does, nested ones included; what makes floats also as "float …"."""
    found = set()
    for instruction in module.computations[fusion.called("calls")].values():
        found.add(instruction.operation)
        if instruction.shape.startswith(_FLOATS):
            found.add(f"float {instruction.operation}")
        if instruction.operation == "fusion":
            found |= _operations(module, instruction)
    return found
