"""The law of the next token, and the noise that turns laws into tokens.

One function makes the law, for plain decoding, verification, residual, bonus and the
drafter's proposals. Its order: bias, repetition, presence and frequency penalties,
banned and allowed ids, constraint, min_new_tokens, temperature, top-k, top-p, min-p.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from specdec_jax import _filters
from specdec_jax._types import Constraint, Options, Sampler

# What a key is for. `NOISE` is keyed by a token's own position, the others by the
# root's position at the start of the step.
NOISE, DRAFT, ACCEPT, NEXT = range(4)


def law(
    sampler: Sampler, logits: Float[Array, "B N V"], path_tokens: Int[Array, "B N P"]
) -> Float[Array, "B N V"]:
    """The log-probabilities that the token after each node is drawn from.

    Args:
        sampler: the rows' options and history, everything up to and including the root.
        logits: float32, of each node.
        path_tokens: the tokens from the root to each node, -1 beyond it.

    Returns:
        Float32, normalised. Temperature 0 is certainty of the argmax, ties to the
        lowest id. A row with no token left is all -inf, a row with NaN logits NaN.
    """
    scores = adjust(sampler, logits, path_tokens)
    best = scores.max(-1, keepdims=True)
    is_best = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1], dtype=jnp.bool_)
    certain = jnp.where(
        is_best, jnp.where(jnp.isneginf(best), best, best - best), -jnp.inf
    )  # best - best keeps a NaN

    def sampled() -> Float[Array, "B N V"]:
        return jnp.where(
            samples(sampler)[:, None, None],
            log_softmax(_filtered(sampler.options, scores)),
            certain,
        )

    return jax.lax.cond(samples(sampler).any(), sampled, lambda: certain)


def draw(
    sampler: Sampler, logits: Float[Array, "B N V"], path_tokens: Int[Array, "B N P"]
) -> tuple[Int[Array, "B N"], Float[Array, "B N"]]:
    """The token after each node under the noise of its own position, and its score.

    A function of (prefix, seed, position) alone: argmax(log p + Gumbel), the argmax
    itself at temperature 0 and where the sampler has no noise. Nodes of one depth share
    their noise. A score that is not finite says that there is no such token.
    """
    scores = adjust(sampler, logits, path_tokens)

    def best() -> Int[Array, "B N"]:
        return scores.argmax(-1).astype(jnp.int32)

    def perturbed() -> Int[Array, "B N"]:
        return perturb(sampler, scores, path_tokens).argmax(-1).astype(jnp.int32)

    tokens = best()
    if sampler.noise is not None:
        tokens = jax.lax.cond(samples(sampler).any(), perturbed, best)
    return tokens, jnp.take_along_axis(scores, tokens[:, :, None], axis=-1)[:, :, 0]


def perturb(
    sampler: Sampler, scores: Float[Array, "B N V"], path_tokens: Int[Array, "B N P"]
) -> Float[Array, "B N V"]:
    """Adjusted scores, tempered, filtered, and with the noise of the token after each
    node: its argmax is what `match` emits there.
    """
    assert sampler.noise is not None
    num_nodes, size = path_tokens.shape[1:]
    vocab_size = scores.shape[-1]
    depth = (path_tokens >= 0).sum(-1, dtype=jnp.int32) - 1
    first = sampler.base[:, None] + 1
    if num_nodes <= size:
        noise = position_noise(sampler.noise, first + depth, vocab_size=vocab_size)
    else:  # a tree: its nodes share the noise of their depth
        steps = jnp.arange(size, dtype=jnp.int32)[None, :]
        noise = position_noise(sampler.noise, first + steps, vocab_size=vocab_size)
        noise = jnp.take_along_axis(noise, depth[:, :, None], axis=1)
    return noisy(sampler, scores, noise)


def noisy(
    sampler: Sampler, scores: Float[Array, "B N V"], noise: Float[Array, "B M V"]
) -> Float[Array, "B N V"]:
    """The same with noise that is given, of each node (M is N) or of all together (M is
    1); both may be of some tokens only.
    """
    noise = jnp.where(samples(sampler)[:, None, None], noise, 0.0)
    return _filtered(sampler.options, scores) + noise


def sample(
    log_law: Float[Array, "B V"], noise: Float[Array, "B V"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """One token per row from a law and Gumbel noise, and its score; a score that is not
    finite says that there is no such token.
    """
    scores = log_law + noise
    tokens = scores.argmax(-1).astype(jnp.int32)
    return tokens, jnp.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]


def adjust(
    sampler: Sampler, logits: Float[Array, "B N V"], path_tokens: Int[Array, "B N P"]
) -> Float[Array, "B N V"]:
    """Everything of the law that comes before the temperature: the scores whose argmax
    temperature 0 emits.
    """
    options, scores = sampler.options, logits
    if options.bias is not None:
        scores = scores + options.bias[:, None, :]
    if options.penalties is not None and sampler.history is not None:
        scores = _penalised(sampler, scores, path_tokens[:, :, 1:])
    if options.constraint is not None:
        states = constraint_states(
            options.constraint, sampler.constraint, path_tokens[:, :, 1:]
        )
        scores = jnp.where(
            jax.vmap(jax.vmap(options.constraint.mask))(states), scores, -jnp.inf
        )
    if options.min_new_tokens is not None:
        depth = (path_tokens >= 0).sum(-1, dtype=jnp.int32) - 1
        too_early = sampler.generated[:, None] + depth < options.min_new_tokens[:, None]
        stops = jnp.where(
            too_early[:, :, None], options.stop_ids[:, None, :], scores.shape[-1]
        )
        scores = _at(scores, stops).set(-jnp.inf, mode="drop")
    return scores


def is_adjusted(options: Options) -> bool:
    """Whether `adjust` does anything, for any row."""
    return any(
        option is not None
        for option in (
            options.bias,
            options.penalties,
            options.constraint,
            options.min_new_tokens,
        )
    )


def constraint_states(
    constraint: Constraint, state: PyTree, path_tokens: Int[Array, "B N P"]
) -> PyTree:
    """The constraint's state after each node's path, from its state after the root."""
    num_nodes, size = path_tokens.shape[1:]
    states = jax.tree.map(
        lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], num_nodes, *x.shape[1:])),
        state,
    )
    for depth in range(size):
        tokens = path_tokens[:, :, depth]
        moved = jax.vmap(jax.vmap(constraint.advance))(states, jnp.maximum(tokens, 0))
        moves = tokens >= 0
        states = jax.tree.map(
            lambda new, old, moves=moves: jnp.where(
                moves.reshape(*moves.shape, *[1] * (new.ndim - 2)), new, old
            ),
            moved,
            states,
        )
    return states


def samples(sampler: Sampler) -> Bool[Array, " B"]:
    """Which rows sample at all."""
    return sampler.options.temperature > 0


def log_softmax(scores: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Log-probabilities; -inf throughout, not NaN, where no token is left."""
    best = scores.max(-1, keepdims=True)
    shifted = scores - jnp.where(jnp.isneginf(best), 0.0, best)
    return jnp.where(
        jnp.isneginf(best),
        -jnp.inf,
        shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True)),
    )


def position_noise(
    keys: Key[Array, " B"], positions: Int[Array, "B N"], *, vocab_size: int
) -> Float[Array, "B N V"]:
    """The Gumbel noise that goes with the tokens at these positions of each row."""

    def row(key: Key[Array, ""], position: Int[Array, ""]) -> Float[Array, " V"]:
        key = jax.random.fold_in(jax.random.fold_in(key, NOISE), position)
        return jax.random.gumbel(key, (vocab_size,), jnp.float32)

    return jax.vmap(jax.vmap(row, in_axes=(None, 0)))(keys, positions)


def step_noise(
    sampler: Sampler, role: int, slot: int | Int[Array, ""], *, vocab_size: int
) -> Float[Array, "B V"]:
    """Gumbel noise of one role and slot in the step that starts at the base.

    Zeros where no row samples.
    """

    def rows() -> Float[Array, "B V"]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, slot))(
            _step_keys(sampler, role)
        )
        return jax.vmap(lambda key: jax.random.gumbel(key, (vocab_size,), jnp.float32))(
            keys
        )

    empty = jnp.zeros((sampler.base.shape[0], vocab_size), jnp.float32)
    return jax.lax.cond(samples(sampler).any(), rows, lambda: empty)


def accept_coins(sampler: Sampler, *, num_nodes: int) -> Float[Array, "B N"]:
    """Uniform in [0, 1), one per node of the draft that starts at the base."""
    return jax.vmap(lambda key: jax.random.uniform(key, (num_nodes,), jnp.float32))(
        _step_keys(sampler, ACCEPT)
    )


def _step_keys(sampler: Sampler, role: int) -> Key[Array, " B"]:
    """Never repeated: every step moves the base on."""
    return jax.vmap(
        lambda key, base: jax.random.fold_in(jax.random.fold_in(key, role), base)
    )(sampler.keys, sampler.base)


def _filtered(options: Options, scores: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
    """Scores below the best, tempered and filtered; a row at temperature 0 keeps its
    scale, and of its tokens at least the best.
    """
    temperature = jnp.where(options.temperature > 0, options.temperature, 1.0)
    best = scores.max(-1, keepdims=True)
    # First, while they are exact: large scores, or small temperatures, leave no digits
    # for what tells tokens apart.
    scores = scores - jnp.where(jnp.isfinite(best), best, 0.0)
    scores = scores / temperature[:, None, None]
    if options.top_k is not None:
        scores = _filters.top_k(scores, options.top_k)
    if options.top_p is not None:
        scores = _filters.top_p(scores, options.top_p)
    if options.min_p is not None:
        scores = _filters.min_p(scores, options.min_p)
    return scores


def _penalised(
    sampler: Sampler, scores: Float[Array, "B N V"], path_tokens: Int[Array, "B N P"]
) -> Float[Array, "B N V"]:
    """Penalties with the history of each node: the row's counts for every token, then
    the few tokens of the node's own path anew.
    """
    penalties, history = sampler.options.penalties, sampler.history
    assert penalties is not None and history is not None

    def penalise(score: Array, counts: Array, seen: Array) -> Array:
        repetition, presence, frequency = (x.reshape(-1, 1, 1) for x in penalties)
        repeated = jnp.where(score > 0, score / repetition, score * repetition)
        said = counts.astype(jnp.float32)
        return (
            jnp.where(seen, repeated, score)
            - presence * jnp.minimum(said, 1.0)
            - frequency * said
        )

    row_counts = history.counts[:, None, :]
    penalised = penalise(
        scores, row_counts, history.prompted[:, None, :] | (row_counts > 0)
    )
    if path_tokens.shape[-1] == 0:
        return penalised
    on_path = path_tokens >= 0
    ids = jnp.where(on_path, path_tokens, 0)
    again = (path_tokens[:, :, :, None] == path_tokens[:, :, None, :]) & on_path[
        :, :, None, :
    ]
    counts = jnp.take_along_axis(history.counts[:, None, :], ids, axis=2) + again.sum(
        -1, dtype=jnp.int32
    )
    raw = jnp.take_along_axis(scores, ids, axis=2)
    anew = penalise(raw, counts, on_path)
    return _at(penalised, jnp.where(on_path, path_tokens, scores.shape[-1])).set(
        anew, mode="drop"
    )


def _at(scores: Float[Array, "B N V"], ids: Int[Array, "B N E"]):
    rows = jnp.arange(scores.shape[0], dtype=jnp.int32)[:, None, None]
    nodes = jnp.arange(scores.shape[1], dtype=jnp.int32)[None, :, None]
    return scores.at[rows, nodes, ids]
