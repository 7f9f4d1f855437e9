"""Messages between pairs of ranks: order, tags, any source, batches, and what is received long after it was sent."""

from functools import partial

import torch
import torch.distributed as dist

from tests.torch.call import POLL_S, Call, Result, by_polling, by_wait, check
from tests.torch.harness import ranks
from tests.torch.tensors import blank, numbers, place


class _Message:
    """A tensor from one member of a group to another."""

    def __init__(self, draw, at, to_self=False):
        rng, self.draw = draw.rng, draw
        self.source = rng.randrange(draw.n)
        others = [r for r in range(draw.n) if to_self or r != self.source]
        self.target, self.tag = rng.choice(others), rng.choice([0, 0, 1, 7, 1000])
        self.dtype, self.key = draw.dtype(), f"{draw.key} message {at}"
        self.shape, (self.kind, self.out) = draw.shape(self.dtype, 4), draw.outputs(2)
        self.by_global, self.group = rng.random() < 0.5, draw.group

    @property
    def line(self):
        return self.source, self.target, self.tag

    @property
    def text(self):
        words = f"{self.source} -> {self.target} tag {self.tag} {self.dtype} {self.shape} {self.kind} {self.out}"
        return f"message in {self.group.name} {self.group.ranks}: {words}"

    def _with(self, name, r):
        return {name: self.group.ranks[r]} if self.by_global else {f"group_{name}": r}

    def send(self, how=dist.isend):
        self.given = place(numbers(self.key, self.shape, self.dtype, True), self.kind)
        to = self._with("dst", self.target)
        return how(self.given.view, group=self.group.handle, tag=self.tag, **to)

    def receive(self, how=dist.irecv):
        self.got = blank(self.shape, self.dtype, self.out)
        return how(self.got.view, group=self.group.handle, tag=self.tag, **self._with("src", self.source))

    def look(self, team, me):
        sent, got = me == self.source, me == self.target
        wanted = Result(self.got, partial(numbers, self.key, self.shape, self.dtype, True)) if got else None
        check(team, Call(self.text, print, [wanted] if got else [], [self.given] if sent else []))


def _mixed(rng, messages):
    """Return messages in another order, in which those of a line are still one behind the other."""
    lines = {}
    for message in messages:
        lines.setdefault(message.line, []).append(message)
    order = [message.line for message in messages]
    rng.shuffle(order)
    return [lines[line].pop(0) for line in order]


def _pairs(team):
    return [group for group in team.groups if group.size > 1]


@ranks(2, 3, 5, 4, 7, 8, 16)
def messages_come_in_order_of_their_tag(team):
    """Each rank begins its own in an order of its own, but for those of one source, target and tag."""
    for draw in team.examples(25, _pairs(team)):
        messages = [_Message(draw, at, team.is_own) for at in range(draw.rng.randint(1, 10))]
        orders = [_mixed(draw.rng, messages) for _ in range(draw.n)]
        waits = [draw.rng.sample(range(2 * len(messages)), 2 * len(messages)) for _ in range(draw.n)]
        ways = [draw.rng.choice([by_wait, by_polling]) for _ in range(2 * len(messages))]
        if draw.me is None:
            continue
        works = []
        for message in orders[draw.me]:
            if draw.me == message.source:
                works.append((message, message.send()))
            if draw.me == message.target:
                works.append((message, message.receive()))
        for at in waits[draw.me]:
            if at < len(works):
                message, work = works[at]
                (ways[at] if team.is_own else by_wait)(team, message, work)
        for message in messages:
            message.look(team, draw.me)


@ranks(2, 3, 5)
def message_may_be_received_later(team):
    """A send that nobody awaits yet holds up neither its rank nor the collectives behind it."""
    for draw in team.examples(6, _pairs(team)):
        messages = [_Message(draw, at) for at in range(4)]
        sends = [message.send() for message in messages if draw.me == message.source]
        total = torch.ones(1000)
        if draw.me is not None:
            dist.all_reduce(total, group=draw.group.handle)
            team.expect(bool((total == draw.n).all()), f"a sum of ones over {draw.n} ranks is {total[0]}")
        works = [message.receive() for message in messages if draw.me == message.target]
        for work in [*works, *sends]:
            work.wait()
        for message in messages if draw.me is not None else ():
            message.look(team, draw.me)


@ranks(2, 3, 5)
def message_may_be_awaited_early(team):
    """Receives that begin before collectives and sends, and are waited for behind them."""
    for draw in team.examples(6, _pairs(team)):
        messages = [_Message(draw, at) for at in range(4)]
        works = [message.receive() for message in messages if draw.me == message.target]
        total = torch.ones(1000)
        if draw.me is not None:
            dist.all_reduce(total, group=draw.group.handle)
            team.expect(bool((total == draw.n).all()), f"a sum of ones over {draw.n} ranks is {total[0]}")
        works += [message.send() for message in messages if draw.me == message.source]
        for work in works:
            work.wait()
        for message in messages if draw.me is not None else ():
            message.look(team, draw.me)


@ranks(2, 3, 5, 7)
def blocking_sends_and_receives_go_round(team):
    for draw in team.examples(10, _pairs(team)):
        for step in range(draw.n):
            message = _Message(draw, step)
            message.source, message.target = step, (step + 1) % draw.n
            if draw.me == message.source:
                message.send(dist.send)
            elif draw.me == message.target:
                got = message.receive(dist.recv)
                source = draw.group.ranks[message.source] if message.by_global else message.source
                team.expect(got == draw.group.ranks[message.source], f"{message.text}: recv returned {got}, {source}")
            message.look(team, draw.me)


@ranks(2, 3, 5, 7)
def receive_of_any_source_names_it(team):
    """Every other member sends some to one, which takes them as they come and tells them apart by who sent them."""
    for draw in team.examples(10, _pairs(team)):
        target, count, tag = draw.rng.randrange(draw.n), draw.rng.randint(1, 3), draw.rng.choice([0, 5])
        dtype = draw.dtype()
        shape, (kind, out) = draw.shape(dtype, 4), draw.outputs(2)
        if 0 in shape and not team.is_own:
            shape = (1,)  # gloo refuses it
        senders = [r for r in range(draw.n) if r != target]
        words = {"group": draw.group.handle, "tag": tag}
        if draw.me in senders:
            for at in range(count):
                values = numbers(f"{draw.key} {draw.me} {at}", shape, dtype, True)
                dist.send(place(values, kind).view, draw.group.ranks[target], **words)
        elif draw.me == target:
            came = dict.fromkeys(senders, 0)
            for _ in range(count * len(senders)):
                got = blank(shape, dtype, out)
                source = dist.recv(got.view, **words)
                r = draw.group.ranks.index(source) if source in draw.group.ranks else None
                if r not in came:
                    team.tell(f"recv from any of {senders} in {draw.group.ranks} says it was {source}")
                    continue
                wanted = Result(got, partial(numbers, f"{draw.key} {r} {came[r]}", shape, dtype, True))
                check(team, Call(f"message {came[r]} of {r}, {dtype} {shape} {kind} {out}", print, [wanted]))
                came[r] += 1
            team.expect({*came.values()} == {count}, f"of each were sent {count}, and came {came}")
        if draw.me is not None:  # or what is sent for the next example may come to this one
            dist.barrier(draw.group.handle)


@ranks(2, 3, 5, 4, 7)
def batch_has_every_order(team):
    """All members send to some and receive from some, in one list whose order is each rank's own."""
    for draw in team.examples(15, _pairs(team)):
        messages = [_Message(draw, at) for at in range(draw.rng.randint(2, 8))]
        for message in messages:
            message.tag = 0
        orders = [_mixed(draw.rng, messages) for _ in range(draw.n)]
        if draw.me is None:
            continue
        listed = []
        for message in orders[draw.me]:
            if draw.me == message.source:
                listed.append(message.send(_as_listed))
            if draw.me == message.target:
                listed.append(message.receive(_as_listed_receive))
        for work in dist.batch_isend_irecv(listed) if listed else ():
            work.wait()
        for message in messages:
            message.look(team, draw.me)


def _as_listed(tensor, dst=None, group=None, tag=0, group_dst=None):
    return dist.P2POp(dist.isend, tensor, dst, group, tag, group_dst)


def _as_listed_receive(tensor, src=None, group=None, tag=0, group_src=None):
    return dist.P2POp(dist.irecv, tensor, src, group, tag, group_src)


@ranks(2, 3, own=True)
def polled_receive_is_not_done_before_it_is_sent(team):
    """Asked for, a receive says so, and does not wait."""
    for _ in team.examples(3, team.groups[:1]):
        got = torch.zeros(5)
        if team.rank == 1:
            work = dist.irecv(got, 0)
            team.expect(not work.is_completed(), "a receive is completed of what was not sent")
        dist.barrier()
        if team.rank == 0:
            dist.send(torch.arange(5.0), 1)
        elif team.rank == 1:
            by_polling(team, Call("irecv", print), work)
            team.expect(got.tolist() == [0, 1, 2, 3, 4], f"received {got} after polling each {POLL_S} s")
        dist.barrier()
