"""How psframe compiles with Numba: cached on disk, and with IEEE arithmetic, so that runs agree to the bit."""

import numba

jit = numba.njit(cache=True, nogil=True, error_model="numpy")
