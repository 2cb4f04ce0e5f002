"""Folders whose weights are pickled: read as tensors or not at all."""

import os
import pickle
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec_jax.io._folder import Folder, StoredTensor

_FILE = "pytorch_model.bin"
_NAMES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


class PickledFolder(Folder):
    """A folder with config.json and pytorch_model.bin, whose tensors are in memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read everything.

        Raises:
            ValueError: the pickle holds something else than tensors by name, or is cut
                short or damaged.
            OSError: there is no such folder, or it lacks config.json or weights.
            ImportError: the package `torch` is missing.
        """
        self.path = Path(path)
        self.config = self.read_json("config.json")
        self._values = _unpickle(self.path / _FILE)
        self.tensors = {
            name: StoredTensor(
                tuple(value.shape),
                _FILE,
                _NAMES.get(str(value.dtype), str(value.dtype)),
            )
            for name, value in self._values.items()
        }

    def _part(self, name: str, index: Any) -> np.ndarray:
        value = self._values[name].contiguous()
        if self.tensors[name].dtype == "BF16":  # which numpy does not know by itself
            bits = value.view(_torch().int16).numpy()
            return bits.view(np.dtype(jnp.bfloat16))[index]
        return value.numpy()[index]


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """A folder of safetensors, or where it has none, of a pickle.

    Raises:
        ValueError, OSError, ImportError: see `Folder` and `PickledFolder`.
    """
    folder = Path(path)
    has_safetensors = any(folder.glob("*.safetensors*"))
    if not has_safetensors and (folder / _FILE).exists():
        return PickledFolder(folder)
    return Folder(folder)


def _unpickle(path: Path) -> dict[str, Any]:
    torch = _torch()
    try:
        # Pickles are programs; with weights_only, torch runs none.
        values = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is a pickle that holds more than tensors, or is damaged: it is "
            "not read, since a pickle can run any program"
        ) from None
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"{path} is cut short or damaged ({error})") from None
    is_named = isinstance(values, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor)
        for name, value in values.items()
    )
    if not is_named:
        raise ValueError(f"{path} holds no tensors by name")
    return values


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"reading {_FILE} needs the package torch: pip install "
            "'specdec-jax[torch]', or convert the file to safetensors"
        ) from None
    return torch
