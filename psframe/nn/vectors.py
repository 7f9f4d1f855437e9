"""Vector registers of the CPU (:class:`Vectors`), as far as a register block depends on them."""

import platform
from dataclasses import dataclass
from functools import cache

from numba.core.registry import cpu_target


@dataclass(frozen=True)
class Vectors:
    """The vector registers of a CPU.

    Attributes
    ----------
    n_bytes : int
        Width of a register.
    n_registers : int
        Number of registers.
    fma : bool
        True if one instruction multiplies and adds (with one rounding).
    bf16 : bool
        True if one instruction adds products of pairs of bfloat16, and another one rounds to it.
    fast_bf16 : bool
        True if the first is faster than multiplying and adding twice.
    """

    n_bytes: int
    n_registers: int
    fma: bool = True
    bf16: bool = False
    fast_bf16: bool = False


#: by CPU feature, the best first. Registers are scarce: a block of sums, a row of ``B`` and one number of ``A`` must
#: fit into them together. Wide registers win even if a core executes them as two halves (Zen 4), since they hold twice
#: the sums; narrower ones are used at the end of a row of ``B``.
TABLE: dict[str, dict[str, Vectors]] = {
    "x86": {
        "avx512f": Vectors(64, 32),  # Knights Landing, Xeon, Zen 4 and 5
        "fma": Vectors(32, 16),  # AVX2: Haswell, Zen 1 to 3
        "avx": Vectors(32, 16, fma=False),
        "sse2": Vectors(16, 16, fma=False),
    },
    "arm": {
        "sve": Vectors(16, 32),  # the width that all have; see below
        "neon": Vectors(16, 32),
    },
}
#: CPUs whose SVE registers are wider than the common 16 bytes
SVE_BYTES = {"a64fx": 64, "neoverse-v1": 32}
#: CPUs that add products of pairs at twice the rate of single ones. Sapphire Rapids does so at half the rate (its AMX,
#: which is much faster, sums in another order, to other bits)
FAST_BF16 = ("znver4", "znver5")


def choose(machine: str, cpu: str, features: str) -> Vectors:
    """Return the vectors of a CPU; of an unknown CPU, those that all of its family have.

    Parameters
    ----------
    machine : str
        Machine type as from ``platform.machine()``: ``x86_64``, ``aarch64``.
    cpu : str
        LLVM's name of the CPU.
    features : str
        LLVM's feature list: ``+avx,+avx2,-avx512f``.
    """
    family = "arm" if machine.lower().startswith(("aarch64", "arm")) else "x86"
    available = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    for feature, vectors in TABLE[family].items():
        if feature in available:
            wide = SVE_BYTES.get(cpu, vectors.n_bytes) if feature == "sve" else vectors.n_bytes
            bf16 = feature == "avx512f" and {"avx512bf16", "avx512vl"} <= available
            return Vectors(wide, vectors.n_registers, vectors.fma, bf16, bf16 and cpu in FAST_BF16)
    return Vectors(16, 32 if family == "arm" else 16, family == "arm")


@cache
def host() -> Vectors:
    """Return the vectors of the CPU that Numba compiles for (``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` count)."""
    _, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return choose(platform.machine(), cpu, features)
