"""Peak rate of float32 multiplications and additions of this core (:func:`gflops`)."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.blocking import blocking
from psframe.nn.jit import jit
from psframe.nn.lanes import Row
from psframe.nn.microkernel import fused

CHAINS = 12  # independent sums: enough to fill two multipliers with a latency of four, or of six, cycles


@intrinsic
def multiply_in_registers(typing, lanes, n):
    """Multiply and add ``n`` times in each of the chains, in registers; return a number that depends on all chains."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row = Row(builder, ir.FloatType(), len(lanes), 1, 0)
        (x,), (y,) = row.spread(row.number(0.5)), row.spread(row.number(1e-3))
        chains = [cgutils.alloca_once_value(builder, row.spread(row.number(0.1 * c))[0]) for c in range(CHAINS)]
        with cgutils.for_range(builder, values[1]):
            for chain in chains:
                builder.store(fused(row, builder.load(chain), x, y), chain)
        total = builder.load(chains[0])
        for chain in chains[1:]:
            total = builder.fadd(total, builder.load(chain))
        numbers = [builder.extract_element(total, ir.IntType(32)(lane)) for lane in range(len(lanes))]
        result = numbers[0]
        for number in numbers[1:]:
            result = builder.fadd(result, number)
        return result

    return types.float32(lanes, types.int64), generate


@jit
def _loop(lanes, n):
    return multiply_in_registers(lanes, n)


def gflops(seconds: float = 0.02, clock: Callable[[], float] = perf_counter) -> float:
    """Return one thread's rate in 1e9 float32 operations per second, timed over at least ``seconds`` of ``clock``."""
    lanes, n = blocking(1, 1).types[0], 100_000
    _loop(lanes, 1)
    while True:
        began = clock()
        _loop(lanes, n)
        took = clock() - began
        if took > seconds:
            return 2 * len(lanes) * CHAINS * n / took / 1e9
        n *= 4
