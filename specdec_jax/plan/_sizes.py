"""How large a model and its cache are, whole and on each chip of a mesh."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding

from specdec_jax._door import choose_chunk
from specdec_jax._sharding import param_shardings, row_shardings
from specdec_jax._types import Target
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
        layer: keys of one layer, in elements.
        copies: how many chips of "model" hold the same part of the cache.
    """

    parameters: int
    weights: int
    embedding: int
    experts: int
    cache: int
    layer: int
    copies: int

    @property
    def held(self) -> int:
        """What a chip holds throughout."""
        return self.weights + self.cache


def sizes(
    target: ModuleTarget,
    *,
    batch: int,
    slots: int,
    mesh: Mapping[str, int] | None = None,
) -> Sizes:
    """Of a target with a cache, spread over a mesh as `shard` does; nothing is
    allocated.
    """
    axes = ONE_CHIP if mesh is None else mesh
    abstract = AbstractMesh(tuple(axes.values()), tuple(axes))
    params = abstract_params(target)
    cache = jax.eval_shape(lambda: target.init_cache(batch, slots))
    parameters = weights = embedding = experts = 0
    shardings = jax.tree.leaves(param_shardings(params, abstract))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), sharding in zip(leaves, shardings, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        size = _bytes(leaf, sharding, axes)
        parameters += leaf.size
        weights += size
        if name == "embedding" and not target.config.tied:
            embedding += size
        if re.search(r"(^|\.)expert_(gate|up|down)$", name):
            experts += size
    keys, sharding = cache.keys[0], row_shardings(cache, abstract).keys[0]
    layer = _bytes(keys, sharding, axes)
    return Sizes(
        parameters=parameters,
        weights=weights,
        embedding=embedding,
        experts=experts,
        cache=2 * target.num_layers * layer,
        layer=layer // keys.dtype.itemsize,
        copies=1 if sharding.spec[1] == "model" else axes["model"],
    )


@functools.cache
def abstract_params(target: Target) -> Any:
    """Shapes and dtypes of the weights."""
    return jax.eval_shape(target.init_params, jax.random.key(0))


def step_bytes(
    target: ModuleTarget, size: Sizes, *, rows: int, nodes: int, filled: float = 1.0
) -> float:
    """The least that a chip reads from HBM in a step of `rows` × `nodes` tokens: each
    weight once and the allocated cache once, or the `filled` part of it.

    Of E experts a step of M tokens, k experts each, reads min(E, k·M) at most.
    """
    tokens, config = rows * nodes, target.config
    weights = size.weights - size.embedding
    if size.embedding:
        weights += tokens * config.width * jnp.dtype(config.dtype).itemsize
    if config.experts is not None:
        share = min(1.0, config.experts.per_token * tokens / config.experts.count)
        weights -= (1 - share) * size.experts
    return weights + filled * size.cache


def token_bytes(target: ModuleTarget) -> int:
    """Keys and values of one token in all layers."""
    config = target.config
    width = config.num_kv_heads * config.head_width
    return 2 * target.num_layers * width * jnp.dtype(config.dtype).itemsize


def score_bytes(
    target: ModuleTarget, *, batch: int, slots: int, mesh: Mapping[str, int]
) -> int:
    """The largest temporary of a generation: one layer's scores of a prompt's chunk, on
    a chip.
    """
    chunk = choose_chunk(slots - 1, batch)
    heads = target.config.num_heads // math.gcd(target.config.num_heads, mesh["model"])
    return -(-batch // mesh["data"]) * heads * chunk * slots * 4


def _bytes(leaf: Any, sharding: NamedSharding, axes: Mapping[str, int]) -> int:
    split = math.prod(axes[name] for name in sharding.spec if name is not None)
    return leaf.size * leaf.dtype.itemsize // split
