"""Compilation puts garbage collection off, and leaves it as it was: also where it fails, or calls for another. Inner
functions become code within their callers alone. Processes that compile at once do each other no harm."""

import fcntl
import gc
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba.core import event
from numba.core.errors import NumbaError

from psframe.nn import code_files
from psframe.nn.jit import _INNER, inline, inner, jit
from tests.helpers.checkpoints import mounted
from tests.helpers.launcher import ROOT


class States(event.Listener):
    """Notes at the end of every compilation whether collection was on: before it is turned on again."""

    def __init__(self):
        self.seen = []

    def on_start(self, event):
        pass

    def on_end(self, event):
        self.seen.append(gc.isenabled())


@pytest.mark.parametrize("is_on", [True, False])
def test_collection_waits_for_a_compilation_and_is_as_before(is_on, monkeypatch, tmp_path):
    monkeypatch.setattr("psframe.nn.jit._FOLDER", str(tmp_path))  # where nothing has been compiled

    @inner
    def twice(x):
        return 2 * x

    def outer(x):
        return twice(x) + 1

    def wrong(x):
        return x.nothing_of_a_number

    was_on, states = gc.isenabled(), States()
    before = event._registered["numba:compile"]
    event._registered["numba:compile"] = [states, *before]
    try:
        (gc.enable if is_on else gc.disable)()
        assert jit(outer)(numba.float32(3)) == 7
        assert states.seen == [False, False], "the function, and the one that it calls"
        assert gc.isenabled() == is_on
        with pytest.raises(NumbaError):
            jit(wrong)(1)
        assert gc.isenabled() == is_on
    finally:
        event._registered["numba:compile"] = before
        (gc.enable if was_on else gc.disable)()


@pytest.mark.skipif("pipeline_class" not in _INNER, reason="this Numba compiles each function by itself")
@pytest.mark.parametrize("kind", [inner, inline])
def test_inner_functions_are_code_of_their_callers_alone(kind, monkeypatch, tmp_path):
    monkeypatch.setattr("psframe.nn.jit._FOLDER", str(tmp_path))

    @kind
    def twice(x):
        return 2 * x

    @kind
    def more(x, numbers):
        for at in range(len(numbers)):
            numbers[at] += twice(x)
        return len(numbers)

    def outer(x, numbers):
        return more(x, numbers) + twice(x)

    numbers = np.zeros(3)
    assert jit(outer)(1.5, numbers) == 6
    assert numbers.tolist() == [3, 3, 3]
    for function in (twice, more):
        (made,) = function.overloads.values()
        assert made.library._codegen._engine.is_symbol_defined(made.fndesc.llvm_func_name) is False
    again = jit(outer)
    assert again(1.5, numbers) == 6
    assert numbers.tolist() == [6, 6, 6]
    assert sum(again.stats.cache_hits.values()) == 1


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
    ended = subprocess.run([sys.executable, folder / "first.py", how], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_processes_that_compile_at_once_do_not_load_each_others_code(tmp_path):
    """Numba's own files would now have 7 read as if it were a float."""
    assert sorted(first(tmp_path, "no lock")) == ["1", "1.5", "7"]
    assert first(tmp_path, "both")[:2] == ["1.5", "7"]


def test_processes_that_compile_at_once_keep_each_others_code(tmp_path):
    assert sorted(first(tmp_path, "lock")) == ["1", "1.5", "7"]
    assert first(tmp_path, "both") == ["1.5", "7", "0"], "something was compiled once more"


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
