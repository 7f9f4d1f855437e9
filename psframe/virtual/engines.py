"""Arrivals of messages that wait for each other, by psframe's network (:func:`own`) and by SimGrid (:func:`simgrid`).

Both read the same messages (:class:`psframe.virtual.between.Message`), and know the same of the nodes' links: the bytes
a second that each carries each way, and the latency. So what differs is how the engines share links.
"""

import heapq
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from psframe.errors import UserError
from psframe.virtual.between import Between, Message
from psframe.virtual.network import Network

SCRIPT = Path(__file__).with_name("by_simgrid.py")
VARIABLE = "PSFRAME_SIMGRID"


def own(messages: Sequence[Message], bytes_per_s: float, latency_s: float) -> list[float]:
    """Return when each message arrives, in seconds, by :class:`psframe.virtual.network.Network`."""
    network = Network(bytes_per_s, latency_s)
    following, streams = defaultdict[int, list[int]](list), dict[int, list[int]]()
    for number, message in enumerate(messages):
        if message.in_stream:
            streams[number] = streams[message.after]
            streams[number].append(number)
        else:
            streams[number] = [number]
            following[message.after].append(number)
    arrived_s = [0.0] * len(messages)
    starts = [(messages[number].delay_s, number) for number in following[-1]]
    heapq.heapify(starts)
    while starts or network.is_busy:
        if starts and starts[0][0] < network.next_s:
            at_s, number = heapq.heappop(starts)
            for of_stream in streams[number]:
                network.begin(of_stream, at_s, *messages[of_stream][2:5], stream=number)
            continue
        number, at_s = network.finish()
        arrived_s[number] = at_s
        for later in following[number]:
            heapq.heappush(starts, (at_s + messages[later].delay_s, later))
    return arrived_s


def simgrid(messages: Sequence[Message], bytes_per_s: float, latency_s: float) -> list[float]:
    """Return the same by SimGrid.

    Raises
    ------
    UserError
        If no Python here has SimGrid's module.
    """
    python = interpreter()
    if python is None:
        raise UserError(lacks())
    n_nodes = 1 + max(max(message.source, message.target) for message in messages)
    asked = json.dumps({"n_nodes": n_nodes, "bytes_per_s": bytes_per_s, "latency_s": latency_s, "messages": messages})
    ended = subprocess.run([python, "-I", SCRIPT], input=asked, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise UserError(
            f"SimGrid must time the messages, but its process ended with {ended.returncode}: "
            f"{ended.stderr.strip()[-300:]}; leave --simgrid out, or mend that"
        )
    arrived_s: list[float] = json.loads(ended.stdout)
    return arrived_s


def compared(between: Between) -> str:
    """Return a sentence on how far SimGrid's times of a simulation's messages are from those that it has had."""
    if not between.messages:
        return "no message has gone from node to node"
    ours, network = between.arrived_s, between.network
    theirs = simgrid(between.messages, network.bytes_per_s, network.latency_s)
    apart = [abs(a - b) / b for a, b in zip(ours, theirs, strict=True)]
    return (
        f"{len(ours):,} messages from node to node, the last after {max(ours):.6g} s, by SimGrid after "
        f"{max(theirs):.6g} s; none is more than {max(apart):.2%} apart"
    )


def interpreter() -> str | None:
    """Return a Python that has SimGrid's module: this one, the system's, or that of PSFRAME_SIMGRID; None if none."""
    named = os.environ.get(VARIABLE)
    among = [named] if named else [sys.executable, "/usr/bin/python3", shutil.which("python3")]
    return next((python for python in among if python and _has_simgrid(python)), None)


def lacks() -> str:
    """Return what to say where :func:`interpreter` is None."""
    named = os.environ.get(VARIABLE)
    got = f"got {VARIABLE}={named!r}, which has none" if named else "got none"
    return (
        f"--simgrid must find a Python with SimGrid's module, {got}; install python3-simgrid (Debian), or give its "
        f"interpreter in {VARIABLE}"
    )


@cache
def _has_simgrid(python: str) -> bool:
    looked = [python, "-I", "-c", "import importlib.util as u; exit(not u.find_spec('simgrid'))"]
    try:
        return subprocess.run(looked, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
