/* Rooms in shared memory through which the collectives of a group of ranks go, chunk by chunk (psf_rooms, psf_move).

A ring of rooms holds a slot for each rank and one for a sum. Chunk s of the group uses room s modulo their number:

    PUT     every rank has put its part into its slot, and a note of what it means to do
    SUMMED  every rank has summed its segment of the slots (where that is less work than that each sums all of them)
    LEFT    every rank has taken what it wants; the room may be used again

On several nodes each has a ring, and these gates are of its ranks. Its leader, the first of them, lets in what comes
from the others, at two more gates:

    ALL     the slots of the other nodes' ranks are there, or the sum over the ranks of the nodes before, if chained
    TOTAL   the slot for the sum has that over all ranks, of a chained collective

No rank waits inside: psf_rooms_on() in _moves.h does what can be done now, of all collectives begun, in their order. */
#ifndef PSFRAME_ROOMS_H
#define PSFRAME_ROOMS_H

#include <pthread.h>
#include <stddef.h>

#include "_sync.h"

enum { PSF_PUT, PSF_SUMMED_GATE, PSF_LEFT, PSF_ALL, PSF_TOTAL };
enum { PSF_NOTHING, PSF_COPY, PSF_FOLDED };
enum { PSF_GOING, PSF_DONE, PSF_UNLIKE };
#define PSF_PAGE 4096
/* turns of a spin between two offers of the core to others: launchers of PyTorch do not pin ranks */
#define PSF_TURNS_A_YIELD 64
/* offers of the core before a sleep, where ranks share cores: shorter than to be woken */
#define PSF_YIELDS 16

/* what a rank does, which all compare at the first chunk; and how many chunks it needs, of which the most count */
typedef struct {
    uint32_t kind, type, op, root;
    uint64_t n_bytes, number;
    uint64_t n_chunks, unused[3]; /* a cache line of its own */
} psf_note;
#define PSF_COMPARED offsetof(psf_note, n_chunks)

/* memory that goes into sub-slot `of` of this rank's slot, or comes from the slot of rank `of`: the bytes from `from`
on of what passes there, chunk after chunk */
typedef struct {
    char *at;
    long n_bytes, of, from;
} psf_part;

typedef struct psf_move {
    struct psf_move *next;
    psf_note note;
    psf_part *in, *out;
    int n_in, n_out, take, in_segments, is_uneven, is_chained, state;
    int is_out;      /* of the list of what has begun: only then may its memory go */
    int odd;         /* the rank whose note differs */
    long sub, width; /* sub-slot that this rank takes; bytes of one */
    uint64_t first;
    long n_chunks, n_put, n_summed, n_taken;
} psf_move;

typedef struct {
    pthread_mutex_t lock;
    char *base;
    long head_bytes, slot_bytes, room_bytes, spins;
    int n, me, n_rooms, is_broken;
    int n_here, here, is_last; /* ranks of this node, this one's number among them, and if no node follows */
    int *ranks_here;
    uint64_t next_chunk, n_moves;
    psf_move *begun, *last;
    const char **rows;
} psf_rooms;

/* a gate that a rank waits for */
typedef struct {
    psf_gate *gate;
    uint32_t passage;
} psf_awaited;

static long psf_head_bytes(int n) {
    size_t each = sizeof(psf_rank) + sizeof(psf_note) + (size_t)n * sizeof(int64_t);
    long bytes = (long)(sizeof(psf_control) + (size_t)n * each);
    return (bytes + PSF_PAGE - 1) / PSF_PAGE * PSF_PAGE;
}

/* with a slot for the sum, and one for the sum over the nodes before */
static long psf_room_bytes(int n, long slot_bytes) { return psf_head_bytes(n) + (n + 2) * slot_bytes; }

static inline char *psf_room(const psf_rooms *g, uint64_t chunk) {
    return g->base + (long)(chunk % (uint64_t)g->n_rooms) * g->room_bytes;
}
static inline uint32_t psf_use(const psf_rooms *g, uint64_t chunk) {
    return (uint32_t)(chunk / (uint64_t)g->n_rooms + 1);
}
static inline psf_gate *psf_gate_of(const psf_rooms *g, uint64_t chunk, int gate) {
    return &((psf_control *)psf_room(g, chunk))->gate[gate];
}
static inline int psf_passed(const psf_rooms *g, uint64_t chunk, int gate) {
    return psf_is_open(psf_gate_of(g, chunk, gate), psf_use(g, chunk));
}
static inline int psf_is_free(const psf_rooms *g, uint64_t chunk) {
    return psf_is_open(psf_gate_of(g, chunk, PSF_LEFT), psf_use(g, chunk) - 1);
}
static inline void psf_arrive_at(psf_rooms *g, uint64_t chunk, int gate) {
    uint32_t parties = gate == PSF_ALL || gate == PSF_TOTAL ? 1 : (uint32_t)g->n_here;
    psf_arrive((psf_control *)psf_room(g, chunk), g->here, gate, parties, psf_use(g, chunk));
}
/* the gate behind which a chunk's slots, or its sum, may be read */
static inline int psf_gate_of_slots(const psf_rooms *g) { return g->n_here == g->n ? PSF_PUT : PSF_ALL; }
static inline int psf_gate_of_sum(const psf_move *m) { return m->is_chained ? PSF_TOTAL : PSF_SUMMED_GATE; }
static inline psf_note *psf_notes(const psf_rooms *g, uint64_t chunk) {
    return (psf_note *)(psf_room(g, chunk) + sizeof(psf_control) + (size_t)g->n * sizeof(psf_rank));
}
/* bytes that a rank has for each other one, where they may differ */
static inline int64_t *psf_lengths(const psf_rooms *g, uint64_t chunk, long rank) {
    return (int64_t *)(psf_notes(g, chunk) + g->n) + rank * g->n;
}
/* slot n is the one for sums, slot n + 1 that for the sum over the nodes before */
static inline char *psf_slot(const psf_rooms *g, uint64_t chunk, long rank) {
    return psf_room(g, chunk) + g->head_bytes + rank * g->slot_bytes;
}

#endif
