"""Subnormal numbers as zeros (:func:`flushed`), as bfloat16 instructions have them."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.jit import jit

#: True if a thread can treat subnormal numbers so here
AVAILABLE = platform.machine() in ("x86_64", "AMD64")
_FTZ_DAZ = 0x8040  # bits of MXCSR: results flushed to zero, operands taken as zero


@contextmanager
def flushed() -> Iterator[None]:
    """Let this thread take subnormal numbers for zeros, and make none, in a context. Only where :data:`AVAILABLE`."""
    before = set_mode(_FTZ_DAZ, _FTZ_DAZ)
    try:
        yield
    finally:
        set_mode(_FTZ_DAZ, before)


def mode() -> int:
    """Return how this thread treats subnormal numbers, for :func:`take`."""
    return int(set_mode(0, 0)) & _FTZ_DAZ if AVAILABLE else 0


def take(mode: int) -> None:
    """Let this thread treat subnormal numbers as another one does."""
    if AVAILABLE:
        set_mode(_FTZ_DAZ, mode)


@intrinsic
def _set_mode(typing, mask, value):
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        mask, value = (builder.trunc(v, ir.IntType(32)) for v in values)
        slot = cgutils.alloca_once(builder, ir.IntType(32))
        place = builder.bitcast(slot, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.stmxcsr"), [place])
        before = builder.load(slot)
        builder.store(builder.or_(builder.and_(before, builder.not_(mask)), builder.and_(value, mask)), slot)
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.ldmxcsr"), [place])
        return builder.zext(before, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@jit
def set_mode(mask, value):
    """Set the bits ``mask`` of this thread's MXCSR to those of ``value``; return what it was."""
    return _set_mode(mask, value)
