"""Programs as they are on another CPU: Numba's variables say for which one it compiles."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from numba.core.registry import cpu_target

from psframe.nn.vectors import TABLE, host
from tests.helpers.launcher import ROOT

#: what a CPU with AVX2, or with AVX-512, can stand for; and one with this one's features, whose instructions for
#: bfloat16 are fast
CPUS = {
    "haswell": "+sse2,+avx,+avx2,+fma",
    "nehalem": "+sse2,+sse4.2,+popcnt",
    "skylake-avx512": "+sse2,+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl",
    "znver4": cpu_target.target_context.codegen().magic_tuple()[2],
}

_PLAIN = replace(host(), bf16=False, fast_bf16=False)
has_avx2 = pytest.mark.skipif(_PLAIN not in TABLE["x86"].values() or not host().fma, reason="this CPU has no AVX2")


def said_on(cpu, program, *arguments):
    """Return the words that a module prints on one of ``CPUS``, or on this CPU where it is None.

    Skips the test where this CPU lacks the instructions of that one.
    """
    if "+avx512f" in CPUS.get(cpu, "") and TABLE["x86"]["avx512f"] != _PLAIN:
        pytest.skip("this CPU has no AVX-512")
    environ = os.environ | ({"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": CPUS[cpu]} if cpu else {})
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
