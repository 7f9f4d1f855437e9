"""Configs and collectives that tests of commands begin with; on a busy machine any rank may be late for seconds."""

TINY = """\
model: tests.helpers.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 60}
train: {epochs: 2, batch_size: 8}
optimizer: {lr: 0.05}
fault: {late_s: 0}
"""

#: a collective of a user's own, that fails in a way
BROKEN = """\
import os, time
from psframe.collectives.buffer import Buffer

class Broken(Buffer):
    calls = 0
    def broadcast(self, params):
        self.calls += 1
        if self.calls == 4:
            self.fail()
        super().broadcast(params)

class Raises(Broken):
    def fail(self):
        if self._comm.rank == self._comm.size - 1:
            raise RuntimeError("a defect")

class Dies(Broken):
    def fail(self):
        if self._comm.rank == 1:
            os.kill(os.getpid(), 9)

class Slow(Buffer):
    def broadcast(self, params):
        print("slow", flush=True)
        time.sleep(0.1)
        super().broadcast(params)
"""
