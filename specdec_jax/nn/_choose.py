"""One token of a draft that is made left to right."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_jax import _sampling, _tree
from specdec_jax._types import Draft, Kind, Proposal, Sampler


def choose(
    sampler: Sampler,
    kind: Kind,
    logits: Float[Array, "B 1 V"],
    path: Int[Array, "B 1 P"],
    slot: Int[Array, ""],
) -> tuple[Int[Array, " B"], Float[Array, "B V"] | None]:
    """The token after a path, and the law that it was drawn from, if it was drawn: else
    it is the likeliest, under `match` with the target's own noise.

    Args:
        sampler: of the rows.
        kind: "points" or "iid".
        logits: of the token.
        path: the root and the drafts before it, -1 beyond.
        slot: which draft it is, from 0.
    """
    if kind == "points":
        return _sampling.draw(sampler, logits, path)[0][:, 0], None
    log_q = _sampling.law(sampler, logits, path)[:, 0]
    noise = _sampling.step_noise(
        sampler, _sampling.DRAFT, slot, vocab_size=log_q.shape[-1]
    )
    return _sampling.sample(log_q, noise)[0], log_q


def chain_of(
    tokens: Int[Array, "B N"],
    laws: Float[Array, "B R V"] | None,
    confidence: Float[Array, "B N"] | None = None,
) -> Draft:
    """The draft in which each token follows the one before, drawn from these laws.

    Args:
        tokens: the root first.
        laws: of each token but the root.
        confidence: of each; the root's says nothing.
    """
    batch, num_nodes = tokens.shape
    proposal = None
    if laws is not None:
        row = jnp.maximum(jnp.arange(-1, num_nodes - 1, dtype=jnp.int32), 0)
        proposal = Proposal(laws, jnp.broadcast_to(row, (batch, num_nodes)))
    valid = jnp.ones((batch, num_nodes), jnp.bool_)
    return Draft(tokens, _tree.chain(batch, num_nodes), valid, proposal, confidence)
