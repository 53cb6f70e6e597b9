/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Depthwise convolutions: every channel has its own window of weights, which neighboring pixels share.
 *
 *   void linger_depthwise_<x>_<w>_<s>(s_t *sums, int32_t pixels, int32_t channels, const x_t *x, int32_t x_pixel,
 *                                     int32_t rows, int32_t x_row, int32_t columns, int32_t x_column,
 *                                     const w_t *w, int32_t w_row, int32_t w_column, const int32_t *bias)
 *
 *   sums[p * channels + c] = (bias ? bias[c] : 0)
 *       + sum over r < rows, k < columns of x[p * x_pixel + r * x_row + k * x_column + c] * w[r * w_row + k * w_column + c]
 *
 * for p < pixels, 1 <= pixels <= LINGER_PIXELS, and c < channels. <x> and <w> are 8 or 16, <s> is 32 or 64: the bits of the
 * integers; <x> may be u8, unsigned bytes. The caller guarantees that the sum of any subset of the products and the bias fits s_t. The functions add
 * integers; they neither round nor saturate, so every variant is exact.
 */

#ifndef LINGER_DEPTHWISE_H
#define LINGER_DEPTHWISE_H

#include "linger_simd.h"

/* LINGER_DEFINE_DEPTHWISE_PIXEL defines the function of one pixel. */
#if defined(LINGER_CHANNELS_INSIDE)

#define LINGER_DEFINE_DEPTHWISE_PIXEL(NAME, X_T, W_T, S_T, PRODUCT_T)                                                         \
    LINGER_INSIDE void NAME##_of_one(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows,               \
                                     int32_t x_row, int32_t columns, int32_t x_column, const W_T *restrict w,                 \
                                     int32_t w_row, int32_t w_column, const int32_t *restrict bias)                           \
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

/* Some neighboring channels at a time, so that their sums stay in registers. */
#define LINGER_DEFINE_DEPTHWISE_PIXEL(NAME, X_T, W_T, S_T, PRODUCT_T)                                                         \
    LINGER_INSIDE void NAME##_of_one(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows,               \
                                     int32_t x_row, int32_t columns, int32_t x_column, const W_T *restrict w,                 \
                                     int32_t w_row, int32_t w_column, const int32_t *restrict bias)                           \
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

#define LINGER_DEFINE_DEPTHWISE(NAME, X_T, W_T, S_T, PRODUCT_T)                                                               \
    LINGER_DEFINE_DEPTHWISE_PIXEL(NAME, X_T, W_T, S_T, PRODUCT_T)                                                             \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t pixels, int32_t channels, const X_T *restrict x, int32_t x_pixel,     \
                            int32_t rows, int32_t x_row, int32_t columns, int32_t x_column, const W_T *restrict w,            \
                            int32_t w_row, int32_t w_column, const int32_t *restrict bias)                                    \
    {                                                                                                                         \
        int32_t p;                                                                                                            \
        for (p = 0; p < pixels; p++) {                                                                                        \
            NAME##_of_one(&sums[p * channels], channels, &x[p * x_pixel], rows, x_row, columns, x_column, w, w_row, w_column, \
                          bias);                                                                                              \
        }                                                                                                                     \
    }

/* The variants below take the plain function for what they do not cover. */
#if defined(LINGER_X86) || defined(LINGER_SMLAD)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_plain_0, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_plain_1, uint8_t, int8_t, int32_t, int32_t)
#elif !defined(LINGER_HELIUM)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_8_32, int8_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_u8_8_32, uint8_t, int8_t, int32_t, int32_t)
#endif
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_8_64, int8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_u8_8_64, uint8_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_u8_16_32, uint8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_u8_16_64, uint8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_16_32, int8_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_8_16_64, int8_t, int16_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_8_32, int16_t, int8_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_8_64, int16_t, int8_t, int64_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_16_32, int16_t, int16_t, int32_t, int32_t)
LINGER_DEFINE_DEPTHWISE(linger_depthwise_16_16_64, int16_t, int16_t, int64_t, int32_t)

#undef LINGER_DEFINE_DEPTHWISE
#undef LINGER_DEFINE_DEPTHWISE_PIXEL

#if defined(LINGER_X86)

/* Where a window and its weights are: arguments of the function. */
typedef struct {
    const int8_t *x;
    int32_t x_pixel;
    int32_t rows;
    int32_t x_row;
    int32_t columns;
    int32_t x_column;
    const int8_t *w;
    int32_t w_row;
    int32_t w_column;
} linger_depthwise_window;

#if defined(LINGER_AVX512)

/* So many rows are multiplied at a time, so many channels are a block, and so few of them may there be. */
#define LINGER_DEPTHWISE_ROWS 4
#define LINGER_DEPTHWISE_BLOCK 32
#define LINGER_DEPTHWISE_LEAST 1
#define LINGER_ALL_LANES (~(linger_lanes)0)

/* The channels of a block that exist. */
typedef __mmask32 linger_lanes;

/* Numbers of 32 channels, in the order that interleaving leaves: 0 to 3 and 16 to 19, 4 to 7 and 20 to 23, and so on. */
typedef struct {
    __m256i a;
    __m256i b;
    __m256i c;
    __m256i d;
} linger_channels;

/* The bytes of four rows side by side, channel by channel. */
LINGER_INSIDE linger_channels linger_interleave(__m256i row_0, __m256i row_1, __m256i row_2, __m256i row_3)
{
    const __m256i low_01 = _mm256_unpacklo_epi8(row_0, row_1);
    const __m256i high_01 = _mm256_unpackhi_epi8(row_0, row_1);
    const __m256i low_23 = _mm256_unpacklo_epi8(row_2, row_3);
    const __m256i high_23 = _mm256_unpackhi_epi8(row_2, row_3);
    linger_channels quads;
    quads.a = _mm256_unpacklo_epi16(low_01, low_23);
    quads.b = _mm256_unpackhi_epi16(low_01, low_23);
    quads.c = _mm256_unpacklo_epi16(high_01, high_23);
    quads.d = _mm256_unpackhi_epi16(high_01, high_23);
    return quads;
}

/* Channels of x as x + 128, because VPDPBUSD multiplies unsigned by signed bytes. */
LINGER_INSIDE __m256i linger_raised_channels(const int8_t *from, linger_lanes lanes)
{
    return _mm256_xor_si256(_mm256_maskz_loadu_epi8(lanes, from), _mm256_set1_epi8((char)-128));
}

/* Up to four numbers of x, one below the other. Rows that are not there repeat the first one; their weights are zeros. */
LINGER_INSIDE linger_channels linger_x_rows(const int8_t *x, int32_t x_row, int32_t rows, linger_lanes lanes)
{
    return linger_interleave(linger_raised_channels(x, lanes), linger_raised_channels(&x[(rows > 1) ? x_row : 0], lanes),
                             linger_raised_channels(&x[(rows > 2) ? (2 * x_row) : 0], lanes),
                             linger_raised_channels(&x[(rows > 3) ? (3 * x_row) : 0], lanes));
}

/* Up to four weights, one below the other. */
LINGER_INSIDE linger_channels linger_w_rows(const int8_t *w, int32_t w_row, int32_t rows, linger_lanes lanes)
{
    return linger_interleave(_mm256_maskz_loadu_epi8(lanes, w),
                             _mm256_maskz_loadu_epi8((rows > 1) ? lanes : 0U, &w[(rows > 1) ? w_row : 0]),
                             _mm256_maskz_loadu_epi8((rows > 2) ? lanes : 0U, &w[(rows > 2) ? (2 * w_row) : 0]),
                             _mm256_maskz_loadu_epi8((rows > 3) ? lanes : 0U, &w[(rows > 3) ? (3 * w_row) : 0]));
}

/* The products of x and w, added to the sums. */
LINGER_INSIDE void linger_add_rows(linger_channels *sums, linger_channels x, linger_channels w)
{
    sums->a = _mm256_dpbusd_epi32(sums->a, x.a, w.a);
    sums->b = _mm256_dpbusd_epi32(sums->b, x.b, w.b);
    sums->c = _mm256_dpbusd_epi32(sums->c, x.c, w.c);
    sums->d = _mm256_dpbusd_epi32(sums->d, x.d, w.d);
}

/* Three rows of the windows of 3 x 3 are multiplied at a time. */
typedef linger_channels linger_three;

LINGER_INSIDE linger_three linger_x_three(const int8_t *x, int32_t x_row, linger_lanes lanes)
{
    return linger_x_rows(x, x_row, 3, lanes);
}

LINGER_INSIDE linger_three linger_w_three(const int8_t *w, int32_t w_row, linger_lanes lanes)
{
    return linger_w_rows(w, w_row, 3, lanes);
}

LINGER_INSIDE void linger_add_three(linger_channels *sums, linger_three x, linger_three w)
{
    linger_add_rows(sums, x, w);
}

/* What x + 128 adds: 128 times the weights. */
LINGER_INSIDE void linger_add_raise(linger_channels *raised, linger_channels w)
{
    const __m256i raise = _mm256_set1_epi8((char)-128);
    const linger_channels raises = {raise, raise, raise, raise};
    linger_add_rows(raised, raises, w);
}

LINGER_INSIDE void linger_add_raise_of_three(linger_channels *raised, linger_three w)
{
    linger_add_raise(raised, w);
}

/* The sums to begin with. */
LINGER_INSIDE linger_channels linger_first_sums(const int32_t *bias)
{
    const __m256i zero = _mm256_setzero_si256();
    const linger_channels zeros = {zero, zero, zero, zero};
    (void)bias;
    return zeros;
}

/* The numbers in the order of the channels. */
LINGER_INSIDE linger_channels linger_in_order(linger_channels s)
{
    linger_channels ordered;
    ordered.a = _mm256_permute2x128_si256(s.a, s.b, 0x20);
    ordered.b = _mm256_permute2x128_si256(s.c, s.d, 0x20);
    ordered.c = _mm256_permute2x128_si256(s.a, s.b, 0x31);
    ordered.d = _mm256_permute2x128_si256(s.c, s.d, 0x31);
    return ordered;
}

LINGER_INSIDE __m256i linger_load_eight(const int32_t *from, linger_lanes lanes)
{
    return _mm256_maskz_loadu_epi32((__mmask8)(lanes & 0xFFU), from);
}

/* What to add to every pixel's sums, in the order of the channels: the bias less what x + 128 added. Vectors wrap around where
   they overflow, so the detour is exact. */
LINGER_INSIDE linger_channels linger_correction(linger_channels raised, linger_lanes lanes, const int32_t *bias)
{
    const __m256i zero = _mm256_setzero_si256();
    linger_channels start = {zero, zero, zero, zero};
    raised = linger_in_order(raised);
    if (bias != NULL) {
        start.a = linger_load_eight(bias, lanes);
        start.b = linger_load_eight(&bias[8], lanes >> 8);
        start.c = linger_load_eight(&bias[16], lanes >> 16);
        start.d = linger_load_eight(&bias[24], lanes >> 24);
    }
    start.a = _mm256_sub_epi32(start.a, raised.a);
    start.b = _mm256_sub_epi32(start.b, raised.b);
    start.c = _mm256_sub_epi32(start.c, raised.c);
    start.d = _mm256_sub_epi32(start.d, raised.d);
    return start;
}

LINGER_INSIDE void linger_store_eight(int32_t *sums, __m256i eight, linger_lanes lanes)
{
    _mm256_mask_storeu_epi32(sums, (__mmask8)(lanes & 0xFFU), eight);
}

LINGER_INSIDE void linger_store_channels(int32_t *sums, linger_channels s, linger_channels correction, linger_lanes lanes)
{
    s = linger_in_order(s);
    linger_store_eight(sums, _mm256_add_epi32(s.a, correction.a), lanes);
    linger_store_eight(&sums[8], _mm256_add_epi32(s.b, correction.b), lanes >> 8);
    linger_store_eight(&sums[16], _mm256_add_epi32(s.c, correction.c), lanes >> 16);
    linger_store_eight(&sums[24], _mm256_add_epi32(s.d, correction.d), lanes >> 24);
}

#else

#define LINGER_DEPTHWISE_ROWS 2

/* Keeps the order of additions: a compiler that changes it needs more registers than there are. */
#if defined(__GNUC__)
#define LINGER_PIN(VECTOR) __asm__("" : "+x"(VECTOR))
#else
#define LINGER_PIN(VECTOR) (void)(VECTOR)
#endif

#define LINGER_DEPTHWISE_BLOCK 16
#define LINGER_DEPTHWISE_LEAST 16
#define LINGER_ALL_LANES 0

/* All channels of a block exist. */
typedef int32_t linger_lanes;

/* Numbers of 16 channels, the first and the last eight of them. */
typedef struct {
    __m256i a;
    __m256i b;
} linger_channels;

/* The numbers of two rows as pairs of 16-bit integers, channel by channel. Those of a lone row are 32-bit integers, whose upper
   halves meet weights of zero. */
LINGER_INSIDE linger_channels linger_x_rows(const int8_t *x, int32_t x_row, int32_t rows, linger_lanes lanes)
{
    linger_channels pairs;
    (void)lanes;
    if (rows > 1) {
        const __m128i row_0 = _mm_loadu_si128((const __m128i *)(const void *)x);
        const __m128i row_1 = _mm_loadu_si128((const __m128i *)(const void *)&x[x_row]);
        pairs.a = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(row_0, row_1));
        pairs.b = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(row_0, row_1));
    } else {
        pairs.a = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)x));
        pairs.b = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&x[8]));
    }
    return pairs;
}

LINGER_INSIDE linger_channels linger_w_rows(const int8_t *w, int32_t w_row, int32_t rows, linger_lanes lanes)
{
    linger_channels pairs = linger_x_rows(w, w_row, rows, lanes);
    if (rows <= 1) {
        pairs.a = _mm256_and_si256(pairs.a, _mm256_set1_epi32(0xFFFF));
        pairs.b = _mm256_and_si256(pairs.b, _mm256_set1_epi32(0xFFFF));
    }
    return pairs;
}

/* The products of x and w, added to the sums. */
LINGER_INSIDE void linger_add_rows(linger_channels *sums, linger_channels x, linger_channels w)
{
    sums->a = _mm256_add_epi32(sums->a, _mm256_madd_epi16(x.a, w.a));
    sums->b = _mm256_add_epi32(sums->b, _mm256_madd_epi16(x.b, w.b));
    LINGER_PIN(sums->a);
    LINGER_PIN(sums->b);
}

/* Three rows are a pair and a lone one. */
typedef struct {
    linger_channels pair;
    linger_channels lone;
} linger_three;

LINGER_INSIDE linger_three linger_x_three(const int8_t *x, int32_t x_row, linger_lanes lanes)
{
    linger_three three;
    three.pair = linger_x_rows(x, x_row, 2, lanes);
    three.lone = linger_x_rows(&x[2 * x_row], 0, 1, lanes);
    return three;
}

LINGER_INSIDE linger_three linger_w_three(const int8_t *w, int32_t w_row, linger_lanes lanes)
{
    linger_three three;
    three.pair = linger_w_rows(w, w_row, 2, lanes);
    three.lone = linger_w_rows(&w[2 * w_row], 0, 1, lanes);
    return three;
}

LINGER_INSIDE void linger_add_three(linger_channels *sums, linger_three x, linger_three w)
{
    linger_add_rows(sums, x.pair, w.pair);
    linger_add_rows(sums, x.lone, w.lone);
}

/* The products need no correction. */
LINGER_INSIDE void linger_add_raise(linger_channels *raised, linger_channels w)
{
    (void)raised;
    (void)w;
}

LINGER_INSIDE void linger_add_raise_of_three(linger_channels *raised, linger_three w)
{
    (void)raised;
    (void)w;
}

LINGER_INSIDE linger_channels linger_correction(linger_channels raised, linger_lanes lanes, const int32_t *bias)
{
    (void)lanes;
    (void)bias;
    return raised;
}

/* The sums to begin with. */
LINGER_INSIDE linger_channels linger_first_sums(const int32_t *bias)
{
    linger_channels first;
    first.a = _mm256_setzero_si256();
    first.b = first.a;
    if (bias != NULL) {
        first.a = _mm256_loadu_si256((const __m256i *)(const void *)bias);
        first.b = _mm256_loadu_si256((const __m256i *)(const void *)&bias[8]);
    }
    return first;
}

LINGER_INSIDE void linger_store_channels(int32_t *sums, linger_channels s, linger_channels correction, linger_lanes lanes)
{
    (void)correction;
    (void)lanes;
    _mm256_storeu_si256((__m256i *)(void *)sums, s.a);
    _mm256_storeu_si256((__m256i *)(void *)&sums[8], s.b);
}

#endif

/* A block of channels of four neighboring pixels with windows of 3 x 3: six columns of x are enough for all of them. */
LINGER_INSIDE void linger_depthwise_3_by_3(int32_t *sums, int32_t channels, const linger_depthwise_window *window,
                                           int32_t first, linger_lanes lanes, const int32_t *bias)
{
    const int8_t *x = &window->x[first];
    const int8_t *w = &window->w[first];
    const int32_t x_row = window->x_row, x_column = window->x_column;
    const linger_three w_0 = linger_w_three(w, window->w_row, lanes);
    const linger_three w_1 = linger_w_three(&w[window->w_column], window->w_row, lanes);
    const linger_three w_2 = linger_w_three(&w[2 * window->w_column], window->w_row, lanes);
    linger_channels raised = linger_first_sums(NULL);
    linger_channels s_0 = linger_first_sums(bias);
    linger_channels s_1 = s_0, s_2 = s_0, s_3 = s_0;
    linger_three x_next;
    linger_add_raise_of_three(&raised, w_0);
    linger_add_raise_of_three(&raised, w_1);
    linger_add_raise_of_three(&raised, w_2);
    raised = linger_correction(raised, lanes, bias);
    x_next = linger_x_three(x, x_row, lanes);
    linger_add_three(&s_0, x_next, w_0);
    x_next = linger_x_three(&x[x_column], x_row, lanes);
    linger_add_three(&s_0, x_next, w_1);
    linger_add_three(&s_1, x_next, w_0);
    x_next = linger_x_three(&x[2 * x_column], x_row, lanes);
    linger_add_three(&s_0, x_next, w_2);
    linger_add_three(&s_1, x_next, w_1);
    linger_add_three(&s_2, x_next, w_0);
    linger_store_channels(&sums[first], s_0, raised, lanes);
    x_next = linger_x_three(&x[3 * x_column], x_row, lanes);
    linger_add_three(&s_1, x_next, w_2);
    linger_add_three(&s_2, x_next, w_1);
    linger_add_three(&s_3, x_next, w_0);
    linger_store_channels(&sums[channels + first], s_1, raised, lanes);
    x_next = linger_x_three(&x[4 * x_column], x_row, lanes);
    linger_add_three(&s_2, x_next, w_2);
    linger_add_three(&s_3, x_next, w_1);
    linger_store_channels(&sums[(2 * channels) + first], s_2, raised, lanes);
    x_next = linger_x_three(&x[5 * x_column], x_row, lanes);
    linger_add_three(&s_3, x_next, w_2);
    linger_store_channels(&sums[(3 * channels) + first], s_3, raised, lanes);
}

/* A block of channels of `pixels` pixels, which is a literal, with any window. */
LINGER_INSIDE void linger_depthwise_any(int32_t *sums, int32_t pixels, int32_t channels,
                                        const linger_depthwise_window *window, int32_t first, linger_lanes lanes,
                                        const int32_t *bias)
{
    const int32_t x_row = window->x_row, x_pixel = window->x_pixel;
    linger_channels raised = linger_first_sums(NULL);
    linger_channels s_0 = linger_first_sums(bias);
    linger_channels s_1 = s_0, s_2 = s_0, s_3 = s_0;
    int32_t row;
    int32_t column;
    for (row = 0; row < window->rows; row += LINGER_DEPTHWISE_ROWS) {
        const int32_t rows = window->rows - row;
        for (column = 0; column < window->columns; column++) {
            const int8_t *x = &window->x[first + (row * x_row) + (column * window->x_column)];
            const int8_t *w = &window->w[first + (row * window->w_row) + (column * window->w_column)];
            const linger_channels w_rows = linger_w_rows(w, window->w_row, rows, lanes);
            linger_add_raise(&raised, w_rows);
            linger_add_rows(&s_0, linger_x_rows(x, x_row, rows, lanes), w_rows);
            if (pixels > 1) {
                linger_add_rows(&s_1, linger_x_rows(&x[x_pixel], x_row, rows, lanes), w_rows);
            }
            if (pixels > 2) {
                linger_add_rows(&s_2, linger_x_rows(&x[2 * x_pixel], x_row, rows, lanes), w_rows);
            }
            if (pixels > 3) {
                linger_add_rows(&s_3, linger_x_rows(&x[3 * x_pixel], x_row, rows, lanes), w_rows);
            }
        }
    }
    raised = linger_correction(raised, lanes, bias);
    linger_store_channels(&sums[first], s_0, raised, lanes);
    if (pixels > 1) {
        linger_store_channels(&sums[channels + first], s_1, raised, lanes);
    }
    if (pixels > 2) {
        linger_store_channels(&sums[(2 * channels) + first], s_2, raised, lanes);
    }
    if (pixels > 3) {
        linger_store_channels(&sums[(3 * channels) + first], s_3, raised, lanes);
    }
}

/* `pixels` is a literal; 0 means four neighbors with windows of 3 x 3. */
LINGER_INSIDE void linger_depthwise_block(int32_t *sums, int32_t pixels, int32_t channels,
                                          const linger_depthwise_window *window, int32_t first, linger_lanes lanes,
                                          const int32_t *bias)
{
    const int32_t *bias_here = (bias != NULL) ? &bias[first] : bias;
    if (pixels == 0) {
        linger_depthwise_3_by_3(sums, channels, window, first, lanes, bias_here);
    } else {
        linger_depthwise_any(sums, pixels, channels, window, first, lanes, bias_here);
    }
}

/* Where some channels of a block may be left out, the last block has the rest of them. Otherwise it ends with the last channel
   and computes some a second time. */
LINGER_INSIDE void linger_depthwise_blocks(int32_t *sums, int32_t pixels, int32_t channels,
                                           const linger_depthwise_window *window, const int32_t *bias)
{
    int32_t first;
    for (first = 0; (channels - first) >= LINGER_DEPTHWISE_BLOCK; first += LINGER_DEPTHWISE_BLOCK) {
        linger_depthwise_block(sums, pixels, channels, window, first, LINGER_ALL_LANES, bias);
    }
    if (first < channels) {
#if defined(LINGER_AVX512)
        linger_depthwise_block(sums, pixels, channels, window, first, (((linger_lanes)1) << (channels - first)) - 1U, bias);
#else
        linger_depthwise_block(sums, pixels, channels, window, channels - LINGER_DEPTHWISE_BLOCK, LINGER_ALL_LANES, bias);
#endif
    }
}

/* Functions of their own: together they would need so many registers that each of them would be slower. */
LINGER_SHARED void linger_depthwise_of_row(int32_t *sums, int32_t channels, const linger_depthwise_window *window,
                                           const int32_t *bias)
{
    linger_depthwise_blocks(sums, 0, channels, window, bias);
}

LINGER_SHARED void linger_depthwise_of_any(int32_t *sums, int32_t pixels, int32_t channels,
                                           const linger_depthwise_window *window, const int32_t *bias)
{
    if (pixels == 1) {
        linger_depthwise_blocks(sums, 1, channels, window, bias);
    } else if (pixels == 2) {
        linger_depthwise_blocks(sums, 2, channels, window, bias);
    } else if (pixels == 3) {
        linger_depthwise_blocks(sums, 3, channels, window, bias);
    } else {
        linger_depthwise_blocks(sums, LINGER_PIXELS, channels, window, bias);
    }
}

LINGER_INSIDE void linger_depthwise_of_bytes(int32_t *restrict sums, int32_t pixels, int32_t channels,
                                             const int8_t *restrict x, int32_t x_pixel, int32_t rows, int32_t x_row,
                                             int32_t columns, int32_t x_column, const int8_t *restrict w, int32_t w_row,
                                             int32_t w_column, const int32_t *restrict bias, int32_t is_unsigned)
{
    if ((channels < LINGER_DEPTHWISE_LEAST) || (is_unsigned != 0)) {
        (is_unsigned != 0) ? linger_depthwise_plain_1(sums, pixels, channels, (const uint8_t *)x, x_pixel, rows, x_row, columns,
                                                      x_column, w, w_row, w_column, bias)
                           : linger_depthwise_plain_0(sums, pixels, channels, x, x_pixel, rows, x_row, columns, x_column, w,
                                                      w_row, w_column, bias);
    } else {
        const linger_depthwise_window window = {x, x_pixel, rows, x_row, columns, x_column, w, w_row, w_column};
        if ((pixels == LINGER_PIXELS) && (rows == 3) && (columns == 3) && (x_pixel == x_column)) {
            linger_depthwise_of_row(sums, channels, &window, bias);
        } else {
            linger_depthwise_of_any(sums, pixels, channels, &window, bias);
        }
    }
}

#undef LINGER_DEPTHWISE_ROWS
#undef LINGER_DEPTHWISE_BLOCK
#undef LINGER_DEPTHWISE_LEAST
#undef LINGER_ALL_LANES
#if defined(LINGER_PIN)
#undef LINGER_PIN
#endif

#endif

#if defined(LINGER_SMLAD) || defined(LINGER_HELIUM)

/* With a list of taps, the loops over channels need no loops over rows and columns. Larger windows take longer: the list is on
   the stack. */
#define LINGER_TAPS 16

#endif

#if defined(LINGER_HELIUM)

/* The addresses of a tap; they move on with the channels. */
typedef struct {
    const int8_t *x;
    const int8_t *w;
} linger_tap;

/* What the loops below read and write. Their instructions know the positions, which are those of 4-byte members. */
typedef struct {
    linger_tap *taps;     /* 0 */
    int32_t pairs;        /* 4: of taps */
    int32_t is_odd;       /* 8: a tap is left */
    int32_t blocks;       /* 12: of 16 channels, at least 1 */
    const int32_t *start; /* 16: the sums to begin with */
    int32_t start_step;   /* 20: from one block to the next, in bytes */
    int32_t *sums;        /* 24 */
} linger_depthwise_state;

/* Compiles only where pointers have four bytes. */
typedef char linger_depthwise_state_is_packed[(sizeof(linger_depthwise_state) == 28U) ? 1 : -1];

/* The 16-bit sums of even channels in q2 and of odd ones in q3, added to the sums of channels 4n, 4n + 1, 4n + 2, 4n + 3. */
#define LINGER_WIDEN_AND_ADD                                                                                                  \
    "vmovlb.s16 q0, q2\n\t"                                                                                                   \
    "vadd.i32 q4, q4, q0\n\t"                                                                                                 \
    "vmovlt.s16 q0, q2\n\t"                                                                                                   \
    "vadd.i32 q6, q6, q0\n\t"                                                                                                 \
    "vmovlb.s16 q1, q3\n\t"                                                                                                   \
    "vadd.i32 q5, q5, q1\n\t"                                                                                                 \
    "vmovlt.s16 q1, q3\n\t"                                                                                                   \
    "vadd.i32 q7, q7, q1\n\t"

/* Blocks of 16 channels of a pixel. Two products and -1 fit 16 bits: they are from -32513 to 32767. The number of pairs, added at
   the beginning, makes up for the -1. */
LINGER_SHARED void linger_depthwise_pixel(linger_depthwise_state *state)
{
    register linger_depthwise_state *argument __asm__("r0") = state;
    __asm__ volatile("push {r7, r9, r11}\n\t"
                     "mvn r8, #0\n\t"
                     "ldrd r10, r7, [r0, #4]\n\t"
                     "ldrd r11, r12, [r0, #12]\n\t"
                     "ldrd r9, r1, [r0, #20]\n\t"
                     /* a block */
                     "1:\n\t"
                     "vld40.32 {q4, q5, q6, q7}, [r12]\n\t"
                     "vld41.32 {q4, q5, q6, q7}, [r12]\n\t"
                     "vld42.32 {q4, q5, q6, q7}, [r12]\n\t"
                     "vld43.32 {q4, q5, q6, q7}, [r12]\n\t"
                     "add r12, r12, r9\n\t"
                     "vadd.i32 q4, q4, r10\n\t"
                     "vadd.i32 q5, q5, r10\n\t"
                     "vadd.i32 q6, q6, r10\n\t"
                     "vadd.i32 q7, q7, r10\n\t"
                     "ldr r2, [r0]\n\t"
                     "wls lr, r10, 3f\n\t"
                     /* a pair of taps */
                     "2:\n\t"
                     "ldm r2, {r3, r4, r5, r6}\n\t"
                     "vldrb.8 q0, [r3], #16\n\t"
                     "vldrb.8 q1, [r4], #16\n\t"
                     "vmullb.s8 q2, q0, q1\n\t"
                     "vmullt.s8 q3, q0, q1\n\t"
                     "vldrb.8 q0, [r5], #16\n\t"
                     "vldrb.8 q1, [r6]\n\t"
                     "vmullb.s8 q1, q0, q1\n\t"
                     "vadd.i16 q2, q2, q1\n\t"
                     "vldrb.8 q1, [r6], #16\n\t"
                     "vmullt.s8 q1, q0, q1\n\t"
                     "vadd.i16 q3, q3, q1\n\t"
                     "vadd.i16 q2, q2, r8\n\t"
                     "vadd.i16 q3, q3, r8\n\t" LINGER_WIDEN_AND_ADD
                     "stm r2!, {r3, r4, r5, r6}\n\t"
                     "le lr, 2b\n\t"
                     "3:\n\t"
                     "cmp r7, #0\n\t"
                     "beq 4f\n\t"
                     "ldrd r3, r4, [r2]\n\t"
                     "vldrb.8 q0, [r3], #16\n\t"
                     "vldrb.8 q1, [r4], #16\n\t"
                     "strd r3, r4, [r2]\n\t"
                     "vmullb.s8 q2, q0, q1\n\t"
                     "vmullt.s8 q3, q0, q1\n\t" LINGER_WIDEN_AND_ADD
                     "4:\n\t"
                     "vst40.32 {q4, q5, q6, q7}, [r1]\n\t"
                     "vst41.32 {q4, q5, q6, q7}, [r1]\n\t"
                     "vst42.32 {q4, q5, q6, q7}, [r1]\n\t"
                     "vst43.32 {q4, q5, q6, q7}, [r1]!\n\t"
                     "subs r11, r11, #1\n\t"
                     "bne 1b\n\t"
                     "pop {r7, r9, r11}\n\t"
                     : "+r"(argument)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "q3", "q4", "q5", "q6",
                       "q7", "cc", "memory");
}

#undef LINGER_WIDEN_AND_ADD

/* Eight channels of a tap: x is widened with zeros and w with its sign, so products are those of 16-bit integers, up to 255 * 128
   in 32 bits, and nothing has to be corrected. */
#define LINGER_UNSIGNED_EIGHT(X, W, EVEN, ODD)                                                                                \
    "vldrb.u16 q0, [" X "], #8\n\t"                                                                                           \
    "vldrb.s16 q1, [" W "], #8\n\t"                                                                                           \
    "vmullb.s16 q2, q0, q1\n\t"                                                                                               \
    "vmullt.s16 q3, q0, q1\n\t"                                                                                               \
    "vadd.i32 " EVEN ", " EVEN ", q2\n\t"                                                                                     \
    "vadd.i32 " ODD ", " ODD ", q3\n\t"

#define LINGER_UNSIGNED_TAP(X, W) LINGER_UNSIGNED_EIGHT(X, W, "q4", "q5") LINGER_UNSIGNED_EIGHT(X, W, "q6", "q7")

/* The same blocks of unsigned bytes: two products of them may leave the 16 bits that a pair of signed taps has. */
LINGER_SHARED void linger_depthwise_unsigned_pixel(linger_depthwise_state *state)
{
    register linger_depthwise_state *argument __asm__("r0") = state;
    __asm__ volatile("push {r7, r9, r11}\n\t"
                     "ldrd r10, r7, [r0, #4]\n\t"
                     "ldrd r11, r12, [r0, #12]\n\t"
                     "ldrd r9, r1, [r0, #20]\n\t"
                     /* a block */
                     "1:\n\t"
                     "add r8, r12, #32\n\t"
                     "vld20.32 {q4, q5}, [r12]\n\t"
                     "vld21.32 {q4, q5}, [r12]\n\t"
                     "vld20.32 {q6, q7}, [r8]\n\t"
                     "vld21.32 {q6, q7}, [r8]\n\t"
                     "add r12, r12, r9\n\t"
                     "ldr r2, [r0]\n\t"
                     "wls lr, r10, 3f\n\t"
                     /* a pair of taps */
                     "2:\n\t"
                     "ldm r2, {r3, r4, r5, r6}\n\t" LINGER_UNSIGNED_TAP("r3", "r4") LINGER_UNSIGNED_TAP("r5", "r6")
                     "stm r2!, {r3, r4, r5, r6}\n\t"
                     "le lr, 2b\n\t"
                     "3:\n\t"
                     "cmp r7, #0\n\t"
                     "beq 4f\n\t"
                     "ldrd r3, r4, [r2]\n\t" LINGER_UNSIGNED_TAP("r3", "r4")
                     "strd r3, r4, [r2]\n\t"
                     "4:\n\t"
                     "vst20.32 {q4, q5}, [r1]\n\t"
                     "vst21.32 {q4, q5}, [r1]!\n\t"
                     "vst20.32 {q6, q7}, [r1]\n\t"
                     "vst21.32 {q6, q7}, [r1]!\n\t"
                     "subs r11, r11, #1\n\t"
                     "bne 1b\n\t"
                     "pop {r7, r9, r11}\n\t"
                     : "+r"(argument)
                     :
                     : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "q3", "q4", "q5", "q6",
                       "q7", "cc", "memory");
}

#undef LINGER_UNSIGNED_TAP
#undef LINGER_UNSIGNED_EIGHT

/* Channels that are less than a block, eight at a time, widened to 16 bits; the products of even and of odd channels are two
   vectors of 32-bit sums. */
LINGER_INSIDE void linger_depthwise_rest(int32_t *restrict sums, int32_t channels, const int8_t *restrict x, int32_t rows,
                                         int32_t x_row, int32_t columns, int32_t x_column, const int8_t *restrict w,
                                         int32_t w_row, int32_t w_column, const int32_t *restrict bias, int32_t is_unsigned)
{
    const uint32x4_t even = vidupq_n_u32(0U, 2);
    const uint32x4_t odd = vaddq_n_u32(even, 1U);
    int32_t first;
    for (first = 0; first < channels; first += 8) {
        const uint32_t left = (uint32_t)(channels - first);
        const mve_pred16_t lanes = vctp16q(left);
        const mve_pred16_t even_lanes = vctp32q((left + 1U) / 2U);
        const mve_pred16_t odd_lanes = vctp32q(left / 2U);
        const int8_t *x_start = &x[first];
        const int8_t *w_start = &w[first];
        int32x4_t even_sums = vdupq_n_s32(0);
        int32x4_t odd_sums = vdupq_n_s32(0);
        int32_t row;
        int32_t column;
        if (bias != NULL) {
            even_sums = vldrwq_gather_shifted_offset_z_s32(&bias[first], even, even_lanes);
            odd_sums = vldrwq_gather_shifted_offset_z_s32(&bias[first], odd, odd_lanes);
        }
        for (row = rows; row > 0; row--) {
            const int8_t *x_here = x_start;
            const int8_t *w_here = w_start;
            for (column = columns; column > 0; column--) {
                const int16x8_t x_wide = (is_unsigned != 0)
                                             ? vreinterpretq_s16_u16(vldrbq_z_u16((const uint8_t *)x_here, lanes))
                                             : vldrbq_z_s16(x_here, lanes);
                const int16x8_t w_wide = vldrbq_z_s16(w_here, lanes);
                even_sums = vaddq_s32(even_sums, vmullbq_int_s16(x_wide, w_wide));
                odd_sums = vaddq_s32(odd_sums, vmulltq_int_s16(x_wide, w_wide));
                x_here += x_column;
                w_here += w_column;
            }
            x_start += x_row;
            w_start += w_row;
        }
        vstrwq_scatter_shifted_offset_p_s32(&sums[first], even, even_sums, even_lanes);
        vstrwq_scatter_shifted_offset_p_s32(&sums[first], odd, odd_sums, odd_lanes);
    }
}

LINGER_INSIDE void linger_depthwise_of_bytes(int32_t *restrict sums, int32_t pixels, int32_t channels,
                                             const int8_t *restrict x, int32_t x_pixel, int32_t rows, int32_t x_row,
                                             int32_t columns, int32_t x_column, const int8_t *restrict w, int32_t w_row,
                                             int32_t w_column, const int32_t *restrict bias, int32_t is_unsigned)
{
    static const int32_t zeros[16] = {0};
    const int64_t count = (int64_t)rows * columns;
    const int32_t blocks = ((count > 0) && (count <= LINGER_TAPS)) ? (channels / 16) : 0;
    const int32_t first = blocks * 16;
    int32_t p;
    if (blocks > 0) {
        linger_tap taps[LINGER_PIXELS][LINGER_TAPS];
        linger_tap *tap_0 = taps[0];
        linger_tap *tap_1 = taps[1];
        linger_depthwise_state state;
        const int8_t *x_here = x;
        const int8_t *w_here = w;
        int32_t row;
        int32_t column;
        for (row = rows; row > 0; row--) {
            for (column = columns; column > 0; column--) {
                tap_0->x = x_here;
                tap_0->w = w_here;
                tap_1->x = &x_here[x_pixel];
                tap_1->w = w_here;
                tap_0++;
                tap_1++;
                x_here += x_column;
                w_here += w_column;
            }
            x_here += x_row - (columns * x_column);
            w_here += w_row - (columns * w_column);
        }
        state.pairs = (int32_t)count / 2;
        state.is_odd = (int32_t)count % 2;
        state.blocks = blocks;
        state.start = (bias != NULL) ? bias : zeros;
        state.start_step = (bias != NULL) ? 64 : 0;
        for (p = 0; p < pixels; p++) {
            state.taps = taps[p];
            state.sums = &sums[p * channels];
            (is_unsigned != 0) ? linger_depthwise_unsigned_pixel(&state) : linger_depthwise_pixel(&state);
        }
    }
    for (p = 0; (p < pixels) && (first < channels); p++) {
        linger_depthwise_rest(&sums[(p * channels) + first], channels - first, &x[(p * x_pixel) + first], rows, x_row, columns,
                              x_column, &w[first], w_row, w_column, (bias != NULL) ? &bias[first] : bias, is_unsigned);
    }
}

#endif

#if defined(LINGER_SMLAD)

/* The distances of a tap from the channel of x that a block begins with. Both arrays move on by the same number of bytes, so the
   distance of the weights (as a difference of addresses) serves all blocks. */
typedef struct {
    uint32_t w;
    uint32_t x_0; /* two pixels */
    uint32_t x_1;
} linger_tap;

/* What the loops below read and write. Their instructions know the positions, which are those of 4-byte members. */
typedef struct {
    const int8_t *x;        /* 0: the channel that the next block begins with */
    const linger_tap *taps; /* 4 */
    const linger_tap *end;  /* 8: behind the last tap; there is at least one */
    const int32_t *start;   /* 12: the sums to begin with */
    int32_t start_step;     /* 16: from one block to the next, in bytes */
    int32_t *sums;          /* 20 */
    int32_t sums_pixel;     /* 24: from the sums of one pixel to those of the next, in bytes */
    int32_t blocks;         /* 28: of four channels, at least 1 */
} linger_depthwise_state;

/* Compiles only where pointers have four bytes. */
typedef char linger_depthwise_state_is_packed[(sizeof(linger_depthwise_state) == 32U) ? 1 : -1];

/* Blocks of four channels of two pixels. Written as instructions because a tile needs all 14 registers. Registers that a compiler
   may reserve (r7, r9, r11) are saved here. X is sxtb16 or uxtb16. */
#define LINGER_DEFINE_DEPTHWISE_OF_TWO(NAME, X)                                                                               \
    LINGER_SHARED void NAME(linger_depthwise_state *state)                                                                    \
    {                                                                                                                         \
        register linger_depthwise_state *argument __asm__("r0") = state;                                                      \
        /* on the stack: 0 the end of the taps, 8 state */                                                                    \
        __asm__ volatile("push {r0, r7, r9, r11}\n\t"                                                                         \
                         "sub sp, sp, #8\n\t"                                                                                 \
                         "ldr r1, [r0, #8]\n\t"                                                                               \
                         "str r1, [sp]\n\t"                                                                                   \
                         "mov r5, r0\n\t"                                                                                     \
                         /* a block */                                                                                        \
                         "1:\n\t"                                                                                             \
                         "ldrd r2, r3, [r5, #12]\n\t"                                                                         \
                         "ldrd r0, r1, [r5]\n\t"                                                                              \
                         "ldm r2, {r6, r7, r8, r9}\n\t"                                                                       \
                         "ldm r2, {r10, r11, r12, lr}\n\t"                                                                    \
                         "add r2, r2, r3\n\t"                                                                                 \
                         "str r2, [r5, #12]\n\t"                                                                              \
                         /* a tap: r2, r3 are the weights, r4, r5 the numbers of a pixel */                                   \
                         "2:\n\t"                                                                                             \
                         "ldrd r2, r4, [r1], #8\n\t"                                                                          \
                         "ldr r2, [r0, r2]\n\t"                                                                               \
                         "ldr r4, [r0, r4]\n\t"                                                                               \
                         "sxtb16 r3, r2\n\t"                                                                                  \
                         "sxtb16 r2, r2, ror #8\n\t"                                                                          \
                         X " r5, r4\n\t"                                                                                      \
                         X " r4, r4, ror #8\n\t"                                                                              \
                         "smlabb r6, r5, r3, r6\n\t"                                                                          \
                         "smlatt r8, r5, r3, r8\n\t"                                                                          \
                         "smlabb r7, r4, r2, r7\n\t"                                                                          \
                         "smlatt r9, r4, r2, r9\n\t"                                                                          \
                         "ldr r4, [r1], #4\n\t"                                                                               \
                         "ldr r4, [r0, r4]\n\t"                                                                               \
                         X " r5, r4\n\t"                                                                                      \
                         X " r4, r4, ror #8\n\t"                                                                              \
                         "smlabb r10, r5, r3, r10\n\t"                                                                        \
                         "smlatt r12, r5, r3, r12\n\t"                                                                        \
                         "smlabb r11, r4, r2, r11\n\t"                                                                        \
                         "smlatt lr, r4, r2, lr\n\t"                                                                          \
                         "ldr r2, [sp]\n\t"                                                                                   \
                         "cmp r1, r2\n\t"                                                                                     \
                         "bne 2b\n\t"                                                                                         \
                         "ldr r5, [sp, #8]\n\t"                                                                               \
                         "ldrd r2, r3, [r5, #20]\n\t"                                                                         \
                         "adds r0, r0, #4\n\t"                                                                                \
                         "str r0, [r5]\n\t"                                                                                   \
                         "ldr r4, [r5, #28]\n\t"                                                                              \
                         "add r3, r3, r2\n\t"                                                                                 \
                         "stm r2!, {r6, r7, r8, r9}\n\t"                                                                      \
                         "stm r3, {r10, r11, r12, lr}\n\t"                                                                    \
                         "str r2, [r5, #20]\n\t"                                                                              \
                         "subs r4, r4, #1\n\t"                                                                                \
                         "str r4, [r5, #28]\n\t"                                                                              \
                         "bne 1b\n\t"                                                                                         \
                         "add sp, sp, #8\n\t"                                                                                 \
                         "pop {r0, r7, r9, r11}\n\t"                                                                          \
                         : "+r"(argument)                                                                                     \
                         :                                                                                                    \
                         : "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r10", "r12", "lr", "cc", "memory");                     \
    }

LINGER_DEFINE_DEPTHWISE_OF_TWO(linger_depthwise_of_two, "sxtb16")
LINGER_DEFINE_DEPTHWISE_OF_TWO(linger_depthwise_of_unsigned_two, "uxtb16")

#undef LINGER_DEFINE_DEPTHWISE_OF_TWO

/* Four bytes at a distance that may lead from one array to another. */
LINGER_INSIDE uint32_t linger_load_four_at(const int8_t *x, uint32_t distance)
{
    return linger_load_four((const int8_t *)((uintptr_t)x + distance));
}

/* Blocks of four channels of one pixel. */
LINGER_INSIDE void linger_depthwise_of_lone(linger_depthwise_state *state, int32_t is_unsigned)
{
    const linger_tap *end = state->end;
    int32_t block;
    for (block = state->blocks; block > 0; block--) {
        const int8_t *x = state->x;
        const linger_tap *tap;
        int32_t sum_0 = state->start[0];
        int32_t sum_1 = state->start[1];
        int32_t sum_2 = state->start[2];
        int32_t sum_3 = state->start[3];
        for (tap = state->taps; tap != end; tap++) {
            const uint32_t w_four = linger_load_four_at(x, tap->w);
            const uint32_t x_four = linger_load_four_at(x, tap->x_0);
            const uint32_t x_even = linger_even_of(x_four, is_unsigned);
            const uint32_t w_even = linger_even_bytes(w_four);
            const uint32_t x_odd = linger_odd_of(x_four, is_unsigned);
            const uint32_t w_odd = linger_odd_bytes(w_four);
            sum_0 = linger_add_low_product(sum_0, x_even, w_even);
            sum_1 = linger_add_low_product(sum_1, x_odd, w_odd);
            sum_2 = linger_add_high_product(sum_2, x_even, w_even);
            sum_3 = linger_add_high_product(sum_3, x_odd, w_odd);
        }
        state->sums[0] = sum_0;
        state->sums[1] = sum_1;
        state->sums[2] = sum_2;
        state->sums[3] = sum_3;
        state->sums = &state->sums[4];
        state->start = (state->start_step != 0) ? &state->start[4] : state->start;
        state->x = &x[4];
    }
}

LINGER_SHARED void linger_depthwise_of_one(linger_depthwise_state *state) { linger_depthwise_of_lone(state, 0); }
LINGER_SHARED void linger_depthwise_of_unsigned_one(linger_depthwise_state *state) { linger_depthwise_of_lone(state, 1); }

/* The last block ends with the last channel: it computes some channels a second time. */
LINGER_INSIDE void linger_depthwise_of_bytes(int32_t *restrict sums, int32_t pixels, int32_t channels,
                                             const int8_t *restrict x, int32_t x_pixel, int32_t rows, int32_t x_row,
                                             int32_t columns, int32_t x_column, const int8_t *restrict w, int32_t w_row,
                                             int32_t w_column, const int32_t *restrict bias, int32_t is_unsigned)
{
    static const int32_t zeros[4] = {0};
    const int64_t count = (int64_t)rows * columns;
    if ((channels < 4) || (count < 1) || (count > LINGER_TAPS)) {
        (is_unsigned != 0) ? linger_depthwise_plain_1(sums, pixels, channels, (const uint8_t *)x, x_pixel, rows, x_row, columns,
                                                      x_column, w, w_row, w_column, bias)
                           : linger_depthwise_plain_0(sums, pixels, channels, x, x_pixel, rows, x_row, columns, x_column, w,
                                                      w_row, w_column, bias);
    } else {
        linger_tap taps[LINGER_TAPS];
        linger_tap *tap = taps;
        linger_depthwise_state state;
        uint32_t x_0 = 0U;
        uint32_t from_x_to_w = (uint32_t)((uintptr_t)w - (uintptr_t)x);
        int32_t first = 0;
        int32_t row;
        int32_t column;
        for (row = rows; row > 0; row--) {
            for (column = columns; column > 0; column--) {
                tap->w = from_x_to_w;
                tap->x_0 = x_0;
                tap->x_1 = x_0 + (uint32_t)x_pixel;
                tap++;
                x_0 += (uint32_t)x_column;
                from_x_to_w += (uint32_t)w_column;
            }
            x_0 += (uint32_t)(x_row - (columns * x_column));
            from_x_to_w += (uint32_t)(w_row - (columns * w_column));
        }
        state.taps = taps;
        state.end = tap;
        state.start_step = (bias != NULL) ? 16 : 0;
        state.sums_pixel = channels * 4;
        state.blocks = channels / 4;
        while (first < channels) {
            state.x = &x[first];
            state.sums = &sums[first];
            state.start = (bias != NULL) ? &bias[first] : zeros;
            if (pixels > 1) {
                (is_unsigned != 0) ? linger_depthwise_of_unsigned_two(&state) : linger_depthwise_of_two(&state);
            } else {
                (is_unsigned != 0) ? linger_depthwise_of_unsigned_one(&state) : linger_depthwise_of_one(&state);
            }
            first = ((first == 0) && ((channels % 4) != 0)) ? (channels - 4) : channels;
            state.blocks = 1;
        }
    }
}

#endif

#if defined(LINGER_SMLAD) || defined(LINGER_HELIUM)
#undef LINGER_TAPS
#endif

#if defined(LINGER_X86) || defined(LINGER_SMLAD) || defined(LINGER_HELIUM)

#define LINGER_DEFINE_DEPTHWISE_OF(NAME, X_T, IS_UNSIGNED)                                                                    \
    LINGER_SHARED void NAME(int32_t *restrict sums, int32_t pixels, int32_t channels, const X_T *restrict x, int32_t x_pixel, \
                            int32_t rows, int32_t x_row, int32_t columns, int32_t x_column, const int8_t *restrict w,         \
                            int32_t w_row, int32_t w_column, const int32_t *restrict bias)                                    \
    {                                                                                                                         \
        linger_depthwise_of_bytes(sums, pixels, channels, (const int8_t *)x, x_pixel, rows, x_row, columns, x_column, w,      \
                                  w_row, w_column, bias, IS_UNSIGNED);                                                        \
    }

LINGER_DEFINE_DEPTHWISE_OF(linger_depthwise_8_8_32, int8_t, 0)
LINGER_DEFINE_DEPTHWISE_OF(linger_depthwise_u8_8_32, uint8_t, 1)

#undef LINGER_DEFINE_DEPTHWISE_OF

#endif

#endif
