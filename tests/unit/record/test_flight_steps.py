"""What a ring notes of a step: its place, page faults if they are many, and nothing where it is silent."""

import mmap

import numpy as np

from psframe import compiled
from psframe.record import flight


def events_of(ring):
    """Return the events that a ring has noted, by moving it to memory that can be read."""
    memory = np.zeros(flight.N_BYTES, np.uint8)
    ring.move(memory)
    return flight.read(memory.data, compiled.flight.KEPT).events


def test_step_notes_page_faults_if_they_are_many():
    ring, size = compiled.flight.Ring(), 512 * mmap.PAGESIZE
    ring.step(1, 1)
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    for step in (2, 3):
        ring.step(1, step)
    (event,) = events_of(ring)
    assert event[0] == flight.FAULTS
    assert 512 <= event[2] < 1024


def test_silent_ring_notes_nothing_but_its_place():
    ring = compiled.flight.Ring()
    ring.silent = True
    assert ring.enter(flight.STEP, 1) == 0
    ring.note(flight.STORE)
    ring.leave(0)
    ring.step(2, 7)
    assert (ring.place, ring.depth) == ((0, 2, 7), 0)
    assert not events_of(ring)
