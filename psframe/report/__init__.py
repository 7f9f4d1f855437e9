"""One self-contained HTML page of runs and benches. Imports no MPI and no Numba."""
