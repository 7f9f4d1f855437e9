"""Files of incidents: where they are written and under which name, in folders that anybody may have filled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.record import incident
from tests.helpers.launcher import ROOT

CONTENT = {"reason": "death", "rank": 1, "message": "rank 1 has ended", "facts": {"run": "x"}, "ranks": []}


def of_node(node):
    return CONTENT | {"facts": {"node": node}}


def names(folder):
    return sorted(os.listdir(folder))


def read(path):
    return json.loads(Path(path).read_bytes())


def test_file_is_named_by_number_and_node(tmp_path):
    for node, name in [
        (0, "incident-1.json"),
        (0, "incident-2.json"),
        (2, "incident-1.node-2.json"),
        (0, "incident-3.json"),
        (2, "incident-2.node-2.json"),
        (10, "incident-1.node-10.json"),
    ]:
        assert incident.write([tmp_path], of_node(node)) == str(tmp_path / name)
    assert len(names(tmp_path)) == 6


def test_file_of_no_node_is_of_the_first(tmp_path):
    assert incident.write([tmp_path], CONTENT) == str(tmp_path / "incident-1.json")


def test_file_holds_its_format_and_what_was_given(tmp_path):
    path = tmp_path / "incident-1.json"
    incident.write([tmp_path], CONTENT)
    assert read(path) == {"format": incident.FORMAT, **CONTENT}


def test_number_that_is_free_is_taken(tmp_path):
    for name in (
        "incident-1.json",
        "incident-3.json",
        "incident-02.json",
        "incident-2.json.bak",
        "incident-2.node-1.json",
    ):
        (tmp_path / name).write_text("other")
    assert incident.write([tmp_path], CONTENT) == str(tmp_path / "incident-2.json")
    assert (tmp_path / "incident-1.json").read_text() == "other"


def test_first_folder_that_takes_it_is_taken(tmp_path):
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "none", tmp_path / "file", tmp_path / "a", tmp_path / "b"]
    for folder in folders[2:]:
        folder.mkdir()
    assert incident.write(folders, CONTENT) == str(tmp_path / "a" / "incident-1.json")
    assert names(tmp_path / "b") == []
    assert not (tmp_path / "none").exists()


def test_folder_that_is_full_of_incidents_is_passed_over(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    for number in range(1, incident.MOST):
        (first / f"incident-{number}.json").touch()
    assert incident.write([first, second], CONTENT) == str(second / "incident-1.json")
    assert len(names(first)) == incident.MOST - 1


@pytest.mark.parametrize("folders", [[], ["none"], ["none", "file", "none/inner"]], ids=len)
def test_no_folder_takes_it(tmp_path, folders):
    (tmp_path / "file").write_text("kept")
    assert incident.write([tmp_path / name for name in folders], CONTENT) == ""
    assert names(tmp_path) == ["file"]


def test_folder_that_is_a_link_is_the_user_s_choice(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "latest").symlink_to("run")
    incident.write([tmp_path / "latest"], CONTENT)
    assert names(tmp_path / "run") == ["incident-1.json"]


@pytest.mark.parametrize("name", ["incident-1.json", "incident-1.json.part"])
@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["link", "hard link"])
def test_link_is_not_followed(tmp_path, name, make):
    other, run = tmp_path / "other", tmp_path / "run"
    run.mkdir()
    other.write_text("kept")
    make(other, run / name)
    path = incident.write([run], CONTENT)
    assert path == str(run / ("incident-2.json" if name == "incident-1.json" else "incident-1.json"))
    assert other.read_text() == "kept"
    assert read(path)["message"] == CONTENT["message"]


def test_dangling_link_makes_no_file(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("incident-1.json", "incident-2.json.part"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "made")
    assert incident.write([tmp_path / "run"], CONTENT) == str(tmp_path / "run" / "incident-2.json")
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("name", ["incident-1.json", "incident-1.json.part"])
def test_pipe_is_not_written(tmp_path, name):
    os.mkfifo(tmp_path / name)  # whoever opens it waits
    path = incident.write([tmp_path], CONTENT)
    assert read(path)["message"] == CONTENT["message"]


def test_folder_in_the_place_of_a_file_is_passed_over(tmp_path):
    for name in ("first/incident-1.json.part", "second"):
        (tmp_path / name).mkdir(parents=True)
    assert incident.write([tmp_path / "first", tmp_path / "second"], CONTENT).startswith(str(tmp_path / "second"))
    assert names(tmp_path / "first") == ["incident-1.json.part"]


FULL = """
import resource, sys
from pathlib import Path
from psframe.record import incident
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
content = {"facts": {}, "message": "x" * int(sys.argv[2])}
print(repr(incident.write([Path(sys.argv[1]) / name for name in ("first", "second")], content)))
"""


@pytest.mark.parametrize(("n_bytes", "takes"), [(100, True), (2000, False), (1_000_000, False)])
def test_nothing_half_written_is_left_on_a_full_disk(tmp_path, n_bytes, takes):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", FULL, str(tmp_path), str(n_bytes)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.stdout == repr(str(tmp_path / "first" / "incident-1.json") if takes else "") + "\n", ended
    assert names(tmp_path / "first") == ["incident-1.json"] * takes
    assert names(tmp_path / "second") == []


def test_nothing_half_written_is_left_where_syncing_fails(tmp_path, monkeypatch):
    def fail(fd):
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)
    assert incident.write([tmp_path], CONTENT) == ""
    assert names(tmp_path) == []


def test_content_that_is_no_json_leaves_nothing(tmp_path):
    for value in (float("nan"), float("inf"), object()):
        with pytest.raises((ValueError, TypeError)):
            incident.write([tmp_path], CONTENT | {"value": value})
    assert names(tmp_path) == []


def test_found_files_are_of_their_nodes_and_in_order(tmp_path):
    for name in (
        *("incident-10.json", "incident-2.json", "incident-2.node-10.json", "incident-2.node-9.json"),
        *("incident-1.node-3.json", "incident-0.json", "incident-01.json", "incident-1.node-0.json"),
        *(
            "incident-3.json.part",
            "incident-\N{ARABIC-INDIC DIGIT ONE}.json",
            "incident-99999.json",
            "xincident-1.json",
            "metrics.jsonl",
        ),
    ):
        (tmp_path / name).touch()
    assert [[path.name for path in paths] for paths in incident.found(tmp_path)] == [
        ["incident-1.node-3.json"],
        ["incident-2.json", "incident-2.node-9.json", "incident-2.node-10.json"],
        ["incident-10.json"],
    ]


def test_found_files_are_those_that_were_written(tmp_path):
    assert incident.found(tmp_path) == []
    paths = [incident.write([tmp_path], of_node(node)) for node in (12, 0, 1, 0)]
    assert [[str(path) for path in each] for each in incident.found(tmp_path)] == [
        [paths[1], paths[2], paths[0]],
        [paths[3]],
    ]


def test_found_files_are_bounded(tmp_path):
    for number in range(1, incident.MOST + 20):
        (tmp_path / f"incident-1.node-{number}.json").touch()
    assert sum(map(len, incident.found(tmp_path))) == incident.MOST


def test_found_is_told_of_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(OSError, match=name):
            incident.found(tmp_path / name)


@given(st.integers(1, 1 << 40))
def test_events_of_a_rank_are_bounded(n_ranks):
    n = incident.events_of(n_ranks)
    assert 16 <= n <= 4096
    assert n * n_ranks <= incident.EVENTS or n == 16
    assert incident.events_of(n_ranks + 1) <= n
    assert n == 4096 or (n + 1) * n_ranks > incident.EVENTS, "there is room for more"


def test_written_text_is_ascii_for_any_message(tmp_path):
    path = incident.write([tmp_path], CONTENT | {"message": "größe \ud800 \x00 😀"})
    with open(path, "rb") as file:
        data = file.read()
    assert data.isascii()
    assert json.loads(data)["message"] == "größe \ud800 \x00 😀"
