"""Collectives as PyTorch calls them on a group (:class:`Collectives`): from its tensors to moves, and back."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from psframe.torch.moves import sizes
from psframe.torch.types import operation

SUM = dist.ReduceOp.SUM


def given(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values one after the other in memory: itself, if it has them so, or a copy."""
    return tensor if _is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def room(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return memory for a tensor's new values one after the other: its own, if it has them so, or new memory.

    ``dtype`` is that of the values, if it is not the tensor's.
    """
    dtype = dtype or tensor.dtype
    return tensor if _is_plain(tensor) and tensor.dtype == dtype else torch.empty(tensor.shape, dtype=dtype)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor's memory has its values one after the other."""
    _check(tensor)
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _check(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise ValueError(
            f"psframe exchanges dense tensors in CPU memory, got {tensor.layout} on {tensor.device}; for others give "
            "the group another backend"
        )


def back(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None] | None:
    """Return what copies new values to where they belong; None if they are there already."""
    moved = [(tensor, memory) for tensor, memory in pairs if memory is not tensor]
    if not moved:
        return None

    def copy() -> None:
        for tensor, memory in moved:
            # a thread that lets exchanges go on is in no mode of the one that began them
            with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                _once(tensor).copy_(_once(memory, like=tensor))

    return copy


def _once(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return the part of an expanded tensor that has each number once, or that part of one of its shape."""
    for dim, stride in enumerate((tensor if like is None else like).stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def is_async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


def _times(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    return tensor if factor is None else tensor * factor


class Collectives:
    """Collectives of a group; each returns its work. See ``torch.distributed`` for what they do."""

    moves: Any
    begin: Any
    meeting: Any
    n: int
    me: int
    ranks: Sequence[int]
    n_monitored = 0

    def _root(self, opts: Any) -> int:
        """Return the number of the root in the group."""
        if not 0 <= opts.rootRank < self.n:
            raise ValueError(f"a root must be one of the group's {self.n} ranks, got {opts.rootRank}")
        return int(opts.rootRank)

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduce tensors of one type as one, on all ranks."""
        op, factor = operation(SUM if opts is None else opts, tensors[0].dtype)
        memory, last = tensors, None
        if factor is not None or not all(_is_plain(tensor) for tensor in tensors):
            memory = [_own(_times(given(tensor), factor), tensor) for tensor in tensors]
            last = back(list(zip(tensors, memory, strict=True)))
        return self.begin(self.moves.all_reduce(memory, op), tensors, memory, is_async(opts), last)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        if len({tensor.dtype for tensor in tensors}) == 1:
            return self.allreduce(tensors, opts)
        return self._last([self.allreduce([tensor], opts) for tensor in tensors], tensors)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any, *_: Any) -> Any:
        (tensor,) = tensors
        op, factor = operation(opts, tensor.dtype)
        memory = _own(_times(given(tensor), factor), tensor)
        last = back([(tensor, memory)]) if self._root(opts) == self.me else None
        return self.begin(self.moves.reduce(memory, self._root(opts), op), tensors, memory, is_async(opts), last)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any, *_: Any) -> Any:
        (tensor,) = tensors
        is_root = self._root(opts) == self.me
        memory = given(tensor) if is_root else room(tensor)
        last = None if is_root else back([(tensor, memory)])
        return self.begin(self.moves.broadcast(memory, self._root(opts)), tensors, memory, is_async(opts), last)

    def allgather(
        self, outs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        works = []
        for row, tensor in zip(outs, tensors, strict=True):
            mine, memory = given(tensor), [room(out) for out in row]
            self._check_rows(row, tensor)
            move = self.moves.all_gather(memory, mine)
            last = back(list(zip(row, memory, strict=True)))
            works.append(self.begin(move, row, (mine, memory), is_async(opts), last))
        return self._last(works, [list(row) for row in outs] if len(outs) > 1 else outs[0])

    def allgather_coalesced(self, outs: Sequence[Sequence[torch.Tensor]], tensors: Any, opts: Any = None) -> Any:
        """Gather several tensors: ``outs`` has, for each rank, a tensor for each of them."""
        return self.allgather(list(zip(*outs, strict=True)), tensors, opts)

    def _check_rows(self, row: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        if len(row) != self.n or any(out.dtype != tensor.dtype for out in row):
            raise ValueError(f"there must be a tensor of {tensor.dtype} for each of {self.n} ranks, got {len(row)}")
        if row[self.me].numel() != tensor.numel():
            raise ValueError(f"a rank's own part must have its {tensor.numel()} numbers, got {row[self.me].numel()}")

    def all_gather_single(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        if out.numel() != tensor.numel() * self.n or out.dtype != tensor.dtype:
            raise ValueError(
                f"the output must have {self.n} times the {tensor.numel()} numbers of {tensor.dtype}, got "
                f"{out.numel()} of {out.dtype}"
            )
        mine, memory = given(tensor), room(out)
        move = self.moves.all_gather_single(memory, mine)
        return self.begin(move, [out], (mine, memory), is_async(opts), back([(out, memory)]))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outs: Sequence[torch.Tensor], tensors: Any, opts: Any = None) -> Any:
        works = [self.all_gather_single(out, tensor, opts) for out, tensor in zip(outs, tensors, strict=True)]
        return self._last(works, outs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, outs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], opts: Any, *_: Any
    ) -> Any:
        (tensor,) = tensors
        row = outs[0] if self._root(opts) == self.me else []
        if row:
            self._check_rows(row, tensor)
        mine, memory = given(tensor), [room(out) for out in row]
        move = self.moves.gather(memory, mine, self._root(opts))
        return self.begin(move, row, (mine, memory), is_async(opts), back(list(zip(row, memory, strict=True))))

    def scatter(self, outs: Sequence[torch.Tensor], tensors: Any, opts: Any, *_: Any) -> Any:
        (out,) = outs
        row = tensors[0] if self._root(opts) == self.me else []
        if row and (len(row) != self.n or any((t.dtype, t.numel()) != (out.dtype, out.numel()) for t in row)):
            raise ValueError(f"there must be a tensor like the output for each of {self.n} ranks, got {len(row)}")
        mine, memory = [given(tensor) for tensor in row], room(out)
        move = self.moves.scatter(memory, mine, self._root(opts))
        return self.begin(move, [out], (mine, memory), is_async(opts), back([(out, memory)]))

    def reduce_scatter(self, outs: Sequence[torch.Tensor], tensors: Any, opts: Any = None) -> Any:
        works = []
        for out, row in zip(outs, tensors, strict=True):
            self._check_rows(row, out)
            op, factor = operation(SUM if opts is None else opts, out.dtype)
            mine = [_times(given(tensor), factor) for tensor in row]
            memory = room(out, mine[0].dtype)
            move = self.moves.reduce_scatter([memory], [mine], op)
            works.append(self.begin(move, [out], (mine, memory), is_async(opts), back([(out, memory)])))
        return self._last(works, outs)

    def reduce_scatter_lists(self, outs: Sequence[torch.Tensor], rows: Sequence[Any], op: Any) -> Any:
        """Reduce contiguous tensors of one type as one: each of ``rows`` has a part for each rank, for each output."""
        move = self.moves.reduce_scatter(outs, rows, operation(op, outs[0].dtype)[0])
        return self.begin(move, outs, (outs, rows), True)

    def reduce_scatter_single(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        if tensor.numel() != out.numel() * self.n or out.dtype != tensor.dtype:
            raise ValueError(
                f"the input must have {self.n} times the {out.numel()} numbers of {out.dtype}, got "
                f"{tensor.numel()} of {tensor.dtype}"
            )
        op, factor = operation(SUM if opts is None else opts, out.dtype)
        mine = _times(given(tensor), factor)
        memory = room(out, mine.dtype)
        move = self.moves.reduce_scatter([memory], [mine.view(-1).tensor_split(self.n)], op)
        return self.begin(move, [out], (mine, memory), is_async(opts), back([(out, memory)]))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outs: Sequence[torch.Tensor], tensors: Any, opts: Any = None) -> Any:
        works = [self.reduce_scatter_single(out, tensor, opts) for out, tensor in zip(outs, tensors, strict=True)]
        return self._last(works, outs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        if not len(outs) == len(tensors) == self.n or len({t.dtype for t in [*outs, *tensors]}) > 1:
            raise ValueError(f"there must be a tensor of one type from and for each of {self.n} ranks, got {len(outs)}")
        mine, memory = [given(tensor) for tensor in tensors], [room(out) for out in outs]
        move = self.moves.all_to_all(memory, mine, outs[0].dtype)
        return self.begin(move, outs, (mine, memory), is_async(opts), back(list(zip(outs, memory, strict=True))))

    def all_to_all_single(
        self, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Any, in_sizes: Any, opts: Any = None
    ) -> Any:
        mine, memory = given(tensor), room(out)
        move = self.moves.all_to_all(
            memory.split(sizes(out_sizes, self.n, out.shape[0])),
            mine.split(sizes(in_sizes, self.n, tensor.shape[0])),
            out.dtype,
        )
        return self.begin(move, [out], (mine, memory), is_async(opts), back([(out, memory)]))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, *_: Any) -> Any:
        return self.begin(self.moves.barrier(), [], None, is_async(opts))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; raises DistBackendError with the first that does not come, or with all of them.

        Each rank writes to the store that it has come: between nodes a barrier knows only whom its own node waits for.
        """
        store, self.n_monitored = self.meeting.store, self.n_monitored + 1
        came = [f"monitored/{self.n_monitored}/{rank}" for rank in range(self.n)]
        store.set(came[self.me], "")
        store.delete_key(f"monitored/{self.n_monitored - 2}/{self.me}")  # which no rank can be in any more
        try:
            work = self.barrier()
            work.finish(None if timeout is None else timeout.total_seconds())
            work.wait()
        except dist.DistBackendError as error:
            missing = [str(self.ranks[rank]) for rank in range(self.n) if not store.check([came[rank]])]
            if not (wait_all_ranks and missing):
                raise
            raise dist.DistBackendError(f"{error}; to this barrier did not come: {', '.join(missing)}") from None

    def _last(self, works: list[Any], tensors: Any) -> Any:
        """Return the last of works that were begun one after the other: it ends after the others."""
        works[-1].tensors = list(tensors)
        return works[-1]


def _own(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return values in memory that may be written: the tensor's own, or that of no other tensor."""
    is_its_own = values.data_ptr() == tensor.data_ptr() and values is not tensor
    return values.clone() if is_its_own else values
