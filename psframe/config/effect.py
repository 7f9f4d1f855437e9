"""Keys of a section that have no effect: those that were given (:func:`given`), or that a ``name`` does not use."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec


def given(section: str, settings: Any, keys: Iterable[str]) -> list[str]:
    """Return those ``keys`` of a section's ``settings``, a struct, that differ from their default."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(settings)}
    return [f"{section}.{key}" for key in keys if getattr(settings, key) != defaults[key]]


def without(section: str, settings: Any, used: Collection[str]) -> list[str]:
    """Return the keys that were given and are not ``used``, beside ``name``."""
    return given(section, settings, [key for key in settings.__struct_fields__ if key not in ("name", *used)])
