"""Register blocking of a matrix product (:func:`blocking`)."""

from dataclasses import dataclass
from functools import cache

from psframe.nn.vectors import host

Lengths = tuple[None, ...]  #: a number that is part of the type; see ``multiply_add``
_ANY = 1 << 30
#: by numbers in an element: rows of a block of one vector, and of several, at most. LLVM loads all pairs of A that a
#: step multiplies by before it multiplies the first; beside those of more rows, sums would not stay in registers
MOST_ROWS = {1: (_ANY, _ANY), 2: (12, 8)}


@dataclass(frozen=True)
class Blocking:
    """Rows and columns of a product in blocks: full ones, and a smaller last one in each direction.

    Attributes
    ----------
    lanes : int
        Numbers in a vector.
    rows, last_rows : int
        Rows of a block, and of the last one.
    vectors : int
        Vectors in a row of a full block; 0 if a row has only one block.
    last_vectors, tail : int
        Full vectors, and numbers in a partial vector, of the last block in a row.
    """

    lanes: int
    rows: int
    last_rows: int
    vectors: int
    last_vectors: int
    tail: int

    @property
    def types(self) -> tuple[Lengths, ...]:
        """Argument of jitted code: tuples whose lengths are the attributes, in their order."""
        return _lengths((self.lanes, self.rows, self.last_rows, self.vectors, self.last_vectors, self.tail))


@cache
def _lengths(numbers: tuple[int, ...]) -> tuple[Lengths, ...]:
    return tuple((None,) * number for number in numbers)


def blocking(
    n_rows: int,
    n_columns: int,
    itemsize: int = 4,
    *,
    max_rows: int | None = None,
    undivided: bool = False,
    power_of_two: bool = False,
    in_one: int = 1,
) -> Blocking:
    """Return the blocking of a product of ``n_rows`` x ``n_columns`` (both at least 1) estimated fastest on this CPU.

    Parameters
    ----------
    itemsize : int
        Bytes of a number.
    max_rows : int, optional
        Maximum rows of a block, for rows so far apart that more would evict each other from the L1 cache.
    undivided : bool
        True to have all columns in one block, even if they are more than fit into registers.
    power_of_two : bool
        True for rows that are a power of two.
    in_one : int
        Numbers along the sum in an element of the product: 2 for pairs of bfloat16.
    """
    vectors = host()
    sizes = vectors.n_bytes // itemsize, vectors.n_registers
    return _best(n_rows, n_columns, *sizes, max_rows or n_rows, undivided, power_of_two, MOST_ROWS[in_one])


def side_by_side(n_columns: int, itemsize: int = 4) -> Blocking:
    """Return blocks of one row and few vectors, for loops that hold several numbers for each one of the row."""
    vectors = host()
    lanes, most = vectors.n_bytes // itemsize, vectors.n_registers // 8
    n_vectors, tail = divmod(n_columns, lanes)
    n_blocks = -(-(n_vectors + (tail > 0)) // most) - 1
    return Blocking(lanes, 1, 1, most if n_blocks else 0, n_vectors - n_blocks * most, tail)


@cache
def _best(
    n_rows: int,
    n_columns: int,
    lanes: int,
    n_registers: int,
    max_rows: int,
    undivided: bool,
    power_of_two: bool,
    most_rows: tuple[int, int],
) -> Blocking:
    n_vectors, tail = divmod(n_columns, lanes)
    # a quarter of the registers is left for a row of B, numbers of A and the compiler's temporaries
    max_sums = max(1, n_registers * 3 // 4)
    best, least_cost = Blocking(lanes, 1, 1, 0, n_vectors, tail), float("inf")
    all_vectors = n_vectors + (tail > 0)
    for vectors in range(all_vectors if undivided else 1, all_vectors + 1):
        n_blocks, last = divmod(n_vectors, vectors)
        if last + tail == 0:
            n_blocks, last = n_blocks - 1, vectors
        columns = [(vectors, n_blocks), (last + (tail > 0), 1)]
        widest = max(vectors * (n_blocks > 0), columns[1][0])
        for rows in range(1, min(n_rows, max_rows, max_sums // widest, most_rows[widest > 1]) + 1):
            if power_of_two and rows & rows - 1:
                continue
            n_whole = (n_rows - 1) // rows
            last_rows = n_rows - n_whole * rows
            blocks = ((r, c, n * m) for r, n in ((rows, n_whole), (last_rows, 1)) for c, m in columns)
            cost = sum(number * _cost(r, c) for r, c, number in blocks)
            if cost < least_cost:
                least_cost = cost
                best = Blocking(lanes, rows, last_rows, vectors if n_blocks else 0, last, tail)
    return best


def _cost(rows: int, vectors: int) -> float:
    """Return the estimated cycles of one step of the sum for a block.

    A core multiplies two vectors a cycle, loads not quite two, and has to wait four cycles before it can add to a
    result again. The loop costs a little, and so does B, which may come from the L2 cache.
    """
    return max(rows * vectors / 2, (rows + vectors) * 0.6, 4) + 0.5 + 0.15 * vectors
