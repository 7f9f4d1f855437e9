"""The JSON Schema of configs, compared with what psframe accepts."""

import json

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.config import registry, schema
from psframe.errors import UserError
from psframe.starter import json_schema
from psframe.train.plan import sections
from tests.helpers import shown
from tests.helpers.launcher import ROOT
from tests.helpers.mistakes import MISTAKES

MINIMAL = {"model": "lenet", "dataset": "digits"}
STARTER = ROOT / "psframe" / "starter"
CONFIGS = [*sorted((ROOT / "configs").glob("*.yaml")), STARTER / "quickstart.yaml"]
#: mistakes that lie in the words of an override, and so in no file
WORDS = ("YAML", "key.path=value", "train.epochs.more=3")


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e .[test]")
    document = json.loads(json_schema.text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


@pytest.mark.parametrize("path", [*CONFIGS, STARTER / "template" / "config.yaml"], ids=lambda path: path.name)
def test_schema_accepts_every_config(validator, path):
    validator.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(("page", "raw"), shown.configs(), ids=lambda value: getattr(value, "name", ""))
def test_schema_accepts_every_config_of_the_documentation(validator, page, raw):
    validator.validate(raw)


def test_schema_accepts_the_config_of_a_run(validator):
    """With every default, as config.yaml has it, and as the base of another."""
    for path in CONFIGS:
        resolved, _ = sections.resolve(str(path), [], "shared")
        validator.validate(yaml.safe_load(schema.to_yaml({**resolved, "versions": {"psframe": "0"}})))


@pytest.mark.parametrize(
    "raw",
    [
        {"base": "other.yaml"},
        {"base": "other.yaml", "dataset": {"name": "idx"}, "optimizer": {"beta1": 0.5}, "model": {"dropout": 0.1}},
        {**MINIMAL, "base": None},
        {**MINIMAL, "collective": None},
        {**MINIMAL, "collective": {"name": None}},
        {**MINIMAL, "sync": {"mode": "allreduce", "server": "colocated", "wait": "spin"}},
        {**MINIMAL, "schedule": "cosine"},
        {**MINIMAL, "placement": {"data": "hbw", "exchange": {"numa": [1], "huge_pages": "2M"}}},
        {**MINIMAL, "placement": {"data": {"interleave": None}, "exchange": {"huge_pages": "2M"}}},
        {**MINIMAL, "model": {"name": "mine:build", "width": 3}, "sync": {"mode": "mine:Mode", "k": [1]}},
    ],
)
def test_schema_accepts(validator, raw):
    validator.validate(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"model": "lenet"},
        {**MINIMAL, "dataset": "idx"},
        {**MINIMAL, "dataset": {"name": "idx", "limit": 3}},
        {**MINIMAL, "model": {"dropout": 0.5}},
        {**MINIMAL, "optimizer": {"name": "adam", "lr": 0}},
        {**MINIMAL, "optimizer": {"name": "adam", "beta3": 0.5}},
        {**MINIMAL, "optimizer": {"lr": -1}},
        {**MINIMAL, "sync": {"mode": "easgd", "deadline_s": 0}},
        {**MINIMAL, "sync": {"name": "easgd"}},
        {**MINIMAL, "placement": {"data": {"numa": "1"}}},
        {**MINIMAL, "placement": {"dta": "ddr"}},
        {**MINIMAL, "base": 3},
        {**MINIMAL, "model": "mine:build\n"},
    ],
)
def test_schema_refuses(validator, raw):
    assert not validator.is_valid(raw)


@pytest.mark.parametrize("overrides", [given for given, words in MISTAKES if not set(words) & set(WORDS)])
def test_schema_refuses_the_mistakes_that_psframe_tells(validator, overrides):
    raw = {**MINIMAL}
    for override in overrides:
        path, _, text = override.partition("=")
        *above, last = path.split(".")
        at = raw
        for key in above:
            at = at.setdefault(key, {})
        at[last] = yaml.safe_load(text)
    assert not validator.is_valid(raw), raw


def families():
    """Yield the path of each section with a strategy, the key of its name, and all keys and names of its members."""
    for section, table in sections.TABLES.items():
        key = schema.STRATEGIES.get(section, "name")
        members = [registry.load(section, table, name) for name in table]
        keys = {key, "wait", "no_such_key", *(name for make in members for name in registry.keywords(make))}
        yield section.split("."), key, sorted(keys), [*table, "no_such_name"]


#: without 1.0, which JSON Schema takes for a whole number
VALUES = st.sampled_from(
    [None, True, False, 0, 1, 2, -1, 0.5, 1.5, "none", "auto", "2M", "direct", [], [1], [0, 1], {}]
)


@st.composite
def raws(draw):
    """A config with one section drawn: a strategy's, or one with fixed keys."""
    raw = {**MINIMAL}
    if draw(st.booleans()):
        path, key, keys, names = draw(st.sampled_from(list(families())))
        spec = draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=3))
        if draw(st.booleans()):
            spec[key] = draw(st.sampled_from(names))
        at = raw.setdefault(path[0], {}) if len(path) > 1 else raw
        at[path[-1]] = draw(st.sampled_from([spec, *names, None, 3]) if draw(st.booleans()) else st.just(spec))
        return raw
    structs = [f for f in msgspec.structs.fields(schema.Config) if isinstance(f.type, type) and f.name != "placement"]
    field = draw(st.sampled_from([f for f in structs if issubclass(f.type, msgspec.Struct)]))
    keys = [inner.name for inner in msgspec.structs.fields(field.type)]
    raw[field.name] = draw(st.dictionaries(st.sampled_from([*keys, "no_such_key"]), VALUES, max_size=3))
    return raw


def judged(raw):
    """Return what psframe says of a config's sections; "" if it accepts them."""
    try:
        resolved = msgspec.to_builtins(schema.resolve({"name": "x", **json.loads(json.dumps(raw))}))
        for section in sections.TABLES:
            sections.choice(resolved, section)
    except UserError as error:
        return str(error)
    return ""


def test_schema_and_psframe_agree(validator):
    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(raws())
    def one(raw):
        said = judged(raw)
        assert validator.is_valid(raw) == (not said), said or raw

    one()
