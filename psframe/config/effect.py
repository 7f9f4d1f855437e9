"""Keys of a section that have no effect beside its ``name`` (:func:`without`)."""

from collections.abc import Collection
from typing import Any

import msgspec


def without(section: str, settings: Any, used: Collection[str]) -> list[str]:
    """Return the keys of a section's ``settings``, a struct, that differ from their default and are not ``used``."""
    fields = [field for field in msgspec.structs.fields(settings) if field.name not in ("name", *used)]
    return [f"{section}.{field.name}" for field in fields if getattr(settings, field.name) != field.default]
