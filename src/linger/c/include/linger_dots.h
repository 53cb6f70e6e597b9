/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dot products of windows with rows of weights: convolutions (NHWC), linear layers, recurrent products.
 *
 *   void linger_dots_<x>_<w>_<s>(s_t *sums, int32_t pixels, int32_t outputs,
 *                                const x_t *x, int32_t x_pixel, int32_t runs, int32_t x_step, int32_t length,
 *                                const w_t *w, int32_t w_output, int32_t w_step, const int32_t *bias)
 *
 *   sums[p * outputs + o] = (bias ? bias[o] : 0)
 *       + sum over r < runs, i < length of x[p * x_pixel + r * x_step + i] * w[o * w_output + r * w_step + i]
 *
 * for p < pixels, 1 <= pixels <= LINGER_PIXELS, and o < outputs. Window row r is one run of `length` numbers in x and in w.
 * <x> and <w> are 8 or 16, <s> is 32 or 64: the bits of the integers; <x> may be u8, unsigned bytes. The caller guarantees that the sum of any subset of the
 * products and the bias fits s_t. The functions add integers; they neither round nor saturate, so every variant is exact.
 */

#ifndef LINGER_DOTS_H
#define LINGER_DOTS_H

#include "linger_simd.h"

/* Two pixels and two outputs at a time: four products for four loaded numbers. The last of an odd number of outputs is
   computed twice, which needs no code of its own. */
#define LINGER_DEFINE_DOTS(NAME, X_T, W_T, S_T, PRODUCT_T)                                                                    \
    LINGER_INSIDE void NAME##_of_two(S_T *restrict sums, int32_t pixels, int32_t outputs, const X_T *restrict x,              \
                                     int32_t x_pixel, int32_t runs, int32_t x_step, int32_t length, const W_T *restrict w,    \
                                     int32_t w_output, int32_t w_step, const int32_t *restrict bias)                          \
    {                                                                                                                         \
        int32_t first;                                                                                                        \
        for (first = 0; first < outputs; first += 2) {                                                                        \
            const int32_t second = (first + 1 < outputs) ? (first + 1) : first;                                               \
            S_T sum_00 = (bias != NULL) ? (S_T)bias[first] : (S_T)0;                                                          \
            S_T sum_01 = (bias != NULL) ? (S_T)bias[second] : (S_T)0;                                                         \
            S_T sum_10 = sum_00;                                                                                              \
            S_T sum_11 = sum_01;                                                                                              \
            int32_t run;                                                                                                      \
            for (run = 0; run < runs; run++) {                                                                                \
                const X_T *x_0 = &x[run * x_step];                                                                            \
                const W_T *w_0 = &w[(first * w_output) + (run * w_step)];                                                     \
                const W_T *w_1 = &w[(second * w_output) + (run * w_step)];                                                    \
                int32_t i;                                                                                                    \
                if (pixels > 1) {                                                                                             \
                    const X_T *x_1 = &x_0[x_pixel];                                                                           \
                    for (i = 0; i < length; i++) {                                                                            \
                        sum_00 += (S_T)((PRODUCT_T)x_0[i] * (PRODUCT_T)w_0[i]);                                               \
                        sum_01 += (S_T)((PRODUCT_T)x_0[i] * (PRODUCT_T)w_1[i]);                                               \
                        sum_10 += (S_T)((PRODUCT_T)x_1[i] * (PRODUCT_T)w_0[i]);                                               \
                        sum_11 += (S_T)((PRODUCT_T)x_1[i] * (PRODUCT_T)w_1[i]);                                               \
                    }                                                                                                         \
                } else {                                                                                                      \
                    for (i = 0; i < length; i++) {                                                                            \
                        sum_00 += (S_T)((PRODUCT_T)x_0[i] * (PRODUCT_T)w_0[i]);                                               \
                        sum_01 += (S_T)((PRODUCT_T)x_0[i] * (PRODUCT_T)w_1[i]);                                               \
                    }                                                                                                         \
                }                                                                                                             \
            }                                                                                                                 \
            sums[first] = sum_00;                                                                                             \
            sums[second] = sum_01;                                                                                            \
            if (pixels > 1) {                                                                                                 \
                sums[outputs + first] = sum_10;                                                                               \
                sums[outputs + second] = sum_11;                                                                              \
            }                                                                                                                 \
        }                                                                                                                     \
    }                                                                                                                         \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t pixels, int32_t outputs, const X_T *restrict x, int32_t x_pixel,      \
                            int32_t runs, int32_t x_step, int32_t length, const W_T *restrict w, int32_t w_output,            \
                            int32_t w_step, const int32_t *restrict bias)                                                     \
    {                                                                                                                         \
        int32_t p;                                                                                                            \
        for (p = 0; p < pixels; p += 2) {                                                                                     \
            NAME##_of_two(&sums[p * outputs], pixels - p, outputs, &x[p * x_pixel], x_pixel, runs, x_step, length, w,         \
                          w_output, w_step, bias);                                                                            \
        }                                                                                                                     \
    }

/* A product of two 16-bit integers fits 32 bits: at most 2^30. */
LINGER_DEFINE_DOTS(linger_dots_8_8_64, int8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_u8_8_64, uint8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_u8_16_32, uint8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_u8_16_64, uint8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_8_16_32, int8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_8_16_64, int8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_16_8_32, int16_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_16_8_64, int16_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_16_16_32, int16_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_16_16_64, int16_t, int16_t, int64_t, int32_t)

#if !defined(LINGER_X86) && !defined(LINGER_SMLAD) && !defined(LINGER_HELIUM)
LINGER_DEFINE_DOTS(linger_dots_8_8_32, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DOTS(linger_dots_u8_8_32, uint8_t, int8_t, int32_t, int32_t)
#endif

#undef LINGER_DEFINE_DOTS

#if defined(LINGER_X86)

/* One pixel at a time: linger_panels.h has what many pixels need. Its window is copied first, as the multiplication wants it and
   with zeros behind each run: every row of weights then needs no treatment of tails but for reads beyond the end of the weights.
   A copy holds LINGER_CHUNK numbers; longer windows come in pieces. */
#define LINGER_CHUNK 2048

typedef struct {
    const int8_t *w;     /* the weights of output 0 that belong to the copied numbers */
    const int8_t *w_end; /* no weight is behind this */
    int32_t w_output;
    int32_t w_step;
    int32_t runs;
    int32_t length;
    int32_t x_run; /* the distance of two runs in the copy */
} linger_dots_piece;

LINGER_INSIDE void linger_add_four(int32_t *sums, __m128i four, int32_t count)
{
    if (count >= 4) {
        __m128i *to = (__m128i *)(void *)sums;
        _mm_storeu_si128(to, _mm_add_epi32(_mm_loadu_si128(to), four));
    } else {
        int32_t numbers[4];
        int32_t i;
        _mm_storeu_si128((__m128i *)(void *)numbers, four);
        for (i = 0; i < count; i++) {
            sums[i] += numbers[i];
        }
    }
}

#endif

#if defined(LINGER_AVX512)

#define LINGER_LANES 64
typedef int8_t linger_copied;

LINGER_INSIDE __mmask64 linger_first_lanes(int32_t count)
{
    return (count >= 64) ? ~(__mmask64)0 : ((((__mmask64)1) << count) - 1U);
}

/* Copies one run and the zeros behind it. */
LINGER_INSIDE void linger_copy_run(linger_copied *to, const int8_t *from, int32_t length, int32_t is_unsigned)
{
    int32_t i;
    (void)is_unsigned;
    for (i = 0; i < length; i += LINGER_LANES) {
        const __m512i numbers = _mm512_maskz_loadu_epi8(linger_first_lanes(length - i), &from[i]);
        _mm512_storeu_si512((void *)&to[i], numbers);
    }
}

/* VPDPBUSD multiplies unsigned by signed bytes. Where x is signed, weights enter as w + 128, and 128 times the sum of x is
   subtracted at the end. Vectors wrap around where they overflow, so the detour is exact. */
LINGER_INSIDE __m512i linger_raised(const int8_t *from, __mmask64 lanes, int32_t is_unsigned)
{
    const __m512i w = _mm512_maskz_loadu_epi8(lanes, from);
    return (is_unsigned != 0) ? w : _mm512_xor_si512(w, _mm512_set1_epi8((char)-128));
}

LINGER_INSIDE __m512i linger_products(__m512i sums, __m512i w, __m512i x, int32_t is_unsigned)
{
    return (is_unsigned != 0) ? _mm512_dpbusd_epi32(sums, x, w) : _mm512_dpbusd_epi32(sums, w, x);
}

/* The lanes of four vectors, added up: sums of a, b, c, d in each 128-bit part of the result, still to be added. */
LINGER_INSIDE __m512i linger_fold_lanes(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* The 128-bit parts of a vector, added up. */
LINGER_INSIDE __m128i linger_fold_parts(__m512i a)
{
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

LINGER_INSIDE __m512i linger_copied_vector(const linger_copied *from)
{
    return _mm512_loadu_si512((const void *)from);
}

#define LINGER_MULTIPLY_ONE(K, LANES)                                                                                         \
    {                                                                                                                         \
        const __m512i x_v = linger_copied_vector(&x_0[K]);                                                                    \
        s_00 = linger_products(s_00, linger_raised(&w_0[K], LANES, is_unsigned), x_v, is_unsigned);                           \
        s_01 = linger_products(s_01, linger_raised(&w_1[K], LANES, is_unsigned), x_v, is_unsigned);                           \
        s_02 = linger_products(s_02, linger_raised(&w_2[K], LANES, is_unsigned), x_v, is_unsigned);                           \
        s_03 = linger_products(s_03, linger_raised(&w_3[K], LANES, is_unsigned), x_v, is_unsigned);                           \
    }

/* 128 times the sum of the copied numbers, in every lane. */
LINGER_INSIDE __m128i linger_raise_of_pixel(const linger_copied *copy, int32_t size)
{
    const __m512i raise = _mm512_set1_epi8((char)-128);
    __m512i sum = _mm512_setzero_si512();
    int32_t i;
    for (i = 0; i < size; i += LINGER_LANES) {
        sum = _mm512_dpbusd_epi32(sum, raise, linger_copied_vector(&copy[i]));
    }
    return linger_fold_parts(linger_fold_lanes(sum, sum, sum, sum));
}

/* Four outputs. Output `first + k` of fewer than four is computed again and dropped. */
LINGER_INSIDE __m128i linger_tile(const linger_copied *copy, const linger_dots_piece *piece, const int32_t row[4],
                                  int32_t is_unsigned)
{
    const int32_t whole = piece->length - (piece->length % LINGER_LANES);
    const __mmask64 all = ~(__mmask64)0;
    const __mmask64 rest = linger_first_lanes(piece->length - whole);
    __m512i s_00 = _mm512_setzero_si512();
    __m512i s_01 = s_00, s_02 = s_00, s_03 = s_00;
    int32_t run;
    int32_t i;
    for (run = 0; run < piece->runs; run++) {
        const linger_copied *x_0 = &copy[run * piece->x_run];
        const int8_t *w_0 = &piece->w[row[0] + (run * piece->w_step)];
        const int8_t *w_1 = &piece->w[row[1] + (run * piece->w_step)];
        const int8_t *w_2 = &piece->w[row[2] + (run * piece->w_step)];
        const int8_t *w_3 = &piece->w[row[3] + (run * piece->w_step)];
        for (i = 0; i < whole; i += LINGER_LANES) {
            LINGER_MULTIPLY_ONE(i, all)
        }
        if (rest != 0U) {
            LINGER_MULTIPLY_ONE(whole, rest)
        }
    }
    return linger_fold_parts(linger_fold_lanes(s_00, s_01, s_02, s_03));
}

#undef LINGER_MULTIPLY_ONE

#elif defined(LINGER_AVX2)

#define LINGER_LANES 16
typedef int16_t linger_copied;

/* Copies one run and the zeros behind it. */
LINGER_INSIDE void linger_copy_run(linger_copied *to, const int8_t *from, int32_t length, int32_t is_unsigned)
{
    const int32_t whole = (is_unsigned != 0) ? 0 : (length - (length % LINGER_LANES));
    int32_t i;
    for (i = 0; (is_unsigned != 0) && (i < length); i++) {
        to[i] = (linger_copied)linger_byte(from, i, 1);
    }
    if (is_unsigned != 0) {
        (void)memset(&to[length], 0, (size_t)(-length & (LINGER_LANES - 1)) * sizeof(linger_copied));
        return;
    }
    for (i = 0; i < whole; i += LINGER_LANES) {
        _mm256_storeu_si256((__m256i *)(void *)&to[i], linger_widen_16(&from[i]));
    }
    if (whole < length) {
        _mm256_storeu_si256((__m256i *)(void *)&to[whole], linger_widen_some(&from[whole], length - whole));
    }
}

LINGER_INSIDE __m256i linger_copied_vector(const linger_copied *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

/* Weights of a run's tail. What follows them meets zeros in the copy, so it may be read where it exists. */
LINGER_INSIDE __m256i linger_tail_weights(const int8_t *from, int32_t count, const int8_t *end)
{
    return ((end - from) >= LINGER_LANES) ? linger_widen_16(from) : linger_widen_some(from, count);
}

/* The lanes of four vectors, added up. */
LINGER_INSIDE __m128i linger_fold_lanes(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i folded = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(folded), _mm256_extracti128_si256(folded, 1));
}

#define LINGER_MULTIPLY_ONE(K, W_0, W_1, W_2, W_3)                                                                            \
    {                                                                                                                         \
        const __m256i x_v = linger_copied_vector(&x_0[K]);                                                                    \
        s_00 = _mm256_add_epi32(s_00, _mm256_madd_epi16((W_0), x_v));                                                         \
        s_01 = _mm256_add_epi32(s_01, _mm256_madd_epi16((W_1), x_v));                                                         \
        s_02 = _mm256_add_epi32(s_02, _mm256_madd_epi16((W_2), x_v));                                                         \
        s_03 = _mm256_add_epi32(s_03, _mm256_madd_epi16((W_3), x_v));                                                         \
    }

#define LINGER_WHOLE(W) linger_widen_16(&(W)[i])
#define LINGER_TAIL(W) linger_tail_weights(&(W)[whole], rest, piece->w_end)

/* Four outputs. Output `first + k` of fewer than four is computed again and dropped. */
LINGER_INSIDE __m128i linger_tile(const linger_copied *copy, const linger_dots_piece *piece, const int32_t row[4],
                                  int32_t is_unsigned)
{
    const int32_t rest = piece->length % LINGER_LANES;
    const int32_t whole = piece->length - rest;
    __m256i s_00 = _mm256_setzero_si256();
    __m256i s_01 = s_00, s_02 = s_00, s_03 = s_00;
    int32_t run;
    int32_t i;
    (void)is_unsigned;
    for (run = 0; run < piece->runs; run++) {
        const linger_copied *x_0 = &copy[run * piece->x_run];
        const int8_t *w_0 = &piece->w[row[0] + (run * piece->w_step)];
        const int8_t *w_1 = &piece->w[row[1] + (run * piece->w_step)];
        const int8_t *w_2 = &piece->w[row[2] + (run * piece->w_step)];
        const int8_t *w_3 = &piece->w[row[3] + (run * piece->w_step)];
        for (i = 0; i < whole; i += LINGER_LANES) {
            LINGER_MULTIPLY_ONE(i, LINGER_WHOLE(w_0), LINGER_WHOLE(w_1), LINGER_WHOLE(w_2), LINGER_WHOLE(w_3))
        }
        if (rest > 0) {
            LINGER_MULTIPLY_ONE(whole, LINGER_TAIL(w_0), LINGER_TAIL(w_1), LINGER_TAIL(w_2), LINGER_TAIL(w_3))
        }
    }
    return linger_fold_lanes(s_00, s_01, s_02, s_03);
}

#undef LINGER_MULTIPLY_ONE
#undef LINGER_WHOLE
#undef LINGER_TAIL

#endif

#if defined(LINGER_X86)

/* Adds the products of `runs` runs, which fit the copy. */
LINGER_INSIDE void linger_add_piece(int32_t *sums, int32_t outputs, const int8_t *x, int32_t x_step, linger_dots_piece *piece,
                                    int32_t is_unsigned)
{
    linger_copied copy[LINGER_CHUNK + (2 * LINGER_LANES)];
    const int32_t is_joined = ((piece->w_step == piece->length) || (piece->runs == 1)) ? 1 : 0;
    const int32_t x_run =
        (is_joined != 0) ? piece->length : (((piece->length + LINGER_LANES) - 1) / LINGER_LANES) * LINGER_LANES;
    const int32_t used = piece->runs * x_run;
    __m128i raise = _mm_setzero_si128();
    int32_t run;
    int32_t first;
    for (run = 0; run < piece->runs; run++) {
        linger_copy_run(&copy[run * x_run], &x[run * x_step], piece->length, is_unsigned);
    }
    (void)memset(&copy[used], 0, LINGER_LANES * sizeof(linger_copied));
    piece->x_run = x_run;
    if (is_joined != 0) {
        piece->length = used;
        piece->runs = 1;
    }
#if defined(LINGER_AVX512)
    raise = (is_unsigned != 0) ? raise : linger_raise_of_pixel(copy, used);
#endif
    for (first = 0; first < outputs; first += 4) {
        const int32_t count = outputs - first;
        int32_t row[4];
        int32_t k;
        for (k = 0; k < 4; k++) {
            row[k] = (first + ((k < count) ? k : 0)) * piece->w_output;
        }
        linger_add_four(&sums[first], _mm_sub_epi32(linger_tile(copy, piece, row, is_unsigned), raise), count);
    }
}

LINGER_INSIDE void linger_dots_of_bytes(int32_t *restrict sums, int32_t pixels, int32_t outputs, const int8_t *restrict x,
                                        int32_t x_pixel, int32_t runs, int32_t x_step, int32_t length,
                                        const int8_t *restrict w, int32_t w_output, int32_t w_step,
                                        const int32_t *restrict bias, int32_t is_unsigned)
{
    const int32_t padded = (((length + LINGER_LANES) - 1) / LINGER_LANES) * LINGER_LANES;
    const int32_t most_runs = ((length > 0) && (padded <= LINGER_CHUNK)) ? (LINGER_CHUNK / padded) : 1;
    int32_t p;
    int32_t run;
    int32_t i;
    for (p = 0; p < pixels; p++) {
        for (i = 0; i < outputs; i++) {
            sums[(p * outputs) + i] = (bias != NULL) ? bias[i] : 0;
        }
        for (run = 0; run < runs; run += most_runs) {
            for (i = 0; i < length; i += LINGER_CHUNK) {
                linger_dots_piece piece;
                piece.w = &w[(run * w_step) + i];
                piece.w_end = &w[((outputs - 1) * w_output) + ((runs - 1) * w_step) + length];
                piece.w_output = w_output;
                piece.w_step = w_step;
                piece.runs = ((runs - run) < most_runs) ? (runs - run) : most_runs;
                piece.length = ((length - i) < LINGER_CHUNK) ? (length - i) : LINGER_CHUNK;
                piece.x_run = 0;
                linger_add_piece(&sums[p * outputs], outputs, &x[(p * x_pixel) + (run * x_step) + i], x_step, &piece,
                                 is_unsigned);
            }
        }
    }
}

#undef LINGER_LANES
#undef LINGER_CHUNK

#endif

#if defined(LINGER_SMLAD) || defined(LINGER_HELIUM)

/* What the loops below read and write. Their instructions know the positions, which are those of 4-byte members. */
typedef struct {
    int32_t x_skip; /* 0: from where the loop over a run leaves x to the next run, in bytes */
    int32_t w_skip; /* 4 */
    int32_t whole;  /* 8: SMLAD: length / 8 * 8; Helium: length */
    int32_t rest;   /* 12: SMLAD: length % 8; Helium: the number of outputs */
    int32_t runs;   /* 16: at least 1 */
    int32_t pairs;  /* 20: pairs of outputs that are left, at least 1 */
    const int8_t *x_0;   /* 24: two pixels */
    const int8_t *x_1;   /* 28 */
    const int8_t *w;     /* 32: the first output that is left */
    int32_t w_output;    /* 36: from one output to the next, in bytes */
    const int32_t *bias; /* 40: of the first output that is left */
    int32_t bias_step;   /* 44: from the bias of one pair to the next, in bytes; 0 where there is no bias */
    int32_t *sums;       /* 48: of the first output that is left */
    int32_t sums_pixel;  /* 52: from the sums of one pixel to those of the next, in bytes */
#if defined(LINGER_HELIUM)
    int32_t x_sums[2]; /* 56: the sums of both pixels' numbers, where those are unsigned */
#endif
} linger_dots_state;

/* Compiles only where pointers have four bytes. */
#if defined(LINGER_HELIUM)
typedef char linger_dots_state_is_packed[(sizeof(linger_dots_state) == 64U) ? 1 : -1];
#else
typedef char linger_dots_state_is_packed[(sizeof(linger_dots_state) == 56U) ? 1 : -1];
#endif

#endif

#if defined(LINGER_SMLAD)

/* Four numbers of two pixels (r0, r1) and two outputs (r2, r3): 16 products in 20 instructions. X is sxtb16 or uxtb16. */
#define LINGER_FOUR_NUMBERS(X)                                                                                                \
    "ldr r9, [r0], #4\n\t"                                                                                                    \
    "ldr r11, [r1], #4\n\t"                                                                                                   \
    "ldr r7, [r2], #4\n\t"                                                                                                    \
    X " r10, r9, ror #8\n\t"                                                                                                  \
    X " r9, r9\n\t"                                                                                                           \
    X " r12, r11, ror #8\n\t"                                                                                                 \
    X " r11, r11\n\t"                                                                                                         \
    "sxtb16 lr, r7\n\t"                                                                                                       \
    "sxtb16 r7, r7, ror #8\n\t"                                                                                               \
    "smlad r4, r9, lr, r4\n\t"                                                                                                \
    "smlad r5, r11, lr, r5\n\t"                                                                                               \
    "smlad r4, r10, r7, r4\n\t"                                                                                               \
    "smlad r5, r12, r7, r5\n\t"                                                                                               \
    "ldr r7, [r3], #4\n\t"                                                                                                    \
    "sxtb16 lr, r7\n\t"                                                                                                       \
    "sxtb16 r7, r7, ror #8\n\t"                                                                                               \
    "smlad r6, r9, lr, r6\n\t"                                                                                                \
    "smlad r8, r11, lr, r8\n\t"                                                                                               \
    "smlad r6, r10, r7, r6\n\t"                                                                                               \
    "smlad r8, r12, r7, r8\n\t"

/* Pairs of outputs of two pixels. Written as instructions because a tile needs all 14 registers: compilers kept half of them in
   memory. Registers that a compiler may reserve (r7, r9, r11) are saved here. LOAD is ldrsb or
   ldrb. */
#define LINGER_DEFINE_DOTS_OF_TWO(NAME, X, LOAD)                                                                              \
    LINGER_SHARED void NAME(linger_dots_state *state)                                                                         \
    {                                                                                                                         \
        register linger_dots_state *argument __asm__("r0") = state;                                                           \
        /* On the stack: 0 where the eights of a run end, 4 runs left, 8 whole, 12 rest, 16 x_skip, 20 w_skip, 24 state */    \
        __asm__ volatile("push {r0, r7, r9, r11}\n\t"                                                                         \
                         "ldrd r2, r3, [r0]\n\t"                                                                              \
                         "ldrd r4, r5, [r0, #8]\n\t"                                                                          \
                         "sub sp, sp, #24\n\t"                                                                                \
                         "strd r2, r3, [sp, #16]\n\t"                                                                         \
                         "strd r4, r5, [sp, #8]\n\t"                                                                          \
                         "mov r12, r0\n\t"                                                                                    \
                         /* a pair of outputs */                                                                              \
                         "1:\n\t"                                                                                             \
                         "ldrd r2, r3, [r12, #32]\n\t"                                                                        \
                         "ldrd r7, r9, [r12, #40]\n\t"                                                                        \
                         "ldr r10, [r12, #16]\n\t"                                                                            \
                         "ldrd r0, r1, [r12, #24]\n\t"                                                                        \
                         "ldrd r4, r6, [r7]\n\t"                                                                              \
                         "add r7, r7, r9\n\t"                                                                                 \
                         "str r7, [r12, #40]\n\t"                                                                             \
                         "add r7, r2, r3, lsl #1\n\t"                                                                         \
                         "str r7, [r12, #32]\n\t"                                                                             \
                         "add r3, r3, r2\n\t"                                                                                 \
                         "str r10, [sp, #4]\n\t"                                                                              \
                         "mov r5, r4\n\t"                                                                                     \
                         "mov r8, r6\n\t"                                                                                     \
                         /* a run */                                                                                          \
                         "2:\n\t"                                                                                             \
                         "ldr r12, [sp, #8]\n\t"                                                                              \
                         "cmp r12, #0\n\t"                                                                                    \
                         "beq 4f\n\t"                                                                                         \
                         "add r12, r12, r2\n\t"                                                                               \
                         "str r12, [sp]\n\t"                                                                                  \
                         "3:\n\t" LINGER_FOUR_NUMBERS(X) LINGER_FOUR_NUMBERS(X)                                               \
                         "ldr r7, [sp]\n\t"                                                                                   \
                         "cmp r2, r7\n\t"                                                                                     \
                         "bne 3b\n\t"                                                                                         \
                         "4:\n\t"                                                                                             \
                         "ldr r12, [sp, #12]\n\t"                                                                             \
                         "cmp r12, #0\n\t"                                                                                    \
                         "beq 7f\n\t"                                                                                         \
                         "tst r12, #4\n\t"                                                                                    \
                         "beq 5f\n\t" LINGER_FOUR_NUMBERS(X)                                                                  \
                         "ldr r12, [sp, #12]\n\t"                                                                             \
                         "ands r12, r12, #3\n\t"                                                                              \
                         "beq 7f\n\t"                                                                                         \
                         "5:\n\t"                                                                                             \
                         "and r12, r12, #3\n\t"                                                                               \
                         "6:\n\t"                                                                                             \
                         LOAD " r9, [r0], #1\n\t"                                                                             \
                         LOAD " r10, [r1], #1\n\t"                                                                            \
                         "ldrsb r7, [r2], #1\n\t"                                                                             \
                         "ldrsb lr, [r3], #1\n\t"                                                                             \
                         "mla r4, r9, r7, r4\n\t"                                                                             \
                         "mla r5, r10, r7, r5\n\t"                                                                            \
                         "mla r6, r9, lr, r6\n\t"                                                                             \
                         "mla r8, r10, lr, r8\n\t"                                                                            \
                         "subs r12, r12, #1\n\t"                                                                              \
                         "bne 6b\n\t"                                                                                         \
                         "7:\n\t"                                                                                             \
                         "ldr r7, [sp, #4]\n\t"                                                                               \
                         "subs r7, r7, #1\n\t"                                                                                \
                         "beq 8f\n\t"                                                                                         \
                         "ldrd r10, r11, [sp, #16]\n\t"                                                                       \
                         "str r7, [sp, #4]\n\t"                                                                               \
                         "add r0, r0, r10\n\t"                                                                                \
                         "add r1, r1, r10\n\t"                                                                                \
                         "add r2, r2, r11\n\t"                                                                                \
                         "add r3, r3, r11\n\t"                                                                                \
                         "b 2b\n\t"                                                                                           \
                         "8:\n\t"                                                                                             \
                         "ldr r12, [sp, #24]\n\t"                                                                             \
                         "ldrd r0, r1, [r12, #48]\n\t"                                                                        \
                         "ldr r2, [r12, #20]\n\t"                                                                             \
                         "strd r4, r6, [r0]\n\t"                                                                              \
                         "add r1, r1, r0\n\t"                                                                                 \
                         "strd r5, r8, [r1]\n\t"                                                                              \
                         "add r0, r0, #8\n\t"                                                                                 \
                         "str r0, [r12, #48]\n\t"                                                                             \
                         "subs r2, r2, #1\n\t"                                                                                \
                         "str r2, [r12, #20]\n\t"                                                                             \
                         "bne 1b\n\t"                                                                                         \
                         "add sp, sp, #24\n\t"                                                                                \
                         "pop {r0, r7, r9, r11}\n\t"                                                                          \
                         : "+r"(argument)                                                                                     \
                         :                                                                                                    \
                         : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "cc", "memory");                     \
    }

LINGER_DEFINE_DOTS_OF_TWO(linger_dots_of_two, "sxtb16", "ldrsb")
LINGER_DEFINE_DOTS_OF_TWO(linger_dots_of_unsigned_two, "uxtb16", "ldrb")

#undef LINGER_DEFINE_DOTS_OF_TWO
#undef LINGER_FOUR_NUMBERS

/* Pairs of outputs of one pixel. */
LINGER_INSIDE void linger_dots_of_lone(const linger_dots_state *state, int32_t is_unsigned)
{
    const int32_t length = state->whole + state->rest;
    const int32_t x_skip = state->x_skip;
    const int32_t w_skip = state->w_skip;
    const int32_t bias_step = (state->bias_step != 0) ? 2 : 0;
    const int32_t *bias = state->bias;
    const int8_t *w_1 = state->w;
    int32_t *sums = state->sums;
    int32_t pair;
    for (pair = state->pairs; pair > 0; pair--) {
        const int8_t *x_0 = state->x_0;
        const int8_t *w_0 = w_1;
        const int8_t *w_next = &w_0[2 * state->w_output];
        int32_t sum_0 = bias[0];
        int32_t sum_1 = bias[1];
        int32_t run;
        w_1 = &w_0[state->w_output];
        for (run = state->runs; run > 0; run--) {
            const int8_t *end_of_fours = &x_0[length & ~3];
            const int8_t *end = &x_0[length];
            while (x_0 != end_of_fours) {
                const uint32_t x_four = linger_load_four(x_0);
                const uint32_t x_even = linger_even_of(x_four, is_unsigned);
                const uint32_t x_odd = linger_odd_of(x_four, is_unsigned);
                uint32_t w_four = linger_load_four(w_0);
                sum_0 = linger_add_products(sum_0, x_even, linger_even_bytes(w_four));
                sum_0 = linger_add_products(sum_0, x_odd, linger_odd_bytes(w_four));
                w_four = linger_load_four(w_1);
                sum_1 = linger_add_products(sum_1, x_even, linger_even_bytes(w_four));
                sum_1 = linger_add_products(sum_1, x_odd, linger_odd_bytes(w_four));
                x_0 += 4;
                w_0 += 4;
                w_1 += 4;
            }
            while (x_0 != end) {
                const int32_t x_here = linger_byte(x_0++, 0, is_unsigned);
                sum_0 += x_here * (int32_t)*w_0++;
                sum_1 += x_here * (int32_t)*w_1++;
            }
            x_0 += x_skip;
            w_0 += w_skip;
            w_1 += w_skip;
        }
        sums[0] = sum_0;
        sums[1] = sum_1;
        sums += 2;
        bias += bias_step;
        w_1 = w_next;
    }
}

LINGER_SHARED void linger_dots_of_one(const linger_dots_state *state) { linger_dots_of_lone(state, 0); }
LINGER_SHARED void linger_dots_of_unsigned_one(const linger_dots_state *state) { linger_dots_of_lone(state, 1); }

LINGER_INSIDE void linger_set_lengths(linger_dots_state *state, int32_t x_step, int32_t w_step, int32_t length)
{
    state->whole = length & ~7;
    state->rest = length & 7;
    state->x_skip = x_step - length;
    state->w_skip = w_step - length;
}

#elif defined(LINGER_HELIUM)

/* A pair of outputs: r1, r3 are the pixels, r5, r12 the outputs, r4, r6 the sums of the first pixel, r8, r10 of the second. */
#define LINGER_BEGIN_PAIR                                                                                                     \
    "1:\n\t"                                                                                                                  \
    "ldrd r1, r3, [r0, #24]\n\t"                                                                                              \
    "ldrd r5, r12, [r0, #32]\n\t"                                                                                             \
    "ldrd r2, lr, [r0, #40]\n\t"                                                                                              \
    "ldrd r4, r6, [r2]\n\t"                                                                                                   \
    "add r2, r2, lr\n\t"                                                                                                      \
    "str r2, [r0, #40]\n\t"                                                                                                   \
    "add lr, r5, r12, lsl #1\n\t"                                                                                             \
    "str lr, [r0, #32]\n\t"                                                                                                   \
    "add r12, r12, r5\n\t"                                                                                                    \
    "ldr r2, [r0, #16]\n\t"

/* The next pair; r1 is where this one's sums were written. */
#define LINGER_END_PAIR                                                                                                       \
    "ldr r2, [r0, #20]\n\t"                                                                                                   \
    "adds r1, r1, #8\n\t"                                                                                                     \
    "str r1, [r0, #48]\n\t"                                                                                                   \
    "subs r2, r2, #1\n\t"                                                                                                     \
    "str r2, [r0, #20]\n\t"                                                                                                   \
    "bne 1b\n\t"

/* Pairs of outputs of two pixels, 16 numbers at a time; the hardware's loop switches off the lanes behind the end of a run. All
   loops are written as instructions, because short ones are what small layers consist of. */
LINGER_SHARED void linger_dots_of_two(linger_dots_state *state)
{
    register linger_dots_state *argument __asm__("r0") = state;
    __asm__ volatile(LINGER_BEGIN_PAIR
                     "mov r8, r4\n\t"
                     "mov r10, r6\n\t"
                     "2:\n\t"
                     "ldr lr, [r0, #8]\n\t"
                     "dlstp.8 lr, lr\n\t"
                     "3:\n\t"
                     "vldrb.8 q0, [r1], #16\n\t"
                     "vldrb.8 q2, [r5], #16\n\t"
                     "vmladava.s8 r4, q0, q2\n\t"
                     "vldrb.8 q1, [r3], #16\n\t"
                     "vmladava.s8 r8, q1, q2\n\t"
                     "vldrb.8 q3, [r12], #16\n\t"
                     "vmladava.s8 r6, q0, q3\n\t"
                     "vmladava.s8 r10, q1, q3\n\t"
                     "letp lr, 3b\n\t"
                     "subs r2, r2, #1\n\t"
                     "beq 4f\n\t"
                     "ldr lr, [r0]\n\t"
                     "add r1, r1, lr\n\t"
                     "add r3, r3, lr\n\t"
                     "ldr lr, [r0, #4]\n\t"
                     "add r5, r5, lr\n\t"
                     "add r12, r12, lr\n\t"
                     "b 2b\n\t"
                     "4:\n\t"
                     "ldrd r1, r3, [r0, #48]\n\t"
                     "strd r4, r6, [r1]\n\t"
                     "add r3, r3, r1\n\t"
                     "strd r8, r10, [r3]\n\t" LINGER_END_PAIR
                     : "+r"(argument)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "q3", "cc", "memory");
}

/* The same for one pixel. */
LINGER_SHARED void linger_dots_of_one(linger_dots_state *state)
{
    register linger_dots_state *argument __asm__("r0") = state;
    __asm__ volatile(LINGER_BEGIN_PAIR
                     "2:\n\t"
                     "ldr lr, [r0, #8]\n\t"
                     "dlstp.8 lr, lr\n\t"
                     "3:\n\t"
                     "vldrb.8 q0, [r1], #16\n\t"
                     "vldrb.8 q2, [r5], #16\n\t"
                     "vmladava.s8 r4, q0, q2\n\t"
                     "vldrb.8 q3, [r12], #16\n\t"
                     "vmladava.s8 r6, q0, q3\n\t"
                     "letp lr, 3b\n\t"
                     "subs r2, r2, #1\n\t"
                     "beq 4f\n\t"
                     "ldr lr, [r0]\n\t"
                     "add r1, r1, lr\n\t"
                     "ldr lr, [r0, #4]\n\t"
                     "add r5, r5, lr\n\t"
                     "add r12, r12, lr\n\t"
                     "b 2b\n\t"
                     "4:\n\t"
                     "ldr r1, [r0, #48]\n\t"
                     "strd r4, r6, [r1]\n\t" LINGER_END_PAIR
                     : "+r"(argument)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r12", "lr", "q0", "q2", "q3", "cc", "memory");
}

#undef LINGER_BEGIN_PAIR
#undef LINGER_END_PAIR

/* Helium has no product of unsigned by signed bytes. Weights enter as w + 128 (the same bits but the highest), which is unsigned:

     sum of x * w = sum of x * (w + 128) - 128 * sum of x

   over the same numbers, those that lie inside the image and before the end of a run: a lane that the loop switches off adds nothing
   to either sum. Registers wrap around modulo 2^32, and what is left at the end fits (see above), so the detour is exact. The sums
   of x serve all outputs of a call, and a vector of weights is raised once for both pixels. */
#define LINGER_RAISE(W) "veor " W ", " W ", q4\n\t"
#define LINGER_CORRECT(SUM, X_SUM) "sub " SUM ", " SUM ", " X_SUM ", lsl #7\n\t"

/* Some outputs at a time: BEGIN loads pixels, outputs and biases, LOOP multiplies 16 numbers, NEXT goes on to the next run, WRITE
   stores the sums at r1. r11 counts the runs, q4 raises. Registers that a compiler may reserve (r7, r9, r11) are saved here. */
#define LINGER_DEFINE_UNSIGNED_DOTS(NAME, BEGIN, LOOP, NEXT, WRITE)                                                           \
    LINGER_SHARED void NAME(linger_dots_state *state)                                                                         \
    {                                                                                                                         \
        register linger_dots_state *argument __asm__("r0") = state;                                                           \
        __asm__ volatile("push {r7, r9, r11}\n\t"                                                                             \
                         "vmov.i8 q4, #128\n\t"                                                                               \
                         "1:\n\t" BEGIN                                                                                       \
                         "ldr r11, [r0, #16]\n\t"                                                                             \
                         "2:\n\t"                                                                                             \
                         "ldr lr, [r0, #8]\n\t"                                                                               \
                         "dlstp.8 lr, lr\n\t"                                                                                 \
                         "3:\n\t" LOOP                                                                                        \
                         "letp lr, 3b\n\t"                                                                                    \
                         "subs r11, r11, #1\n\t"                                                                              \
                         "beq 4f\n\t" NEXT                                                                                    \
                         "b 2b\n\t"                                                                                           \
                         "4:\n\t"                                                                                             \
                         "ldrd r1, r3, [r0, #48]\n\t" WRITE                                                                   \
                         "str r1, [r0, #48]\n\t"                                                                              \
                         "ldr r1, [r0, #20]\n\t"                                                                              \
                         "subs r1, r1, #1\n\t"                                                                                \
                         "str r1, [r0, #20]\n\t"                                                                              \
                         "bne 1b\n\t"                                                                                         \
                         "pop {r7, r9, r11}\n\t"                                                                              \
                         : "+r"(argument)                                                                                     \
                         :                                                                                                    \
                         : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "q3", "q4", "cc",  \
                           "memory");                                                                                         \
    }

/* Two pixels (r1, r3) and two outputs (r5, r7): sums r2, r4 and r8, r10. Adds up the pixels (r6, r12) as well. */
LINGER_DEFINE_UNSIGNED_DOTS(linger_dots_of_unsigned_two,
                            "ldrd r5, r7, [r0, #32]\n\t"
                            "ldrd r1, r3, [r0, #40]\n\t"
                            "ldrd r2, r4, [r1]\n\t"
                            "add r1, r1, r3\n\t"
                            "str r1, [r0, #40]\n\t"
                            "add r1, r5, r7, lsl #1\n\t"
                            "str r1, [r0, #32]\n\t"
                            "add r7, r7, r5\n\t"
                            "mov r8, r2\n\t"
                            "mov r10, r4\n\t"
                            "movs r6, #0\n\t"
                            "mov r12, r6\n\t"
                            "ldrd r1, r3, [r0, #24]\n\t",
                            "vldrb.8 q2, [r5], #16\n\t" LINGER_RAISE("q2")
                            "vldrb.8 q0, [r1], #16\n\t"
                            "vmladava.u8 r2, q0, q2\n\t"
                            "vldrb.8 q1, [r3], #16\n\t"
                            "vmladava.u8 r8, q1, q2\n\t"
                            "vldrb.8 q3, [r7], #16\n\t" LINGER_RAISE("q3")
                            "vmladava.u8 r4, q0, q3\n\t"
                            "vaddva.u8 r6, q0\n\t"
                            "vmladava.u8 r10, q1, q3\n\t"
                            "vaddva.u8 r12, q1\n\t",
                            "ldr lr, [r0]\n\t"
                            "add r1, r1, lr\n\t"
                            "add r3, r3, lr\n\t"
                            "ldr lr, [r0, #4]\n\t"
                            "add r5, r5, lr\n\t"
                            "add r7, r7, lr\n\t",
                            "strd r6, r12, [r0, #56]\n\t"
                            "add r3, r3, r1\n\t"
                            LINGER_CORRECT("r2", "r6") LINGER_CORRECT("r4", "r6")
                            LINGER_CORRECT("r8", "r12") LINGER_CORRECT("r10", "r12")
                            "stm r1!, {r2, r4}\n\t"
                            "strd r8, r10, [r3]\n\t")

/* Two pixels (r1, r3) and three outputs (r5, r7, r9): sums r2, r4, r6 and r8, r10, r12. A pair came before, so the pixels are added
   up. */
LINGER_DEFINE_UNSIGNED_DOTS(linger_dots_of_unsigned_six,
                            "ldrd r5, r7, [r0, #32]\n\t"
                            "ldrd r1, r3, [r0, #40]\n\t"
                            "ldm r1, {r2, r4, r6}\n\t"
                            "add r1, r1, r3\n\t"
                            "str r1, [r0, #40]\n\t"
                            "add r9, r5, r7, lsl #1\n\t"
                            "add r1, r9, r7\n\t"
                            "str r1, [r0, #32]\n\t"
                            "add r7, r7, r5\n\t"
                            "ldrd r1, r3, [r0, #56]\n\t"
                            "sub r8, r2, r3, lsl #7\n\t"
                            "sub r10, r4, r3, lsl #7\n\t"
                            "sub r12, r6, r3, lsl #7\n\t"
                            LINGER_CORRECT("r2", "r1") LINGER_CORRECT("r4", "r1") LINGER_CORRECT("r6", "r1")
                            "ldrd r1, r3, [r0, #24]\n\t",
                            "vldrb.8 q2, [r5], #16\n\t" LINGER_RAISE("q2")
                            "vldrb.8 q0, [r1], #16\n\t"
                            "vmladava.u8 r2, q0, q2\n\t"
                            "vldrb.8 q1, [r3], #16\n\t"
                            "vmladava.u8 r8, q1, q2\n\t"
                            "vldrb.8 q3, [r7], #16\n\t" LINGER_RAISE("q3")
                            "vmladava.u8 r4, q0, q3\n\t"
                            "vldrb.8 q2, [r9], #16\n\t"
                            "vmladava.u8 r10, q1, q3\n\t" LINGER_RAISE("q2")
                            "vmladava.u8 r6, q0, q2\n\t"
                            "vmladava.u8 r12, q1, q2\n\t",
                            "ldr lr, [r0]\n\t"
                            "add r1, r1, lr\n\t"
                            "add r3, r3, lr\n\t"
                            "ldr lr, [r0, #4]\n\t"
                            "add r5, r5, lr\n\t"
                            "add r7, r7, lr\n\t"
                            "add r9, r9, lr\n\t",
                            "add r3, r3, r1\n\t"
                            "stm r1!, {r2, r4, r6}\n\t"
                            "stm r3, {r8, r10, r12}\n\t")

/* One pixel (r1) and two outputs (r3, r5): sums r2, r4. Adds up the pixel (r6) as well. */
LINGER_DEFINE_UNSIGNED_DOTS(linger_dots_of_unsigned_one,
                            "ldrd r3, r5, [r0, #32]\n\t"
                            "ldrd r1, r12, [r0, #40]\n\t"
                            "ldrd r2, r4, [r1]\n\t"
                            "add r1, r1, r12\n\t"
                            "str r1, [r0, #40]\n\t"
                            "add r1, r3, r5, lsl #1\n\t"
                            "str r1, [r0, #32]\n\t"
                            "add r5, r5, r3\n\t"
                            "movs r6, #0\n\t"
                            "ldr r1, [r0, #24]\n\t",
                            "vldrb.8 q2, [r3], #16\n\t" LINGER_RAISE("q2")
                            "vldrb.8 q0, [r1], #16\n\t"
                            "vmladava.u8 r2, q0, q2\n\t"
                            "vldrb.8 q3, [r5], #16\n\t" LINGER_RAISE("q3")
                            "vmladava.u8 r4, q0, q3\n\t"
                            "vaddva.u8 r6, q0\n\t",
                            "ldr lr, [r0]\n\t"
                            "add r1, r1, lr\n\t"
                            "ldr lr, [r0, #4]\n\t"
                            "add r3, r3, lr\n\t"
                            "add r5, r5, lr\n\t",
                            "str r6, [r0, #56]\n\t"
                            LINGER_CORRECT("r2", "r6") LINGER_CORRECT("r4", "r6")
                            "stm r1!, {r2, r4}\n\t")

/* One pixel (r1) and four outputs (r3, r5, r7, r9): sums r2, r4, r6, r8. A pair came before, so the pixel is added up. */
LINGER_DEFINE_UNSIGNED_DOTS(linger_dots_of_unsigned_four,
                            "ldrd r3, r5, [r0, #32]\n\t"
                            "ldrd r1, r12, [r0, #40]\n\t"
                            "ldm r1, {r2, r4, r6, r8}\n\t"
                            "add r1, r1, r12\n\t"
                            "str r1, [r0, #40]\n\t"
                            "add r7, r3, r5, lsl #1\n\t"
                            "add r1, r3, r5, lsl #2\n\t"
                            "str r1, [r0, #32]\n\t"
                            "add r9, r7, r5\n\t"
                            "add r5, r5, r3\n\t"
                            "ldr r1, [r0, #56]\n\t"
                            LINGER_CORRECT("r2", "r1") LINGER_CORRECT("r4", "r1")
                            LINGER_CORRECT("r6", "r1") LINGER_CORRECT("r8", "r1")
                            "ldr r1, [r0, #24]\n\t",
                            "vldrb.8 q2, [r3], #16\n\t" LINGER_RAISE("q2")
                            "vldrb.8 q0, [r1], #16\n\t"
                            "vmladava.u8 r2, q0, q2\n\t"
                            "vldrb.8 q3, [r5], #16\n\t" LINGER_RAISE("q3")
                            "vmladava.u8 r4, q0, q3\n\t"
                            "vldrb.8 q2, [r7], #16\n\t" LINGER_RAISE("q2")
                            "vmladava.u8 r6, q0, q2\n\t"
                            "vldrb.8 q3, [r9], #16\n\t" LINGER_RAISE("q3")
                            "vmladava.u8 r8, q0, q3\n\t",
                            "ldr lr, [r0]\n\t"
                            "add r1, r1, lr\n\t"
                            "ldr lr, [r0, #4]\n\t"
                            "add r3, r3, lr\n\t"
                            "add r5, r5, lr\n\t"
                            "add r7, r7, lr\n\t"
                            "add r9, r9, lr\n\t",
                            "stm r1!, {r2, r4, r6, r8}\n\t")

#undef LINGER_DEFINE_UNSIGNED_DOTS

/* The loop over a run leaves its pointers behind a whole vector. */
LINGER_INSIDE void linger_set_lengths(linger_dots_state *state, int32_t x_step, int32_t w_step, int32_t length)
{
    const int32_t padded = (length + 15) & ~15;
    state->whole = length;
    state->rest = 0;
    state->x_skip = x_step - padded;
    state->w_skip = w_step - padded;
}

#endif

#if defined(LINGER_SMLAD) || defined(LINGER_HELIUM)

/* A window of so many numbers is copied, so that it is a single run: short runs take most of their time to begin and to end. */
#define LINGER_SHORT_WINDOW 32

/* Helium writes whole vectors: some bytes behind the window. */
typedef struct {
#if defined(LINGER_HELIUM)
    int8_t of_pixel[2][LINGER_SHORT_WINDOW + 16];
#else
    int8_t of_pixel[2][LINGER_SHORT_WINDOW];
#endif
} linger_short_windows;

#if defined(LINGER_HELIUM)

/* Copies the `runs` runs of `whole` numbers of two pixels to the distances that their weights have, with zeros between them. The
   next run overwrites zeros that are too many. Written as instructions because compilers move the predicate to and fro. */
LINGER_SHARED void linger_join_runs(linger_short_windows *to, const linger_dots_state *state, int32_t x_step, int32_t w_step)
{
    register linger_short_windows *to_here __asm__("r0") = to;
    register const linger_dots_state *state_here __asm__("r1") = state;
    register int32_t x_step_here __asm__("r2") = x_step;
    register int32_t w_step_here __asm__("r3") = w_step;
    __asm__ volatile("ldr r4, [r1, #8]\n\t"
                     "ldr lr, [r1, #16]\n\t"
                     "ldrd r5, r6, [r1, #24]\n\t"
                     "vctp.8 r4\n\t"
                     "dls lr, lr\n\t"
                     "1:\n\t"
                     "vpstt\n\t"
                     "vldrbt.8 q0, [r5]\n\t"
                     "vldrbt.8 q1, [r6]\n\t"
                     "vstrb.8 q0, [r0]\n\t"
                     "vstrb.8 q1, [r0, #48]\n\t"
                     "add r5, r5, r2\n\t"
                     "add r6, r6, r2\n\t"
                     "add r0, r0, r3\n\t"
                     "le lr, 1b\n\t"
                     : "+r"(to_here)
                     : "r"(state_here), "r"(x_step_here), "r"(w_step_here)
                     : "r4", "r5", "r6", "lr", "q0", "q1", "cc", "memory");
}

/* A single run of at most 16 numbers: those of x stay in registers for all outputs, whose number is `rest`. */
LINGER_SHARED void linger_dots_of_vector(linger_dots_state *state)
{
    register linger_dots_state *argument __asm__("r0") = state;
    __asm__ volatile("ldrd r1, r2, [r0, #24]\n\t"
                     "ldrd r4, lr, [r0, #8]\n\t"
                     "vctp.8 r4\n\t"
                     "vpstt\n\t"
                     "vldrbt.8 q0, [r1]\n\t"
                     "vldrbt.8 q1, [r2]\n\t"
                     "ldrd r5, r6, [r0, #32]\n\t"
                     "ldrd r2, r3, [r0, #40]\n\t"
                     "lsrs r3, r3, #1\n\t"
                     "ldrd r1, r10, [r0, #48]\n\t"
                     "dls lr, lr\n\t"
                     "1:\n\t"
                     "vpst\n\t"
                     "vldrbt.8 q2, [r5]\n\t"
                     "ldr r4, [r2]\n\t"
                     "add r2, r2, r3\n\t"
                     "add r5, r5, r6\n\t"
                     "mov r8, r4\n\t"
                     "vmladava.s8 r4, q0, q2\n\t"
                     "vmladava.s8 r8, q1, q2\n\t"
                     "str r8, [r1, r10]\n\t"
                     "str r4, [r1], #4\n\t"
                     "le lr, 1b\n\t"
                     : "+r"(argument)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "lr", "q0", "q1", "q2", "cc", "memory");
}

/* The same of unsigned bytes (see LINGER_RAISE), in pairs of outputs, and the last of an odd number alone. The sums of x are in r7
   and r11. */
LINGER_SHARED void linger_dots_of_unsigned_vector(linger_dots_state *state)
{
    register linger_dots_state *argument __asm__("r0") = state;
    __asm__ volatile("push {r0, r7, r9, r11}\n\t"
                     "ldrd r1, r2, [r0, #24]\n\t"
                     "ldrd r4, lr, [r0, #8]\n\t"
                     "vctp.8 r4\n\t"
                     "vpstt\n\t"
                     "vldrbt.8 q0, [r1]\n\t"
                     "vldrbt.8 q1, [r2]\n\t"
                     "vaddv.u8 r4, q0\n\t"
                     "mov r7, r4\n\t"
                     "vaddv.u8 r4, q1\n\t"
                     "mov r11, r4\n\t"
                     "vmov.i8 q4, #128\n\t"
                     "ldrd r5, r6, [r0, #32]\n\t"
                     "add r3, r5, r6\n\t"
                     "lsls r6, r6, #1\n\t"
                     "ldrd r1, r9, [r0, #48]\n\t"
                     "add r9, r9, r1\n\t"
                     "ldrd r2, r0, [r0, #40]\n\t"
                     "lsr lr, lr, #1\n\t"
                     "wls lr, lr, 2f\n\t"
                     "1:\n\t"
                     "vpstt\n\t"
                     "vldrbt.8 q2, [r5]\n\t"
                     "vldrbt.8 q3, [r3]\n\t"
                     "ldrd r4, r8, [r2]\n\t"
                     "add r2, r2, r0\n\t" LINGER_RAISE("q2")
                     "add r5, r5, r6\n\t" LINGER_RAISE("q3")
                     "add r3, r3, r6\n\t"
                     "sub r10, r4, r11, lsl #7\n\t"
                     "sub r12, r8, r11, lsl #7\n\t" LINGER_CORRECT("r4", "r7") LINGER_CORRECT("r8", "r7")
                     "vmladava.u8 r4, q0, q2\n\t"
                     "vmladava.u8 r10, q1, q2\n\t"
                     "vmladava.u8 r8, q0, q3\n\t"
                     "vmladava.u8 r12, q1, q3\n\t"
                     "strd r10, r12, [r9], #8\n\t"
                     "strd r4, r8, [r1], #8\n\t"
                     "le lr, 1b\n\t"
                     "2:\n\t"
                     "ldr r0, [sp]\n\t"
                     "ldr r6, [r0, #12]\n\t"
                     "lsls r6, r6, #31\n\t"
                     "beq 3f\n\t"
                     "vpst\n\t"
                     "vldrbt.8 q2, [r5]\n\t"
                     "ldr r4, [r2]\n\t" LINGER_RAISE("q2")
                     "sub r10, r4, r11, lsl #7\n\t" LINGER_CORRECT("r4", "r7")
                     "vmladava.u8 r4, q0, q2\n\t"
                     "vmladava.u8 r10, q1, q2\n\t"
                     "str r10, [r9]\n\t"
                     "str r4, [r1]\n\t"
                     "3:\n\t"
                     "pop {r0, r7, r9, r11}\n\t"
                     : "+r"(argument)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "q3", "q4", "cc",
                       "memory");
}

#undef LINGER_RAISE
#undef LINGER_CORRECT

#else

/* Copies the `runs` runs of `whole` numbers of two pixels to the distances that their weights have, with zeros between them.
   It goes backwards: where compilers recognize a copy, they call memcpy, which takes longer for a few bytes. */
LINGER_SHARED void linger_join_runs(linger_short_windows *to, const linger_dots_state *state, int32_t x_step, int32_t w_step)
{
    const int8_t *x_0 = state->x_0;
    const int8_t *x_1 = state->x_1;
    int8_t *to_0 = to->of_pixel[0];
    int8_t *to_1 = to->of_pixel[1];
    int32_t run;
    int32_t i;
    for (run = state->runs; run > 0; run--) {
        for (i = w_step - 1; i >= state->whole; i--) {
            to_0[i] = 0;
            to_1[i] = 0;
        }
        for (; i >= 0; i--) {
            to_0[i] = x_0[i];
            to_1[i] = x_1[i];
        }
        to_0 += w_step;
        to_1 += w_step;
        x_0 += x_step;
        x_1 += x_step;
    }
}

#endif

LINGER_INSIDE void linger_dots_of_bytes(int32_t *restrict sums, int32_t pixels, int32_t outputs, const int8_t *restrict x,
                                        int32_t x_pixel, int32_t runs, int32_t x_step, int32_t length,
                                        const int8_t *restrict w, int32_t w_output, int32_t w_step,
                                        const int32_t *restrict bias, int32_t is_unsigned)
{
    linger_dots_state state;
    int32_t bias_pair[2];
    int32_t sums_pair[4];
    int32_t left = outputs;
    linger_short_windows windows;
    bias_pair[0] = 0;
    bias_pair[1] = 0;
    state.x_0 = x;
    state.x_1 = (pixels > 1) ? &x[x_pixel] : x;
    if ((runs > 1) && (runs <= LINGER_SHORT_WINDOW) && (length > 0) && (w_step >= length) &&
        (w_step <= (LINGER_SHORT_WINDOW / runs))) {
        state.whole = length;
        state.runs = runs;
        linger_join_runs(&windows, &state, x_step, w_step);
        state.x_0 = windows.of_pixel[0];
        state.x_1 = windows.of_pixel[1];
        length += (runs - 1) * w_step;
        runs = 1;
    }
    linger_set_lengths(&state, x_step, w_step, length);
    state.runs = runs;
    if ((runs <= 0) || (length <= 0)) {
        /* the loops below would begin a run that does not exist */
        int32_t o;
        for (o = 0; o < outputs; o++) {
            sums[o] = (bias != NULL) ? bias[o] : 0;
            if (pixels > 1) {
                sums[outputs + o] = sums[o];
            }
        }
        left = 0;
    }
    state.w = w;
    state.w_output = w_output;
    state.bias = (bias != NULL) ? bias : bias_pair;
    state.bias_step = (bias != NULL) ? 8 : 0;
    state.sums = sums;
    state.sums_pixel = outputs * 4;
    state.pairs = outputs / 2;
#if defined(LINGER_HELIUM)
    if ((runs == 1) && (length <= 16) && (left > 0)) {
        /* a lone pixel is computed twice, into the same place */
        state.sums_pixel = (pixels > 1) ? state.sums_pixel : 0;
        state.rest = outputs;
        (is_unsigned != 0) ? linger_dots_of_unsigned_vector(&state) : linger_dots_of_vector(&state);
        left = 0;
    }
    if ((is_unsigned != 0) && (left > 1)) {
        /* pairs of outputs until threes, or with one pixel fours, make up the rest; at most one output is left */
        static const int32_t zeros[4] = {0};
        const int32_t many = (pixels > 1) ? 3 : 4;
        const int32_t pairs = (pixels > 1) ? (3 - (outputs % 3)) : (2 - ((outputs % 4) / 2));
        state.bias = (bias != NULL) ? bias : zeros;
        state.pairs = (pairs <= state.pairs) ? pairs : state.pairs;
        left -= 2 * state.pairs;
        (pixels > 1) ? linger_dots_of_unsigned_two(&state) : linger_dots_of_unsigned_one(&state);
        if (left >= many) {
            state.pairs = left / many;
            state.bias_step = (bias != NULL) ? (4 * many) : 0;
            left -= many * state.pairs;
            (pixels > 1) ? linger_dots_of_unsigned_six(&state) : linger_dots_of_unsigned_four(&state);
        }
    }
#endif
    while (left > 0) {
        if (left == 1) {
            /* the last of an odd number of outputs makes a pair with itself */
            state.w = &w[(outputs - 1) * w_output];
            state.w_output = 0;
            if (bias != NULL) {
                bias_pair[0] = bias[outputs - 1];
                bias_pair[1] = bias_pair[0];
            }
            state.bias = bias_pair;
            state.sums = sums_pair;
            state.sums_pixel = 8;
            state.pairs = 1;
        }
        if (pixels > 1) {
            (is_unsigned != 0) ? linger_dots_of_unsigned_two(&state) : linger_dots_of_two(&state);
        } else {
            (is_unsigned != 0) ? linger_dots_of_unsigned_one(&state) : linger_dots_of_one(&state);
        }
        if (left == 1) {
            sums[outputs - 1] = sums_pair[0];
            if (pixels > 1) {
                sums[(2 * outputs) - 1] = sums_pair[2];
            }
            left = 0;
        } else {
            left &= 1;
        }
    }
}

#undef LINGER_SHORT_WINDOW

#endif

#if defined(LINGER_X86) || defined(LINGER_SMLAD) || defined(LINGER_HELIUM)

#define LINGER_DEFINE_DOTS_OF(NAME, X_T, IS_UNSIGNED)                                                                         \
    LINGER_SHARED void NAME(int32_t *restrict sums, int32_t pixels, int32_t outputs, const X_T *restrict x, int32_t x_pixel,  \
                            int32_t runs, int32_t x_step, int32_t length, const int8_t *restrict w, int32_t w_output,         \
                            int32_t w_step, const int32_t *restrict bias)                                                     \
    {                                                                                                                         \
        linger_dots_of_bytes(sums, pixels, outputs, (const int8_t *)x, x_pixel, runs, x_step, length, w, w_output, w_step,    \
                             bias, IS_UNSIGNED);                                                                              \
    }

LINGER_DEFINE_DOTS_OF(linger_dots_8_8_32, int8_t, 0)
LINGER_DEFINE_DOTS_OF(linger_dots_u8_8_32, uint8_t, 1)

#undef LINGER_DEFINE_DOTS_OF

#endif

#endif
