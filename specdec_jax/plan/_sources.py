"""Which arguments of a program a value in it came from."""

import re
from collections.abc import Callable

from specdec_jax.plan._hlo import Instruction, Module

UNKNOWN = "unknown"
COMPUTED = "computed"
_HANDS_ON = (
    "bitcast", "convert", "copy", "copy-start", "copy-done", "opt-barrier", "reshape",
    "slice", "slice-start", "slice-done", "transpose",
)  # fmt: skip
_SUMS = ("all-reduce", "reduce-scatter")  # over chips
_Place = tuple[str, str, tuple[int, ...]]  # computation, value, where in nested tuples


class Sources:
    """Follows values back through loops, branches, tuples and what hands them on.

    A fusion hands on its operands of at least so many `elements`, unless it `computes`;
    without `elements` it makes something new.
    """

    def __init__(
        self,
        module: Module,
        *,
        elements: int | None = None,
        computes: Callable[[Instruction], bool] = lambda fusion: False,
    ):
        self._module, self._elements, self._computes = module, elements, computes
        self._callers: dict[str, list[tuple[str, str]]] = {}  # computation, operand
        for name, computation in module.computations.items():
            for x in computation.values():
                if x.operation == "while":
                    inputs = {x.called("body"): x.operands[0]}
                elif x.operation == "conditional":
                    inputs = dict(zip(x.branches, x.operands[1:], strict=True))
                else:
                    continue
                for callee, operand in inputs.items():
                    self._callers.setdefault(callee, []).append((name, operand))

    def of(self, computation: str, name: str) -> set[str]:
        """The arguments' names, as in `state.cache.keys[0]`; `COMPUTED` where a fusion
        or a sum over chips computed on the way, `UNKNOWN` where all else was made.
        """
        return self._of((computation, name, ()), set())

    def of_operands(self, computation: str, x: Instruction) -> set[str]:
        """Of the operands that are large enough."""
        return self._of_operands(computation, x, set())

    def _of(self, place: _Place, seen: set[_Place]) -> set[str]:
        if place in seen:  # a loop's own result
            return set()
        seen.add(place)
        computation, name, path = place
        x = self._module.computations[computation][name]
        match x.operation:
            case "parameter" if computation == self._module.entry:
                label = re.search(r'op_name="([^"]*)"', x.attributes)
                return {label[1] if label else UNKNOWN}
            case "parameter":
                callers = self._callers.get(computation, [])
                found = [self._of((*caller, path), seen) for caller in callers]
                return set().union(*found) if found else {UNKNOWN}
            case "get-tuple-element":
                index = re.search(r"index=(\d+)", x.attributes)
                assert index is not None, x
                inner = (int(index[1]), *path)
                return self._of((computation, x.operands[0], inner), seen)
            case "tuple" if path:
                part = x.operands[path[0]]
                return self._of((computation, part, path[1:]), seen)
            case "while":
                return self._of((computation, x.operands[0], path), seen)
            case operation if operation in _HANDS_ON:
                return self._of((computation, x.operands[0], ()), seen)
            case "fusion" if self._computes(x):
                return {COMPUTED}
            case operation if operation.startswith(_SUMS):
                return {COMPUTED}
            case "fusion" if self._elements is not None:
                return self._of_operands(computation, x, seen) or {UNKNOWN}
        return {UNKNOWN}

    def _of_operands(
        self, computation: str, x: Instruction, seen: set[_Place]
    ) -> set[str]:
        scope = self._module.computations[computation]
        return {
            name
            for operand in x.operands
            if any(b.elements >= (self._elements or 0) for b in scope[operand].buffers)
            for name in self._of((computation, operand, ()), seen)
        }
