"""Where each array lives on a mesh: one table from names to logical axes, one from
logical axes to mesh axes.

A mesh has the axes "data" (rows) and "model" (heads, feed-forward, vocabulary); make it
with `axis_types=Auto`. An axis whose size the mesh axis does not divide is replicated.
"""

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Shaped

MESH_AXES = {
    "rows": "data",
    "heads": "model",
    "kv_heads": "model",
    "mlp": "model",
    "features": "model",
    "vocab": "model",
}

# The end of an array's path in a pytree of parameters, and its logical axes; replicated
# where nothing matches.
_PARAMS: dict[str, tuple[str | None, ...]] = {
    r"embedding|(head|after)\.weight|markov\.before": ("vocab", None),
    r"query\.weight": ("heads", None),
    r"query\.bias": ("heads",),
    r"(key|value)\.weight": ("kv_heads", None),
    r"(key|value)\.bias": ("kv_heads",),
    r"output\.weight": (None, "heads"),
    r"fusion\.weight": (None, "features"),
    r"(gate|up)\.weight": ("mlp", None),
    r"down\.weight": (None, "mlp"),
    r"expert_(gate|up|down)": (None, "mlp", None),
}
# The same for what a generation carries; the first axis is the rows where nothing
# matches.
_ROWS: dict[str, tuple[str | None, ...]] = {
    r"(keys|values)\.\d+": ("rows", "kv_heads", None, None),
    r"next_state": (None, None, None),
    r"prompted|counts|bias": ("rows", "vocab"),
}
_Tree = TypeVar("_Tree")
_MESH: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


def shard(params: _Tree, mesh: Mesh) -> _Tree:
    """Place parameters on a mesh; whatever is generated from them follows."""
    return place(params, param_shardings(params, mesh))


def place(tree: _Tree, shardings: Any) -> _Tree:
    """Arrays that every process has, on their devices, some of which may be those of
    other processes.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def one(x: Any, sharding: NamedSharding) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x), sharding))
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda i: host[i])

    return jax.tree.map(one, tree, shardings)


def param_shardings(params: Any, mesh: Mesh | AbstractMesh) -> Any:
    """The sharding of each parameter (or abstract parameter)."""
    return _shardings(params, mesh, _PARAMS, ())


def row_shardings(rows: Any, mesh: Mesh | AbstractMesh) -> Any:
    """The sharding of each array of a generation: its rows are spread over "data"."""
    return _shardings(rows, mesh, _ROWS, ("rows",))


def pin(rows: _Tree, mesh: Mesh | None) -> _Tree:
    """The same arrays, kept to their shardings, so that what a loop carries goes in as
    it comes out.
    """
    if mesh is None:
        return rows
    return jax.lax.with_sharding_constraint(rows, row_shardings(rows, mesh))


@contextlib.contextmanager
def on(mesh: Mesh | None) -> Iterator[None]:
    """What is traced meanwhile runs on that mesh: `spread` and `top_k` ask for it."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def spread(rows: _Tree) -> _Tree:
    """The same arrays, pinned: rows over "data", all else whole on every chip, so that
    the split of a weight that reads them does not reach what they come from.
    """
    return pin(rows, _MESH.get())


def top_k(
    x: Shaped[Array, "B ... M"], count: int, *, axis: str | None = None
) -> tuple[Shaped[Array, "B ... C"], Int[Array, "B ... C"]]:
    """The largest numbers in order and where they are, ties to the first; the last axis
    is that logical one.

    A compiler would bring all numbers to every chip. Here each chip looks through its
    own, and only the best of each are exchanged.
    """
    mesh = _MESH.get()
    if mesh is None:
        best, at = jax.lax.top_k(x, count)
        return best, at.astype(jnp.int32)
    rows = _mesh_axis("rows", x.shape[0], mesh)
    name = _mesh_axis(axis, x.shape[-1], mesh)

    def local(x: Array) -> tuple[Array, Array]:
        best, at = jax.lax.top_k(x, min(count, x.shape[-1]))
        at = at.astype(jnp.int32)
        if name is None:
            return best, at
        at = at + jax.lax.axis_index(name) * x.shape[-1]
        best, at = (
            jax.lax.all_gather(part, name, axis=part.ndim - 1, tiled=True)
            for part in (best, at)
        )
        best, chosen = jax.lax.top_k(best, count)
        return best, jnp.take_along_axis(at, chosen, axis=-1)

    spec = PartitionSpec(rows, *[None] * (x.ndim - 2), name)
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=spec,
        out_specs=PartitionSpec(rows),
        check_vma=False,  # after the exchange all chips of `name` have the same
    )(x)


def to_host(tree: _Tree) -> _Tree:
    """The same arrays as NumPy's, on every process of a pod."""
    if all(x.is_fully_addressable for x in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def mesh_of(params: Any) -> Mesh | None:
    """The mesh that parameters are placed on; None where there is only one device."""
    for leaf in jax.tree.leaves(params):
        sharding = getattr(leaf, "sharding", None)
        if (
            isinstance(sharding, NamedSharding)
            and isinstance(sharding.mesh, Mesh)
            and sharding.mesh.size > 1
        ):
            return sharding.mesh
    return None


def _shardings(
    tree: Any,
    mesh: Mesh | AbstractMesh,
    table: dict[str, tuple[str | None, ...]],
    default: tuple[str | None, ...],
) -> Any:
    def sharding(path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        axes = next(
            (
                axes
                for end, axes in table.items()
                if re.search(rf"(^|\.)({end})$", name)
            ),
            default,
        )
        sizes = leaf.shape[: len(axes)]
        return NamedSharding(
            mesh,
            PartitionSpec(
                *(
                    _mesh_axis(axis, size, mesh)
                    for axis, size in zip(axes, sizes, strict=False)
                )
            ),
        )

    return jax.tree_util.tree_map_with_path(sharding, tree)


def _mesh_axis(axis: str | None, size: int, mesh: Mesh | AbstractMesh) -> str | None:
    name = None if axis is None else MESH_AXES[axis]
    return name if name in mesh.shape and size % mesh.shape[name] == 0 else None
