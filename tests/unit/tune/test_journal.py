"""Journals of searches, and the cache of results."""

import json

import pytest

from psframe.config import tuned
from psframe.config.tuned import Tuned
from psframe.errors import UserError
from psframe.record import tuned as cache
from psframe.tune.journal import NAME, Journal

ASKED = {"config": "model: lenet", "ranks": [2]}


def replies(out, requests, asked=ASKED):
    """Return the replies of a journal, and the requests that were not answered from it."""
    journal, done = Journal(out, asked), []

    def do(request):
        done.append(request)
        return {"n": request}

    found = [journal.reply([request], lambda request=request: do(request)) for request in requests]
    journal.close()
    return found, done


def test_journal_answers_what_it_has(tmp_path):
    first, done = replies(tmp_path / "out", [1, 2])
    assert done == [1, 2]
    again, done = replies(tmp_path / "out", [1, 2, 3])
    assert done == [3]
    assert again[:2] == first


def test_line_that_was_cut_short_is_asked_again(tmp_path):
    replies(tmp_path / "out", [1, 2])
    path = tmp_path / "out" / NAME
    path.write_bytes(path.read_bytes()[:-5])
    found, done = replies(tmp_path / "out", [1, 2, 3])
    assert done == [2, 3]
    assert found == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert replies(tmp_path / "out", [1, 2, 3])[1] == []


def test_journal_of_another_order_is_left_where_it_differs(tmp_path):
    replies(tmp_path / "out", [1, 2, 3])
    assert replies(tmp_path / "out", [1, 4, 3])[1] == [4, 3]


def test_refusal_is_kept(tmp_path):
    def refuse():
        raise UserError("no room")

    for do in (refuse, lambda: {}):
        journal = Journal(tmp_path / "out", ASKED)
        with pytest.raises(UserError, match="no room"):
            journal.reply(["train"], do)
        journal.close()


def test_refusal_that_ends_the_search_is_asked_again(tmp_path):
    def refuse():
        raise UserError("no such module")

    journal = Journal(tmp_path / "out", ASKED)
    with pytest.raises(UserError, match="no such module"):
        journal.reply(["look"], refuse)
    journal.close()
    journal = Journal(tmp_path / "out", ASKED)
    assert journal.reply(["look"], lambda: {"found": 1}) == {"found": 1}
    journal.close()


def test_what_follows_a_difference_is_measured_anew_and_kept(tmp_path):
    replies(tmp_path / "out", [1, 2, 3])
    assert replies(tmp_path / "out", [1, 4, 5])[1] == [4, 5]
    assert replies(tmp_path / "out", [1, 4, 5, 6])[1] == [6]


def test_seconds_go_on_where_they_broke_off(tmp_path):
    replies(tmp_path / "out", [1])
    path = tmp_path / "out" / NAME
    asked, line = map(json.loads, path.read_text().splitlines())
    path.write_text(f"{json.dumps(asked)}\n{json.dumps({**line, 's': 100.0})}\n")
    journal = Journal(tmp_path / "out", ASKED)
    assert journal.elapsed_s == 0
    journal.reply([1], dict)
    assert journal.elapsed_s >= 100
    journal.close()


def test_folders_that_cannot_be_are_told(tmp_path):
    replies(tmp_path / "out", [1])
    with pytest.raises(UserError, match="of the same search"):
        Journal(tmp_path / "out", {**ASKED, "ranks": [3]})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(UserError, match="new or empty folder"):
        Journal(tmp_path / "full", ASKED)
    with pytest.raises(UserError, match="--out must be a folder"):
        Journal(tmp_path / "out" / NAME / "below", ASKED)


@pytest.mark.parametrize("line", [b"{", b"1", b"{}", b"[]", b"\xff\xfe", b'{"request": [1], "reply": 7, "s": 1}'])
def test_damaged_journal_is_told(tmp_path, line):
    replies(tmp_path / "out", [1])
    path = tmp_path / "out" / NAME
    whole = path.read_bytes().splitlines()[0] + b"\n" + line + b"\n"
    path.write_bytes(whole)
    with pytest.raises(UserError, match="sound journal"):
        Journal(tmp_path / "out", ASKED)
    assert path.read_bytes() == whole


FOUND = Tuned("a machine", "an MPI", 1, 8, 4, 128, ["collective.name=buffer"], 1000.0)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    return tmp_path


def test_cache_gives_what_it_keeps(home):
    cache.keep("key", FOUND)
    like = Tuned("a machine", "an MPI", 1, 8, 4, 128)
    assert cache.find("key", like) == FOUND
    for other in (
        {"n_ranks": 5},
        {"machine": "another"},
        {"mpi": "another"},
        {"global_batch": 64},
        {"n_nodes": 2},
        {"cores": 4},
    ):
        changed = Tuned(**{field: other.get(field, getattr(like, field)) for field in like.__struct_fields__})
        assert cache.find("key", changed) is None, other
    assert cache.find("another", like) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"machine": 3}', b"\xff" * 100])
def test_damaged_result_is_none(home, content):
    cache.keep("key", FOUND)
    (path,) = cache.folder().iterdir()
    path.write_bytes(content)
    assert cache.find("key", FOUND) is None


CONFIG = {
    "name": "a", "model": {"name": "lenet"}, "train": {"epochs": 3, "batch_size": 32, "threads": "auto"},
    "sync": {"mode": "sync_ps", "server": "dedicated"}, "collective": {"name": "shared"}, "affinity": "numa",
    "record": {"dir": "runs"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"name": "b"}, True),
        ({"record": {"dir": "elsewhere"}}, True),
        ({"train": {"epochs": 9, "batch_size": 16, "threads": 2}}, True),
        ({"affinity": "none"}, True),
        ({"collective": {"name": "buffer"}}, True),
        ({"sync": {"mode": "sync_ps", "server": "colocated"}}, True),
        ({"model": {"name": "alexnet"}}, False),
        ({"sync": {"mode": "allreduce"}}, False),
        ({"train": {"epochs": 3, "batch_size": 32, "threads": "auto", "precision": "bf16"}}, False),
    ],
)
def test_key_of_a_config_is_what_it_trains(change, same):
    assert (tuned.key(CONFIG, []) == tuned.key({**CONFIG, **change}, [])) is same


def test_key_has_the_settings_of_the_user():
    other = {**CONFIG, "affinity": "none"}
    assert tuned.key(CONFIG, ["affinity"]) != tuned.key(other, ["affinity"])
    assert tuned.key(CONFIG, ["affinity"]) != tuned.key(CONFIG, [])


def test_set_keys_are_those_of_file_and_command_line(tmp_path):
    (tmp_path / "base.yaml").write_text("sync: sync_ps\ntrain: {threads: 2}\nplacement: {parameters: hbw}\n")
    (tmp_path / "c.yaml").write_text("base: base.yaml\nmodel: lenet\ncollective: {name: buffer, bucket_bytes: 0}\n")
    found = tuned.set_keys(str(tmp_path / "c.yaml"), ["affinity=none", "sync.server=colocated"])
    expected = {"sync.mode", "train.threads", "collective.name", "collective.bucket_bytes", "affinity", "sync.server"}
    assert expected <= set(found)
    assert "train.epochs" not in found
    assert {key for key in found if key.endswith(".name") and "placement" in key} == {"placement.parameters.name"}


@pytest.mark.parametrize("override", ["placement.data={numa: [0]}", "placement={data: hbw}", "placement.data=hbw"])
def test_placement_of_one_role_sets_that_role_alone(tmp_path, override):
    (tmp_path / "c.yaml").write_text("name: c\nmodel: lenet\n")
    found = tuned.set_keys(str(tmp_path / "c.yaml"), [override])
    assert {key for key in found if key.endswith(".name")} - {"model.name"} == {"placement.data.name"}


def test_plan_for_all_roles_sets_each(tmp_path):
    (tmp_path / "c.yaml").write_text("name: c\nmodel: lenet\n")
    found = tuned.set_keys(str(tmp_path / "c.yaml"), ["placement=auto"])
    assert {"placement.parameters.name", "placement.exchange.name"} <= set(found)


def test_user_without_a_home_has_no_cache(monkeypatch):
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setattr(cache.os.path, "expanduser", lambda path: path)
    assert cache.find("key", FOUND) is None
    with pytest.raises(OSError, match="no home"):
        cache.keep("key", FOUND)
