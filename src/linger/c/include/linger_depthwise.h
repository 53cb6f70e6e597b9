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
LINGER_DEPTHWISE_BOTH(linger_depthwise_plain, int8_t, int8_t, int32_t, int32_t)
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

/* The positions of all taps of a window are listed first. Larger windows than this use plain C. */
#define LINGER_TAPS 128

typedef struct {
    const int8_t *x[LINGER_TAPS];
    const int8_t *w[LINGER_TAPS];
    int32_t count;
    int32_t x_pixel;
} linger_taps;

LINGER_INSIDE void linger_list_taps(linger_taps *taps, const int8_t *x, int32_t x_pixel, int32_t rows, int32_t x_row,
                                    int32_t columns, int32_t x_column, const int8_t *w, int32_t w_row, int32_t w_column)
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
    taps->count = count;
    taps->x_pixel = x_pixel;
}

#if defined(LINGER_AVX512)

/* The bytes of four taps side by side, channel by channel: channels 0 to 3 and 16 to 19, 4 to 7 and 20 to 23, and so on. */
LINGER_INSIDE void linger_interleave(__m256i quads[4], __m256i tap_0, __m256i tap_1, __m256i tap_2, __m256i tap_3)
{
    const __m256i low_01 = _mm256_unpacklo_epi8(tap_0, tap_1);
    const __m256i high_01 = _mm256_unpackhi_epi8(tap_0, tap_1);
    const __m256i low_23 = _mm256_unpacklo_epi8(tap_2, tap_3);
    const __m256i high_23 = _mm256_unpackhi_epi8(tap_2, tap_3);
    quads[0] = _mm256_unpacklo_epi16(low_01, low_23);
    quads[1] = _mm256_unpackhi_epi16(low_01, low_23);
    quads[2] = _mm256_unpacklo_epi16(high_01, high_23);
    quads[3] = _mm256_unpackhi_epi16(high_01, high_23);
}

/* Channels of x as x + 128, which VPDPBUSD wants: it multiplies unsigned by signed bytes. */
LINGER_INSIDE __m256i linger_raised_channels(const int8_t *from, __mmask32 lanes)
{
    return _mm256_xor_si256(_mm256_maskz_loadu_epi8(lanes, from), _mm256_set1_epi8((char)-128));
}

/* Eight of the sums of a pixel. */
LINGER_INSIDE void linger_store_channels(int32_t *sums, __m256i eight, __mmask32 lanes, const int32_t *bias)
{
    const __mmask8 these = (__mmask8)(lanes & 0xFFU);
    if (bias != NULL) {
        eight = _mm256_add_epi32(eight, _mm256_maskz_loadu_epi32(these, bias));
    }
    _mm256_mask_storeu_epi32(sums, these, eight);
}

/* 32 channels, or the `lanes` of them that exist, of `pixels` pixels, which is a literal. Taps come in fours; those behind the
   last one have zeros for weights. What x + 128 added, 128 times the sum of the weights, is subtracted at the end; vectors wrap
   around where they overflow, so the detour is exact. */
LINGER_INSIDE void linger_depthwise_block(int32_t *sums, int32_t pixels, int32_t channels, const linger_taps *taps,
                                          int32_t first, __mmask32 lanes, const int32_t *bias)
{
    const __m256i raise = _mm256_set1_epi8((char)-128);
    __m256i s[LINGER_PIXELS][4];
    __m256i raised[4];
    __m256i w_quads[4];
    __m256i x_quads[4];
    int32_t tap;
    int32_t p;
    int32_t k;
    LINGER_UNROLL
    for (k = 0; k < 4; k++) {
        raised[k] = _mm256_setzero_si256();
        LINGER_UNROLL
        for (p = 0; p < pixels; p++) {
            s[p][k] = raised[k];
        }
    }
    for (tap = 0; tap < taps->count; tap += 4) {
        const int32_t left = taps->count - tap;
        const int32_t tap_1 = (left > 1) ? (tap + 1) : tap;
        const int32_t tap_2 = (left > 2) ? (tap + 2) : tap;
        const int32_t tap_3 = (left > 3) ? (tap + 3) : tap;
        linger_interleave(w_quads, _mm256_maskz_loadu_epi8(lanes, &taps->w[tap][first]),
                          _mm256_maskz_loadu_epi8((left > 1) ? lanes : 0U, &taps->w[tap_1][first]),
                          _mm256_maskz_loadu_epi8((left > 2) ? lanes : 0U, &taps->w[tap_2][first]),
                          _mm256_maskz_loadu_epi8((left > 3) ? lanes : 0U, &taps->w[tap_3][first]));
        LINGER_UNROLL
        for (k = 0; k < 4; k++) {
            raised[k] = _mm256_dpbusd_epi32(raised[k], raise, w_quads[k]);
        }
        LINGER_UNROLL
        for (p = 0; p < pixels; p++) {
            const int32_t here = first + (p * taps->x_pixel);
            linger_interleave(x_quads, linger_raised_channels(&taps->x[tap][here], lanes),
                              linger_raised_channels(&taps->x[tap_1][here], lanes),
                              linger_raised_channels(&taps->x[tap_2][here], lanes),
                              linger_raised_channels(&taps->x[tap_3][here], lanes));
            LINGER_UNROLL
            for (k = 0; k < 4; k++) {
                s[p][k] = _mm256_dpbusd_epi32(s[p][k], x_quads[k], w_quads[k]);
            }
        }
    }
    LINGER_UNROLL
    for (p = 0; p < pixels; p++) {
        int32_t *to = &sums[(p * channels) + first];
        LINGER_UNROLL
        for (k = 0; k < 4; k++) {
            s[p][k] = _mm256_sub_epi32(s[p][k], raised[k]);
        }
        /* interleaving worked within 128-bit parts: put the channels back in order */
        linger_store_channels(to, _mm256_permute2x128_si256(s[p][0], s[p][1], 0x20), lanes, bias);
        linger_store_channels(&to[8], _mm256_permute2x128_si256(s[p][2], s[p][3], 0x20), lanes >> 8,
                              (bias != NULL) ? &bias[8] : bias);
        linger_store_channels(&to[16], _mm256_permute2x128_si256(s[p][0], s[p][1], 0x31), lanes >> 16,
                              (bias != NULL) ? &bias[16] : bias);
        linger_store_channels(&to[24], _mm256_permute2x128_si256(s[p][2], s[p][3], 0x31), lanes >> 24,
                              (bias != NULL) ? &bias[24] : bias);
    }
}

LINGER_INSIDE void linger_depthwise_blocks(int32_t *sums, int32_t pixels, int32_t channels, const linger_taps *taps,
                                           const int32_t *bias)
{
    int32_t first;
    for (first = 0; first < channels; first += 32) {
        const int32_t left = channels - first;
        const __mmask32 lanes = (left >= 32) ? ~(__mmask32)0 : ((((__mmask32)1) << left) - 1U);
        linger_depthwise_block(sums, pixels, channels, taps, first, lanes, (bias != NULL) ? &bias[first] : bias);
    }
}

#define LINGER_DEPTHWISE_CHANNELS 1

#else

/* Two taps of 16 channels, as pairs of 16-bit integers: channels 0 to 7, and 8 to 15. */
LINGER_INSIDE void linger_interleave(__m256i pairs[2], __m128i tap_0, __m128i tap_1)
{
    pairs[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(tap_0, tap_1));
    pairs[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(tap_0, tap_1));
}

LINGER_INSIDE __m128i linger_load_16(const int8_t *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

/* 16 channels of `pixels` pixels, which is a literal. Taps come in pairs; one behind the last has zeros for weights. */
LINGER_INSIDE void linger_depthwise_block(int32_t *sums, int32_t pixels, int32_t channels, const linger_taps *taps,
                                          int32_t first, const int32_t *bias)
{
    __m256i s[LINGER_PIXELS][2];
    __m256i w_pairs[2];
    __m256i x_pairs[2];
    int32_t tap;
    int32_t p;
    LINGER_UNROLL
    for (p = 0; p < pixels; p++) {
        s[p][0] = _mm256_setzero_si256();
        s[p][1] = s[p][0];
    }
    for (tap = 0; tap < taps->count; tap += 2) {
        const int32_t has_second = ((tap + 1) < taps->count) ? 1 : 0;
        const int32_t next = tap + has_second;
        linger_interleave(w_pairs, linger_load_16(&taps->w[tap][first]),
                          (has_second != 0) ? linger_load_16(&taps->w[next][first]) : _mm_setzero_si128());
        LINGER_UNROLL
        for (p = 0; p < pixels; p++) {
            const int32_t here = first + (p * taps->x_pixel);
            linger_interleave(x_pairs, linger_load_16(&taps->x[tap][here]), linger_load_16(&taps->x[next][here]));
            s[p][0] = _mm256_add_epi32(s[p][0], _mm256_madd_epi16(x_pairs[0], w_pairs[0]));
            s[p][1] = _mm256_add_epi32(s[p][1], _mm256_madd_epi16(x_pairs[1], w_pairs[1]));
        }
    }
    LINGER_UNROLL
    for (p = 0; p < pixels; p++) {
        int32_t *to = &sums[(p * channels) + first];
        if (bias != NULL) {
            s[p][0] = _mm256_add_epi32(s[p][0], _mm256_loadu_si256((const __m256i *)(const void *)&bias[first]));
            s[p][1] = _mm256_add_epi32(s[p][1], _mm256_loadu_si256((const __m256i *)(const void *)&bias[first + 8]));
        }
        _mm256_storeu_si256((__m256i *)(void *)to, s[p][0]);
        _mm256_storeu_si256((__m256i *)(void *)&to[8], s[p][1]);
    }
}

/* The last block ends with the last channel: it computes some channels a second time. */
LINGER_INSIDE void linger_depthwise_blocks(int32_t *sums, int32_t pixels, int32_t channels, const linger_taps *taps,
                                           const int32_t *bias)
{
    int32_t first;
    for (first = 0; first < channels; first += 16) {
        const int32_t start = ((channels - first) >= 16) ? first : (channels - 16);
        linger_depthwise_block(sums, pixels, channels, taps, start, bias);
    }
}

#define LINGER_DEPTHWISE_CHANNELS 16

#endif

LINGER_SHARED void linger_depthwise_8_8_32(int32_t *restrict sums, int32_t pixels, int32_t channels, const int8_t *restrict x,
                                           int32_t x_pixel, int32_t rows, int32_t x_row, int32_t columns, int32_t x_column,
                                           const int8_t *restrict w, int32_t w_row, int32_t w_column,
                                           const int32_t *restrict bias)
{
    if ((channels < LINGER_DEPTHWISE_CHANNELS) || (((int64_t)rows * columns) > LINGER_TAPS)) {
        linger_depthwise_plain(sums, pixels, channels, x, x_pixel, rows, x_row, columns, x_column, w, w_row, w_column, bias);
    } else {
        linger_taps taps;
        linger_list_taps(&taps, x, x_pixel, rows, x_row, columns, x_column, w, w_row, w_column);
        switch (pixels) {
        case 1:
            linger_depthwise_blocks(sums, 1, channels, &taps, bias);
            break;
        case 2:
            linger_depthwise_blocks(sums, 2, channels, &taps, bias);
            break;
        case 3:
            linger_depthwise_blocks(sums, 3, channels, &taps, bias);
            break;
        default:
            linger_depthwise_blocks(sums, LINGER_PIXELS, channels, &taps, bias);
            break;
        }
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

#if defined(LINGER_HELIUM) || defined(LINGER_SMLAD)
LINGER_DEPTHWISE_PIXELS(linger_depthwise_8_8_32, int8_t, int8_t, int32_t)
#endif

#endif
