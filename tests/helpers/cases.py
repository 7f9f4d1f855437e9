"""Cases over ranks of a folder (:func:`found`), for the harness that runs them."""

import importlib
from collections.abc import Callable
from pathlib import Path

Case = Callable[..., None]


def found(folder: Path, package: str) -> dict[str, Case]:
    """Return every case of a folder's ``case_*.py`` by name, in the order of their modules' names and lines."""
    every = {}
    for path in sorted(folder.glob("case_*.py")):
        module = importlib.import_module(f"{package}.{path.stem}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "ranks"):
                every[f"{path.stem.removeprefix('case_')}.{name}"] = value
    return every
