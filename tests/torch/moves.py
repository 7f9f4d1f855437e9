"""Random calls that move numbers as they are: broadcast, gathers, scatter, and exchanges of all with all."""

from functools import partial

import torch
import torch.distributed as dist

from tests.torch.call import Call, Result, describe
from tests.torch.team import Draw
from tests.torch.tensors import Placed, as_expanded, blank, draw_shape, numbers, place


def _given(key: str, shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
    return as_expanded(numbers(key, shape, dtype, True), kind)


def broadcast(draw: Draw) -> Call | None:
    key, dtype, (root, source), kinds = draw.next_call(), draw.dtype(), draw.root("src"), draw.outputs(draw.n)
    shape = draw.shape(dtype)
    if draw.me is None:
        return None
    mine = place(_given(f"{key} {draw.me}", shape, dtype, "plain"), kinds[draw.me])
    text = describe(draw, "broadcast", root=root, dtype=dtype, shape=shape, kinds=kinds)
    begin = partial(dist.broadcast, mine.view, group=draw.group.handle, **source)
    wanted = Result(mine, lambda: _given(f"{key} {root}", shape, dtype, "plain"))
    return Call(text, begin, [wanted], [mine] if draw.me == root else [], is_same=True)


def all_gather(draw: Draw) -> Call | None:
    """A list with a tensor of each rank, which are of different shapes at times; this rank's may be its input, too."""
    key, dtype, ins, outs = draw.next_call(), draw.dtype(), draw.inputs(draw.n), draw.outputs(draw.n)
    shapes = [draw.shape(dtype, draw.n)] * draw.n
    if draw.team.is_own and draw.rng.random() < 0.4:
        shapes = [draw.shape(dtype, draw.n) for _ in shapes]
    within = draw.rng.random() < 0.2
    if draw.me is None:
        return None
    if within:
        ins = outs
    mine = place(_given(f"{key} {draw.me}", shapes[draw.me], dtype, ins[draw.me]), ins[draw.me])
    placed = [blank(shape, dtype, kind) for shape, kind in zip(shapes, outs, strict=True)]
    if within:
        placed[draw.me] = mine
    text = describe(draw, "all_gather", dtype=dtype, shapes=shapes, ins=ins, outs=outs, within=within)
    begin = partial(dist.all_gather, [each.view for each in placed], mine.view, draw.group.handle)
    return Call(text, begin, _each(placed, key, shapes, dtype, ins), [mine], is_same=True)


def _each(placed: list[Placed], key: str, shapes: list, dtype: torch.dtype, kinds: list[str]) -> list[Result]:
    """Return what must be in tensors of each rank's numbers."""
    return [Result(at, partial(_given, f"{key} {r}", shapes[r], dtype, kinds[r])) for r, at in enumerate(placed)]


def all_gather_single(draw: Draw) -> Call | None:
    """One tensor with the ranks' one behind the other, or stacked; at times the input is a part of it."""
    key, dtype, ins, outs = draw.next_call(), draw.dtype(), draw.inputs(draw.n), draw.outputs(draw.n)
    shape = draw.shape(dtype, draw.n)
    if not draw.team.is_own and not shape:
        shape = (1,)  # gloo: invalid tensor size
    stacked = not shape or (draw.team.is_own and draw.rng.random() < 0.3)
    whole = (draw.n, *shape) if stacked else (draw.n * shape[0], *shape[1:])
    within = draw.rng.random() < 0.2
    if draw.me is None:
        return None
    if within:
        ins, out = ["plain"] * draw.n, blank(whole, dtype, "plain")
        part = out.view.view(draw.n, *shape)[draw.me]
        part.copy_(_given(f"{key} {draw.me}", shape, dtype, "plain"))
        mine = Placed(part, out.base, out.base)
    else:
        out = blank(whole, dtype, outs[draw.me])
        mine = place(_given(f"{key} {draw.me}", shape, dtype, ins[draw.me]), ins[draw.me])
    n = draw.n

    def want() -> torch.Tensor:
        return torch.stack([_given(f"{key} {r}", shape, dtype, ins[r]) for r in range(n)]).reshape(whole)

    text = describe(draw, "all_gather_single", dtype=dtype, shape=shape, whole=whole, ins=ins, outs=outs, within=within)
    begin = partial(dist.all_gather_single, out.view, mine.view, draw.group.handle)
    return Call(text, begin, [Result(out, want)], [] if within else [mine], is_same=True)


def gather(draw: Draw) -> Call | None:
    key, dtype, (root, to) = draw.next_call(), draw.dtype(), draw.root("dst")
    if dtype.is_complex and not draw.team.is_own:
        dtype = torch.float64  # gloo: Invalid scalar type
    ins, outs, shape = draw.inputs(draw.n), draw.outputs(draw.n), draw.shape(dtype, draw.n)
    if draw.me is None:
        return None
    mine = place(_given(f"{key} {draw.me}", shape, dtype, ins[draw.me]), ins[draw.me])
    placed = [blank(shape, dtype, kind) for kind in outs] if draw.me == root else []
    text = describe(draw, "gather", root=root, dtype=dtype, shape=shape, ins=ins, outs=outs)
    begin = partial(dist.gather, mine.view, [at.view for at in placed] or None, group=draw.group.handle, **to)
    return Call(text, begin, _each(placed, key, [shape] * draw.n, dtype, ins), [mine])


def scatter(draw: Draw) -> Call | None:
    key, dtype, (root, source) = draw.next_call(), draw.dtype(), draw.root("src")
    ins, outs, shape = draw.inputs(draw.n), draw.outputs(draw.n), draw.shape(dtype, draw.n)
    if draw.me is None:
        return None
    given = []
    if draw.me == root:
        given = [place(_given(f"{key} {r}", shape, dtype, kind), kind) for r, kind in enumerate(ins)]
    out, me = blank(shape, dtype, outs[draw.me]), draw.me
    text = describe(draw, "scatter", root=root, dtype=dtype, shape=shape, ins=ins, outs=outs)
    begin = partial(dist.scatter, out.view, [at.view for at in given] or None, group=draw.group.handle, **source)
    return Call(text, begin, [Result(out, lambda: _given(f"{key} {me}", shape, dtype, ins[me]))], given)


def all_to_all(draw: Draw) -> Call | None:
    """Tensors for each, of as many shapes as there are pairs of ranks."""
    key, dtype, n = draw.next_call(), draw.dtype(), draw.n
    ins, outs = draw.inputs(n), draw.outputs(n)
    numel, uneven = draw.numel(dtype, n), draw.team.is_own and draw.rng.random() < 0.5
    shapes = {
        (a, b): draw_shape(draw.rng, draw.rng.randint(0, max(1, numel)) if uneven else numel)
        for a in range(n)
        for b in range(n)
    }
    if not uneven:
        shapes = dict.fromkeys(shapes, shapes[0, 0])
    me = draw.me
    if me is None:
        return None
    given = [place(_given(f"{key} {me} {b}", shapes[me, b], dtype, ins[me]), ins[me]) for b in range(n)]
    placed = [blank(shapes[a, me], dtype, outs[me]) for a in range(n)]
    text = describe(draw, "all_to_all", dtype=dtype, shapes=shapes, ins=ins, outs=outs)
    results = [
        Result(at, partial(_given, f"{key} {a} {me}", shapes[a, me], dtype, ins[a])) for a, at in enumerate(placed)
    ]
    begin = partial(dist.all_to_all, [at.view for at in placed], [at.view for at in given], draw.group.handle)
    return Call(text, begin, results, given)


def all_to_all_single(draw: Draw) -> Call | None:
    """Rows of a matrix, as many for each as its splits say; even splits are mostly not said."""
    key, dtype, n = draw.next_call(), draw.dtype(), draw.n
    ins, outs, row = draw.inputs(n), draw.outputs(n), draw.rng.choice([(), (), (3,), (2, 2)])
    most, uneven = draw.numel(dtype, 4 * n), draw.rng.random() < 0.6
    splits = [[draw.rng.randint(0, max(1, most)) if uneven else most for _ in range(n)] for _ in range(n)]
    said = uneven or draw.rng.random() < 0.3
    me = draw.me
    if me is None:
        return None

    def rows(r: int) -> torch.Tensor:
        return _given(f"{key} {r}", (sum(splits[r]), *row), dtype, ins[r])

    def want() -> torch.Tensor:
        return torch.cat([rows(r).split(splits[r])[me] for r in range(n)])

    mine, to_me = place(rows(me), ins[me]), [splits[r][me] for r in range(n)]
    out = blank((sum(to_me), *row), dtype, outs[me])
    text = describe(draw, "all_to_all_single", dtype=dtype, splits=splits, row=row, ins=ins, outs=outs, said=said)
    words = (to_me, splits[me]) if said else (None, None)
    begin = partial(dist.all_to_all_single, out.view, mine.view, *words, draw.group.handle)
    return Call(text, begin, [Result(out, want)], [mine])


def barrier(draw: Draw) -> Call | None:
    if draw.me is None:
        return None
    return Call(describe(draw, "barrier"), partial(dist.barrier, draw.group.handle))


MOVES = (
    *(broadcast, all_gather, all_gather_single, gather, scatter, all_to_all, all_to_all_single),
    barrier,
)
