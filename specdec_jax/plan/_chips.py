"""Chips, their published rates, and the slices that they come in."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Chip:
    """What its maker publishes of a chip: bfloat16 operations a second, bytes a second
    to and from HBM, bytes of HBM, and of VMEM (as in jax's own `tpu_info`, of all
    cores); and the slices that it comes in.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    vmem: float
    slices: tuple[str, ...]

    def seconds(self, flops: float, bytes: float) -> float:
        """The roofline: the longer of arithmetic and traffic, each at its full rate."""
        return max(flops / self.flops, bytes / self.bandwidth)


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_DEEP = (
    "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8",
)  # fmt: skip
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", 197e12, 819e9, 16e9, 2**27, _FLAT),
        Chip("v5p", 459e12, 2765e9, 95e9, 2**27, _DEEP),
        Chip("v6e", 918e12, 1640e9, 32e9, 2**27, _FLAT),
    )
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a pod: chips of one kind in a grid."""

    chip: Chip
    grid: str

    @property
    def name(self) -> str:
        """As in `v5e:2x4`."""
        return f"{self.chip.name}:{self.grid}"

    @property
    def chips(self) -> int:
        """How many."""
        return math.prod(map(int, self.grid.split("x")))

    def mesh(self, axes: dict[str, int]) -> Mesh:
        """A mesh of chips that need not be there, for abstract arrays.

        Raises:
            ImportError: libtpu, which has the compiler, is not installed.
        """
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # by other processes
        try:
            import libtpu  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "compiling for a TPU needs its compiler, the package libtpu: "
                "pip install 'specdec-jax[tpu]'"
            ) from error
        bounds = {} if self.chips > 1 else {"chips_per_host_bounds": [1, 1, 1]}
        with _quiet():
            devices = topologies.get_topology_desc(
                platform="tpu", topology_name=self.name, **bounds
            ).devices
            grid = np.array(devices).reshape(*axes.values())
            mesh = Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
            # The first program makes it look for a TPU, and complain.
            place = NamedSharding(mesh, PartitionSpec())
            nothing = jax.ShapeDtypeStruct((), np.float32, sharding=place)
            jax.jit(lambda x: x).lower(nothing).compile()
        return mesh


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what libtpu writes to standard error when it finds no TPU."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def topology(name: str) -> Topology:
    """The slice of that name, like `v5e:2x4`.

    Raises:
        ValueError: it is not known; the message says which are.
    """
    kind, _, grid = name.partition(":")
    if kind not in CHIPS:
        raise ValueError(
            f"no topology is called {name!r}: write a chip and a slice, as in v5e:2x4; "
            f"chips are {', '.join(CHIPS)}"
        )
    if grid not in CHIPS[kind].slices:
        raise ValueError(
            f"no topology is called {name!r}: {kind} comes in slices of "
            f"{', '.join(CHIPS[kind].slices)}"
        )
    return Topology(CHIPS[kind], grid)
