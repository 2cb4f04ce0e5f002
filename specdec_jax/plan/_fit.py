"""Does a model go with a slice of a pod? What is wrong is said before compiling."""

import math
from collections.abc import Mapping
from typing import Any

from specdec_jax._types import Drafter
from specdec_jax.plan._chips import Topology
from specdec_jax.plan._sizes import Sizes, sizes
from specdec_jax.targets import ModuleTarget

_SHARE = 0.9  # of a chip's memory; the rest is for what a step needs besides


def choose_mesh(
    target: ModuleTarget,
    topology: Topology,
    *,
    batch: int,
    slots: int,
    drafter: Drafter | None = None,
) -> dict[str, int]:
    """Axes "data" and "model" for all chips of a slice: the most chips on "model" over
    which every axis of the model divides; more only where the weights need them.
    """
    heads, kv_heads = target.config.num_heads, target.config.num_kv_heads
    fits = [
        n
        for n in _divisors(topology.chips)
        if n in _divisors(_common(target)) and batch % (topology.chips // n) == 0
    ]
    whole = [n for n in fits if kv_heads % n == 0]
    wider = [n for n in fits if n not in whole and heads % n == 0]
    for model in (*whole[-1:], *wider):
        mesh = {"data": topology.chips // model, "model": model}
        size = sizes(target, batch=batch, slots=slots, mesh=mesh, drafter=drafter)
        if size.held <= _SHARE * topology.chip.memory:
            return mesh
    model = (whole or wider or [1])[-1]
    return {"data": topology.chips // model, "model": model}


def check_mesh(
    target: ModuleTarget, topology: Topology, mesh: Mapping[str, int], *, batch: int
) -> None:
    """Raise `ValueError` where a mesh does not go with slice, batch and model."""
    if set(mesh) != {"data", "model"} or min(mesh.values()) < 1:
        raise ValueError(
            "a mesh has the axes data and model, as in data=1,model=8, not "
            f"{_say(mesh)}"
        )
    chips = mesh["data"] * mesh["model"]
    if chips != topology.chips:
        divided = [
            f"data={topology.chips // n},model={n}"
            for n in _divisors(math.gcd(_common(target), topology.chips))
            if batch % (topology.chips // n) == 0
        ]
        would = f": {' or '.join(divided[::-1])} would do" if divided else ""
        raise ValueError(
            f"{_say(mesh)} is a mesh of {chips} chips, but {topology.name} has "
            f"{topology.chips}{would}"
        )
    if batch % mesh["data"]:
        raise ValueError(
            f"the axis data={mesh['data']} does not divide a batch of {batch}: take a "
            f"batch of {-(-batch // mesh['data']) * mesh['data']}, or another data"
        )
    if _common(target) % mesh["model"]:
        config = target.config
        width = config.mlp_width if config.experts is None else config.experts.width
        raise ValueError(
            f"the axis model={mesh['model']} does not divide {config.num_heads} query "
            f"heads, {width} of the MLP and {target.vocab_size} tokens of the "
            f"vocabulary: model may be {_listed(_divisors(_common(target)))}"
        )


def check_memory(
    target: ModuleTarget,
    topology: Topology,
    mesh: Mapping[str, int],
    *,
    batch: int,
    slots: int,
    drafter: Drafter | None = None,
) -> Sizes:
    """Sizes on a chip; `ValueError` where its memory cannot hold them, with what it
    could hold.
    """
    size = sizes(target, batch=batch, slots=slots, mesh=mesh, drafter=drafter)
    memory = topology.chip.memory
    if size.held <= memory:
        return size
    room = memory - size.all_weights
    per_slot = size.all_cache / slots
    advice = []
    if room >= per_slot:
        advice.append(f"{int(room / per_slot)} slots")
        rows = int(room / (size.all_cache / (batch // mesh["data"]))) * mesh["data"]
        if 0 < rows < batch:
            advice.append(f"a batch of {rows}")
    held = {"batch": batch, "slots": slots, "drafter": drafter}
    if larger := _smallest(target, topology, held):
        advice.append(larger)
    would = f": {' or '.join(advice)} would fit" if advice else ""
    raise ValueError(
        f"a chip of {topology.name} has {memory / 1e9:.0f} GB, but with {_say(mesh)} "
        f"it is to hold {size.all_weights / 1e9:.1f} GB of weights and "
        f"{size.all_cache / 1e9:.1f} GB of cache{would}"
    )


def _smallest(
    target: ModuleTarget, topology: Topology, held: dict[str, Any]
) -> str | None:
    """The smallest slice of such chips that holds models and their cache."""
    for grid in topology.chip.slices:
        larger = Topology(topology.chip, grid)
        mesh = choose_mesh(target, larger, **held)
        size = sizes(target, mesh=mesh, **held)
        if (
            held["batch"] % mesh["data"] == 0
            and size.held <= _SHARE * topology.chip.memory
        ):
            return f"{larger.name} with {_say(mesh)}"
    return None


def _common(target: ModuleTarget) -> int:
    """What "model" must divide."""
    config = target.config
    width = config.mlp_width if config.experts is None else config.experts.width
    return math.gcd(config.num_heads, width, target.vocab_size)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _say(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.items())
