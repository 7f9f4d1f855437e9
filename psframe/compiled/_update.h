/* Sums and checksums of flat float32 vectors, element by element in one fixed order of operations.

Compiled without fused multiply-add and without fast-math (setup.py), so that a wider vector register changes no bit:
each function is compiled for several widths, and the loader selects the widest that the CPU has. */
#ifndef PSFRAME_UPDATE_H
#define PSFRAME_UPDATE_H

#include <stdint.h>
#include <string.h>

#include "_widest.h"

/* numbers per block, whose sum stays in the L1 cache while every row is added */
#define PSF_BLOCK 2048
/* the same for a tree, whose partial sums must all stay there */
#define PSF_TREE_BLOCK 512
/* most partial sums: trees of up to 2^(PSF_TREE_DEPTH - 1) rows */
#define PSF_TREE_DEPTH 12
/* running sums of a checksum, as many as fill the widest register, and their weight */
#define PSF_LANES 8
#define PSF_ODD 0x9e3779b97f4a7c15u

/* out = (((row[0] + row[1]) + row[2]) + ...) / n, from `at` on, `size` numbers; returns 1 if all are finite. */
PSF_WIDEST static int psf_mean(const float *const *row, long n_rows, long at, long size, float n, float *restrict out) {
    const float *restrict a = row[0] + at;
    if (out != a)
        memcpy(out, a, (size_t)size * sizeof(float));
    long r = 1;
    for (; r + 3 < n_rows; r += 4) { /* four rows at a time, in their order, for one pass over the sum */
        a = row[r] + at;
        const float *restrict b = row[r + 1] + at, *restrict c = row[r + 2] + at, *restrict d = row[r + 3] + at;
        for (long i = 0; i < size; i++)
            out[i] = (((out[i] + a[i]) + b[i]) + c[i]) + d[i];
    }
    for (; r < n_rows; r++) {
        a = row[r] + at;
        for (long i = 0; i < size; i++)
            out[i] = out[i] + a[i];
    }
    uint32_t wild = 0;
    for (long i = 0; i < size; i++) {
        uint32_t bits;
        out[i] = out[i] / n;
        memcpy(&bits, &out[i], sizeof bits);
        wild |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !wild;
}

/* The same with the sum as a tree: after row r is pushed on a stack, its two topmost sums are added merges[r] times. A
part of `out` is written after all of its inputs are read, so that `out` may be any of the rows. */
PSF_WIDEST static int psf_tree(const float *const *row, const int *merges, long n_rows, long at, long size, float n,
                               float *out) {
    float stack[PSF_TREE_DEPTH][PSF_TREE_BLOCK];
    uint32_t wild = 0;
    for (long begin = 0; begin < size; begin += PSF_TREE_BLOCK) {
        long part = size - begin < PSF_TREE_BLOCK ? size - begin : PSF_TREE_BLOCK;
        int top = -1;
        for (long r = 0; r < n_rows; r++) {
            const float *restrict a = row[r] + at + begin;
            if (merges[r]) {
                float *restrict sum = stack[top];
                for (long i = 0; i < part; i++)
                    sum[i] = sum[i] + a[i];
            } else if (r + 1 < n_rows && merges[r + 1]) { /* two rows in one pass */
                const float *restrict b = row[++r] + at + begin;
                float *restrict sum = stack[++top];
                for (long i = 0; i < part; i++)
                    sum[i] = a[i] + b[i];
            } else {
                memcpy(stack[++top], a, (size_t)part * sizeof(float));
            }
            for (int m = 1; m < merges[r]; m++) {
                const float *restrict b = stack[top];
                float *restrict sum = stack[--top];
                for (long i = 0; i < part; i++)
                    sum[i] = sum[i] + b[i];
            }
        }
        float *restrict mean = out + begin;
        const float *restrict sum = stack[0];
        for (long i = 0; i < part; i++) {
            uint32_t bits;
            mean[i] = sum[i] / n;
            memcpy(&bits, &mean[i], sizeof bits);
            wild |= (bits & 0x7f800000u) == 0x7f800000u;
        }
    }
    return !wild;
}

/* The mean in the order of `merges`; NULL: the left fold. */
static int psf_ordered(const float *const *row, const int *merges, long n_rows, long at, long size, float n, float *out) {
    if (merges)
        return psf_tree(row, merges, n_rows, at, size, n, out);
    return psf_mean(row, n_rows, at, size, n, out);
}

/* bf16 = v as bfloat16, the upper half of its bits: to nearest even, subnormal numbers to zeros of their sign, NaN
quiet; as psframe.nn.bfloat16.rounded */
PSF_WIDEST static void psf_narrow(const float *v, long size, uint16_t *bf16) {
    for (long i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        uint32_t upper = bits >> 16, near = (bits + 0x7fffu + (upper & 1u)) >> 16;
        near = (bits & 0x7fffffffu) > 0x7f800000u ? upper | 0x40u : near;
        bf16[i] = (uint16_t)((bits & 0x7f800000u) == 0 ? upper & 0x8000u : near);
    }
}

/* Continue a checksum over another block. Every lane sums its words and their running sums, so that the place of a word
counts, too. The weights of the first are odd and those of the second even: a flipped bit k changes a checksum by an odd
number times 2**k, which is never 0. */
PSF_WIDEST static uint64_t psf_checksum_block(uint64_t sum, const float *v, long size) {
    uint64_t words[PSF_LANES] = {0}, places[PSF_LANES] = {0}, word[PSF_LANES];
    const long step = PSF_LANES * (long)(sizeof(uint64_t) / sizeof(float));
    long i = 0;
    for (; i + step <= size; i += step) {
        memcpy(word, v + i, sizeof word);
        for (int lane = 0; lane < PSF_LANES; lane++) {
            words[lane] += word[lane];
            places[lane] += words[lane];
        }
    }
    memset(word, 0, sizeof word);
    memcpy(word, v + i, (size_t)(size - i) * sizeof(float));
    for (int lane = 0; lane < PSF_LANES; lane++) {
        words[lane] += word[lane];
        places[lane] += words[lane];
        uint64_t odd = PSF_ODD + 2 * (uint64_t)lane * PSF_ODD;
        sum = sum * PSF_ODD + odd * words[lane] + 2 * odd * places[lane];
    }
    return sum;
}

static uint64_t psf_checksum(const float *v, long size) {
    uint64_t sum = 0;
    for (long at = 0; at < size; at += PSF_BLOCK)
        sum = psf_checksum_block(sum, v + at, size - at < PSF_BLOCK ? size - at : PSF_BLOCK);
    return sum;
}

/* Returns 1 if all numbers are finite. */
PSF_WIDEST static int psf_is_finite(const float *v, long size) {
    uint32_t wild = 0;
    for (long i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        wild |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !wild;
}

#endif
