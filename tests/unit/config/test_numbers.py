"""Numbers from outside: every key of the config and every option refuses those that are none, or beyond all measure."""

import ast
import inspect
import typing
from argparse import ArgumentTypeError
from importlib import import_module

import msgspec
import pytest

from psframe import sync
from psframe.cluster.parser import Parser, counts, number, whole
from psframe.config import schema
from psframe.config.registry import MAX_FLOAT, bind, convert, keywords, load
from psframe.config.schema import Config
from psframe.errors import UserError
from psframe.train.schedule import learning_rate
from tests.helpers.families import FAMILIES
from tests.helpers.modules import MODULES

NOT_FINITE = [float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 10**39, 10**400]


def takes_a_float(kind):
    return kind is float or any(takes_a_float(arg) for arg in typing.get_args(kind) if not isinstance(arg, str))


def fields():
    for section in msgspec.structs.fields(Config):
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct):
            hints = typing.get_type_hints(section.type, include_extras=True)
            yield from (f"{section.name}.{name}" for name, kind in hints.items() if takes_a_float(kind))


def arguments():
    for family, table in FAMILIES.items():
        for name in table:
            make = load(family, table, name)
            hints = typing.get_type_hints(make.__init__ if inspect.isclass(make) else make, include_extras=True)
            yield from ((family, name, key) for key in keywords(make) if takes_a_float(hints.get(key, int)))


FIELDS, ARGUMENTS = list(fields()), list(arguments())
assert "fault.slow_steps" in FIELDS
assert ("optimizer", "sgd", "lr") in ARGUMENTS


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("key", FIELDS)
def test_keys_of_the_config_take_numbers_alone(key, value):
    section, _, name = key.partition(".")
    raw = {"name": "x", "model": "lenet", "dataset": "synthetic", section: {name: value}}
    with pytest.raises(UserError, match=f"^{key} must be "):
        schema.resolve(raw)


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize(("family", "name", "key"), ARGUMENTS)
def test_keys_of_strategies_take_numbers_alone(family, name, key, value):
    with pytest.raises(UserError, match=f"^{family}.{key} must be "):
        bind(family, FAMILIES[family], {"name": name, key: value})


def test_numbers_are_looked_for_in_lists_and_mappings_too():
    with pytest.raises(UserError, match=r"^dataset\.own\[1\] must be a finite number"):
        convert("", {"dataset": {"own": [1.0, float("nan")]}}, dict)
    assert convert("x", [MAX_FLOAT, -MAX_FLOAT, 0.0], list[float])
    for beyond in (10**39, -(10**39), 10**400):
        with pytest.raises(UserError, match=r"^x.* must be a finite number, at most 3.4e\+38, got "):
            convert("x", [beyond], list[float])
        assert convert("x", beyond, int) == beyond


@pytest.mark.parametrize("key", ["sync.deadline_s", "fault.late_s", "checkpoint.every_seconds", "fault.slow_steps"])
def test_seconds_are_as_many_as_can_be_waited(key):
    section, _, name = key.partition(".")
    kinds = {"sync": lambda v: bind("sync", sync.TABLE, {"mode": "sync_ps", name: v}, "mode", sync.Common)}
    raw = {"name": "x", "model": "lenet", "dataset": "synthetic"}
    take = kinds.get(section, lambda v: schema.resolve({**raw, section: {name: v}}))
    take(3600)
    for value in (1e10, 10**30):
        with pytest.raises(UserError, match=f"^{key} must be "):
            take(value)


def test_schedule_that_grows_beyond_all_numbers_is_told():
    grows = schema.Schedule(name="step", gamma=1e30, step_epochs=1)
    assert learning_rate(grows, 0.1, 100, 8, 50, 50.1) == float("inf")


def options(module):
    """Return the calls of a module that add an option of its command."""
    calls = [node for node in ast.walk(ast.parse(MODULES[module].read_text())) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]


COMMANDS = [module for module in MODULES if module != "psframe.cluster.parser" and options(module)]
PARSERS = [module for module in COMMANDS if "\ndef parser(" in MODULES[module].read_text()]
assert {"psframe.train.command", "psframe.bench.kernels", "psframe.bench.sweep", "psframe.report.__main__"} <= set(
    COMMANDS
)
assert {"psframe.run", "psframe.bench.step"} <= set(PARSERS)


@pytest.mark.parametrize("module", COMMANDS)
def test_options_of_every_command_are_of_a_kind_that_is_judged(module):
    """Also of those that make their parser where they use it."""
    kinds = {ast.unparse(word.value) for call in options(module) for word in call.keywords if word.arg == "type"}
    assert kinds <= {"int", "float"}, "give Parser a judge for it"
    assert not kinds or "ArgumentParser" not in MODULES[module].read_text(), "which judges nothing: make it a Parser"


@pytest.mark.parametrize("module", PARSERS)
def test_options_of_every_command_go_through_one_judge(module):
    made = import_module(module).parser()
    for action in made._actions:
        taken = made._registry_get("type", action.type, action.type)
        if action.type is float:
            assert taken is number
        elif action.type is int:
            assert taken is whole
        else:
            assert action.type is None, f"{action.option_strings}: give Parser a judge for it"


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "-1", "1e10", "x", ""])
def test_option_number_is_finite_and_of_a_human_size(text):
    with pytest.raises(ArgumentTypeError):
        number(text)
    made = Parser("x", "")
    made.add_argument("--seconds", type=float)
    with pytest.raises(UserError, match="--seconds"):
        made.parse_args([f"--seconds={text}"])


@pytest.mark.parametrize("text", ["1e9", "9" * 30, "9" * 5000, "nan", "1.5", "", "²"])
def test_option_whole_number_is_one(text):
    with pytest.raises(ArgumentTypeError):
        whole(text)
    assert counts(text) == []


def test_lists_of_counts():
    assert counts("1, 2,4") == [1, 2, 4]
    assert counts("2,0") == counts("2,,4") == counts("-1") == counts("3", most=2) == []
    assert (number("0"), number("2.5e3"), whole("-1")) == (0.0, 2500.0, -1)
