"""Drafters from folders, and the trees that they draft, in a word."""

import specdec_jax as sd

_TREES = "chain:DEPTH, static, or grown:NODES,DEPTH,WIDTH"


def read_tree(word: str) -> sd.StaticTree | sd.GrownTree:
    """The tree that a word means: `chain:5`, `static` (EAGLE's own 25 nodes), or
    `grown:60,6,10` (nodes with the root, depth, width).

    Raises:
        ValueError: it means none.
    """
    kind, _, sizes = word.partition(":")
    try:
        numbers = [int(size) for size in sizes.split(",")] if sizes else []
    except ValueError:
        numbers = None
    match kind, numbers:
        case "static", []:
            return sd.StaticTree()
        case "chain", [depth]:
            return sd.GrownTree(num_nodes=depth + 1, depth=depth, width=1)
        case "grown", [nodes, depth, width]:
            return sd.GrownTree(num_nodes=nodes, depth=depth, width=width)
    raise ValueError(f"there is no tree {word!r}: write {_TREES}")
