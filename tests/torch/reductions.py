"""Random calls that reduce: what this rank gives to them, and the fold that must come of it."""

from functools import partial

import torch
import torch.distributed as dist

from tests.torch.call import Call, Result, describe
from tests.torch.expected import Op, fold, operations
from tests.torch.team import Draw
from tests.torch.tensors import FLOATS, INTEGERS, Placed, as_expanded, blank, numbers, place


def operation(draw: Draw, dtype: torch.dtype) -> tuple[Op, Op, float | None]:
    """Draw an operation: what is asked for, what of it is a fold, and what each term is times."""
    if draw.team.is_own and dtype in FLOATS and draw.rng.random() < 0.1:
        factor = draw.rng.choice([0.5, 0.3, 1 / 3])
        return dist._make_nccl_premul_sum(factor), Op.SUM, factor
    op = draw.rng.choice(operations(dtype))
    if draw.team.is_own and dtype in INTEGERS and draw.rng.random() < 0.1:
        op = Op.AVG  # cut towards zero
    if op == Op.SUM and dtype is torch.bool and not draw.team.is_own:
        op = Op.MAX  # gloo adds the bytes: a True that is 2
    return op, op, None


def _words(op: Op, factor: float | None) -> str:
    return f"{factor:.3g}*SUM" if factor else str(op).rpartition(".")[2]


class _Reduced:
    """A tensor of each rank, all of a shape, and an operation."""

    def __init__(self, draw: Draw, in_place: bool, shape: tuple[int, ...], dtype: torch.dtype, part: str = ""):
        self.n, self.me, self.shape, self.dtype = draw.n, draw.me, shape, dtype
        self.key = draw.next_call() + part
        self.special = draw.rng.random() < 0.3 and (draw.team.is_own or not dtype.is_complex)  # gloo mixes both parts
        self.asked, self.op, self.factor = operation(draw, dtype)
        self.kinds = draw.outputs(draw.n) if in_place else draw.inputs(draw.n)

    def row(self, r: int) -> torch.Tensor:
        return as_expanded(numbers(f"{self.key} {r}", self.shape, self.dtype, self.special), self.kinds[r])

    def rows(self) -> list[torch.Tensor]:
        return [self.row(r) for r in range(self.n)]

    def mine(self) -> Placed:
        return place(self.row(self.me), self.kinds[self.me])

    def result(self, placed: Placed) -> Result:
        return Result(placed, lambda: fold(self.op, self.rows(), self.factor), self.op, self.rows)

    def words(self) -> dict[str, object]:
        kinds = self.kinds[0] if len({*self.kinds}) == 1 else self.kinds
        op = _words(self.op, self.factor)
        return {"op": op, "dtype": self.dtype, "shape": self.shape, "kinds": kinds, "special": self.special}


def all_reduce(draw: Draw) -> Call | None:
    dtype = draw.dtype()
    of = _Reduced(draw, True, draw.shape(dtype), dtype)
    if draw.me is None:
        return None
    mine, text = of.mine(), describe(draw, "all_reduce", **of.words())
    begin = partial(dist.all_reduce, mine.view, of.asked, draw.group.handle)
    return Call(text, begin, [of.result(mine)], is_same=True)


def reduce(draw: Draw) -> Call | None:
    dtype = draw.dtype()
    of, (root, to) = _Reduced(draw, True, draw.shape(dtype), dtype), draw.root("dst")
    if draw.me is None:
        return None
    mine, text = of.mine(), describe(draw, "reduce", root=root, **of.words())
    begin = partial(dist.reduce, mine.view, op=of.asked, group=draw.group.handle, **to)
    return Call(text, begin, [of.result(mine)] if draw.me == root else [])


def reduce_scatter(draw: Draw) -> Call | None:
    """A list of tensors of each rank, of as many sizes as there are ranks."""
    dtype = draw.dtype()
    numel = draw.numel(dtype, draw.n)
    uneven = draw.rng.random() < 0.5
    sizes = [numel if not uneven else draw.rng.randint(0, max(1, numel)) for _ in range(draw.n)]
    parts = [_Reduced(draw, False, (size,), dtype, f" to {r}") for r, size in enumerate(sizes)]
    out = draw.outputs(draw.n)
    if draw.me is None:
        return None
    for part in parts[1:]:  # a call has one operation
        part.asked, part.op, part.factor = parts[0].asked, parts[0].op, parts[0].factor
    ins, to = [part.mine() for part in parts], blank((sizes[draw.me],), dtype, out[draw.me])
    words = {**parts[0].words(), "shape": sizes, "out": out}
    begin = partial(
        dist.reduce_scatter, to.view, [each.view for each in ins], op=parts[0].asked, group=draw.group.handle
    )
    return Call(describe(draw, "reduce_scatter", **words), begin, [parts[draw.me].result(to)], ins)


def reduce_scatter_single(draw: Draw) -> Call | None:
    """Parts one behind the other, or stacked; at times the result is this rank's own part of the input."""
    dtype = draw.dtype()
    shape = draw.shape(dtype, draw.n)
    if not draw.team.is_own and not shape:
        shape = (1,)  # gloo crashes
    stacked = not shape or (draw.team.is_own and draw.rng.random() < 0.3)
    whole = (draw.n, *shape) if stacked else (draw.n * shape[0], *shape[1:])
    of, out, within = _Reduced(draw, False, whole, dtype), draw.outputs(draw.n), draw.rng.random() < 0.2
    if within:
        of.kinds = ["plain"] * draw.n
    if draw.me is None:
        return None
    mine = of.mine()
    if within:
        part = mine.view.view(draw.n, *shape)[draw.me]
        placed = Placed(part, mine.base, mine.before)
    else:
        placed = blank(shape, dtype, out[draw.me])

    def rows() -> list[torch.Tensor]:
        return [row.reshape(draw_n, *shape)[me] for row in of.rows()]

    draw_n, me = draw.n, draw.me
    result = Result(placed, lambda: fold(of.op, rows(), of.factor), of.op, rows)
    words = {**of.words(), "out": out[draw.me], "stacked": stacked, "within": within}
    begin = partial(dist.reduce_scatter_single, placed.view, mine.view, of.asked, draw.group.handle)
    return Call(describe(draw, "reduce_scatter_single", **words), begin, [result], [] if within else [mine])


REDUCTIONS = (all_reduce, all_reduce, reduce, reduce_scatter, reduce_scatter_single)
