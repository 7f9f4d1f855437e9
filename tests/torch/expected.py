"""What a reduction must give: a left fold in the order of ranks, in the tensors' own type."""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from tests.torch.tensors import COMPLEX, FLOATS, bits

Op = dist.ReduceOp
#: each is rounded to the tensors' type after every term
TERMS = {
    Op.SUM: torch.add,
    Op.AVG: torch.add,
    Op.PRODUCT: torch.mul,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
    Op.BAND: torch.bitwise_and,
    Op.BOR: torch.bitwise_or,
    Op.BXOR: torch.bitwise_xor,
}
WHOLE = (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.BAND, Op.BOR, Op.BXOR)


def operations(dtype: torch.dtype) -> tuple[Op, ...]:
    """Return the operations that a type of numbers has."""
    if dtype in COMPLEX:
        return (Op.SUM, Op.AVG)
    return (Op.SUM, Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX) if dtype in FLOATS else WHOLE


def fold(op: Op, rows: Sequence[torch.Tensor], factor: float | None = None) -> torch.Tensor:
    """Return ``((rows[0] + rows[1]) + rows[2]) + ...``; each times ``factor`` first, if there is one."""
    if rows[0].is_complex():
        return torch.view_as_complex(fold(op, [torch.view_as_real(row) for row in rows], factor))
    if factor is not None:
        rows = [torch.mul(row, factor) for row in rows]
    total = functools.reduce(TERMS[op], rows)
    if op != Op.AVG:
        return total.clone()
    return torch.div(total, len(rows), rounding_mode=None if total.is_floating_point() else "trunc")


def differs(got: torch.Tensor, want: torch.Tensor, op: Op | None = None) -> str | None:
    """Return where bits are not as expected, or None.

    Any NaN is as good as another. The lesser of 0.0 and -0.0 is either: PyTorch's own depends on a place in a vector.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {tuple(got.shape)} in place of {want.dtype} {tuple(want.shape)}"
    if torch.equal(bits(got), bits(want)):
        return None
    if got.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    got, want = got.contiguous().reshape(-1), want.contiguous().reshape(-1)
    size = got.element_size()
    bad = (bits(got).view(-1, size) != bits(want).view(-1, size)).any(1)
    if got.is_floating_point():
        bad &= ~(got.isnan() & want.isnan())
        if op in (Op.MIN, Op.MAX):
            bad &= got != want
    return _first(bad, got, want)


def differs_much(got: torch.Tensor, want: torch.Tensor, op: Op, rows: Sequence[torch.Tensor]) -> str | None:
    """Return where a result is not as expected even if its terms may come in any order, or None."""
    if not want.is_floating_point() and not want.is_complex():
        return differs(got, want, op)
    if got.is_complex():
        got, want, rows = torch.view_as_real(got), torch.view_as_real(want), [torch.view_as_real(row) for row in rows]
    info, n = torch.finfo(got.dtype), len(rows)
    got, exact = got.double().reshape(-1), want.double().reshape(-1)
    terms = torch.stack([row.double().reshape(-1).abs() for row in rows])
    scale = terms.sum(0) if op in (Op.SUM, Op.AVG) else terms.clamp_min(1).prod(0)
    may_differ = ~(scale < info.max / 2) | ~exact.isfinite()  # one order may overflow where another does not
    near = (got - exact).abs() <= 2 * n * info.eps * scale + n * info.smallest_normal
    return _first(~near & ~may_differ, got, exact)


def _first(bad: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str | None:
    if not bad.any():
        return None
    at = int(bad.nonzero()[0])
    return f"{int(bad.sum())} of {bad.numel()} differ, the first is element {at}: {got[at]!s} in place of {want[at]!s}"
