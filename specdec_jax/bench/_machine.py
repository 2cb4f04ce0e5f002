"""What a number was measured on."""

import importlib.metadata
import os
import platform
from typing import Any

import jax

from specdec_jax._machine import cores, cpu

_PACKAGES = ("specdec-jax", "jax", "jaxlib", "numpy", "torch", "transformers")


def machine(command: str) -> dict[str, Any]:
    """Hardware, versions and command; `load` tells whether others were at work."""
    return {
        "command": command,
        "device": jax.devices()[0].device_kind,
        "cpu": cpu(),
        "cores": cores(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "system": platform.system() + " " + platform.machine(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
