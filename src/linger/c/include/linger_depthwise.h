/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pixel of a depthwise convolution: every channel has its own window of weights.
 *
 *   void linger_depthwise_<x>_<w>_<s>(s_t *sums, int32_t channels,
 *                                     const x_t *x, int32_t rows, int32_t x_row, int32_t columns, int32_t x_column,
 *                                     const w_t *w, int32_t w_row, int32_t w_column, const int32_t *bias)
 *
 *   sums[c] = (bias ? bias[c] : 0)
 *       + sum over r < rows, k < columns of x[r * x_row + k * x_column + c] * w[r * w_row + k * w_column + c], for c < channels
 *
 * <x> and <w> are 8 or 16, <s> is 32 or 64: the bits of the integers. The caller guarantees that the sum of any subset of the
 * products and the bias fits s_t. The functions add integers; they neither round nor saturate, so every variant is exact.
 */

#ifndef LINGER_DEPTHWISE_H
#define LINGER_DEPTHWISE_H

#include "linger_simd.h"

/* Some neighbouring channels at a time, so that their sums stay in registers. */
#define LINGER_DEPTHWISE_BLOCK LINGER_BLOCK

#define LINGER_DEFINE_DEPTHWISE(NAME, X_T, W_T, S_T, PRODUCT_T)                                                               \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,         \
                            int32_t columns, int32_t x_column, const W_T *restrict w, int32_t w_row, int32_t w_column,        \
                            const int32_t *restrict bias)                                                                     \
    {                                                                                                                         \
        int32_t first = 0;                                                                                                    \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (; channels - first >= LINGER_DEPTHWISE_BLOCK; first += LINGER_DEPTHWISE_BLOCK) {                                 \
            S_T block[LINGER_DEPTHWISE_BLOCK] = {0};                                                                          \
            for (row = 0; row < rows; row++) {                                                                                \
                for (column = 0; column < columns; column++) {                                                                \
                    const X_T *from_x = &x[(row * x_row) + (column * x_column) + first];                                      \
                    const W_T *from_w = &w[(row * w_row) + (column * w_column) + first];                                      \
                    LINGER_UNROLL                                                                                             \
                    for (c = 0; c < LINGER_DEPTHWISE_BLOCK; c++) {                                                            \
                        block[c] += (S_T)((PRODUCT_T)from_x[c] * (PRODUCT_T)from_w[c]);                                       \
                    }                                                                                                         \
                }                                                                                                             \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (c = 0; c < LINGER_DEPTHWISE_BLOCK; c++) {                                                                    \
                sums[first + c] = block[c] + ((bias != 0) ? (S_T)bias[first + c] : (S_T)0);                                   \
            }                                                                                                                 \
        }                                                                                                                     \
        for (; first < channels; first++) {                                                                                   \
            S_T sum = (bias != 0) ? (S_T)bias[first] : (S_T)0;                                                                \
            for (row = 0; row < rows; row++) {                                                                                \
                for (column = 0; column < columns; column++) {                                                                \
                    sum += (S_T)((PRODUCT_T)x[(row * x_row) + (column * x_column) + first] *                                  \
                                 (PRODUCT_T)w[(row * w_row) + (column * w_column) + first]);                                  \
                }                                                                                                             \
            }                                                                                                                 \
            sums[first] = sum;                                                                                                \
        }                                                                                                                     \
    }

/* The variants below take the plain function for what they do not cover. */
#if defined(LINGER_X86)
#define LINGER_DEPTHWISE_8_8_32 linger_depthwise_plain
#else
#define LINGER_DEPTHWISE_8_8_32 linger_depthwise_8_8_32
#endif

LINGER_DEFINE_DEPTHWISE(LINGER_DEPTHWISE_8_8_32, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_8_64, int8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_16_32, int8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_16_64, int8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_8_32, int16_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_8_64, int16_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_16_32, int16_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_16_64, int16_t, int16_t, int64_t, int32_t)

#undef LINGER_DEFINE_DEPTHWISE
#undef LINGER_DEPTHWISE_BLOCK
#undef LINGER_DEPTHWISE_8_8_32

#if defined(LINGER_X86)

/* The positions of all taps of a window are listed first; two taps at a time are interleaved, so that one multiply-add of 16-bit
   pairs gives the sum of two products per channel. Larger windows than this use plain C. */
#define LINGER_TAPS 128

typedef struct {
    const int8_t *x[LINGER_TAPS];
    const int8_t *w[LINGER_TAPS];
} linger_taps;

LINGER_INSIDE int32_t linger_list_taps(linger_taps *taps, const int8_t *x, int32_t rows, int32_t x_row, int32_t columns,
                                       int32_t x_column, const int8_t *w, int32_t w_row, int32_t w_column)
{
    int32_t count = 0;
    int32_t row;
    int32_t column;
    for (row = 0; row < rows; row++) {
        for (column = 0; column < columns; column++) {
            taps->x[count] = &x[(row * x_row) + (column * x_column)];
            taps->w[count] = &w[(row * w_row) + (column * w_column)];
            count++;
        }
    }
    return count;
}

#if defined(LINGER_AVX512)

LINGER_INSIDE __m512i linger_widen_lanes(const int8_t *from, __mmask32 lanes)
{
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(lanes, from));
}

/* 32 channels, or the `lanes` of them that exist. */
LINGER_INSIDE void linger_depthwise_block(int32_t *sums, const linger_taps *taps, int32_t count, int32_t first,
                                          __mmask32 lanes, const int32_t *bias)
{
    const __m512i zero = _mm512_setzero_si512();
    const __m512i low_order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high_order = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __mmask16 low_lanes = (__mmask16)(lanes & 0xFFFFU);
    const __mmask16 high_lanes = (__mmask16)(lanes >> 16);
    __m512i low = zero;
    __m512i high = zero;
    __m512i sum;
    int32_t tap;
    for (tap = 0; tap < count; tap += 2) {
        const __m512i x_0 = linger_widen_lanes(&taps->x[tap][first], lanes);
        const __m512i w_0 = linger_widen_lanes(&taps->w[tap][first], lanes);
        const int has_second = (tap + 1) < count;
        const __m512i x_1 = has_second ? linger_widen_lanes(&taps->x[tap + 1][first], lanes) : zero;
        const __m512i w_1 = has_second ? linger_widen_lanes(&taps->w[tap + 1][first], lanes) : zero;
        low = _mm512_dpwssd_epi32(low, _mm512_unpacklo_epi16(x_0, x_1), _mm512_unpacklo_epi16(w_0, w_1));
        high = _mm512_dpwssd_epi32(high, _mm512_unpackhi_epi16(x_0, x_1), _mm512_unpackhi_epi16(w_0, w_1));
    }
    /* unpacking worked within 128-bit parts: put the channels back in order */
    sum = _mm512_permutex2var_epi32(low, low_order, high);
    if (bias != 0) {
        sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(low_lanes, &bias[first]));
    }
    _mm512_mask_storeu_epi32(&sums[first], low_lanes, sum);
    if (high_lanes != 0U) {
        sum = _mm512_permutex2var_epi32(low, high_order, high);
        if (bias != 0) {
            sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(high_lanes, &bias[first + 16]));
        }
        _mm512_mask_storeu_epi32(&sums[first + 16], high_lanes, sum);
    }
}

LINGER_INSIDE void linger_depthwise_blocks(int32_t *sums, int32_t channels, const linger_taps *taps, int32_t count,
                                           const int32_t *bias)
{
    int32_t first;
    for (first = 0; (channels - first) >= 32; first += 32) {
        linger_depthwise_block(sums, taps, count, first, ~(__mmask32)0, bias);
    }
    if (first < channels) {
        linger_depthwise_block(sums, taps, count, first, (((__mmask32)1) << (channels - first)) - 1U, bias);
    }
}

#define LINGER_DEPTHWISE_CHANNELS 1

#else

/* 16 channels. */
LINGER_INSIDE void linger_depthwise_block(int32_t *sums, const linger_taps *taps, int32_t count, int32_t first,
                                          const int32_t *bias)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i low = zero;
    __m256i high = zero;
    __m256i sum_0;
    __m256i sum_1;
    int32_t tap;
    for (tap = 0; tap < count; tap += 2) {
        const __m256i x_0 = linger_widen_16(&taps->x[tap][first]);
        const __m256i w_0 = linger_widen_16(&taps->w[tap][first]);
        const int has_second = (tap + 1) < count;
        const __m256i x_1 = has_second ? linger_widen_16(&taps->x[tap + 1][first]) : zero;
        const __m256i w_1 = has_second ? linger_widen_16(&taps->w[tap + 1][first]) : zero;
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(x_0, x_1), _mm256_unpacklo_epi16(w_0, w_1)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(x_0, x_1), _mm256_unpackhi_epi16(w_0, w_1)));
    }
    /* unpacking worked within 128-bit parts: put the channels back in order */
    sum_0 = _mm256_permute2x128_si256(low, high, 0x20);
    sum_1 = _mm256_permute2x128_si256(low, high, 0x31);
    if (bias != 0) {
        sum_0 = _mm256_add_epi32(sum_0, _mm256_loadu_si256((const __m256i *)(const void *)&bias[first]));
        sum_1 = _mm256_add_epi32(sum_1, _mm256_loadu_si256((const __m256i *)(const void *)&bias[first + 8]));
    }
    _mm256_storeu_si256((__m256i *)(void *)&sums[first], sum_0);
    _mm256_storeu_si256((__m256i *)(void *)&sums[first + 8], sum_1);
}

/* The last block ends with the last channel: it computes some channels a second time. */
LINGER_INSIDE void linger_depthwise_blocks(int32_t *sums, int32_t channels, const linger_taps *taps, int32_t count,
                                           const int32_t *bias)
{
    int32_t first;
    for (first = 0; (channels - first) >= 16; first += 16) {
        linger_depthwise_block(sums, taps, count, first, bias);
    }
    if (first < channels) {
        linger_depthwise_block(sums, taps, count, channels - 16, bias);
    }
}

#define LINGER_DEPTHWISE_CHANNELS 16

#endif

LINGER_SHARED void linger_depthwise_8_8_32(int32_t *restrict sums, int32_t channels, const int8_t *restrict x, int32_t rows,
                                           int32_t x_row, int32_t columns, int32_t x_column, const int8_t *restrict w,
                                           int32_t w_row, int32_t w_column, const int32_t *restrict bias)
{
    if ((channels < LINGER_DEPTHWISE_CHANNELS) || (((int64_t)rows * columns) > LINGER_TAPS)) {
        linger_depthwise_plain(sums, channels, x, rows, x_row, columns, x_column, w, w_row, w_column, bias);
    } else {
        linger_taps taps;
        const int32_t count = linger_list_taps(&taps, x, rows, x_row, columns, x_column, w, w_row, w_column);
        linger_depthwise_blocks(sums, channels, &taps, count, bias);
    }
}

#undef LINGER_TAPS
#undef LINGER_DEPTHWISE_CHANNELS

#endif

#endif
