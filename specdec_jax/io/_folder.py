"""Reading Hugging Face folders: config.json, and tensors of safetensors files."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike
from safetensors import SafetensorError, safe_open

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES = {"F64", "F32", "F16", "BF16"}  # others are quantised, or no weights
_INTEGERS = {"I64", "I32", "I16", "I8", "U8", "BOOL"}


class StoredTensor(NamedTuple):
    """What a folder says about a tensor: its shape, the file it is in, and its dtype
    in the words of safetensors.
    """

    shape: tuple[int, ...]
    file: str
    dtype: str


class Folder:
    """A folder as Hugging Face's `save_pretrained` writes it, open for reading.

    Attributes:
        path: where it is.
        config: config.json.
        tensors: by name, what the weights' files hold. `read` brings the values.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the headers; the tensors stay on disk.

        Raises:
            ValueError: a file is cut short or damaged, an index names files or tensors
                that are missing (all of them are listed).
            OSError: there is no such folder, or it lacks config.json or weights.
        """
        self.path = Path(path)
        self.config = self.read_json("config.json")
        files, wanted = self._files()
        self._open: dict[str, Any] = {}
        self.tensors = {}
        for file in files:
            try:
                opened = safe_open(self.path / file, framework="numpy")
                for name in opened.keys():  # noqa: SIM118  (it is no dict)
                    stored = opened.get_slice(name)
                    self.tensors[name] = StoredTensor(
                        tuple(stored.get_shape()), file, str(stored.get_dtype())
                    )
            except SafetensorError as error:
                raise ValueError(
                    f"{self.path / file} cannot be read as safetensors: it is cut "
                    f"short or damaged ({error}); fetch it again"
                ) from None
            self._open[file] = opened
        if lost := sorted(wanted - self.tensors.keys()):
            raise ValueError(f"{self.path}: {_INDEX} names tensors of no file: {lost}")

    def read(
        self, name: str, dtype: DTypeLike | None = None, index: Any = ...
    ) -> np.ndarray:
        """A tensor's values, or the part that `index` (slices) says, as stored or in
        another dtype; only that part is read.

        Raises:
            KeyError: there is no tensor of this name.
            ValueError: it is not stored in floating point of 16 bits or more.
        """
        if (stored := self.tensors[name].dtype) not in _DTYPES:
            raise ValueError(
                f"{self.path} stores {name} as {stored}; weights are understood in "
                f"{', '.join(sorted(_DTYPES))}"
            )
        part = self._part(name, index)
        return part if dtype is None else part.astype(dtype, copy=False)

    def read_integers(self, name: str) -> np.ndarray:
        """A tensor that is no weight: whole numbers, or true and false.

        Raises:
            KeyError: there is no tensor of this name.
            ValueError: it is stored as something else.
        """
        if (stored := self.tensors[name].dtype) not in _INTEGERS:
            raise ValueError(
                f"{self.path} stores {name} as {stored}, which is no whole number"
            )
        return self._part(name, ...)

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder that holds an object.

        Raises:
            ValueError: it is no JSON, or no object.
            OSError: there is no such file, or it cannot be read.
        """
        path = self.path / name
        try:
            value = json.loads(path.read_text("utf-8"))
        except ValueError as error:  # of JSON, or of UTF-8
            raise ValueError(f"{path} is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path} holds no JSON object")
        return value

    def _part(self, name: str, index: Any) -> np.ndarray:
        """Of a tensor, as it is stored."""
        stored = self._open[self.tensors[name].file]
        if index is ...:
            return stored.get_tensor(name)
        return stored.get_slice(name)[index]

    def _files(self) -> tuple[list[str], set[str]]:
        """The weights' files, and the tensors that an index promises."""
        if not (self.path / _INDEX).exists():
            if not (self.path / _SINGLE).exists():
                raise FileNotFoundError(
                    f"{self.path} holds neither {_SINGLE} nor {_INDEX}: weights are "
                    "read from safetensors files"
                )
            return [_SINGLE], set()
        placed = self.read_json(_INDEX).get("weight_map")
        if not isinstance(placed, dict):
            raise ValueError(f"{self.path / _INDEX} has no weight_map")
        files = sorted(set(placed.values()), key=str)
        # A name could lead out of the folder.
        strange = [
            file
            for file in files
            if not isinstance(file, str)
            or file in ("", ".", "..")
            or Path(file).name != file
        ]
        if strange:
            raise ValueError(f"{self.path / _INDEX} names files elsewhere: {strange}")
        if lost := [file for file in files if not (self.path / file).exists()]:
            raise ValueError(f"{self.path}: {_INDEX} names missing files: {lost}")
        return files, set(placed)
