"""Tree algebra on parent arrays: node = index, -1 = no parent, a parent comes before
its children.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_jax._types import Block, Draft, Proposal


def chain(batch: int, num_nodes: int) -> Int[Array, "B N"]:
    """The parents of a chain: every node is the only child of the one before."""
    return jnp.broadcast_to(
        jnp.arange(-1, num_nodes - 1, dtype=jnp.int32), (batch, num_nodes)
    )


def ancestors(parents: Int[Array, "B N"]) -> Bool[Array, "B N N"]:
    """Whether column m is row n itself or lies on the way from n to the root."""
    nodes = jnp.arange(parents.shape[1], dtype=jnp.int32)
    reached = (nodes[:, None] == nodes[None, :])[None] | (
        parents[:, :, None] == nodes[None, None, :]
    )
    for _ in range(
        (parents.shape[1] - 1).bit_length()
    ):  # each squaring doubles how far up a row sees
        reached = jnp.matmul(reached, reached, preferred_element_type=jnp.float32) > 0
    return reached


def depths(parents: Int[Array, "B N"]) -> Int[Array, "B N"]:
    """How many edges each node is from the root."""
    return ancestors(parents).sum(-1, dtype=jnp.int32) - 1


def paths(parents: Int[Array, "B N"], *, size: int) -> Int[Array, "B N P"]:
    """The nodes from the root to each node, one per depth below `size`; -1 beyond the
    node itself.
    """
    above = ancestors(parents)
    depth = above.sum(-1, dtype=jnp.int32) - 1
    at_depth = depth[:, :, None] == jnp.arange(size, dtype=jnp.int32)[None, None, :]
    on_path = above[:, :, :, None] & at_depth[:, None, :, :]
    nodes = jnp.arange(1, parents.shape[1] + 1, dtype=jnp.int32)[None, None, :, None]
    return jnp.where(on_path, nodes, 0).sum(2, dtype=jnp.int32) - 1


def path_tokens(
    tokens: Int[Array, "B N"], paths: Int[Array, "B W P"]
) -> Int[Array, "B W P"]:
    """The tokens along each path of nodes; -1 where `paths` is."""
    found = jnp.take_along_axis(tokens[:, None, :], jnp.maximum(paths, 0), axis=2)
    return jnp.where(paths >= 0, found, -1)


def causal_block(tokens: Int[Array, "B T"]) -> Block:
    """Consecutive tokens as a block: each sees those before it."""
    steps = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    mask = steps[:, None] >= steps[None, :]
    return Block(
        tokens,
        jnp.broadcast_to(steps, tokens.shape),
        jnp.broadcast_to(mask, (tokens.shape[0], *mask.shape)),
    )


def draft_block(draft: Draft) -> Block:
    """A draft as a block: each node sees its own path."""
    above = ancestors(draft.parents)
    return Block(draft.tokens, above.sum(-1, dtype=jnp.int32) - 1, above)


def root_alone(like: Any, root: Int[Array, " B"]) -> Draft:
    """A draft of the same arrays (or abstract arrays) in which nothing is proposed."""
    draft: Draft = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return draft._replace(
        tokens=draft.tokens.at[:, 0].set(root),
        parents=chain(*draft.parents.shape),
        valid=draft.valid.at[:, 0].set(True),
    )


def prefix(draft: Draft, width: int) -> Draft:
    """The first `width` nodes, a tree by themselves."""
    proposal = draft.proposal
    if proposal is not None:
        proposal = Proposal(proposal.log_q, proposal.row[:, :width])
    confidence = None if draft.confidence is None else draft.confidence[:, :width]
    return Draft(
        draft.tokens[:, :width],
        draft.parents[:, :width],
        draft.valid[:, :width],
        proposal,
        confidence,
    )
