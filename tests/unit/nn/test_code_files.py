"""Processes that compile at once do not load each other's code, and keep it; what is damaged is compiled again."""

import fcntl
import os
import subprocess
import sys

import pytest

from psframe.nn import code_files
from tests.helpers.checkpoints import mounted
from tests.helpers.launcher import ROOT

FIRST = """
import os, subprocess, sys
import numpy as np
from psframe.nn import code_files
from psframe.nn.jit import jit

@jit
def first(x):
    return x[0]

def beside(name, how, wait_s):
    \"\"\"Let another process compile ``first`` for other types within a method's next call.\"\"\"
    plain = getattr(code_files.CodeFiles, name)

    def call(files, *given):
        setattr(code_files.CodeFiles, name, plain)
        other = subprocess.Popen([sys.executable, __file__, how])
        try:
            other.wait(wait_s)
        except subprocess.TimeoutExpired:
            pass
        return plain(files, *given), others.append(other)

    setattr(code_files.CodeFiles, name, call)

def no_lock(*given):
    raise OSError("no locks here")

others, how = [], sys.argv[1]
if "no lock" in how:
    code_files.fcntl.flock = no_lock
if how == "early, no lock":  # as if this process had read the index before the other one began
    code_files.CodeFiles._load_index = lambda files: {}
if how == "no lock":
    beside("_save_data", "early, no lock", 60)
if how == "lock":
    beside("_save_index", "int", 3)
if how in ("lock", "no lock", "both"):
    sys.stdout.write(f"{first(np.array([1.5]))}\\n")  # in one piece, as another process writes there, too
    sys.stdout.flush()
for other in others:
    assert other.wait(60) == 0
if how not in ("lock", "no lock"):
    sys.stdout.write(f"{first(np.array([7]))} {sum(first.stats.cache_misses.values())}\\n")
"""


def first(folder, how):
    (folder / "first.py").write_text(FIRST)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, folder / "first.py", how]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_processes_that_compile_at_once_do_not_load_each_others_code(tmp_path):
    """Numba's own files would now have 7 read as if it were a float."""
    assert sorted(first(tmp_path, "no lock")) == ["1", "1.5", "7"]
    assert first(tmp_path, "both")[:2] == ["1.5", "7"]


@pytest.mark.full
def test_processes_that_compile_at_once_keep_each_others_code(tmp_path):
    assert sorted(first(tmp_path, "lock")) == ["1", "1.5", "7"]
    assert first(tmp_path, "both") == ["1.5", "7", "0"], "something was compiled once more"
    assert first(tmp_path, "loads") == ["7", "0"]


def test_lock_of_a_process_that_was_stopped_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(code_files, "PATIENCE_S", 0.1)
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    files = code_files.CodeFiles(str(tmp_path), "name", "stamp")
    files.save("key", "code")
    os.close(holder)
    files.save("other", "more")
    assert (files.load("key"), files.load("other"), files.load("none")) == ("code", "more", None)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("left", [0, 1, 12, 30])
def test_damaged_code_is_compiled_again(tmp_path, suffix, left):
    files = code_files.CodeFiles(str(tmp_path), "name", "stamp")
    files.save("key", "code" * 20)
    (path,) = tmp_path.glob(f"*{suffix}")
    path.write_bytes(path.read_bytes()[:left])
    assert files.load("key") is None
    files.save("key", "again")
    assert files.load("key") == "again"


def test_code_that_cannot_be_written_stays_in_memory(tmp_path):
    files = code_files.CodeFiles(str(tmp_path), "name", "stamp")
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=4k", "none"):
        files.save("key", "code" * 5000)
        assert files.load("key") is None
        assert not list(tmp_path.iterdir())
