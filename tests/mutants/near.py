"""Tests that are near to a file of psframe, found by how they are called and by what they mention."""

import re
from collections.abc import Iterable
from pathlib import Path

#: how near a test is: called after the module; in a folder called after its package, and mentions it; is in such a
#: folder; has its or its package's name in its own; mentions it; takes what it does from a file beside it that does
NAMED, INSIDE_SAYS, INSIDE, CALLED, SAYS, BESIDE, FAR = range(7)
#: the quick before the slow: a folder of tests/, by how long its tests take
QUICK = ("unit", "fuzz", "ranks", "commands", "stress", "hosts", "knl")
HERE = Path(__file__).parent
COMMON = ("__init__", "__main__", "conftest")  # what every test of a folder has, or none
MANY = 30  # modules that a test mentions which is about all of them

Files = dict[Path, str]


def tests_of(root: Path, changed: Iterable[str]) -> list[str]:
    """Return the test files below ``root`` that are near to changed files, as paths from there.

    Quick folders come first, and the nearest first in each. Where none is near, those that are near to the modules
    that use the changed ones, or to their packages.
    """
    files = {path: path.read_text(errors="replace") for path in (root / "tests").rglob("*.[pc]*") if _counts(path)}
    files = {path: text for path, text in files.items() if len({*re.findall(r"psframe\.\w+", text)}) < MANY}
    modules = {module for name in changed for module in modules_of(root, Path(name))}
    found = _near(root, files, modules)
    if not found:
        packages = {package for module in modules if "." in (package := module.rpartition(".")[0])}
        found = _near(root, files, packages | {user for module in modules for user in _users(root, module)})
    paths = {test.relative_to(root): near for test, near in found.items()}
    return [str(path) for path in sorted(paths, key=lambda path: (slowness(str(path)), paths[path], path))]


def slowness(file: str) -> int:
    """Return the place of a test file, as a path from the checkout, among the quick and the slow ones."""
    folder = file.split("/")[1]
    return QUICK.index(folder) if folder in QUICK else len(QUICK)


def _near(root: Path, files: Files, modules: Iterable[str]) -> dict[Path, int]:
    tests = [path for path in files if path.name.startswith("test_") and path.suffix == ".py"]
    found: dict[Path, int] = {}
    for module in modules:
        says, words = re.compile(_mention(module)), {part.strip("_") for part in module.split(".")[1:]}
        if "._" in module:
            words.add("compiled")
        for path, text in files.items():
            told, called = bool(says.search(text)), bool(words & {*path.stem.split("_")[1:]})
            if path in tests:
                inside = bool(words & {*path.relative_to(root).parts[:-1]})
                near = INSIDE_SAYS if inside and told else INSIDE if inside else CALLED if called else SAYS
                near = NAMED if path.stem == f"test_{module.rpartition('.')[2].strip('_')}" else near
                if near != SAYS or told:
                    found[path] = min(found.get(path, FAR), near)
            elif (told or called) and path.stem not in COMMON:
                beside = [test for test in tests if test.parent == path.parent]
                for test in [test for test in beside if path.stem in files[test]] or beside:
                    found[test] = min(found.get(test, FAR), BESIDE)
    return found


def modules_of(root: Path, path: Path) -> list[str]:
    """Return the modules that a file of the checkout goes into: its own, or those whose sources name a header."""
    if path.suffix in (".h", ".pxd"):
        sources = (root / "psframe").rglob("*.pyx")
        users = [each.relative_to(root) for each in sources if path.stem == each.stem or path.name in each.read_text()]
        return [module for user in users for module in modules_of(root, user)]
    parts = path.with_suffix("").parts
    parts = parts if parts[0] == "psframe" else ("psframe", *parts)  # models and datasets lie beside it
    return [".".join(part for part in parts if part != "__init__")]


def _users(root: Path, module: str) -> list[str]:
    says = re.compile(_mention(module))
    paths = [path for path in (root / "psframe").rglob("*.py") if says.search(path.read_text())]
    return [user for path in paths for user in modules_of(root, path.relative_to(root)) if user != module]


def _counts(path: Path) -> bool:
    return path.suffix in (".py", ".c") and path.parent.name != HERE.name


def _mention(module: str) -> str:
    """Return a pattern of what names a module: with its package, in an import from there, or as a compiled one."""
    package, _, stem = module.rpartition(".")
    names = [rf"\b{re.escape(module)}\b", rf"from {re.escape(package)} import (\([^)]*|[^\n]*)\b{stem}\b"]
    if stem.startswith("_"):
        names += [rf"\bcompiled\.{stem.strip('_')}\b", rf'"{stem}\.h"']
    return "|".join(names)
