"""Group of ranks whose exchanges go through psframe's memory (:class:`Group`), as PyTorch calls it."""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from psframe.torch.collectives import Collectives
from psframe.torch.meeting import Meeting
from psframe.torch.messages import Messages
from psframe.torch.moves import Moves, described
from psframe.torch.peers import Peers
from psframe.torch.progress import PROGRESS
from psframe.torch.record import Record
from psframe.torch.work import Collective, Message, Several, Work

CPU = torch.device("cpu")


class Group(Collectives, Messages, dist.ProcessGroup):
    """Process group over shared memory.

    Every rank of the group must make one, which ``init_process_group`` and ``new_group`` do.

    Parameters
    ----------
    store : torch.distributed.Store
    rank, size : int
        Of this rank in the group.
    timeout : timedelta
        Longest wait for a rank.
    name : str
    ranks : sequence of int
        Numbers of the group's ranks in the job; empty for those of the job.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str, ranks: Sequence[int]):
        super().__init__(rank, size)
        self.me, self.n, self.ranks = rank, size, tuple(ranks) or tuple(range(size))
        self.timeout_s = timeout.total_seconds()
        self._names = {"name": name, "text": ""}
        self.meeting = Meeting(store, rank, size, self.ranks, f"group {name}")
        self.rooms = self.meeting.rooms
        nodes = self.meeting.nodes
        self.here = nodes.ranks[nodes.here]
        self.between: Any = None
        if len(nodes.ranks) > 1 and self.here[0] == rank:
            from psframe.torch.between import Between

            self.between = Between(self.meeting, self.meeting.store)
            self.meeting.absent = self.between.absent
        is_chain = len(nodes.ranks) > 1 and [*chain(*nodes.ranks)] == list(range(size))
        self.moves = Moves(rank, size, self.meeting.slot_bytes, is_chain)
        self.peers = Peers(self.meeting.nodes.listeners, self.meeting.connect, rank, self.meeting.nodes.token)
        self.pending: deque[Collective] = deque()  # collectives, in their order
        self.messages: list[Message] = []
        self.error: Exception | None = None
        self.record = Record.asked(name, self.ranks, rank)
        self._began: list[Work] | None = None  # works that are begun as one
        PROGRESS.add(self)

    def begin(self, move: Any, tensors: Sequence[Any], kept: Any, is_async: bool, last: Any = None) -> Work:
        """Begin a collective, and return its work. ``kept`` has the tensors whose memory the move is about."""
        if self.error is not None:
            raise self.error
        work = Collective(self, move, tensors, last, kept)
        with PROGRESS.lock:
            self.rooms.begin(move)
            self.pending.append(work)
            if self.between:
                self.between.begin(move)
        return self._noted(work, is_async)

    def begin_message(self, message: Message, is_async: bool) -> Work:
        self.messages.append(message)
        return self._noted(message, is_async)

    def _noted(self, work: Work, is_async: bool) -> Work:
        if self._began is not None:
            self._began.append(work)
        if is_async:
            PROGRESS.began(work)
        return work

    def poll(self) -> None:
        """Let everything go on that can without a wait."""
        if self.pending:
            self.rooms.poll()
        with PROGRESS.lock:
            try:
                if self.between and self.between.duties and self.error is None:
                    moved = self.between.poll()
                    if self.pending and not moved:
                        self.between.check(self.pending[0].move)
                if self.messages:
                    self.peers.poll()
            except dist.DistBackendError as error:
                self.fail(error)
        self.reap()

    def reap(self) -> None:
        """End the works of what has come."""
        if not (self.pending or self.messages):
            return
        with PROGRESS.lock:
            self._complete()
            if self.pending and self.rooms.is_broken and self.error is None:
                self.fail(self._unlike())
            for message in self.messages and [message for message in self.messages if message.has_come()]:
                self.messages.remove(message)
                message.complete()

    def _complete(self) -> None:
        while self.pending and self.pending[0].has_come():
            self.pending.popleft().complete()

    def fail(self, error: Exception) -> None:
        """End all works that have not come with an error: after it ranks may stand at different places."""
        with PROGRESS.lock:
            self._complete()
            self.error = self.error or error
            self.rooms.stop()
            if self.between:
                self.between.fail(str(self.error))
            works, self.messages = [*self.pending, *self.messages], []
            self.pending.clear()
            for work in works:
                work.complete(self.error)

    def _unlike(self) -> Exception:
        work = next(work for work in self.pending if work.move.odd >= 0)
        move = work.move
        note, given = self.rooms.note(move, move.odd)
        self.meeting.give_up([move.odd], False)
        theirs = described(note, given)
        if note == move.note:
            theirs += f" and {given:,} bytes for this rank, which expects another size"
        return dist.DistBackendError(
            f"all ranks must begin the same collective, got rank {self.ranks[move.odd]} with {theirs} and rank "
            f"{self.ranks[self.me]} with {work.what()}"
        )

    def shutdown(self) -> None:
        """Give back memory and descriptors."""
        if self not in PROGRESS.groups:
            return
        self.poll()
        PROGRESS.remove(self)
        if self.record:
            self.record.write(self.meeting.memory)
        error = dist.DistBackendError(f"{self.meeting.name} has been destroyed")
        if self.pending or self.messages:
            self.fail(error)  # nobody lets them go on any more
        self.rooms.stop()
        self.error = self.error or error
        self.peers.close()
        if self.between:
            self.between.close()
        self.meeting.close()

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _start_coalescing(self, device: torch.device) -> None:
        self._began = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._began = self._began or [], None
        return Several(self, works)

    # what PyTorch asks of a group, and of its backend for CPU tensors, which it is itself
    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU]

    def _get_backend(self, device: torch.device) -> "Group":
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"a psframe group exchanges CPU tensors, got the device {device}")
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def getBackendName(self) -> str:
        return "psframe"

    name = _get_backend_name = getBackendName

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupDesc(self, text: str) -> None:
        self._names["text"] = text

    def getGroupDesc(self) -> str:
        return self._names["text"]

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0
