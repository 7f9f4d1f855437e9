"""Several collectives as one: the coalescing manager, and the functions that take lists."""

import warnings

import torch
import torch.distributed as dist

from tests.torch.call import Call, Result, check
from tests.torch.expected import Op, fold
from tests.torch.harness import ranks
from tests.torch.tensors import DTYPES, blank, numbers, place


class _Several:
    """Some tensors of each rank, of a type, or of several where only psframe takes them."""

    def __init__(self, draw, parts, mixed=False):
        self.draw, self.count, self.key = draw, draw.rng.randint(1, 6), draw.next_call()
        dtype = draw.dtype()
        mixed = mixed and draw.team.is_own and draw.rng.random() < 0.3
        self.dtypes = [draw.dtype(DTYPES) if mixed else dtype for _ in range(self.count)]
        self.shapes = [draw.shape(each, parts) for each in self.dtypes]
        if not draw.team.is_own:
            self.shapes = [shape or (1,) for shape in self.shapes]
        self.kinds, self.outs = draw.outputs(self.count), draw.outputs(self.count)
        self.op = Op.SUM if not draw.team.is_own or mixed else draw.rng.choice([Op.SUM, Op.MAX])
        if any(each.is_complex for each in self.dtypes) or (dtype is torch.bool and not draw.team.is_own):
            self.op = Op.SUM
        self.n, self.me, self.handle = draw.n, draw.me, draw.group.handle
        self.text = f"{self.op} {self.dtypes} {self.shapes} {self.kinds} {self.outs} in {draw.group.ranks}"

    def numbers(self, at, r, shape=None):
        return numbers(f"{self.key} {at} {r}", shape or self.shapes[at], self.dtypes[at])

    def whole(self, at):
        """The shape of all ranks' one behind the other, or stacked if they are single numbers."""
        shape = self.shapes[at]
        return (self.n * shape[0], *shape[1:]) if shape else (self.n,)

    def each(self):
        return range(self.count)

    def summed(self, team, placed, rows):
        """Compare with folds; ``rows`` gives all ranks' terms of a tensor."""
        results = [
            Result(one, lambda at=at: fold(self.op, rows(at)), self.op, lambda at=at: rows(at))
            for at, one in enumerate(placed)
        ]
        check(team, Call(self.text, print, results))


def _bool_sums(several, team):
    """gloo adds the bytes of a bool."""
    return not team.is_own and torch.bool in several.dtypes


@ranks(1, 2, 3, 5, 4)
def allreduces_are_coalesced(team):
    for draw in team.examples(10):
        several, is_async, by_list = _Several(draw, 4, True), draw.rng.random() < 0.5, draw.rng.random() < 0.4
        if several.me is None or _bool_sums(several, team):
            continue
        mine = [place(several.numbers(at, several.me), several.kinds[at]) for at in several.each()]
        views = [one.view for one in mine]
        if by_list and len({*several.dtypes}) == 1:
            with warnings.catch_warnings(action="ignore"):
                future = dist.all_reduce_coalesced(views, several.op, several.handle, async_op=is_async)
            if is_async:
                future.wait()
        else:
            with dist._coalescing_manager(several.handle, async_ops=is_async) as manager:
                for view in views:
                    dist.all_reduce(view, several.op, several.handle)
            if is_async:
                manager.wait()
        several.summed(team, mine, lambda at, one=several: [one.numbers(at, r) for r in range(one.n)])


@ranks(1, 2, 3, 5, 4)
def gathers_are_coalesced(team):
    for draw in team.examples(10):
        several, is_async = _Several(draw, 4 * draw.n, True), draw.rng.random() < 0.5
        if several.me is None:
            continue
        mine = [place(several.numbers(at, several.me), several.kinds[at]) for at in several.each()]
        outs = [blank(several.whole(at), several.dtypes[at], several.outs[at]) for at in several.each()]
        with dist._coalescing_manager(several.handle, async_ops=is_async) as manager:
            for one, out in zip(mine, outs, strict=True):
                dist.all_gather_single(out.view, one.view, several.handle)
        if is_async:
            manager.wait()

        def want(at, one=several):
            return torch.stack([one.numbers(at, r) for r in range(one.n)]).reshape(one.whole(at))

        results = [Result(out, lambda at=at, want=want: want(at)) for at, out in enumerate(outs)]
        check(team, Call(several.text, print, results, mine))


@ranks(1, 2, 3, 5, 4)
def reduce_scatters_are_coalesced(team):
    for draw in team.examples(10):
        several, is_async = _Several(draw, 4 * draw.n, True), draw.rng.random() < 0.5
        if several.me is None or _bool_sums(several, team):
            continue
        whole = [several.whole(at) for at in several.each()]
        mine = [place(several.numbers(at, several.me, whole[at]), several.kinds[at]) for at in several.each()]
        outs = [blank(several.shapes[at], several.dtypes[at], several.outs[at]) for at in several.each()]
        with dist._coalescing_manager(several.handle, async_ops=is_async) as manager:
            for one, out in zip(mine, outs, strict=True):
                dist.reduce_scatter_single(out.view, one.view, several.op, several.handle)
        if is_async:
            manager.wait()

        def rows(at, one=several, whole=whole):
            every = [one.numbers(at, r, whole[at]) for r in range(one.n)]
            return [row.reshape(one.n, *one.shapes[at])[one.me] for row in every]

        several.summed(team, outs, rows)


@ranks(1, 2, 3, 5, 4)
def lists_of_lists_are_gathered(team):
    """``all_gather_coalesced``: of every rank a list."""
    for draw in team.examples(8):
        several, is_async = _Several(draw, 4 * draw.n), draw.rng.random() < 0.5
        if several.me is None:
            continue
        mine = [place(several.numbers(at, several.me), several.kinds[at]) for at in several.each()]
        outs = [
            [blank(several.shapes[at], several.dtypes[at], several.outs[at]) for at in several.each()]
            for _ in range(several.n)
        ]
        lists = [[one.view for one in row] for row in outs]
        with warnings.catch_warnings(action="ignore"):
            future = dist.all_gather_coalesced(lists, [one.view for one in mine], several.handle, async_op=is_async)
        if is_async:
            future.wait()
        results = [
            Result(one, lambda at=at, r=r, of=several: of.numbers(at, r))
            for r, row in enumerate(outs)
            for at, one in enumerate(row)
        ]
        check(team, Call(several.text, print, results, mine))
