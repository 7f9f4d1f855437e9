# cython: language_level=3, boundscheck=False, wraparound=False
"""Gates at which the ranks of a node wait for each other (see ``_sync.h``)."""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uintptr_t

import os

cdef extern from "_sync.h" nogil:
    enum: PSF_GATES
    ctypedef struct psf_gate:
        pass
    ctypedef struct psf_rank:
        pass
    ctypedef struct psf_control:
        psf_gate* gate
        psf_rank* rank
    void psf_arrive(psf_control* control, int me, int number, uint32_t parties, uint32_t passage)
    bint psf_wait(psf_gate* gate, uint32_t passage, long spins, double timeout_s)
    bint psf_tell(psf_control* control)
    uint32_t psf_load(psf_gate* counter)
    uint32_t psf_count(psf_gate* counter, uint32_t n)
    int psf_is_locked(int fd, long index)
    bint psf_lock(psf_gate* counter, double timeout_s)
    void psf_unlock(psf_gate* counter)
    bint psf_may_begin "psf_may"(void* front, uint32_t step)
    uint32_t psf_begun(const void* front)
    void psf_close(void* front)

cdef extern from *:
    """
    static int psf_is_told(psf_control *control) {
        return atomic_load_explicit(&control->told, memory_order_seq_cst) != 0;
    }
    static void psf_object(psf_control *control, int number, uint32_t passage) {
        atomic_store_explicit(&control->objected[number], passage, memory_order_relaxed);
    }
    static int psf_is_objected(psf_control *control, int number, uint32_t passage) {
        return atomic_load_explicit(&control->objected[number], memory_order_relaxed) == passage;
    }
    static void psf_reopen(void *front) {
        atomic_store_explicit((_Atomic uint32_t *)front, 0, memory_order_seq_cst);
    }
    static uint32_t psf_last(psf_control *control, int rank, int number) {
        return atomic_load_explicit(&control->rank[rank].passage[number], memory_order_relaxed);
    }
    """
    bint psf_is_told(psf_control* control) nogil
    void psf_object(psf_control* control, int number, uint32_t passage) nogil
    bint psf_is_objected(psf_control* control, int number, uint32_t passage) nogil
    uint32_t psf_last(psf_control* control, int rank, int number) nogil
    void psf_reopen(void* front) nogil


def n_bytes(int n_ranks):
    """Return the bytes of the gates of ``n_ranks`` ranks."""
    return sizeof(psf_control) + n_ranks * sizeof(psf_rank)


def is_locked(int fd, long index):
    """Whether another process holds a lock on byte ``index`` of an open file."""
    cdef int locked = psf_is_locked(fd, index)
    if locked < 0:
        raise OSError(errno, os.strerror(errno))
    return bool(locked)


cdef class Gates:
    """One rank's side of the gates in a shared mapping, zeroed when it was new.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least :func:`n_bytes`, from the first byte of a page.
    n_ranks, me : int
        Ranks of the node, and this one's number among them.
    """
    cdef psf_control* control
    cdef unsigned char[::1] memory
    cdef uint32_t[PSF_GATES] passage
    cdef readonly int n_ranks, me
    cdef public long spins

    def __init__(self, unsigned char[::1] memory, int n_ranks, int me):
        if memory.shape[0] < n_bytes(n_ranks) or <uintptr_t>&memory[0] % 128 or not 0 <= me < n_ranks:
            raise ValueError("gates need aligned memory for every rank")
        self.memory, self.n_ranks, self.me, self.spins = memory, n_ranks, me, 0
        self.control = <psf_control*>&memory[0]

    cdef int _checked(self, int gate) except -1:
        if not 0 <= gate < PSF_GATES:
            raise IndexError(gate)
        return gate

    def meet(self, int gate, uint32_t parties, bint arrives, bint waits, double timeout_s):
        """Turn to the next passage of a gate, arrive, and wait; return whether it is open, or is not waited for."""
        cdef bint is_open = True
        self.passage[self._checked(gate)] += 1
        with nogil:
            if arrives:
                psf_arrive(self.control, self.me, gate, parties, self.passage[gate])
            if waits:
                is_open = psf_wait(&self.control.gate[gate], self.passage[gate], self.spins, timeout_s)
        return is_open

    def begin(self, int gate):
        """Turn to the next passage of a gate; every rank of the node must, for each passage."""
        self.passage[self._checked(gate)] += 1

    def arrive(self, int gate, uint32_t parties):
        """Arrive at this passage: the last of the ``parties`` opens it."""
        self._checked(gate)
        with nogil:
            psf_arrive(self.control, self.me, gate, parties, self.passage[gate])

    def wait(self, int gate, double timeout_s):
        """Wait until this passage is open; return whether it is, after at most ``timeout_s``."""
        cdef bint is_open
        self._checked(gate)
        with nogil:
            is_open = psf_wait(&self.control.gate[gate], self.passage[gate], self.spins, timeout_s)
        return is_open

    def tell(self):
        """Return True to the first rank of the node that calls, and False to all others, for ever."""
        return bool(psf_tell(self.control))

    def is_told(self):
        """Whether some rank has called :meth:`tell`."""
        return bool(psf_is_told(self.control))

    def object(self, int gate):
        """Let all who pass a gate next know that something is wrong; to be called before this rank arrives there."""
        psf_object(self.control, self._checked(gate), self.passage[gate] + 1)

    def is_objected(self, int gate):
        """Whether some rank has objected to this passage; to be asked before the next one may be arrived at."""
        return bool(psf_is_objected(self.control, self._checked(gate), self.passage[gate]))

    def missing(self, int gate):
        """Return the ranks of the node that have not arrived at this passage, if they are to."""
        self._checked(gate)
        return [rank for rank in range(self.n_ranks)
                if <int>(psf_last(self.control, rank, gate) - self.passage[gate]) < 0]


cdef class Counters:
    """Numbers that the ranks of a node count up, wait for, and lock, in a shared mapping, zeroed when it was new.

    They are 32 bits and wrap: only differences mean something.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least ``n_counters * Counters.EACH`` bytes, from the first byte of a page.
    """
    cdef psf_gate* counter
    cdef unsigned char[::1] memory
    cdef readonly int n
    cdef public long spins

    EACH = sizeof(psf_gate)

    def __init__(self, unsigned char[::1] memory, int n_counters):
        if memory.shape[0] < n_counters * <Py_ssize_t>sizeof(psf_gate) or <uintptr_t>&memory[0] % 128:
            raise ValueError("counters need aligned memory")
        self.memory, self.n, self.spins = memory, n_counters, 0
        self.counter = <psf_gate*>&memory[0]

    cdef psf_gate* _at(self, int number) except NULL:
        if not 0 <= number < self.n:
            raise IndexError(number)
        return &self.counter[number]

    def load(self, int number):
        """Return what a counter stands at."""
        return psf_load(self._at(number))

    def add(self, int number, uint32_t n=1):
        """Count up by ``n`` and wake who waits; return what the counter stood at."""
        return psf_count(self._at(number), n)

    def wait(self, int number, uint32_t value, double timeout_s):
        """Wait until a counter has come to ``value``; return whether it has, after at most ``timeout_s``."""
        cdef psf_gate* counter = self._at(number)
        cdef bint reached
        with nogil:
            reached = psf_wait(counter, value, self.spins, timeout_s)
        return reached

    def lock(self, int number, double timeout_s):
        """Take a counter's lock; return whether it was had, after at most ``timeout_s``."""
        cdef psf_gate* counter = self._at(number)
        cdef bint held
        with nogil:
            held = psf_lock(counter, timeout_s)
        return held

    def unlock(self, int number):
        """Give the lock back."""
        psf_unlock(self._at(number))


cdef class Front:
    """How many steps the furthest rank of a node has begun, in a shared mapping, and whether any more may be.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least 4 bytes, aligned to as many; zeroed when it was new.
    """
    cdef void* front
    cdef unsigned char[::1] memory

    def __init__(self, unsigned char[::1] memory):
        if memory.shape[0] < 4 or <uintptr_t>&memory[0] % 4:
            raise ValueError("a front needs 4 aligned bytes")
        self.memory = memory
        self.front = &memory[0]

    def may(self, uint32_t step):
        """Begin a step, counted from 0; return whether that is allowed: always, until :meth:`close`."""
        return bool(psf_may_begin(self.front, step))

    def begun(self):
        """Return how many steps have been begun."""
        return psf_begun(self.front)

    def close(self):
        """Let nobody begin a step that nobody has begun."""
        psf_close(self.front)

    def reopen(self):
        """Count from 0 again, while no rank looks."""
        psf_reopen(self.front)
