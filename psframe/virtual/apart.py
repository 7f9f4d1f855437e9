"""Calls in processes of their own (:func:`apart`), as many at a time as there are cores."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from psframe.errors import sentence

KILLED = "a simulation must come to its end, but its process was killed; if its memory was used up, give fewer ranks"
BROKEN = "a simulation must come to its end, but its process has ended by the error above; mend that"


def apart(bodies: Sequence[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the results of functions, plain values, each of a process of its own; ``{"error": ...}`` of a mistake.

    The sentence of a UserError is the mistake; other errors print their traceback. Ctrl-C ends all of them.
    """
    results = list[dict[str, Any]]()
    for first in range(0, len(bodies), n_cores()):
        begun = dict[int, int]()  # pipes, by child
        try:
            for body in bodies[first : first + n_cores()]:
                begun.update([_begun(body)])
            for pid, pipe in list(begun.items()):
                results.append(_answered(pid, pipe))
                del begun[pid]
        finally:
            for pid in begun:  # on Ctrl-C
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
    return results


def n_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _answered(pid: int, pipe: int) -> dict[str, Any]:
    """Return what a child has written to a pipe, once it has ended."""
    with os.fdopen(pipe, "rb") as told:
        answer = told.read()
    _, status = os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(answer) if answer else {"error": KILLED if os.WIFSIGNALED(status) else BROKEN}
    return found


def _begun(body: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """Call a function in a child; return its number, and a pipe that will have the result."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return pid, reads
    status = 1
    try:
        try:
            answer = body()
        except Exception as error:
            message = sentence(error)
            if not message:
                raise
            answer = {"error": message}
        with os.fdopen(writes, "wb") as told:
            told.write(json.dumps(answer).encode())
        status = 0
    except KeyboardInterrupt:
        pass  # which the parent has had, too
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
