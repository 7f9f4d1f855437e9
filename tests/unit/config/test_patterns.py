"""Patterns of texts from outside: they end where the text ends, and messages say them in plain words."""

import ast
import re
import typing

import msgspec
import pytest

from psframe.config import registry, schema, untrusted
from tests.helpers.families import FAMILIES
from tests.helpers.modules import MODULES

TAKES_A_PATTERN = ("compile", "match", "search", "fullmatch", "findall", "finditer", "Meta")
ENDS = re.compile(r"(?<!\\)\$(?![^\[]*\])")  # not in a set of characters, where it is a dollar


def loose(source):
    """Yield the patterns with ``$`` in a module's calls, without those that go over the lines of a text."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in TAKES_A_PATTERN:
            texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
            over_lines = re.search(r"\bre\.M(ULTILINE)?\b", ast.unparse(call))
            yield from (text for text in texts if isinstance(text, str) and ENDS.search(text) and not over_lines)


def test_pattern_that_ends_before_a_last_line_break_is_found():
    source = 'a = re.compile(r"x(/|$)")\nb = msgspec.Meta(pattern=rf"^{a}$")\nre.search("^a$", text, re.M | re.A)'
    assert list(loose(source)) == ["x(/|$)", "$"]
    assert not list(loose('re.compile(r"[$]\\$\\Z")'))


@pytest.mark.parametrize("module", MODULES)
def test_patterns_end_where_the_text_ends(module):
    """A `$` takes a line break behind a name, too: write ``\\Z``, ``re.fullmatch``, or in a schema ``registry.END``."""
    assert not list(loose(MODULES[module].read_text()))


def patterns(kind):
    """Yield the patterns of a type, also inside of unions, lists and structs."""
    yield from (mark.pattern for mark in getattr(kind, "__metadata__", ()) if getattr(mark, "pattern", None))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for inner in typing.get_type_hints(kind, include_extras=True).values():
            yield from patterns(inner)
    for inner in typing.get_args(kind):
        yield from patterns(inner)


def keys():
    """Yield every type that a config's keys may have, those of strategies included."""
    yield schema.Config
    for family, table in FAMILIES.items():
        for name in table:
            yield from registry.kinds(registry.load(family, table, name)).values()


def test_pattern_of_a_key_is_said_in_plain_words():
    found = {pattern for kind in keys() for pattern in patterns(kind)}
    assert found
    for pattern in found:
        rule = registry.plainly(f"str matching regex {pattern!r}")
        assert "regex" not in rule, f"give {pattern} its words in PLAIN of psframe/config/registry.py"


def test_home_is_one_up_to_the_end():
    assert untrusted.at_home("~nobody-at-all\n") == "~nobody-at-all\n"
