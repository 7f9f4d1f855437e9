/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"), one counter at a time
and, for rows of numbers, as many as fill the widest register that the CPU has. */
#ifndef PSFRAME_RANDOM_H
#define PSFRAME_RANDOM_H

#include <stdint.h>
#include <string.h>

#include "_widest.h"

#define PSF_ROUNDS 10
/* what the halves of the key grow by from round to round */
#define PSF_WEYL0 0x9E3779B9u
#define PSF_WEYL1 0xBB67AE85u
/* counters at a time */
#define PSF_COUNTERS 64

/* A round of the numbers a, b, c, d of a counter. */
static inline void psf_round(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d, uint32_t k0, uint32_t k1) {
    uint64_t p = (uint64_t)0xD2511F53u * *a, q = (uint64_t)0xCD9E8D57u * *c;
    *a = (uint32_t)(q >> 32) ^ *b ^ k0;
    *c = (uint32_t)(p >> 32) ^ *d ^ k1;
    *b = (uint32_t)q;
    *d = (uint32_t)p;
}

/* Replace the counter c by its random numbers under the key `seed`. */
static inline void psf_philox(uint32_t *c, uint64_t seed) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < PSF_ROUNDS; round++, k0 += PSF_WEYL0, k1 += PSF_WEYL1)
        psf_round(&c[0], &c[1], &c[2], &c[3], k0, k1);
}

/* The counter of a block of four numbers of a sample; see _random.pyx. */
static inline void psf_counter(uint32_t *c, uint64_t stream, uint64_t epoch, uint64_t sample, uint64_t block) {
    c[0] = (uint32_t)sample;
    c[1] = (uint32_t)epoch;
    c[2] = (uint32_t)((stream << 16) | ((block >> 32) & 0xFFFF));
    c[3] = (uint32_t)block;
}

/* Fill `out` (m,) with a sample's numbers in [0, 1). */
PSF_WIDEST static void psf_uniform(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t sample, long m, float *out) {
    uint32_t a[PSF_COUNTERS], b[PSF_COUNTERS], c[PSF_COUNTERS], d[PSF_COUNTERS], first[4];
    for (long at = 0; at < m; at += 4 * PSF_COUNTERS) {
        /* a multiple of PSF_COUNTERS, so that these have its upper half */
        psf_counter(first, stream, epoch, sample, (uint64_t)at / 4);
        for (int i = 0; i < PSF_COUNTERS; i++)
            a[i] = first[0], b[i] = first[1], c[i] = first[2], d[i] = first[3] + (uint32_t)i;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < PSF_ROUNDS; round++, k0 += PSF_WEYL0, k1 += PSF_WEYL1)
            for (int i = 0; i < PSF_COUNTERS; i++)
                psf_round(&a[i], &b[i], &c[i], &d[i], k0, k1);
        float numbers[4 * PSF_COUNTERS];
        for (int i = 0; i < PSF_COUNTERS; i++) {
            numbers[4 * i] = (float)(int32_t)(a[i] >> 8) * (1.0f / 16777216.0f);
            numbers[4 * i + 1] = (float)(int32_t)(b[i] >> 8) * (1.0f / 16777216.0f);
            numbers[4 * i + 2] = (float)(int32_t)(c[i] >> 8) * (1.0f / 16777216.0f);
            numbers[4 * i + 3] = (float)(int32_t)(d[i] >> 8) * (1.0f / 16777216.0f);
        }
        long n = m - at < 4 * PSF_COUNTERS ? m - at : 4 * PSF_COUNTERS;
        memcpy(out + at, numbers, (size_t)n * sizeof(float));
    }
}

#endif
