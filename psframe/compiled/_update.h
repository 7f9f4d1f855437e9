/* Sums and updates of flat float32 vectors, element by element in one fixed order of operations.

Compiled without fused multiply-add and without fast-math (setup.py), so that a wider vector register changes no bit:
each function is compiled for several widths, and the loader selects the widest that the CPU has. */
#ifndef PSFRAME_UPDATE_H
#define PSFRAME_UPDATE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_widest.h"

enum { PSF_SGD, PSF_MOMENTUM, PSF_NESTEROV, PSF_ADAM, PSF_ADAGRAD };

typedef struct {
    int kind;
    float lr, decay, momentum, beta1, beta2, eps, correct1, correct2;
} psf_rule;

/* numbers per block, whose sum stays in the L1 cache while every row is added */
#define PSF_BLOCK 2048
/* the same for a tree, whose partial sums must all stay there */
#define PSF_TREE_BLOCK 512
/* most partial sums: trees of up to 2^(PSF_TREE_DEPTH - 1) rows */
#define PSF_TREE_DEPTH 12
/* most state numbers of a rule for each parameter */
#define PSF_STATE 2
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

/* w <- w - lr (g + decay w) */
PSF_WIDEST static void psf_sgd(psf_rule rule, long size, const float *g, const float *w, float *new_w) {
    float lr = rule.lr, decay = rule.decay;
    for (long i = 0; i < size; i++)
        new_w[i] = w[i] - lr * (g[i] + decay * w[i]);
}

/* v <- mu v + (g + decay w); w <- w - lr v (Polyak 1964) */
PSF_WIDEST static void psf_momentum(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                    const float *v, float *new_v) {
    float lr = rule.lr, decay = rule.decay, mu = rule.momentum;
    for (long i = 0; i < size; i++) {
        float moved = mu * v[i] + (g[i] + decay * w[i]);
        new_v[i] = moved;
        new_w[i] = w[i] - lr * moved;
    }
}

/* d = g + decay w; v <- mu v + d; w <- w - lr (d + mu v) (Nesterov 1983, in the form of Sutskever et al. 2013) */
PSF_WIDEST static void psf_nesterov(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                    const float *v, float *new_v) {
    float lr = rule.lr, decay = rule.decay, mu = rule.momentum;
    for (long i = 0; i < size; i++) {
        float d = g[i] + decay * w[i];
        float moved = mu * v[i] + d;
        new_v[i] = moved;
        new_w[i] = w[i] - lr * (d + mu * moved);
    }
}

/* Kingma and Ba 2015, algorithm 1; `correct1` and `correct2` are its 1 - beta**t */
PSF_WIDEST static void psf_adam(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                const float *m, float *new_m, const float *v, float *new_v) {
    float lr = rule.lr, decay = rule.decay, beta1 = rule.beta1, beta2 = rule.beta2, eps = rule.eps;
    float rest1 = 1 - beta1, rest2 = 1 - beta2, correct1 = rule.correct1, correct2 = rule.correct2;
    for (long i = 0; i < size; i++) {
        float d = g[i] + decay * w[i];
        float first = beta1 * m[i] + rest1 * d;
        float second = beta2 * v[i] + rest2 * d * d;
        new_m[i] = first;
        new_v[i] = second;
        new_w[i] = w[i] - lr * (first / correct1) / (sqrtf(second / correct2) + eps);
    }
}

/* d = g + decay w; s <- s + d d; w <- w - lr d / (sqrt(s) + eps) (Duchi, Hazan and Singer 2011) */
PSF_WIDEST static void psf_adagrad(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                   const float *s, float *new_s) {
    float lr = rule.lr, decay = rule.decay, eps = rule.eps;
    for (long i = 0; i < size; i++) {
        float d = g[i] + decay * w[i];
        float sum = s[i] + d * d;
        new_s[i] = sum;
        new_w[i] = w[i] - lr * d / (sqrtf(sum) + eps);
    }
}

static void psf_apply(psf_rule rule, long size, const float *g, const float *w, float *new_w, const float *m,
                      float *new_m, const float *v, float *new_v) {
    switch (rule.kind) {
    case PSF_SGD:
        psf_sgd(rule, size, g, w, new_w);
        break;
    case PSF_MOMENTUM:
        psf_momentum(rule, size, g, w, new_w, m, new_m);
        break;
    case PSF_NESTEROV:
        psf_nesterov(rule, size, g, w, new_w, m, new_m);
        break;
    case PSF_ADAGRAD:
        psf_adagrad(rule, size, g, w, new_w, m, new_m);
        break;
    default:
        psf_adam(rule, size, g, w, new_w, m, new_m, v, new_v);
    }
}

/* half = v as bfloat16, the upper half of its bits: to nearest even, subnormal numbers to zeros of their sign, NaN
quiet; as psframe.nn.bfloat16.rounded */
PSF_WIDEST static void psf_narrow(const float *v, long size, uint16_t *half) {
    for (long i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        uint32_t upper = bits >> 16, near = (bits + 0x7fffu + (upper & 1u)) >> 16;
        near = (bits & 0x7fffffffu) > 0x7f800000u ? upper | 0x40u : near;
        half[i] = (uint16_t)((bits & 0x7f800000u) == 0 ? upper & 0x8000u : near);
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

/* Mean and update in one pass: the mean of a block goes from the cache into the rule, which is for the first `trained`
numbers; it is subtracted from the others, which have no state. Old and new vectors may be the same. Returns 1 if the
mean is finite. `sums`, if not NULL, receives the checksums of the old parameters and state, and from index
1 + PSF_STATE on those of the new ones, and `half`, if not NULL, the new parameters as bfloat16, while they are in the
cache. */
static int psf_step(const float *const *row, const int *merges, long n_rows, long size, long trained, float n,
                    psf_rule rule, int n_state, const float *w, float *new_w, const float *const *state,
                    float *const *new_state, uint64_t *sums, uint16_t *half) {
    const psf_rule as_it_is = {.kind = PSF_SGD, .lr = 1};
    float mean[PSF_BLOCK];
    int finite = 1;
    for (long at = 0; at < size; at += PSF_BLOCK) {
        long part = size - at < PSF_BLOCK ? size - at : PSF_BLOCK;
        const float *old[PSF_STATE] = {NULL, NULL};
        float *new[PSF_STATE] = {NULL, NULL};
        for (int k = 0; k < n_state; k++) {
            old[k] = state[k] + at;
            new[k] = new_state[k] + at;
        }
        if (sums) {
            sums[0] = psf_checksum_block(sums[0], w + at, part);
            for (int k = 0; k < n_state; k++)
                sums[1 + k] = psf_checksum_block(sums[1 + k], old[k], part);
        }
        finite &= psf_ordered(row, merges, n_rows, at, part, n, mean);
        long head = trained <= at ? 0 : trained - at < part ? trained - at : part;
        psf_apply(rule, head, mean, w + at, new_w + at, old[0], new[0], old[1], new[1]);
        psf_apply(as_it_is, part - head, mean + head, w + at + head, new_w + at + head, NULL, NULL, NULL, NULL);
        if (half)
            psf_narrow(new_w + at, part, half + at);
        if (sums) {
            uint64_t *written = sums + 1 + PSF_STATE;
            written[0] = psf_checksum_block(written[0], new_w + at, part);
            for (int k = 0; k < n_state; k++)
                written[1 + k] = psf_checksum_block(written[1 + k], new[k], part);
        }
    }
    return finite;
}

#endif
