/* Threads that pull a served store's parameters while others write them, as psframe/sync/stores/shared.py does with two copies.

    pull_stress READERS WRITERS CLOCKS TRIES SEED START        (SEED is not used)

Nobody waits for a reader: it copies what is current, and copies again where a writer may have begun on that copy; after
TRIES times it takes the writer's lock. The numbers are relaxed atomics, since a copy that is thrown away may have been
written meanwhile; that one which is kept is of one clock, and of that which it is said to be, is left to the counters.
Exit status 1 and a message where it is not. NO_LOOK, LATE_BEGIN, EARLY_COMMIT and NO_LOCK make it wrong, to see that it
is noticed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "_sync.h"

#ifndef PATIENCE_S
#define PATIENCE_S 60.0
#endif

enum { MOST_THREADS = 32, SIZE = 997, COPIES = 2 };
enum { CLOCK, BEGUN, COUNTERS };

static psf_gate counter[COUNTERS];
static _Atomic uint32_t params[COPIES][SIZE];
static int n_readers, n_writers, tries;
static uint32_t start, last;
static _Atomic uint32_t written; /* clocks that some writer has undertaken */

static void fail(const char *what, long number) {
    fprintf(stderr, "%s (%ld)\n", what, number);
    _exit(1);
}

static uint32_t number_of(uint32_t clock, int at) { return (clock * 2654435761u) ^ (uint32_t)at; }

static void lock(void) {
#ifndef NO_LOCK
    if (!psf_lock(&counter[CLOCK], PATIENCE_S))
        fail("the lock was not had", CLOCK);
#endif
}

static void unlock(void) {
#ifndef NO_LOCK
    psf_unlock(&counter[CLOCK]);
#endif
}

/* Where a copy is interrupted, one in 16, so that others overtake it, also where each has a core to itself. */
static int pauses(void) {
    static _Thread_local unsigned n;
    return n++ % 16 ? SIZE : (int)(n % SIZE);
}

static void write_clock(void) {
    lock();
    uint32_t clock = psf_load(&counter[CLOCK]) + 1;
#ifndef LATE_BEGIN
    psf_count(&counter[BEGUN], 1);
#endif
#ifdef EARLY_COMMIT
    psf_count(&counter[CLOCK], 1);
#endif
    int pause = pauses();
    for (int i = 0; i < SIZE; i++) {
        if (i == pause)
            usleep(20);
        atomic_store_explicit(&params[clock % COPIES][i], number_of(clock, i), memory_order_relaxed);
    }
#ifdef LATE_BEGIN
    psf_count(&counter[BEGUN], 1);
#endif
#ifndef EARLY_COMMIT
    psf_count(&counter[CLOCK], 1);
#endif
    unlock();
}

static uint32_t copied(uint32_t *out) {
    uint32_t clock = psf_load(&counter[CLOCK]);
    int pause = pauses();
    for (int i = 0; i < SIZE; i++) {
        if (i == pause)
            usleep(20);
        out[i] = atomic_load_explicit(&params[clock % COPIES][i], memory_order_relaxed);
    }
    return clock;
}

static uint32_t pull(uint32_t *out) {
    for (int i = 0; i < tries; i++) {
        uint32_t clock = copied(out);
#ifdef NO_LOOK
        return clock;
#endif
        if (psf_load(&counter[BEGUN]) - clock < COPIES)
            return clock;
    }
    lock();
    uint32_t clock = copied(out);
    unlock();
    return clock;
}

static void *read_all(void *argument) {
    uint32_t out[SIZE], before = start, clock = start;
    (void)argument;
    while ((int32_t)(clock - last) < 0) {
        clock = pull(out);
        if ((int32_t)(clock - before) < 0)
            fail("the clock goes back", (long)clock);
        for (int i = 0; i < SIZE; i++)
            if (out[i] != number_of(clock, i))
                fail("a copy is not of its clock", (long)clock);
        before = clock;
    }
    return NULL;
}

static void *write_all(void *argument) {
    uint32_t n = last - start;
    (void)argument;
    while (atomic_fetch_add(&written, 1) < n) {
        write_clock();
        if (atomic_load(&written) % 16 == 0)
            sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 7)
        return 2;
    n_readers = atoi(argv[1]), n_writers = atoi(argv[2]), tries = atoi(argv[4]);
    start = (uint32_t)strtoul(argv[6], NULL, 0), last = start + (uint32_t)strtoul(argv[3], NULL, 0);
    if (n_readers < 1 || n_writers < 1 || n_readers + n_writers > MOST_THREADS)
        return 2;
    atomic_store(&counter[CLOCK].passage, start);
    atomic_store(&counter[BEGUN].passage, start);
    for (int i = 0; i < SIZE; i++)
        params[start % COPIES][i] = number_of(start, i);
    pthread_t threads[MOST_THREADS];
    for (int i = 0; i < n_readers + n_writers; i++)
        if (pthread_create(&threads[i], NULL, i < n_readers ? read_all : write_all, NULL))
            return 2;
    for (int i = 0; i < n_readers + n_writers; i++)
        pthread_join(threads[i], NULL);
    if (psf_load(&counter[CLOCK]) != last)
        fail("clocks were lost", (long)psf_load(&counter[CLOCK]));
    printf("%lu clocks\n", (unsigned long)(last - start));
    return 0;
}
