"""Trees that a drafter grows level by level: of a fixed shape, or by what it thinks of
each path (EAGLE-2, Li et al. 2024, arXiv 2406.16858, §4).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec_jax import _sharding

# EAGLE's own 25 nodes: each a path of ranks, the r-th child of the r-th child …
EAGLE_TREE = (
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 "
    "0000 0001 0002 00000 00001"
)


@dataclasses.dataclass(frozen=True)
class StaticTree:
    """A tree of one shape, written as the paths of its nodes in words of ranks below
    ten.

    Raises:
        ValueError: a path without its parent, or without an earlier sibling.
    """

    paths: str = EAGLE_TREE

    def __post_init__(self):
        paths = self.paths.split()
        if not paths:
            raise ValueError("a tree needs a path at least")
        if len(set(paths)) != len(paths) or paths != sorted(
            paths, key=lambda x: (len(x), x)
        ):
            raise ValueError("the paths of a tree go level by level, in order of ranks")
        for path in paths:
            elder = path[:-1] + str(int(path[-1]) - 1)
            if path[:-1] and path[:-1] not in paths:
                raise ValueError(f"the tree has {path!r}, but not its parent")
            if path[-1] != "0" and elder not in paths:
                raise ValueError(f"the tree has {path!r}, but not {elder!r}")

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return 1 + len(self.paths.split())

    @property
    def max_depth(self) -> int:
        """Of the deepest node."""
        return max(map(len, self.paths.split()))

    @property
    def parents(self) -> tuple[int, ...]:
        """Of each node, -1 for the root."""
        nodes = ["", *self.paths.split()]
        return (-1, *(nodes.index(path[:-1]) for path in nodes[1:]))

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each depth, the root's first."""
        nodes = ["", *self.paths.split()]
        return tuple(
            tuple(i for i, path in enumerate(nodes) if len(path) == depth)
            for depth in range(self.max_depth + 1)
        )


@dataclasses.dataclass(frozen=True)
class GrownTree:
    """The likeliest paths of those that are looked at.

    Args:
        num_nodes: of the tree, the root included.
        depth: of its deepest node.
        width: nodes that are continued at each depth, and children that each then has.
    """

    num_nodes: int = 60
    depth: int = 6
    width: int = 10

    def __post_init__(self):
        pool = self.pool_size
        if self.depth < 1 or self.width < 1 or not 2 <= self.num_nodes <= pool + 1:
            raise ValueError(
                f"{self} looks at {pool} nodes: num_nodes must be 2 … {pool + 1}"
            )

    @property
    def max_depth(self) -> int:
        """Of the deepest node."""
        return self.depth

    @property
    def pool_size(self) -> int:
        """How many nodes are looked at, the root apart."""
        return self.width + (self.depth - 1) * self.width**2


class Pool(NamedTuple):
    """What has been looked at, level by level; M nodes so far."""

    tokens: Int[Array, "B M"]
    scores: Float[Array, "B M"]  # log-probability of the path; -inf is no proposal
    parents: Int[Array, "B M"]  # in the pool; -1 is the root


def extend(pool: Pool, tokens: Array, scores: Array, parents: Array) -> Pool:
    """The pool with the children of a level."""
    new = Pool(tokens, scores, parents)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), pool, new)


def best(
    pool: Pool, count: int
) -> tuple[Int[Array, "B N"], Int[Array, "B N"], Bool[Array, "B N"]]:
    """The likeliest `count` nodes: where they are in the pool, in its order, which node
    of the draft each has as its parent, and which are proposals.

    Ties go to the node that is earlier in the pool, so a parent is never worse than its
    child.
    """
    scores = jnp.where(jnp.isnan(pool.scores), -jnp.inf, pool.scores)
    _, chosen = _sharding.top_k(scores, count)
    chosen = jnp.sort(chosen, axis=-1)
    parents = jnp.take_along_axis(pool.parents, chosen, axis=1)
    is_parent = parents[:, :, None] == chosen[:, None, :]
    at = jnp.where(is_parent.any(-1), 1 + is_parent.argmax(-1).astype(jnp.int32), 0)
    is_reached = (parents < 0) | is_parent.any(-1)
    is_valid = jnp.take_along_axis(scores, chosen, axis=1) > -jnp.inf
    return chosen, at, is_valid & is_reached


def rank_of(tree: StaticTree) -> np.ndarray:
    """Which child of its parent each node is."""
    return np.array([0, *(int(path[-1]) for path in tree.paths.split())])
