"""How psframe compiles with Numba: with IEEE arithmetic, so that runs agree to the bit.

``jit`` is for what Python calls: it is kept on disk. ``inner`` is for what only jitted code calls, and ``inline`` for what
is to be merged into it.
"""

import numba

jit = numba.njit(cache=True, nogil=True, error_model="numpy")
inner = numba.njit(nogil=True, error_model="numpy")
inline = numba.njit(nogil=True, error_model="numpy", forceinline=True)
