/* Threads as ranks at the gates of psframe/compiled/_sync.h: what the stress programs with gates share. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 32 };

/* Return a control block for so many ranks, zeroed, or NULL. */
static psf_control *new_control(int n_threads) {
    size_t n_bytes = sizeof(psf_control) + (size_t)n_threads * sizeof(psf_rank);
    psf_control *control = aligned_alloc(PSF_LINE, n_bytes);
    return control ? memset(control, 0, n_bytes) : NULL;
}

/* Let every gate have opened `start` times before, as the rank that passes them knows. */
static void set_gates(psf_control *control, int rank, uint32_t *passage, uint32_t start) {
    for (int gate = 0; gate < PSF_GATES; gate++) {
        passage[gate] = start;
        atomic_store(&control->gate[gate].passage, start);
        atomic_store(&control->rank[rank].passage[gate], start);
    }
}

/* Run each party, `n_bytes` large, in a thread of its own, until all return. Return whether the threads began. */
static int run_threads(int n_threads, void *(*run)(void *), void *parties, size_t n_bytes) {
    pthread_t threads[MOST_THREADS];
    for (int rank = 0; rank < n_threads; rank++)
        if (pthread_create(&threads[rank], NULL, run, (char *)parties + (size_t)rank * n_bytes))
            return 0;
    for (int rank = 0; rank < n_threads; rank++)
        pthread_join(threads[rank], NULL);
    return 1;
}
