"""A module imports only from floors below its own."""

import ast
import graphlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "specdec_jax"

# A new module is added here first. A subpackage stands for all its modules.
FLOORS = {
    "_types": 0,
    "_tree": 1,
    "_sampling": 1,
    "_filters": 1,
    "_grow": 1,
    "_best_first": 1,
    "_fit_tree": 1,
    "_cache": 1,
    "_stats": 1,
    "_stops": 1,
    "_lesson": 1,
    "_schedule_types": 1,
    "_machine": 1,
    "_digest": 1,
    "_constraint": 1,
    "_sharding": 1,
    "io": 1,
    "_verify": 2,
    "nn": 2,
    "drafters": 3,
    "targets": 3,
    "schedule": 3,
    "_door": 4,
    "_generate": 4,
    "_state": 4,
    "_loop": 4,
    "_run": 4,
    "_scheduling": 4,
    "_door_schedule": 4,
    "_measure_cost": 4,
    "calibration": 4,
    "_options": 4,
    "_check": 4,
    "_rescore": 4,
    "_check_layout": 4,
    "_compile": 4,
    "_measure_acceptance": 4,
    "formats": 4,
    "plan": 5,
    "train": 5,
    "text": 6,
    "bench": 6,
    "": 6.5,  # specdec_jax itself, which re-exports the rest to users and to the cli
    "cli": 7,
}
SHARED_FLOORS = {1, 4}  # their modules may import each other, without a cycle


def module_name(path: Path) -> str:
    """The dotted name: specdec_jax/nn/_mlp.py is specdec_jax.nn._mlp."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(module: str) -> Iterator[str]:
    """The modules of specdec_jax that this one names in its import statements."""
    path = FILES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            source = importlib.util.resolve_name(relative, package)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                names.add(submodule if submodule in FILES else source)
    return (name for name in sorted(names) if name.split(".")[0] == "specdec_jax")


def place(module: str) -> str:
    """The entry of FLOORS that a module belongs to."""
    return (module.split(".") + [""])[1]


def is_allowed(module: str, imported: str) -> bool:
    """Whether the floors let a module import another."""
    here, there = place(module), place(imported)
    if FLOORS[there] != FLOORS[here]:
        return FLOORS[there] < FLOORS[here]
    if here != there:
        return FLOORS[here] in SHARED_FLOORS
    return here != "drafters" or FILES[module].name == "__init__.py"


@pytest.mark.parametrize("module", FILES)
def test_floors(module):
    assert place(module) in FLOORS, f"{module} has no floor: add it to FLOORS"
    above = [name for name in imports(module) if not is_allowed(module, name)]
    assert not above, f"{module} may not import {', '.join(above)}"


def test_no_cycles():
    graphlib.TopologicalSorter({module: imports(module) for module in FILES}).prepare()


def test_the_rules_forbid(monkeypatch):
    """The table says no where it should: a test that cannot fail is a defect."""
    for name in ("drafters._a", "drafters._b", "targets._c", "nn._d", "cli._e"):
        monkeypatch.setitem(FILES, f"specdec_jax.{name}", Path("module.py"))
    forbidden = [
        ("drafters._a", "drafters._b"),
        ("drafters._a", "targets._c"),
        ("targets._c", "drafters._a"),
        ("nn._d", "_verify"),
        ("nn._d", "targets._c"),
        ("_types", "_tree"),
    ]
    for module, imported in forbidden:
        assert not is_allowed(f"specdec_jax.{module}", f"specdec_jax.{imported}")
    assert not is_allowed("specdec_jax.text", "specdec_jax")
    assert is_allowed("specdec_jax.cli._e", "specdec_jax")
    assert is_allowed("specdec_jax._tree", "specdec_jax._cache")


def test_root_only_reexports():
    for node in ast.parse(FILES["specdec_jax"].read_text()).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(
            node.value, ast.Constant
        )
        assert is_docstring or isinstance(node, ast.ImportFrom), ast.unparse(node)


def test_import_touches_neither_backend_nor_configuration():
    program = """
import jax
from jax._src import xla_bridge

before = dict(jax.config.values)
import specdec_jax

after = dict(jax.config.values)
assert not xla_bridge.backends_are_initialized(), "a backend was initialised"
changed = {name for name in before if before[name] != after[name]}
assert not changed, f"changed: {changed}"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
