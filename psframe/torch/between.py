"""Exchange between the nodes of a group (:class:`Between`), by their leaders over TCP, chunk by chunk.

A leader sends the slots of its node's ranks to the other leaders, which put them into theirs; then every rank reads the
slots of all, as on one node, and a sum has the same bits. Where much is summed, and ranks are numbered node by node, a
node sends less: the first its sum, the next one folds its own ranks onto that, and so on; the last sends the sum over
all back. Either way an exchange is a left fold in the order of ranks.
"""

import select
import time
from collections import deque
from functools import partial
from typing import Any

import torch.distributed as dist

from psframe import compiled
from psframe.torch.meeting import Meeting
from psframe.torch.moves import KINDS
from psframe.torch.nodes import leaders
from psframe.torch.progress import PROGRESS
from psframe.torch.ways import BEFORE, FAILED, LENGTHS, MOST_SAID, NOTE, SAID, SLOTS, SUM, WAITS, Piece, Way

PUT, SUMMED, ALL, TOTAL = compiled.rooms.PUT, compiled.rooms.SUMMED, compiled.rooms.ALL, compiled.rooms.TOTAL
#: seconds of a wait for a gate, or for another node, while the other of the two may come
TURN_S = 0.001


class _Duty:
    """What of a collective a node has sent, and what has come."""

    def __init__(self, move: Any, node: int, n_nodes: int):
        self.move, self.node, self.n_nodes = move, node, n_nodes
        self.n_sent = self.n_summed = self.n_total = 0
        self.began = 0.0  # when the ones before it were done
        self.told: list[int] = []  # ranks that others were told it waits for
        self.come: dict[int, set[int]] = {}  # by chunk, the nodes whose slots, or sum over the nodes before, have come

    def wants(self, k: int) -> set[int]:
        """Return the nodes of which something of a chunk has not come yet."""
        if not self.move.is_chained:
            return set(range(self.n_nodes)) - {self.node} - self.come.get(k, set())
        after = {self.node + 1} if k >= self.n_total and self.node + 1 < self.n_nodes else set()
        return after if self.node == 0 or k in self.come else after | {self.node - 1}

    def first_wanted(self) -> int:
        """Return the first chunk of which not all has come."""
        if self.move.is_chained:
            return self.n_total
        return next((k for k in range(self.n_sent) if self.wants(k)), self.n_sent)

    def all_wanted(self) -> set[int]:
        """Return the nodes of which something of any chunk has not come yet."""
        _, n, _ = self.move.chunks or (0, 1, False)
        return set().union(*map(self.wants, range(n)))

    def is_done(self) -> bool:
        _, n, is_agreed = self.move.chunks or (0, 1, False)
        all_sent = self.n_total == n if self.move.is_chained else self.n_sent == n
        return is_agreed and all_sent and not self.all_wanted()


class Between:
    """Duty of a node's leader. It goes on where its rank waits, or asks.

    Parameters
    ----------
    meeting : Meeting
    store : torch.distributed.Store
        Of the group alone. All leaders must make theirs.
    """

    def __init__(self, meeting: Meeting, store: Any):
        self.meeting, self.rooms, self.nodes = meeting, meeting.rooms, meeting.nodes
        self.node, self.here = self.nodes.here, self.nodes.ranks[self.nodes.here]
        self.duties: deque[_Duty] = deque()
        n_pieces = meeting.n * (meeting.n + 2)
        self.ways = {node: Way(node, stream, n_pieces) for node, stream in leaders(self.nodes, store).items()}
        self.failed: tuple[int, str] | None = None  # a node that cannot go on, and its sentence
        self.awaited: dict[int, tuple[int, list[int]]] = {}  # by node, the chunk and the ranks that it waits for

    def begin(self, move: Any) -> None:
        self.duties.append(_Duty(move, self.node, len(self.nodes.ranks)))

    def step(self, move: Any, timeout_s: float) -> bool:
        """Go on until ``move`` is done; return False if it is not after ``timeout_s``."""
        until = time.monotonic() + timeout_s
        while True:
            self.rooms.poll()
            if move.is_done or self.rooms.is_broken:
                return True
            with PROGRESS.lock:
                if self.poll():
                    continue
                self.check(move)
                self._tell_late()
            if time.monotonic() > until:
                return False
            turn = min(TURN_S, timeout_s)
            if self._waits():
                self._wait(turn)
            else:
                self.rooms.run(move, turn)

    def _wait(self, timeout_s: float) -> None:
        events = select.poll()
        for way in self.ways.values():
            if not way.is_lost:
                events.register(way.socket, select.POLLIN | (select.POLLOUT if way.out else 0))
        events.poll(timeout_s * 1000)

    def _waits(self) -> bool:
        """Return True if the first collective waits for another node, and not for ranks of this one."""
        if not self.duties or not self.duties[0].move.chunks:
            return False
        duty = self.duties[0]
        k = duty.first_wanted()
        if k >= duty.n_sent:
            return False
        return not duty.move.is_chained or duty.n_summed > k or any(node < self.node for node in duty.wants(k))

    def absent(self) -> list[int]:
        """Return the ranks that the first collective waits for, as the nodes have said; not who has said it."""
        if not self.duties or not (chunks := self.duties[0].move.chunks):
            return []
        told = {node: ranks for node, (chunk, ranks) in self.awaited.items() if chunk == chunks[0]}
        come = {self.here[0], *(self.nodes.ranks[node][0] for node in told)}
        return sorted({*self._late(), *(rank for ranks in told.values() for rank in ranks)} - come)

    def _late(self) -> list[int]:
        """Return the ranks that this node waits for: of its own, or the first of those nodes that have not come."""
        if not self._waits():
            return [self.here[number] for number in self.rooms.late()]
        duty = self.duties[0]
        missing = {n for n in duty.wants(duty.first_wanted()) if n in self.ways and not self.ways[n].frame}
        before = {node for node in missing if duty.move.is_chained and node < self.node}  # whom the one after awaits
        return [self.nodes.ranks[node][0] for node in sorted(before or missing)]

    def _tell_late(self) -> None:
        """Tell the other nodes whom the first collective waits for, before a time-out ends it."""
        if not self.duties or not (chunks := self.duties[0].move.chunks):
            return
        duty, now = self.duties[0], time.monotonic()
        duty.began = duty.began or now
        if now > duty.began + self.meeting.rendezvous.deadline_s / 2 and (late := self._late()) != duty.told:
            duty.told = late
            for way in self.ways.values():
                way.send(WAITS, chunks[0], [(0, SAID, " ".join(map(str, late)).encode())])

    def poll(self) -> bool:
        """Send and receive what can be without a wait; return True if anything was."""
        moved = False
        for duty in self.duties:
            if (chunks := duty.move.chunks) is None:
                break
            moved |= self._send(duty, *chunks)
        for way in list(self.ways.values()):
            way.flush()
            while frame := way.receive(self._is_ready, partial(self._place, way)):
                self._have(way, *frame)
                moved = True
        while self.duties and self.duties[0].is_done():
            self.duties.popleft()
        return moved

    def check(self, move: Any) -> None:
        """Raise DistBackendError if a collective misses what another node will not send, since it has ended or failed.

        One for which all has come is left to end well.
        """
        duty = next((duty for duty in self.duties if duty.move is move), None)
        if duty is None:
            return
        if self.failed and duty.all_wanted():
            node, said = self.failed
            self.meeting.give_up(self.nodes.ranks[node][:1], True, said)
            raise dist.DistBackendError(said)
        lost = {way.node for way in self.ways.values() if way.is_lost}
        if missed := lost & duty.all_wanted():
            self.meeting.give_up([rank for node in sorted(missed) for rank in self.nodes.ranks[node]], True)
            raise dist.DistBackendError(
                f"{self._named(min(missed))} has ended, or cannot be reached any more, and {self.meeting.name} cannot "
                "go on without it"
            )

    def _send(self, duty: _Duty, first: int, n: int, is_agreed: bool) -> bool:
        """Send what this node has of a collective: of ``n`` chunks, or more where that is not agreed on yet."""
        before = duty.n_sent, duty.n_summed
        while duty.n_sent < n and self.rooms.has_passed(first + duty.n_sent, PUT):
            if not duty.move.is_chained:
                self._send_slots(duty, first, duty.n_sent)
            elif self.node == 0:
                self.rooms.let_in(first + duty.n_sent, ALL)
            duty.n_sent += 1
        while duty.move.is_chained and duty.n_summed < n and self.rooms.has_passed(first + duty.n_summed, SUMMED):
            self._send_sum(duty, first, duty.n_summed)
            duty.n_summed += 1
        return before != (duty.n_sent, duty.n_summed)

    def _send_slots(self, duty: _Duty, first: int, k: int) -> None:
        kind, root = KINDS[duty.move.note[0]], duty.move.note[3]
        givers = [rank for rank in self.here if kind not in ("broadcast", "scatter") or rank == root]
        for node, ranks in enumerate(self.nodes.ranks):
            if node == self.node:
                continue
            pieces = []
            if k == 0:
                for rank in self.here:
                    note, lengths = self.rooms.notes(first, rank)
                    pieces += [(rank, NOTE, note), (rank, LENGTHS, lengths)]
            takes = kind not in ("gather", "reduce") or root in ranks
            for rank in givers if takes else ():
                slot = self.rooms.slot(first + k, rank)
                pieces += [(rank, at, slot[at : at + size]) for at, size in self._used(duty.move, k, ranks)]
            self.ways[node].send(SLOTS, first + k, pieces)

    def _used(self, move: Any, k: int, ranks: list[int]) -> list[tuple[int, int]]:
        """Return the parts of a slot, begin and bytes, that ranks of a node read in a chunk."""
        left = move.width if move.is_uneven else max(0, min(move.width, move.longest - k * move.width))
        if move.width == self.meeting.slot_bytes:
            return [(0, left)]
        return [(rank * move.width, left) for rank in ranks]

    def _send_sum(self, duty: _Duty, first: int, k: int) -> None:
        n_bytes = max(0, min(duty.move.width, duty.move.longest - k * duty.move.width))
        slot = self.rooms.slot(first + k, self.meeting.n)[:n_bytes]
        if self.node == len(self.nodes.ranks) - 1:
            self._total(duty, first, k, slot)
            return
        pieces = [(self.meeting.n + 1, 0, slot)]
        if k == 0:
            pieces.append((self.here[-1], NOTE, self.rooms.notes(first, self.here[-1])[0]))
        self.ways[self.node + 1].send(BEFORE, first + k, pieces)

    def _total(self, duty: _Duty, first: int, k: int, slot: memoryview) -> None:
        """Let the sum over all ranks in, and send it to the node before."""
        if self.node > 0:
            self.ways[self.node - 1].send(SUM, first + k, [(self.meeting.n, 0, slot)])
        duty.n_total += 1
        self.rooms.let_in(first + k, TOTAL)

    def _is_ready(self, chunk: int) -> bool:
        """Return True if this node's ranks have put theirs into a chunk's room."""
        return bool(self.rooms.has_passed(chunk, PUT))

    def _place(self, way: Way, chunk: int, piece: Piece) -> memoryview:
        """Return the memory that a piece goes to."""
        slot, at, n_bytes = piece
        if at == SAID:
            return memoryview(way.said)[:n_bytes]
        if 0 <= slot < self.meeting.n and at in (NOTE, LENGTHS):
            found = self.rooms.notes(chunk, slot)[at == LENGTHS]
        else:
            found = self.rooms.slot(chunk, slot if 0 <= slot < self.meeting.n + 2 else 0)[max(at, 0) : at + n_bytes]
        if len(found) != n_bytes:
            raise dist.DistBackendError(f"{self._named(way.node)} sends what has no place in a slot")
        return memoryview(found)

    def _have(self, way: Way, kind: int, chunk: int, pieces: list[Piece]) -> None:
        """Let in what a frame has brought."""
        if kind == FAILED:
            self.failed = way.node, way.words(pieces)
            return
        if kind == WAITS:
            numbers = [int(word) for word in way.words(pieces).split() if word.isascii() and word.isdigit()]
            self.awaited[way.node] = chunk, [rank for rank in numbers if rank < self.meeting.n]
            return
        duty = next(d for d in self.duties if d.move.chunks and 0 <= chunk - d.move.chunks[0] < d.move.chunks[1])
        first = duty.move.chunks[0]
        k = chunk - first
        if kind == SUM:
            self._total(duty, first, k, self.rooms.slot(chunk, self.meeting.n)[: pieces[0][2]])
            return
        self._send(duty, *duty.move.chunks)  # behind the gate the room is used again
        duty.come.setdefault(k, set()).add(way.node)
        if kind == BEFORE or len(duty.come[k]) == len(self.nodes.ranks) - 1:
            self.rooms.let_in(chunk, ALL)

    def fail(self, said: str) -> None:
        """Tell the other nodes why this one cannot go on."""
        for way in self.ways.values():
            way.send(FAILED, 0, [(0, SAID, said.encode()[:MOST_SAID])])
        self.close(until_read=True)

    def close(self, until_read: bool = False) -> None:
        ways, self.ways = self.ways, {}
        for way in ways.values():
            way.close(until_read)

    def _named(self, node: int) -> str:
        rank = self.nodes.ranks[node][0]
        return f"rank {self.meeting.ranks[rank]} on {self.nodes.hosts[rank]}"
