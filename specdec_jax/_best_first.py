"""The tree of the likeliest partial paths where each depth has one law, whatever the
path (DDTree, arXiv 2604.12989).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax import _sharding


@dataclasses.dataclass(frozen=True)
class MarginalTree:
    """The likeliest nodes under the product of the laws of each depth.

    Args:
        num_nodes: the root included.
    """

    num_nodes: int = 32

    def __post_init__(self):
        if self.num_nodes < 2:
            raise ValueError(f"{self} has no node besides the root: 2 at least")


def best_first(
    log_q: Float[Array, "B K V"], num_nodes: int
) -> tuple[Int[Array, "B N"], Int[Array, "B N"], Bool[Array, "B N"]]:
    """The best tree under the product of the laws, its nodes in the order of their
    paths' probabilities, so that any prefix of them is the best tree of its size.

    A node taken makes two others candidates: its parent's next likely child, and its
    own likeliest child.

    Args:
        log_q: of the tokens of each depth, from 1 on; -inf is no proposal.
        num_nodes: the root included.

    Returns:
        Tokens (the root's is 0), parents, and which nodes are proposals.
    """
    batch, deepest, _ = log_q.shape
    ranks = min(num_nodes - 1, log_q.shape[-1])
    gains, tokens = _sharding.top_k(log_q, ranks, axis="vocab")
    rows = jnp.arange(batch, dtype=jnp.int32)

    def gain(depth: Int[Array, " B"], rank: Int[Array, " B"]) -> Float[Array, " B"]:
        """Of a child of that rank at a depth from 0; -inf where there is none."""
        is_one = (depth < deepest) & (rank < ranks)
        found = gains[
            rows, jnp.minimum(depth, deepest - 1), jnp.minimum(rank, ranks - 1)
        ]
        return jnp.where(is_one, found, -jnp.inf)

    # Slot i holds the candidate that node i's parent made a child of last; slot 0 the
    # root's first. Each is known by its parent, its rank, and what its parent has.
    shape = (batch, num_nodes)
    zeros = jnp.zeros(shape, jnp.int32)
    first = zeros[:, 0]
    reached = jnp.full(shape, -jnp.inf, jnp.float32).at[:, 0].set(gain(first, first))
    above = jnp.zeros(shape, jnp.float32)

    def take(i, carry):
        reached, above, depth, rank, parent, tree = carry
        best = reached.argmax(-1).astype(jnp.int32)
        score, before = reached[rows, best], above[rows, best]
        at, which, elder = depth[rows, best], rank[rows, best], parent[rows, best]
        is_valid = score > -jnp.inf
        found = tokens[rows, jnp.minimum(at, deepest - 1), which]
        tree = tuple(
            kept.at[:, i].set(new)
            for kept, new in zip(
                tree,
                (
                    jnp.where(is_valid, found, 0),
                    jnp.where(is_valid, elder, 0),
                    is_valid,
                ),
                strict=True,
            )
        )
        # The sibling takes the place of what was taken, the child a place of its own.
        reached = reached.at[rows, best].set(before + gain(at, which + 1))
        rank = rank.at[rows, best].set(jnp.minimum(which + 1, ranks - 1))
        child = jnp.where(is_valid, score + gain(at + 1, first), -jnp.inf)
        reached = reached.at[:, i].set(child)
        above = above.at[:, i].set(jnp.where(is_valid, score, 0.0))
        depth = depth.at[:, i].set(at + 1)
        rank = rank.at[:, i].set(0)
        parent = parent.at[:, i].set(i)
        return reached, above, depth, rank, parent, tree

    tree = (zeros, zeros - 1, jnp.ones(shape, jnp.bool_))
    start = (reached, above, zeros, zeros, zeros, tree)
    tree = jax.lax.fori_loop(1, num_nodes, take, start)[-1]
    return tree
