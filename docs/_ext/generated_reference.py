"""Sphinx extension that writes ``docs/reference/generated`` from schema, strategies, parsers, errors and notebooks.

Nothing there is kept under version control, so none of it can go stale.
"""

import ast
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import notebooks

import psframe
from psframe import sync
from psframe.bench.__main__ import BENCHES
from psframe.config import registry, schema
from psframe.memory import placement
from psframe.starter import COMMANDS, json_schema
from psframe.sync import stores
from tests.helpers import families

PACKAGE = Path(psframe.__file__).parent
FOLDER = Path(__file__).parents[1] / "reference" / "generated"
FAMILIES = {**families.FAMILIES, "placement": placement.TABLE, "sync.store": stores.TABLE}


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", lambda _: write(FOLDER))
    app.connect("build-finished", lambda app, _: write_schema(Path(app.outdir) / "config.schema.json"))
    return {"parallel_read_safe": True}


def write(folder: Path) -> None:
    """Write every generated page to ``folder``."""
    folder.mkdir(exist_ok=True)
    pages: dict[str, Callable[[], Iterator[str]]] = {
        "config-keys": config_keys,
        "strategies": strategies,
        "commands": commands,
        "errors": errors,
    }
    for name, page in pages.items():
        (folder / f"{name}.md").write_text("\n".join(page()) + "\n")
    for path in sorted(notebooks.FOLDER.glob("*.ipynb")):
        path.with_suffix(".md").write_text("\n".join(notebooks.page(path)) + "\n")


def write_schema(path: Path) -> None:
    """Write the JSON Schema of configs, which editors read from the site."""
    path.write_text(json_schema.text() + "\n")


def config_keys() -> Iterator[str]:
    """Yield a table of each section of a config: keys, types and defaults."""
    yield "# Config keys\n"
    yield "Made from `psframe/config/schema.py`. Strategies have [keys of their own](strategies.md).\n"
    plain = [field for field in msgspec.structs.fields(schema.Config) if field.name in ("name", "affinity")]
    yield from _table((field.name, _kind(field.type), _default(json_schema.default(field))) for field in plain)
    yield "`model` and `dataset` are required, too; they and `optimizer`, `sync` and `collective` name a strategy.\n"
    for field in msgspec.structs.fields(schema.Config):
        section = field.type
        if not (isinstance(section, type) and issubclass(section, msgspec.Struct)):
            continue
        yield f"## `{field.name}`\n\n{_prose(section)}\n"
        yield from _table(
            (inner.name, _kind(inner.type), _default(json_schema.default(inner)))
            for inner in msgspec.structs.fields(section)
        )


def strategies() -> Iterator[str]:
    """Yield each member of each family, with its keys."""
    yield "# Strategies and their keys\n"
    yield "Made from the code. Each name may also be `my_module:attr`, a strategy of your own.\n"
    for family, table in FAMILIES.items():
        yield f"## `{family}`\n"
        for name in table:
            make = registry.load(family, table, name)
            yield f"### {family}: `{name}`\n\n{_summary(make)}\n"
            yield from _keys(make)
        if family == "sync":
            yield f"### Keys of every mode\n\n{_prose(sync.Common)}\n"
            yield from _keys(sync.Common)


def commands() -> Iterator[str]:
    """Yield what each command prints for ``--help``."""
    yield "# Commands and their options\n"
    yield "What each command prints for `--help`.\n"
    for words in ([], *([name] for name in COMMANDS if name != "bench"), *(["bench", name] for name in BENCHES)):
        command = [sys.executable, "-m", "psframe", *words, "--help"]
        help_text = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True).stdout
        yield f"## `{' '.join(['psframe', *words])}`\n\n```text\n{help_text.strip()}\n```\n"


def errors() -> Iterator[str]:
    """Yield every message of a user's mistake, by module, with ``...`` where a message has a value."""
    yield "# Messages\n"
    yield "Every mistake that psframe tells in a sentence: the rule, the value it got (here `…`), and the fix.\n"
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        said = [_template(call.args[0]) for call in calls if _name(call.func) == "UserError" and call.args]
        if texts := sorted({text for text in said if text and len(text) > 20}):
            yield f"## {_module(path)}\n"
            yield from (f"- {_escaped(text)}" for text in texts)
            yield ""


def _keys(make: Callable[..., Any]) -> Iterator[str]:
    hints = registry.kinds(make)
    rows = [
        (name, _kind(hints.get(name, Any)), _default(parameter.default))
        for name, parameter in registry.keywords(make).items()
    ]
    yield from _table(rows) if rows else ("No keys.\n",)


def _table(rows: Any) -> Iterator[str]:
    yield "| key | type | default |\n|---|---|---|"
    for name, kind, default in rows:
        yield f"| `{name}` | {kind} | {default} |"
    yield ""


def _kind(kind: Any) -> str:
    """Return a type as a reader of YAML calls it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _kind(args[0]) + _bounds(args[1:])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in args)
    if args and origin not in (list, dict, tuple, Mapping):
        return " or ".join(dict.fromkeys(_kind(arg) for arg in args))
    if origin in (list, tuple):
        return f"a list of {_kind(args[0])}s" if args and origin is list else "a list"
    names = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", type(None): "`null`"}
    return names.get(kind, str(getattr(kind, "__name__", kind)).replace("|", "or"))


def _bounds(marks: Any) -> str:
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [_pattern(mark.pattern) for mark in marks if getattr(mark, "pattern", None)]
    found += [
        f"{sign} {getattr(mark, name):g}" for mark in marks for name, sign in words.items()
        if getattr(mark, name, None) is not None and getattr(mark, name) < 1e9
    ]  # fmt: skip
    lengths = {"min_length": "at least", "max_length": "at most"}
    found += [
        f"{sign} {getattr(mark, name):,} characters" for mark in marks for name, sign in lengths.items()
        if getattr(mark, name, None) is not None
    ]  # fmt: skip
    return f" ({', '.join(found)})" if found else ""


def _pattern(pattern: str) -> str:
    """Return what the messages of mistakes say of a text that must match a pattern, without "a text"."""
    return registry.plainly(f"str matching regex {pattern!r}").removeprefix("a text ")


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty or value is msgspec.NODEFAULT:
        return "required"
    plain = {None: "null", True: "true", False: "false"}
    text = plain[value] if value is None or isinstance(value, bool) else msgspec.to_builtins(value)
    return f"`{text if text != '' else chr(34) * 2}`"


def _summary(make: Callable[..., Any]) -> str:
    return _prose(make).partition("\n\n")[0]


def _prose(owner: Any) -> str:
    return json_schema.plain(inspect.getdoc(owner) or "")


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _module(path: Path) -> str:
    return f"`{'.'.join(('psframe', *path.relative_to(PACKAGE).with_suffix('').parts)).removesuffix('.__init__')}`"


def _escaped(text: str) -> str:
    return re.sub(r"([<>*_\[\]|])", r"\\\1", " ".join(text.split()))
