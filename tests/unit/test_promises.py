"""The table of promises: every test that it names exists, every row names one, and every link leads somewhere."""

import ast
import re
from functools import cache

import pytest

from tests.helpers.launcher import ROOT

PAGE = ROOT / "docs" / "reference" / "promises.md"
TEXT = PAGE.read_text()
#: a row's cells: the promise, where it is made, and what holds it
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| promise ")
]
REFERENCES = sorted(set(re.findall(r"`(tests/[^`]+)`", "\n".join(row[-1] for row in ROWS))))
LINKS = sorted(set(re.findall(r"\]\(([^)]+)\)", TEXT)))


@cache
def held_by(file):
    """Return the names of a file's tests, or of its cases over ranks."""
    functions = [node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    if file.rpartition("/")[2].startswith("case_"):
        return {f.name for f in functions if any(ast.unparse(d).startswith("ranks(") for d in f.decorator_list)}
    return {f.name for f in functions if f.name.startswith("test_")}


@cache
def anchors(file):
    """Return what a page's headings are called in links, as GitHub does it."""
    text = file.read_text()
    if included := re.match(r"```\{include\} (\S+)", text):
        return anchors((file.parent / included[1]).resolve())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("reference", REFERENCES)
def test_promise_names_a_test_that_exists(reference):
    file, _, name = reference.partition("::")
    assert (ROOT / file).is_file(), f"{PAGE.name} names {file}, which is not there"
    assert name in held_by(file), f"{PAGE.name} names {name}, which is no test or case of {file}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_promise_has_a_place_and_a_test(row):
    assert len(row) == 3, f"a row must have a promise, where it is made, and tests, got {row}"
    promise, place, held = row
    assert promise
    assert re.search(r"\]\([^)]+\)", place), f"{promise!r} does not say where it is made"
    assert re.fullmatch(r"`tests/\S+\.py::\w+`(, `tests/\S+\.py::\w+`)*", held), f"{promise!r} names no test: {held!r}"


@pytest.mark.parametrize("link", LINKS)
def test_promise_links_lead_somewhere(link):
    path, _, anchor = link.partition("#")
    page = (PAGE.parent / path).resolve()
    assert page.is_file(), f"{PAGE.name} links {path}, which is not there"
    assert not anchor or anchor in anchors(page), f"{path} has no heading {anchor!r}"
