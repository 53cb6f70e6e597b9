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

#if defined(LINGER_CHANNELS_INSIDE)

#define LINGER_DEFINE_DEPTHWISE(NAME, X_T, W_T, S_T, PRODUCT_T)                                                               \
    LINGER_INSIDE void NAME##_pixel(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,         \
                            int32_t columns, int32_t x_column, const W_T *restrict w, int32_t w_row, int32_t w_column,        \
                            const int32_t *restrict bias)                                                                     \
    {                                                                                                                         \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (c = 0; c < channels; c++) {                                                                                      \
            sums[c] = (bias != NULL) ? (S_T)bias[c] : (S_T)0;                                                                 \
        }                                                                                                                     \
        for (row = 0; row < rows; row++) {                                                                                    \
            for (column = 0; column < columns; column++) {                                                                    \
                const X_T *x_here = &x[(row * x_row) + (column * x_column)];                                                  \
                const W_T *w_here = &w[(row * w_row) + (column * w_column)];                                                  \
                for (c = 0; c < channels; c++) {                                                                              \
                    sums[c] += (S_T)((PRODUCT_T)x_here[c] * (PRODUCT_T)w_here[c]);                                            \
                }                                                                                                             \
            }                                                                                                                 \
        }                                                                                                                     \
    }

#else

/* Some neighbouring channels at a time, so that their sums stay in registers. */
#define LINGER_DEFINE_DEPTHWISE(NAME, X_T, W_T, S_T, PRODUCT_T)                                                               \
    LINGER_INSIDE void NAME##_pixel(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,         \
                            int32_t columns, int32_t x_column, const W_T *restrict w, int32_t w_row, int32_t w_column,        \
                            const int32_t *restrict bias)                                                                     \
    {                                                                                                                         \
        int32_t first = 0;                                                                                                    \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (; channels - first >= LINGER_BLOCK; first += LINGER_BLOCK) {                                                     \
            S_T block[LINGER_BLOCK] = {0};                                                                                    \
            const X_T *x_start = &x[first];                                                                                   \
            const W_T *w_start = &w[first];                                                                                   \
            for (row = rows; row > 0; row--) {                                                                                \
                const X_T *x_here = x_start;                                                                                  \
                const W_T *w_here = w_start;                                                                                  \
                for (column = columns; column > 0; column--) {                                                                \
                    LINGER_UNROLL                                                                                             \
                    for (c = 0; c < LINGER_BLOCK; c++) {                                                                      \
                        block[c] += (S_T)((PRODUCT_T)x_here[c] * (PRODUCT_T)w_here[c]);                                       \
                    }                                                                                                         \
                    x_here += x_column;                                                                                       \
                    w_here += w_column;                                                                                       \
                }                                                                                                             \
                x_start += x_row;                                                                                             \
                w_start += w_row;                                                                                             \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (c = 0; c < LINGER_BLOCK; c++) {                                                                              \
                sums[first + c] = block[c] + ((bias != NULL) ? (S_T)bias[first + c] : (S_T)0);                                \
            }                                                                                                                 \
        }                                                                                                                     \
        for (; first < channels; first++) {                                                                                   \
            S_T sum = (bias != NULL) ? (S_T)bias[first] : (S_T)0;                                                             \
            for (row = 0; row < rows; row++) {                                                                                \
                for (column = 0; column < columns; column++) {                                                                \
                    sum += (S_T)((PRODUCT_T)x[(row * x_row) + (column * x_column) + first] *                                  \
                                 (PRODUCT_T)w[(row * w_row) + (column * w_column) + first]);                                  \
                }                                                                                                             \
            }                                                                                                                 \
            sums[first] = sum;                                                                                                \
        }                                                                                                                     \
    }

#endif

/* Each of the pixels. */
#define LINGER_DEPTHWISE_PIXELS(NAME, X_T, W_T, S_T) \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t pixels, int32_t channels, const X_T *restrict x, int32_t x_pixel, \
                            int32_t rows, int32_t x_row, int32_t columns, int32_t x_column, const W_T *restrict w, \
                            int32_t w_row, int32_t w_column, const int32_t *restrict bias) \
    { \
        int32_t p; \
        for (p = 0; p < pixels; p++) { \
            NAME##_pixel(&sums[p * channels], channels, &x[p * x_pixel], rows, x_row, columns, x_column, w, w_row, w_column, \
                         bias); \
        } \
    }
#define LINGER_DEPTHWISE_BOTH(NAME, X_T, W_T, S_T, PRODUCT_T) \
    LINGER_DEFINE_DEPTHWISE(NAME, X_T, W_T, S_T, PRODUCT_T) \
    LINGER_DEPTHWISE_PIXELS(NAME, X_T, W_T, S_T)

/* The variants below take the plain function for what they do not cover. */
#if defined(LINGER_X86) || defined(LINGER_SMLAD)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_plain, int8_t, int8_t, int32_t, int32_t)
#elif !defined(LINGER_HELIUM)
LINGER_DEPTHWISE_BOTH(linger_depthwise_8_8_32, int8_t, int8_t, int32_t, int32_t)
#endif
LINGER_DEPTHWISE_BOTH(linger_depthwise_8_8_64, int8_t, int8_t, int64_t, int32_t)
LINGER_DEPTHWISE_BOTH(linger_depthwise_8_16_32, int8_t, int16_t, int32_t, int32_t)
LINGER_DEPTHWISE_BOTH(linger_depthwise_8_16_64, int8_t, int16_t, int64_t, int32_t)
LINGER_DEPTHWISE_BOTH(linger_depthwise_16_8_32, int16_t, int8_t, int32_t, int32_t)
LINGER_DEPTHWISE_BOTH(linger_depthwise_16_8_64, int16_t, int8_t, int64_t, int32_t)
LINGER_DEPTHWISE_BOTH(linger_depthwise_16_16_32, int16_t, int16_t, int32_t, int32_t)
LINGER_DEPTHWISE_BOTH(linger_depthwise_16_16_64, int16_t, int16_t, int64_t, int32_t)

#undef LINGER_DEFINE_DEPTHWISE

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
    if (bias != NULL) {
        sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(low_lanes, &bias[first]));
    }
    _mm512_mask_storeu_epi32(&sums[first], low_lanes, sum);
    if (high_lanes != 0U) {
        sum = _mm512_permutex2var_epi32(low, high_order, high);
        if (bias != NULL) {
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
    if (bias != NULL) {
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

LINGER_INSIDE void linger_depthwise_8_8_32_pixel(int32_t *restrict sums, int32_t channels, const int8_t *restrict x, int32_t rows,
                                           int32_t x_row, int32_t columns, int32_t x_column, const int8_t *restrict w,
                                           int32_t w_row, int32_t w_column, const int32_t *restrict bias)
{
    if ((channels < LINGER_DEPTHWISE_CHANNELS) || (((int64_t)rows * columns) > LINGER_TAPS)) {
        linger_depthwise_plain_pixel(sums, channels, x, rows, x_row, columns, x_column, w, w_row, w_column, bias);
    } else {
        linger_taps taps;
        const int32_t count = linger_list_taps(&taps, x, rows, x_row, columns, x_column, w, w_row, w_column);
        linger_depthwise_blocks(sums, channels, &taps, count, bias);
    }
}

#undef LINGER_TAPS
#undef LINGER_DEPTHWISE_CHANNELS

#endif

#if defined(LINGER_HELIUM)

/* Eight channels at a time, widened to 16 bits; the products of even and of odd channels are two vectors of 32-bit sums. */
LINGER_INSIDE void linger_depthwise_8_8_32_pixel(int32_t *restrict sums, int32_t channels, const int8_t *restrict x, int32_t rows,
                                           int32_t x_row, int32_t columns, int32_t x_column, const int8_t *restrict w,
                                           int32_t w_row, int32_t w_column, const int32_t *restrict bias)
{
    int32_t first;
    for (first = 0; first < channels; first += 8) {
        const mve_pred16_t lanes = vctp16q((uint32_t)(channels - first));
        const int8_t *x_start = &x[first];
        const int8_t *w_start = &w[first];
        int32x4x2_t pair;
        int32_t row;
        int32_t column;
        int32_t c;
        pair.val[0] = vdupq_n_s32(0);
        pair.val[1] = vdupq_n_s32(0);
        for (row = 0; row < rows; row++) {
            const int8_t *x_here = x_start;
            const int8_t *w_here = w_start;
            for (column = columns; column > 0; column--) {
                const int16x8_t x_wide = vldrbq_z_s16(x_here, lanes);
                const int16x8_t w_wide = vldrbq_z_s16(w_here, lanes);
                pair.val[0] = vaddq_s32(pair.val[0], vmullbq_int_s16(x_wide, w_wide));
                pair.val[1] = vaddq_s32(pair.val[1], vmulltq_int_s16(x_wide, w_wide));
                x_here += x_column;
                w_here += w_column;
            }
            x_start += x_row;
            w_start += w_row;
        }
        if ((channels - first) >= 8) {
            if (bias != NULL) {
                const int32x4x2_t more = vld2q_s32(&bias[first]);
                pair.val[0] = vaddq_s32(pair.val[0], more.val[0]);
                pair.val[1] = vaddq_s32(pair.val[1], more.val[1]);
            }
            vst2q_s32(&sums[first], pair);
        } else {
            int32_t block[8];
            vst2q_s32(block, pair);
            for (c = first; c < channels; c++) {
                sums[c] = block[c - first] + ((bias != NULL) ? bias[c] : 0);
            }
        }
    }
}

#endif

#if defined(LINGER_SMLAD)

/* Four channels at a time: one load for four numbers, one instruction to widen two of them. */
LINGER_INSIDE void linger_depthwise_8_8_32_pixel(int32_t *restrict sums, int32_t channels, const int8_t *restrict x, int32_t rows,
                                           int32_t x_row, int32_t columns, int32_t x_column, const int8_t *restrict w,
                                           int32_t w_row, int32_t w_column, const int32_t *restrict bias)
{
    const int32_t whole = channels & ~3;
    int32_t first;
    for (first = 0; first < whole; first += 4) {
        const int8_t *x_start = &x[first];
        const int8_t *w_start = &w[first];
        int32_t sum_0 = 0;
        int32_t sum_1 = 0;
        int32_t sum_2 = 0;
        int32_t sum_3 = 0;
        int32_t row;
        int32_t column;
        for (row = rows; row > 0; row--) {
            const int8_t *x_here = x_start;
            const int8_t *w_here = w_start;
            for (column = columns; column > 0; column--) {
                const uint32_t x_four = linger_load_four(x_here);
                const uint32_t w_four = linger_load_four(w_here);
                const uint32_t x_even = linger_even_bytes(x_four);
                const uint32_t w_even = linger_even_bytes(w_four);
                const uint32_t x_odd = linger_odd_bytes(x_four);
                const uint32_t w_odd = linger_odd_bytes(w_four);
                sum_0 = linger_add_low_product(sum_0, x_even, w_even);
                sum_1 = linger_add_low_product(sum_1, x_odd, w_odd);
                sum_2 = linger_add_high_product(sum_2, x_even, w_even);
                sum_3 = linger_add_high_product(sum_3, x_odd, w_odd);
                x_here += x_column;
                w_here += w_column;
            }
            x_start += x_row;
            w_start += w_row;
        }
        if (bias != NULL) {
            sum_0 += bias[first];
            sum_1 += bias[first + 1];
            sum_2 += bias[first + 2];
            sum_3 += bias[first + 3];
        }
        sums[first] = sum_0;
        sums[first + 1] = sum_1;
        sums[first + 2] = sum_2;
        sums[first + 3] = sum_3;
    }
    if (whole < channels) {
        linger_depthwise_plain_pixel(&sums[whole], channels - whole, &x[whole], rows, x_row, columns, x_column, &w[whole], w_row,
                               w_column, (bias != NULL) ? &bias[whole] : bias);
    }
}

#endif

#if defined(LINGER_X86) || defined(LINGER_HELIUM) || defined(LINGER_SMLAD)
LINGER_DEPTHWISE_PIXELS(linger_depthwise_8_8_32, int8_t, int8_t, int32_t)
#endif

#endif
