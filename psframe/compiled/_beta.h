/* Symmetric beta numbers (psf_beta) out of sums, products and square roots, which every CPU rounds alike: libm picks
other instructions for its logarithms, powers and cosines from CPU to CPU. */
#ifndef PSFRAME_BETA_H
#define PSFRAME_BETA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define PSF_LN2 0.69314718055994530942
#define PSF_TWO_PI 6.28318530717958647693
#define PSF_SQRT2 1.41421356237309504880

/* The base-2 logarithm of a normal x > 0: its exponent, and the series of artanh for the rest. */
static inline double psf_log2(double x) {
    uint64_t bits;
    double m, sum = 0;
    memcpy(&bits, &x, 8);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFu) | (1023ull << 52);
    memcpy(&m, &bits, 8);
    if (m > PSF_SQRT2) m *= 0.5, exponent++;
    double s = (m - 1) / (m + 1);
    for (int k = 21; k >= 1; k -= 2) sum = sum * (s * s) + 1.0 / k;
    return exponent + 2 * s * sum / PSF_LN2;
}

/* 2 to the power of x >= 0. */
static inline double psf_exp2(double x) {
    if (!(x < 1024)) return INFINITY;
    uint64_t whole = (uint64_t)x, bits = (1023 + whole) << 52;
    double power, f = (x - (double)whole) * PSF_LN2, sum = 1;
    for (int k = 18; k >= 1; k--) sum = 1 + sum * f / k;
    memcpy(&power, &bits, 8);
    return power * sum;
}

/* The cosine of v turns, 0 <= v < 1. */
static inline double psf_cosine(double v) {
    if (v > 0.5) v = 1 - v;
    double sign = v > 0.25 ? -1 : 1, angle = PSF_TWO_PI * (v > 0.25 ? 0.5 - v : v), sum = 1;
    for (int k = 22; k >= 2; k -= 2) sum = 1 - sum * angle * angle / (k * (k - 1));
    return sign * sum;
}

/* A number of Beta(alpha, alpha), alpha > 0, from two uniform ones in [0, 1): Devroye 1996, "Random variate generation
in one line of code", by Bailey's t-distributed numbers (1994). */
static inline float psf_beta(double alpha, float u, float v) {
    double cosine = psf_cosine(v);
    double q = (psf_exp2(-psf_log2(1 - (double)u) / alpha) - 1) * cosine * cosine;
    return q > 0 ? (float)(0.5 + copysign(0.5, cosine) / sqrt(1 + 1 / q)) : 0.5f;
}

#endif
