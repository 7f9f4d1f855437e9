# cython: language_level=3, boundscheck=False, wraparound=False
"""Flight recorder of a rank (:class:`Ring`): its open phases and its last events, in memory; see ``_flight.h``."""

from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

cdef extern from "_flight.h" nogil:
    enum: PSF_PID, PSF_RANK, PSF_STATE, PSF_EVENTS, PSF_DEPTH, PSF_STEP, PSF_EPOCH, PSF_SPACE, PSF_WRITES
    enum: PSF_FAULTS
    enum: PSF_FRAMES, PSF_DEEPEST, PSF_FRAME, PSF_RING, PSF_KEPT, PSF_EVENT, PSF_WORDS
    int64_t psf_now()
    void psf_put(int64_t* words, int word, int64_t value)
    void psf_event(int64_t* words, int64_t kind, int64_t nested, int64_t a, int64_t b, int64_t began, int64_t ended)
    int64_t psf_enter(int64_t* words, int64_t kind, int64_t a, int64_t b)
    void psf_leave(int64_t* words, int64_t depth)
    void psf_faults(int64_t* words)

PID, RANK, STATE, EVENTS, DEPTH, STEP, EPOCH = PSF_PID, PSF_RANK, PSF_STATE, PSF_EVENTS, PSF_DEPTH, PSF_STEP, PSF_EPOCH
SPACE, WRITES, FAULTS = PSF_SPACE, PSF_WRITES, PSF_FAULTS
FRAMES, DEEPEST, FRAME, RING, KEPT, EVENT = PSF_FRAMES, PSF_DEEPEST, PSF_FRAME, PSF_RING, PSF_KEPT, PSF_EVENT
N_BYTES = PSF_WORDS * 8


cdef class Ring:
    """Phases and events of this process, in memory of its own until :meth:`move`.

    Each call takes less than 0.1 microseconds, and allocates nothing. Those of several threads must hold the GIL.
    """
    cdef public bint silent  # True: phases and events are not noted, for measurements
    cdef int64_t own[PSF_WORDS]
    cdef int64_t* words
    cdef unsigned char[::1] memory

    def __cinit__(self):
        self.words = self.own  # zeroed by Cython

    def move(self, unsigned char[::1] memory not None):
        """Go on in ``memory``, uint8 (N_BYTES,), 8-byte aligned, with what has been noted so far."""
        if memory.shape[0] < PSF_WORDS * 8 or <uintptr_t>&memory[0] % 8:
            raise ValueError(f"a ring needs {PSF_WORDS * 8} aligned bytes, got {memory.shape[0]}")
        memcpy(&memory[0], self.words, PSF_WORDS * 8)
        self.memory, self.words = memory, <int64_t*>&memory[0]

    def enter(self, int64_t kind, int64_t a=0, int64_t b=0):
        """Open a phase; return the number of those open before, for :meth:`leave`."""
        return 0 if self.silent else psf_enter(self.words, kind, a, b)

    def leave(self, int64_t depth):
        """Close every phase but the first ``depth``; each becomes an event."""
        if not self.silent:
            psf_leave(self.words, depth)

    def note(self, int64_t kind, int64_t a=0, int64_t b=0):
        """Add an event without duration."""
        cdef int64_t now = psf_now()
        if not self.silent:
            psf_event(self.words, kind, self.words[PSF_DEPTH], a, b, now, now)

    def step(self, int64_t epoch, int64_t step):
        """Note the step of the run, and its epoch, that begin, and many page faults since the last one."""
        if not self.silent:
            psf_faults(self.words)
        psf_put(self.words, PSF_EPOCH, epoch)
        psf_put(self.words, PSF_STEP, step)

    def put(self, int word, int64_t value):
        """Write a word of the header."""
        if not 0 <= word < PSF_FRAMES:
            raise IndexError(word)
        psf_put(self.words, word, value)

    @property
    def place(self):
        """Rank, epoch and step of this process, as they were put here; 0 for what was not."""
        return self.words[PSF_RANK], self.words[PSF_EPOCH], self.words[PSF_STEP]

    @property
    def depth(self):
        """Number of open phases."""
        return self.words[PSF_DEPTH]
