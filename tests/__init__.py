"""Tests of psframe: several jobs beside each other, of more ranks together than cores."""

import os

#: MPICH's ranks sleep where they wait: those that spin take a third more CPU time beside other jobs. NumPy's BLAS has
#: one thread, since a second one spins, too
SETTINGS = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "10",
    "OPENBLAS_NUM_THREADS": "1",
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
