"""Lines of the log: their levels, their file, and how many of one place are shown."""

import json
import logging
from threading import Event

import pytest

from psframe.record import log
from psframe.record.flight import RING
from psframe.record.log import BURST, LOG, WINDOW_S


@pytest.fixture
def shown(capsys):
    """Return a function for the lines that stderr has had since the last call."""
    log._SHOWN.passed.clear()  # other tests' lines are of the same places
    yield lambda: capsys.readouterr().err.splitlines()
    log.level("warning")


def line(text="a fact", *given, level=logging.WARNING, place="", at=0.0):
    """Return a record of a line."""
    made = logging.LogRecord("psframe", level, place, 1, text, given, None)
    made.created = at
    return made


@pytest.fixture
def said():
    """Return a function that hands a line of a place at a time, and returns what is put, None for none."""

    class Kept(log.Lines):
        def put(self, record, text):
            self.texts.append(text)

    handler = Kept(logging.DEBUG)

    def say(place, at, **more):
        handler.texts = []
        handler.handle(line(place=place, at=at, **more))
        return handler.texts[0] if handler.texts else None

    return say


@pytest.fixture
def written():
    """Return a handler that writes; it has written all before the test ends."""
    return log.Written()


def facts_of(path):
    return [json.loads(each) for each in path.read_text().splitlines()]


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


def test_file_has_what_was_logged_before_the_run_had_a_folder(tmp_path, written):
    for number in range(3):
        written.handle(line("fact %d", number, level=logging.INFO))
    written.open(tmp_path, 0)
    written.handle(line('a "quoted"\nfact \x1b[2J'))
    written.drain()
    facts = facts_of(tmp_path / "log.jsonl")
    assert [fact["message"] for fact in facts] == ["fact 0", "fact 1", "fact 2", 'a "quoted"\nfact \\x1b[2J']
    assert [fact["level"] for fact in facts] == ["info"] * 3 + ["warning"]
    assert {key for fact in facts for key in fact} == {"time", "level", "rank", "epoch", "step", "message"}


def test_next_run_of_a_process_has_a_file_of_its_own(tmp_path, written):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written.wait()
        written.handle(line(f"plan of {name}"))
        written.open(tmp_path / name, 0)
    written.drain()
    for name in ("a", "b"):
        (fact,) = facts_of(tmp_path / name / "log.jsonl")
        assert fact["message"] == f"plan of {name}"


def test_lines_know_the_rank_and_where_it_is(tmp_path):
    log.begin(5)
    RING.step(2, 40)
    try:
        LOG.warning("a fact")
        log.write_to(tmp_path, 0)
        log.flush()
    finally:
        log.begin(0)
    (fact,) = facts_of(tmp_path / "log.jsonl")
    assert [fact[key] for key in ("rank", "epoch", "step")] == [5, 2, 40]
    assert RING.place == (0, 0, 0)


def test_nodes_have_files_of_their_own(tmp_path):
    for node in (0, 3):
        written = log.Written()
        written.open(tmp_path, node)
        written.handle(line())
        written.drain()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "log.node-3.jsonl"]


def test_folder_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "elsewhere").touch()
    (tmp_path / "log.jsonl").symlink_to(tmp_path / "elsewhere")
    for folder in (tmp_path, tmp_path / "absent"):
        written = log.Written()
        written.open(folder, 0)
        written.handle(line())
        written.drain()
    assert not (tmp_path / "elsewhere").read_text()


def test_disk_that_does_not_answer_holds_nobody_up(tmp_path, written, monkeypatch):
    answers, log_folder = Event(), log.Folder
    monkeypatch.setattr(log, "Folder", lambda path: answers.wait() and log_folder(path))
    monkeypatch.setattr(log, "FLUSH_S", 0.01)
    written.open(tmp_path, 0)
    for number in range(2 * log.WAITING):
        written.handle(line("fact %d", number, place=str(number)))
    written.drain()
    assert not (tmp_path / "log.jsonl").exists()
    answers.set()
    monkeypatch.setattr(log, "FLUSH_S", 60)
    written.drain()
    assert facts_of(tmp_path / "log.jsonl")[-1]["message"] == f"fact {2 * log.WAITING - 1}"


def test_lines_of_a_place_are_limited_and_those_left_out_counted(said):
    told = [said("a", 0.1 * number) for number in range(BURST + 7)]
    assert told[: BURST - 1] == ["a fact"] * (BURST - 1)
    assert told[BURST - 1] == f"a fact (more like it are left out for {WINDOW_S:g} s)"
    assert told[BURST:] == [None] * 7
    assert said("b", 0.5) == "a fact"
    assert said("a", WINDOW_S) == "a fact (and 7 more like it)"
    assert said("a", 2 * WINDOW_S) == "a fact"
    assert [said("e", 0.0, level=logging.ERROR) for _ in range(2 * BURST)] == ["a fact"] * 2 * BURST


def test_limit_forgets_old_places(said):
    for number in range(3 * log.PLACES):
        assert said(f"place {number}", 0.0) == "a fact"


@pytest.mark.parametrize("stderr", ["closed", None])
def test_stderr_that_is_closed_ends_nothing_and_the_file_has_the_line(monkeypatch, tmp_path, stderr):
    if stderr:
        stderr = (tmp_path / "err").open("w")
        stderr.close()
    monkeypatch.setattr("sys.stderr", stderr)
    log.begin(0)
    LOG.warning("a fact")
    log.write_to(tmp_path, 0)
    log.flush()
    log.begin(0)
    assert facts_of(tmp_path / "log.jsonl")[0]["message"] == "a fact"


def test_line_that_cannot_be_made_ends_nothing(shown):
    for handler in (log._SHOWN, log._WRITTEN):
        handler.handle(line("%d facts", "many"))
    LOG.warning("another")
    assert shown()[-1] == "psframe: warning: another"


def test_traceback_of_an_exception_is_part_of_its_line(shown):
    try:
        raise ValueError("a defect")
    except ValueError:
        logging.getLogger("psframe.mine").exception("it failed")
    told = shown()
    assert told[0] == "psframe: error: it failed"
    assert told[-1] == "ValueError: a defect"


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


def test_error_that_a_user_logs_is_marked_and_one_that_ends_the_job_is_not(shown):
    logging.getLogger("psframe.mine").error("a bad sample")
    LOG.error("the end")
    assert shown() == ["psframe: error: a bad sample", "psframe: the end"]
