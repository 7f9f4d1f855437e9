/* Threads as ranks at the gates of psframe/compiled/_sync.h, in the protocol of psframe/collectives/shared.py.

    sync_stress THREADS REDUCERS STEPS CHUNKS SPINS SEED START

START: how often every gate has opened before; near 4294967295 the counters wrap. With one chunk the slots hold the whole
vector, with more they pass through two half slots, as in Shared.gather_mean and Shared._put, whose names the functions
have. Slots and buffers are plain memory: that each access happens after what it must is left to the gates alone, and
ThreadSanitizer sees whether they do it. Exit status 1 and a message where a number is wrong, a gate stays closed, or a
sleeper is not woken. BREAK and the macros before the first psframe header make it wrong, to see that it is noticed. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef RELAX_LOOK
#define memory_order_acquire memory_order_relaxed
#endif
#ifdef RELAX_ARRIVAL
#define memory_order_acq_rel memory_order_relaxed
#endif
#ifdef RELAX_OPENING
#define memory_order_seq_cst memory_order_relaxed
#endif
#ifdef WAKE_NOBODY
#define syscall(number, word, operation, ...) \
    ((operation) == FUTEX_WAKE_BITSET ? 0 : (syscall)(number, word, operation, __VA_ARGS__))
#endif

#include "_sync.h"
#include "ranks.h"

#ifndef PATIENCE_S
#define PATIENCE_S 60.0
#endif
#ifndef BREAK
#define BREAK NOTHING
#endif
enum { NOTHING, SKIP_READY, SKIP_SUMMED, SKIP_COMMITTED, FORGET_ONE_REDUCER, FORGET_ONE_WORKER, ONE_BUFFER };

enum { READY = 0, SUMMED = 2, COMMITTED = 4 }; /* as gates.py numbers them; the second halves' follow */
enum { MOST_CHUNKS = 8, CHUNK = 37, SHORT = 30 }; /* SHORT: the last chunk's, so some sum nothing */

typedef struct {
    int rank, reducer; /* reducer: which, or -1 */
    int current;       /* of the two buffers */
    uint32_t passage[PSF_GATES];
    uint64_t random;
    uint32_t expected[MOST_CHUNKS * CHUNK];
} party;

static psf_control *control;
static int n_threads, n_reducers, n_chunks, size;
static long n_steps, spins;
static uint32_t slots[2][MOST_THREADS][CHUNK], buffers[2][MOST_CHUNKS * CHUNK];

static void fail(const party *me, const char *what, long number) {
    fprintf(stderr, "rank %d: %s (%ld)\n", me->rank, what, number);
    _exit(1);
}

/* Marsaglia's xorshift64 */
static uint32_t draw(party *me) {
    me->random ^= me->random << 13;
    me->random ^= me->random >> 7;
    me->random ^= me->random << 17;
    return (uint32_t)(me->random >> 32);
}

/* Let the others come in any order. */
static void dawdle(party *me) {
    uint32_t drawn = draw(me);
    if (drawn % 2048 == 0) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    } else if (drawn % 32 == 1) {
        sched_yield();
    } else if (drawn % 4 == 2) {
        for (uint32_t i = drawn >> 26; i; i--)
            psf_pause();
    }
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void wait_for(party *me, int gate) {
    dawdle(me);
    double begin_s = now_s();
    if (!psf_wait(&control->gate[gate], me->passage[gate], spins, PATIENCE_S))
        fail(me, "a gate stays closed", gate);
    if (now_s() - begin_s >= PATIENCE_S)
        fail(me, "nobody woke it at a gate", gate);
}

static void meet(party *me, int gate, int parties, int arrives) {
    me->passage[gate]++;
    dawdle(me);
    if (arrives)
        psf_arrive(control, me->rank, gate, (uint32_t)parties, me->passage[gate]);
}

static uint32_t gradient(int rank, long step, int at) {
    uint32_t word = (uint32_t)step * 2654435761u + (uint32_t)(rank * 1009 + at);
    return (word ^ word >> 15) * 2246822519u;
}

static void put(party *me, long step, int chunk) {
    int half = chunk % 2;
    if (chunk > 1 && BREAK != SKIP_SUMMED)
        wait_for(me, SUMMED + half);
    for (int i = 0; i < CHUNK; i++)
        slots[half][me->rank][i] = gradient(me->rank, step, chunk * CHUNK + i);
    meet(me, READY + half, n_threads - (BREAK == FORGET_ONE_WORKER), 1);
}

/* A left fold whose result, like that of floats, depends on the order. */
static uint32_t mean(int half, int at) {
    uint32_t sum = 0;
    for (int rank = 0; rank < n_threads; rank++)
        sum = sum * 31 + slots[half][rank][at];
    return sum;
}

static void update(party *me, int chunk) {
    if (BREAK != SKIP_READY)
        wait_for(me, READY + chunk % 2);
    const uint32_t *old = buffers[me->current];
    uint32_t *new = buffers[BREAK == ONE_BUFFER ? me->current : !me->current];
    int stop = CHUNK * (me->reducer + 1) / n_reducers;
    for (int i = CHUNK * me->reducer / n_reducers; i < stop && chunk * CHUNK + i < size; i++)
        new[chunk * CHUNK + i] = old[chunk * CHUNK + i] * 3 + mean(chunk % 2, i);
}

/* What is current stays so, in every number, until all of the step is there. */
static void look(party *me, long step) {
    int at = (int)(draw(me) % (uint32_t)size);
    if (buffers[me->current][at] != me->expected[at])
        fail(me, "a step is seen before it is whole", step);
}

static void gather_mean(party *me, long step) {
    int parties = n_reducers - (BREAK == FORGET_ONE_REDUCER && n_reducers > 1);
    put(me, step, 0);
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        if (chunk + 1 < n_chunks)
            put(me, step, chunk + 1);
        if (me->reducer >= 0)
            update(me, chunk);
        if (chunk + 1 < n_chunks)
            meet(me, SUMMED + chunk % 2, parties, me->reducer >= 0);
    }
    look(me, step);
    meet(me, COMMITTED, parties, me->reducer >= 0);
    if (BREAK != SKIP_COMMITTED)
        wait_for(me, COMMITTED);
    me->current = BREAK == ONE_BUFFER ? me->current : !me->current;
}

static void check(party *me, long step) {
    for (int at = 0; at < size; at++) {
        uint32_t sum = 0;
        for (int rank = 0; rank < n_threads; rank++)
            sum = sum * 31 + gradient(rank, step, at);
        me->expected[at] = me->expected[at] * 3 + sum;
        if (buffers[me->current][at] != me->expected[at])
            fail(me, "a wrong number after a step", step);
    }
}

static void *run(void *argument) {
    party *me = argument;
    for (long step = 0; step < n_steps; step++) {
        gather_mean(me, step);
        dawdle(me);
        check(me, step);
    }
    return NULL;
}

static void prepare(party *me, int rank, uint64_t seed, uint32_t start) {
    me->rank = rank;
    me->reducer = -1;
    for (int reducer = 0; reducer < n_reducers; reducer++)
        if (n_threads * reducer / n_reducers == rank)
            me->reducer = reducer;
    me->random = (seed + 1) * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xD1B54A32D192ED03u;
    set_gates(control, rank, me->passage, start);
}

int main(int argc, char **argv) {
    static party parties[MOST_THREADS];
    if (argc != 8)
        return 2;
    n_threads = atoi(argv[1]), n_reducers = atoi(argv[2]), n_steps = atol(argv[3]), n_chunks = atoi(argv[4]);
    spins = atol(argv[5]), size = n_chunks * CHUNK - (n_chunks > 1 ? SHORT : 0);
    if (n_threads < 1 || n_threads > MOST_THREADS || n_reducers < 1 || n_reducers > n_threads || n_chunks < 1 ||
        n_chunks > MOST_CHUNKS)
        return 2;
    control = new_control(n_threads);
    if (!control)
        return 2;
    for (int rank = 0; rank < n_threads; rank++)
        prepare(&parties[rank], rank, strtoul(argv[6], NULL, 0), (uint32_t)strtoul(argv[7], NULL, 0));
    if (!run_threads(n_threads, run, parties, sizeof *parties))
        return 2;
    printf("%ld steps\n", n_steps);
    return 0;
}
