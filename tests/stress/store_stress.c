/* Threads as a server and its workers at the counters of psframe/compiled/_sync.h, as psframe/sync/stores/shared*.py use them.

    store_stress THREADS POSTS SEED START

Mail, and the sum that all add to, are plain memory: that each access happens after what it must is left to the counters and
the lock alone, and ThreadSanitizer sees whether they do it. Exit status 1 and a message where a number is wrong or nobody
comes. NO_LOCK, NO_GRANT and LATE_POST make it wrong, to see that it is noticed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "_sync.h"

#ifndef PATIENCE_S
#define PATIENCE_S 60.0
#endif

enum { MOST_THREADS = 32, SIZE = 37, POSTS = 0, SUM = 1, WORKERS = 2 };

static psf_gate counter[WORKERS + 2 * MOST_THREADS]; /* posts of all, the sum's lock, then posts and grants of each */
static uint32_t mail[MOST_THREADS][SIZE], sum[SIZE];
static int n_workers;
static uint32_t n_posts;

static void fail(const char *what, long number) {
    fprintf(stderr, "%s (%ld)\n", what, number);
    _exit(1);
}

static void until(int number, uint32_t value) {
    if (!psf_wait(&counter[number], value, 0, PATIENCE_S))
        fail("nobody came", number);
}

static void *work(void *argument) {
    int me = (int)(intptr_t)argument, posts = WORKERS + 2 * me, grants = posts + 1;
    for (uint32_t post = 0; post < n_posts; post++) {
#ifndef NO_GRANT
        until(grants, post);
#endif
#ifdef LATE_POST
        psf_add(&counter[posts], 1);
        psf_add(&counter[POSTS], 1);
#endif
        for (int i = 0; i < SIZE; i++)
            mail[me][i] = post * 31 + (uint32_t)(me * 7 + i);
#ifndef LATE_POST
        psf_add(&counter[posts], 1);
        psf_add(&counter[POSTS], 1);
#endif
#ifndef NO_LOCK
        if (!psf_lock(&counter[SUM], PATIENCE_S))
            fail("the lock was not had", me);
#endif
        for (int i = 0; i < SIZE; i++)
            sum[i] += post + (uint32_t)i;
#ifndef NO_LOCK
        psf_unlock(&counter[SUM]);
#endif
    }
    (void)grants;
    return NULL;
}

static void serve(void) {
    uint32_t taken[MOST_THREADS] = {0};
    for (uint32_t number = 1; number <= n_posts * (uint32_t)n_workers; number++) {
        until(POSTS, number);
        int worker = 0;
        while (atomic_load_explicit(&counter[WORKERS + 2 * worker].passage, memory_order_seq_cst) == taken[worker])
            if (++worker == n_workers)
                fail("a post was counted that nobody made", number);
        for (int i = 0; i < SIZE; i++)
            if (mail[worker][i] != taken[worker] * 31 + (uint32_t)(worker * 7 + i))
                fail("a post is not whole", worker);
        taken[worker]++;
        psf_add(&counter[WORKERS + 2 * worker + 1], 1);
    }
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    n_workers = atoi(argv[1]) - 1;
    n_posts = (uint32_t)atol(argv[2]);
    if (n_workers < 1 || n_workers > MOST_THREADS)
        return 2;
    pthread_t threads[MOST_THREADS];
    for (int me = 0; me < n_workers; me++)
        if (pthread_create(&threads[me], NULL, work, (void *)(intptr_t)me))
            return 2;
    serve();
    for (int me = 0; me < n_workers; me++)
        pthread_join(threads[me], NULL);
    for (uint32_t i = 0; i < SIZE; i++)
        if (sum[i] != (uint32_t)n_workers * (n_posts * (n_posts - 1) / 2 + n_posts * i))
            fail("the sum is wrong", i);
    printf("%ld posts\n", (long)n_posts * n_workers);
    return 0;
}
