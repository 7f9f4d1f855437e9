"""YAML that a person would not write is refused in a sentence, soon."""

import pytest

from psframe.config import schema, strict_yaml
from tests.helpers.untrusted import refuse

LETTERS = list(zip("abcdefgh", "bcdefghi", strict=True))
LAUGHS = "a: &a [x,x,x,x]\n" + "".join(f"{c}: &{c} [{','.join(['*' + p] * 10)}]\n" for p, c in LETTERS)
MERGES = "a: &a {k: 1}\n" + "".join(f"{c}: &{c}\n  <<: [{','.join(['*' + p] * 10)}]\n" for p, c in LETTERS)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (LAUGHS, ["20,000 values", "line 5"]),
        (MERGES, ["20,000 values"]),
        ("- x\n" * 20_001, ["20,000 values", "line 20000"]),
        ("a: &x [*x]", ["*x", "line 1"]),
        ("[" * 50 + "]" * 50, ["40 levels"]),
        ("- " * 50, ["40 levels"]),
        ("a: " + "1:" * 200_000 + "1", ["100 characters"]),  # quadratic in PyYAML
        ("a: " + "1:" * 200 + "1.5", ["100 characters"]),
        ("a: 0x" + "f" * 6000, ["100 characters"]),
        ("a: " + "x" * (1 << 20), ["1,048,576 characters"]),
        ("!!int ''", ["as their types say"]),
        ("!!bool x", ["as their types say"]),
        ("a: 2020-99-99", ["month must be"]),
        ("!!python/object/apply:os.system [ls]", ["python/object"]),
        ("a: 1\na: 2", ["'a' again", "line 2"]),
    ],
)
def test_yaml_is_bounded(said, words):
    refuse(lambda: strict_yaml.load(said, "it"), "it", *words)
    refuse(lambda: schema.parse_value(said), *words)


def test_yaml_within_the_limits_is_read():
    assert strict_yaml.load("a: &a {k: 1e-3}\nb: {<<: *a, l: [*a, *a]}\nc: 1:30\n", "it") == {
        "a": {"k": 1e-3},
        "b": {"k": 1e-3, "l": [{"k": 1e-3}] * 2},
        "c": 90,
    }


def test_text_with_nul_is_refused():
    """No path may have one, and Python would raise ValueError where it is opened."""
    refuse(lambda: schema.parse_value('{dir: "a\\0b"}'), "no character NUL", "line 1")
