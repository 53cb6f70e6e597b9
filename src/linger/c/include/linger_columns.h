/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of a matrix product whose right operand is not transposed.
 *
 *   void linger_columns_<x>_<w>_<s>(s_t *sums, int32_t outputs, const x_t *x, int32_t length, const w_t *w, int32_t w_step)
 *
 *   sums[o] = sum over i < length of x[i] * w[i * w_step + o], for o < outputs
 *
 * <x> and <w> are 8 or 16, <s> is 32 or 64: the bits of the integers. The caller guarantees that the sum of any subset of the
 * products fits s_t. The functions add integers; they neither round nor saturate, so every variant is exact.
 */

#ifndef LINGER_COLUMNS_H
#define LINGER_COLUMNS_H

#include "linger_simd.h"

/* Some neighbouring columns at a time, so that a row of w is read in order and the sums stay in registers. */
#define LINGER_COLUMNS_BLOCK LINGER_BLOCK

#define LINGER_DEFINE_COLUMNS(NAME, X_T, W_T, S_T, PRODUCT_T)                                                                 \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t outputs, const X_T *restrict x, int32_t length,                       \
                            const W_T *restrict w, int32_t w_step)                                                            \
    {                                                                                                                         \
        int32_t first = 0;                                                                                                    \
        int32_t i;                                                                                                            \
        int32_t o;                                                                                                            \
        for (; outputs - first >= LINGER_COLUMNS_BLOCK; first += LINGER_COLUMNS_BLOCK) {                                      \
            S_T block[LINGER_COLUMNS_BLOCK] = {0};                                                                            \
            for (i = 0; i < length; i++) {                                                                                    \
                const W_T *row = &w[(i * w_step) + first];                                                                    \
                LINGER_UNROLL                                                                                                 \
                for (o = 0; o < LINGER_COLUMNS_BLOCK; o++) {                                                                  \
                    block[o] += (S_T)((PRODUCT_T)x[i] * (PRODUCT_T)row[o]);                                                   \
                }                                                                                                             \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (o = 0; o < LINGER_COLUMNS_BLOCK; o++) {                                                                      \
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

/* The variants below take the plain function for what they do not cover. */
#if defined(LINGER_X86)
#define LINGER_COLUMNS_8_8_32 linger_columns_plain
#else
#define LINGER_COLUMNS_8_8_32 linger_columns_8_8_32
#endif

LINGER_DEFINE_COLUMNS(LINGER_COLUMNS_8_8_32, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_8_8_64, int8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_8_16_32, int8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_8_16_64, int8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_8_32, int16_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_8_64, int16_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_16_32, int16_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_COLUMNS(linger_columns_16_16_64, int16_t, int16_t, int64_t, int32_t)

#undef LINGER_DEFINE_COLUMNS
#undef LINGER_COLUMNS_BLOCK
#undef LINGER_COLUMNS_8_8_32

#if defined(LINGER_X86)

/* Two neighbouring numbers of x, as a pair of 16-bit integers; the number behind the last one is 0. */
LINGER_INSIDE int32_t linger_pair_of_x(const int8_t *x, int32_t i, int32_t length)
{
    const int32_t second = ((i + 1) < length) ? x[i + 1] : 0;
    return (int32_t)(((uint32_t)x[i] & 0xFFFFU) | ((uint32_t)second << 16));
}

#endif

#if defined(LINGER_AVX512)

/* 32 columns, or the `lanes` of them that exist; two rows of w at a time. */
LINGER_INSIDE void linger_columns_block(int32_t *sums, __mmask32 lanes, const int8_t *x, int32_t length, const int8_t *w,
                                        int32_t w_step)
{
    const __m512i low_order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high_order = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    __m512i low = _mm512_setzero_si512();
    __m512i high = _mm512_setzero_si512();
    int32_t i;
    for (i = 0; i < length; i += 2) {
        const int32_t next = ((i + 1) < length) ? (i + 1) : i;
        const __m512i x_pair = _mm512_set1_epi32(linger_pair_of_x(x, i, length));
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

LINGER_SHARED void linger_columns_8_8_32(int32_t *restrict sums, int32_t outputs, const int8_t *restrict x, int32_t length,
                                         const int8_t *restrict w, int32_t w_step)
{
    int32_t first;
    for (first = 0; (outputs - first) >= 32; first += 32) {
        linger_columns_block(&sums[first], ~(__mmask32)0, x, length, &w[first], w_step);
    }
    if (first < outputs) {
        linger_columns_block(&sums[first], (((__mmask32)1) << (outputs - first)) - 1U, x, length, &w[first], w_step);
    }
}

#elif defined(LINGER_AVX2)

/* 16 columns, two rows of w at a time. */
LINGER_INSIDE void linger_columns_block(int32_t *sums, const int8_t *x, int32_t length, const int8_t *w, int32_t w_step)
{
    __m256i low = _mm256_setzero_si256();
    __m256i high = _mm256_setzero_si256();
    int32_t i;
    for (i = 0; i < length; i += 2) {
        const int32_t next = ((i + 1) < length) ? (i + 1) : i;
        const __m256i x_pair = _mm256_set1_epi32(linger_pair_of_x(x, i, length));
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
LINGER_SHARED void linger_columns_8_8_32(int32_t *restrict sums, int32_t outputs, const int8_t *restrict x, int32_t length,
                                         const int8_t *restrict w, int32_t w_step)
{
    int32_t first;
    for (first = 0; (outputs - first) >= 16; first += 16) {
        linger_columns_block(&sums[first], x, length, &w[first], w_step);
    }
    if (outputs < 16) {
        linger_columns_plain(sums, outputs, x, length, w, w_step);
    } else if (first < outputs) {
        linger_columns_block(&sums[outputs - 16], x, length, &w[outputs - 16], w_step);
    } else {
        /* no column is left */
    }
}

#endif

#endif
