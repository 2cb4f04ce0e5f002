"""What users install is whole: the sdist, and the wheel built from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(arguments: list[str], cwd: Path, **environment: str) -> str:
    """Run Python with these arguments and return what it printed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.mark.slow
def test_wheel_built_from_sdist_is_whole(tmp_path):
    run(
        ["-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        cwd=tmp_path,
    )
    [wheel] = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    run(
        ["-m", "pip", "install", "--no-deps", "--target", str(target), str(wheel)],
        cwd=tmp_path,
    )

    program = "import specdec_jax; print(specdec_jax.__file__)"
    imported = run(["-c", program], cwd=tmp_path, PYTHONPATH=str(target))
    assert Path(imported) == target / "specdec_jax" / "__init__.py"

    sources = {path.relative_to(ROOT) for path in ROOT.glob("specdec_jax/**/*.py")}
    sources.add(Path("specdec_jax/py.typed"))
    missing = {path for path in sources if not (target / path).is_file()}
    assert not missing
