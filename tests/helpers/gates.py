"""Processes of a node that meet at gates, die or stop as they are told, and what the others then say."""

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time

import numpy as np

from psframe.cluster import node_gather
from psframe.cluster.gates import size
from tests.helpers.launcher import ROOT

FOR_EVER = 1 << 62  # looks

RANK = """
import json, mmap, sys, time
import numpy as np
from psframe.cluster.node_gather import Board
from psframe.cluster.gates import PeerLost, Rendezvous, size
fd, me, n = map(int, sys.argv[1:4])
memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
values, looks, clock = np.split(memory[-8 * (2 * n + 1) :].view(np.int64), (n, 2 * n))
meeting = Rendezvous(memory, fd, me, range(10, 10 + n))
meeting.configure(sys.argv[4], float(sys.argv[5]), n)
board = Board(memory[size(n) :], meeting)
def look(at_others=meeting.dead):
    looks[me] += 1
    while looks[me] > clock[0]:
        time.sleep(0.005)
    return at_others()
meeting.dead = look
print('"is here"', flush=True)
for line in sys.stdin:
    try:
        exec(line)
        answer = "passed"
    except PeerLost as lost:
        answer = [lost.ranks, lost.speaks, str(lost)]
    print(json.dumps(answer), flush=True)
"""


class Node:
    """Processes that do as they are told, line by line, and answer when they have.

    Who waits looks at the others four times a second, and counts its deadline by that. So these looks are the time that
    goes by: it stands still for a rank that has taken ``looks`` of them, until the test lets it go on.
    """

    def __init__(self, n, wait="auto", deadline_s=1800, looks=FOR_EVER):
        fd = os.memfd_create("gates")
        os.ftruncate(fd, size(n) + node_gather.size(n) + 8 * (2 * n + 1))
        words = np.frombuffer(mmap.mmap(fd, 0), np.int64)
        self.looks, self.clock = words[-n - 1 : -1], words[-1:]
        self.let(looks)
        self.ranks = []
        for me in range(n):
            command = [sys.executable, "-c", RANK, *map(str, (fd, me, n, wait, deadline_s))]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.ranks.append(subprocess.Popen(command, cwd=ROOT, pass_fds=[fd], text=True, **pipes))
        os.close(fd)
        assert self.answers(*range(n)) == ["is here"] * n

    def tell(self, command, *ranks):
        for rank in ranks:
            print(command, file=self.ranks[rank].stdin, flush=True)

    def let(self, looks=FOR_EVER):
        """Let ranks that wait look so often at the others."""
        self.clock[0] = looks

    def looked(self, times, *ranks):
        """Wait until each of the ranks waits, and has looked so often at the others."""
        until = time.monotonic() + 60
        for rank in ranks:
            waits = False
            while not waits:
                assert time.monotonic() < until, f"rank {rank} does not look at the others"
                waits = self.looks[rank] >= times
                assert not self.has_answered(rank, 0.01), self.answers(rank)

    def has_answered(self, rank, timeout_s):
        return bool(select.select([self.ranks[rank].stdout], [], [], timeout_s)[0])

    def answers(self, *ranks):
        return [json.loads(self.ranks[r].stdout.readline()) if self.has_answered(r, 60) else None for r in ranks]

    def signal(self, number, *ranks):
        for rank in ranks:
            self.ranks[rank].send_signal(number)
            if number == signal.SIGKILL:
                self.ranks[rank].wait(60)


def are_told(answers, ranks, *words):
    """Check that all who are left end, and that one of them knows whom they lost and is to speak."""
    ((lost, _, text),) = (answer for answer in answers if answer[1])
    assert lost == ranks
    assert all(word in text for word in [*words, *map(str, ranks)]), text
