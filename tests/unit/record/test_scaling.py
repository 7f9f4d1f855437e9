"""Requests to a running job, and its answers, as files that anybody may have written."""

import os

import pytest

from psframe.record import scaling
from psframe.record.scaling import Answer


def test_answer_is_of_the_request_it_names(tmp_path):
    assert scaling.asked(tmp_path) is None
    first = scaling.ask(tmp_path, 4, [])
    assert scaling.asked(tmp_path) == first
    assert scaling.answered(tmp_path, first) is None
    scaling.answer(tmp_path, Answer(id=first.id, before=2, now=4, epoch=1, step=9, pause_s=0.1))
    assert scaling.answered(tmp_path, first).now == 4
    second = scaling.ask(tmp_path, None, ["node17"])
    assert second.id != first.id
    assert scaling.asked(tmp_path).drain == ["node17"]
    assert scaling.answered(tmp_path, second) is None
    scaling.clear(tmp_path)
    scaling.clear(tmp_path)
    assert scaling.asked(tmp_path) is None


def test_request_is_begun_or_withdrawn_and_never_both(tmp_path):
    first = scaling.ask(tmp_path, 4, [])
    assert scaling.withdraw(tmp_path, first)
    assert not scaling.begin(tmp_path, first)
    second = scaling.ask(tmp_path, 4, [])
    assert scaling.begin(tmp_path, second)
    assert not scaling.withdraw(tmp_path, second)
    assert scaling.asked(tmp_path) == second, "another rank may have to begin it again"
    assert scaling.begin(tmp_path, second)
    third = scaling.ask(tmp_path, 2, [])
    assert scaling.asked(tmp_path) == third
    assert scaling.begin(tmp_path, third)
    scaling.answer(tmp_path, Answer(id=third.id, now=2))
    assert scaling.asked(tmp_path) is None, "it would be done twice"
    assert not [name for name in os.listdir(tmp_path) if name != scaling.ANSWERED]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"id": 3}',
        b'{"id": "x", "ranks": 0}',
        b'{"id": "x", "ranks": 1e99}',
        b'{"id": "x", "ranks": 2, "more": 1}',
        b'{"id": "' + b"x" * 5000 + b'"}',
        b'{"id": "x", "drain": [' + b'"",' * 100_000 + b'""]}',
        b"[" * 100_000,
    ],
    ids=range(11),
)
def test_damaged_request_is_none(tmp_path, content):
    (tmp_path / scaling.ASKED).write_bytes(content)
    assert scaling.asked(tmp_path) is None


def test_request_is_not_read_through_a_link_or_from_a_pipe(tmp_path):
    (tmp_path / "other").write_text('{"id": "x", "ranks": 2}')
    (tmp_path / scaling.ASKED).symlink_to(tmp_path / "other")
    assert scaling.asked(tmp_path) is None
    (tmp_path / scaling.ASKED).unlink()
    os.mkfifo(tmp_path / scaling.ASKED)
    assert scaling.asked(tmp_path) is None
