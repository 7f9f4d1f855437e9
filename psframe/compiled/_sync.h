/* Gates of a node's ranks (psf_gate): shared memory, C11 atomics, futexes.

A gate lets a number of parties arrive and any number wait. The last arrival opens it by one store of the number of its
passage, which only grows (a sense-reversing barrier, Mellor-Crummey and Scott 1991, whose sense is a number). A waiting
rank spins for the requested number of turns and then sleeps in the kernel. All words have 32 bits and are only compared
by their difference, so they may wrap. */
#ifndef PSFRAME_SYNC_H
#define PSFRAME_SYNC_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* two cache lines: CPUs fetch them in pairs */
#define PSF_LINE 128
#define PSF_GATES 8
/* spins between two reads of the clock */
#define PSF_SPINS_A_LOOK 1024
#define PSF_LONGEST_S 1e9

typedef struct {
    _Alignas(PSF_LINE) _Atomic uint32_t arrived; /* arrivals since the gate last opened */
    _Alignas(PSF_LINE) _Atomic uint32_t passage; /* number of times it has opened */
    _Atomic uint32_t sleepers;
} psf_gate;

/* written by one rank, read by all: its last arrival at each gate */
typedef struct {
    _Alignas(PSF_LINE) _Atomic uint32_t passage[PSF_GATES];
} psf_rank;

typedef struct {
    psf_gate gate[PSF_GATES];
    _Alignas(PSF_LINE) _Atomic uint32_t told; /* 1 if a rank has reported a lost rank to the user */
    _Atomic uint32_t objected[PSF_GATES];      /* last passage of each gate to which a rank has objected */
    psf_rank rank[];
} psf_control;

static inline void psf_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline long psf_futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *until) {
    return syscall(SYS_futex, word, operation, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static inline int psf_is_open(psf_gate *gate, uint32_t passage) {
    return (int32_t)(atomic_load_explicit(&gate->passage, memory_order_acquire) - passage) >= 0;
}

/* Arrive at a passage; the last of the parties opens it. */
static inline void psf_arrive(psf_control *control, int me, int number, uint32_t parties, uint32_t passage) {
    psf_gate *gate = &control->gate[number];
    atomic_store_explicit(&control->rank[me].passage[number], passage, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&gate->arrived, 1, memory_order_acq_rel) + 1 != parties)
        return;
    /* no rank arrives for the next passage before it sees this store */
    atomic_store_explicit(&gate->arrived, 0, memory_order_relaxed);
    /* sequentially consistent, as a sleeper's two operations: either it sees the passage, or it is seen here */
    atomic_store_explicit(&gate->passage, passage, memory_order_seq_cst);
    if (atomic_load_explicit(&gate->sleepers, memory_order_seq_cst))
        psf_futex(&gate->passage, FUTEX_WAKE_BITSET, INT_MAX, NULL);
}

/* Returns 1 to the first caller, 0 to all others. */
static inline int psf_tell(psf_control *control) {
    return atomic_exchange_explicit(&control->told, 1, memory_order_seq_cst) == 0;
}

/* The clock's time after `seconds`, from 0 to PSF_LONGEST_S, so that the sum does not overflow. */
static inline struct timespec psf_in(double seconds) {
    struct timespec then;
    seconds = seconds > 0 ? seconds < PSF_LONGEST_S ? seconds : PSF_LONGEST_S : 0;
    clock_gettime(CLOCK_MONOTONIC, &then);
    time_t whole = (time_t)seconds;
    then.tv_sec += whole;
    then.tv_nsec += (long)((seconds - (double)whole) * 1e9);
    if (then.tv_nsec >= 1000000000L) {
        then.tv_sec += 1;
        then.tv_nsec -= 1000000000L;
    }
    return then;
}

static inline int psf_is_past(const struct timespec *then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > then->tv_sec || (now.tv_sec == then->tv_sec && now.tv_nsec >= then->tv_nsec);
}

/* Wait until a passage is open, or for `timeout_s`; returns 1 if it is open. */
static inline int psf_wait(psf_gate *gate, uint32_t passage, long spins, double timeout_s) {
    if (psf_is_open(gate, passage))
        return 1;
    if (timeout_s <= 0)
        return 0;
    struct timespec until = psf_in(timeout_s);
    for (long i = 1; i <= spins; i++) {
        psf_pause();
        if (psf_is_open(gate, passage))
            return 1;
        if (i % PSF_SPINS_A_LOOK == 0 && psf_is_past(&until))
            return 0;
    }
    int open = 0;
    atomic_fetch_add_explicit(&gate->sleepers, 1, memory_order_seq_cst);
    for (;;) {
        uint32_t now = atomic_load_explicit(&gate->passage, memory_order_seq_cst);
        open = (int32_t)(now - passage) >= 0;
        if (open)
            break;
        if (psf_futex(&gate->passage, FUTEX_WAIT_BITSET, now, &until) && errno == ETIMEDOUT) {
            open = psf_is_open(gate, passage);
            break;
        }
    }
    atomic_fetch_sub_explicit(&gate->sleepers, 1, memory_order_relaxed);
    return open;
}

/* Add to a counter, a gate that any rank opens further, and wake the waiting ranks; returns the previous value. */
static inline uint32_t psf_add(psf_gate *counter, uint32_t n) {
    uint32_t before = atomic_fetch_add_explicit(&counter->passage, n, memory_order_seq_cst);
    if (atomic_load_explicit(&counter->sleepers, memory_order_seq_cst))
        psf_futex(&counter->passage, FUTEX_WAKE_BITSET, INT_MAX, NULL);
    return before;
}

/* Add to a counter that ranks also read without a wait: later writes are not seen before the count. */
static inline uint32_t psf_count(psf_gate *counter, uint32_t n) {
    uint32_t before = psf_add(counter, n);
    atomic_thread_fence(memory_order_seq_cst);
    return before;
}

/* The value of a counter. Earlier reads stay before it: a reader checks with it that no rank has written meanwhile. */
static inline uint32_t psf_load(psf_gate *counter) {
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&counter->passage, memory_order_seq_cst);
}

/* Acquire a counter's lock, or give up after `timeout_s`: 0 free, 1 held, 2 held, maybe with waiters (Drepper 2005). */
static inline int psf_lock(psf_gate *counter, double timeout_s) {
    _Atomic uint32_t *word = &counter->arrived;
    uint32_t was = 0;
    if (atomic_compare_exchange_strong_explicit(word, &was, 1, memory_order_acquire, memory_order_relaxed))
        return 1;
    struct timespec until = psf_in(timeout_s);
    while (atomic_exchange_explicit(word, 2, memory_order_acquire) != 0)
        if (psf_futex(word, FUTEX_WAIT_BITSET, 2, &until) && errno == ETIMEDOUT)
            return 0;
    return 1;
}

static inline void psf_unlock(psf_gate *counter) {
    if (atomic_exchange_explicit(&counter->arrived, 0, memory_order_release) == 2)
        psf_futex(&counter->arrived, FUTEX_WAKE_BITSET, 1, NULL);
}

/* One word counts the steps that the furthest rank has begun; its highest bit forbids the steps that no rank has begun.
So all ranks end with the same step, without a wait for each other. Returns 1 if `step`, counted from 0, may begin. */
#define PSF_CLOSED 0x80000000u
static inline int psf_may(void *word, uint32_t step) {
    _Atomic uint32_t *front = word;
    uint32_t now = atomic_load_explicit(front, memory_order_seq_cst);
    for (;;) {
        if (step < (now & ~PSF_CLOSED))
            return 1;
        if (now & PSF_CLOSED)
            return 0;
        if (atomic_compare_exchange_weak(front, &now, step + 1))
            return 1;
    }
}

static inline uint32_t psf_begun(const void *word) {
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_seq_cst) & ~PSF_CLOSED;
}

static inline void psf_close(void *word) {
    atomic_fetch_or_explicit((_Atomic uint32_t *)word, PSF_CLOSED, memory_order_seq_cst);
}

/* 1 if another process holds the lock on byte `index`, which the kernel drops when that process ends, however it ends;
-1 and errno if the kernel reports an error. */
static inline int psf_is_locked(int fd, long index) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = index;
    lock.l_len = 1;
    return fcntl(fd, F_GETLK, &lock) ? -1 : lock.l_type != F_UNLCK;
}

#endif
