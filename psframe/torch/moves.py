"""Parts of tensors that a rank gives to a collective and takes from it (:class:`Moves`), as moves through rooms."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from zlib import crc32

import torch

from psframe import compiled
from psframe.torch.types import OPERATIONS, type_name, type_number

COPY, FOLD, Move = compiled.rooms.COPY, compiled.rooms.FOLD, compiled.rooms.Move

KINDS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
LINE = 64
#: bytes of all slots together above which each rank sums a segment for all, which takes one more wait
SEGMENTED_BYTES = 1 << 19

Part = tuple[int, int, int, int]


def n_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def part(tensor: torch.Tensor, of: int = 0, begin: int = 0) -> Part:
    """Return a contiguous tensor as a part: address, bytes, the sub-slot or rank it belongs to, and its begin there."""
    return tensor.data_ptr(), n_bytes(tensor), of, begin


def parts(tensors: Sequence[torch.Tensor]) -> list[Part]:
    return [part(tensor, number) for number, tensor in enumerate(tensors)]


def in_line(tensors: Sequence[torch.Tensor], of: int = 0) -> tuple[list[Part], int]:
    """Return the parts of tensors that go one after the other to the same place, and their bytes together."""
    begins = list(accumulate(map(n_bytes, tensors), initial=0))
    return [part(tensor, of, begin) for tensor, begin in zip(tensors, begins, strict=False)], begins[-1]


def described(note: tuple[int, ...], given_bytes: int) -> str:
    """Return a note in words: the name of the collective and what it moves; ``given_bytes`` where ranks may differ."""
    kind, number, op, root, total, place = note
    rooted = f" with root {root}" if KINDS[kind] in ("reduce", "broadcast", "gather", "scatter") else ""
    total = given_bytes if KINDS[kind] == "all_to_all" else total
    sized = "" if KINDS[kind] == "barrier" else f" of {total:,} bytes of {type_name(number)}"
    folded = f" by {OPERATIONS[op]}" if "reduce" in KINDS[kind] else ""
    return f"{KINDS[kind]}{sized}{folded}{rooted}, number {place}"


class Moves:
    """Moves of a group's rank: contiguous tensors in, contiguous tensors out.

    Parameters
    ----------
    me, n : int
        This rank's number in the group, and their number.
    slot_bytes : int
        Bytes of a rank's part of a chunk.
    is_chain : bool
        True if the ranks are on several nodes, and numbered node by node.
    """

    def __init__(self, me: int, n: int, slot_bytes: int, is_chain: bool = False):
        self.me, self.n, self.slot_bytes, self.is_chain = me, n, slot_bytes, is_chain
        self.sub_bytes = max(LINE, slot_bytes // n // LINE * LINE)  # where a slot has a part for each rank

    def all_reduce(self, tensors: Sequence[torch.Tensor], op: int) -> Any:
        """``tensors`` have one type; their numbers are exchanged one after the other."""
        mine, total = in_line(tensors)
        return self._reduce((0, type_number(tensors[0].dtype), op, 0, total), mine, True)

    def reduce(self, tensor: torch.Tensor, root: int, op: int) -> Any:
        note = (_NUMBER["reduce"], type_number(tensor.dtype), op, root, n_bytes(tensor))
        return self._reduce(note, [part(tensor)], self.me == root)

    def _reduce(self, note: tuple[int, ...], mine: list[Part], takes: bool) -> Any:
        total = note[4]
        if self._in_segments(total):
            out = [(at, size, self.n, begin) for at, size, _, begin in mine] if takes else []
            return Move(note, self.slot_bytes, total, mine, out, COPY, in_segments=True, is_chained=self.is_chain)
        return Move(note, self.slot_bytes, total, mine, mine if takes else [], FOLD)

    def _in_segments(self, total: int) -> bool:
        return (self.n > 2 or self.is_chain) and total * self.n > SEGMENTED_BYTES

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        total = n_bytes(tensor)
        note = (_NUMBER["broadcast"], type_number(tensor.dtype), 0, root, total)
        if self.me == root:
            return Move(note, self.slot_bytes, total, [part(tensor)], [])
        return Move(note, self.slot_bytes, total, [], [part(tensor, root)], COPY)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        """``outs`` has a tensor for each rank; they may differ in size, and then do so on all ranks alike."""
        sizes = [n_bytes(out) for out in outs]
        return self._gather("all_gather", sizes, tensor, parts(outs))

    def all_gather_single(self, out: torch.Tensor, tensor: torch.Tensor) -> Any:
        each, base = n_bytes(tensor), out.data_ptr()
        outs = [(base + rank * each, each, rank, 0) for rank in range(self.n)]
        return self._gather("all_gather", [each] * self.n, tensor, outs)

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Any:
        """``outs`` is empty but on the root."""
        return self._gather("gather", [n_bytes(tensor)] * self.n, tensor, parts(outs), root)

    def _gather(self, kind: str, sizes: list[int], tensor: torch.Tensor, outs: list[Part], root: int = 0) -> Any:
        total = sizes[self.me] if len(set(sizes)) == 1 else sum(sizes)  # as the caller has it
        note = (_NUMBER[kind], type_number(tensor.dtype), self._shape(sizes), root, total)
        return Move(note, self.slot_bytes, max(sizes), [part(tensor)], outs, COPY)

    def scatter(self, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Any:
        """``tensors`` is empty but on the root."""
        note = (_NUMBER["scatter"], type_number(out.dtype), 0, root, n_bytes(out))
        return Move(note, self.sub_bytes, n_bytes(out), parts(tensors), [part(out, root)], COPY, self.me)

    def reduce_scatter(self, outs: Sequence[torch.Tensor], rows: Sequence[Sequence[torch.Tensor]], op: int) -> Any:
        """Each of ``rows`` has, for each of ``outs``, a part for each rank.

        Parts may differ in size, and then do so on all ranks alike. All tensors have one type.
        """
        lines = [in_line([row[rank] for row in rows], rank) for rank in range(self.n)]
        given, sizes = [one for line, _ in lines for one in line], [size for _, size in lines]
        note = (_NUMBER["reduce_scatter"], type_number(outs[0].dtype), op, self._shape(sizes), sum(sizes))
        return Move(note, self.sub_bytes, max(sizes), given, in_line(outs)[0], FOLD, self.me)

    def all_to_all(self, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Any:
        """Each rank alone knows how much it has for the others."""
        note = (_NUMBER["all_to_all"], type_number(dtype), 0, 0, 0)
        longest = max(map(n_bytes, [*outs, *tensors]))
        return Move(note, self.sub_bytes, longest, parts(tensors), parts(outs), COPY, self.me, is_uneven=True)

    def barrier(self) -> Any:
        return Move((_NUMBER["barrier"], 0, 0, 0, 0), self.slot_bytes, 0, [], [])

    def _shape(self, sizes: list[int]) -> int:
        """Return a number that tells other sizes apart; 0 where all are the same."""
        return 0 if len(set(sizes)) == 1 else crc32(repr(sizes).encode())


def sizes(given: Any, n: int, total: int) -> list[int]:
    """Return the rows of each rank's part: as given, or even ones of ``total``."""
    if given:
        found = [int(size) for size in given]
    else:
        if total % n:
            raise ValueError(f"a tensor without split sizes must have a multiple of {n} rows, got {total}")
        found = [total // n] * n
    if len(found) != n or sum(found) != total or min(found) < 0:
        raise ValueError(f"split sizes must be {n} that add to the {total} rows of the tensor, got {found}")
    return found
