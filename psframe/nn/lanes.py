"""Rows of numbers in vector registers (:class:`Row`, :class:`Half`), and LLVM's instructions for them."""

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn import bfloat16

_INT, _LANE, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)


@intrinsic
def pointer(typing, array):
    """Return the address of an array's first number, or None for None; the caller keeps the array alive.

    With the array as argument, Numba would update its reference count, atomically, at every call.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        if array == types.none:
            return context.get_dummy_value()
        return cgutils.create_struct_proxy(array)(context, builder, value=values[0]).data

    return (array if array == types.none else types.CPointer(array.dtype))(array), generate


class Row:
    """Row of numbers as vectors, the last of which may be partial.

    Parameters
    ----------
    builder : IRBuilder
    number : IntType, FloatType or DoubleType
    lanes, n_vectors, n_tail : int
        Lanes of a full vector, number of full vectors, and numbers in a partial one.
    narrowest : int
        Fewest lanes of a partial vector.
    """

    def __init__(
        self, builder: ir.IRBuilder, number: ir.Type, lanes: int, n_vectors: int, n_tail: int, narrowest: int = 1
    ):
        self.builder, self.number = builder, number
        bits = number.width if isinstance(number, ir.IntType) else 32 if isinstance(number, ir.FloatType) else 64
        self.align, self.suffix = bits // 8, f"{'i' if isinstance(number, ir.IntType) else 'f'}{bits}"
        # half a register may cost half, so a tail gets the narrowest vector that holds it
        narrow = max(narrowest, 1 << max(0, n_tail - 1).bit_length())
        self.columns = [(lanes, lanes)] * n_vectors + [(narrow, n_tail)] * (n_tail > 0)

    def load(self, pointer: ir.Value) -> list[ir.Value]:
        """Return the row as vectors; unused lanes are 0."""
        vectors = []
        for place, kind, mask in self._places(pointer):
            if mask is None:
                vectors.append(self.builder.load(place))
                vectors[-1].align = self.align
            elif self.columns[-1][1] == 1:
                number = self.builder.load(self._first(place))
                vectors.append(self.builder.insert_element(ir.Constant(kind, None), number, _LANE(0)))
            else:
                load = self.intrinsic("masked.load", kind, [place.type, _LANE, mask.type, kind], [kind, place.type])
                vectors.append(self.builder.call(load, [place, _LANE(self.align), mask, ir.Constant(kind, None)]))
        return vectors

    def store(self, pointer: ir.Value, vectors: list[ir.Value]) -> None:
        for vector, (place, kind, mask) in zip(vectors, self._places(pointer), strict=True):
            if mask is None:
                self.builder.store(vector, place).align = self.align
            elif self.columns[-1][1] == 1:
                # LLVM makes a masked store of one rounded number a store of 32 bits, on CPUs with AVX-512 without BF16
                self.builder.store(self.builder.extract_element(vector, _LANE(0)), self._first(place))
            else:
                takes = [kind, place.type, _LANE, mask.type]
                store = self.intrinsic("masked.store", ir.VoidType(), takes, [kind, place.type])
                self.builder.call(store, [vector, place, _LANE(self.align), mask])

    def spread(self, number: ir.Value) -> list[ir.Value]:
        """Return a row with ``number`` in every lane."""
        vectors = []
        for width, _ in self.columns:
            undefined = ir.Constant(ir.VectorType(number.type, width), ir.Undefined)
            one = self.builder.insert_element(undefined, number, _LANE(0))
            zeros = ir.Constant(ir.VectorType(_LANE, width), None)
            vectors.append(self.builder.shuffle_vector(one, undefined, zeros))
        return vectors

    def move(self, pointer: ir.Value, stride: ir.Value, times: int | ir.Value = 1) -> ir.Value:
        """Return ``pointer`` advanced by ``times`` * ``stride`` numbers."""
        return self.builder.gep(pointer, [self.times(stride, times)])

    def times(self, stride: ir.Value, times: int | ir.Value) -> ir.Value:
        """Return ``stride`` multiplied."""
        return self.builder.mul(stride, _INT(times) if isinstance(times, int) else times)

    def operand(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """Return a tuple (pointer, at, strides...) as (pointer + at, strides...)."""
        pointer, at, *strides = cgutils.unpack_tuple(self.builder, value)
        return (self.move(pointer, at), *strides)

    def intrinsic(self, name: str, returns: ir.Type, takes: list[ir.Type], named: list[ir.Type]) -> ir.Value:
        """Declare LLVM's function ``name`` for the types ``named``."""
        # the spelling of a pointer's type differs between versions of LLVM, which corrects it itself
        parts = [f"v{k.count}{self.suffix}" if isinstance(k, ir.VectorType) else "p0" for k in named]
        kind = ir.FunctionType(returns, takes)
        return cgutils.get_or_insert_function(self.builder.module, kind, ".".join(["llvm", name, *parts]))

    def _first(self, place: ir.Value) -> ir.Value:
        """Return the address of a vector as that of its first number."""
        return self.builder.bitcast(place, self.number.as_pointer())

    def _places(self, pointer: ir.Value) -> Iterator[tuple[ir.Value, ir.Type, ir.Value | None]]:
        """Yield each vector's address, its type, and the mask of its used lanes (None: all)."""
        at = 0
        for width, used in self.columns:
            kind = ir.VectorType(self.number, width)
            place = self.builder.bitcast(self.move(pointer, _INT(at)), kind.as_pointer())
            mask = ir.Constant(ir.VectorType(_BIT, width), [int(lane < used) for lane in range(width)])
            yield place, kind, None if used == width else mask
            at += width


class Half(Row):
    """Row of bfloat16 in memory and float32 in registers; it is rounded when it is stored."""

    def __init__(self, builder: ir.IRBuilder, lanes: int, n_vectors: int, n_tail: int, narrowest: int = 1):
        super().__init__(builder, ir.FloatType(), lanes, n_vectors, n_tail, narrowest)
        self.memory = Row(builder, ir.IntType(16), lanes, n_vectors, n_tail, narrowest)

    def load(self, pointer: ir.Value) -> list[ir.Value]:
        return [bfloat16.widened(self.builder, vector) for vector in self.memory.load(pointer)]

    def store(self, pointer: ir.Value, vectors: list[ir.Value]) -> None:
        self.memory.store(pointer, [bfloat16.rounded(self.builder, vector) for vector in vectors])


def row_of(context: Any, builder: ir.IRBuilder, pointer: Any, *sizes: int) -> Row:
    """Return a row of the numbers that a type of pointers points to, uint16 for bfloat16; ``sizes`` as for ``Row``."""
    if pointer.dtype == types.uint16:
        return Half(builder, *sizes)
    return Row(builder, context.get_value_type(pointer.dtype), *sizes)
