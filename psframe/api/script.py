"""Objects of a script, which a config names as ``psframe.api.script:NAME``; on ranks, :func:`give` has brought them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from psframe.errors import UserError

_objects: dict[str, Any] = {}


def give(objects: Mapping[str, Any]) -> None:
    """Replace the objects by others."""
    _objects.clear()
    _objects.update(objects)


@contextmanager
def given(objects: Mapping[str, Any]) -> Iterator[None]:
    """Replace the objects by others within a context."""
    before = dict(_objects)
    give(objects)
    try:
        yield
    finally:
        give(before)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name not in _objects:
        raise UserError(
            f"a config of a script's objects must be run by that script, got {__name__}:{name} without one; give "
            f"{'data' if name == 'dataset' else name.partition('_')[0]}=... to this call, or to psframe.open_run"
        )
    return _objects[name]
