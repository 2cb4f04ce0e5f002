"""Compile a whole `generate` with the real TPU compiler; run by test_tpu.py.

Abstract parameters of a Llama-3.1-8B shape, sharded over eight chips that are not
there. Prints what the executable needs as JSON.
"""

import collections
import json
import re
import sys

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

import specdec_jax as sd
from specdec_jax import nn, targets
from specdec_jax._sharding import param_shardings

BATCH, SLOTS, NODES = 8, 4096, 16
INSTRUCTION = re.compile(
    r"\s*(?:ROOT )?(%\S+) = (\(?[a-z0-9]+\[.*?) ([a-z\-]+)\((%[\w.\-]+)?"
)
VMEM = "S(1)"


def written(text: str, elements: int) -> dict[str, list[str]]:
    """What the program writes to HBM with at least that many elements.

    By operation; a copy out of VMEM, where the compiler stages some commits, is
    "written back". Fusions write only their result, and nothing anew where it is one of
    their operands.
    """
    fused = set(re.findall(r"fusion\(.*?calls=(%[\w.\-]+)", text))
    shapes: dict[str, str] = {}
    found = collections.defaultdict(list)
    computation = ""
    for line in text.splitlines():
        header = re.match(r"(?:ENTRY )?(%[\w.\-]+) \(.*\{\s*$", line)
        if header:
            computation = header.group(1)
        match = INSTRUCTION.match(line)
        if not match:
            continue
        name, shape, operation, operand = match.groups()
        shapes[name] = shape
        is_in_place = '"aliasing_operands":{"lists":[{' in line and operation != "copy"
        if computation in fused or is_in_place or VMEM in shape:
            continue
        sizes = [s.split(",") for s in re.findall(r"\[([0-9,]*)\]", shape)]
        if max(np.prod([int(n or 1) for n in size]) for size in sizes) >= elements:
            is_staged = operation == "copy-done" or VMEM in shapes.get(operand, "")
            is_copy = operation in ("copy", "copy-done")
            found["written back" if is_copy and is_staged else operation].append(line)
    return found


def main(layers: int) -> None:
    config = nn.DecoderConfig(
        vocab_size=128256,
        width=4096,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=8,
        head_width=128,
        mlp_width=14336,
        max_length=131072,
        rope=nn.RoPE(500000.0),
        tied=False,
        dtype="bfloat16",
    )
    target = targets.ModuleTarget(nn.Decoder, config)
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
    devices = np.array(topology.devices).reshape(1, 8)
    mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    weights = jax.eval_shape(target.init_params, jax.random.key(0))
    weights = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        weights,
        param_shardings(weights, mesh),
    )
    compiled = sd.compile(
        target,
        sd.Params(weights),
        sd.NGram(num_nodes=NODES),
        batch=BATCH,
        max_length=SLOTS,
    )
    heads_per_chip = config.num_kv_heads // 8
    one = BATCH * heads_per_chip * SLOTS * config.head_width  # keys of a layer, a chip
    found = written(compiled.executable.as_text(), one)
    print(
        json.dumps(
            {
                "seconds": compiled.seconds,
                "arguments": compiled.memory.arguments,
                "aliased": compiled.memory.aliased,
                "temporary": compiled.memory.temporary,
                "cache": one * 2 * 2 * layers,
                "scores": BATCH * heads_per_chip * 4 * 128 * SLOTS * 4,
                **{name: found[name] for name in ("copy", "transpose", "fusion")},
                "written back": len(found["written back"]),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
