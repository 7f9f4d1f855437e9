"""Every module of psframe, by name, and what each imports."""

import ast

from tests.helpers.launcher import ROOT


def modules():
    """Return every module's path."""
    found = {}
    for package, folder in (("psframe", "psframe"), ("psframe.models", "models"), ("psframe.datasets", "datasets")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(p for p in parts if p != "__init__")])] = path
    return found


MODULES = modules()


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
