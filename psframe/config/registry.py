"""Registry of strategies by name (:func:`bind`): a literal table per family, or a user's own ``my_module:attr``.

Conventions
-----------
A strategy is any callable. psframe passes its positional parameters; its **keyword-only parameters are the keys a user
may write in YAML**, and their annotations are the types those keys are checked against.

``my_module:attr`` imports the module and calls the attribute, so a config with such a name runs code: treat one from
elsewhere as a program (SECURITY.md).
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, get_type_hints

import msgspec

from psframe.errors import UserError, limits, nearest, reason

PositiveInt = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]  #: in [0, 1)
MAX_SECONDS = 1e9  # 31 years: within the range of the calls that wait
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
Deadline = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]  #: seconds, more than 0
MAX_FLOAT = 3.4e38  # just below the largest float32, the type in which most numbers end
END = r"(?![\s\S])"  #: end of a text in a pattern: ``$`` also matches before a last line break, editors know no ``\Z``

Table = Mapping[str, str]  #: name -> "module:attr", so that only chosen members are imported


@dataclass(frozen=True)
class Choice:
    """A strategy named by a config, with validated arguments.

    Attributes
    ----------
    section : str
        Key of the config's section, e.g. ``optimizer``.
    name : str
        As written: a name of the table, or ``module:attr``.
    arguments : dict
        Every keyword-only parameter, including defaults.
    unused : tuple of str
        Given keys that only other members of the family accept.
    common : dict
        Arguments that every member of the family has.
    """

    section: str
    name: str
    make: Callable[..., Any]
    arguments: dict[str, Any]
    unused: tuple[str, ...] = ()
    common: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, Any]:
        """All arguments, as the config names them."""
        return {**self.arguments, **self.common}

    def __call__(self, *given: Any) -> Any:
        return self.make(*given, **self.arguments)

    def taking(self, n_given: int) -> "Choice":
        """Return self; UserError if it does not accept ``n_given`` positional arguments."""
        try:
            inspect.signature(self.make).bind(*[None] * n_given, **self.arguments)
        except TypeError as error:
            raise UserError(
                f"{self.section}: {self.name!r} must take {n_given} positional argument(s), and does not "
                f"({error}); name another"
            ) from None
        return self


def load(section: str, table: Table, name: object) -> Callable[..., Any]:
    """Import the strategy ``name``; UserError if it is neither in ``table`` nor an importable ``module:attr``."""
    if not isinstance(name, str):
        raise UserError(f"{section} must name a strategy, got {name!r}; {nearest(name, table)}, or my_module:attr")
    if ":" not in name:
        if name not in table:
            raise UserError(f"{section}: there is no {name!r}; {nearest(name, table)}, or your own as my_module:attr")
        name = table[name]
    module_name, _, attr = name.partition(":")
    if not module_name.replace(".", "_").isidentifier() or module_name.startswith("."):
        raise UserError(f"{section} must be a name or my_module:attr, got {name!r}; {nearest(name, table)}")
    if module_name.endswith(".py"):
        raise UserError(f"{section} must be my_module:attr, got {name!r}; write {module_name[:-3]}:{attr}, without .py")
    try:
        target = importlib.import_module(module_name)
    except ImportError as error:
        if limits.met(error):
            raise
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise UserError(
                f"{section}: cannot import {module_name!r} (from {name!r}); give a module that lies in the folder "
                "psframe is started from or on PYTHONPATH"
            ) from None
        raise UserError(
            f"{section}: {module_name!r} cannot be imported here ({reason(error)}); install what it needs"
        ) from None
    except SyntaxError as error:
        raise UserError(
            f"{section}: {module_name!r} must be Python, got a syntax error in {error.filename}, line {error.lineno}; "
            "mend it"
        ) from None
    for part in attr.split("."):
        if not hasattr(target, part):
            raise UserError(f"{section}: module {module_name!r} has no {attr!r}; {nearest(attr, _callables(target))}")
        target = getattr(target, part)
    if not callable(target):
        raise UserError(f"{section}: {name!r} must be callable, got {type(target).__name__}; name a class or function")
    return target


def _callables(module: object) -> list[str]:
    module_name = getattr(module, "__name__", None)
    return [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module_name]


def convert(where: str, value: object, kind: Any) -> Any:
    """Convert ``value`` to ``kind`` (a type annotation); UserError with the rule for ``where`` if it is invalid."""
    try:
        converted = msgspec.convert(value, kind)
        _check_finite(where, msgspec.to_builtins(converted))  # an integer may become a float
        return converted
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1, got `str` - at `$.epochs`": msgspec names the place below the value it was given
        message, _, place = str(error).replace("[...]", "").partition(" - at `$")  # some value of a mapping
        for key in re.findall(r"\.([^.\[`]+)|\[(\d+)\]", place):
            at = key[0] or int(key[1])
            where = f"{where}.{at}".lstrip(".") if key[0] else f"{where}[{at}]"
            value, kind = _member(value, at), _kind(kind, at)
        rule = message.removeprefix("Expected ").split(", got ")[0].replace("`", "")
        if message.startswith("Invalid enum value"):
            rule = " or ".join(filter(None, (_numbers(kind), "one of " + ", ".join(_names(kind)))))
        rule = plainly(rule)
        fix = "mend the config" if "[" in where else f"mend the config or give {where}=VALUE"
        raise UserError(f"{where} must be {rule}, got {value!r}; {fix}") from None


def _check_finite(where: str, value: object) -> None:
    """Raise UserError if a number at any depth is NaN or exceeds ``MAX_FLOAT`` in magnitude."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_finite(f"{where}.{key}".lstrip("."), inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _check_finite(f"{where}[{number}]", inner)
    elif isinstance(value, float) and not abs(value) <= MAX_FLOAT:
        fix = "mend the config" if "[" in where else f"mend the config or give {where}=VALUE"
        raise UserError(f"{where} must be a finite number, at most {MAX_FLOAT:g}, got {value!r}; {fix}")


#: msgspec's terms -> plain words for users
PLAIN = {
    r"\bobject\b": "keys and values",
    r"^array\b": "a list",
    r"\bint\b": "a whole number",
    r"\bfloat\b": "a number",
    r"^Number out of range$": f"a finite number, at most {MAX_FLOAT:g}",
    r"\bstr matching regex .*\^\[A-Za-z0-9\].*": "a text of letters, digits, dots, dashes and underscores that begins "
    "with a letter or digit",
    r"\bstr\b": "a text",
    r"\bbool\b": "true or false",
    r" \| ": " or ",
}


def plainly(rule: str) -> str:
    """Return a rule of msgspec, such as ``int >= 1``, in plain words."""
    for jargon, plain in PLAIN.items():
        rule = re.sub(jargon, plain, rule)
    return rule


def _names(kind: Any) -> list[str]:
    """Return the strings that a Literal allows, also inside a union."""
    args = getattr(kind, "__args__", ())
    return [
        name for arg in args for name in (_names(arg) if hasattr(arg, "__args__") else [arg]) if isinstance(name, str)
    ]


def _numbers(kind: Any) -> str:
    """Return "a number" for a union of names and a number, else ""."""
    return (
        "a number" if any(not isinstance(arg, str) and not _names(arg) for arg in getattr(kind, "__args__", ())) else ""
    )


def _member(value: Any, at: str | int) -> Any:
    try:
        return value[at]
    except (KeyError, IndexError, TypeError):
        return None


def _kind(kind: Any, at: str | int) -> Any:
    fields = msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
    return next((field.type for field in fields if field.name == at), kind)


def keywords(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of ``target``: the YAML keys it accepts."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # some built-in types have no signature
        raise UserError(f"a strategy must be a function or class with a signature, got {target!r}; name one") from None
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def kinds(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the type annotation of each parameter of ``target`` that has one."""
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target):
        target = target.__init__ if inspect.isclass(target) else type(target).__call__
    return get_type_hints(target, include_extras=True)


def bind(
    section: str, table: Table, spec: Mapping[str, Any], key: str = "name", common: Callable[..., Any] | None = None
) -> Choice:
    """Resolve one section of the config to a strategy and its validated arguments.

    Parameters
    ----------
    section : str
        Key of ``spec`` in the config, for messages.
    table : Table
        The family's members.
    spec : mapping
        ``{key: name, argument: value, ...}``.
    common : callable, optional
        Takes the keys that every member has, whether or not it needs them.

    Raises
    ------
    UserError
        Unknown name, unknown or missing key, or a value of the wrong type.
    """
    name = spec.get(key)
    make = load(f"{section}.{key}", table, name)
    takes, shared = keywords(make), keywords(common) if common else {}
    raw = {k: v for k, v in spec.items() if k != key}
    unused = [k for k in raw if k not in takes and k not in shared]
    if unused:
        known = set(takes).union(*(keywords(load(section, table, other)) for other in table))
        for k in unused:
            if k not in known:
                fix = _as_keyword(make, k) or nearest(k, [*takes, *shared, key])
                raise UserError(f"{section}.{k}: {name} takes no such key (got {raw[k]!r}); {fix}")
    arguments = _arguments(section, str(name), make, raw)
    of_all = _arguments(section, str(name), common, raw) if common else {}
    return Choice(section, str(name), make, arguments, tuple(unused), of_all)


def _as_keyword(make: Callable[..., Any], key: str) -> str:
    """Return the fix for a key that is a parameter of ``make`` but not keyword-only; "" if it is none."""
    if key not in inspect.signature(make).parameters:
        return ""
    name = getattr(make, "__name__", "build")
    return f"keys are keyword-only parameters: write it behind a `*`, as in def {name}(..., *, {key})"


def _arguments(section: str, name: str, make: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of ``make``, from the given keys and its defaults."""
    hints, arguments = kinds(make), {}
    for k, parameter in keywords(make).items():
        if k in given:
            arguments[k] = convert(f"{section}.{k}", given[k], hints.get(k, Any))
        elif parameter.default is inspect.Parameter.empty:
            fix = "add it" if "[" in section else f"add it, or give {section}.{k}=VALUE"
            raise UserError(f"{section}.{k} is required by {name}, and is missing; {fix}")
        else:
            arguments[k] = parameter.default
    return arguments
