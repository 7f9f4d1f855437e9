"""Messages from rank to rank (:class:`Peers`): streams of sockets, made at the first message, that never block.

A stream carries messages one way, each a header and the bytes of a tensor. A message that no receive waits for yet is
kept in this process, so a sender need not wait for its receiver, and tags may be received in another order.
"""

import ctypes
import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from psframe.cluster import node_channel

HEADER = struct.Struct("<qqQ")  # tag, number of the type, bytes
HELLO = struct.Struct("<q")  # the sender's rank
MOST_BYTES = 1 << 46


def view(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor of any type. The tensor must outlive it."""
    n_bytes = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * n_bytes).from_address(tensor.data_ptr() if n_bytes else 0)).cast("B")


class Parcel:
    """A message to send, or to receive.

    Attributes
    ----------
    rank : int
        Of the other end; -1 for any, until a message has come.
    is_done : bool
    error : str
        Why it cannot be done any more; "" if it can.
    """

    def __init__(self, rank: int, tag: int, kind: int, data: memoryview):
        self.rank, self.tag, self.kind, self.data = rank, tag, kind, data
        self.is_done, self.error = False, ""


class _Incoming:
    """A stream from a rank: what of the message that now arrives is there."""

    def __init__(self, source: socket.socket, token: bytes):
        self.socket, self.rank, self.token = source, -1, token
        self.head, self.left = bytearray(), HELLO.size + len(token)
        self.message: Parcel | None = None
        self.at = 0


class Peers:
    """All messages of a group's rank from and to the others.

    Parameters
    ----------
    listeners : sequence of socket
        Do not block; others connect to them: the first one's are of this node.
    connect : callable
        Returns a socket to the listener of a rank.
    me : int
    token : bytes
        Begins every stream of another node's.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        connect: Callable[[int], socket.socket],
        me: int,
        token: bytes = b"",
    ):
        self.listeners, self.connect, self.me, self.token = listeners, connect, me, token
        self.incoming: list[_Incoming] = []
        self.gone: set[int] = set()
        self.waiting: list[Parcel] = []  # receives, in their order
        self.come: list[Parcel] = []  # messages that no receive has asked for yet
        self.outgoing: dict[int, tuple[socket.socket, deque[tuple[memoryview, Parcel | None]]]] = {}

    def send(self, parcel: Parcel) -> None:
        """Send a message after those before it to the same rank."""
        if parcel.rank not in self.outgoing:
            stream = self.connect(parcel.rank)
            stream.setblocking(False)
            self.outgoing[parcel.rank] = stream, deque([(memoryview(HELLO.pack(self.me)), None)])
        queue = self.outgoing[parcel.rank][1]
        queue.append((memoryview(HEADER.pack(parcel.tag, parcel.kind, len(parcel.data))), None))
        queue.append((parcel.data, parcel))
        self._send(parcel.rank)

    def receive(self, parcel: Parcel) -> None:
        """Receive a message: the first that has come, or comes, with its tag from its rank."""
        for message in self.come:
            if self._fits(parcel, message):
                self.come.remove(message)
                parcel.rank = message.rank
                if self._is_refused(parcel, message):
                    return
                if message.is_done:
                    parcel.data[:] = message.data
                    parcel.is_done = True
                else:  # its bytes go on arriving: into their place
                    stream = next(stream for stream in self.incoming if stream.message is message)
                    parcel.data[: stream.at] = message.data[: stream.at]
                    stream.message = parcel
                return
        self.waiting.append(parcel)
        if parcel.rank in self.gone:
            self._fail(parcel.rank)

    def poll(self) -> None:
        """Send and receive what can be without a wait."""
        for rank in self.outgoing:
            self._send(rank)
        if not self.waiting and not self.incoming and not self.outgoing:
            return
        self._accept()
        for stream in list(self.incoming):
            while self._receive(stream):
                pass

    def wait(self, timeout_s: float) -> None:
        """Wait until something can be sent or received."""
        events = select.poll()
        for listener in self.listeners:
            events.register(listener, select.POLLIN)
        for stream in self.incoming:
            events.register(stream.socket, select.POLLIN)
        for out, queue in self.outgoing.values():
            if queue:
                events.register(out, select.POLLOUT)
        events.poll(timeout_s * 1000)

    def close(self) -> None:
        for stream in self.incoming:
            stream.socket.close()
        for out, _ in self.outgoing.values():
            out.close()

    def _send(self, rank: int) -> None:
        out, queue = self.outgoing[rank]
        while queue:
            data, parcel = queue[0]
            try:
                sent = out.send(data) if data else 0
            except BlockingIOError:
                return
            except OSError:
                self._lose(queue, rank)
                return
            if sent < len(data):
                queue[0] = data[sent:], parcel
            else:
                queue.popleft()
                if parcel:
                    parcel.is_done = True

    def _lose(self, queue: deque[tuple[memoryview, Parcel | None]], rank: int) -> None:
        for _, parcel in queue:
            if parcel:
                parcel.error = f"rank {{{rank}}} has ended"
        queue.clear()

    def _accept(self) -> None:
        for listener in self.listeners:
            token = self.token if listener.family == socket.AF_INET else b""
            while True:
                try:
                    source, _ = listener.accept()
                except OSError:
                    break
                if listener.family == socket.AF_UNIX and not node_channel.is_mine(source):
                    source.close()
                    continue
                source.setblocking(False)
                self.incoming.append(_Incoming(source, token))

    def _receive(self, stream: _Incoming) -> bool:
        """Take a part of a message; return False if there is none now."""
        try:
            if stream.message is None:
                part = stream.socket.recv(stream.left)
                n_bytes = len(part)
                stream.head += part
            else:
                n_bytes = stream.socket.recv_into(stream.message.data[stream.at :])
        except BlockingIOError:
            return False
        except OSError:
            n_bytes = 0
        if not n_bytes:
            self._end(stream)
            return False
        if stream.message is not None:
            stream.at += n_bytes
        else:
            stream.left -= n_bytes
            if not stream.left:
                self._begin(stream)
        self._finish(stream)
        return stream in self.incoming

    def _begin(self, stream: _Incoming) -> None:
        """Read a header: of the stream, or of a message."""
        head, stream.head, stream.left = bytes(stream.head), bytearray(), HEADER.size
        if stream.rank < 0:
            if not secrets.compare_digest(head[: len(stream.token)], stream.token):
                self._end(stream)  # no rank of this group
            else:
                (stream.rank,) = HELLO.unpack(head[len(stream.token) :])
            return
        tag, kind, n_bytes = HEADER.unpack(head)
        if n_bytes > MOST_BYTES:
            raise dist.DistBackendError(f"a message must have at most {MOST_BYTES:,} bytes, got {n_bytes:,}")
        header = Parcel(stream.rank, tag, kind, memoryview(b""))
        stream.at = 0
        for parcel in self.waiting:
            if self._fits(parcel, header):
                self.waiting.remove(parcel)
                parcel.rank = stream.rank
                header.data = memoryview(bytearray(n_bytes)) if not self._same(parcel, kind, n_bytes) else parcel.data
                stream.message = header if self._is_refused(parcel, header) else parcel
                return
        header.data = memoryview(bytearray(n_bytes))
        stream.message = header
        self.come.append(header)

    def _finish(self, stream: _Incoming) -> None:
        if stream.message is not None and stream.at == len(stream.message.data):
            stream.message.is_done, stream.message = True, None

    def _end(self, stream: _Incoming) -> None:
        stream.socket.close()
        self.incoming.remove(stream)
        if stream.rank >= 0:
            self.gone.add(stream.rank)
            if stream.message is not None and stream.message not in self.come:
                stream.message.error = f"rank {{{stream.rank}}} has ended"
            self.come = [message for message in self.come if message is not stream.message]
            self._fail(stream.rank)

    def _fail(self, rank: int) -> None:
        """End the receives from a rank that has ended."""
        for parcel in self.waiting:
            if parcel.rank == rank:
                parcel.error = f"rank {{{rank}}} has ended"
        self.waiting = [parcel for parcel in self.waiting if not parcel.error]

    @staticmethod
    def _fits(parcel: Parcel, message: Parcel) -> bool:
        return parcel.rank in (-1, message.rank) and parcel.tag == message.tag

    @staticmethod
    def _same(parcel: Parcel, kind: int, n_bytes: int) -> bool:
        return parcel.kind == kind and len(parcel.data) == n_bytes

    def _is_refused(self, parcel: Parcel, message: Parcel) -> bool:
        if self._same(parcel, message.kind, len(message.data)):
            return False
        what = "another type" if parcel.kind != message.kind else f"{len(message.data):,} bytes"
        parcel.error = f"rank {{{message.rank}}} has sent {what} for {len(parcel.data):,} bytes with tag {message.tag}"
        return True
