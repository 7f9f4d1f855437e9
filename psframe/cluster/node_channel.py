"""Messages between a node's ranks over sockets (:class:`Link`): they block in the kernel, where MPI would spin.

The node's first rank holds one Unix socket to each other rank, which also passes file descriptors. A rank that can
connect to it, and map the memory received from it, has proven that it shares memory with that rank; a host name proves
nothing inside containers.
"""

import errno
import json
import mmap
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from psframe.cluster.gates import PeerLost
from psframe.errors import UserError
from psframe.memory.free_memory import available_bytes, machine_bytes
from psframe.record.flight import SOCKET, phase

Place = Callable[[np.ndarray], None]

#: folder that containers in different network namespaces may share
FOLDER = "/dev/shm"

LOST = (1 << 64) - 1  # in place of a message's length: a rank of the job is lost
TIMEOUT_S = 60.0  # limit of exchanges that take milliseconds unless a peer is dead; waiting for work has no limit


class LeaderEnded(Exception):
    """The first rank of this node has ended while others waited for it."""


class Link:
    """Star of sockets within a node.

    Parameters
    ----------
    peers : sequence of sockets
        On the node's first rank, one socket per follower; on a follower, the one to the first rank.
    leads : bool
        True if this rank is the node's first.
    """

    def __init__(self, peers: Sequence[socket.socket], leads: bool):
        self.peers = list(peers)
        self.leads = leads

    def tell(self, message: Any = None) -> Any:
        """Return the first rank's ``message`` (plain values, as JSON) on every rank of the node, which must all call.

        Every rank gets the same: lists in place of tuples. Raises as :meth:`gather`, and PeerLost if the first rank
        has called it off.
        """
        return json.loads(self.spread(json.dumps(message).encode()))

    def spread(self, frame: bytes) -> bytes:
        """Return the first rank's bytes on every rank of the node, which must all call. Raises as :meth:`gather`."""
        with self._noticing():
            if not self.leads:
                return _receive(self.peers[0])
            for peer in self.peers:
                _send(peer, frame)
        return frame

    def call(self, message: Any) -> None:
        """Send a message to the other ranks of the node, from the first one, as far as they are left."""
        self._send_to_left(_framed(json.dumps(message).encode()))

    def call_off(self) -> None:
        """Let the other ranks of the node raise PeerLost, from the first one, as far as they wait for its messages."""
        self._send_to_left(struct.pack("<Q", LOST))

    def _send_to_left(self, data: bytes) -> None:
        for peer in self.peers if self.leads else ():
            with suppress(OSError):
                peer.sendall(data)

    def gather(self, frame: bytes) -> list[bytes]:
        """Return the bytes of every rank, in any order, on the first rank, [] elsewhere. All of the node must call.

        A rank may compile for as long as it needs; else the watchdog's deadline holds. Raises LeaderEnded if the first
        rank has died, and PeerLost on the first rank if another one has.
        """
        with self._noticing():
            if not self.leads:
                _send(self.peers[0], frame)
                return []
            frames = [frame]
            with selectors.DefaultSelector() as waiting:  # so that one that has died is noticed before others come
                for peer in self.peers:
                    waiting.register(peer, selectors.EVENT_READ, peer)
                while waiting.get_map():
                    for key, _ in waiting.select():
                        waiting.unregister(key.fileobj)
                        frames.append(_receive(key.data))
        return frames

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            with phase(SOCKET):
                yield
        except ConnectionError:
            raise (PeerLost("a rank of this node has died", (), True) if self.leads else LeaderEnded) from None

    def share(self, n_bytes: int, page_bytes: int = 0, place: Place | None = None, take: bool = True) -> np.ndarray:
        """Return zeroed memory, uint8 (n_bytes,), shared by all ranks of the node, which must all call.

        It is a memfd: it has no name, so however a process ends, nothing stays behind. Raises OSError if there is no
        room, and a UserError of ``place`` on every rank.

        Parameters
        ----------
        page_bytes : int
            Size of the reserved huge pages to use; 0 for ordinary pages.
        place : callable, optional
            Called on the first rank with the mapping, before its pages are allocated, to set where they lie.
        take : bool
            True if the first rank allocates all pages now; else their owners must, before they use them.
        """
        memory, fd = self.share_open(n_bytes, page_bytes, place, take)
        os.close(fd)
        return memory

    def share_open(
        self, n_bytes: int, page_bytes: int = 0, place: Place | None = None, take: bool = True
    ) -> tuple[np.ndarray, int]:
        """Return the memory of :meth:`share`, and its file descriptor, which the caller closes."""
        fd, error = -1, None
        page = page_bytes or 1
        size = -(-max(n_bytes, 1) // page) * page
        try:
            if self.leads:
                fd, error = reserve(size, page_bytes, place, take)
            error = self.tell(error)
            if error is not None:
                number, why = error
                raise OSError(number, why) if number else UserError(why)
            if self.leads:
                self.hand_out([fd] * len(self.peers))
            else:
                fd = self.hand_out()
            return np.frombuffer(mmap.mmap(fd, size), np.uint8)[:n_bytes], fd
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise

    def hand_out(self, fds: Sequence[int] = ()) -> int:
        """Send each other rank of the node one of the first rank's ``fds``, and return it there; all must call.

        Raises OSError if none arrives.
        """
        if not self.leads:
            return receive_fd(self.peers[0])
        for peer, fd in zip(self.peers, fds, strict=True):
            socket.send_fds(peer, [b"F"], [fd])
        return -1

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


def reserve(n_bytes: int, page_bytes: int, place: Place | None, take: bool) -> tuple[int, tuple[int, str] | None]:
    """Return a new memfd, and the error (errno, text) that prevented its allocation, or None; errno 0: a UserError.

    With ``take``, the pages are allocated at once: one that is missing later would end the process with SIGBUS.
    """
    fd = -1
    try:
        # allocating more than is free calls the kernel's out-of-memory killer; huge pages are counted apart
        # (several ranks, which may have limits of their own, allocate later pages)
        if not page_bytes and n_bytes > (available_bytes() if take else machine_bytes()):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        fd = nameless(page_bytes)
        os.ftruncate(fd, n_bytes)
        if place:
            place(np.frombuffer(mmap.mmap(fd, n_bytes), np.uint8))
        if take:
            os.posix_fallocate(fd, 0, n_bytes)
    except OSError as error:
        return fd, (error.errno or errno.EIO, error.strerror or str(error))
    except UserError as error:  # raised by place; the other ranks wait for the result
        return fd, (0, str(error))
    return fd, None


def nameless(page_bytes: int = 0) -> int:
    """Return a new memfd; or, if that is denied and ordinary pages suffice, an unnamed file in memory."""
    huge = os.MFD_HUGETLB | (page_bytes.bit_length() - 1) << os.MFD_HUGE_SHIFT if page_bytes else 0
    try:
        fd = os.memfd_create("psframe", os.MFD_CLOEXEC | huge)
        os.fchmod(fd, 0o600)  # it has no name, but /proc shows it
        return fd
    except OSError as error:
        if page_bytes or error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        return os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _send(peer: socket.socket, frame: bytes) -> None:
    peer.sendall(_framed(frame))


def _framed(frame: bytes) -> bytes:
    return struct.pack("<Q", len(frame)) + frame


def _receive(peer: socket.socket) -> bytes:
    (size,) = struct.unpack("<Q", _exactly(peer, 8))
    if size == LOST:
        raise PeerLost("a rank is lost, as another one tells", (), False)
    return _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = peer.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError
        data += part
    return bytes(data)


def receive_fd(peer: socket.socket) -> int:
    """Return the file descriptor that the first rank sends; raises OSError if none arrives."""
    data, fds, _, _ = socket.recv_fds(peer, 1, 1)
    if not data or not fds:
        raise OSError(errno.EACCES, "no file descriptor arrived from the first rank of this node")
    os.set_inheritable(fds[0], False)
    return fds[0]


def listen(backlog: int, folder: str = "") -> tuple[socket.socket, str]:
    """Return a listening socket and its unguessable address; raises OSError if that is impossible.

    The address is in the abstract namespace, which leaves no file but ends at a network namespace. With a ``folder``,
    it is a file there, which the caller removes when all have connected.
    """
    name = f"psframe-{secrets.token_hex(16)}"
    address = f"{folder}/{name}" if folder else f"\0{name}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(server.fileno(), 0o600)  # the file inherits this mode, whatever the umask
        server.bind(address)
    except OSError:
        server.close()
        raise
    server.listen(backlog)
    server.settimeout(TIMEOUT_S)
    return server, address


def accept(server: socket.socket, n: int) -> list[socket.socket]:
    """Return the sockets of ``n`` connected ranks; a connection of another user is dropped."""
    peers: list[socket.socket] = []
    while len(peers) < n:
        peer, _ = server.accept()
        peer.settimeout(None)
        if is_mine(peer):
            peers.append(peer)
        else:
            peer.close()
    return peers


def is_mine(peer: socket.socket) -> bool:
    """Return True if the process at the other end is this user's."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


def connect(address: str) -> socket.socket | None:
    """Return a socket to the rank that listens at ``address``; None if it is out of reach, or another user's."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # a time-out of Python's own would not wait for one with more callers than the system lets wait (somaxconn)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(TIMEOUT_S), 0))
        peer.connect(address)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))
        if is_mine(peer):
            return peer
    except OSError:
        pass
    peer.close()
    return None
