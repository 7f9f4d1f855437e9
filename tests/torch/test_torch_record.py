"""The record of a group's collectives: rows by kind and type, with calls, bytes, and all waits and the longest."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

from psframe import compiled  # noqa: E402
from psframe.torch.moves import KINDS  # noqa: E402
from psframe.torch.record import FOLDER, Record  # noqa: E402
from psframe.torch.types import type_number  # noqa: E402


def work(kind, dtype=torch.float32, n_bytes=0):
    note = KINDS.index(kind), type_number(dtype), 0, 0, n_bytes, 7
    return SimpleNamespace(move=SimpleNamespace(note=note))


def written(record):
    memory = np.frombuffer(compiled.numa.Block(4 * compiled.numa.PAGE_BYTES), np.uint8)
    memory[:] = 1
    record.write(memory)
    return json.loads(record.path.read_text())


def test_record_counts_calls_and_bytes_and_keeps_the_longest_of_all_waits(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "new"))
    record = Record.asked("3", (4, 6, 9), 1)
    for one in (work("reduce", torch.int64, 80), work("reduce", torch.int64, 16), work("reduce", torch.float32, 12)):
        record.ended(one)
    for seconds in (0.125, 0.5, 0.25):
        record.waited(work("reduce", torch.int64, 80), seconds)
    for number in range(3):
        record.ended(work("barrier"))
        record.waited(work("barrier"), 2.0 - number)
    found = written(record)
    assert (found["group"], found["rank"], found["ranks"]) == ("3", 6, [4, 6, 9])
    keys = ("collective", "dtype", "calls", "bytes", "waited_s", "longest_wait_s")
    assert [tuple(row[key] for key in keys) for row in found["collectives"]] == [
        ("barrier", "", 3, 0, 3.0, 2.0),
        ("reduce", "float32", 1, 12, 0.0, 0.0),
        ("reduce", "int64", 2, 96, 0.875, 0.5),
    ]
    assert sum(found["pages"].values()) == 4
    assert record.path == tmp_path / "new" / "torch-3-rank-00006.json"


def test_record_is_kept_only_where_a_folder_is_asked_for(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    assert Record.asked("3", (0, 1), 0) is None
    monkeypatch.setenv(FOLDER, "")
    assert Record.asked("3", (0, 1), 0) is None
