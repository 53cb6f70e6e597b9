/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of a matrix product whose right operand is not transposed.
 *
 *   void linger_columns_<x>_<w>_<s>(s_t *sums, int32_t outputs, const x_t *x, int32_t length, const w_t *w, int32_t w_step)
 *
 *   sums[o] = sum over i < length of x[i] * w[i * w_step + o], for o < outputs
 *
 * <x> and <w> are 8 or 16, <s> is 32 or 64: the bits of the integers; <x> may be u8, unsigned bytes. The caller guarantees that the sum of any subset of the
 * products fits s_t. The functions add integers; they neither round nor saturate, so every variant is exact.
 */

#ifndef LINGER_COLUMNS_H
#define LINGER_COLUMNS_H

#include "linger_simd.h"

#if defined(LINGER_CHANNELS_INSIDE)

#define LINGER_DEFINE_COLUMNS(NAME, X_T, W_T, S_T, PRODUCT_T)                                                                 \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t outputs, const X_T *restrict x, int32_t length,                       \
                            const W_T *restrict w, int32_t w_step)                                                            \
    {                                                                                                                         \
        int32_t i;                                                                                                            \
        int32_t o;                                                                                                            \
        for (o = 0; o < outputs; o++) {                                                                                       \
            sums[o] = 0;                                                                                                      \
        }                                                                                                                     \
        for (i = 0; i < length; i++) {                                                                                        \
            const W_T *row = &w[i * w_step];                                                                                  \
            const PRODUCT_T x_here = (PRODUCT_T)x[i];                                                                         \
            for (o = 0; o < outputs; o++) {                                                                                   \
                sums[o] += (S_T)(x_here * (PRODUCT_T)row[o]);                                                                 \
            }                                                                                                                 \
        }                                                                                                                     \
    }

#else

/* Some neighboring columns at a time, so that a row of w is read in order and the sums stay in registers. */
#define LINGER_DEFINE_COLUMNS(NAME, X_T, W_T, S_T, PRODUCT_T)                                                                 \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t outputs, const X_T *restrict x, int32_t length,                       \
                            const W_T *restrict w, int32_t w_step)                                                            \
    {                                                                                                                         \
        int32_t first = 0;                                                                                                    \
        int32_t i;                                                                                                            \
        int32_t o;                                                                                                            \
        for (; outputs - first >= LINGER_BLOCK; first += LINGER_BLOCK) {                                                      \
            S_T block[LINGER_BLOCK] = {0};                                                                                    \
            const W_T *row = &w[first];                                                                                       \
            for (i = 0; i < length; i++) {                                                                                    \
                LINGER_UNROLL                                                                                                 \
                for (o = 0; o < LINGER_BLOCK; o++) {                                                                          \
                    block[o] += (S_T)((PRODUCT_T)x[i] * (PRODUCT_T)row[o]);                                                   \
                }                                                                                                             \
                row += w_step;                                                                                                \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (o = 0; o < LINGER_BLOCK; o++) {                                                                              \
                sums[first + o] = block[o];                                                                                   \
            }                                                                                                                 \
        }                                                                                                                     \
        for (; first < outputs; first++) {                                                                                    \
            S_T sum = 0;                                                                                                      \
            for (i = 0; i < length; i++) {                                                                                    \
                sum += (S_T)((PRODUCT_T)x[i] * (PRODUCT_T)w[(i * w_step) + first]);                                           \
            }                                                                                                                 \
            sums[first] = sum;                                                                                                \
        }                                                                                                                     \
    }

#endif

/* The variants below take the plain function for what they do not cover. */
#if defined(LINGER_AVX2) || defined(LINGER_SMLAD)
LINGER_DEFINE_COLUMNS(linger_columns_plain_0, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_plain_1, uint8_t, int8_t, int32_t, int32_t)
#elif !defined(LINGER_AVX512) && !defined(LINGER_HELIUM)
LINGER_DEFINE_COLUMNS(linger_columns_8_8_32, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_u8_8_32, uint8_t, int8_t, int32_t, int32_t)
#endif
LINGER_DEFINE_COLUMNS(linger_columns_8_8_64, int8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_u8_8_64, uint8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_u8_16_32, uint8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_u8_16_64, uint8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_8_16_32, int8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_8_16_64, int8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_8_32, int16_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_8_64, int16_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_16_32, int16_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_16_64, int16_t, int16_t, int64_t, int32_t)

#undef LINGER_DEFINE_COLUMNS

#if defined(LINGER_X86)

/* Two neighboring numbers of x, as a pair of 16-bit integers; the number behind the last one is 0. */
LINGER_INSIDE int32_t linger_pair_of_x(const int8_t *x, int32_t i, int32_t length, int32_t is_unsigned)
{
    const int32_t second = ((i + 1) < length) ? linger_byte(x, i + 1, is_unsigned) : 0;
    return (int32_t)(((uint32_t)linger_byte(x, i, is_unsigned) & 0xFFFFU) | ((uint32_t)second << 16));
}

#endif

#if defined(LINGER_AVX512)

/* 32 columns, or the `lanes` of them that exist; two rows of w at a time. */
LINGER_INSIDE void linger_columns_block(int32_t *sums, __mmask32 lanes, const int8_t *x, int32_t length, const int8_t *w,
                                        int32_t w_step, int32_t is_unsigned)
{
    const __m512i low_order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high_order = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    __m512i low = _mm512_setzero_si512();
    __m512i high = _mm512_setzero_si512();
    int32_t i;
    for (i = 0; i < length; i += 2) {
        const int32_t next = ((i + 1) < length) ? (i + 1) : i;
        const __m512i x_pair = _mm512_set1_epi32(linger_pair_of_x(x, i, length, is_unsigned));
        const __m512i w_0 = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(lanes, &w[i * w_step]));
        const __m512i w_1 = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(lanes, &w[next * w_step]));
        low = _mm512_dpwssd_epi32(low, _mm512_unpacklo_epi16(w_0, w_1), x_pair);
        high = _mm512_dpwssd_epi32(high, _mm512_unpackhi_epi16(w_0, w_1), x_pair);
    }
    /* unpacking worked within 128-bit parts: put the columns back in order */
    _mm512_mask_storeu_epi32(sums, (__mmask16)(lanes & 0xFFFFU), _mm512_permutex2var_epi32(low, low_order, high));
    if ((lanes >> 16) != 0U) {
        _mm512_mask_storeu_epi32(&sums[16], (__mmask16)(lanes >> 16), _mm512_permutex2var_epi32(low, high_order, high));
    }
}

LINGER_INSIDE void linger_columns_of_bytes(int32_t *restrict sums, int32_t outputs, const int8_t *restrict x, int32_t length,
                                           const int8_t *restrict w, int32_t w_step, int32_t is_unsigned)
{
    int32_t first;
    for (first = 0; (outputs - first) >= 32; first += 32) {
        linger_columns_block(&sums[first], ~(__mmask32)0, x, length, &w[first], w_step, is_unsigned);
    }
    if (first < outputs) {
        linger_columns_block(&sums[first], (((__mmask32)1) << (outputs - first)) - 1U, x, length, &w[first], w_step, is_unsigned);
    }
}

#elif defined(LINGER_AVX2)

/* 16 columns, two rows of w at a time. */
LINGER_INSIDE void linger_columns_block(int32_t *sums, const int8_t *x, int32_t length, const int8_t *w, int32_t w_step,
                                        int32_t is_unsigned)
{
    __m256i low = _mm256_setzero_si256();
    __m256i high = _mm256_setzero_si256();
    int32_t i;
    for (i = 0; i < length; i += 2) {
        const int32_t next = ((i + 1) < length) ? (i + 1) : i;
        const __m256i x_pair = _mm256_set1_epi32(linger_pair_of_x(x, i, length, is_unsigned));
        const __m256i w_0 = linger_widen_16(&w[i * w_step]);
        const __m256i w_1 = linger_widen_16(&w[next * w_step]);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(w_0, w_1), x_pair));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(w_0, w_1), x_pair));
    }
    /* unpacking worked within 128-bit parts: put the columns back in order */
    _mm256_storeu_si256((__m256i *)(void *)sums, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)&sums[8], _mm256_permute2x128_si256(low, high, 0x31));
}

/* The last block ends with the last column: it computes some columns a second time. */
LINGER_INSIDE void linger_columns_of_bytes(int32_t *restrict sums, int32_t outputs, const int8_t *restrict x, int32_t length,
                                           const int8_t *restrict w, int32_t w_step, int32_t is_unsigned)
{
    int32_t first;
    for (first = 0; (outputs - first) >= 16; first += 16) {
        linger_columns_block(&sums[first], x, length, &w[first], w_step, is_unsigned);
    }
    if (outputs < 16) {
        (is_unsigned != 0) ? linger_columns_plain_1(sums, outputs, (const uint8_t *)x, length, w, w_step)
                           : linger_columns_plain_0(sums, outputs, x, length, w, w_step);
    } else if (first < outputs) {
        linger_columns_block(&sums[outputs - 16], x, length, &w[outputs - 16], w_step, is_unsigned);
    } else {
        /* no column is left */
    }
}

#endif

#if defined(LINGER_HELIUM)

/* 16 columns at a time, then four, or as many of four as there are. */
LINGER_INSIDE void linger_columns_of_bytes(int32_t *restrict sums, int32_t outputs, const int8_t *restrict x, int32_t length,
                                           const int8_t *restrict w, int32_t w_step, int32_t is_unsigned)
{
    int32_t first = 0;
    int32_t i;
    for (; (outputs - first) >= 16; first += 16) {
        const int8_t *row = &w[first];
        int32x4_t sum_0 = vdupq_n_s32(0);
        int32x4_t sum_1 = sum_0;
        int32x4_t sum_2 = sum_0;
        int32x4_t sum_3 = sum_0;
        for (i = 0; i < length; i++) {
            const int32_t x_here = linger_byte(x, i, is_unsigned);
            sum_0 = vmlaq_n_s32(sum_0, vldrbq_s32(row), x_here);
            sum_1 = vmlaq_n_s32(sum_1, vldrbq_s32(&row[4]), x_here);
            sum_2 = vmlaq_n_s32(sum_2, vldrbq_s32(&row[8]), x_here);
            sum_3 = vmlaq_n_s32(sum_3, vldrbq_s32(&row[12]), x_here);
            row += w_step;
        }
        vst1q_s32(&sums[first], sum_0);
        vst1q_s32(&sums[first + 4], sum_1);
        vst1q_s32(&sums[first + 8], sum_2);
        vst1q_s32(&sums[first + 12], sum_3);
    }
    for (; first < outputs; first += 4) {
        const mve_pred16_t lanes = vctp32q((uint32_t)(outputs - first));
        const int8_t *row = &w[first];
        int32x4_t sum = vdupq_n_s32(0);
        for (i = 0; i < length; i++) {
            sum = vmlaq_n_s32(sum, vldrbq_z_s32(row, lanes), linger_byte(x, i, is_unsigned));
            row += w_step;
        }
        vst1q_p_s32(&sums[first], sum, lanes);
    }
}

#endif

#if defined(LINGER_SMLAD)

/* Four columns at a time: one load for four numbers, one instruction to widen two of them. */
LINGER_INSIDE void linger_columns_of_bytes(int32_t *restrict sums, int32_t outputs, const int8_t *restrict x, int32_t length,
                                           const int8_t *restrict w, int32_t w_step, int32_t is_unsigned)
{
    const int32_t whole = outputs & ~3;
    int32_t first;
    for (first = 0; first < whole; first += 4) {
        const int8_t *row = &w[first];
        int32_t sum_0 = 0;
        int32_t sum_1 = 0;
        int32_t sum_2 = 0;
        int32_t sum_3 = 0;
        int32_t i;
        for (i = 0; i < length; i++) {
            const uint32_t four = linger_load_four(row);
            const uint32_t even = linger_even_bytes(four);
            const uint32_t odd = linger_odd_bytes(four);
            const uint32_t x_here = (uint32_t)linger_byte(x, i, is_unsigned);
            sum_0 = linger_add_low_product(sum_0, x_here, even);
            sum_1 = linger_add_low_product(sum_1, x_here, odd);
            sum_2 = linger_add_crossed_product(sum_2, x_here, even);
            sum_3 = linger_add_crossed_product(sum_3, x_here, odd);
            row += w_step;
        }
        sums[first] = sum_0;
        sums[first + 1] = sum_1;
        sums[first + 2] = sum_2;
        sums[first + 3] = sum_3;
    }
    if (whole < outputs) {
        (is_unsigned != 0) ? linger_columns_plain_1(&sums[whole], outputs - whole, (const uint8_t *)x, length, &w[whole], w_step)
                           : linger_columns_plain_0(&sums[whole], outputs - whole, x, length, &w[whole], w_step);
    }
}

#endif

#if defined(LINGER_X86) || defined(LINGER_SMLAD) || defined(LINGER_HELIUM)

#define LINGER_DEFINE_COLUMNS_OF(NAME, X_T, IS_UNSIGNED)                                                                      \
    LINGER_SHARED void NAME(int32_t *restrict sums, int32_t outputs, const X_T *restrict x, int32_t length,                   \
                            const int8_t *restrict w, int32_t w_step)                                                         \
    {                                                                                                                         \
        linger_columns_of_bytes(sums, outputs, (const int8_t *)x, length, w, w_step, IS_UNSIGNED);                            \
    }

LINGER_DEFINE_COLUMNS_OF(linger_columns_8_8_32, int8_t, 0)
LINGER_DEFINE_COLUMNS_OF(linger_columns_u8_8_32, uint8_t, 1)

#undef LINGER_DEFINE_COLUMNS_OF

#endif

#endif
