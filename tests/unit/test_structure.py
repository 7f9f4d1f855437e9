"""Imports point down only, in no circle, and files stay small enough to read."""

import ast

import pytest

from tests.helpers.launcher import ROOT
from tests.helpers.modules import MODULES, imports

#: commands, and the run behind one: they alone may know everything
COMMANDS = {
    "psframe.train",
    "psframe.run",
    "psframe.doctor",
    "psframe.bench",
    "psframe.compare",
    "psframe.report",
    "psframe.predict",
}
#: the floors, from the ground up; a module may import what stands below it, and on its own floor in no circle
FLOORS = [
    {"psframe", "psframe.errors", "psframe.limits"},
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
        "psframe.mpi_start",
        "psframe.process",
        "psframe.affinity",
        "psframe.startup",
        "psframe.begin",
        "psframe.traffic",
        "psframe.late",
        "psframe.sums",
        "psframe.replicas",
    },
    {"psframe.nn", "psframe.collectives", "psframe.stores", "psframe.optim", "psframe.schedule", "psframe.datasets"},
    {
        "psframe.data",
        "psframe.own_data",
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
        "psframe.optim_trial",
        "psframe.opening",
        "psframe.stages",
        "psframe.provision",
        "psframe.dry_run",
        "psframe.residency",
        "psframe.checkup",
    },
    COMMANDS,
]


def floor(module):
    for number, names in enumerate(FLOORS):
        if any(module == name or (name != "psframe" and module.startswith(name + ".")) for name in names):
            return number
    raise AssertionError(f"{module} stands on no floor: give it one in FLOORS")


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    for target in imports(MODULES[module]):
        assert floor(target) <= floor(module), f"{module} imports {target}, which stands above it"


def test_ranks_do_not_wait_in_mpi_between_steps():
    """MPI waits for ever; ``cluster.gather``, ``settle`` and ``barrier`` notice a rank that does not come."""
    for name in ("engine", "epoch", "measures"):
        source = (ROOT / "psframe" / f"{name}.py").read_text()
        assert "mpi4py" not in source
        assert not [
            node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr == "comm"
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


def test_highest_floor_holds_commands_alone():
    highest = {module for module in MODULES if floor(module) == len(FLOORS) - 1}
    rooms = ("psframe.bench.", "psframe.report.", "psframe.predict.")
    assert {module for module in highest if not module.startswith(rooms)} == COMMANDS


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
