"""Output of a rank that ends its job (:func:`until_read`): a launcher that aborts drops what it has not read."""

import fcntl
import os
import stat
import sys
import termios
from contextlib import suppress
from time import sleep

LEAST_S, MOST_S, LOOK_S = 0.5, 10.0, 0.05
#: seconds that a rank waits for another one to report and end the job, before it does so itself
OTHERS_S = 10.0


def say(text: str) -> None:
    """Write to stderr, behind what stdout still has to write; each may be closed, or have lost its reader."""
    for stream, words in ((sys.stdout, ""), (sys.stderr, text)):
        with suppress(OSError, ValueError):
            stream.write(words)
            stream.flush()


def say_by(path: str, text: str) -> None:
    """Write to another process's output: at its end, without waiting for who reads it, and without keeping it open."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def until_read() -> None:
    """Wait until the launcher has read what this process has written: at least 0.5 s, as it passes it on, at most 10.

    On a machine that is busy it may need seconds.
    """
    say("")
    sleep(LEAST_S)
    for _ in range(round((MOST_S - LEAST_S) / LOOK_S)):
        if not any(map(_unread, (1, 2))):
            return
        sleep(LOOK_S)


def _unread(fd: int) -> int:
    """Return the number of bytes of a pipe that nobody has read; 0 if it is another kind of file."""
    count = bytearray(4)
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            fcntl.ioctl(fd, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)
