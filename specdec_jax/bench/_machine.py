"""What a number was measured on."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax

_PACKAGES = ("specdec-jax", "jax", "jaxlib", "numpy", "torch", "transformers")


def machine(command: str) -> dict[str, Any]:
    """Hardware, versions and command; `load` tells whether others were at work."""
    return {
        "command": command,
        "device": jax.devices()[0].device_kind,
        "cpu": _cpu(),
        "cores": cores(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "system": platform.system() + " " + platform.machine(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def cores() -> int:
    """How many this process may use: the threads of jax, and of torch where it runs."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = [line.partition(":") for line in info.read_text().splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name", platform.machine())
    wide = {"avx2", "avx512f", "amx_tile"} & set(facts.get("flags", "").split())
    return f"{name} ({', '.join(sorted(wide))})" if wide else name


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
