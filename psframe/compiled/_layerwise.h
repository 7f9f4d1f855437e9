/* Updates that need norms of whole tensors, or of the whole gradient (psf_step_whole).

A norm is summed in float64 over blocks from the tensor's first number on, each in PSF_SQUARES running sums: its bits
depend on the tensor alone, not on the segment that it is a part of. */
#ifndef PSFRAME_LAYERWISE_H
#define PSFRAME_LAYERWISE_H

#include "_step.h"

#define PSF_SQUARES 8

/* Sum of the squares of a block. */
PSF_WIDEST static double psf_squares(const float *v, long size) {
    double sums[PSF_SQUARES] = {0};
    long i = 0;
    for (; i + PSF_SQUARES <= size; i += PSF_SQUARES)
        for (int lane = 0; lane < PSF_SQUARES; lane++)
            sums[lane] += (double)v[i + lane] * (double)v[i + lane];
    for (int lane = 0; i < size; i++, lane++)
        sums[lane] += (double)v[i] * (double)v[i];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/* v <- mu v + local (g + decay w); w <- w - v (You, Gitman and Ginsburg 2017, algorithm 1) */
PSF_WIDEST static void psf_lars(psf_rule rule, float local, long size, const float *g, const float *w, float *new_w,
                                const float *v, float *new_v) {
    float decay = rule.decay, mu = rule.momentum;
    for (long i = 0; i < size; i++) {
        float moved = mu * v[i] + local * (g[i] + decay * w[i]);
        new_v[i] = moved;
        new_w[i] = w[i] - moved;
    }
}

/* The moments of LAMB, and in place of g its r = m^ / (sqrt(v^) + eps) + decay w (You et al. 2020, algorithm 2) */
PSF_WIDEST static void psf_lamb(psf_rule rule, long size, float *g, const float *w, const float *m, float *new_m,
                                const float *v, float *new_v) {
    float decay = rule.decay, beta1 = rule.beta1, beta2 = rule.beta2, eps = rule.eps;
    float rest1 = 1 - beta1, rest2 = 1 - beta2, correct1 = rule.correct1, correct2 = rule.correct2;
    for (long i = 0; i < size; i++) {
        float first = beta1 * m[i] + rest1 * g[i];
        float second = beta2 * v[i] + rest2 * g[i] * g[i];
        new_m[i] = first;
        new_v[i] = second;
        g[i] = (first / correct1) / (sqrtf(second / correct2) + eps) + decay * w[i];
    }
}

/* Write the gradient of `size` numbers from `at` of the segment on to `g`, limited; returns 1 if the mean is finite. */
static int psf_gradient(const psf_source *mean, psf_rule rule, const psf_part *part, float factor, long at, long size,
                        float *g) {
    int finite = psf_ordered(mean->row, mean->merges, mean->n_rows, at, size, mean->n, g);
    psf_limit(rule, part, factor, size, g);
    return finite;
}

/* Update a tensor from `at` of the segment on by a rule of whole tensors; `g` has room for its gradient. */
static int psf_tensor(const psf_source *mean, const psf_part *part, psf_rule rule, float factor, long at, float *g,
                      const psf_target *to) {
    long n = part->stop - part->start;
    double of_w = 0, of_g = 0;
    int finite = 1;
    psf_rule own = psf_of_part(rule, part);
    for (long i = 0; i < n; i += PSF_BLOCK) {
        long size = n - i < PSF_BLOCK ? n - i : PSF_BLOCK;
        finite &= psf_gradient(mean, rule, part, factor, at + i, size, g + i);
        if (own.kind == PSF_LAMB)
            psf_lamb(own, size, g + i, to->w + at + i, to->state[0] + at + i, to->new_state[0] + at + i,
                     to->state[1] + at + i, to->new_state[1] + at + i);
        of_w += psf_squares(to->w + at + i, size);
        of_g += psf_squares(g + i, size);
    }
    double ratio = 1;
    of_w = sqrt(of_w);
    of_g = sqrt(of_g);
    if (part->adapts && of_w > 0 && of_g > 0)
        ratio = own.kind == PSF_LAMB ? (of_w < own.trust ? of_w : own.trust) / of_g
                                     : own.trust * of_w / (of_g + own.decay * of_w + own.eps);
    float local = (float)(own.lr * ratio);
    if (own.kind == PSF_LARS) {
        psf_lars(own, local, n, g, to->w + at, to->new_w + at, to->state[0] + at, to->new_state[0] + at);
    } else {
        psf_rule along = {.kind = PSF_SGD, .lr = local};
        psf_sgd(along, n, g, to->w + at, to->new_w + at);
    }
    return finite;
}

/* Update a part by an elementwise rule, block by block. */
static int psf_blocks(const psf_source *mean, const psf_part *part, psf_rule rule, float factor, long at,
                      const psf_target *to) {
    float g[PSF_BLOCK];
    long n = part->stop - part->start;
    int finite = 1;
    for (long i = 0; i < n; i += PSF_BLOCK) {
        long size = n - i < PSF_BLOCK ? n - i : PSF_BLOCK;
        finite &= psf_ordered(mean->row, mean->merges, mean->n_rows, at + i, size, mean->n, g);
        psf_update(rule, part, factor, at + i, size, g, to);
    }
    return finite;
}

/* Return the factor by which the gradient of all trained parts has at most the norm `rule.clip_norm` (Pascanu, Mikolov
and Bengio 2013), as PyTorch's clip_grad_norm_. */
static float psf_factor(const psf_source *mean, const psf_part *parts, long n_parts, psf_rule rule) {
    float g[PSF_BLOCK];
    double total = 0;
    for (long p = 0; p < n_parts; p++) {
        double of_part = 0;
        for (long i = parts[p].start; parts[p].trained && i < parts[p].stop; i += PSF_BLOCK) {
            long size = parts[p].stop - i < PSF_BLOCK ? parts[p].stop - i : PSF_BLOCK;
            psf_gradient(mean, rule, &parts[p], 1, i - mean->begin, size, g);
            of_part += psf_squares(g, size);
        }
        total += of_part;
    }
    double factor = rule.clip_norm / (sqrt(total) + 1e-6);
    return factor < 1 || factor != factor ? (float)factor : 1;
}

/* Return 1 if a segment cuts no part, and where the whole gradient's norm is needed has all of them. */
static int psf_is_whole(const psf_source *mean, const psf_part *parts, long n_parts, int needs_all) {
    long begin = mean->begin, end = begin + mean->size;
    for (long p = 0; p < n_parts; p++) {
        int is_inside = begin <= parts[p].start && parts[p].stop <= end;
        int is_outside = parts[p].stop <= begin || end <= parts[p].start;
        if (!is_inside && (!is_outside || needs_all))
            return 0;
    }
    return 1;
}

/* The same as psf_step for any rule, of a segment for which psf_is_whole; `scratch` has room for the longest part. */
static int psf_step_whole(const psf_source *mean, const psf_part *parts, long n_parts, psf_rule rule, float *scratch,
                          const psf_target *to) {
    int finite = 1;
    long begin = mean->begin, end = begin + mean->size;
    for (long at = 0; at < mean->size; at += PSF_BLOCK)
        psf_sum_old(to, at, mean->size - at < PSF_BLOCK ? mean->size - at : PSF_BLOCK);
    float factor = rule.clip_norm > 0 ? psf_factor(mean, parts, n_parts, rule) : 1;
    for (long p = 0; p < n_parts; p++) {
        if (parts[p].start < begin || parts[p].stop > end)
            continue;
        long at = parts[p].start - begin;
        if (rule.kind >= PSF_LARS && parts[p].trained)
            finite &= psf_tensor(mean, &parts[p], rule, factor, at, scratch, to);
        else
            finite &= psf_blocks(mean, &parts[p], rule, factor, at, to);
    }
    for (long at = 0; at < mean->size; at += PSF_BLOCK)
        psf_leave(to, at, mean->size - at < PSF_BLOCK ? mean->size - at : PSF_BLOCK);
    return finite;
}

#endif
