/* Folds of ranks' values in their order (psf_fold): ((row 0 + row 1) + row 2) + ..., rounded to the type at each term.

So a sum has the bits that adding the tensors one after the other has, on every rank, CPU and width of a register.
float16 and bfloat16 are computed in float32, and rounded to nearest even after each term. */
#ifndef PSFRAME_FOLD_H
#define PSFRAME_FOLD_H

#include <stdint.h>
#include <string.h>

#include "_widest.h"

enum { PSF_SUM, PSF_AVG, PSF_PRODUCT, PSF_MIN, PSF_MAX, PSF_BAND, PSF_BOR, PSF_BXOR };
/* types of elements, in the order of psframe/torch/types.py */
enum {
    PSF_F32, PSF_F64, PSF_F16, PSF_BF16, PSF_C64, PSF_C128, PSF_BOOL,
    PSF_U8, PSF_I8, PSF_I16, PSF_I32, PSF_I64, PSF_U16, PSF_U32, PSF_U64, PSF_TYPES
};
/* bytes of a block, whose result stays in the L1 cache while every row is added */
#define PSF_FOLD_BLOCK 8192

typedef struct { float re, im; } psf_c64;
typedef struct { double re, im; } psf_c128;

static inline float psf_from_bf16(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t psf_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t even = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (uint16_t)even;
}

/* By a multiplication that scales the exponent, subnormal numbers included; infinities and NaN get theirs back. */
static inline float psf_from_f16(uint16_t half) {
    const uint32_t scale_bits = 0x77800000u; /* 2^112 */
    uint32_t bits = (uint32_t)(half & 0x7fffu) << 13, sign = (uint32_t)(half & 0x8000u) << 16;
    float value, scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    memcpy(&value, &bits, sizeof value);
    value *= scale;
    memcpy(&bits, &value, sizeof bits);
    bits = (half & 0x7c00u) == 0x7c00u ? bits | 0x7f800000u : bits;
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t psf_to_f16(float value) {
    const uint32_t magic_bits = 126u << 23; /* 0.5: its last place is the last of a subnormal number of 16 bits */
    uint32_t bits, small_bits;
    float magic, small;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    memcpy(&small, &bits, sizeof small);
    memcpy(&magic, &magic_bits, sizeof magic);
    small += magic; /* rounds to nearest even */
    memcpy(&small_bits, &small, sizeof small_bits);
    uint32_t normal = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1)) >> 13;
    uint32_t result = bits < (113u << 23) ? small_bits - magic_bits : normal;
    result = bits >= (143u << 23) ? 0x7c00u : result;
    result = bits > 0x7f800000u ? 0x7e00u : result;
    return (uint16_t)(result | sign);
}

#define PSF_SAME(v) (v)
#define PSF_ADD(a, b) ((a) + (b))
#define PSF_TIMES(a, b) ((a) * (b))
/* as torch.minimum: NaN goes through */
#define PSF_LEAST(a, b) ((a) != (a) ? (a) : (b) != (b) ? (b) : (b) < (a) ? (b) : (a))
#define PSF_MOST(a, b) ((a) != (a) ? (a) : (b) != (b) ? (b) : (b) > (a) ? (b) : (a))
#define PSF_AND(a, b) ((a) & (b))
#define PSF_OR(a, b) ((a) | (b))
#define PSF_XOR(a, b) ((a) ^ (b))

/* The fold of `n` elements from `at` on; three rows at a time, for fewer passes over the result. */
#define PSF_FOLD_OF(NAME, T, C, FROM, TO, OP)                                                                          \
    PSF_WIDEST static void psf_##NAME(const char *const *rows, long n_rows, long at, long n, void *result) {           \
        const T *const *row = (const T *const *)rows;                                                                  \
        T *restrict out = result;                                                                                      \
        const T *restrict a = row[0] + at, *restrict b = row[1] + at, *restrict c;                                     \
        for (long i = 0; i < n; i++)                                                                                   \
            out[i] = TO((C)OP(FROM(a[i]), FROM(b[i])));                                                                \
        long r = 2;                                                                                                    \
        for (; r + 2 < n_rows; r += 3) {                                                                               \
            a = row[r] + at, b = row[r + 1] + at, c = row[r + 2] + at;                                                 \
            for (long i = 0; i < n; i++) {                                                                             \
                T one = TO((C)OP(FROM(out[i]), FROM(a[i])));                                                           \
                T two = TO((C)OP(FROM(one), FROM(b[i])));                                                              \
                out[i] = TO((C)OP(FROM(two), FROM(c[i])));                                                             \
            }                                                                                                          \
        }                                                                                                              \
        for (; r < n_rows; r++) {                                                                                      \
            a = row[r] + at;                                                                                           \
            for (long i = 0; i < n; i++)                                                                               \
                out[i] = TO((C)OP(FROM(out[i]), FROM(a[i])));                                                          \
        }                                                                                                              \
    }
#define PSF_SHARE_OF(NAME, T, C, FROM, TO)                                                                             \
    PSF_WIDEST static void psf_share_##NAME(long n, long n_rows, void *result) {                                       \
        T *out = result;                                                                                               \
        for (long i = 0; i < n; i++)                                                                                   \
            out[i] = TO((C)(FROM(out[i]) / n_rows)); /* cast to C, so many rows might be less than none */              \
    }
#define PSF_ORDERED(NAME, T, C, FROM, TO)                                                                              \
    PSF_FOLD_OF(min_##NAME, T, C, FROM, TO, PSF_LEAST)                                                                 \
    PSF_FOLD_OF(max_##NAME, T, C, FROM, TO, PSF_MOST)                                                                  \
    PSF_SHARE_OF(NAME, T, C, FROM, TO)
#define PSF_SUMMED(NAME, T, C, FROM, TO)                                                                               \
    PSF_FOLD_OF(sum_##NAME, T, C, FROM, TO, PSF_ADD)                                                                   \
    PSF_FOLD_OF(product_##NAME, T, C, FROM, TO, PSF_TIMES)
#define PSF_BITWISE(NAME, T)                                                                                           \
    PSF_FOLD_OF(band_##NAME, T, T, PSF_SAME, PSF_SAME, PSF_AND)                                                        \
    PSF_FOLD_OF(bor_##NAME, T, T, PSF_SAME, PSF_SAME, PSF_OR)                                                          \
    PSF_FOLD_OF(bxor_##NAME, T, T, PSF_SAME, PSF_SAME, PSF_XOR)
#define PSF_FLOAT(NAME, T, C, FROM, TO) PSF_SUMMED(NAME, T, C, FROM, TO) PSF_ORDERED(NAME, T, C, FROM, TO)
/* sums and products of signed integers wrap: they are those of the unsigned ones */
#define PSF_INTEGER(N, T, U)                                                                                           \
    PSF_SUMMED(u##N, U, U, PSF_SAME, PSF_SAME)                                                                         \
    PSF_ORDERED(u##N, U, U, PSF_SAME, PSF_SAME)                                                                        \
    PSF_ORDERED(i##N, T, T, PSF_SAME, PSF_SAME)                                                                        \
    PSF_BITWISE(u##N, U)

PSF_FLOAT(f32, float, float, PSF_SAME, PSF_SAME)
PSF_FLOAT(f64, double, double, PSF_SAME, PSF_SAME)
PSF_FLOAT(f16, uint16_t, float, psf_from_f16, psf_to_f16)
PSF_FLOAT(bf16, uint16_t, float, psf_from_bf16, psf_to_bf16)
PSF_INTEGER(8, int8_t, uint8_t)
PSF_INTEGER(16, int16_t, uint16_t)
PSF_INTEGER(32, int32_t, uint32_t)
PSF_INTEGER(64, int64_t, uint64_t)

#define PSF_COMPLEX(NAME, T)                                                                                           \
    PSF_WIDEST static void psf_product_##NAME(const char *const *rows, long n_rows, long at, long n, void *result) {   \
        T *restrict out = result;                                                                                      \
        memcpy(out, (const T *)rows[0] + at, (size_t)n * sizeof(T));                                                   \
        for (long r = 1; r < n_rows; r++) {                                                                            \
            const T *restrict a = (const T *)rows[r] + at;                                                             \
            for (long i = 0; i < n; i++) {                                                                             \
                T b = out[i];                                                                                          \
                out[i].re = b.re * a[i].re - b.im * a[i].im;                                                           \
                out[i].im = b.re * a[i].im + b.im * a[i].re;                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }
PSF_COMPLEX(c64, psf_c64)
PSF_COMPLEX(c128, psf_c128)

#define PSF_CASE(OP, NAME)                                                                                             \
    case OP:                                                                                                           \
        psf_##NAME(rows, n_rows, at, n, out);                                                                          \
        return 1;
#define PSF_CASES_FLOAT(NAME)                                                                                          \
    switch (op) {                                                                                                      \
        PSF_CASE(PSF_SUM, sum_##NAME)                                                                                  \
        PSF_CASE(PSF_PRODUCT, product_##NAME)                                                                          \
        PSF_CASE(PSF_MIN, min_##NAME)                                                                                  \
        PSF_CASE(PSF_MAX, max_##NAME)                                                                                  \
    }                                                                                                                  \
    return 0;
#define PSF_CASES_INTEGER(S, U)                                                                                        \
    switch (op) {                                                                                                      \
        PSF_CASE(PSF_SUM, sum_##U)                                                                                     \
        PSF_CASE(PSF_PRODUCT, product_##U)                                                                             \
        PSF_CASE(PSF_MIN, min_##S)                                                                                     \
        PSF_CASE(PSF_MAX, max_##S)                                                                                     \
        PSF_CASE(PSF_BAND, band_##U)                                                                                   \
        PSF_CASE(PSF_BOR, bor_##U)                                                                                     \
        PSF_CASE(PSF_BXOR, bxor_##U)                                                                                   \
    }                                                                                                                  \
    return 0;

/* bool: a sum is an or, a product an and, as of torch's; its values are 0 and 1 */
static inline int psf_logical(int op) {
    return op == PSF_SUM || op == PSF_MAX ? PSF_BOR : op == PSF_PRODUCT || op == PSF_MIN ? PSF_BAND : op;
}

/* Fold at least two rows, from their element `at` on; returns 0 if the type has no such operation. */
static int psf_fold_rows(int type, int op, const char *const *rows, long n_rows, long at, long n, void *out) {
    switch (type) {
    case PSF_F32: PSF_CASES_FLOAT(f32)
    case PSF_F64: PSF_CASES_FLOAT(f64)
    case PSF_F16: PSF_CASES_FLOAT(f16)
    case PSF_BF16: PSF_CASES_FLOAT(bf16)
    case PSF_C64:
    case PSF_C128:
        if (op == PSF_SUM) /* parts apart */
            return psf_fold_rows(type == PSF_C64 ? PSF_F32 : PSF_F64, op, rows, n_rows, 2 * at, 2 * n, out);
        if (op == PSF_PRODUCT)
            (type == PSF_C64 ? psf_product_c64 : psf_product_c128)(rows, n_rows, at, n, out);
        return op == PSF_PRODUCT;
    case PSF_BOOL:
        op = psf_logical(op); /* falls through */
    case PSF_U8: PSF_CASES_INTEGER(u8, u8)
    case PSF_I8: PSF_CASES_INTEGER(i8, u8)
    case PSF_U16: PSF_CASES_INTEGER(u16, u16)
    case PSF_I16: PSF_CASES_INTEGER(i16, u16)
    case PSF_U32: PSF_CASES_INTEGER(u32, u32)
    case PSF_I32: PSF_CASES_INTEGER(i32, u32)
    case PSF_U64: PSF_CASES_INTEGER(u64, u64)
    case PSF_I64: PSF_CASES_INTEGER(i64, u64)
    }
    return 0;
}

#define PSF_SHARE_CASE(TYPE, NAME, TIMES)                                                                              \
    case TYPE:                                                                                                         \
        psf_share_##NAME((TIMES) * n, n_rows, out);                                                                    \
        return;

/* Divide a sum by the number of rows; integers toward zero. */
static void psf_share(int type, long n, long n_rows, void *out) {
    switch (type) {
        PSF_SHARE_CASE(PSF_F32, f32, 1)
        PSF_SHARE_CASE(PSF_F64, f64, 1)
        PSF_SHARE_CASE(PSF_F16, f16, 1)
        PSF_SHARE_CASE(PSF_BF16, bf16, 1)
        PSF_SHARE_CASE(PSF_C64, f32, 2)
        PSF_SHARE_CASE(PSF_C128, f64, 2)
        PSF_SHARE_CASE(PSF_U8, u8, 1)
        PSF_SHARE_CASE(PSF_I8, i8, 1)
        PSF_SHARE_CASE(PSF_U16, u16, 1)
        PSF_SHARE_CASE(PSF_I16, i16, 1)
        PSF_SHARE_CASE(PSF_U32, u32, 1)
        PSF_SHARE_CASE(PSF_I32, i32, 1)
        PSF_SHARE_CASE(PSF_U64, u64, 1)
        PSF_SHARE_CASE(PSF_I64, i64, 1)
    }
}

static const int psf_type_bytes[PSF_TYPES] = {4, 8, 2, 2, 8, 16, 1, 1, 1, 2, 4, 8, 2, 4, 8};

/* out = the fold of all rows' `n_bytes`, block by block; returns 0 if the type has no such operation. */
static int psf_fold(int type, int op, const char *const *rows, long n_rows, long n_bytes, char *out) {
    long size = psf_type_bytes[type], n = n_bytes / size, step = PSF_FOLD_BLOCK / size;
    int folded = op == PSF_AVG ? PSF_SUM : op;
    if (op == PSF_AVG && type == PSF_BOOL)
        return 0;
    for (long at = 0; at < n; at += step) {
        long k = n - at < step ? n - at : step;
        if (n_rows == 1)
            memcpy(out + at * size, rows[0] + at * size, (size_t)(k * size));
        else if (!psf_fold_rows(type, folded, rows, n_rows, at, k, out + at * size))
            return 0;
        if (op == PSF_AVG)
            psf_share(type, k, n_rows, out + at * size);
    }
    return 1;
}

#endif
