"""Arrays whose owners go in odd orders: ``python -m tests.stress.sanitizers.odd_orders ROUNDS``, plain or watched.

Every array holds numbers of its own until its last view is gone: memory that went back too early, or was given out
twice, shows in them where valgrind or a sanitizer does not look.
"""

import gc
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from psframe import compiled
from psframe.memory import empty

MIB = 1 << 20
POLICIES = ("bind", "preferred", "interleave")
SIZES = (0, 1, 63, 4095, 4096, 4097, 100_000, MIB)

Owner = Callable[[], Any]


class Held:
    """A view of an array, whose owner only that view keeps alive."""

    def __init__(self, memory: np.ndarray, mark: int, draw: random.Random):
        memory[:] = mark
        begin = draw.randrange(len(memory) + 1)
        self.mark = mark
        self.view: Any = draw.choice([lambda m: m[begin:], lambda m: m[::-1][: len(m) - begin], memoryview])(memory)

    def check(self) -> None:
        assert (np.asarray(self.view) == self.mark).all(), "memory was given to someone else"


def owners(draw: random.Random, has_memkind: bool) -> list[Owner]:
    """Return what makes a block or an array of a size drawn at random, each by another way."""
    size = lambda: draw.choice(SIZES)  # noqa: E731
    found: list[Owner] = [
        lambda: np.frombuffer(compiled.numa.Block(size()), np.uint8),
        lambda: np.frombuffer(compiled.numa.Block(size(), 0, 2 * MIB), np.uint8),
        lambda: np.frombuffer(compiled.numa.Block(size(), 0, 64), np.uint8),
        lambda: empty(size(), "uint8", draw.choice(("default", "interleave"))),
        lambda: empty(size(), "uint8", {"name": "default", "huge_pages": "transparent"}),
    ]
    if has_memkind:
        found.append(lambda: np.frombuffer(compiled.memkind.HbwBlock(size(), draw.choice(POLICIES)), np.uint8))
        found.append(lambda: empty(size(), "uint8", {"name": "hbw", "policy": draw.choice(POLICIES)}))
    return found


def let_go(held: list[Held], draw: random.Random) -> None:
    """Drop some, checked before: the first, the last, any, many in another thread, or in a circle for the collector."""
    way = draw.randrange(5)
    if way < 3:
        last = held.pop((0, -1, draw.randrange(len(held)))[way])
        last.check()
        return
    going = [held.pop(draw.randrange(len(held))) for _ in range(min(5, len(held)))]
    for one in going:
        one.check()
    if way == 3:
        thread = threading.Thread(target=going.clear)
        thread.start()
        thread.join()
    else:
        for one, other in zip(going, [*going[1:], going[0]], strict=True):
            one.next = other  # type: ignore[attr-defined]
        del going, one, other
        gc.collect()


def refusals(has_memkind: bool) -> None:
    """What gives no memory leaves none behind, and what was never made gives none back."""
    kinds = [compiled.numa.Block, *[lambda n: compiled.memkind.HbwBlock(n, "bind")] * has_memkind]
    for make in kinds:
        for n_bytes in (sys.maxsize, 1 << 60):
            try:
                make(n_bytes)
            except OSError:
                continue
            raise AssertionError(f"{n_bytes} bytes were had")
    block = compiled.numa.Block(5)
    try:
        block.__init__(7)
    except RuntimeError:
        assert len(memoryview(block)) == 5
    compiled.numa.Block.__new__(compiled.numa.Block)
    try:
        compiled.memkind.HbwBlock(5, "nowhere")
    except (KeyError, OSError):
        pass


def main(rounds: int) -> None:
    try:
        compiled.memkind.load()
        has_memkind = True
    except OSError:
        has_memkind = False
    draw = random.Random(1)
    makers, held = owners(draw, has_memkind), []
    for make in makers:
        make()  # what is made once is made now
    refusals(has_memkind)
    before = mapped()
    for number in range(rounds):
        held.append(Held(draw.choice(makers)(), number % 251, draw))
        while len(held) > 20 or (held and draw.random() < 0.3):
            let_go(held, draw)
        if number % 50 == 0:
            refusals(has_memkind)
    while held:
        let_go(held, draw)
    if "ASAN_OPTIONS" not in os.environ:  # it maps memory for itself, the more the longer a process runs
        assert mapped() <= before + 40, (before, mapped())  # memkind keeps some of its own
    print(f"{rounds} arrays" + ("" if has_memkind else ", without memkind"))


def mapped() -> int:
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)


if __name__ == "__main__":
    main(int(sys.argv[1]))
