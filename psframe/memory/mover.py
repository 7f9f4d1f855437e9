"""Thread that moves a rank's pages between tiers of memory in the course of a step (:class:`Mover`).

Nothing waits for a tensor to come: pages that have not come in time are used where they are. Who touches a page on its
way waits until the kernel has copied it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np

from psframe import compiled
from psframe.memory.tier_options import Window

CHUNK_PAGES = 512  # between two looks at whether a move is still wanted
NICENESS = 10  # of the thread: those that compute go first

Ended = Callable[[str, float], None]  #: takes the name and the beginning of a move
Nodes = tuple[int, ...]


@dataclass
class Traveller:
    """Tensor that changes its tier in a step.

    Attributes
    ----------
    name : str
    memory : sequence of ndarray
        Its pages, uint8 (n,), page-aligned.
    fast, slow : tuple of int
        NUMA nodes of both tiers, the nearest first.
    rests_fast : bool
        True if it is in the fast tier between steps.
    window : Window
    """

    name: str
    memory: Sequence[np.ndarray]
    fast: Nodes
    slow: Nodes
    rests_fast: bool
    window: Window
    chunks: list[np.ndarray] = field(init=False)
    n_fast: list[int] = field(init=False)  # pages of each chunk in the fast tier
    wants_fast: bool = field(init=False)

    def __post_init__(self) -> None:
        size = CHUNK_PAGES * compiled.numa.PAGE_BYTES
        self.chunks = [part[at : at + size] for part in self.memory for at in range(0, len(part), size)]
        self.n_fast = [0 for _ in self.chunks]
        self.wants_fast = self.rests_fast

    @property
    def needed(self) -> int:
        """Phase before which it must have come."""
        return self.window.backward if self.rests_fast else self.window.first

    @property
    def n_pages(self) -> int:
        return sum(map(pages_of, self.chunks))

    def is_fast_in(self, phase: int) -> bool:
        """Return True if it is to be in the fast tier in a phase."""
        return phase not in self.window.between if self.rests_fast else phase in self.window.within


def pages_of(memory: np.ndarray) -> int:
    """Return the number of pages that page-aligned memory has."""
    return -(-len(memory) // compiled.numa.PAGE_BYTES)


@dataclass(frozen=True)
class Order:
    """Move of a traveller to its fast or its slow tier, in a step."""

    traveller: Traveller
    to_fast: bool
    step: int


class Mover:
    """Moves of some tensors, carried out by a thread while it is entered as a context.

    A tensor comes only to pages that others of this rank have left, so the rank never has more of a tier than planned.

    Parameters
    ----------
    travellers : sequence of Traveller
        Of the same number of layers. They are brought to where they rest.
    ended : callable
    move : callable
        ``move(memory, nodes)`` returns the number of pages that lie on one of the nodes then.

    Attributes
    ----------
    n_moved, n_late : int
        Pages that have moved, and those of them that came when their use had begun.

    Raises
    ------
    OSError
        The kernel refuses to move pages.
    """

    def __init__(
        self,
        travellers: Sequence[Traveller],
        ended: Ended = lambda name, began: None,
        move: Callable[[np.ndarray, Nodes], int] = compiled.numa.move,
    ):
        self.travellers, self.ended, self.move = travellers, ended, move
        n_phases = travellers[0].window.n_phases
        #: what leaves and comes at the beginning of each phase: what leaves goes first, then what is needed first
        self.due = [self._due(phase) for phase in range(n_phases)]
        for traveller in travellers:
            self._settle(traveller)
        #: pages by tier that the plan leaves to travellers, and that none of them has
        self.free = {fast: self._spare(fast, n_phases) for fast in {t.fast for t in travellers}}
        self.phase, self.step = n_phases, 0
        self.n_moved = self.n_late = 0
        self.orders: SimpleQueue[Order | threading.Event | None] = SimpleQueue()
        self.failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._ends = False

    def _settle(self, traveller: Traveller) -> None:
        for number, chunk in enumerate(traveller.chunks):
            n_there = self.move(chunk, traveller.fast if traveller.rests_fast else traveller.slow)
            traveller.n_fast[number] = n_there if traveller.rests_fast else pages_of(chunk) - n_there

    def _spare(self, fast: Nodes, n_phases: int) -> int:
        own = [t for t in self.travellers if t.fast == fast]
        planned = max(sum(t.n_pages for t in own if t.is_fast_in(phase)) for phase in range(n_phases))
        return planned - sum(sum(t.n_fast) for t in own)

    def _due(self, phase: int) -> list[tuple[Traveller, bool]]:
        if not phase:  # as between steps
            return []
        changed = [t for t in self.travellers if t.is_fast_in(phase) != t.is_fast_in(phase - 1)]
        return [(t, t.is_fast_in(phase)) for t in sorted(changed, key=lambda t: (t.is_fast_in(phase), t.needed))]

    def reach(self, phase: int) -> None:
        """Note that a phase of a step begins: order what is due then, and before it if it has not been."""
        if phase < self.phase:
            self.phase, self.step = -1, self.step + 1
        while self.phase < phase:
            self.phase += 1
            for traveller, to_fast in self.due[self.phase]:
                self._order(traveller, to_fast)

    def _order(self, traveller: Traveller, to_fast: bool) -> None:
        traveller.wants_fast = to_fast
        self.orders.put(Order(traveller, to_fast, self.step))

    def rest(self) -> None:
        """Wait until each tensor is where it is between steps."""
        if not self._thread:
            return
        for traveller in sorted(self.travellers, key=lambda t: t.rests_fast):
            self._order(traveller, traveller.rests_fast)
        self.drain()
        if self.failure and not isinstance(self.failure, OSError):  # what the kernel refuses stays where it is
            raise self.failure

    def drain(self) -> None:
        """Wait until all orders are carried out, or given up."""
        done = threading.Event()
        self.orders.put(done)
        done.wait()

    def take(self) -> tuple[int, int]:
        """Return the pages moved and the late ones, and begin to count anew."""
        counts = self.n_moved, self.n_late
        self.n_moved = self.n_late = 0
        return counts

    def __enter__(self) -> "Mover":
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread
        self._ends = True
        self.orders.put(None)
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (order := self.orders.get()) is not None:
            if isinstance(order, threading.Event):
                order.set()
            elif not self.failure:
                try:
                    self._carry_out(order)
                except Exception as error:  # raised by rest()
                    self.failure = error

    def _carry_out(self, order: Order) -> None:
        traveller, began, before = order.traveller, perf_counter(), self.n_moved
        fast = traveller.fast
        for number, chunk in enumerate(traveller.chunks):
            if self._ends or traveller.wants_fast is not order.to_fast:
                break  # the next move is due
            n_pages, n_fast = pages_of(chunk), traveller.n_fast[number]
            if order.to_fast and n_pages - n_fast > self.free[fast]:
                break
            if n_fast == (n_pages if order.to_fast else 0):
                continue
            n_there = self.move(chunk, fast if order.to_fast else traveller.slow)
            traveller.n_fast[number] = n_there if order.to_fast else n_pages - n_there
            n_moved = abs(traveller.n_fast[number] - n_fast)
            self.free[fast] -= traveller.n_fast[number] - n_fast
            self.n_moved += n_moved
            is_late = (self.step, self.phase) >= (order.step, traveller.needed)
            self.n_late += n_moved * (order.to_fast and is_late)
        if self.n_moved > before:
            n_pages = self.n_moved - before
            self.ended(f"{traveller.name}: {n_pages} pages to {'fast' if order.to_fast else 'slow'} memory", began)


@dataclass(frozen=True)
class NoMover:
    """Absence of moves, in the place of a :class:`Mover`."""

    def __enter__(self) -> "NoMover":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def rest(self) -> None: ...

    def take(self) -> None: ...


NO_MOVER = NoMover()
