"""Messages between a script and its ranks (:class:`Channel`), pickled, over a socket of this machine.

The socket has a random name that no file system holds, so that nothing is left of it. Both sides refuse a process of
another user: a pickle is a program.
"""

import os
import pickle
import secrets
import socket
import struct
from typing import Any

from psframe.errors import UserError

_LENGTH = struct.Struct("!Q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group: unix(7)


class Channel:
    """One end of a connection.

    Attributes
    ----------
    pid : int
        Process at the other end.
    """

    def __init__(self, connected: socket.socket):
        self.socket = connected
        said = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, user, _ = _CREDENTIALS.unpack(said)
        if user != os.geteuid():
            connected.close()
            raise UserError(f"a script and its ranks must be of one user, got {user} and {os.geteuid()}")

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Any) -> None:
        """Send an object. OSError if the other end is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            self.socket.sendall(_LENGTH.pack(len(data)))
            self.socket.sendall(data)
        except BaseException:
            self.close()  # a message that is cut short is the last one
            raise

    def receive(self) -> Any:
        """Return the next object; EOFError if the other end is gone."""
        (n_bytes,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(n_bytes))

    def _read(self, n_bytes: int) -> bytearray:
        data = bytearray(n_bytes)
        view = memoryview(data)
        while view:
            try:
                n_read = self.socket.recv_into(view)
            except ConnectionError:
                n_read = 0
            if not n_read:
                raise EOFError("the other end is gone")
            view = view[n_read:]
        return data

    def close(self) -> None:
        self.socket.close()


def listen() -> tuple[socket.socket, str]:
    """Return a listening socket, and its name for :func:`connect`."""
    name = f"psframe-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0{name}")
    listening.listen(4096)
    return listening, name


def connect(name: str) -> Channel:
    """Return a connection to the script that listens; UserError where there is none on this machine."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(f"\0{name}")
    except OSError:
        connected.close()
        raise UserError(
            f"a script's ranks must be on its machine, got one on {os.uname().nodename}; for several machines, start "
            "the script itself by mpirun"
        ) from None
    return Channel(connected)
