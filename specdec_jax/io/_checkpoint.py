"""Parameters on disk, by Orbax: any dtype and sharding, restored onto any mesh."""

import os
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PyTree
from orbax.checkpoint import v1 as ocp

from specdec_jax import _sharding


def save_params(path: str | os.PathLike[str], params: PyTree) -> None:
    """Write parameters to a new folder, which appears whole or not at all.

    Raises:
        ValueError: there is something at `path` already.
    """
    folder = Path(path).absolute()
    if folder.exists():
        raise ValueError(f"{folder} exists already: parameters go to a new folder")
    ocp.save(str(folder), params)


def load_params(
    path: str | os.PathLike[str], like: PyTree, *, mesh: Mesh | None = None
) -> PyTree:
    """Read parameters that `save_params` wrote, straight onto their devices.

    Args:
        path: the folder.
        like: their structure, shapes and dtypes, as
            `jax.eval_shape(target.init_params, jax.random.key(0))` says.
        mesh: of devices to spread them over, as `shard` does; None for one device.

    Raises:
        ValueError: the folder holds other parameters, or none.
        FileNotFoundError: there is no such folder.
    """
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    if mesh is None:
        place: Any = SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: place, like)
    else:
        shardings = _sharding.param_shardings(like, mesh)
    abstract = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        like,
        shardings,
    )
    _check_same(folder, like)
    return ocp.load(str(folder), abstract)


def _check_same(folder: Path, like: PyTree) -> None:
    """Compare names and shapes, so that Orbax need not fail in the middle."""
    try:
        stored = _shapes(ocp.metadata(str(folder)).metadata)
    except Exception as error:  # of many classes
        raise ValueError(f"{folder} holds no parameters: {error}") from error
    wanted = _shapes(like)
    wrong = [f"{name} is missing" for name in sorted(wanted.keys() - stored.keys())]
    wrong += [f"{name} is too much" for name in sorted(stored.keys() - wanted.keys())]
    wrong += [
        f"{name} is {stored[name]}, not {shape}"
        for name, shape in wanted.items()
        if stored.get(name, shape) != shape
    ]
    if wrong:
        raise ValueError(f"{folder} holds other parameters: " + "; ".join(wrong))


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """By the path of each array, in which Orbax writes numbers as text."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
