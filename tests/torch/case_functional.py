"""Functional collectives, which return what they make: those that compiled graphs and DTensor are built of."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.torch.expected import Op, differs, differs_much, fold
from tests.torch.harness import ranks
from tests.torch.tensors import FLOATS, numbers

NAMES = {"sum": Op.SUM, "avg": Op.AVG, "product": Op.PRODUCT, "min": Op.MIN, "max": Op.MAX}


def _group(draw):
    return draw.group.handle or dist.group.WORLD


def _look(team, text, got, want, op=None, rows=()):
    got = functional.wait_tensor(got)
    wrong = differs(got, want, op) if op is None or team.is_own else differs_much(got, want, op, rows)
    team.expect(wrong is None, f"{text}: {wrong}")


@ranks(1, 2, 3, 5)
def functional_results_are_new_tensors(team):
    for draw in team.examples(12):
        dtype, name = draw.dtype(FLOATS), draw.rng.choice([*NAMES])
        shape, root, n = draw.shape(dtype, draw.n), draw.rng.randrange(draw.n), draw.n
        shape = shape or (1,)
        rows = [numbers(f"{draw.key} {r}", shape, dtype, True) for r in range(n)]
        wide = [numbers(f"{draw.key} {r} wide", (n * shape[0], *shape[1:]), dtype) for r in range(n)]
        if draw.me is None:
            continue
        mine, group, text = rows[draw.me].clone(), _group(draw), f"{name} {dtype} {shape} in {draw.group.ranks}"
        op = NAMES[name]
        _look(team, f"all_reduce {text}", functional.all_reduce(mine, name, group), fold(op, rows), op, rows)
        _look(team, f"broadcast {text}", functional.broadcast(mine, root, group), rows[root])
        _look(team, f"all_gather {text}", functional.all_gather_single(mine, 0, group), torch.cat(rows))
        parts = [row.reshape(n, *shape)[draw.me] for row in wide]
        got = functional.reduce_scatter_single(wide[draw.me].clone(), name, 0, group)
        _look(team, f"reduce_scatter {text}", got, fold(op, parts), op, parts)
        team.expect(differs(mine, rows[draw.me]) is None, f"{text}: an input is not as it was")


@ranks(2, 3, 5)
def functional_dimensions_other_than_the_first(team):
    for draw in team.examples(6):
        n = draw.n
        rows = [numbers(f"{draw.key} {r}", (3, 2 * n, 5), torch.float32) for r in range(n)]
        if draw.me is None:
            continue
        _look(team, "gather", functional.all_gather_single(rows[draw.me], 1, _group(draw)), torch.cat(rows, 1))
        parts = [row[:, 2 * draw.me : 2 * draw.me + 2].contiguous() for row in rows]
        got = functional.reduce_scatter_single(rows[draw.me], "sum", 1, _group(draw))
        _look(team, "scatter", got, fold(Op.SUM, parts), Op.SUM, parts)


@ranks(1, 2, 3, 5)
def functional_exchange_has_splits(team):
    for draw in team.examples(10):
        n, uneven = draw.n, draw.rng.random() < 0.6
        splits = [[draw.rng.randint(0, 9) if uneven else 4 for _ in range(n)] for _ in range(n)]
        rows = [numbers(f"{draw.key} {r}", (sum(splits[r]), 3), torch.float64) for r in range(n)]
        me = draw.me
        if me is None:
            continue
        to_me = [splits[r][me] for r in range(n)]
        words = (to_me, splits[me]) if uneven else (None, None)
        got = functional.all_to_all_single(rows[me], *words, _group(draw))
        _look(team, f"{splits}", got, torch.cat([rows[r].split(splits[r])[me] for r in range(n)]))


@ranks(1, 2, 3, 5)
def functional_lists_are_coalesced(team):
    for draw in team.examples(6):
        dtype, n = draw.dtype(FLOATS), draw.n
        shapes = [draw.shape(dtype, 4 * n) or (1,) for _ in range(draw.rng.randint(1, 4))]
        rows = [[numbers(f"{draw.key} {r} {s}", shape, dtype) for s, shape in enumerate(shapes)] for r in range(n)]
        wide = [[torch.cat([row + at for at in range(n)]) for row in own] for own in rows]
        if draw.me is None:
            continue
        group, text = _group(draw), f"{dtype} {shapes} in {draw.group.ranks}"
        for at, got in enumerate(functional.all_reduce_coalesced(rows[draw.me], "sum", group)):
            terms = [own[at] for own in rows]
            _look(team, f"all_reduce {at} {text}", got, fold(Op.SUM, terms), Op.SUM, terms)
        for at, got in enumerate(functional.all_gather_single_coalesced(rows[draw.me], group)):
            _look(team, f"all_gather {at} {text}", got, torch.cat([own[at] for own in rows]))
        found = functional.reduce_scatter_single_coalesced(wide[draw.me], "sum", [0] * len(shapes), group)
        for at, got in enumerate(found):
            terms = [own[at].reshape(n, *shapes[at])[draw.me] for own in wide]
            _look(team, f"reduce_scatter {at} {text}", got, fold(Op.SUM, terms), Op.SUM, terms)


@ranks(2, 3, 5)
def functional_gradients_go_back(team):
    """The gradient of a gather is a reduce_scatter, that of a sum a sum."""
    for _ in team.examples(3, team.groups[:1]):
        mine = torch.arange(6.0).reshape(2, 3).requires_grad_()
        every = functional.all_gather_single_autograd(mine, 0, dist.group.WORLD)
        (every * (team.rank + 1)).sum().backward()
        want = torch.full((2, 3), float(sum(range(1, team.size + 1))))
        team.expect(differs(mine.grad, want) is None, f"gradient of a gather: {mine.grad}")
