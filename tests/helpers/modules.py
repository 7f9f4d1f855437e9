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


def members():
    """Return, by the name of each class of psframe, all names that its body or that of a base holds or assigns."""
    own, bases = {}, {}
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                inner = list(ast.walk(node))
                own.setdefault(node.name, set()).update(
                    *({n.name for n in inner if isinstance(n, ast.FunctionDef)},),
                    *({n.attr for n in inner if isinstance(n, ast.Attribute)},),
                    *({n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)},),
                )
                bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
    return {name: names.union(*(own.get(base, ()) for base in bases[name])) for name, names in own.items()}


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
