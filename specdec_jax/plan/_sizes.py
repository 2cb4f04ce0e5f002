"""How large a model and its cache are, whole and on each chip of a mesh."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding

from specdec_jax._door import choose_chunk
from specdec_jax._sharding import param_shardings, row_shardings
from specdec_jax._types import Drafter, Target
from specdec_jax.drafters import Eagle, Eagle3
from specdec_jax.nn import BlockDrafter
from specdec_jax.nn._features import FeatureDrafter
from specdec_jax.targets import ModuleTarget

ONE_CHIP = {"data": 1, "model": 1}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes on one chip, but for `parameters`, which are counted, and of all chips.

    Attributes:
        parameters: numbers in the weights.
        weights: of what each chip holds of them.
        embedding: of the weights, a table of which a step reads a row per token only.
        experts: of the weights, what a step reads in part.
        cache: keys and values of all layers.
        layer: keys of one layer, in elements; the drafter's, if that has fewer.
        copies: how many chips of "model" hold the same part of the cache.
        drafter_weights: of what each chip holds of the drafter's.
        drafter_cache: keys and values of the drafter's layers.
        draft_output: of the target's weights, what a drafter without an output layer
            of its own reads too.
        draft_levels: how often a step's drafting uses its weights and its cache.
        draft_again: of weights, what it uses so often.
    """

    parameters: int
    weights: int
    embedding: int
    experts: int
    cache: int
    layer: int
    copies: int
    drafter_weights: int = 0
    drafter_cache: int = 0
    draft_output: int = 0
    draft_levels: int = 0
    draft_again: int = 0

    @property
    def all_weights(self) -> int:
        """Of both models."""
        return self.weights + self.drafter_weights

    @property
    def all_cache(self) -> int:
        """Of both models."""
        return self.cache + self.drafter_cache

    @property
    def held(self) -> int:
        """What a chip holds throughout."""
        return self.all_weights + self.all_cache


def sizes(
    target: ModuleTarget,
    *,
    batch: int,
    slots: int,
    mesh: Mapping[str, int] | None = None,
    drafter: Drafter | None = None,
) -> Sizes:
    """Of a target with a cache, and of a drafter that has a head, spread over a mesh as
    `shard` does; nothing is allocated.
    """
    axes = ONE_CHIP if mesh is None else mesh
    parameters = weights = embedding = experts = output = 0
    for name, leaf, size in _held(abstract_params(target), axes):
        parameters += leaf.size
        weights += size
        if name == "embedding" and not target.config.tied:
            embedding += size
        if re.search(r"(^|\.)expert_(gate|up|down)$", name):
            experts += size
        if name == ("embedding" if target.config.tied else "head.weight"):
            output = size
    cache = jax.eval_shape(lambda: target.init_cache(batch, slots))
    keys, layer, copies = _spread(cache, axes)
    found = Sizes(
        parameters=parameters,
        weights=weights,
        embedding=embedding,
        experts=experts,
        cache=2 * target.num_layers * layer,
        layer=layer // keys.dtype.itemsize,
        copies=copies,
    )
    if not isinstance(drafter, FeatureDrafter | BlockDrafter):
        return found
    is_block = isinstance(drafter, BlockDrafter)  # one pass, whatever its depth
    state = jax.eval_shape(lambda: drafter.init(batch, slots))
    head_cache = state if is_block else state.cache
    keys, layer, _ = _spread(head_cache, axes)
    has_own = drafter.config.own_head if is_block else not isinstance(drafter, Eagle)
    output = 0 if has_own else output
    head = {name: n for name, _, n in _held(abstract_head(target, drafter), axes)}
    once = ("tokens", "fusion.weight") if isinstance(drafter, Eagle3) else ()
    return dataclasses.replace(
        found,
        layer=min(found.layer, layer // keys.dtype.itemsize),
        drafter_weights=sum(head.values()),
        drafter_cache=2 * len(head_cache.keys) * layer,
        draft_output=output,
        draft_levels=1 if is_block else drafter.max_depth,
        draft_again=output + sum(n for name, n in head.items() if name not in once),
    )


@functools.cache
def abstract_params(target: Target) -> Any:
    """Shapes and dtypes of the weights."""
    return jax.eval_shape(target.init_params, jax.random.key(0))


def abstract_head(target: Target, drafter: Any) -> Any:
    """Those of a drafter's own, if it has any."""
    if not hasattr(drafter, "init_params"):
        return ()
    return jax.eval_shape(lambda: drafter.init_params(jax.random.key(0), target))


def step_bytes(
    target: ModuleTarget,
    size: Sizes,
    *,
    rows: int,
    nodes: int,
    vmem: float,
    filled: float = 1.0,
) -> float:
    """The least that a chip reads from HBM in a step of `rows` × `nodes` tokens: each
    weight once and the allocated cache once, or the `filled` part of it.

    Of E experts a step of M tokens, k experts each, reads min(E, k·M) at most. A head
    that fits in a chip's `vmem`, with its cache, is read once for all levels of a tree;
    of a larger one the rest is read again for each.
    """
    tokens, config = rows * nodes, target.config
    weights = size.weights - size.embedding
    if size.embedding:
        weights += tokens * config.width * jnp.dtype(config.dtype).itemsize
    if config.experts is not None:
        share = min(1.0, config.experts.per_token * tokens / config.experts.count)
        weights -= (1 - share) * size.experts
    kept = size.draft_again + filled * size.drafter_cache
    again = max(0, size.draft_levels - 1) * max(0.0, kept - vmem)
    drafter = size.drafter_weights + size.draft_output
    return weights + drafter + again + filled * size.all_cache


def token_bytes(target: ModuleTarget) -> int:
    """Keys and values of one token in all layers."""
    cache = jax.eval_shape(lambda: target.init_cache(1, 1))
    return sum(x.size * x.dtype.itemsize for x in (*cache.keys, *cache.values))


def score_bytes(
    target: ModuleTarget, *, batch: int, slots: int, mesh: Mapping[str, int]
) -> int:
    """The largest temporary of a generation: one layer's scores of a prompt's chunk, on
    a chip.
    """
    chunk = choose_chunk(slots - 1, batch)
    heads = target.config.num_heads // math.gcd(target.config.num_heads, mesh["model"])
    return -(-batch // mesh["data"]) * heads * chunk * slots * 4


def _held(
    params: Any, axes: Mapping[str, int]
) -> Iterator[tuple[str, jax.ShapeDtypeStruct, int]]:
    """Of each abstract parameter its name, itself, and its bytes on a chip."""
    shardings = jax.tree.leaves(param_shardings(params, _mesh(axes)))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), sharding in zip(leaves, shardings, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        yield name, leaf, _bytes(leaf, sharding, axes)


def _spread(cache: Any, axes: Mapping[str, int]) -> tuple[Any, int, int]:
    """The keys of an abstract cache's first layer, their bytes on a chip, and how many
    chips of "model" hold the same.
    """
    keys = cache.keys[0]
    sharding = row_shardings(cache, _mesh(axes)).keys[0]
    copies = 1 if sharding.spec[1] == "model" else axes["model"]
    return keys, _bytes(keys, sharding, axes), copies


def _mesh(axes: Mapping[str, int]) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes))


def _bytes(leaf: Any, sharding: NamedSharding, axes: Mapping[str, int]) -> int:
    split = math.prod(axes[name] for name in sharding.spec if name is not None)
    return leaf.size * leaf.dtype.itemsize // split
