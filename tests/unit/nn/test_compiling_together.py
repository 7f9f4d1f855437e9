"""Processes that compile the same layers at once: each kernel is compiled by one of them, and none is run."""

import fcntl
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from psframe.nn import code_files, jit
from psframe.nn.compiling_together import sharing
from psframe.nn.threads import Threads
from tests.helpers.launcher import ROOT

NETWORK = """
import sys
import numpy as np
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.nn.base import Pass
from psframe.nn.compiling_together import sharing
from psframe.nn.conv import loops as of_conv
from psframe.nn.dense import loops as of_dense
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from tests.helpers import tiny

net = Network(tiny.build((1, 6, 6), 3), (1, 6, 6), 3)
net.bind(Arena(net.layout, 1, Allocator()), 2, Allocator())
kernels = [of_conv.forward, of_conv.backward, of_dense.forward, of_dense.backward]

def n_compiled():
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)

def warm():
    return net.gradients(np.ones((2, 6, 6, 1), np.float32), np.zeros(2, np.int64), Pass(True))

sys.stdin.readline()
sharing(warm)
shared = n_compiled()
print(shared, flush=True)
sys.stdin.readline()
initialize(net, 0)
loss, _ = warm()
print(n_compiled() - shared, loss, net.arena.grads.tobytes().hex(), flush=True)
"""


@pytest.mark.full
def test_each_kernel_is_compiled_by_one_process(tmp_path):
    """All go on in the same bits afterwards, and compile nothing more."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env, "cwd": ROOT}
    processes = [subprocess.Popen([sys.executable, "-c", NETWORK], **pipes) for _ in range(3)]
    try:
        for process in processes:
            process.stdin.write("go\n"), process.stdin.flush()
        compiled = [int(process.stdout.readline()) for process in processes]
        files = [path for kind in ("conv", "dense") for path in tmp_path.glob(f"{kind}_*/loops.*.nbc")]
        assert sum(compiled) == len(files) == 4
        after = [process.communicate("go\n", timeout=300)[0].split() for process in processes]
        assert [words[0] for words in after] == ["0"] * 3, "something was compiled once more"
        assert len({tuple(words) for words in after}) == 1
        assert not [*tmp_path.rglob("*.claim")]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return a kernel that has not been compiled, whose code will lie in an empty folder."""
    monkeypatch.setattr(jit, "_FOLDER", str(tmp_path))

    @jit.jit
    def fill(part, n_parts, x):
        x[:] = 1

    return fill


@pytest.mark.parametrize("n_threads", [1, 2])
def test_kernel_is_compiled_and_not_run(kernel, n_threads):
    x, threads = np.zeros(3), Threads(n_threads)
    sharing(lambda: threads.run(kernel, x))
    assert not x.any()
    assert len(kernel.overloads) == 1
    threads.run(kernel, x)
    assert x.all()
    assert len(kernel.overloads) == 1


@pytest.fixture
def claim(kernel):
    """Return what holds the claim on the kernel's code for one array of floats, as another process would."""
    files = kernel._cache._cache_file
    signature = tuple(kernel.typeof_pyval(arg) for arg in (0, 1, np.zeros(3)))
    key = kernel._cache._index_key(signature, kernel.targetctx.codegen())
    held = files.claim(key, 0)
    assert held is not None
    return key, held


def test_kernel_that_another_process_compiles_is_passed_over(kernel, claim):
    x = np.zeros(3)
    sharing(lambda: Threads().run(kernel, x))
    assert not kernel.overloads
    kernel._cache._cache_file.release(*claim)
    sharing(lambda: Threads().run(kernel, x))
    assert kernel.overloads


def test_process_that_was_stopped_while_it_compiled_is_not_waited_for_for_ever(kernel, claim, monkeypatch):
    monkeypatch.setattr(code_files.Code, "patience_s", 0.1)
    x = np.zeros(3)
    kernel(0, 1, x)
    assert x.all()
    assert kernel._cache._cache_file.has(claim[0])
    assert code_files.Code.patience_s == 0, "what else that process was to compile would be waited for as long"


def test_where_there_are_no_locks_nothing_is_shared(kernel, monkeypatch):
    """Each process would compile everything; one does so alone."""

    def no_lock(*given):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    x = np.zeros(3)
    sharing(lambda: Threads().run(kernel, x))
    assert not kernel.overloads
    kernel(0, 1, x)
    assert x.all()


def test_what_fails_is_left_to_who_calls_it_in_earnest(kernel, tmp_path):
    """Others need not wait for it, whether it failed there or in earnest."""
    sharing(lambda: Threads().run(kernel, "no array"))
    for _ in range(2):
        assert not kernel._cache._claims
        assert not [*tmp_path.rglob("*.claim")]
        with pytest.raises(Exception, match=r"Cannot|No implementation|setitem"):
            Threads().run(kernel, "no array")


def test_code_that_another_process_cannot_write_is_not_waited_for_again(kernel, claim, monkeypatch):
    """On a full disk each would wait for all before it."""
    files, (key, held) = kernel._cache._cache_file, claim
    monkeypatch.setattr(code_files.Code, "patience_s", 60.0)
    threading.Timer(0.3, files.release, (key, held)).start()
    x = np.zeros(3)
    kernel(0, 1, x)
    assert x.all()
    assert code_files.Code.patience_s == 0
    assert not kernel._cache._claims


def test_claim_is_on_the_file_that_is_there(kernel, claim):
    """Who waited for a file that was removed takes a new one, which others see, too."""
    files, (key, held) = kernel._cache._cache_file, claim
    threading.Timer(0.3, files.release, (key, held)).start()
    mine = files.claim(key, 60)
    assert files.claim(key, 0) is None
    files.release(key, mine)
