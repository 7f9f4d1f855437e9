"""Moves of tensors between tiers: what goes when, within its room, and never in the way."""

import numpy as np
import pytest

from psframe import compiled
from psframe.memory.mover import CHUNK_PAGES, NO_MOVER, Mover, Traveller
from psframe.memory.tier_options import LEAD, Window
from psframe.memory.topology import read

PAGE = compiled.numa.PAGE_BYTES
N = 10  # layers


def traveller(name, first, kind, n_pages=CHUNK_PAGES):
    memory = np.frombuffer(compiled.numa.Block(n_pages * PAGE), np.uint8)
    return Traveller(name, [memory], (1,), (0,), kind == "out", Window(first, first + 1, N))


class Kernel:
    """Keeps what was moved, in order; moves all pages, but for those to a node that is full."""

    def __init__(self, travellers, full=None):
        self.names = {part.ctypes.data: t.name for t in travellers for part in t.chunks}
        self.moves, self.full = [], full

    def __call__(self, memory, nodes):
        (node,) = nodes
        self.moves.append((self.names[memory.ctypes.data], node))
        return 0 if node == self.full else len(memory) // PAGE


def stepped(mover, phases=range(2 * N)):
    for phase in phases:
        mover.reach(phase)
        mover.drain()


def test_room_goes_from_the_early_tensor_to_the_late_one_and_back():
    early, late = traveller("early", 0, "out"), traveller("late", 4, "in")
    kernel = Kernel([early, late])
    mover = Mover([late, early], move=kernel)
    assert kernel.moves == [("late", 0), ("early", 1)]  # to where they rest
    with mover:
        for step in (1, 2):
            kernel.moves.clear()
            stepped(mover, range(5))
            assert kernel.moves == [("early", 0), ("late", 1)], step
            stepped(mover, range(5, 2 * N))
            mover.rest()
            assert kernel.moves == [("early", 0), ("late", 1), ("late", 0), ("early", 1)]
    assert mover.take() == (8 * CHUNK_PAGES, 0)
    assert mover.take() == (0, 0)


def test_due_moves_are_within_the_windows():
    early, late = traveller("early", 1, "out"), traveller("late", 5, "in")
    mover = Mover([early, late], move=Kernel([early, late]))
    due = {phase: [(t.name, to_fast) for t, to_fast in moves] for phase, moves in enumerate(mover.due) if moves}
    assert due == {
        3: [("early", False), ("late", True)],  # behind the layer that reads it; LEAD before the layer that writes it
        2 * N - 1 - 2 - LEAD: [("late", False), ("early", True)],
    }


def test_tensor_comes_only_to_room_that_another_has_left():
    early, late = traveller("early", 0, "out", CHUNK_PAGES), traveller("late", 4, "in", 3 * CHUNK_PAGES)
    kernel = Kernel([early, late])
    mover = Mover([early, late], move=kernel)
    kernel.full = 0  # nothing leaves
    kernel.moves.clear()
    (room,) = mover.free.values()
    assert room == 2 * CHUNK_PAGES  # the late one is larger, and the early one is away then
    with mover:
        stepped(mover)
        mover.rest()
    assert list(mover.free.values()) == [0]
    assert mover.n_moved == room
    assert [name for name, node in kernel.moves if node == 1] == ["late"] * 2


def test_each_tier_has_room_of_its_own():
    """What leaves ordinary memory for slower one makes no room in fast memory."""
    stuck, late = traveller("stuck", 0, "out"), traveller("late", 4, "in")
    below = traveller("below", 0, "out")
    below.fast, below.slow = (0,), (2,)
    kernel = Kernel([stuck, late, below])
    mover = Mover([stuck, late, below], move=kernel)
    assert mover.free == {(1,): 0, (0,): 0}
    mover.move = lambda memory, nodes: 0 if kernel.names[memory.ctypes.data] == "stuck" else kernel(memory, nodes)
    kernel.moves.clear()
    with mover:
        stepped(mover, range(8))
    assert kernel.moves == [("below", 2)]
    assert mover.free == {(1,): 0, (0,): CHUNK_PAGES}


def test_pages_that_come_behind_their_use_are_late():
    early, late = traveller("early", 0, "out"), traveller("late", 4, "in")
    mover = Mover([early, late], move=Kernel([early, late]))
    for phase in range(4 + 1):  # nothing moves yet, and the layer that writes the late one has begun
        mover.reach(phase)
    with mover:
        mover.drain()
        assert mover.take() == (2 * CHUNK_PAGES, CHUNK_PAGES)
        stepped(mover, range(5, 2 * N))
        stepped(mover)
        mover.rest()
    assert mover.take() == (6 * CHUNK_PAGES, 0)


def test_move_that_is_no_longer_wanted_is_given_up():
    early = traveller("early", 0, "out", 4 * CHUNK_PAGES)
    mover = Mover([early], move=Kernel([early]))
    seen = []

    def move(memory, nodes):
        seen.extend(nodes)
        if len(seen) == 1:  # while the first chunk leaves, it is wanted back
            mover.reach(2 * N - 1)
        return len(memory) // PAGE

    mover.move = move
    with mover:
        mover.reach(3)
        mover.drain()
        mover.rest()
    assert seen == [0, 1]  # one chunk left, and came back


def test_every_page_is_where_it_rests_between_steps():
    node = read("/").memory[0]
    early = traveller("early", 0, "out", 3)
    early.memory[0][:] = 7
    early.fast = early.slow = (node,)
    mover = Mover([early])  # by the kernel, on a machine that may have one node
    with mover:
        for _ in range(3):
            stepped(mover)
        mover.rest()
    assert (early.memory[0] == 7).all()
    assert compiled.numa.where(early.memory[0]) == {node: 3}
    assert early.n_fast == [3]


def test_tensors_go_to_rest_from_the_middle_of_a_step():
    early, late = traveller("early", 0, "out"), traveller("late", 4, "in")
    kernel = Kernel([early, late])
    with Mover([early, late], move=kernel) as mover:
        stepped(mover, range(5))
        kernel.moves.clear()
        mover.rest()
    assert kernel.moves == [("late", 0), ("early", 1)]


def test_failure_of_the_thread_is_raised_where_its_moves_are_waited_for():
    def broken(memory, nodes):
        raise RuntimeError("broken")

    early = traveller("early", 0, "out")
    mover = Mover([early], move=Kernel([early]))
    mover.move = broken
    with mover:
        stepped(mover)
        with pytest.raises(RuntimeError, match="broken"):
            mover.rest()


def test_tensors_stay_where_they_are_once_the_kernel_refuses_to_move_them():
    def refused(memory, nodes):
        raise PermissionError("refused")

    early = traveller("early", 0, "out")
    mover = Mover([early], move=Kernel([early]))
    mover.move = refused
    with mover:
        for _ in range(2):
            stepped(mover)
            mover.rest()
    assert mover.take() == (0, 0)


def test_page_that_was_never_touched_and_a_node_there_is_not():
    memory = np.frombuffer(compiled.numa.Block(4 * PAGE), np.uint8)
    node = read("/").memory[0]
    assert compiled.numa.move(memory, [node]) == 0
    memory[0] = 1
    assert compiled.numa.move(memory, [node]) == 1
    assert compiled.numa.move(memory, [4000, node]) == 1  # it lies there already
    with pytest.raises(OSError, match=r"No such device|Invalid"):
        compiled.numa.move(memory, [4000])
    assert compiled.numa.move(memory[:0], [node]) == 0


def test_without_moves_there_is_nothing_to_wait_for():
    with NO_MOVER as mover:
        mover.rest()
    assert mover.take() is None
