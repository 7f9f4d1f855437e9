/* Elementwise rules of optimizers (psf_rule), and the parts of a vector that they are for (psf_part). */
#ifndef PSFRAME_RULES_H
#define PSFRAME_RULES_H

#include <math.h>
#include <string.h>

#include "_widest.h"

/* from PSF_LARS on, of whole tensors (_layerwise.h) */
enum {
    PSF_SGD,
    PSF_MOMENTUM,
    PSF_NESTEROV,
    PSF_MOMENTUM_W,
    PSF_NESTEROV_W,
    PSF_ADAM,
    PSF_ADAM_W,
    PSF_ADAGRAD,
    PSF_LION,
    PSF_LARS,
    PSF_LAMB
};

typedef struct {
    int kind;
    float lr, decay, momentum, beta1, beta2, eps, correct1, correct2;
    float trust;      /* LARS: its coefficient; LAMB: the most that a norm of parameters counts */
    float clip_value; /* the most that a number of the gradient may be; 0: any */
    double clip_norm; /* the most that the norm of the whole gradient may be; 0: any */
} psf_rule;

/* The numbers of a vector from `start` to `stop`. `trained`: the rule is for them, with `lr` times its rate and `decay` in
place of its own; else the mean is subtracted. `adapts`: a rule of whole tensors scales their update by norms. */
typedef struct {
    long start, stop;
    float lr, decay;
    int trained, adapts;
} psf_part;

/* most state numbers for each parameter: of a rule, and an average */
#define PSF_STATE 3

static psf_rule psf_of_part(psf_rule rule, const psf_part *part) {
    const psf_rule as_it_is = {.kind = PSF_SGD, .lr = 1};
    if (!part->trained)
        return as_it_is;
    rule.lr *= part->lr;
    rule.decay = part->decay;
    return rule;
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

/* The same two with the decay beside the velocity (SGDW: Loshchilov and Hutter 2019, algorithm 1; `lr` multiplies the
velocity and the decay, where the paper has the schedule's factor before the decay): v <- mu v + g;
w <- w - lr (v + decay w), or w - lr (g + mu v + decay w) */
PSF_WIDEST static void psf_momentum_w(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                      const float *v, float *new_v) {
    float lr = rule.lr, decay = rule.decay, mu = rule.momentum;
    for (long i = 0; i < size; i++) {
        float moved = mu * v[i] + g[i];
        new_v[i] = moved;
        new_w[i] = w[i] - lr * (moved + decay * w[i]);
    }
}

PSF_WIDEST static void psf_nesterov_w(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                      const float *v, float *new_v) {
    float lr = rule.lr, decay = rule.decay, mu = rule.momentum;
    for (long i = 0; i < size; i++) {
        float moved = mu * v[i] + g[i];
        new_v[i] = moved;
        new_w[i] = w[i] - lr * ((g[i] + mu * moved) + decay * w[i]);
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

/* The same with the decay beside the moments (Loshchilov and Hutter 2019, algorithm 2), times the rate, as PyTorch has
it */
PSF_WIDEST static void psf_adam_w(psf_rule rule, long size, const float *g, const float *w, float *new_w,
                                  const float *m, float *new_m, const float *v, float *new_v) {
    float lr = rule.lr, decay = rule.decay, beta1 = rule.beta1, beta2 = rule.beta2, eps = rule.eps;
    float rest1 = 1 - beta1, rest2 = 1 - beta2, correct1 = rule.correct1, correct2 = rule.correct2;
    for (long i = 0; i < size; i++) {
        float first = beta1 * m[i] + rest1 * g[i];
        float second = beta2 * v[i] + rest2 * g[i] * g[i];
        new_m[i] = first;
        new_v[i] = second;
        new_w[i] = w[i] - lr * ((first / correct1) / (sqrtf(second / correct2) + eps) + decay * w[i]);
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

/* c = beta1 m + (1 - beta1) g; m <- beta2 m + (1 - beta2) g; w <- w - lr (sign(c) + decay w) (Chen et al. 2023,
algorithm 2) */
PSF_WIDEST static void psf_lion(psf_rule rule, long size, const float *g, const float *w, float *new_w, const float *m,
                                float *new_m) {
    float lr = rule.lr, decay = rule.decay, beta1 = rule.beta1, beta2 = rule.beta2;
    float rest1 = 1 - beta1, rest2 = 1 - beta2;
    for (long i = 0; i < size; i++) {
        float c = beta1 * m[i] + rest1 * g[i];
        new_m[i] = beta2 * m[i] + rest2 * g[i];
        float sign = (float)((c > 0) - (c < 0));
        new_w[i] = w[i] - lr * ((c != c ? c : sign) + decay * w[i]);
    }
}

/* g limited to -most and most; NaN stays */
PSF_WIDEST static void psf_clip(float *g, long size, float most) {
    for (long i = 0; i < size; i++)
        g[i] = g[i] > most ? most : g[i] < -most ? -most : g[i];
}

/* g <- factor g */
PSF_WIDEST static void psf_scale(float *g, long size, float factor) {
    for (long i = 0; i < size; i++)
        g[i] = factor * g[i];
}

/* a <- a + rate (w - a): of an average, a share `rate` is the new parameters' */
PSF_WIDEST static void psf_average(float rate, long size, const float *w, const float *a, float *new_a) {
    if (rate == 1) {
        memcpy(new_a, w, (size_t)size * sizeof(float));
        return;
    }
    for (long i = 0; i < size; i++)
        new_a[i] = a[i] + rate * (w[i] - a[i]);
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
    case PSF_MOMENTUM_W:
        psf_momentum_w(rule, size, g, w, new_w, m, new_m);
        break;
    case PSF_NESTEROV_W:
        psf_nesterov_w(rule, size, g, w, new_w, m, new_m);
        break;
    case PSF_ADAGRAD:
        psf_adagrad(rule, size, g, w, new_w, m, new_m);
        break;
    case PSF_LION:
        psf_lion(rule, size, g, w, new_w, m, new_m);
        break;
    case PSF_ADAM_W:
        psf_adam_w(rule, size, g, w, new_w, m, new_m, v, new_v);
        break;
    default:
        psf_adam(rule, size, g, w, new_w, m, new_m, v, new_v);
    }
}

#endif
