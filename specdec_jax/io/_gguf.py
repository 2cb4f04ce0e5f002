"""Reading GGUF files: metadata as plain Python, tensors dequantised to numpy.

Names and layouts stay the file's own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

_MAGIC = b"GGUF"


class TensorInfo(NamedTuple):
    """What a GGUF file says about a tensor.

    `shape` is in numpy's order, (out, in) for a matrix; `quantization` is how it is
    stored, in ggml's words: "F32", "Q4_1".
    """

    shape: tuple[int, ...]
    quantization: str


class GGUF:
    """A GGUF file, open for reading.

    Attributes:
        path: where it is.
        metadata: its key-value pairs: int, float, bool, str and lists of them.
        tensors: by name, what it holds. `read` brings the values.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the header; the tensors stay on disk.

        Raises:
            ValueError: the file is not GGUF, cut short, or damaged.
            OSError: there is no such file, or it cannot be read.
            ImportError: the package `gguf` is missing.
        """
        self.path = Path(path)
        gguf = _import_gguf()
        with self.path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start != _MAGIC:
            raise ValueError(f"{self.path} is not a GGUF file: it starts with {start}")
        try:
            with np.errstate(over="raise"):
                reader = gguf.GGUFReader(self.path)
            self.metadata = {
                key: field.contents()
                for key, field in reader.fields.items()
                if not key.startswith("GGUF.")
            }
        except (ArithmeticError, LookupError, ValueError) as error:
            # Beyond the end, slices come back shorter, and numpy stumbles over them.
            size = self.path.stat().st_size
            raise ValueError(
                f"{self.path} cannot be read as GGUF: its {size:,} bytes are cut short "
                f"or damaged ({error}); fetch it again"
            ) from None
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.tensors = {
            name: TensorInfo(
                tuple(reversed(tensor.shape.tolist())), tensor.tensor_type.name
            )
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, dtype: DTypeLike = np.float32) -> np.ndarray:
        """A tensor's values, dequantised, in a new array of the shape in `tensors`.

        Raises:
            ValueError: the file has no such tensor, or gguf cannot dequantise it.
        """
        if name not in self._tensors:
            has = ", ".join(list(self.tensors)[:5])
            raise ValueError(
                f"{self.path} has no tensor {name!r}; of its {len(self.tensors)} the "
                f"first are {has}"
            )
        tensor = self._tensors[name]
        try:
            values = _import_gguf().dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ValueError(
                f"{self.path} stores {name!r} as {tensor.tensor_type.name}, "
                "which the gguf package cannot dequantise"
            ) from error
        return np.array(values, dtype)  # a copy: float32 comes as a view of the file


def _import_gguf() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise ImportError(
            "reading GGUF files needs the package gguf: pip install 'specdec-jax[hub]'"
        ) from error
    return gguf
