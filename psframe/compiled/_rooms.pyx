# cython: language_level=3, boundscheck=False, wraparound=False
"""Collectives of a group's ranks through shared memory (:class:`Rooms`, :class:`Move`); see ``_rooms.h``."""

from collections import deque

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

cdef extern from "_moves.h" nogil:
    enum: PSF_COPY, PSF_FOLDED, PSF_NOTHING, PSF_DONE, PSF_UNLIKE
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* lock, void* attributes)
    ctypedef struct psf_note:
        uint32_t kind, type, op, root
        uint64_t n_bytes, number, n_chunks
    ctypedef struct psf_part:
        char* at
        long n_bytes, of, begins "from"
    ctypedef struct psf_move:
        psf_note note
        psf_part* inward "in"
        psf_part* out
        int n_in, n_out, take, in_segments, is_uneven, is_chained, state, is_out, odd
        long sub, width, n_chunks, n_put, n_summed, n_taken
        uint64_t first
    ctypedef struct psf_rooms:
        pthread_mutex_t lock
        char* base
        long head_bytes, slot_bytes, room_bytes, spins
        int n, me, n_rooms, is_broken, n_here, here, is_last
        int* ranks_here
        psf_move* begun
        const char** rows
    long psf_head_bytes(int n)
    long psf_room_bytes(int n, long slot_bytes)
    psf_note* psf_notes(const psf_rooms* g, uint64_t chunk)
    int64_t* psf_lengths(const psf_rooms* g, uint64_t chunk, long rank)
    void psf_begin(psf_rooms* g, psf_move* m)
    void psf_rooms_poll(psf_rooms* g)
    void psf_stop(psf_rooms* g)
    int psf_run(psf_rooms* g, psf_move* m, double timeout_s)
    int psf_is_late(psf_rooms* g, int rank)
    void psf_arrive_at(psf_rooms* g, uint64_t chunk, int gate)
    int psf_passed(const psf_rooms* g, uint64_t chunk, int gate)
    char* psf_slot(const psf_rooms* g, uint64_t chunk, long rank)
    enum: PSF_PUT, PSF_SUMMED_GATE, PSF_ALL, PSF_TOTAL

NOTHING, COPY, FOLD = PSF_NOTHING, PSF_COPY, PSF_FOLDED
PUT, SUMMED, ALL, TOTAL = PSF_PUT, PSF_SUMMED_GATE, PSF_ALL, PSF_TOTAL


cdef class Move:
    """What this rank gives to a collective, and takes from it.

    Parameters
    ----------
    note : tuple of int
        Kind, type, operation, root and bytes: all ranks must have the same.
    width : int
        Bytes of a sub-slot: as many of each part go into a chunk.
    longest : int
        Bytes of the longest sub-slot's parts together, of all ranks or, if they are uneven, of this one.
    inward, out : list of (address, bytes, number, begin)
        Parts that go into the sub-slots of those numbers; parts that come from the slots of those ranks. Several that
        go one after the other have different begins, in bytes. The memory must stay until the collective is done.
    take : int
        NOTHING, COPY from each rank, or FOLD over all ranks by the note's type and operation.
    sub : int
        Number of the sub-slots that this rank takes from.
    in_segments : bool
        True if each rank folds a segment for all others.
    is_uneven : bool
        True if each rank alone knows how much it has for the others; their number of chunks is then agreed on.
    is_chained : bool
        True if each node folds on from the nodes before, and sends its sum to the next.
    """
    cdef psf_move m
    cdef readonly long longest, given_bytes

    def __init__(self, note, long width, long longest, inward, out, int take=PSF_NOTHING, long sub=0,
                 bint in_segments=False, bint is_uneven=False, bint is_chained=False):
        self.m.note.kind, self.m.note.type, self.m.note.op, self.m.note.root, self.m.note.n_bytes = note
        self.longest, self.given_bytes = longest, sum([part[1] for part in inward])
        self.m.width, self.m.take, self.m.sub = width, take, sub
        self.m.in_segments, self.m.is_uneven, self.m.is_chained = in_segments, is_uneven, is_chained
        self.m.inward, self.m.n_in = _parts(inward), len(inward)
        self.m.out, self.m.n_out = _parts(out), len(out)
        self.m.n_chunks = max(1, -(-longest // width))
        self.m.note.n_chunks = <uint64_t>self.m.n_chunks

    def __dealloc__(self):
        free(self.m.inward)
        free(self.m.out)

    @property
    def is_done(self):
        """True if this rank has given and taken everything."""
        return self.m.state == PSF_DONE

    @property
    def odd(self):
        """Rank whose note differs from this one's; -1 if none is known."""
        return self.m.odd if self.m.state == PSF_UNLIKE else -1

    @property
    def note(self):
        """Kind, type, operation, root, bytes, and how many collectives the group began before."""
        cdef psf_note n = self.m.note
        return n.kind, n.type, n.op, n.root, n.n_bytes, n.number

    @property
    def chunks(self):
        """The group's number of its first chunk, their number, and if that is agreed on; None until it has begun."""
        known = not self.m.is_uneven or self.m.n_summed > 0
        return (self.m.first, self.m.n_chunks, known) if self.m.n_put else None

    @property
    def is_chained(self):
        return bool(self.m.is_chained)

    @property
    def is_uneven(self):
        return bool(self.m.is_uneven)

    @property
    def width(self):
        return self.m.width


cdef psf_part* _parts(parts) except? NULL:
    cdef psf_part* made = <psf_part*>calloc(max(1, len(parts)), sizeof(psf_part))
    cdef int i
    if made == NULL:
        raise MemoryError
    for i, (at, n_bytes, of, begin) in enumerate(parts):
        made[i].at, made[i].n_bytes, made[i].of, made[i].begins = <char*><uintptr_t>at, n_bytes, of, begin
    return made


cdef class Rooms:
    """Ring of rooms through which the chunks of a group's collectives go, in a shared mapping, zeroed on creation.

    Parameters
    ----------
    memory : uint8, shape (n,)
        At least :meth:`n_bytes` bytes, page-aligned.
    n, me : int
        Ranks of the group, and the number of this one.
    ranks_here : sequence of int
        Ranks of the group on this node, ascending.
    n_rooms, slot_bytes : int
        How many rooms, and the bytes of a rank in each: a multiple of a page.
    spins : int
        Turns that a wait spins before it sleeps.
    """
    cdef psf_rooms g
    cdef unsigned char[::1] memory
    cdef object kept

    def __init__(self, unsigned char[::1] memory, int n, int me, ranks_here, int n_rooms, long slot_bytes, long spins):
        if memory.shape[0] < Rooms.n_bytes(n, n_rooms, slot_bytes) or <uintptr_t>&memory[0] % 128 or slot_bytes % 4096:
            raise ValueError("rooms need aligned memory for every rank")
        if not 0 <= me < n or n_rooms < 1:
            raise ValueError("rooms need a rank of the group")
        self.memory, self.kept = memory, deque()
        self.g.base, self.g.n, self.g.me = <char*>&memory[0], n, me
        self.g.n_rooms, self.g.slot_bytes, self.g.spins = n_rooms, slot_bytes, spins
        self.g.head_bytes, self.g.room_bytes = psf_head_bytes(n), psf_room_bytes(n, slot_bytes)
        self.g.rows = <const char**>calloc(n + 1, sizeof(char*))
        self.g.ranks_here = <int*>calloc(n, sizeof(int))
        self.g.n_here, self.g.here, self.g.is_last = len(ranks_here), ranks_here.index(me), max(ranks_here) == n - 1
        for number, rank in enumerate(ranks_here):
            self.g.ranks_here[<int>number] = rank
        if self.g.rows == NULL or self.g.ranks_here == NULL or pthread_mutex_init(&self.g.lock, NULL):
            raise MemoryError

    def __dealloc__(self):
        free(self.g.rows)
        free(self.g.ranks_here)

    @staticmethod
    def n_bytes(int n, int n_rooms, long slot_bytes):
        """Return the bytes of ``n_rooms`` rooms for ``n`` ranks."""
        return n_rooms * psf_room_bytes(n, slot_bytes)

    def begin(self, Move move):
        """Begin a collective after those before it, and do what can be done without a wait."""
        self.kept.append(move)
        with nogil:
            psf_begin(&self.g, &move.m)
        self._forget()

    def poll(self):
        """Do what can be done without a wait."""
        with nogil:
            psf_rooms_poll(&self.g)
        self._forget()

    def run(self, Move move, double timeout_s):
        """Go on until ``move`` is done; return False if nothing has come for ``timeout_s``."""
        cdef bint ended
        with nogil:
            ended = psf_run(&self.g, &move.m, timeout_s)
        self._forget()
        return ended

    def stop(self):
        """Let nothing go on any more: the memory of what has begun may be given back."""
        with nogil:
            psf_stop(&self.g)

    cdef _forget(self):
        # not what is done: another thread may be about to take it out of the list, and reads it for that
        while self.kept and (<Move>self.kept[0]).m.is_out:
            self.kept.popleft()

    @property
    def is_broken(self):
        """True after a collective to which ranks came with different notes: none can follow it."""
        return bool(self.g.is_broken)

    def late(self):
        """Return the numbers on this node of those ranks that the first collective waits for."""
        return [rank for rank in range(self.g.n_here) if psf_is_late(&self.g, rank)]

    def has_passed(self, uint64_t chunk, int gate):
        """Return True if a gate of a chunk is open: PUT, SUMMED, ALL or TOTAL."""
        return bool(psf_passed(&self.g, chunk, gate))

    def let_in(self, uint64_t chunk, int gate):
        """Open a chunk's gate, ALL or TOTAL, to the ranks of this node. Its leader calls, once for each."""
        psf_arrive_at(&self.g, chunk, gate)

    def slot(self, uint64_t chunk, long rank):
        """Return the bytes of a rank's slot in a chunk's room; rank n has the sum, n + 1 that over the nodes before."""
        cdef long at = psf_slot(&self.g, chunk, rank) - self.g.base
        return memoryview(self.memory)[at : at + self.g.slot_bytes]

    def notes(self, uint64_t chunk, int rank):
        """Return the bytes of a rank's note in a chunk's room, and those of its lengths."""
        cdef long note = <char*>&psf_notes(&self.g, chunk)[rank] - self.g.base
        cdef long lengths = <char*>psf_lengths(&self.g, chunk, rank) - self.g.base
        memory = memoryview(self.memory)
        return memory[note : note + sizeof(psf_note)], memory[lengths : lengths + self.g.n * 8]

    def note(self, Move move, int rank):
        """Return a rank's note of a collective whose notes differ, and the bytes that it has for this rank."""
        cdef psf_note n = psf_notes(&self.g, move.m.first)[rank]
        return (n.kind, n.type, n.op, n.root, n.n_bytes, n.number), psf_lengths(&self.g, move.m.first, rank)[self.g.me]
