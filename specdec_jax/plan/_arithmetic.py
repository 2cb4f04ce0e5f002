"""How much arithmetic an XLA program's products are."""

import math
import re

import numpy as np

from specdec_jax.plan._hlo import Instruction, Module


def flops(module: Module, computation: str, instruction: Instruction) -> int:
    """Twice the multiplications of a product, or of all that a fusion holds; 0 of
    anything else.

    A TPU's compiler makes convolutions of products; where one stretches over a batch
    as if it were space, positions that meet only padding are not counted. Of a single
    row it makes sums instead, which are no products and not counted.
    """
    scope = module.computations[computation]
    match instruction.operation:
        case "fusion":
            inside = instruction.called("calls")
            return sum(
                flops(module, inside, x) for x in module.computations[inside].values()
            )
        case "dot":
            left = scope[instruction.operands[0]].buffers[0].dims
            listed = re.search(
                r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes
            )
            summed = [int(i) for i in listed[1].split(",") if i] if listed else []
            over = math.prod(left[i] for i in summed)
            return 2 * instruction.buffers[0].elements * over
        case "convolution":
            left, right = (scope[x].buffers[0].dims for x in instruction.operands)
            out = instruction.buffers[0].dims
            return _convolution(left, right, out, instruction.attributes)
    return 0


def _convolution(
    left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], attributes: str
) -> int:
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    assert labels is not None, attributes
    left_of, right_of, out_of = (
        dict(zip(names, sizes, strict=True))
        for names, sizes in zip(labels.groups(), (left, right, out), strict=True)
    )
    axes = sorted(name for name in out_of if name.isdigit())
    window = re.search(r"window=\{([^}]*)\}", attributes)
    entries = (
        dict(entry.split("=") for entry in window[1].split() if "=" in entry)
        if window
        else {}
    )

    def entry(key: str, default: str) -> list[str]:
        return entries[key].split("x") if key in entries else [default] * len(axes)

    pairs = 1
    for axis, size, stride, pad, spread, gap in zip(
        axes,
        entry("size", "1"),
        entry("stride", "1"),
        entry("pad", "0_0"),
        entry("lhs_dilate", "1"),
        entry("rhs_dilate", "1"),
        strict=True,
    ):
        if int(size) == 1:
            pairs *= out_of[axis]
            continue
        at = np.add.outer(
            np.arange(out_of[axis]) * int(stride) - int(pad.split("_")[0]),
            np.arange(int(size)) * int(gap),
        )
        is_there = (at >= 0) & (at <= (left_of[axis] - 1) * int(spread))
        pairs *= int((is_there & (at % int(spread) == 0)).sum())
    groups = re.search(r"batch_group_count=(\d+)", attributes)
    products = out_of["b"] * out_of["f"] * right_of["i"] * pairs
    return 2 * products // (int(groups[1]) if groups else 1)
