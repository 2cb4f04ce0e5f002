"""What is public is documented, and what is documented works."""

import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import specdec_jax

ROOT = Path(__file__).parents[1]
PUBLIC = ["specdec_jax"] + [
    f"specdec_jax.{module.name}"
    for module in pkgutil.iter_modules(specdec_jax.__path__)
    if not module.name.startswith("_")
]


def is_documented(name: str, value: object) -> bool:
    """Whether a function or class says more than its generated signature."""
    doc = inspect.getdoc(value) or ""
    return bool(doc) and not doc.startswith(f"{name}(")


@pytest.mark.parametrize("module_name", PUBLIC)
def test_public_names_have_docstrings(module_name):
    module = importlib.import_module(module_name)
    assert module.__doc__, module_name
    bare = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and not is_documented(name, value)
    ]
    assert not bare, f"no docstring in {module_name}: {', '.join(bare)}"


@pytest.mark.slow
@pytest.mark.skipif(
    bool(os.environ.get("PIP_NO_INDEX")),
    reason="PIP_NO_INDEX is set: pip cannot download the model",
)
def test_quickstart_runs(tmp_path):
    """README's quickstart, as a user would run it: no import hook, no strict mode."""
    readme = (ROOT / "README.md").read_text()
    quickstart = re.search(
        r"^## Quickstart$.*?^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL
    )
    assert quickstart, "README.md has no python block under '## Quickstart'"
    subprocess.run([sys.executable, "-c", quickstart[1]], cwd=tmp_path, check=True)


def test_no_place_of_one_machine():
    """No path or package index of the machine that something was written on."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert files, "git tracks no file here"
    place = re.compile(rb"/(work|root)/|index[-_]url|pythonhosted", re.IGNORECASE)
    this_file = Path(__file__).resolve()
    named = [
        f"{file.relative_to(ROOT)}: {found[0].decode()}"
        for file in files
        if file != this_file and file.is_file()
        if (found := place.search(file.read_bytes()))
    ]
    assert not named, "\n".join(named)


def test_the_table_of_tpus_is_the_result():
    """benchmarks/README.md has what benchmarks/tpu/compile.py prints."""
    path = ROOT / "benchmarks" / "tpu" / "compile.py"
    spec = importlib.util.spec_from_file_location("tpu_compile", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look there
    spec.loader.exec_module(script)
    rows = json.loads(script.RESULT.read_text("utf-8"))["rows"]
    assert script.table(rows) in (ROOT / "benchmarks" / "README.md").read_text("utf-8")
