"""Parameters from files, tensor by tensor, straight into their dtype and place."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from specdec_jax import _sharding

# The parts of a parameter's path: "layers", 3, "attention", "query", "weight".
ParamPath = tuple[str | int, ...]


@runtime_checkable
class Stored(Protocol):
    """An open file or folder: where it is, and by name what each tensor is."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, Any]: ...


def read_params(
    source: Stored,
    abstract: PyTree,
    *,
    names: Callable[[ParamPath], str | list[str]],
    read: Callable[[ParamPath, str, Any], np.ndarray],
    is_ignored: Callable[[str], bool],
    is_transposed: Callable[[ParamPath], bool] = lambda path: False,
    mesh: Mesh | None,
) -> PyTree:
    """Parameters as they are stored.

    Args:
        source: what there is.
        abstract: which parameters, of which shapes and dtypes.
        names: of a parameter's tensor, or of several that are stacked along a new
            first axis.
        read: brings the part of a tensor that an index says, of the parameter at a
            path.
        is_ignored: whether a tensor is known to say nothing new.
        is_transposed: whether the matrices of a stack are stored the other way round.
        mesh: where to; None for the default device.

    Raises:
        ValueError: tensors are missing, left over or of the wrong shape; all of them
            are listed.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(abstract)
    wanted = {tuple(key.key for key in path): leaf for path, leaf in leaves}
    named = {path: names(path) for path in wanted}
    _check(source, wanted, named, is_ignored, is_transposed)
    shardings: list[Any] = [None] * len(leaves)
    if mesh is not None:
        shardings = jax.tree.leaves(_sharding.param_shardings(abstract, mesh))

    def place(path: ParamPath, leaf: Any, sharding: Any) -> jax.Array:
        tensors = named[path]

        def part(index: Any) -> np.ndarray:
            if isinstance(tensors, str):
                return read(path, tensors, index).astype(leaf.dtype, copy=False)
            chosen = tensors[index[0]]
            out = np.empty((len(chosen), *_sizes(leaf.shape, index)[1:]), leaf.dtype)
            for i, name in enumerate(chosen):
                if is_transposed(path):
                    out[i] = read(path, name, index[:0:-1]).T
                else:
                    out[i] = read(path, name, index[1:])
            return out

        if sharding is None:
            return jnp.asarray(part((slice(None),) * leaf.ndim))
        return jax.make_array_from_callback(leaf.shape, sharding, part)

    arrays = [
        place(path, leaf, sharding)
        for (path, leaf), sharding in zip(wanted.items(), shardings, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def _check(
    source: Stored,
    wanted: Mapping[ParamPath, Any],
    named: Mapping[ParamPath, str | list[str]],
    is_ignored: Callable[[str], bool],
    is_transposed: Callable[[ParamPath], bool],
) -> None:
    wrong, known = [], set()
    for path, tensors in named.items():
        shape = wanted[path].shape
        if isinstance(tensors, list):
            shape = shape[:0:-1] if is_transposed(path) else shape[1:]
        for name in [tensors] if isinstance(tensors, str) else tensors:
            known.add(name)
            if name not in source.tensors:
                wrong.append(f"{name} is missing")
            elif tuple(source.tensors[name].shape) != shape:
                wrong.append(f"{name} is {source.tensors[name].shape}, not {shape}")
    left = sorted(
        name for name in source.tensors if name not in known and not is_ignored(name)
    )
    wrong += [f"{name} is not understood" for name in left]
    if wrong:
        raise ValueError(f"{source.path}: " + "; ".join(wrong))


def _sizes(shape: tuple[int, ...], index: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(
        len(range(*part.indices(size))) for size, part in zip(shape, index, strict=True)
    )
