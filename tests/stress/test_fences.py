"""The layers stay within their arrays, where pages without access lie beside these; and who does not is noticed."""

import signal
import subprocess
import sys

import pytest

from psframe.nn.vectors import host
from tests.helpers.launcher import ROOT
from tests.helpers.other_cpu import said_on
from tests.helpers.thinned import thinned

#: a kernel that is told of a number just beyond its array's cache lines
BEYOND = """
import sys
from psframe.nn.jit import jit
from tests.stress.fences import Fenced, fenced

@jit
def put(array, at):
    array[at] = 1

Fenced.above = sys.argv[1] == "above"
array = fenced([100], "float32")
for at in (0, 99, -100):
    put(array, at)
print("within", flush=True)
put(array, 112 if Fenced.above else -101)
print("beyond", flush=True)
"""


def python(*arguments, timeout_s=900):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
@pytest.mark.parametrize("side", ["above", "below"])
def test_layers_stay_within_their_arrays(side, dtype):
    ended = python("-m", "tests.stress.fences", side, dtype)
    assert (ended.returncode, ended.stdout) == (0, "nobody went too far\n"), ended.stderr


@pytest.mark.skipif(not host().fma, reason="bf16 needs an x86 CPU with AVX2")
@pytest.mark.parametrize("cpu", thinned([None, "skylake-avx512"], (1,)))
def test_number_behind_a_row_of_vectors_is_stored_alone(cpu):
    """Of 33 channels, on this CPU and on one with AVX-512 that cannot round to bfloat16."""
    assert " ".join(said_on(cpu, "tests.stress.fences", "above", "uint16", "2")) == "nobody went too far"


@pytest.mark.parametrize("side", ["above", "below"])
def test_kernel_that_goes_beyond_is_noticed(side, tmp_path):
    (tmp_path / "beyond.py").write_text(BEYOND)
    ended = python("-c", f"import runpy; runpy.run_path({str(tmp_path / 'beyond.py')!r})", side)
    assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "within\n"), ended
