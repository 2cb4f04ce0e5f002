"""Where results go, and what they were measured on."""

import json
import sys
from pathlib import Path
from typing import Any

import jax

from specdec_jax import bench

RESULTS = Path(__file__).parent / "results"


def set_up() -> None:
    """Measure on the CPU unless JAX_PLATFORMS says otherwise; call it first."""
    if jax.config.values["jax_platforms"] is None:
        jax.config.update("jax_platforms", "cpu")


def machine() -> dict[str, Any]:
    """Hardware, versions and the command of this script."""
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    return bench.machine(" ".join(["python", script, *sys.argv[1:]]))


def save(path: Path, results: Any) -> None:
    """Write results as JSON that diffs well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
