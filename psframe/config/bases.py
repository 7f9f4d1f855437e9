"""Reader of a config file and of those that it builds on, by ``base: other.yaml`` (:func:`read`)."""

import os
from collections.abc import Mapping
from typing import Any

from psframe.config import placement_spec, strict_yaml, untrusted
from psframe.config.placement_spec import BY_TENSOR, ROLES, spelled_out
from psframe.errors import UserError, reason

KEY = "base"
MAX_BASES = 16  # of a config, each the base of the one before


def read(path: str, short: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a config merged over that of its bases, without ``base``.

    A base's path is relative to the folder of the file that names it. A base's ``name`` is not inherited: it names the
    runs of that config alone.

    Parameters
    ----------
    path : str
    short : mapping of str to str
        Sections that may be the bare name of a strategy, and the key of that name.
    defaults : mapping of str to str
        Names of the strategies of sections that name none.

    Raises
    ------
    UserError
        Missing or unreadable file, malformed YAML, bases in a circle, or more than ``MAX_BASES``.
    """
    files, contents = [path], [_content(path, "a config")]
    while (name := contents[-1].pop(KEY, None)) is not None:
        base = _path(files[-1], name)
        if len(files) > MAX_BASES:
            raise UserError(
                f"a config must have at most {MAX_BASES} bases, one of the other, got {base!r} after these for "
                f"{path!r}; merge some of them"
            )
        contents.append(_content(base, f"the base of {files[-1]!r}"))
        if os.path.realpath(base) in map(os.path.realpath, files):
            raise UserError(f"bases must not form a circle, got {' -> '.join([*files, base])}; remove the base of one")
        files.append(base)
    merged: dict[str, Any] = {}
    for content in reversed(contents):
        merged.pop("name", None)
        merged = over(merged, content, short, defaults)
    return merged


def _content(path: str, role: str) -> dict[str, Any]:
    try:
        text = untrusted.text(path, untrusted.CONFIG_BYTES)
    except UnicodeDecodeError:
        raise UserError(f"{role} must be UTF-8 text, got {path!r}, which is not; name a YAML file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise UserError(f"{role} must be a readable file, got {path!r} ({reason(error)}); check the path") from None
    content = strict_yaml.load(text, path)
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold keys and values, got {type(content).__name__}; begin with `model: lenet`")
    return content


def _path(file: str, name: object) -> str:
    """Return the path of the base that ``file`` names; UserError unless it is a text."""
    if not isinstance(name, str) or not name:
        raise UserError(f"{KEY} must be the path of a config, got {name!r} in {file!r}; write `{KEY}: other.yaml`")
    return os.path.join(os.path.dirname(file), untrusted.at_home(name))


def over(
    below: dict[str, Any], above: dict[str, Any], short: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, Any]:
    """Return a config's content over its base's; ``short`` and ``defaults`` as in :func:`read`."""
    for at in (below, above):
        if "placement" in at:
            at["placement"] = placement_spec.section(at["placement"])
    merged = _over(below, above)
    for section, key in short.items():
        if section in below and section in above:
            merged[section] = _strategy(_named(below[section], key), above[section], key, defaults.get(section))
    old, new = below.get("placement"), above.get("placement")
    if isinstance(old, dict) and isinstance(new, dict):
        for role in ROLES:
            if role in old and role in new:  # a bare name replaces the base's placement
                upper = new[role] if isinstance(new[role], str) else spelled_out(new[role])
                lower = spelled_out(old[role])
                if isinstance(upper, dict) and upper.get("name") == BY_TENSOR:
                    lower = None  # the order of patterns counts: they replace the base's
                merged["placement"][role] = _strategy(lower, upper, "name", "default")
    return merged


def _named(spec: Any, key: str) -> Any:
    """Expand the bare name of a strategy; YAML reads ``null``, the name of a collective, as None."""
    return {key: spec or "null"} if spec is None or isinstance(spec, str) else spec


def _strategy(below: Any, above: Any, key: str, default: str | None) -> Any:
    """Return a strategy's section over the base's, which it replaces if it names another strategy."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    name = below.get(key, default)
    return _over(below, above) if (above.get(key, name) or "null") == (name or "null") else above


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping over another, merged key by key at every depth."""
    merged = dict(below)
    for key, value in above.items():
        old = below.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
