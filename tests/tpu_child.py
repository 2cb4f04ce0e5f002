"""Compile for TPUs that are not there; run by tests in a process of its own.

Arguments: a preset or "tiny", topology, mesh axis "model", batch, slots, nodes, and for
a grown tree of EAGLE-3 its depth and width. Prints the plan's numbers as JSON, and the
bytes of a prompt's scores.
"""

import json
import sys

import specdec_jax as sd
from specdec_jax import nn, plan, targets

TINY = nn.DecoderConfig(
    vocab_size=512,
    width=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,  # more than one on a chip
    head_width=128,
    mlp_width=512,
    max_length=2048,
    tied=False,
    dtype="bfloat16",
)


TINY_HEAD = nn.Eagle3Config(
    width=256,
    num_heads=4,
    num_kv_heads=2,
    head_width=128,
    mlp_width=512,
    feature_width=3 * 256,
    draft_vocab_size=256,
    dtype="bfloat16",
)


def main(name: str, topology: str, *sizes: str) -> None:
    model, batch, slots, nodes, *tree = map(int, sizes)
    target = (
        targets.ModuleTarget(nn.Decoder, TINY)
        if name == "tiny"
        else targets.preset(name)
    )
    drafter = sd.NGram(num_nodes=nodes)
    if tree:
        grown = sd.GrownTree(nodes, *tree)
        drafter = (
            sd.Eagle3(TINY_HEAD, grown, taps=(-1, 0, 1))
            if name == "tiny"
            else plan.eagle3(target, grown)
        )
    there = plan.topology(topology)
    mesh = {"data": there.chips // model, "model": model}
    found = plan.plan(
        name,
        target,
        [drafter],
        there,
        mesh,
        batch=batch,
        slots=slots,
    )
    scores = plan.score_bytes(target, batch=batch, slots=slots, mesh=mesh)
    print(json.dumps(found.numbers() | {"scores": scores}))


if __name__ == "__main__":
    main(*sys.argv[1:])
