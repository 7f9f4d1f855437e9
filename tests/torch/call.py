"""A collective of one group on one rank: how it begins, and what must have come of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch

from tests.torch.expected import Op, differs, differs_much
from tests.torch.team import Draw, Team
from tests.torch.tensors import Placed, bits

#: of gloo's, those whose works can only be waited for
ONLY_WAIT = ("reduce_scatter",)
POLL_S, LONGEST_POLL_S = 0.0005, 60


@dataclass
class Result:
    """Memory that a collective fills, and what with."""

    placed: Placed
    want: Callable[[], torch.Tensor]
    op: Op | None = None  # if the bits are those of a fold over ``rows``
    rows: Callable[[], Sequence[torch.Tensor]] = tuple


@dataclass
class Call:
    """What a member of a group does; ``begin`` takes ``async_op``, as all of ``dist``'s functions do."""

    text: str
    begin: Callable[..., Any]
    results: list[Result] = field(default_factory=list)
    inputs: list[Placed] = field(default_factory=list)
    #: whether all members get the same, as of an allreduce
    is_same: bool = False


def drawn(draw: Draw, group: Any, *kinds: Callable[[Draw], Call]) -> Call:
    """Return a call of one of these kinds in a group."""
    draw.group, draw.n, draw.me = group, group.size, group.me
    return draw.rng.choice(kinds)(draw)


def describe(draw: Draw, name: str, **words: Any) -> str:
    said = " ".join(f"{key}={value}" for key, value in words.items())
    return f"{name} in {draw.group.name} {draw.group.ranks} {said}"


def check(team: Team, call: Call) -> None:
    """Compare what is there after a call with what must be."""
    for at, result in enumerate(call.results):
        got = result.placed.view
        if result.op is None or team.is_own:
            wrong = differs(got, result.want(), result.op)
        else:
            wrong = differs_much(got, result.want(), result.op, result.rows())
        if wrong:
            team.tell(f"{call.text}: result {at} of {len(call.results)}: {wrong}")
        if not result.placed.kept_around():
            team.tell(f"{call.text}: memory beside result {at} was written to")
        if call.is_same:
            team.expect_same(f"{call.text}: result {at}", crc32(bits(got).numpy()))
    for at, placed in enumerate(call.inputs):
        if not placed.kept():
            team.tell(f"{call.text}: input {at} is not as it was")


def run(team: Team, draw: Draw, calls: Sequence[Call | None]) -> None:
    """Begin all calls, wait for them in an order of this rank's own and in several ways, and look at their results."""
    is_async = len(calls) > 1 or draw.rng.random() < 0.4
    ways = [draw.rng.choice(WAYS) for _ in calls]
    orders = [draw.rng.sample(range(len(calls)), len(calls)) for _ in range(team.size)]
    works = {}
    for at, call in enumerate(calls):
        if call is not None:  # of a group that this rank is in
            works[at] = call.begin(async_op=is_async)
            if is_async != (works[at] is not None):
                team.tell(f"{call.text}: returned {works[at]!r} with async_op={is_async}")
    for at in orders[team.rank]:
        if is_async and at in works:
            is_plain = not team.is_own and calls[at].text.startswith(ONLY_WAIT)
            (by_wait if is_plain else ways[at])(team, calls[at], works[at])
    for at in works:
        check(team, calls[at])


def by_wait(team: Team, call: Call, work: Any) -> None:
    work.wait()


def by_polling(team: Team, call: Call, work: Any) -> None:
    """Ask until it is done; asking must be enough for it to come to an end."""
    until = time.monotonic() + LONGEST_POLL_S
    while not work.is_completed():
        if time.monotonic() > until:
            team.tell(f"{call.text}: not completed after {LONGEST_POLL_S} s of asking")
            break
        time.sleep(POLL_S)
    work.wait()
    team.expect(work.is_completed(), f"{call.text}: not completed after wait()")


def by_future(team: Team, call: Call, work: Any) -> None:
    work.get_future().wait()
    team.expect(work.get_future().done(), f"{call.text}: its future is not done after wait()")


def by_callback(team: Team, call: Call, work: Any) -> None:
    """What is said in a callback comes from the future that ``then`` returns."""
    told = work.get_future().then(lambda future: ("then", future.value() is not None))
    found = told.wait()
    team.expect(found[0] == "then", f"{call.text}: then() gave {found}")


def by_all(team: Team, call: Call, work: Any) -> None:
    torch.futures.collect_all([work.get_future()]).wait()


WAYS = (by_wait, by_wait, by_polling, by_future, by_callback, by_all)
