"""A run's folder from elsewhere: what is written there leads nowhere else, and nothing in it is waited for."""

import ast
import errno
import json
import os
import subprocess

import pytest

from psframe.bench import files
from psframe.errors import UserError
from psframe.record import checkpoint, metrics, sealed, trace
from psframe.record.folder import Folder, chosen_file
from psframe.record.run_dir import durably, open_run
from psframe.report import make
from psframe.report.make import report
from tests.helpers import report_files
from tests.helpers.checkpoints import LAYOUT, close, resolved, saved
from tests.helpers.modules import MODULES

SECRET = b"what another program keeps\n"

#: what may stand in a file's place, given its path and that of a file of the user's
PLANTED = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a link that leads nowhere": lambda path, victim: path.symlink_to(victim.with_name("made")),
    "a hard link": lambda path, victim: path.hardlink_to(victim),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a folder": lambda path, victim: path.mkdir(),
}
FILES = ("lock", "config.yaml", *metrics.FILES, "placement.json", "trace.json", "checkpoints")
NAMES = [f"{name}{end}" for name in FILES for end in ("", ".part")]
NAMES += [f"checkpoints/{name}" for name in ("latest", "latest.part", "epoch-00002-step-0000000020.h5.part")]


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "home" / "victim"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


def begun(base):
    """Return the folder of a run with an epoch that is done, of which another one was recorded."""
    run = close(open_run(resolved(base), LAYOUT))
    write(run, 1)
    metrics.append(run.path, "metrics.jsonl", [{"epoch": 2}])
    return run.path


def write(run, epoch):
    """Write all that an epoch leaves."""
    for file in metrics.FILES:
        durably(lambda path: metrics.append(path, file, [{"epoch": epoch}]), run)  # noqa: B023 - called at once
    durably(lambda path: sealed.put(path / "placement.json", "{}"), run)
    durably(lambda path: trace.append(path, [([("x", 0, 0.0, 1.0)], [])]), run)
    durably(lambda path: checkpoint.advance(checkpoint.write(path / "checkpoints", saved(epoch)), 2), run)


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("name", NAMES)
def test_run_folder_from_elsewhere_changes_no_other_file(name, what, tmp_path, victim):
    path = begun(tmp_path / "runs")
    place = path / name
    if place.is_dir():
        place.rename(path / "moved")
    place.unlink(missing_ok=True)
    PLANTED[what](place, victim)
    for resume in ("auto", str(path)):
        try:
            write(close(open_run(resolved(tmp_path / "runs", checkpoint__resume=resume), LAYOUT)), 2)
        except UserError as error:
            assert str(error).isprintable()
    assert victim.read_bytes() == SECRET
    assert os.listdir(victim.parent) == ["victim"]


def test_checkpoints_that_are_a_link_lose_nothing(tmp_path):
    path, other = begun(tmp_path / "runs"), tmp_path / "other"
    (path / "checkpoints").rename(other)
    checkpoint.advance(checkpoint.write(other, saved(9)), 2)
    before = sorted(os.listdir(other))
    (path / "checkpoints").symlink_to(other)
    with pytest.raises(UserError, match="it is a link"):
        open_run(resolved(tmp_path / "runs", checkpoint__resume=str(path)), LAYOUT)
    assert sorted(os.listdir(other)) == before


def test_run_that_is_a_link_is_continued_by_its_path_alone(tmp_path):
    path = begun(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a-run-1").symlink_to(path)
    assert close(open_run(resolved(tmp_path / "runs", checkpoint__resume="auto"), LAYOUT)).new
    again = close(open_run(resolved(tmp_path, checkpoint__resume=str(tmp_path / "runs" / "a-run-1")), LAYOUT))
    assert (again.epoch, again.path) == (1, path)


def test_versions_of_an_old_config_are_plain_words_or_left_out(tmp_path):
    path = begun(tmp_path / "runs")
    file = path / "config.yaml"
    said = file.read_text().replace("numpy: '2'", "numpy: '2'\n  evil: \"$(touch x)\"\n  list: [1]")
    assert "touch" in said
    file.write_text(said)
    close(open_run(resolved(tmp_path / "runs", checkpoint__resume=str(path)), LAYOUT))
    assert "numpy" in file.read_text()
    assert "touch" not in file.read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to make a folder another user's")
def test_runs_of_other_users_do_not_stop_auto(tmp_path):
    mine = begun(tmp_path / "runs")
    theirs = tmp_path / "runs" / "a-run-9"
    theirs.mkdir()
    (theirs / "config.yaml").write_bytes((mine / "config.yaml").read_bytes())
    os.chown(theirs, 65534, 65534)
    run = close(open_run(resolved(tmp_path / "runs", checkpoint__resume="auto"), LAYOUT))
    assert run.path == mine
    assert any("another user's" in notice for notice in run.notices)


@pytest.mark.parametrize("mode", ["w", "a", "r+b", "ab+"])
def test_folder_refuses_to_write_to_what_is_no_file_of_its_own(mode, tmp_path, victim):
    for number, (what, plant) in enumerate(PLANTED.items()):
        plant(tmp_path / str(number), victim)
        with pytest.raises(OSError, match=r"link|regular|directory") as caught, Folder(tmp_path) as folder:
            folder.open(str(number), mode)
        assert caught.value.filename == str(tmp_path / str(number)), what
    assert victim.read_bytes() == SECRET


def test_folder_makes_files_anew_and_reads_only_what_is_inside(tmp_path, victim):
    with Folder(tmp_path) as folder:
        (tmp_path / "new").symlink_to(victim)
        os.close(folder.make_fd("new"))
        assert not (tmp_path / "new").is_symlink()
        with folder.open("new", "a") as file:
            file.write("é\n")
        assert (tmp_path / "new").read_bytes() == b"\xc3\xa9\n"
        with folder.open("new", "w") as file:
            file.write("x")
        assert folder.names() == ["home", "new"]
    assert victim.read_bytes() == SECRET
    (tmp_path / "far").symlink_to(victim.parent)
    for inside in (("far",), ("home", "victim"), ("none",)):
        with pytest.raises(OSError, match=r"link|directory"):
            Folder(tmp_path, *inside)
    with pytest.raises(OSError, match="link") as caught:
        Folder(tmp_path / "far")
    assert caught.value.errno == errno.ELOOP
    Folder.chosen(tmp_path / "far").close()


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_for_a_chosen_file_is_not_written_to(what, tmp_path, victim):
    """A pipe of this user's is taken for meant where the user has named it as the file to write, and nowhere else."""
    PLANTED[what](tmp_path / "out", victim)
    with pytest.raises(OSError, match=r"link|regular|directory"), chosen_file(tmp_path / "out", "w"):
        pass
    if what != "a pipe":
        with pytest.raises(UserError, match="--json must name"):
            files.claim(str(tmp_path / "out"))
        with pytest.raises(UserError, match="--json must name"):
            files.write(str(tmp_path / "out"), {})
    assert victim.read_bytes() == SECRET


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to make a pipe another user's")
def test_pipe_of_another_user_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "out")
    os.chown(tmp_path / "out", 65534, 65534)
    with pytest.raises(UserError, match="it is no regular file"):
        files.claim(str(tmp_path / "out"))


def test_link_to_a_device_is_not_followed(tmp_path):
    (tmp_path / "out").symlink_to("/dev/null")
    with pytest.raises(UserError, match="it is a link"):
        files.write(str(tmp_path / "out"), {})


def test_pipe_that_the_user_names_is_written_to(tmp_path):
    """Its reader hears of no end before the report."""
    os.mkfifo(tmp_path / "out")
    reader = subprocess.Popen(["cat", tmp_path / "out"], stdout=subprocess.PIPE, text=True)
    files.claim(str(tmp_path / "out"))
    files.write(str(tmp_path / "out"), {"é": 1})
    assert json.loads(reader.communicate(timeout=60)[0]) == {"é": 1}


@pytest.mark.parametrize("write", [lambda path: files.write(path, {}), lambda path: make.write(path, "{}\n")])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "/dev/fd/{}", "/dev/null"])
def test_devices_and_descriptors_are_written_to(name, write, tmp_path, capfd):
    with open(tmp_path / "given", "a+") as given:
        given.write("before\n")
        given.flush()
        path = name.format(given.fileno())
        files.claim(path)
        write(path)
        said = capfd.readouterr()
        given.seek(0)
        told = {"/dev/stdout": said.out, "/dev/stderr": said.err, "/dev/null": "{}\n"}
        assert told.get(name, given.read()[7:]) == "{}\n"  # what was written before is still there


def test_descriptor_that_is_not_there_is_told_before_anything_is_measured():
    with pytest.raises(UserError, match="--json must name a file to write, got '/dev/fd/999999'"):
        files.claim("/dev/fd/999999")


def test_pipe_in_a_run_ends_the_command_with_a_sentence(tmp_path, config, pool):
    first = pool(2).train(config, "train.epochs=1")
    assert first.status == 0, first.err
    (lock,) = tmp_path.glob("runs/*/lock")
    lock.unlink()
    os.mkfifo(lock)
    ended = pool(2).train(config, "checkpoint.resume=auto")
    assert (ended.status, ended.timed_out) == (2, False)
    assert ended.err.count("psframe:") == 1
    assert "it is no regular file" in ended.err


def test_report_of_a_folder_from_elsewhere_shows_no_other_files(tmp_path):
    """Links in it lead nowhere; one that the user names does."""
    home = report_files.run(tmp_path / "home" / "run", name="a-secret")
    given = tmp_path / "given"
    ours = report_files.run(given / "run", name="ours")
    for name in ("config.yaml", "usage.jsonl", "trace.json"):
        (ours / name).unlink(missing_ok=True)
        (ours / name).symlink_to(home / name)
    (given / "linked").symlink_to(home)
    bench = {"bench": "threads", "models": {"vgg16": {"rows": [{"run": str(home)}, {"run": "../home/run"}]}}}
    (given / "threads.json").write_text(json.dumps(bench))
    page, notices = report([str(given)])
    assert "a-secret" not in page
    assert sum("link" in notice for notice in notices) >= 3, notices
    (tmp_path / "mine").symlink_to(home)
    assert "a-secret" in report([str(tmp_path / "mine")])[0]


#: who writes files: to places of their own making, or that the user has named as a file
WRITERS = {
    "psframe.record.folder",  # the one function for a folder that may come from elsewhere
    "psframe.cluster.startup",  # MPICH's own memory, in /dev/shm
    "psframe.record.sealed",  # by descriptors that it has from there
    "psframe.predict.measure",  # a config, in a folder made for it
    "psframe.cluster.node_channel",  # a file without a name
    "psframe.virtual.pages",  # the same
    "psframe.cluster.mpi_start",  # an empty file, made anew, in the launcher's own folder
    "psframe.cluster.nodes",  # a socket
    "psframe.cluster.output",  # the stderr of a rank that its keeper ends
    "psframe.record.view",  # /dev/null
    "psframe.nn.code_files",  # empty files beside code that Numba has written there, and runs
}


def _writes(call):
    """Whether a call may write to a path, by its name and mode."""
    name = ast.unparse(call.func)
    if name.endswith((".write_text", ".write_bytes", ".touch", ".mkfifo", ".hardlink_to", ".symlink_to")):
        return True
    if name in ("os.replace", "os.rename", "os.truncate", "os.unlink", "os.link", "os.symlink"):
        return True
    if name in ("open", "io.open", "os.open", "gzip.open", "outside.open_fd"):
        modes = [ast.unparse(arg) for arg in (*call.args[1:], *(k.value for k in call.keywords))]
        return any(sign in mode for mode in modes for sign in ("'w", "'a", "'x", "+", "O_WRONLY", "O_RDWR", "O_CREAT"))
    return False


def test_files_are_written_in_one_place():
    found = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _writes(node)
    }
    assert found <= WRITERS, f"{found - WRITERS} write(s) files by path; go through psframe.record.folder"
