"""Comparison of a config with that of the run that it is to continue (:func:`check_same`)."""

from pathlib import Path
from typing import Any

import msgspec

from psframe.config.paths import flat
from psframe.config.schema import Config
from psframe.errors import UserError

#: keys that a continued run may change, because none changes the computation; see also :func:`_fixed`
FREE_KEYS = (
    ("train", "epochs"),
    ("train", "threads"),
    ("train", "precision"),
    ("train", "stop"),
    ("sync", "balance"),
    ("sync", "wait"),
    ("sync", "deadline_s"),
    ("record",),
    ("checkpoint",),
    ("fault",),
    ("elastic",),
    ("parallel",),
    ("versions",),
)
#: sections with fixed keys, with the default of each
_DEFAULTS: dict[str, dict[str, Any]] = {
    field.name: msgspec.to_builtins(field.default)
    for field in msgspec.structs.fields(Config)
    if isinstance(field.default, msgspec.Struct)
}


def check_same(path: Path, old: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Raise UserError if a config differs from ``old``, that of the run at ``path``, in what the bits depend on."""
    differing = sorted(_leaves(_fixed(old)) ^ _leaves(_fixed(resolved)))
    if differing:
        keys = ", ".join(dict.fromkeys(key for key, _ in differing))
        raise UserError(
            "a continued run may differ in train.epochs, train.threads, train.precision, train.stop, collective, "
            "sync.balance, sync.wait, sync.deadline_s, checkpoint, fault, elastic, parallel, record and the number of "
            f"ranks, got other values of {keys} than in {str(path)!r}; give the same ones, or start anew with "
            "checkpoint.resume=none"
        )


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of ``config`` that must not change: all but the free keys.

    Keys that psframe did not have yet when the run was begun have their defaults, which change nothing.
    """
    fixed = {k: dict(v) if isinstance(v, dict) else v for k, v in (_DEFAULTS | config).items()}
    for name, defaults in _DEFAULTS.items():
        if isinstance(fixed[name], dict):
            fixed[name] = defaults | fixed[name]
    for *section, key in FREE_KEYS:
        at = fixed
        for name in section:
            at = inner if isinstance(inner := at.get(name), dict) else {}
        at.pop(key, None)
    # the collective affects the results only through its compression
    collective = fixed.pop("collective", None)
    fixed["compression"] = collective.get("compression", "none") if isinstance(collective, dict) else "none"
    return fixed


def _leaves(config: dict[str, Any]) -> set[tuple[str, str]]:
    """Return a config's paths, each with its value's text."""
    return {(path, repr(value)) for path, value in flat(config).items()}
