"""Strategies by name, with arguments checked against their signatures."""

import pytest

from psframe.config.registry import bind, keywords, load
from psframe.errors import UserError, nearest
from tests.helpers.families import FAMILIES

TABLE = {
    "own": "tests.helpers.strategies:own",
    "class": "tests.helpers.strategies:Own",
    "broken": "tests.no_such:thing",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_members_of_every_table_can_be_imported(family):
    for name in FAMILIES[family]:
        assert callable(load(family, FAMILIES[family], name))
        keywords(load(family, FAMILIES[family], name))


def test_defaults_are_filled_in():
    choice = bind("own", TABLE, {"name": "own", "size": 4})
    assert choice.arguments == {"size": 4, "share": 0.5, "shape": (1, 2), "name": None}
    assert choice("given") == ("given", 4, 0.5, (1, 2), None)


def test_values_are_converted():
    choice = bind("own", TABLE, {"name": "own", "size": 4, "share": 0, "shape": [3, 4, 5]})
    assert choice.arguments["share"] == 0.0
    assert choice.arguments["shape"] == (3, 4, 5)


@pytest.mark.parametrize("name", ["tests.helpers.strategies:own", "own"])
def test_own_strategy_is_taken_like_a_member(name):
    assert bind("own", TABLE, {"name": name, "size": 1})(0)[1] == 1


def test_classes_have_their_initializers_keys():
    assert bind("own", TABLE, {"name": "class", "size": 5})().size == 5
    assert bind("own", TABLE, {"name": "class"})().size == 3


def test_keys_of_another_member_are_listed_as_unused():
    assert bind("own", {k: TABLE[k] for k in ("own", "class")}, {"name": "class", "share": 0.1}).unused == ("share",)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "ow"}, ["there is no 'ow'", "did you mean 'own'", "my_module:attr"]),
        ({"name": 3}, ["must name a strategy", "3"]),
        ({"name": None}, ["must name a strategy"]),
        ({"name": "own"}, ["own.size is required"]),
        ({"name": "own", "size": -1}, ["own.size must be a whole number >= 0", "-1", "own.size=VALUE"]),
        ({"name": "own", "size": "big"}, ["own.size", "'big'"]),
        ({"name": "own", "size": 1, "share": 1.0}, ["own.share", "1.0"]),
        (
            {"name": "own", "size": 1, "shape": [1, "b"]},
            ["own.shape[1] must be a whole number", "'b'; mend the config"],
        ),
        ({"name": "tests.no_such:thing"}, ["cannot import 'tests.no_such'"]),
        ({"name": "no_such_module_x:thing"}, ["cannot import 'no_such_module_x'"]),
        ({"name": "tests.helpers.strategies:onw", "size": 1}, ["no 'onw'", "did you mean 'own'"]),
        ({"name": "tests.helpers.strategies:not_callable"}, ["must be callable", "int"]),
        ({"name": "tests.helpers.strategies:"}, ["no ''"]),
        ({"name": ":own"}, ["':own'"]),
    ],
)
def test_mistake_in_a_strategy_is_named(spec, words):
    with pytest.raises(UserError) as caught:
        bind("own", TABLE, spec)
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_unknown_key_names_the_nearest():
    with pytest.raises(UserError, match=r"sharee.*did you mean 'share'"):
        bind("own", {"own": TABLE["own"]}, {"name": "own", "size": 1, "sharee": 2})


def test_parameter_that_is_no_key_is_told_apart():
    with pytest.raises(UserError, match=r"own\.given: own takes no such key .* def own\(\.\.\., \*, given\)"):
        bind("own", {"own": TABLE["own"]}, {"name": "own", "size": 1, "given": 2})


def test_name_that_resembles_none_has_no_suggestion():
    assert nearest("nccl", ["buffer", "null", "shared"]) == "valid: buffer, null, shared"
    assert nearest("bufer", ["buffer", "null"]).startswith("did you mean 'buffer'?")


def test_syntax_error_is_told_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "no_python.py").write_text("x = 1\ndef :\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"no_python\.py, line 2"):
        load("own", TABLE, "no_python:thing")


def test_lists_of_names_are_cut():
    with pytest.raises(UserError) as caught:
        load("own", TABLE, "os:nope")
    assert len(str(caught.value)) < 600


def test_error_inside_a_users_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "breaks_here.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        load("own", TABLE, "breaks_here:thing")


def test_package_that_a_module_wants_is_named(tmp_path, monkeypatch):
    (tmp_path / "wants_more.py").write_text("import no_such_package_y")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="no_such_package_y"):
        load("own", TABLE, "wants_more:thing")


def test_strategy_not_callable_like_its_family_is_refused():
    choice = bind("model", {}, {"name": "tests.helpers.strategies:own", "size": 3})
    assert choice.taking(1) is choice
    with pytest.raises(UserError, match="must take 2 positional"):
        choice.taking(2)
