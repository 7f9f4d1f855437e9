"""Short forms in a config: bare names of strategies (:func:`expand`), and overrides (:func:`override`)."""

from typing import Any

from psframe.config import placement_spec, strict_yaml
from psframe.config.placement_spec import ROLES, spelled_out
from psframe.errors import UserError

#: sections that may be the bare name of a strategy, and the key of that name
STRATEGIES = {"model": "name", "dataset": "name", "optimizer": "name", "sync": "mode", "collective": "name"}
#: all sections that may be a bare name
SHORT = {**STRATEGIES, "schedule": "name", "average": "name"}


def expand(raw: dict[str, Any]) -> None:
    """Expand every bare name of a strategy in place; YAML reads ``null``, the name of a collective, as None."""
    for section, key in SHORT.items():
        if section not in raw:
            continue
        value = raw[section]
        if value is None or isinstance(value, str):
            raw[section] = {key: value or "null"}
        elif not isinstance(value, dict):
            raise UserError(f"{section} must be a name or keys and values, got {value!r}; write `{section}: NAME`")
        elif key in value and value[key] is None:
            value[key] = "null"
    placement: Any = placement_spec.section(raw.get("placement"))
    if isinstance(placement, dict):
        raw["placement"] = placement
    for role in ROLES if isinstance(placement, dict) else ():
        value = spelled_out(placement.get(role, "default"))
        if not isinstance(value, dict):
            raise UserError(f"placement.{role} must be a placement, got {value!r}; write `{role}: NAME`")
        placement[role] = {"name": "default", **value}


def override(raw: dict[str, Any], override: str) -> None:
    """Apply ``key.path=value`` to a config in place; UserError if it is not of that form."""
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if path == "tuned":
        raise UserError(f"{override} is for psframe train, run and fit, got it elsewhere; leave it out here")
    if not equals or not all(keys):
        raise UserError(f"an override must be key.path=value, got {override!r}; write, say, train.epochs=3")
    if len(keys) > strict_yaml.MAX_DEPTH:
        raise UserError(f"an override must have at most {strict_yaml.MAX_DEPTH} keys, got {override!r}; check the path")
    at: Any = raw
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise UserError(f"{override!r} must reach into keys and values, but {key!r} is {at!r}; check the path")
    value = strict_yaml.load(text, f"the value of {override!r}")
    if path == "placement" and value == "auto" and isinstance(old := at.get(path), dict):
        value = {**old, **placement_spec.section(value)}  # what else the section says stays
    at[keys[-1]] = value
    expand(raw)
