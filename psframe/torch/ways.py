"""Frames between the leaders of two nodes (:class:`Way`): pieces of slots, sent and received without a wait."""

import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch.distributed as dist

FRAME = struct.Struct("<qqq")  # kind, chunk, pieces
PIECE = struct.Struct("<qqq")  # slot, offset, bytes
SLOTS, BEFORE, SUM, FAILED, WAITS = range(5)
#: kinds of words about a node, which no room need be ready for
WORDS = (FAILED, WAITS)
#: offsets of pieces that are no part of a slot: a rank's note, its lengths, and words
NOTE, LENGTHS, SAID = -1, -2, -3
MOST_SAID = 1 << 16
LAST_S = 1.0  # for what is left to send at the end

Piece = tuple[int, int, int]
Ready = Callable[[int], bool]  #: True once a chunk's room may be written to
Place = Callable[[int, Piece], memoryview]  #: the memory that a piece of a chunk goes to


class Way:
    """Connection to the leader of another node.

    Parameters
    ----------
    node : int
    stream : socket
        Does not block.
    n_pieces : int
        Most pieces of a frame.

    Attributes
    ----------
    is_lost : bool
        True if the other end is gone.
    """

    def __init__(self, node: int, stream: socket.socket, n_pieces: int):
        self.node, self.socket, self.n_pieces = node, stream, n_pieces
        self.out: deque[memoryview] = deque()
        self.said = bytearray(MOST_SAID)
        self.is_lost = False
        self._begin()

    def _begin(self) -> None:
        self.head, self.left = bytearray(), FRAME.size
        self.frame: tuple[int, int, list[Piece]] | None = None
        self.targets: deque[memoryview] | None = None

    def send(self, kind: int, chunk: int, pieces: Sequence[tuple[int, int, Any]]) -> None:
        """Send a frame after those before it; the memory of its pieces may then be used again."""
        heads = b"".join(PIECE.pack(slot, at, len(data)) for slot, at, data in pieces)
        payload = b"".join(data for _, _, data in pieces)
        self.out.append(memoryview(FRAME.pack(kind, chunk, len(pieces)) + heads + payload))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now."""
        while self.out:
            try:
                sent = self.socket.send(self.out[0])
            except BlockingIOError:
                return
            except OSError:
                self.out.clear()  # why it is gone may still be to be read
                return
            if sent < len(self.out[0]):
                self.out[0] = self.out[0][sent:]
            else:
                self.out.popleft()

    def receive(self, ready: Ready, place: Place) -> tuple[int, int, list[Piece]] | None:
        """Receive until a frame is whole, and return its kind, chunk and pieces; None if the rest is not there yet.

        Raises
        ------
        DistBackendError
            What comes is no frame.
        """
        while not self.is_lost:
            if self.frame and self.targets is None:
                kind, chunk, pieces = self.frame
                if kind not in WORDS and not ready(chunk):  # a frame without a piece means something, too
                    return None
                self.targets = deque(memory for piece in pieces if (memory := place(chunk, piece)))
            if self.frame and not self.targets:
                frame = self.frame
                self._begin()
                return frame
            if not self._take():
                return None
            if not self.left and not self.frame:
                self._read()
        return None

    def _take(self) -> bool:
        """Receive a part of a head, or of a piece; return False if there is none now."""
        try:
            if self.targets is None:
                part = self.socket.recv(self.left)
                n_bytes = len(part)
                self.head += part
                self.left -= n_bytes
            else:
                n_bytes = self.socket.recv_into(self.targets[0])
                self.targets[0] = self.targets[0][n_bytes:]
                if not self.targets[0]:
                    self.targets.popleft()
        except BlockingIOError:
            return False
        except OSError:
            n_bytes = 0
        self.is_lost = not n_bytes
        return not self.is_lost

    def _read(self) -> None:
        """Read a frame's head, and once they are there those of its pieces."""
        kind, chunk, n = FRAME.unpack_from(self.head)
        if not 0 <= n <= self.n_pieces or kind not in (SLOTS, BEFORE, SUM, *WORDS):
            raise dist.DistBackendError("another node sends what is none of psframe's frames")
        self.left = FRAME.size + n * PIECE.size - len(self.head)
        if not self.left:
            pieces = list(PIECE.iter_unpack(bytes(self.head[FRAME.size :])))
            if kind in WORDS and [(at, 0 <= size <= MOST_SAID) for _, at, size in pieces] != [(SAID, True)]:
                raise dist.DistBackendError("another node says what are none of psframe's words")
            self.frame = kind, chunk, pieces

    def words(self, pieces: Sequence[Piece]) -> str:
        """Return what a frame of words says."""
        ((_, _, size),) = pieces
        return bytes(self.said[:size]).decode(errors="replace")

    def close(self, until_read: bool = False) -> None:
        """Send what is left, for a while, and close; ``until_read``: once the other end has closed, too."""
        self.socket.settimeout(LAST_S)
        self.flush()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while until_read and self.socket.recv(1 << 16):  # what is not read would take along what was sent
                pass
        self.socket.close()
