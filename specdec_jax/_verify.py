"""The three rules that turn a draft and the target's laws into accepted tokens; each
leaves the target's law exactly as it was.

They consume noise as arrays and say which law the next token comes from, so that a test
can enumerate these very functions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_jax import _tree
from specdec_jax._types import Draft, Kind, Verdict


def match(draft: Draft, tokens: Int[Array, "B N"], *, size: int) -> Verdict:
    """Accept the draft where it says what the target says.

    Args:
        draft: any tree, however it came about.
        tokens: the target's own token after each node, a function of (prefix, seed,
            position) alone.
        size: path slots, at least the draft's depth + 1.

    A node is accepted if it is valid, equals its parent's token and its parent is
    accepted; the deepest accepted node ends the path and its token comes next.
    """
    above = _tree.ancestors(draft.parents)
    wanted = jnp.take_along_axis(tokens, jnp.maximum(draft.parents, 0), axis=1)
    is_root = draft.parents < 0
    agrees = is_root | (draft.valid & (draft.tokens == wanted))
    is_accepted = jnp.all(agrees[:, None, :] | ~above, axis=-1)
    depth = above.sum(-1, dtype=jnp.int32) - 1
    last = jnp.where(is_accepted, depth, -1).argmax(-1).astype(jnp.int32)
    length = jnp.take_along_axis(depth, last[:, None], axis=1)[:, 0] + 1
    path = jnp.take_along_axis(
        _tree.paths(draft.parents, size=size), last[:, None, None], axis=1
    )[:, 0]
    return Verdict(
        jnp.maximum(path, 0),
        length,
        jnp.take_along_axis(tokens, last[:, None], axis=1)[:, 0],
    )


def rejection(
    draft: Draft,
    log_p: Float[Array, "B N V"],
    coins: Float[Array, "B N"],
    *,
    kind: Kind,
    size: int,
) -> tuple[Int[Array, "B P"], Int[Array, " B"], Float[Array, "B V"]]:
    """The strict accept/residual rule, on chains and trees (Leviathan et al. 2023, Chen
    et al. 2023; trees: SpecInfer, EAGLE).

    Children of a node are tried in order. Child j is accepted when its coin is below
    p_j(x) / q_j(x); else p_{j+1} = norm(max(p_j - q_j, 0)). q_j is the law of candidate
    j given everything revealed so far: i.i.d. → q; without replacement → q less the
    earlier siblings, renormalised; chosen → certainty.

    Args:
        draft: a tree whose shape depends on nothing drawn at a node or below it, unless
            its nodes are points.
        log_p: the target's normalised law after each node.
        coins: uniform in [0, 1), one per node, independent of the draft.
        kind: how siblings were drawn.
        size: path slots.

    Returns:
        The accepted path, its length, and the normalised log-law of the token that
        comes next: the residual where all children of the last node failed, that node's
        own law where it has none.
    """
    batch, num_nodes = draft.tokens.shape
    rows = jnp.arange(batch, dtype=jnp.int32)
    earlier = _earlier_siblings(draft)

    def try_node(i, carry):
        node, p, path, length = carry
        token = draft.tokens[:, i]
        is_tried = draft.valid[:, i] & (draft.parents[:, i] == node)

        def decide():
            q = _candidate_law(draft, i, earlier[:, i], kind, log_p.shape[-1])
            p_x, q_x = p[rows, token], q[rows, token]
            possible = is_tried & (
                q_x > 0
            )  # without replacement, a law may run out of tokens before its children do
            accepts = (
                possible
                & (p_x > 0)
                & (coins[:, i] < p_x / jnp.where(q_x > 0, q_x, 1.0))
            )
            residual = jnp.maximum(p - q, 0.0)
            mass = residual.sum(-1, keepdims=True)
            left = jnp.where(
                (possible & ~accepts)[:, None] & (mass > 0),
                residual / jnp.where(mass > 0, mass, 1.0),
                p,
            )
            slot = jnp.where(accepts, length, size)
            return (
                jnp.where(accepts, i, node),
                jnp.where(accepts[:, None], jnp.exp(log_p[:, i]), left),
                path.at[rows, slot].set(i, mode="drop"),
                length + accepts.astype(jnp.int32),
            )

        return jax.lax.cond(is_tried.any(), decide, lambda: carry)

    zeros = jnp.zeros(batch, jnp.int32)
    start = (
        zeros,
        jnp.exp(log_p[:, 0]),
        jnp.zeros((batch, size), jnp.int32),
        zeros + 1,
    )
    node, p, path, length = jax.lax.fori_loop(1, num_nodes, try_node, start)
    return path, length, jnp.log(p)


def block(
    draft: Draft,
    log_p: Float[Array, "B N V"],
    coins: Float[Array, "B N"],
    *,
    kind: Kind,
    size: int,
) -> tuple[Int[Array, "B P"], Int[Array, " B"], Float[Array, "B V"]]:
    """Block verification of a chain (Sun et al. 2024): accepts at least as many tokens
    as `rejection`, under the same law.

    With w_0 = 1 and w_i = min(w_{i-1} p(x_i) / q(x_i), 1), the longest prefix i whose
    coin is below h_i is accepted, where h_i = m_i / (m_i + 1 - w_i), m_i = Σ_x max(w_i
    p(x | x_1…x_i) - q(x | x_1…x_i), 0), and h = w at the end of the chain. Arguments
    and results as for `rejection`; `draft` must be a chain. Whether a node is there may
    depend on the tokens before it, never on its own or later ones.
    """
    batch, num_nodes = draft.tokens.shape
    rows = jnp.arange(batch, dtype=jnp.int32)
    nobody = jnp.zeros((batch, num_nodes), jnp.bool_)
    above = jnp.arange(-1, num_nodes - 1, dtype=jnp.int32)[None, :]
    valid = draft.valid & (draft.parents == above)  # a sibling would end the chain
    is_drafted = jnp.cumprod(valid.at[:, 0].set(True), axis=1, dtype=jnp.int32) > 0
    weight = jnp.ones(batch, jnp.float32)
    last, law = jnp.zeros(batch, jnp.int32), jnp.exp(log_p[:, 0])
    for i in range(num_nodes):
        p = jnp.exp(log_p[:, i])
        if i > 0:
            q_x = _candidate_law(draft, i, nobody, kind, log_p.shape[-1])[
                rows, draft.tokens[:, i]
            ]
            p_x = jnp.exp(log_p[:, i - 1])[rows, draft.tokens[:, i]]
            ratio = jnp.where(
                (p_x > 0) & (q_x > 0), p_x / jnp.where(q_x > 0, q_x, 1.0), 0.0
            )
            weight = jnp.minimum(weight * ratio, 1.0)
        left, is_end = p, jnp.ones(batch, jnp.bool_)
        threshold = weight
        if i + 1 < num_nodes:
            q = _candidate_law(draft, i + 1, nobody, kind, log_p.shape[-1])
            residual = jnp.maximum(weight[:, None] * p - q, 0.0)
            mass = residual.sum(-1)
            # Where no token can follow, or none is known to (NaN), nothing is left over
            # that could pay for a miss: the chain ends there.
            is_end = ~is_drafted[:, i + 1] | ~(p.sum(-1) > 0)
            whole = mass + 1.0 - weight
            threshold = jnp.where(
                is_end,
                weight,
                jnp.where(whole > 0, mass / jnp.where(whole > 0, whole, 1.0), 0.0),
            )
            residual = jnp.where(
                (mass > 0)[:, None],
                residual / jnp.where(mass > 0, mass, 1.0)[:, None],
                p,
            )
            left = jnp.where(is_end[:, None], p, residual)
        accepts = (is_drafted[:, i] & (coins[:, i] < threshold)) | (i == 0)
        last = jnp.where(accepts, i, last)
        law = jnp.where(accepts[:, None], left, law)
    path = jnp.arange(size, dtype=jnp.int32)[None, :]
    return jnp.where(path <= last[:, None], path, 0), last + 1, jnp.log(law)


def _candidate_law(
    draft: Draft,
    i: int | Int[Array, ""],
    earlier: Bool[Array, "B N"],
    kind: Kind,
    vocab_size: int,
) -> Float[Array, "B V"]:
    """What node i was drawn from, given that its earlier siblings are known."""
    if kind == "points" or draft.proposal is None:
        return jax.nn.one_hot(draft.tokens[:, i], vocab_size, dtype=jnp.float32)
    rows = jnp.arange(draft.tokens.shape[0], dtype=jnp.int32)
    q = jnp.exp(draft.proposal.log_q[rows, draft.proposal.row[:, i]])
    # A law of NaN is a law without a token; it must not reach the sums of `block`.
    q = jnp.where(jnp.isnan(q), 0.0, q)
    if kind == "without_replacement":
        q = q.at[rows[:, None], jnp.where(earlier, draft.tokens, vocab_size)].set(
            0.0, mode="drop"
        )
        mass = q.sum(-1, keepdims=True)
        q = jnp.where(mass > 0, q / jnp.where(mass > 0, mass, 1.0), 0.0)
    return q


def _earlier_siblings(draft: Draft) -> Bool[Array, "B N N"]:
    """Which valid nodes (columns) came before each node (rows) under its parent."""
    same = draft.parents[:, :, None] == draft.parents[:, None, :]
    nodes = jnp.arange(draft.parents.shape[1], dtype=jnp.int32)
    return same & draft.valid[:, None, :] & (nodes[None, :] < nodes[:, None])[None]
