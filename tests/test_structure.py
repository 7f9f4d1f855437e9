"""Imports point down only, in no circle, and files stay small enough to read."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: the floors, from the ground up; a module may import what stands below it, and on its own floor in no circle
FLOORS = [
    {"psframe", "psframe.errors"},
    {
        "psframe.registry",
        "psframe.compiled",
        "psframe.config",
        "psframe.outside",
        "psframe.h5files",
        "psframe.yamls",
        "psframe.parser",
        "psframe.memory",
        "psframe.record",
        "psframe._random",
        "psframe._elementwise",
        "psframe._batch",
    },
    {
        "psframe.arena",
        "psframe.tensors",
        "psframe.cluster",
        "psframe.group",
        "psframe.alike",
        "psframe.halt",
        "psframe.patience",
        "psframe.proof",
        "psframe.kernel",
        "psframe.team",
        "psframe.fault",
        "psframe.command",
        "psframe.comms",
        "psframe.signals",
        "psframe.mpirun",
        "psframe.process",
        "psframe.affinity",
        "psframe.startup",
        "psframe.traffic",
        "psframe.late",
        "psframe.sums",
        "psframe.replicas",
    },
    {"psframe.nn", "psframe.collectives", "psframe.stores", "psframe.optim", "psframe.schedule", "psframe.datasets"},
    {
        "psframe.data",
        "psframe.sampling",
        "psframe.work",
        "psframe.blocks",
        "psframe.sync",
        "psframe.models",
        "psframe.parallel",
    },
    {
        "psframe.plan",
        "psframe.verdicts",
        "psframe.engine",
        "psframe.epoch",
        "psframe.job",
        "psframe.keeper",
        "psframe.recovery",
        "psframe.guard",
        "psframe.measures",
        "psframe.assemble",
        "psframe.opening",
        "psframe.stages",
        "psframe.provision",
        "psframe.dry_run",
        "psframe.residency",
        "psframe.checkup",
    },
    {
        "psframe.train",
        "psframe.run",
        "psframe.doctor",
        "psframe.bench",
        "psframe.compare",
        "psframe.report",
        "psframe.predict",
    },
]


def modules():
    found = {}
    for package, folder in (("psframe", "psframe"), ("psframe.models", "models"), ("psframe.datasets", "datasets")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(p for p in parts if p != "__init__")])] = path
    return found


MODULES = modules()


def floor(module):
    for number, names in enumerate(FLOORS):
        if any(module == name or (name != "psframe" and module.startswith(name + ".")) for name in names):
            return number
    raise AssertionError(f"{module} stands on no floor: give it one in FLOORS")


def imports(path):
    """Yield every module of psframe that a file imports, also inside functions and for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            while name.startswith("psframe") and name not in MODULES and name != "psframe.compiled":
                name = name.rpartition(".")[0]
            if name.startswith("psframe"):
                yield name


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    for target in imports(MODULES[module]):
        assert floor(target) <= floor(module), f"{module} imports {target}, which stands above it"


def test_no_rank_waits_in_mpi_between_the_steps_of_training():
    """MPI waits for ever; ``cluster.gather``, ``settle`` and ``barrier`` notice a rank that does not come."""
    for name in ("engine", "epoch", "measures"):
        source = (ROOT / "psframe" / f"{name}.py").read_text()
        assert "mpi4py" not in source
        assert not [
            node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr == "comm"
        ]


def test_no_circle():
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


def test_only_commands_know_every_floor():
    reached = {module: {floor(t) for t in imports(path)} for module, path in MODULES.items()}
    highest = {module for module in MODULES if floor(module) == len(FLOORS) - 1}
    assert {m for m in highest if not m.startswith(("psframe.bench.", "psframe.report.", "psframe.predict."))} == {
        "psframe.train",
        "psframe.run",
        "psframe.doctor",
        "psframe.bench",
        "psframe.compare",
        "psframe.report",
        "psframe.predict",
    }
    assert reached["psframe.train"]
    assert reached["psframe.doctor"]


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
