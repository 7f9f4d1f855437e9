"""JSON Schema of a config (:func:`text`), by which an editor completes keys, explains them and marks mistakes.

It accepts every file that psframe accepts, if its strategies are psframe's own. ``psframe check`` judges more: what
several keys say together, and whether they fit the data.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from psframe import __version__, sync
from psframe.config import bases, registry, schema
from psframe.config.placement_spec import REST, ROLES, SHORT
from psframe.train.plan.sections import TABLES

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN = {
    "type": "string",
    "pattern": f"^[^:]+:.+{registry.END}",
    "description": "A strategy of your own, as my_module:attr.",
}
REQUIRED = ("model", "dataset")


def text() -> str:
    """Return the schema as JSON."""
    return json.dumps(of_configs(), indent=2, ensure_ascii=False)


def of_configs() -> Schema:
    """Return the schema, as plain values."""
    properties: Schema = {
        bases.KEY: {"type": ["string", "null"], "description": "Path of a config that this one builds on."}
    }
    for field in msgspec.structs.fields(schema.Config):
        if field.name in schema.STRATEGIES:
            properties[field.name] = _strategy(field.name)
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            properties[field.name] = _section(field.name, field.type)
        else:
            properties[field.name] = _value(field.type, default(field))
    complete = {name: _complete(name, key) for name, key in schema.STRATEGIES.items()}
    properties["placement"] = {"anyOf": [{"const": "auto"}, properties["placement"]]}
    complete["placement"] = {"properties": {role: {"$ref": "#/$defs/complete_place"} for role in ROLES}}
    return {
        "$schema": DIALECT,
        "title": f"Config of psframe {__version__}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {"place": _placement(), "complete_place": _complete(f"placement.{ROLES[0]}", "name")},
        "if": {"properties": {bases.KEY: {"type": "null"}}},
        "then": {"required": [*REQUIRED], "properties": complete},
    }


def _section(name: str, struct: type[msgspec.Struct]) -> Schema:
    """Return the schema of a section with fixed keys, which may be a bare name if it has one."""
    document = plain(inspect.getdoc(struct) or "")
    properties = {}
    for field in msgspec.structs.fields(struct):
        if struct is schema.Placement and field.name in ROLES:
            properties[field.name] = {"description": f"Placement of the role {field.name}.", "$ref": "#/$defs/place"}
        else:
            properties[field.name] = _value(field.type, default(field), _about(document, field.name))
    section = {"description": document, "type": "object", "properties": properties, "additionalProperties": False}
    if name in schema.SHORT:
        return {"description": document, "anyOf": [properties[schema.SHORT[name]], section]}
    return section


def _strategy(section: str) -> Schema:
    """Return the schema of a section that names a strategy: a bare name, or a mapping with the keys of each member."""
    key, default = schema.STRATEGIES[section], schema.DEFAULTS.get(section)
    members = _members(section, sync.Common if section == "sync" else None)
    choices: list[Schema] = [_bare(section), OWN]
    choices += [_member(key, name, members, _names(name)) for name in members]
    else_ = f", {default} by default" if default else ""
    about = f"Strategy of the section {section}: a name, or a mapping with the name as `{key}`{else_}."
    return {"description": about, "anyOf": [*choices, _nameless(members, key, default), _of_own(key)]}


def _bare(section: str) -> Schema:
    names: list[Any] = [*TABLES[section]]
    return {"enum": names + [None] * ("null" in names)}


def _names(name: str) -> Schema:
    """Return the schema of a name; YAML reads ``null`` as nothing."""
    return {"enum": ["null", None]} if name == "null" else {"const": name}


def _placement() -> Schema:
    """Return the schema of a role's placement; all roles have the same."""
    section = f"placement.{ROLES[0]}"
    members = _members(section)
    choices = [_bare(section), OWN, *(_member("name", name, members, _names(name)) for name in members)]
    for short, key in SHORT.items():
        _, keys = members[short]
        others = {name: True for name in _all_keys(members) if name not in keys}
        properties = {short: keys[key], **keys, **others}
        choices.append({"type": "object", "properties": properties, "required": [short], "additionalProperties": False})
    choices += [_nameless(members, "name", "default"), _of_own("name")]
    by_tensor = {"type": "object", "additionalProperties": {"$ref": "#/$defs/place"}}
    is_by_tensor = {"type": "object", "required": [REST], "not": {"required": ["name"]}}
    return {"default": "default", "if": is_by_tensor, "then": by_tensor, "else": {"anyOf": choices}}


Members = Mapping[str, tuple[str, dict[str, Schema]]]  #: by name: the summary, and the schema of each key


def _members(section: str, common: Callable[..., Any] | None = None) -> Members:
    members = {}
    for name in TABLES[section]:
        make = registry.load(section, TABLES[section], name)
        keys = _keys(make) | (_keys(common) if common else {})
        members[name] = (plain(inspect.getdoc(make) or "").partition("\n\n")[0], keys)
    return members


def _member(key: str, name: str, members: Members, spelled: Schema) -> Schema:
    """Return the schema of a mapping that names a member; it may have the keys of the others, without effect."""
    about, keys = members[name]
    others = {other: True for other in _all_keys(members) if other not in keys}
    return {
        "title": name,
        "description": about,
        "type": "object",
        "properties": {key: spelled, **keys, **others},
        "required": [key],
        "additionalProperties": False,
    }


def _nameless(members: Members, key: str, default: str | None) -> Schema:
    """Return the schema of a mapping without a name: that of the default, or with a base that of any member."""
    keys = _all_keys(members)
    used = members[default][1] if default else keys
    properties = {name: value if name in used else True for name, value in keys.items()}
    return {"type": "object", "properties": {key: False, **properties}, "additionalProperties": False}


def _of_own(key: str) -> Schema:
    return {"title": "my_module:attr", "type": "object", "properties": {key: OWN}, "required": [key]}


def _all_keys(members: Members) -> dict[str, Schema]:
    """Return the keys of all members, each with the values that any of them takes."""
    values: dict[str, list[Schema]] = {}
    for _, keys in members.values():
        for name, value in keys.items():
            kinds = values.setdefault(name, [])
            kinds += [value] if value not in kinds else []
    return {name: kinds[0] if len(kinds) == 1 else {"anyOf": kinds} for name, kinds in values.items()}


def _complete(section: str, key: str) -> Schema:
    """Return what else holds without a base: a name where there is no default, and the keys that have none."""
    rules: list[Schema] = []
    if section in REQUIRED:
        rules.append({"if": {"type": "object"}, "then": {"required": [key]}})
    for name in TABLES[section]:
        parameters = registry.keywords(registry.load(section, TABLES[section], name)).values()
        required = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
        if required:
            named = {"type": "object", "properties": {key: {"const": name}}, "required": [key]}
            rules += [{"not": {"const": name}}, {"if": named, "then": {"required": required}}]
    return {"allOf": rules} if rules else {}


def _keys(make: Callable[..., Any]) -> dict[str, Schema]:
    """Return the schema of each key of a strategy."""
    hints = registry.kinds(make)
    owner = inspect.getdoc(make) or ""
    document = owner + "\n" + (inspect.getdoc(make.__init__) or "" if inspect.isclass(make) else "")
    return {
        name: _value(hints.get(name, Any), parameter.default, _of_parameter(document, name))
        for name, parameter in registry.keywords(make).items()
    }


def _value(kind: Any, default: Any, about: str = "") -> Schema:
    value: Schema = msgspec.json.schema(kind)
    structs = value.pop("$defs", {})
    if "anyOf" in value:
        value["anyOf"] = [structs.get(each.get("$ref", "").rpartition("/")[2], each) for each in value["anyOf"]]
    if default is not inspect.Parameter.empty and default is not msgspec.NODEFAULT:
        value["default"] = msgspec.to_builtins(default)
    if about:
        value["description"] = about
    return value


def default(field: Any) -> Any:
    """Return the default of a field of a struct; ``msgspec.NODEFAULT`` if it has none."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _of_parameter(document: str, name: str) -> str:
    """Return what a numpydoc section says of a parameter or attribute; "" if nothing."""
    match = re.search(rf"^{name} : [^\n]*\n((?:    [^\n]*\n?)+)", document + "\n", re.MULTILINE)
    return plain(" ".join(match[1].split())) if match else ""


def _about(document: str, name: str) -> str:
    """Return the clauses of a section's description that mention a key; "" if none does."""
    clauses = re.split(r"(?<=[.;])\s+", " ".join(document.split()))
    return " ".join(clause for clause in clauses if re.search(rf"`{name}[`:]", clause)).rstrip(";")


def plain(text: str) -> str:
    """Return a docstring without its attributes, as plain text with single backquotes, which is Markdown, too."""
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("``", "`").partition("\n\nAttributes\n")[0]
