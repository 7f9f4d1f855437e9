/* Events of a rank in shared memory: what another process reads of it, also when the rank has ended.

   Words of 64 bits: a header, the phases that are open, and a ring of the last events. A word that tells how many of the
   others are valid is written after them (release), so a reader on another core finds none half written, but for events
   and phases that are replaced while it reads. */
#ifndef PSF_FLIGHT_H
#define PSF_FLIGHT_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>

#ifdef RUSAGE_THREAD
#define PSF_WHO RUSAGE_THREAD /* quicker, and of this rank's own accesses */
#else
#define PSF_WHO RUSAGE_SELF
#endif

enum {
    PSF_PID, PSF_RANK, PSF_STATE, PSF_EVENTS, PSF_DEPTH, PSF_STEP, PSF_EPOCH, PSF_SPACE, PSF_WRITES, PSF_MINOR, PSF_MAJOR,
    PSF_FAULTS = 24, PSF_MANY = 64,
    PSF_FRAMES = 16, PSF_DEEPEST = 8, PSF_FRAME = 4,
    PSF_RING = 64, PSF_KEPT = 4096, PSF_EVENT = 5,
    PSF_WORDS = PSF_RING + PSF_KEPT * PSF_EVENT
};

static inline int64_t psf_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void psf_put(int64_t *words, int word, int64_t value) {
    atomic_store_explicit((_Atomic int64_t *)(words + word), value, memory_order_release);
}

/* An event ends now; `nested` is the number of phases around it. */
static inline void psf_event(int64_t *words, int64_t kind, int64_t nested, int64_t a, int64_t b, int64_t began,
                             int64_t ended) {
    int64_t number = words[PSF_EVENTS];
    int64_t *event = words + PSF_RING + (number % PSF_KEPT) * PSF_EVENT;
    event[0] = kind | nested << 16;
    event[1] = a;
    event[2] = b;
    event[3] = began;
    event[4] = ended;
    psf_put(words, PSF_EVENTS, number + 1);
}

/* Open a phase; return how many were open. Those beyond PSF_DEEPEST are counted, and not told of. */
static inline int64_t psf_enter(int64_t *words, int64_t kind, int64_t a, int64_t b) {
    int64_t depth = words[PSF_DEPTH];
    if (depth < PSF_DEEPEST) {
        int64_t *frame = words + PSF_FRAMES + depth * PSF_FRAME;
        frame[0] = kind;
        frame[1] = a;
        frame[2] = b;
        frame[3] = psf_now();
    }
    psf_put(words, PSF_DEPTH, depth + 1);
    return depth;
}

/* Close all phases but the first `depth`; each becomes an event. */
static inline void psf_leave(int64_t *words, int64_t depth) {
    int64_t open = words[PSF_DEPTH], now = psf_now();
    while (open > depth) {
        open -= 1;
        psf_put(words, PSF_DEPTH, open);
        if (open < PSF_DEEPEST) {
            int64_t *frame = words + PSF_FRAMES + open * PSF_FRAME;
            psf_event(words, frame[0], open, frame[1], frame[2], frame[3], now);
        }
    }
}

/* Note the page faults of this thread since the last call, if any needed a disk, or they were many; the first call notes
   none. */
static inline void psf_faults(int64_t *words) {
    struct rusage used;
    if (getrusage(PSF_WHO, &used))
        return;
    int64_t minor = used.ru_minflt - words[PSF_MINOR], major = used.ru_majflt - words[PSF_MAJOR];
    if (words[PSF_MINOR] && (major > 0 || minor >= PSF_MANY)) {
        int64_t now = psf_now();
        psf_event(words, PSF_FAULTS, words[PSF_DEPTH], minor, major, now, now);
    }
    psf_put(words, PSF_MINOR, used.ru_minflt);
    psf_put(words, PSF_MAJOR, used.ru_majflt);
}

#endif
