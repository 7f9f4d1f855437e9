"""The documentation builds without a warning, its commands exist, and its sentences are short."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys

import generated_reference
import pytest

from psframe.bench.__main__ import BENCHES
from psframe.config import schema
from psframe.errors import UserError
from psframe.starter import json_schema
from psframe.starter.completion import keys
from tests.helpers.launcher import ROOT
from tests.helpers.modules import members
from tests.helpers.shown import PAGES, commands, configs, prose, sentences

MAX_WORDS = 35
SHOWN = sorted({command for page in PAGES for command in commands(page)}, key=lambda c: (c.page, c.words))
DOCUMENTED = sorted({name for page in PAGES for name in re.findall(r"^\.\. auto\w+:: (\S+)", page.read_text(), re.M)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page):
    long = [sentence for sentence in sentences(page) if len(sentence.split()) > MAX_WORDS]
    assert not long, f"{page.name} has sentences of more than {MAX_WORDS} words: {long[:3]}"


def test_members_that_are_named_exist():
    """`Arena.commit` is a member of that class; `psframe/train/loop.py` is a file."""
    known, pages = members(), [*PAGES, ROOT / "CONTRIBUTING.md"]
    for page in dict.fromkeys(pages):
        text = page.read_text()
        for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)(?:\(.*?\))?`", text):
            assert owner not in known or name in known[owner], f"{page.name}: {owner} has no {name}"
        for path in re.findall(r"`(psframe/[\w/]+\.(?:py|pyx|h))`", text):
            assert (ROOT / path).is_file(), f"{page.name}: there is no {path}"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_object_that_the_reference_describes_exists(name):
    if name.startswith("psframe.sklearn"):
        pytest.importorskip("sklearn")
    assert pkgutil.resolve_name(name).__doc__


def test_front_page_is_one_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1200


@pytest.mark.parametrize("command", SHOWN, ids=lambda c: f"{c.page}: {' '.join(c.words)[:70]}")
def test_command_that_is_shown_exists(command):
    """Its module takes these arguments, and its files are there; placeholders in capitals stand for anything."""
    if not command.module:
        scripts = [word for word in command.words if word.startswith("launch/")]
        assert all((ROOT / script).is_file() for script in scripts), f"{scripts} is not there"
        return
    name = command.module.split()[0]
    for word in command.arguments:
        if re.fullmatch(r"(configs|launch)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{word} is not there"
    if name == "bench":
        assert command.module.split()[1:] in [[bench] for bench in BENCHES] or command.arguments[:1] == ["NAME"]
    parser = _parser(command.module)
    if parser:
        known = parser.format_help() + " ".join(SWEEP)
        for word in command.arguments:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, f"{command.module} has no option {word}"


SWEEP = ("--ranks", "--json", "--mpirun")


def _parser(module):
    """Return the parser of a command, None where it has none that can be made without ranks."""
    name = f"psframe.{module.replace(' ', '.')}"
    for candidate in (name, f"{name}.__main__", f"{name}.command"):
        try:
            found = importlib.import_module(candidate)
        except (ImportError, UserError):
            continue
        for attribute in ("parser", "_parser"):
            if callable(getattr(found, attribute, None)):
                return getattr(found, attribute)()
    return None


@pytest.mark.full
def test_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install -e .[docs]")
    pytest.importorskip("furo", reason="the theme furo is not installed: pip install -e .[docs]")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2", "docs", str(tmp_path / "html")]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert ended.returncode == 0, ended.stderr
    index = (tmp_path / "html" / "index.html").read_text()
    for part in ("Tutorials", "How to", "Reference", "Explanation"):
        assert part in index
    assert (tmp_path / "html" / "config.schema.json").read_text() == json_schema.text() + "\n"


def test_generated_reference_has_every_key():
    text = "\n".join(generated_reference.config_keys())
    for key in keys():
        section, _, name = key.partition(".")
        if f"## `{section}`" in text and name:
            assert f"| `{name}` |" in text, key
    strategies = "\n".join(generated_reference.strategies())
    assert all(f"| `{name}` |" in strategies for name in ("servers", "deadline_s", "compression", "huge_pages"))
    assert "| `epochs` | whole number (≥ 1) | `5` |" in text
    (name,) = re.findall(r"\| `name` \| text \((.*)\) \| required \|", text)
    assert re.fullmatch("of letters, digits, .* that begins with a letter or digit, at most 100 characters", name)
    assert "must" in "\n".join(generated_reference.errors())


def test_no_page_names_a_machine():
    for page in PAGES:
        assert not re.search(r"/work/|/home/\w+/|file://", prose(page)), page


@pytest.mark.parametrize(("page", "raw"), configs(), ids=lambda value: getattr(value, "name", ""))
def test_config_that_is_shown_is_one(page, raw):
    """Its keys and values are those of the schema."""
    schema.resolve({"name": "shown", **{key: value for key, value in raw.items() if key != "base"}})
