"""A generation compiled for chips that need not be there, and what its step costs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from specdec_jax._compile import compile
from specdec_jax._door import check_max_length
from specdec_jax._schedule_types import Schedule
from specdec_jax._sharding import param_shardings
from specdec_jax._types import Drafter, Params
from specdec_jax.plan._chips import Chip, Topology
from specdec_jax.plan._copies import cache_copies
from specdec_jax.plan._fit import check_memory, check_mesh
from specdec_jax.plan._hlo import Module, decoding_loop, parse
from specdec_jax.plan._sizes import (
    Sizes,
    abstract_head,
    abstract_params,
    sizes,
    step_bytes,
)
from specdec_jax.plan._traffic import (
    Collective,
    Traffic,
    choice,
    collectives,
    executed,
    step_flops,
    step_traffic,
)
from specdec_jax.targets import ModuleTarget


@dataclasses.dataclass(frozen=True)
class Step:
    """What was compiled, and a step of it, on one chip; in bytes where nothing else is
    said.

    Attributes:
        drafter: what proposes.
        nodes: tokens that a row verifies at once, at most.
        drafter_weights: of what a chip holds of the drafter's.
        drafter_cache: keys and values of the drafter's layers.
        compile_seconds: lowering and compiling.
        arguments: weights, cache and the little else that goes in.
        aliased: of these, what is reused for results: all of both models' cache, or it
            would be copied.
        temporary: what is needed besides.
        flops: arithmetic of a step's products.
        traffic: of a step, from and to HBM; see `plan._traffic`.
        ideal: weights and allocated cache once; see `plan.step_bytes`.
        ideal_half: the same with a cache whose reading stops at half of its slots.
        collectives: what chips exchange in a step, by kind.
        cache_copies: instructions that move a layer of the cache, or as much; see
            `plan._copies`.
        cache_copies_in_step: of these, how many a step does; others come once a call.
        weight_copies: the same of weights.
        written_back: commits that the compiler stages in VMEM.
        seconds: of a step at full rates, without what chips exchange: no step is
            quicker.
        widths: tokens that a schedule may read of each row instead, and the seconds of
            a step that drafts and then does.
    """

    drafter: str
    nodes: int
    drafter_weights: int
    drafter_cache: int
    compile_seconds: float
    arguments: int
    aliased: int
    temporary: int
    flops: int
    traffic: Traffic
    ideal: float
    ideal_half: float
    collectives: dict[str, Collective]
    cache_copies: int
    cache_copies_in_step: int
    weight_copies: int
    written_back: int
    seconds: float
    widths: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def excess(self) -> float:
        """Bytes moved, over the ideal."""
        return self.traffic.total / self.ideal

    def numbers(self) -> dict[str, Any]:
        """All of it, for JSON."""
        exchanged = {kind: x._asdict() for kind, x in self.collectives.items()}
        return dataclasses.asdict(self) | {
            "traffic": self.traffic._asdict() | {"total": self.traffic.total},
            "collectives": exchanged,
            "excess": self.excess,
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """A model on a slice of a pod, and a step with each of some drafters."""

    model: str
    topology: Topology
    mesh: dict[str, int]
    batch: int
    slots: int
    sizes: Sizes
    steps: tuple[Step, ...]

    def numbers(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "model": self.model,
            "topology": self.topology.name,
            "mesh": self.mesh,
            "batch": self.batch,
            "slots": self.slots,
            "sizes": dataclasses.asdict(self.sizes),
            "steps": [step.numbers() for step in self.steps],
        }


def speed_up(step: Step, plain: Step, tau: float) -> float:
    """Over plain decoding, of a step that emits `tau` tokens, by the roofline."""
    return tau * plain.seconds / step.seconds


def plan(
    model: str,
    target: ModuleTarget,
    drafters: Sequence[Drafter],
    topology: Topology,
    mesh: Mapping[str, int],
    *,
    batch: int,
    slots: int,
    schedule: Schedule | None = None,
) -> Plan:
    """Compile a whole generation with each drafter by the TPU's own compiler; nothing
    is allocated or run. A schedule is the first drafter's.

    Raises:
        ValueError: mesh, slice, batch and model do not go together, or need more
            memory than there is; before compiling, but where only the compiler knows.
        ImportError: libtpu is not installed.
    """
    check_mesh(target, topology, mesh, batch=batch)
    check_max_length(target, slots)
    each = [
        check_memory(target, topology, mesh, batch=batch, slots=slots, drafter=drafter)
        for drafter in drafters
    ]
    grid = topology.mesh(dict(mesh))
    weights = _placed(abstract_params(target), grid)
    steps = [
        _step(
            target,
            Params(weights, _placed(abstract_head(target, drafter), grid)),
            drafter,
            topology.chip,
            size,
            batch=batch,
            slots=slots,
            rows=batch // mesh["data"],
            schedule=schedule if number == 0 else None,
        )
        for number, (drafter, size) in enumerate(zip(drafters, each, strict=True))
    ]
    alone = sizes(target, batch=batch, slots=slots, mesh=mesh)
    return Plan(model, topology, dict(mesh), batch, slots, alone, tuple(steps))


def _placed(params: Any, mesh: Mesh) -> Any:
    """Abstract parameters, spread over a mesh."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        params,
        param_shardings(params, mesh),
    )


def _step(
    target: ModuleTarget,
    params: Params,
    drafter: Drafter,
    chip: Chip,
    size: Sizes,
    *,
    batch: int,
    slots: int,
    rows: int,
    schedule: Schedule | None,
) -> Step:
    try:
        compiled = compile(
            target, params, drafter, batch=batch, max_length=slots, schedule=schedule
        )
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = str(error).splitlines()[0]
        raise ValueError(
            f"the compiler finds no room for {drafter}: {said}; take fewer slots, a "
            "smaller batch or more chips"
        ) from error
    module = parse(compiled.executable.as_text())
    body = decoding_loop(module)
    moved, products = step_traffic(module, body), step_flops(module, body)
    copies = cache_copies(module, size.layer)
    in_step = {x.name for x, _ in executed(module, body)}
    nodes = drafter.num_nodes if schedule is None else schedule.widths[-1]
    read = {"rows": rows, "nodes": nodes, "vmem": chip.vmem}
    return Step(
        drafter=type(drafter).__name__,
        nodes=nodes,
        drafter_weights=size.drafter_weights,
        drafter_cache=size.drafter_cache,
        compile_seconds=compiled.seconds,
        arguments=compiled.memory.arguments,
        aliased=compiled.memory.aliased,
        temporary=compiled.memory.temporary,
        flops=products,
        traffic=moved,
        ideal=step_bytes(target, size, **read),
        ideal_half=step_bytes(target, size, filled=0.5, **read),
        collectives=collectives(module, body),
        cache_copies=len(copies.moved),
        cache_copies_in_step=sum(x.name in in_step for x in copies.moved),
        weight_copies=len(copies.weights),
        written_back=len(copies.written_back),
        seconds=chip.seconds(products, moved.total),
        widths={}
        if schedule is None
        else _by_width(module, body, chip, schedule.widths),
    )


def _by_width(
    module: Module, body: str, chip: Chip, widths: tuple[int, ...]
) -> dict[int, float]:
    """Seconds of the step with each branch of its choice among widths."""
    whole = step_flops(module, body), step_traffic(module, body).total
    branches = choice(module, body, len(widths))
    each = [
        (step_flops(module, name), step_traffic(module, name).total)
        for name in branches
    ]
    taken = max(each)
    return {
        width: chip.seconds(whole[0] - taken[0] + one[0], whole[1] - taken[1] + one[1])
        for width, one in zip(widths, each, strict=True)
    }
