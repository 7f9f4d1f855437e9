"""Words for errors: of a user's code with the line that raised it, of a file, and of those that a user can mend."""

import errno
import importlib
import sys

import pytest

from psframe.errors import UserError, limits, raised, reason, sentence

MINE = """\
import json
from pick_beside import divide


def first(value):
    return second(value)


def second(value):
    return third(value)


def third(value):
    return 1 / value


def across(value):
    return divide(value)


def library(text):
    return json.loads(text)


def long(n):
    raise KeyError("x" * n)
"""
BESIDE = """\
def divide(value):
    return 1 % value
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's module, which uses one beside it and one from elsewhere."""
    (tmp_path / "pick_mine.py").write_text(MINE)
    (tmp_path / "pick_beside.py").write_text(BESIDE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("pick_mine")
    for name in ("pick_mine", "pick_beside"):
        del sys.modules[name]


def described(body, value, build="pick_mine:Build"):
    with pytest.raises((ArithmeticError, LookupError, ValueError)) as caught:
        body(value)
    return raised(caught.value, build)


def test_error_in_own_code_is_told_with_the_line_that_raised_it(mine):
    for body in (mine.third, mine.second, mine.first):
        assert described(body, 0) == "ZeroDivisionError in pick_mine.py, line 14: division by zero"


def test_error_in_a_file_beside_is_told_with_that_file(mine):
    assert described(mine.across, 0).startswith("ZeroDivisionError in pick_beside.py, line 2: ")


def test_error_in_a_library_is_told_with_the_last_line_of_own_code(mine):
    assert described(mine.library, "{").startswith("JSONDecodeError in pick_mine.py, line 22: Expecting property name")


def test_error_without_a_line_of_own_code_is_told_without_one(mine):
    for build in ("no_such_module:Build", "sys:path", "json:loads"):
        assert described(mine.third, 0, build) == "ZeroDivisionError: division by zero", build


def test_error_is_told_in_one_line_of_few_words(mine):
    assert described(mine.long, 9).endswith(f"line 26: '{'x' * 9}'")
    assert len(described(mine.long, 10**6)) < 400


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a.h5"), "No space left on device"),
        (OSError("Unable to open\n  (error message = 'truncated file', address 0x7f)"), "truncated file"),
        (ValueError("a\n  long \t story"), "a long story"),
    ],
)
def test_reason_is_short_and_in_one_line(error, said):
    assert reason(error) == said


def test_sentence_is_there_for_what_a_user_can_mend_alone():
    assert sentence(UserError("mend it")) == "mend it"
    assert "must fit into memory, got too little (3 GB);" in sentence(MemoryError("3 GB"))
    assert "got too little (none is left);" in sentence(MemoryError())
    for defect in (ValueError("a"), ZeroDivisionError(), KeyError("b")):
        assert sentence(defect) == ""


@pytest.mark.parametrize(
    ("now", "most", "full"), [("9", "10", True), ("10", "10", True), ("5", "10", False), ("9", "max", False)]
)
@pytest.mark.parametrize("place", ["", "job", "job/step"])
def test_cgroup_that_lets_no_more_threads_begin_is_known(tmp_path, now, most, full, place):
    """Also one around this process's own."""
    own, folder = tmp_path / "cgroup", tmp_path / "root"
    own.write_text("1:name=systemd:/other\n0::/job/step\n")
    (folder / "job" / "step").mkdir(parents=True)
    (folder / place / "pids.current").write_text(now)
    (folder / place / "pids.max").write_text(most)
    assert limits.cgroup_is_full(own, folder) == full
    assert not limits.cgroup_is_full(tmp_path / "none", folder)
