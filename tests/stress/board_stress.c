/* Threads as ranks at the board of psframe/cluster/node_gather.py, and at a gate whose parties change from passage to passage.

    board_stress THREADS ROUNDS PATIENCE_US SPINS SEED START

Who waits does so for PATIENCE_US at a time, and again, as Rendezvous._watch does: a waiter that gives up may be woken, or
not, and must not be missed. Rows, and what the parties write, are plain memory: that each access happens after what it
must is left to the gates, and ThreadSanitizer sees whether they do it. START: see sync_stress.c. Exit status 1 and a
message where something is wrong. NO_FIRST, NO_SECOND, NO_WAIT, FORGET_ONE and TELL_ALL make it wrong, to see that it is
noticed. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_sync.h"
#include "ranks.h"

#ifndef PATIENCE_S
#define PATIENCE_S 60.0
#endif

enum { TOGETHER = 5, CHANGING = 6 }; /* TOGETHER as gates.py numbers it */
enum { CHUNK = 37, LONGEST = 3 * CHUNK + 5 };

typedef struct {
    int rank;
    uint32_t passage[PSF_GATES];
} party;

static psf_control *control;
static int n_threads;
static long n_rounds, spins;
static double patience_s;
static uint64_t seed;
static uint64_t sizes[MOST_THREADS];
static uint8_t rows[MOST_THREADS][CHUNK];
static uint32_t work[MOST_THREADS];
static _Atomic int n_tellers;

static void fail(const party *me, const char *what, long number) {
    fprintf(stderr, "rank %d: %s (%ld)\n", me->rank, what, number);
    _exit(1);
}

/* The same for all who ask: splitmix64 (Steele, Lea, Flood 2014) of where it is asked for. */
static uint32_t drawn(long round, int what) {
    uint64_t z = (seed + (uint64_t)round * 131 + (uint64_t)what) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

static void wait_for(party *me, int gate) {
    struct timespec until = psf_in(PATIENCE_S);
    while (!psf_wait(&control->gate[gate], me->passage[gate], spins, patience_s))
        if (psf_is_past(&until))
            fail(me, "a gate stays closed", gate);
}

static void meet(party *me, int gate, int parties, int arrives, int waits) {
    me->passage[gate]++;
    if (arrives)
        psf_arrive(control, me->rank, gate, (uint32_t)parties, me->passage[gate]);
    if (waits)
        wait_for(me, gate);
}

static uint64_t length_of(int rank, long round) { return drawn(round, rank) % (LONGEST + 1); }

static uint8_t letter(int rank, long round, uint64_t at) { return (uint8_t)(rank * 7 + round * 31 + (long)at); }

/* Board._exchange, in which all hear all */
static void exchange(party *me, long round) {
    uint64_t told = 0, longest = 1, mine = length_of(me->rank, round);
    sizes[me->rank] = mine;
    while (told < longest) {
        for (uint64_t at = told; at < mine && at < told + CHUNK; at++)
            rows[me->rank][at - told] = letter(me->rank, round, at);
#ifndef NO_FIRST
        meet(me, TOGETHER, n_threads, 1, 1);
#endif
        longest = 0;
        for (int rank = 0; rank < n_threads; rank++) {
            if (sizes[rank] != length_of(rank, round))
                fail(me, "the length of a message is wrong", rank);
            longest = sizes[rank] > longest ? sizes[rank] : longest;
            for (uint64_t at = told; at < sizes[rank] && at < told + CHUNK; at++)
                if (rows[rank][at - told] != letter(rank, round, at))
                    fail(me, "a message is wrong", rank);
        }
#ifndef NO_SECOND
        meet(me, TOGETHER, n_threads, 1, 1);
#endif
        told += CHUNK;
    }
}

/* Some do a piece of work, all wait for it and look at it. */
static void some_work(party *me, long round) {
    uint32_t chosen = drawn(round, 64) | 1u << drawn(round, 65) % (uint32_t)n_threads;
    int parties = 0, mine = chosen >> me->rank & 1;
    for (int rank = 0; rank < n_threads; rank++)
        parties += (int)(chosen >> rank & 1);
    if (mine)
        work[me->rank] = (uint32_t)round;
#ifdef FORGET_ONE
    parties -= parties > 1;
#endif
#ifdef NO_WAIT
    meet(me, CHANGING, parties, mine, 0);
#else
    meet(me, CHANGING, parties, mine, 1);
#endif
    for (int rank = 0; rank < n_threads; rank++)
        if (chosen >> rank & 1 && work[rank] != (uint32_t)round)
            fail(me, "work was not done", rank);
    meet(me, TOGETHER, n_threads, 1, 1); /* before anybody writes there again */
}

static void *run(void *argument) {
    party *me = argument;
    for (long round = 0; round < n_rounds; round++) {
        exchange(me, round);
        some_work(me, round);
    }
#ifdef TELL_ALL
    atomic_store(&control->told, 0);
#endif
    if (psf_tell(control))
        atomic_fetch_add(&n_tellers, 1);
    return NULL;
}

static void prepare(party *me, int rank, uint32_t start) {
    me->rank = rank;
    set_gates(control, rank, me->passage, start);
}

int main(int argc, char **argv) {
    static party parties[MOST_THREADS];
    if (argc != 7)
        return 2;
    n_threads = atoi(argv[1]), n_rounds = atol(argv[2]), patience_s = 1e-6 * atof(argv[3]), spins = atol(argv[4]);
    seed = strtoul(argv[5], NULL, 0);
    if (n_threads < 1 || n_threads > MOST_THREADS)
        return 2;
    control = new_control(n_threads);
    if (!control)
        return 2;
    for (int rank = 0; rank < n_threads; rank++)
        prepare(&parties[rank], rank, (uint32_t)strtoul(argv[6], NULL, 0));
    if (!run_threads(n_threads, run, parties, sizeof *parties))
        return 2;
    if (n_tellers != 1)
        fail(&parties[0], "who told first is not one", n_tellers);
    printf("%ld rounds\n", n_rounds);
    return 0;
}
