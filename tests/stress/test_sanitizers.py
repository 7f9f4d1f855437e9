"""The compiled parts under AddressSanitizer and UndefinedBehaviorSanitizer; and that these find what is wrong."""

import pytest

from tests.helpers.launcher import ROOT
from tests.helpers.modules import imports
from tests.stress.sanitizers import runs
from tests.stress.sanitizers.instrumented import NoSanitizerError, build


def built(folder, names=()):
    try:
        return build(folder, names)
    except NoSanitizerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return built(tmp_path_factory.mktemp("sanitized") / "copy", runs.QUICK_MODULES)


#: an array over n float32 of the C library, which is given back, or ends too early, or begins at an odd address
ARRAY = """
import ctypes
import numpy as np
from psframe import compiled
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def array(n, n_bytes, odd=0):
    begin = libc.malloc(ctypes.c_size_t(n_bytes))
    return np.ctypeslib.as_array((ctypes.c_float * n).from_address(begin + odd)), begin
"""

OVER = "a, _ = array(100, 396); compiled.elementwise.Mean([np.zeros(100, 'f4')]).into(a)"
FREED = "a, begin = array(4, 16); libc.free(begin); compiled.random.words(0, a.view('u4'))"
ODD = "a, _ = array(4, 32, odd=1); compiled.random.words(0, a.view('u4'))"

#: by what is reported; what is undefined, here at an address that is no multiple of four, as an illegal instruction
MISTAKES = {
    "heap-buffer-overflow": (OVER, "psf_mean"),
    "heap-use-after-free": (FREED, "philox"),
    "ILL": (ODD, "philox"),
}


@pytest.mark.full
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(copy, mistake):
    code, where = MISTAKES[mistake]
    copy.forget()
    ended = copy.run("-c", ARRAY + code, timeout_s=120)
    assert ended.returncode != 0
    (found,) = copy.found()
    assert f"AddressSanitizer: {mistake} " in found
    assert where in found


def test_unit_tests_of_compiled_parts_are_all_watched():
    unit = ROOT / "tests" / "unit"
    found = [path for path in unit.rglob("test_*.py") if "psframe.compiled" in imports(path)]
    assert {f"unit/{path.relative_to(unit).with_suffix('')}" for path in found} <= set(runs.FULL)


@pytest.mark.full
def test_quick_tests_find_nothing(copy):
    passes(runs.instrumented(copy, runs.QUICK, timeout_s=600))


@pytest.mark.full
def test_tests_that_reach_compiled_parts_find_nothing(tmp_path):
    passes(runs.instrumented(built(tmp_path / "copy"), runs.FULL, timeout_s=7200))


def passes(outcome):
    assert not outcome.findings, outcome.out
    assert outcome.status == 0, outcome.out
    assert "passed" in outcome.counts
