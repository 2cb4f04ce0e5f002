"""`specdec-jax compile`: what a model needs on a slice of a pod, and what it gains."""

import importlib.metadata
import json

import jax
from rich.table import Table
from rich.text import Text

import specdec_jax as sd
from specdec_jax import plan
from specdec_jax._types import Drafter
from specdec_jax.cli._arguments_measuring import Compile
from specdec_jax.cli._show import Screens, gigabytes, plain_table, versions
from specdec_jax.schedule import CostTable, EarlyStop, Schedule
from specdec_jax.targets import ModuleTarget, preset

_NODES = 16
_TREE = sd.GrownTree(num_nodes=60, depth=8, width=10)
_TAUS = (1.5, 2.0, 3.0, 4.0, 6.0)


def compile(command: Compile, screens: Screens) -> int:
    """Compile, and say what came of it; the exit status."""
    target, topology = preset(command.model), plan.topology(command.topology)
    drafters = _drafters(command, target)
    sizes = {"batch": command.batch, "slots": command.slots}
    if min(sizes.values()) < 1:
        raise ValueError("--batch and --slots must be at least 1")
    if any(tau < 1 for tau in command.tau):
        raise ValueError("--tau is at least 1: every verification emits a token")
    mesh = (
        plan.choose_mesh(target, topology, drafter=drafters[0], **sizes)
        if command.mesh is None
        else _mesh(command.mesh)
    )
    schedule = _schedule(command)
    jax.config.update("jax_enable_compilation_cache", False)  # it is to be timed
    with screens.err.status(f"Compiling {command.model} for {topology.name} …"):
        found = plan.plan(
            command.model, target, drafters, topology, mesh, schedule=schedule, **sizes
        )
    speculative, plain = found.steps[0], found.steps[-1]
    taus = command.tau or _TAUS
    speed_up = {tau: plan.speed_up(speculative, plain, tau) for tau in taus}
    if command.json:
        numbers = found.numbers() | {
            "speed_up": {f"{tau:g}": gain for tau, gain in speed_up.items()},
            "versions": versions() | {"libtpu": importlib.metadata.version("libtpu")},
        }
        screens.out.file.write(json.dumps(numbers) + "\n")
        return 0
    out = screens.out
    out.print(_heading(found))
    out.print(_table(found))
    for line in _remarks(found, target.config.num_kv_heads):
        out.print(line, style="dim")
    if speculative is not plain:
        said = "   ".join(f"τ {tau:g}: {gain:.2f}×" for tau, gain in speed_up.items())
        out.print(Text.assemble(("\nSpeed-up at most  ", "bold"), said))
        of = "both steps" if schedule is None else "both steps, the widest of widths"
        out.print(
            f"By the roofline of {of}. Exchanges between chips, which grow with the "
            "nodes, are left out.",
            style="dim",
        )
    return 0


def _drafters(command: Compile, target: ModuleTarget) -> list[Drafter]:
    """What is asked for, and plain decoding."""
    match command.drafter:
        case "eagle":
            return [plan.eagle(target, _tree(command, target)), sd.Plain()]
        case "eagle3":
            return [plan.eagle3(target, _tree(command, target)), sd.Plain()]
    for option, value in (("--depth", command.depth), ("--width", command.width)):
        if value is not None:
            raise ValueError(
                f"{option} is of the trees of eagle and eagle3: it does not go with "
                f"--drafter {command.drafter}"
            )
    if command.drafter == "dflash":
        tree = None if command.nodes is None else sd.MarginalTree(command.nodes)
        return [plan.dflash(target, tree), sd.Plain()]
    if command.drafter == "ngram":
        nodes = _NODES if command.nodes is None else command.nodes
        return [sd.NGram(num_nodes=nodes), sd.Plain()]
    if command.nodes is not None:
        raise ValueError(f"--nodes does not go with --drafter {command.drafter}")
    if command.drafter == "dspark":
        return [plan.dspark(target), sd.Plain()]
    return [sd.Plain()]


def _schedule(command: Compile) -> Schedule | None:
    """A choice among the widths that are asked for. What it weighs does not change what
    is compiled, so the seconds stand for none.
    """
    if not command.widths:
        return None
    if command.drafter != "dspark":
        raise ValueError(
            "--widths is for drafters that say how sure they are, like dspark: it does "
            f"not go with --drafter {command.drafter}"
        )
    if len(command.widths) == 1:
        raise ValueError("--widths are to choose from: name two at least")
    seconds = tuple(float(width) for width in command.widths)
    return EarlyStop(CostTable((command.batch,), command.widths, (seconds,), (0.0,)))


def _tree(command: Compile, target: ModuleTarget) -> sd.GrownTree:
    nodes = _TREE.num_nodes if command.nodes is None else command.nodes
    depth = _TREE.depth if command.depth is None else command.depth
    width = _TREE.width if command.width is None else command.width
    if min(depth, width) < 1:
        raise ValueError("--depth and --width must be at least 1")
    known = target.vocab_size
    if command.drafter == "eagle3":
        known = min(known, plan.HEAD_TOKENS)
    if width > known:
        raise ValueError(f"--width {width}: the head knows {known:,} tokens only")
    room = 1 + sd.GrownTree(2, depth, width).pool_size
    if not 2 <= nodes <= room:
        raise ValueError(
            f"--nodes {nodes}: a tree of --depth {depth} and --width {width} has 2 … "
            f"{room:,} nodes, its root included"
        )
    return sd.GrownTree(nodes, depth, width)


def _mesh(entry: str) -> dict[str, int]:
    try:
        sizes = dict(part.split("=") for part in entry.split(","))
        return {name: int(size) for name, size in sizes.items()}
    except ValueError:
        raise ValueError(
            f"--mesh takes data=N,model=M, like data=1,model=8, not {entry!r}"
        ) from None


def _heading(found: plan.Plan) -> Text:
    chip, mesh = found.topology.chip, found.mesh
    seconds = " + ".join(f"{step.compile_seconds:.1f}" for step in found.steps)
    return Text.assemble(
        (found.model, "bold"),
        f" on {found.topology.name}: data {mesh['data']} × model {mesh['model']}, "
        f"batch {found.batch}, {found.slots:,} slots\n",
        (
            f"compiled in {seconds} s by libtpu "
            f"{importlib.metadata.version('libtpu')}, jax {jax.__version__}; nothing "
            f"was run. Published of a {chip.name}: {chip.flops / 1e12:.0f} TFLOP/s, "
            f"{chip.bandwidth / 1e9:,.0f} GB/s, {chip.memory / 1e9:.0f} GB",
            "dim",
        ),
    )


def _table(found: plan.Plan) -> Table:
    steps = found.steps
    titles = [
        f"{step.drafter}, {step.nodes} nodes" if step.nodes > 1 else "plain"
        for step in steps
    ]
    table = plain_table("on each chip", *titles)
    for column in table.columns[1:]:
        column.justify = "right"

    def add(name: str, *values: str | Text) -> None:
        table.add_row(name, *values)

    size = found.sizes
    add("weights", *(gigabytes(size.weights) for _ in steps))
    add("cache", *(gigabytes(size.cache) for _ in steps))
    if any(step.drafter_weights for step in steps):
        add("drafter's weights", *(_or_none(step.drafter_weights) for step in steps))
        add("drafter's cache", *(_or_none(step.drafter_cache) for step in steps))
    add("arguments", *(gigabytes(step.arguments) for step in steps))
    add("  of them reused", *(gigabytes(step.aliased) for step in steps))
    add("temporary", *(gigabytes(step.temporary) for step in steps))
    table.add_section()
    add("a step's products", *(f"{step.flops / 1e9:,.2f} GFLOP" for step in steps))
    add("weights read", *(gigabytes(step.traffic.weights) for step in steps))
    add("cache read", *(gigabytes(step.traffic.cache) for step in steps))
    add("other read", *(gigabytes(step.traffic.other) for step in steps))
    add("written", *(gigabytes(step.traffic.written) for step in steps))
    add("ideal: weights, cache once", *(gigabytes(step.ideal) for step in steps))
    add("moved / ideal", *(f"{step.excess:.3f}" for step in steps))
    add("  if half of the slots", *(gigabytes(step.ideal_half) for step in steps))
    for kind in sorted({kind for step in steps for kind in step.collectives}):
        add(kind, *(_exchange(step, kind) for step in steps))
    add("copies of the cache", *(_copies(step) for step in steps))
    add("commits by way of VMEM", *(str(step.written_back) for step in steps))
    table.add_section()
    add("a step takes at least", *(f"{step.seconds * 1e3:.2f} ms" for step in steps))
    add("bound by", *(_bound(step, found.topology.chip) for step in steps))
    for width, seconds in steps[0].widths.items():
        others = [""] * (len(steps) - 1)
        add(f"  if {width} are read of each row", f"{seconds * 1e3:.2f} ms", *others)
    return table


def _exchange(step: plan.Step, kind: str) -> str:
    if kind not in step.collectives:
        return "none"
    times, size = step.collectives[kind]
    return f"{times} × {gigabytes(size / times)}"


def _or_none(size: int) -> str:
    return gigabytes(size) if size else "none"


def _copies(step: plan.Step) -> Text:
    if step.cache_copies == 0:
        return Text("none", "green")
    every = f"{step.cache_copies_in_step} a step"
    once = f"{step.cache_copies - step.cache_copies_in_step} a call"
    return Text(f"{every}, {once}", "red" if step.cache_copies_in_step else "yellow")


def _bound(step: plan.Step, chip: plan.Chip) -> str:
    is_memory = step.traffic.total / chip.bandwidth >= step.flops / chip.flops
    return "memory" if is_memory else "arithmetic"


def _remarks(found: plan.Plan, kv_heads: int) -> list[str]:
    remarks = []
    if found.sizes.copies > 1:
        remarks.append(
            f"{kv_heads} kv heads do not divide over model={found.mesh['model']}: each "
            f"of these {found.sizes.copies} chips holds all of its rows' cache."
        )
    lost = max(
        found.sizes.cache + step.drafter_cache - step.aliased for step in found.steps
    )
    if lost > 0:
        remarks.append(f"{gigabytes(lost)} of the cache are not reused.")
    if any(step.excess < 1 for step in found.steps):
        remarks.append(
            "Less than the ideal is moved where the compiler keeps a part of weights "
            "or cache in VMEM from step to step."
        )
    if any(step.cache_copies > step.cache_copies_in_step for step in found.steps):
        remarks.append(
            "Copies of a call put the cache into the loop's own layout and back; no "
            "step pays for them."
        )
    return remarks
