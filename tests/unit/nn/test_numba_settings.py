"""Numba's own settings: those that forbid its work, or that it cannot read, are told in one sentence."""

import subprocess
import sys

import pytest

from psframe.errors import UserError
from psframe.nn.numba_settings import check, check_features


def test_numba_that_is_not_to_compile_is_told(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(UserError, match="run `unset NUMBA_DISABLE_JIT`"):
        check(True, [])
    monkeypatch.delenv("NUMBA_DISABLE_JIT")
    with pytest.raises(UserError, match=r"take disable_jit out of \.numba_config\.yaml"):
        check(True, [])
    check(False, ["a warning of something else"])


@pytest.mark.parametrize("features", ["bogus", "+avx2,sse", "+", ","])
def test_features_of_which_llvm_would_end_the_process(features):
    with pytest.raises(UserError, match="run `unset NUMBA_CPU_FEATURES`"):
        check_features({"NUMBA_CPU_FEATURES": features})
    check_features({"NUMBA_CPU_FEATURES": "+avx2,-avx512f"})
    check_features({})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("NUMBA_DISABLE_JIT", "1", "unset NUMBA_DISABLE_JIT"),
        ("NUMBA_NUM_THREADS", "abc", "NUMBA_NUM_THREADS must be a value that Numba takes, got 'abc'"),
        ("NUMBA_NUM_THREADS", "0", "must be > 0"),
    ],
)
def test_kernels_that_cannot_be_imported_so_are_told(name, value, told, monkeypatch):
    monkeypatch.setenv(name, value)
    code = (
        "import sys; from psframe.cluster.process import guarded; "
        "sys.exit(guarded(lambda: __import__('psframe.nn.jit')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
