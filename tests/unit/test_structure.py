"""Imports point down only, in no circle, and files stay small enough to read."""

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.launcher import ROOT
from tests.helpers.modules import MODULES, imports

#: the packages and modules of psframe, from the ground up: each may import those of lower floors, and itself
FLOORS = (
    ("errors",),
    ("config", "compiled"),
    ("memory", "record", "datasets"),
    ("cluster", "nn", "optim", "tensors"),
    ("collectives", "models", "report", "run"),
    ("sync", "torch"),
    ("train",),
    ("doctor", "api"),
    ("bench",),
    ("predict", "sklearn", "starter"),
    ("tune", "virtual"),
    ("compare",),
    ("__main__",),
)


def floor(module):
    """Return the floor of a module, and the package it belongs to."""
    package = module.split(".")[1] if "." in module else ""
    found = [number for number, names in enumerate(FLOORS) if package in names]
    assert found or not package, f"psframe.{package} stands on no floor: give it one in FLOORS"
    return (found[0] if package else -1), package


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    own = floor(module)
    for target in imports(MODULES[module]):
        other = floor(target)
        assert other[0] < own[0] or other == own, f"{module} imports {target}, which does not stand below it"


def test_front_door_shows_what_there_is():
    packages = [*(ROOT / "psframe").glob("*/__init__.py")]
    assert len(packages) + len([*(ROOT / "psframe").glob("[!_]*.py")]) <= 24


def test_every_folder_of_modules_is_a_package_that_is_installed():
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "psframe").rglob("*.py")}
    folders.remove(Path("psframe/starter/template"))  # what `psframe new` writes
    listed = re.search(r"packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)[1]
    for folder in folders:
        assert (ROOT / folder / "__init__.py").exists(), f"{folder} has no __init__.py; does .gitignore name it?"
        assert f'"{folder}"'.replace("/", ".") in listed, f"pyproject.toml must list {folder} among the packages"


def test_ranks_do_not_wait_in_mpi_between_steps():
    """They would wait for ever; what has a deadline (``gather_in_time``, ``barrier``) notices who does not come."""
    for name in ("loop", "epoch", "epoch_metrics"):
        source = (ROOT / "psframe/train" / f"{name}.py").read_text()
        assert "mpi4py" not in source
        assert not [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Attribute) and node.attr in ("comm", "gather", "allgather", "bcast")
        ]


def test_imports_make_no_circle():
    graph = {module: set(imports(path)) - {module, "psframe"} for module, path in MODULES.items()}
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for target in sorted(graph.get(module, ())):
                visit(target)
            done.add(path.pop())

    for module in graph:
        visit(module)


FILES = [p for folder in ("psframe", "models", "datasets", "tests") for p in sorted((ROOT / folder).rglob("*.py*"))]


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix in (".py", ".pyx")], ids=lambda p: p.name)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("module", MODULES)
def test_functions_are_short(module):
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length < 40, f"{module}.{node.name} has {length} lines"
