/* Threads as ranks that begin steps by psf_may of psframe/compiled/_sync.h, while another one says that they are to end.

    front_stress THREADS ROUNDS LONGEST SEED START

In every round one more thread closes the front after up to LONGEST looks at it; all ranks must end with the same step,
which is the last that any has begun, and none goes on. START: not used. Exit status 1 and a message where it is not so.
SPLIT_MAY and SPLIT_CLOSE make a read and a write of what must be one operation, to see that it is noticed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "_sync.h"

#ifndef MOST_STEPS
#define MOST_STEPS 4000000000u
#endif

enum { MOST_THREADS = 32 };

static _Atomic uint32_t front;
static uint32_t ended[MOST_THREADS];
static int n_threads;
static long n_rounds;
static uint32_t longest;
static uint64_t seed;
static pthread_barrier_t barrier;

static void fail(const char *what, long number) {
    fprintf(stderr, "%s (%ld)\n", what, number);
    _exit(1);
}

/* Marsaglia's xorshift64 */
static uint32_t draw(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (uint32_t)(*random >> 32);
}

static int may(uint32_t step, uint64_t *random) {
#ifdef SPLIT_MAY
    uint32_t now = atomic_load(&front);
    if (step < (now & ~PSF_CLOSED))
        return 1;
    if (now & PSF_CLOSED)
        return 0;
    if (draw(random) % 4 == 0)
        sched_yield();
    atomic_store(&front, step + 1);
    return 1;
#else
    if (draw(random) % 64 == 0)
        sched_yield();
    return psf_may(&front, step);
#endif
}

static void *run(void *argument) {
    int me = (int)(intptr_t)argument;
    uint64_t random = (seed + 1) * 0x9E3779B97F4A7C15u + (uint64_t)me;
    for (long round = 0; round < n_rounds; round++) {
        pthread_barrier_wait(&barrier);
        uint32_t step = 0;
        while (may(step, &random))
            if (++step > MOST_STEPS)
                fail("a rank goes on", me);
        ended[me] = step;
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void close_front(uint64_t *random) {
    for (uint32_t looks = draw(random) % (longest + 1); looks; looks--)
        psf_pause();
#ifdef SPLIT_CLOSE
    uint32_t now = psf_begun(&front);
    sched_yield();
    atomic_store(&front, now | PSF_CLOSED);
#else
    psf_close(&front);
#endif
}

int main(int argc, char **argv) {
    pthread_t threads[MOST_THREADS];
    if (argc != 6)
        return 2;
    n_threads = atoi(argv[1]), n_rounds = atol(argv[2]), longest = (uint32_t)atol(argv[3]);
    seed = strtoul(argv[4], NULL, 0);
    if (n_threads < 1 || n_threads > MOST_THREADS ||
        pthread_barrier_init(&barrier, NULL, (unsigned)n_threads + 1))
        return 2;
    for (int me = 0; me < n_threads; me++)
        if (pthread_create(&threads[me], NULL, run, (void *)(intptr_t)me))
            return 2;
    uint64_t random = seed + 99;
    for (long round = 0; round < n_rounds; round++) {
        atomic_store(&front, 0);
        pthread_barrier_wait(&barrier);
        close_front(&random);
        pthread_barrier_wait(&barrier);
        for (int me = 0; me < n_threads; me++)
            if (ended[me] != psf_begun(&front))
                fail("ranks end with different steps, in round", round);
    }
    for (int me = 0; me < n_threads; me++)
        pthread_join(threads[me], NULL);
    printf("%ld rounds\n", n_rounds);
    return 0;
}
