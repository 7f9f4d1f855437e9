"""Calls that do not fit together: every rank is told which rank, which collectives and what differs, and none hangs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist

from tests.torch.harness import ranks

Op = dist.ReduceOp


@dataclass
class Odd:
    """What one rank calls and all others do; the words that all of them must be told, each one of a few."""

    usual: Callable
    odd: Callable
    words: tuple[tuple[str, ...], ...]


def _reduced(numel=11, dtype=torch.float32, op=Op.SUM):
    return lambda group, **how: dist.all_reduce(torch.ones(numel, dtype=dtype), op, group, **how)


def _from(root, numel=11):
    return lambda group, **how: dist.broadcast(torch.ones(numel), group=group, group_src=root, **how)


def _to(root):
    return lambda group, **how: dist.reduce(torch.ones(11), group=group, group_dst=root, **how)


def _gathered(numel=6):
    def call(group, **how):
        n = dist.get_world_size(group)
        return dist.all_gather_single(torch.ones(n * numel), torch.ones(numel), group, **how)

    return call


def _scattered(numel=6):
    def call(group, **how):
        n = dist.get_world_size(group)
        return dist.reduce_scatter_single(torch.ones(numel), torch.ones(n * numel), group=group, **how)

    return call


def _barrier(group, **how):
    return dist.barrier(group, **how)


ODD = {
    "size": Odd(_reduced(11), _reduced(10), (("allreduce",), ("11", "44"), ("10", "40"))),
    "size by far": Odd(_reduced(11), _reduced(1_000_003), (("allreduce",), ("11", "44"), ("1000003", "4000012"))),
    "size, all large": Odd(
        _reduced(1_000_003), _reduced(900_001), (("allreduce",), ("1000003", "4000012"), ("900001", "3600004"))
    ),
    "nothing": Odd(_reduced(11), _reduced(0), (("allreduce",), ("11", "44"), ("0",))),
    "type of the same size": Odd(_reduced(), _reduced(dtype=torch.int32), (("float32",), ("int32",))),
    "type of another size": Odd(_reduced(), _reduced(dtype=torch.float64), (("float32",), ("float64",))),
    "type of as many bytes": Odd(_reduced(10), _reduced(5, torch.float64), (("float32",), ("float64",))),
    "operation": Odd(_reduced(), _reduced(op=Op.MAX), (("sum",), ("max",))),
    "average": Odd(_reduced(), _reduced(op=Op.AVG), (("sum",), ("avg",))),
    "collective": Odd(_reduced(), _from(0), (("allreduce",), ("broadcast",))),
    "barrier": Odd(_barrier, _reduced(), (("allreduce",), ("barrier",))),
    "root": Odd(_from(0), _from(1), (("broadcast",), ("root", "source"), ("0",), ("1",))),
    "root of a reduce": Odd(_to(1), _to(0), (("reduce",), ("root", "target", "destination"), ("0",), ("1",))),
    "size of a broadcast": Odd(_from(0), _from(0, 12), (("broadcast",), ("11", "44"), ("12", "48"))),
    "size of a gather": Odd(_gathered(6), _gathered(7), (("allgather",), ("6", "24"), ("7", "28"))),
    "gather and scatter": Odd(_gathered(), _scattered(), (("allgather",), ("reducescatter",))),
}
WAYS = ("sync", "wait", "future")


def _raised(call, group, way):
    """Return what a call raises, where it is waited for or at once."""
    try:
        if way == "sync":
            call(group)
        else:
            work = call(group, async_op=True)
            work.wait() if way == "wait" else work.get_future().wait()
    except Exception as error:
        return error
    return None


def _look(team, what, error, words):
    """Have an error be of PyTorch's type, and say what it must."""
    if error is None:
        team.tell(f"{what}: nothing was raised")
        return
    said = str(error).lower().replace("_", "").replace(",", "")
    if not isinstance(error, dist.DistBackendError):
        team.tell(f"{what}: {type(error).__name__} in place of a DistBackendError: {error}")
    for among in (("rank",), *words):
        if not any(word in said for word in among):
            team.tell(f"{what}: none of {among} is in: {error}")


def _of_no_more_use(team, what, group):
    """A later call of the group raises, rather than wait for ever, and others are not harmed."""
    error = _raised(_reduced(), group, "sync")
    if not isinstance(error, dist.DistBackendError):
        team.tell(f"{what}: a later call gave {error!r} in place of a DistBackendError")
    total = torch.ones(3)
    dist.all_reduce(total)
    team.expect(total.tolist() == [team.size] * 3, f"{what}: a sum of the world behind it is {total.tolist()}")
    dist.destroy_process_group(group)


@ranks(2, 3, 5, own=True)
def every_rank_is_told_what_differs(team):
    """One rank of a group calls something else; each time another one, and waited for in another way."""
    for draw in team.examples(2, team.groups[:1]):
        for name, odd in ODD.items():
            one, way = draw.rng.randrange(team.size), draw.rng.choice(WAYS)
            group = dist.new_group(timeout=timedelta(seconds=60))
            error = _raised(odd.odd if team.rank == one else odd.usual, group, way)
            what = f"another {name} on rank {one} of {team.size}, {way}"
            _look(team, what, error, odd.words)
            _of_no_more_use(team, what, group)


@ranks(2, 3, 5, own=True)
def calls_in_another_order_are_told(team):
    """Two in flight on one rank begin the other way round; what was right before is right."""
    for draw in team.examples(2, team.groups[:1]):
        one = draw.rng.randrange(team.size)
        group = dist.new_group(timeout=timedelta(seconds=60))
        right = torch.ones(5)
        dist.all_reduce(right, group=group)
        first, second = torch.ones(70_001), torch.ones(80_001)
        try:
            both = (second, first) if team.rank == one else (first, second)
            works = [dist.all_reduce(each, group=group, async_op=True) for each in both]
            for work in works:
                work.wait()
            error = None
        except Exception as raised:
            error = raised
        _look(team, f"another order on rank {one}", error, (("70001", "280004"), ("80001", "320004")))
        team.expect(right.tolist() == [team.size] * 5, f"what went before is {right.tolist()}")
        _of_no_more_use(team, "another order", group)


@ranks(2, 3, own=True)
def receive_of_another_size_is_told(team):
    """The one that receives can tell; of a message with another size, or another type."""
    for name, given, awaited, words in (
        ("shorter", torch.ones(10), torch.ones(11), (("10", "40"), ("11", "44"))),
        ("longer", torch.ones(100_000), torch.ones(11), (("100000", "400000"), ("11", "44"))),
        (
            "other type",
            torch.ones(10),
            torch.ones(10, dtype=torch.float64),
            (("anothertype", "another type", "float32"),),
        ),
    ):
        group = dist.new_group(timeout=timedelta(seconds=60))
        if team.rank == 0:
            try:
                dist.isend(given, 1, group)
            except dist.DistBackendError:
                pass
        elif team.rank == 1:
            error = _raised(lambda group, t=awaited: dist.recv(t, 0, group), group, "sync")
            _look(team, f"received {name}", error, words)
        dist.barrier()


@ranks(2, 3, own=True)
def splits_that_do_not_fit_are_told(team):
    """Those of the pair can tell, at least the one that gets what it does not expect."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    n = team.size
    given, awaited = [3] * n, [3] * n
    if team.rank == 1:
        awaited[0] = 4  # rank 0 gives it 3
    call = torch.ones(sum(awaited)), torch.ones(sum(given)), awaited, given
    error = _raised(lambda group, **how: dist.all_to_all_single(*call, group, **how), group, "sync")
    if team.rank == 1:
        _look(team, "rows that another does not give", error, (("alltoall",), ("rank 0", "rank0")))
    dist.barrier()


@ranks(2, 3, 5, own=True)
def rank_that_does_not_come_is_named(team):
    """Past the group's time-out those that wait are told for whom, and of what; also where nodes hand on their sums."""
    for draw, numel in product(team.examples(1, team.groups[:1]), (11, 300_000)):
        missing = draw.rng.randrange(team.size)
        group = dist.new_group(timeout=timedelta(seconds=2))
        if team.rank != missing:
            began = time.monotonic()
            error = _raised(_reduced(numel), group, "sync")
            # on a busy machine another one may be named, too, that was as late
            named = f"rank {missing}", f"ranks {missing} ", f" {missing} did not come"
            _look(team, f"without rank {missing}", error, (named, ("allreduce",)))
            team.expect(time.monotonic() - began > 0.5, "the time-out was not awaited")
        dist.barrier()


@ranks(1, 2, 3, 5, own=True)
def what_cannot_be_asked_is_refused_at_once(team):
    """By a sentence on every rank, before others are waited for, and the group goes on."""
    calls = {
        "bits of floats": lambda: dist.all_reduce(torch.ones(3), Op.BAND),
        "average of bool": lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), Op.AVG),
        "sparse": lambda: dist.all_reduce(torch.eye(3).to_sparse()),
        "too short a result": lambda: dist.all_gather_single(torch.ones(3 * team.size + 1), torch.ones(3)),
        "too few tensors": lambda: dist.all_gather([torch.ones(3)] * (team.size - 1), torch.ones(3)),
        "splits of another sum": lambda: dist.all_to_all_single(
            torch.ones(4), torch.ones(4), [5] * team.size, [5] * team.size
        ),
    }
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            team.expect(bool(str(error).strip()), f"{name}: refused without a word: {error!r}")
        else:
            team.tell(f"{name}: not refused")
        total = torch.ones(3)
        dist.all_reduce(total)
        team.expect(total.tolist() == [team.size] * 3, f"{name}: a sum behind it is {total.tolist()}")


@ranks(2, 3, full=True, alone=True, own=True)
def world_is_told_what_differs(team):
    """As of a group, in a job of its own, since nothing works on the world then."""
    error = _raised(_reduced(10) if team.rank == 1 else _reduced(11), None, "sync")
    _look(team, "another size on rank 1 of the world", error, ODD["size"].words)
    error = _raised(_reduced(), None, "sync")
    team.expect(isinstance(error, dist.DistBackendError), f"a later call gave {error!r}")
