# cython: language_level=3, boundscheck=False, wraparound=False
"""Gates and counters of a node's ranks in shared memory (:class:`Gates`); see ``_sync.h``."""

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
    """Return the size of the gates of ``n_ranks`` ranks, in bytes."""
    return sizeof(psf_control) + n_ranks * sizeof(psf_rank)


def is_locked(int fd, long index):
    """Return True if another process holds a lock on byte ``index`` of an open file."""
    cdef int locked = psf_is_locked(fd, index)
    if locked < 0:
        raise OSError(errno, os.strerror(errno))
    return bool(locked)


cdef class Gates:
    """One rank's side of the gates in a shared mapping, zeroed on creation.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least :func:`n_bytes`, page-aligned.
    n_ranks, me : int
        Number of the node's ranks, and this rank's number among them.
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
        """Turn to the next passage of a gate; arrive and wait as requested. Return False if the wait timed out."""
        cdef bint is_open = True
        self.passage[self._checked(gate)] += 1
        with nogil:
            if arrives:
                psf_arrive(self.control, self.me, gate, parties, self.passage[gate])
            if waits:
                is_open = psf_wait(&self.control.gate[gate], self.passage[gate], self.spins, timeout_s)
        return is_open

    def begin(self, int gate):
        """Turn to the next passage of a gate. Every rank of the node must call, for each passage."""
        self.passage[self._checked(gate)] += 1

    def arrive(self, int gate, uint32_t parties):
        """Arrive at the current passage: the last of the ``parties`` opens it."""
        self._checked(gate)
        with nogil:
            psf_arrive(self.control, self.me, gate, parties, self.passage[gate])

    def wait(self, int gate, double timeout_s):
        """Wait until the current passage is open; return False after ``timeout_s`` without that."""
        cdef bint is_open
        self._checked(gate)
        with nogil:
            is_open = psf_wait(&self.control.gate[gate], self.passage[gate], self.spins, timeout_s)
        return is_open

    def tell(self):
        """Return True to the first rank of the node that calls, and False to all others forever."""
        return bool(psf_tell(self.control))

    def is_told(self):
        """Return True if a rank has called :meth:`tell`."""
        return bool(psf_is_told(self.control))

    def object(self, int gate):
        """Signal a problem to all ranks at a gate's next passage; call this before this rank arrives there."""
        psf_object(self.control, self._checked(gate), self.passage[gate] + 1)

    def is_objected(self, int gate):
        """Return True if a rank has objected to the current passage; ask before any rank can arrive at the next one."""
        return bool(psf_is_objected(self.control, self._checked(gate), self.passage[gate]))

    def missing(self, int gate):
        """Return the ranks of the node that have not arrived at the current passage, parties of it or not."""
        self._checked(gate)
        return [rank for rank in range(self.n_ranks)
                if <int>(psf_last(self.control, rank, gate) - self.passage[gate]) < 0]


cdef class Counters:
    """Counters that the ranks of a node increase, wait for, and lock, in a shared mapping, zeroed on creation.

    They have 32 bits and wrap: only differences are meaningful.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least ``n_counters * Counters.EACH`` bytes, page-aligned.
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
        """Return the value of a counter."""
        return psf_load(self._at(number))

    def add(self, int number, uint32_t n=1):
        """Add ``n`` and wake the waiting ranks; return the previous value."""
        return psf_count(self._at(number), n)

    def wait(self, int number, uint32_t value, double timeout_s):
        """Wait until a counter has reached ``value``; return False after ``timeout_s`` without that."""
        cdef psf_gate* counter = self._at(number)
        cdef bint reached
        with nogil:
            reached = psf_wait(counter, value, self.spins, timeout_s)
        return reached

    def lock(self, int number, double timeout_s):
        """Acquire a counter's lock; return False after ``timeout_s`` without it."""
        cdef psf_gate* counter = self._at(number)
        cdef bint held
        with nogil:
            held = psf_lock(counter, timeout_s)
        return held

    def unlock(self, int number):
        """Release the lock."""
        psf_unlock(self._at(number))


cdef class Front:
    """Number of steps that the furthest rank of a node has begun, and a flag against more, in a shared mapping.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least 4 bytes, 4-byte aligned, zeroed on creation.
    """
    cdef void* front
    cdef unsigned char[::1] memory

    def __init__(self, unsigned char[::1] memory):
        if memory.shape[0] < 4 or <uintptr_t>&memory[0] % 4:
            raise ValueError("a front needs 4 aligned bytes")
        self.memory = memory
        self.front = &memory[0]

    def may(self, uint32_t step):
        """Begin a step, counted from 0; return True if that is allowed: always, until :meth:`close`."""
        return bool(psf_may_begin(self.front, step))

    def begun(self):
        """Return the number of steps begun."""
        return psf_begun(self.front)

    def close(self):
        """Forbid the steps that no rank has begun."""
        psf_close(self.front)

    def reopen(self):
        """Count from 0 again. No rank may use it meanwhile."""
        psf_reopen(self.front)
