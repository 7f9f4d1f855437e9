"""Mistakes in ``psframe dump``: each is a sentence with the rule, the value and the fix."""

import os

import pytest

from psframe.doctor import dump
from psframe.errors import UserError


def refused(*argv):
    with pytest.raises(UserError) as caught:
        dump.main(argv)
    sentence = str(caught.value)
    assert sentence.isprintable()
    return sentence


def test_a_run_that_does_not_train_is_told(tmp_path):
    sentence = refused(str(tmp_path))
    assert "a job of yours must train on this host" in sentence
    assert repr(str(tmp_path)) in sentence
    assert "log in to a host of it" in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.touch(), os.mkfifo, lambda path: path.symlink_to("no")]
)
def test_what_is_no_folder_is_told(tmp_path, make):
    path = tmp_path / "run"
    make(path)
    sentence = refused(str(path))
    assert "a run must be a folder" in sentence
    assert repr(str(path)) in sentence
    assert "check the path" in sentence


@pytest.mark.parametrize("path", ["a" * 300, "a/" * 3000, "", "\udc80", "\x1b[31m"])
def test_paths_that_lead_nowhere_are_told(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert "must" in refused(path)


def test_a_command_without_a_run_is_told():
    sentence = refused()
    assert "it names no run" in sentence
    assert dump.USAGE in sentence


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e12", "soon", ""])
def test_a_timeout_that_is_none_is_told(tmp_path, seconds):
    sentence = refused(str(tmp_path), f"--timeout={seconds}")
    assert "--timeout" in sentence
    assert "must be" in sentence
    assert seconds in sentence


@pytest.mark.parametrize("argv", [["--no"], ["a", "b"], ["a", "--timeout"]])
def test_options_that_there_are_not_are_told(argv):
    assert dump.USAGE in refused(*argv)


def test_help_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        dump.main(["--help"])
    assert not ended.value.code
    assert dump.EXAMPLE in capsys.readouterr().out


class Silent:
    """A keeper that does not answer."""

    def __init__(self, pid):
        self.pid = pid


@pytest.fixture
def signals(monkeypatch):
    """What is sent to keepers; nothing is."""
    sent = []
    monkeypatch.setattr(dump.os, "kill", lambda *given: sent.append(given))
    return sent


def test_a_job_that_does_not_answer_is_told(tmp_path, monkeypatch, signals):
    monkeypatch.setattr(dump, "here", lambda run: [Silent(1), Silent(2)])
    sentence = refused(str(tmp_path), "--timeout=0.01")
    assert "a job must answer within 0.01 s, got 0 of 2 files" in sentence
    assert "give --timeout" in sentence
    assert signals == [(1, dump.signal.SIGUSR2), (2, dump.signal.SIGUSR2)]


def test_files_of_before_are_no_answer(tmp_path, monkeypatch, signals):
    (tmp_path / "incident-1.json").touch()
    monkeypatch.setattr(dump, "here", lambda run: [Silent(1)])
    assert "got 0 of 1 files" in refused(str(tmp_path), "--timeout=0.01")


def test_a_keeper_that_ends_meanwhile_is_told(tmp_path, monkeypatch):
    def kill(pid, number):
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(dump.os, "kill", kill)
    monkeypatch.setattr(dump, "here", lambda run: [Silent(1)])
    assert "must" in refused(str(tmp_path), "--timeout=0.01")


def test_new_files_are_printed_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dump.os, "kill", lambda pid, number: (tmp_path / f"incident-{pid}.json").touch())
    monkeypatch.setattr(dump, "here", lambda run: [Silent(2), Silent(1)])
    assert dump.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/incident-1.json\n{tmp_path}/incident-2.json\n"
