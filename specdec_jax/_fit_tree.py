"""The static tree that accepts most, for acceptance rates that were measured (Sequoia,
Chen et al. 2024, arXiv 2402.12374, §4.1).
"""

import functools

import numpy as np
from jaxtyping import Float

from specdec_jax._grow import StaticTree

RANKS = 10  # a StaticTree writes each rank as one digit


def fit_tree(
    acceptance: Float[np.ndarray, "depth rank"], *, num_nodes: int
) -> StaticTree:
    """Of all trees of so many nodes, one that accepts the most tokens a step.

    A node is reached with the product of the rates along its path, and a tree accepts
    the sum of that over its nodes. Were no rate above that of an elder sibling, taking
    the best node that is left until there are enough would do; but measured rates are
    not always in order, and a node needs its elder siblings. So this is the dynamic
    programme, which is exact for any table: how many of the nodes each child takes for
    itself and what is below it.

    Args:
        acceptance: of each depth (the root's children first) and rank, how often the
            child of that rank is accepted, given that its parent was: see
            `measure_acceptance`. Fewer depths or ranks make a tree of fewer.
        num_nodes: the root included.

    Raises:
        ValueError: for more than ten ranks, for rates that cannot be, and for more
            nodes than there are paths.
    """
    rates = np.asarray(acceptance, np.float64)
    if rates.ndim != 2 or not 1 <= rates.shape[1] <= RANKS:
        raise ValueError(
            f"acceptance is a table of depths and at most {RANKS} ranks, not of shape "
            f"{rates.shape}"
        )
    depths, ranks = rates.shape
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError("the rates are probabilities: between 0 and 1")
    most = sum(ranks**depth for depth in range(depths + 1))
    if not 2 <= num_nodes <= most:
        raise ValueError(f"num_nodes must be 2 … {most}, not {num_nodes}")

    @functools.cache
    def best(depth: int, rank: int, count: int) -> tuple[float, tuple[str, ...]]:
        """What `count` nodes accept as the children from `rank` on of one node and all
        that is below them, and their paths from that node.
        """
        if count == 0:
            return 0.0, ()
        if depth == depths or rank == ranks:
            return -np.inf, ()
        options = []
        for own in range(1, count + 1):
            below, paths = best(depth + 1, 0, own - 1)
            rest, others = best(depth, rank + 1, count - own)
            value = rates[depth, rank] * (1 + below) + rest if below >= 0 else below
            options.append((value, own, paths, others))
        value, _, paths, others = max(options, key=lambda option: option[0])
        name = str(rank)
        return value, (name, *(name + path for path in paths), *others)

    _, paths = best(0, 0, num_nodes - 1)
    return StaticTree(" ".join(sorted(paths, key=lambda path: (len(path), path))))
