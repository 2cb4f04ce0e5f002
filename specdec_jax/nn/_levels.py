"""A draft of a feature drafter, level by level: rows over rows that are not kept."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec_jax import _grow, _sharding, _tree
from specdec_jax._grow import GrownTree, StaticTree
from specdec_jax._types import Cache, Draft, Proposal
from specdec_jax.nn._attention import attention

# (states, tokens from the root to each, children, slot) -> the children of each in
# order, what the path to each gains in log-probability, and the law they are drawn
# from, if they are.
Children = Callable[
    [Float[Array, "B W D"], Int[Array, "B W P"], int, int],
    tuple[Int[Array, "B W C"], Float[Array, "B W C"], Float[Array, "B W V"] | None],
]

Embed = Callable[[Int[Array, "B W"]], Float[Array, "B W D"]]


class FeatureState(NamedTuple):
    """Keys and values of genuine rows only (the target's own feature, and the token
    after it), and the head's output for the newest of them.
    """

    cache: Cache
    output: Float[Array, "B D"]


class Scratch(NamedTuple):
    """Keys and values of the drafted rows so far, of each layer, and how many positions
    after the cache they are.
    """

    keys: tuple[Float[Array, "B K M H"], ...]
    values: tuple[Float[Array, "B K M H"], ...]
    depths: Int[Array, "B M"]


def empty(cache: Cache) -> Scratch:
    keys = cache.keys[0]
    none = jnp.zeros((*keys.shape[:2], 0, keys.shape[3]), keys.dtype)
    depths = jnp.zeros((keys.shape[0], 0), jnp.int32)
    return Scratch((none,) * len(cache.keys), (none,) * len(cache.keys), depths)


def read(
    head: Any,
    embedded: Float[Array, "B W D"],
    hidden: Float[Array, "B W F"],
    cache: Cache,
    scratch: Scratch,
    depths: Int[Array, "B W"],
    mask: Bool[Array, "B W U"],
) -> tuple[Float[Array, "B W D"], Scratch]:
    """The head's output for some rows after the cache, and the scratch with them at its
    end; `mask` says which of the scratch each sees, itself included.
    """
    keys, values = list(scratch.keys), list(scratch.values)
    key_depths = jnp.concatenate([scratch.depths, depths], axis=1)

    def attend(
        layer: int,
        query: Array,
        key: Array,
        value: Array,
        /,
        *,
        window: int | None = None,
        scale: float | None = None,
    ) -> Array:
        for grown, new in ((keys, key), (values, value)):
            new = new.swapaxes(1, 2).astype(grown[layer].dtype)
            grown[layer] = jnp.concatenate([grown[layer], new], axis=2)
        return attention(
            query,
            cache.keys[layer],
            cache.values[layer],
            cache.length,
            keys[layer],
            values[layer],
            mask,
            depths,
            key_depths=key_depths,
            window=window,
            scale=scale,
        )

    positions = cache.length[:, None] + depths
    output = head(embedded, hidden, positions, attend)
    return output, Scratch(tuple(keys), tuple(values), key_depths)


def draft_static(
    tree: StaticTree,
    head: Any,
    draw: Children,
    embed: Embed,
    state: FeatureState,
    root: Int[Array, " B"],
) -> Draft:
    """Every node at its place, whatever the tokens are."""
    batch, num_nodes = root.shape[0], tree.num_nodes
    parents, ranks = np.array(tree.parents), _grow.rank_of(tree)
    ancestors = _static_paths(parents, tree.max_depth + 1)
    inner = [i for i in range(num_nodes) if i in parents]  # nodes with children
    tokens = jnp.zeros((batch, num_nodes), jnp.int32).at[:, 0].set(root)
    valid = jnp.ones((batch, num_nodes), jnp.bool_)
    output, scratch, laws = state.output[:, None], empty(state.cache), []
    row_of = {0: 0}  # of each node in the newest outputs
    scratched: list[int] = []
    for depth, nodes in enumerate(tree.levels[:-1]):
        level = [i for i in nodes if i in inner]
        if depth > 0:
            scratched += level
            mask = np.array([[j in ancestors[i] for j in scratched] for i in level])
            hidden = output[:, np.array([row_of[parents[i]] for i in level])]
            embedded = embed(tokens[:, np.array(level)])
            output, scratch = read(
                head,
                embedded,
                hidden,
                state.cache,
                scratch,
                jnp.full((batch, len(level)), depth - 1, jnp.int32),
                jnp.broadcast_to(jnp.asarray(mask), (batch, *mask.shape)),
            )
            row_of = {i: row for row, i in enumerate(level)}
        paths = jnp.broadcast_to(
            jnp.asarray(ancestors[level], jnp.int32),
            (batch, len(level), tree.max_depth + 1),
        )
        children = [i for i in tree.levels[depth + 1]]
        count = 1 + int(ranks[children].max())
        drawn, gains, law = draw(
            output, _tree.path_tokens(tokens, paths), count, inner.index(level[0])
        )
        laws += [] if law is None else [law]
        rows = np.array([row_of[parents[i]] for i in children])
        at = np.array(children)
        tokens = tokens.at[:, at].set(drawn[:, rows, ranks[at]])
        is_drawn = gains[:, rows, ranks[at]] > -jnp.inf
        valid = valid.at[:, at].set(is_drawn & valid[:, parents[at]])
    shape = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), (batch, num_nodes))
    if not laws:
        return Draft(tokens, shape, valid)
    row = np.array([0, *(inner.index(parents[i]) for i in range(1, num_nodes))])
    row = jnp.broadcast_to(jnp.asarray(row, jnp.int32), (batch, num_nodes))
    return Draft(tokens, shape, valid, Proposal(jnp.concatenate(laws, axis=1), row))


def _static_paths(parents: np.ndarray, size: int) -> np.ndarray:
    """The nodes from the root to each node, -1 beyond: "N P"."""
    paths = np.full((len(parents), size), -1)
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        paths[node, : len(path)] = path
    return paths


def draft_grown(
    tree: GrownTree,
    head: Any,
    draw: Children,
    embed: Embed,
    state: FeatureState,
    root: Int[Array, " B"],
) -> Draft:
    """Continue the likeliest nodes of each level; keep the likeliest of all."""
    batch, width = root.shape[0], tree.width
    path = jnp.full((batch, 1, tree.depth + 1), -1, jnp.int32).at[:, 0, 0].set(root)
    drawn, gains, _ = draw(state.output[:, None], path, width, 0)
    tokens, scores = drawn[:, 0], gains[:, 0]
    indices = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), tokens.shape)
    pool = _grow.Pool(tokens, scores, jnp.full_like(tokens, -1))
    hidden = jnp.repeat(state.output[:, None], width, axis=1)
    paths = jnp.repeat(path, width, axis=1).at[:, :, 1].set(tokens)
    scratch = empty(state.cache)
    seen = jnp.zeros((batch, width, 0), jnp.bool_)  # of the scratch, by each node
    itself = jnp.broadcast_to(jnp.eye(width, dtype=jnp.bool_), (batch, width, width))
    for depth in range(1, tree.depth):
        seen = jnp.concatenate([seen, itself], axis=2)
        output, scratch = read(
            head,
            embed(tokens),
            hidden,
            state.cache,
            scratch,
            jnp.full((batch, width), depth - 1, jnp.int32),
            seen,
        )
        drawn, gains, _ = draw(output, paths, width, 0)
        offset = pool.tokens.shape[1]
        children = drawn.reshape(batch, -1)
        reached = (scores[:, :, None] + gains).reshape(batch, -1)
        pool = _grow.extend(pool, children, reached, jnp.repeat(indices, width, axis=1))
        if depth + 1 == tree.depth:
            break
        ranked = jnp.where(jnp.isnan(reached), -jnp.inf, reached)
        scores, chosen = _sharding.top_k(ranked, width)
        parent = chosen // width
        tokens = jnp.take_along_axis(children, chosen, axis=1)
        indices = offset + chosen
        hidden = jnp.take_along_axis(output, parent[:, :, None], axis=1)
        seen = jnp.take_along_axis(seen, parent[:, :, None], axis=1)
        paths = jnp.take_along_axis(paths, parent[:, :, None], axis=1)
        paths = paths.at[:, :, depth + 1].set(tokens)
    chosen, parents, is_valid = _grow.best(pool, tree.num_nodes - 1)
    tokens = jnp.take_along_axis(pool.tokens, chosen, axis=1)
    first = jnp.zeros((batch, 1), jnp.int32)
    return Draft(
        jnp.concatenate([root[:, None], tokens], axis=1),
        jnp.concatenate([first - 1, parents], axis=1),
        jnp.concatenate([first == 0, is_valid], axis=1),
    )
