"""Lines of the log: their levels, their file, and how many of one place are shown."""

import json
import logging

import pytest

from psframe.record import log
from psframe.record.log import BURST, LOG, WINDOW_S


@pytest.fixture
def shown(capsys):
    """Return the lines that stderr has had since the last call."""
    yield lambda: capsys.readouterr().err.splitlines()
    log.level("warning")


@pytest.fixture
def lines():
    """Return a function that makes a line of a place at a time, if the limit lets it pass."""
    limit = log.Limit()

    def line(place, at, level=logging.WARNING):
        record = logging.LogRecord("psframe", level, place, 1, "a fact", None, None)
        record.created = at
        return log.message(record) if limit.filter(record) else None

    return line


@pytest.mark.parametrize("least", log.LEVELS)
def test_stderr_has_lines_from_a_level_on(shown, least):
    log.level(least)
    for name in log.LEVELS:
        LOG.log(logging.getLevelName(name.upper()), f"fact of {name}", extra={"of": name + least})
    expected = {
        "debug": "psframe: debug: rank 0, step 0: fact of debug",
        "info": "psframe: info: rank 0, step 0: fact of info",
        "warning": "psframe: warning: fact of warning",
        "error": "psframe: fact of error",
    }
    assert shown() == [expected[name] for name in log.LEVELS[log.LEVELS.index(least) :]]


def test_file_has_what_was_logged_before_the_run_had_a_folder(tmp_path, shown):
    written = log.Written()
    for number in range(3):
        written.handle(logging.LogRecord("psframe", logging.INFO, "", 1, "fact %d", (number,), None))
    written.open(tmp_path, 0)
    written.handle(logging.LogRecord("psframe", logging.WARNING, "", 1, 'a "quoted"\nfact \x1b[2J', None, None))
    facts = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [fact["message"] for fact in facts] == ["fact 0", "fact 1", "fact 2", 'a "quoted"\nfact \\x1b[2J']
    assert [fact["level"] for fact in facts] == ["info"] * 3 + ["warning"]
    assert {key for fact in facts for key in fact} == {"time", "level", "rank", "epoch", "step", "message"}


def test_next_run_of_a_process_has_a_file_of_its_own(tmp_path):
    written = log.Written()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written.wait()
        written.handle(logging.LogRecord("psframe", logging.INFO, "", 1, f"plan of {name}", None, None))
        written.open(tmp_path / name, 0)
    for name in ("a", "b"):
        assert json.loads((tmp_path / name / "log.jsonl").read_text())["message"] == f"plan of {name}"


def test_nodes_have_files_of_their_own(tmp_path):
    for node in (0, 3):
        written = log.Written()
        written.open(tmp_path, node)
        written.handle(logging.LogRecord("psframe", logging.INFO, "", 1, "a fact", None, None))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "log.node-3.jsonl"]


def test_folder_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "elsewhere").touch()
    (tmp_path / "log.jsonl").symlink_to(tmp_path / "elsewhere")
    for folder in (tmp_path, tmp_path / "absent"):
        written = log.Written()
        written.open(folder, 0)
        written.handle(logging.LogRecord("psframe", logging.INFO, "", 1, "a fact", None, None))
    assert not (tmp_path / "elsewhere").read_text()


def test_lines_of_a_place_are_limited_and_those_left_out_counted(lines):
    told = [lines("a", 0.1 * number) for number in range(BURST + 7)]
    assert told[: BURST - 1] == ["a fact"] * (BURST - 1)
    assert told[BURST - 1] == f"a fact (more like it are left out for {WINDOW_S:g} s)"
    assert told[BURST:] == [None] * 7
    assert lines("b", 0.5) == "a fact"
    assert lines("a", WINDOW_S) == "a fact (and 7 more like it)"
    assert lines("a", 2 * WINDOW_S) == "a fact"
    assert [lines("e", 0.0, logging.ERROR) for _ in range(2 * BURST)] == ["a fact"] * 2 * BURST


def test_limit_forgets_old_places(lines):
    for number in range(3 * log.PLACES):
        assert lines(f"place {number}", 0.0) == "a fact"


def test_closed_stderr_ends_nothing(monkeypatch, tmp_path):
    with (tmp_path / "err").open("w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
    LOG.warning("a fact")


def test_root_logger_has_no_second_line(shown):
    second, root = [], logging.Handler()
    root.emit = second.append
    logging.getLogger().addHandler(root)
    try:
        LOG.warning("a fact of a rank")
    finally:
        logging.getLogger().removeHandler(root)
    assert shown() == ["psframe: warning: a fact of a rank"]
    assert not second


def test_loggers_of_a_users_code_share_handlers_and_limit(shown):
    for number in range(2 * BURST):
        logging.getLogger("psframe.mine").warning("fact %d", number)
    told = shown()
    assert told[0] == "psframe: warning: fact 0"
    assert len(told) == BURST
