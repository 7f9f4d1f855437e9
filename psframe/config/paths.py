"""Keys of nested configs by their paths, such as ``train.epochs``: :func:`flat` lists all, :func:`at` finds one."""

from collections.abc import Mapping
from typing import Any


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config's values by their paths; keys of an empty mapping are none."""
    by_path: dict[str, Any] = {}
    for key, value in config.items():
        by_path |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return by_path


def at(config: Any, path: str) -> Any:
    """Return the value at a path; None if there is none."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config
