"""Limits of a process: told before MPI starts, and named in one sentence when one is met later."""

import errno
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from psframe import errors
from psframe.cluster import startup
from psframe.cluster.cluster import _verdict
from psframe.errors import UserError, limits
from psframe.memory import free_memory
from psframe.memory.pages import Policy
from psframe.train.assembly import allocate
from psframe.train.data import dataset
from tests.helpers import launcher

UNLIMITED = resource.RLIM_INFINITY


def reads(**values):
    """Return what stands in for getrlimit, where all but ``values`` are unlimited."""
    numbers = {getattr(resource, f"RLIMIT_{name}"): value for name, value in values.items()}
    return lambda number: (numbers.get(number, UNLIMITED), UNLIMITED)


@pytest.mark.parametrize(
    ("name", "limit", "value", "shown"),
    [
        ("AS", limits.VIRTUAL, 400_000 << 10, "got 400,000 kB; run `ulimit -v unlimited`"),
        ("DATA", limits.DATA, 1 << 20, "got 1,024 kB; run `ulimit -d unlimited`"),
        ("NOFILE", limits.FILES, 16, "got 16; run `ulimit -n 1024`"),
        ("FSIZE", limits.FILE, 100 << 10, "got 100 kB; run `ulimit -f unlimited`"),
    ],
)
def test_limit_that_is_too_low_is_named_with_value_and_fix(name, limit, value, shown):
    told = limit.told(2, reads(**{name: value}))
    assert f"(RLIMIT_{name}) must be at least" in told
    assert shown in told
    assert limit.told(2, reads()) == ""
    assert limit.told(2, reads(**{name: limit.least(2)})) == ""


def test_open_files_grow_with_ranks_of_a_node():
    assert not limits.FILES.told(2, reads(NOFILE=44))
    assert "at least 52, got 44" in limits.FILES.told(8, reads(NOFILE=44))


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (MemoryError(), "RLIMIT_AS"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "RLIMIT_AS"),
        (ImportError("libx.so: failed to map segment from shared object"), "RLIMIT_AS"),
        (ImportError("libx.so: cannot allocate memory in static TLS block"), "RLIMIT_AS"),
        (OSError(errno.EMFILE, "Too many open files"), "RLIMIT_NOFILE"),
        (ImportError("_x.so: cannot open shared object file: Too many open files"), "RLIMIT_NOFILE"),
        (OSError(errno.EFBIG, "File too large"), "RLIMIT_FSIZE"),
        (RuntimeError("can't start new thread"), "RLIMIT_NPROC"),
        (RuntimeError("a defect"), ""),
        (ImportError("No module named 'h5py'"), ""),
        (OSError(errno.ENOENT, "No such file or directory"), ""),
    ],
)
def test_error_is_explained_by_the_limit_that_was_met(monkeypatch, error, name):
    values = {part.removeprefix("RLIMIT_"): 1 << 20 for part in [name] if part}
    monkeypatch.setattr(limits.resource, "getrlimit", reads(**values))
    for limit in (limits.VIRTUAL, limits.DATA, limits.FILES, limits.FILE, limits.PROCESSES):
        monkeypatch.setattr(type(limit).met, "__defaults__", (reads(**values),))
    assert (name in limits.met(error)) if name else limits.met(error) == ""


def test_memory_error_is_a_sentence_and_a_defect_is_none():
    assert "must fit into memory, got too little (none is left)" in errors.sentence(MemoryError())
    assert errors.sentence(KeyError("x")) == ""


@pytest.mark.parametrize("role", ["data", "gradients"])
def test_shared_memory_that_lacks_is_blamed_on_what_leaves_least(monkeypatch, role):
    """A high limit of the process does not explain that a cgroup leaves less; one that has no part in it does."""
    monkeypatch.setattr(type(limits.VIRTUAL).met, "__defaults__", (reads(AS=200 << 30, NOFILE=16),))
    least = free_memory.Room((2, 100), 40, "memory.max=50 of the cgroup /job")
    for module in (dataset, allocate):
        monkeypatch.setattr(module, "available", lambda: least)
    link, places = SimpleNamespace(), SimpleNamespace(policies={role: Policy()})
    cluster = SimpleNamespace(link=link)

    def met(number):
        def fails(*_, **__):
            raise OSError(number, os.strerror(number))

        link.share = fails
        with pytest.raises((UserError, OSError)) as found:
            dataset._share(cluster, 4096, places) if role == "data" else allocate._share(cluster, places, role, 4096)()
        return errors.sentence(found.value)

    said = met(errno.ENOMEM)
    assert "4,096 bytes, got 40 by memory.max=50 of the cgroup /job (Cannot allocate memory)" in said
    assert "RLIMIT" not in said
    for policy in (Policy(), Policy(huge_pages="2M")):
        places.policies[role] = policy
        assert "RLIMIT_NOFILE" in met(errno.EMFILE)
    assert "huge_pages: 2M must find free pages" in met(errno.ENOMEM)


def test_error_of_one_rank_is_agreed_on_and_a_defect_is_raised(monkeypatch):
    monkeypatch.setattr(errors.limits, "met", lambda error: "told" if isinstance(error, OSError) else "")

    def fails():
        raise OSError(errno.EMFILE, "Too many open files")

    assert _verdict(fails) == {"error": "told"}
    with pytest.raises(ZeroDivisionError):
        _verdict(lambda: 1 / 0)


def test_address_space_is_room_that_a_process_has_for_itself(monkeypatch):
    before = free_memory.rooms()
    monkeypatch.setattr(free_memory.resource, "getrlimit", lambda number: (1 << 50, 1 << 50))
    (own,) = [found for found in free_memory.rooms() if found not in before and found.group[0] == free_memory.PROCESS]
    assert 0 < own.left < 1 << 50
    assert "RLIMIT_AS=" in str(own)


@pytest.mark.parametrize("kind", ["missing", "file", "small"])
def test_shared_memory_that_mpi_cannot_use_is_told(tmp_path, monkeypatch, kind):
    path = tmp_path / "shm"
    if kind == "file":
        path.write_text("")
    elif kind == "small":
        path.mkdir()
        found = SimpleNamespace(f_blocks=1, f_bavail=1, f_frsize=4096, f_flag=0)
        monkeypatch.setattr(startup.os, "statvfs", lambda _: found)
    told = startup.without_shared_memory(str(path), 2)
    assert told.startswith(f"{path} must")
    assert ("4,096" if kind == "small" else "mount -t tmpfs") in told


def test_shared_memory_that_is_mounted_read_only_is_told(tmp_path, monkeypatch):
    assert startup.without_shared_memory(str(tmp_path), 2) == ""
    monkeypatch.setattr(startup.os, "access", lambda *_: False)
    monkeypatch.setattr(
        startup.os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=1, f_flag=os.ST_RDONLY)
    )
    assert "got one that is mounted read-only" in startup.without_shared_memory(str(tmp_path), 1)


#: is a command, on a machine whose /dev/shm is full
FULL = """\
import os, runpy, sys, types
os.statvfs = lambda _: types.SimpleNamespace(f_blocks=1, f_bavail=1, f_frsize=4096, f_flag=0)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "words",
    [["psframe.train"], ["psframe.bench", "step"], ["psframe.doctor"], ["psframe.predict.ranks", "node"]],
    ids=lambda words: words[0],
)
def test_every_command_over_ranks_tells_of_too_little_shared_memory(mpich, words):
    ended = launcher.run(mpich, 2, ["-c", FULL, *words], timeout_s=60)
    assert ended.status == 2, ended
    assert ended.err.count("psframe: /dev/shm must have 2,120,000 bytes for what 2 ranks say") == 1, ended
    assert "Traceback" not in ended.err


def test_error_at_import_is_told_without_a_traceback():
    code = "from psframe.cluster import startup; startup.check_limits(); raise MemoryError"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("psframe: what a config asks for must fit into memory")
    ended = subprocess.run([sys.executable, "-c", code[:-11] + "1 / 0"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


@pytest.mark.parametrize(("option", "value", "name"), [("-v", 400000, "RLIMIT_AS"), ("-n", 24, "RLIMIT_NOFILE")])
def test_ranks_under_a_low_limit_end_with_one_sentence(mpich, config, option, value, name):
    words = mpich.command(2, ["-m", "psframe.train", config])
    shell = ["bash", "-c", f'ulimit {option} {value} && exec "$@"', "_", *words]
    ended = subprocess.run(shell, capture_output=True, text=True, timeout=60, cwd=launcher.ROOT)
    assert ended.returncode == 2, ended
    assert ended.stderr.count("psframe:") == 1, ended
    assert name in ended.stderr
    assert "Traceback" not in ended.stderr
