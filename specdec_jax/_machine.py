"""What this computer is."""

import os
import platform
from pathlib import Path


def cores() -> int:
    """How many this process may use: the threads of jax, and of torch where it runs."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu() -> str:
    """The processor's name, and the wide units that it has."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = [line.partition(":") for line in info.read_text().splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name", platform.machine())
    wide = {"avx2", "avx512f", "amx_tile"} & set(facts.get("flags", "").split())
    return f"{name} ({', '.join(sorted(wide))})" if wide else name
