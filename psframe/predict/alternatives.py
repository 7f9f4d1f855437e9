"""Parser of ``--what-if`` (:func:`judged`): a key of a way to train, or of a machine, and its values."""

from typing import Any

from psframe.config.schema import parse_value
from psframe.errors import UserError, nearest
from psframe.predict import machine
from psframe.predict.exchange import COLLECTIVES

#: keys of a way to train, and of a machine
WAYS = ("collective", "mode", "server", "n_servers", "reproducible", "tier", "link", "threads", "per_node")
FIGURES = ("cores", *machine.FIGURES)
KEYS = (*WAYS, "batch_size", *FIGURES)
VALID: dict[str, tuple[str, ...]] = {
    "collective": COLLECTIVES,
    "mode": ("sync_ps", "allreduce"),
    "server": ("dedicated", "colocated"),
    "reproducible": ("none", "fixed_workers"),
}


def judged(said: str) -> tuple[str, list[Any]]:
    """Return the key and the values of KEY=VALUE,VALUE; raise UserError if one is invalid."""
    key, equals, values = said.partition("=")
    parsed = parse_value(f"[{values}]") if equals else []
    if key not in KEYS or not isinstance(parsed, list) or not parsed:
        raise UserError(f"--what-if must be KEY=VALUE,VALUE, got {said!r}; {nearest(key, KEYS)}")
    parsed = [str(value) if key == "link" else value for value in parsed]
    for value in parsed:
        _check(key, value)
    return key, parsed


def _check(key: str, value: Any) -> None:
    if key == "batch_size" and (type(value) is not int or not 1 <= value <= 2**31):
        raise UserError(f"--what-if batch_size must be 1 or more, got {value!r}; give a whole number")
    if key in FIGURES:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 1e-6 <= value <= 1e9 or (key == "cores" and value % 1):
            raise UserError(f"--what-if {key} must be a positive number, cores a whole one, got {value!r}; give one")
    if key == "link":
        machine.link(value)
    if key in VALID and value not in VALID[key]:
        raise UserError(f"--what-if {key} must be one of {', '.join(VALID[key])}, got {value!r}; give one of these")
    if key in ("n_servers", "threads", "per_node") and (type(value) is not int or value < 1):
        raise UserError(f"--what-if {key} must be 1 or more, got {value!r}; give a whole number")
