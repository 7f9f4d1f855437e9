/* Mean and update of a segment in one pass (psf_step): the mean of a block goes from the cache into the rules of its
parts. */
#ifndef PSFRAME_STEP_H
#define PSFRAME_STEP_H

#include "_rules.h"
#include "_update.h"

/* The mean over the samples of a segment, `size` numbers of a vector from `begin` on, as psf_ordered has it. */
typedef struct {
    const float *const *row;
    const int *merges;
    long n_rows, size, begin;
    float n;
} psf_source;

/* What a step reads and writes of the segment; old and new vectors may be the same. `averages`: the last row of state is
an average of the parameters, which takes a share `rate` of the new ones. `sums`, if not NULL, receives the checksums of
the old parameters and state, and from index 1 + PSF_STATE on those of the new ones, and `bf16`, if not NULL, the new
parameters as bfloat16. */
typedef struct {
    int n_state, averages;
    float rate;
    const float *w, *state[PSF_STATE];
    float *new_w, *new_state[PSF_STATE];
    uint64_t *sums;
    uint16_t *bf16;
} psf_target;

/* Limit the mean gradient of a part to the rule's range; `factor` is that of clipping by norm. */
static void psf_limit(psf_rule rule, const psf_part *part, float factor, long size, float *g) {
    if (part->trained && rule.clip_value > 0)
        psf_clip(g, size, rule.clip_value);
    if (part->trained && factor != 1)
        psf_scale(g, size, factor);
}

/* Update `size` numbers of a part, from `at` of the segment on, by their mean gradients `g`, which are overwritten. */
static void psf_update(psf_rule rule, const psf_part *part, float factor, long at, long size, float *g,
                       const psf_target *to) {
    const float *old[PSF_STATE] = {NULL};
    float *new[PSF_STATE] = {NULL};
    for (int k = 0; k < to->n_state; k++) {
        old[k] = to->state[k] + at;
        new[k] = to->new_state[k] + at;
    }
    psf_limit(rule, part, factor, size, g);
    psf_apply(psf_of_part(rule, part), size, g, to->w + at, to->new_w + at, old[0], new[0], old[1], new[1]);
}

static void psf_sum_old(const psf_target *to, long at, long size) {
    if (!to->sums)
        return;
    to->sums[0] = psf_checksum_block(to->sums[0], to->w + at, size);
    for (int k = 0; k < to->n_state; k++)
        to->sums[1 + k] = psf_checksum_block(to->sums[1 + k], to->state[k] + at, size);
}

/* Leave what else is wanted of new numbers: their average, bfloat16 and checksums. */
static void psf_leave(const psf_target *to, long at, long size) {
    int last = to->n_state - 1;
    if (to->averages)
        psf_average(to->rate, size, to->new_w + at, to->state[last] + at, to->new_state[last] + at);
    if (to->bf16)
        psf_narrow(to->new_w + at, size, to->bf16 + at);
    if (!to->sums)
        return;
    uint64_t *written = to->sums + 1 + PSF_STATE;
    written[0] = psf_checksum_block(written[0], to->new_w + at, size);
    for (int k = 0; k < to->n_state; k++)
        written[1 + k] = psf_checksum_block(written[1 + k], to->new_state[k] + at, size);
}

/* Update a segment by elementwise rules; returns 1 if the mean is finite. The parts are in the order of the vector, and
numbers of none stay as they are. */
static int psf_step(const psf_source *mean, const psf_part *parts, long n_parts, psf_rule rule, const psf_target *to) {
    float g[PSF_BLOCK];
    int finite = 1;
    long first = 0;
    for (long at = 0; at < mean->size; at += PSF_BLOCK) {
        long size = mean->size - at < PSF_BLOCK ? mean->size - at : PSF_BLOCK;
        long begin = mean->begin + at, end = begin + size;
        psf_sum_old(to, at, size);
        finite &= psf_ordered(mean->row, mean->merges, mean->n_rows, at, size, mean->n, g);
        while (first < n_parts && parts[first].stop <= begin)
            first++;
        for (long p = first; p < n_parts && parts[p].start < end; p++) {
            long from = parts[p].start > begin ? parts[p].start : begin;
            long stop = parts[p].stop < end ? parts[p].stop : end;
            psf_update(rule, &parts[p], 1, from - mean->begin, stop - from, g + (from - begin), to);
        }
        psf_leave(to, at, size);
    }
    return finite;
}

#endif
