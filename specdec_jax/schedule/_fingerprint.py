"""Whose seconds a cost table has."""

import dataclasses
import hashlib
import re
from typing import Any

import jax

from specdec_jax import _machine
from specdec_jax._types import Drafter, Params, Target


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The machine and the models of a measurement.

    Args:
        device: kind and number.
        target: its name, and a digest of its configuration and its parameters' shapes.
        drafter: the same.
    """

    device: str
    target: str
    drafter: str

    @classmethod
    def of(cls, target: Target, params: Params, drafter: Drafter) -> "Fingerprint":
        """Of what is at hand."""
        return cls(
            device_of(params.target),
            _digest(target, params.target),
            _digest(drafter, params.drafter),
        )

    def check(self, here: "Fingerprint") -> None:
        """Raise `ValueError`, saying what differs, if that is not the same."""
        for name, mine in dataclasses.asdict(self).items():
            found = getattr(here, name)
            if mine != found and "" not in (mine, found):
                raise ValueError(
                    f"this cost table was measured for another {name}, {mine}, not "
                    f"{found}: measure it anew with measure_cost"
                )


def device_of(params: Any) -> str:
    """The kind and number of the devices that parameters are on; nothing where they are
    no arrays yet.
    """
    leaves = jax.tree.leaves(params)
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
        return ""
    placed = [x for x in leaves if isinstance(x, jax.Array)]
    devices = sorted(placed[0].devices(), key=str) if placed else jax.devices()[:1]
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        kind = f"{_machine.cpu()}, {_machine.cores()} cores"
    return f"{len(devices)} × {kind}"


def _digest(model: Any, params: Any) -> str:
    arrays = [
        (jax.tree_util.keystr(path), x.shape, str(x.dtype))
        for path, x in jax.tree_util.tree_leaves_with_path(params)
    ]
    said = re.sub(r" at 0x[0-9a-f]+", "", repr((model, arrays)))  # of this process
    digest = hashlib.sha256(said.encode()).hexdigest()[:12]
    return f"{type(model).__name__} {digest}"
