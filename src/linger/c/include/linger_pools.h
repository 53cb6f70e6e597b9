/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pixel of a pool: the sum, or the largest, of each channel over a window.
 *
 *   void linger_window_sum_<x>_<s>(s_t *sums, int32_t channels,
 *                                  const x_t *x, int32_t rows, int32_t x_row, int32_t columns, int32_t x_column)
 *   void linger_window_max_<x>(x_t *largest, int32_t channels,
 *                              const x_t *x, int32_t rows, int32_t x_row, int32_t columns, int32_t x_column)
 *
 * over x[r * x_row + k * x_column + c] for r < rows, k < columns; for c < channels. The largest needs rows, columns >= 1.
 * <x> is 8 or 16, <s> is 32 or 64: the bits of the integers. The caller guarantees that the sum of any subset fits s_t.
 */

#ifndef LINGER_POOLS_H
#define LINGER_POOLS_H

#include "linger_simd.h"

/* Some neighbouring channels at a time, so that their results stay in registers. */
#define LINGER_POOL_BLOCK LINGER_BLOCK

#define LINGER_DEFINE_WINDOW_SUM(NAME, X_T, S_T)                                                                              \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,         \
                            int32_t columns, int32_t x_column)                                                                \
    {                                                                                                                         \
        int32_t first = 0;                                                                                                    \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (; channels - first >= LINGER_POOL_BLOCK; first += LINGER_POOL_BLOCK) {                                           \
            S_T block[LINGER_POOL_BLOCK] = {0};                                                                               \
            for (row = 0; row < rows; row++) {                                                                                \
                for (column = 0; column < columns; column++) {                                                                \
                    const X_T *from_x = &x[(row * x_row) + (column * x_column) + first];                                      \
                    LINGER_UNROLL                                                                                             \
                    for (c = 0; c < LINGER_POOL_BLOCK; c++) {                                                                 \
                        block[c] += (S_T)from_x[c];                                                                           \
                    }                                                                                                         \
                }                                                                                                             \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (c = 0; c < LINGER_POOL_BLOCK; c++) {                                                                         \
                sums[first + c] = block[c];                                                                                   \
            }                                                                                                                 \
        }                                                                                                                     \
        for (; first < channels; first++) {                                                                                   \
            S_T sum = 0;                                                                                                      \
            for (row = 0; row < rows; row++) {                                                                                \
                for (column = 0; column < columns; column++) {                                                                \
                    sum += (S_T)x[(row * x_row) + (column * x_column) + first];                                               \
                }                                                                                                             \
            }                                                                                                                 \
            sums[first] = sum;                                                                                                \
        }                                                                                                                     \
    }

#define LINGER_DEFINE_WINDOW_MAX(NAME, X_T)                                                                                   \
    LINGER_SHARED void NAME(X_T *restrict largest, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,      \
                            int32_t columns, int32_t x_column)                                                                \
    {                                                                                                                         \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (c = 0; c < channels; c++) {                                                                                      \
            largest[c] = x[c];                                                                                                \
        }                                                                                                                     \
        for (row = 0; row < rows; row++) {                                                                                    \
            for (column = 0; column < columns; column++) {                                                                    \
                const X_T *from_x = &x[(row * x_row) + (column * x_column)];                                                  \
                for (c = 0; c < channels; c++) {                                                                              \
                    largest[c] = (from_x[c] > largest[c]) ? from_x[c] : largest[c];                                           \
                }                                                                                                             \
            }                                                                                                                 \
        }                                                                                                                     \
    }

/* The variants below take the plain functions for what they do not cover. */
#if defined(LINGER_X86)
#define LINGER_WINDOW_SUM_8_32 linger_window_sum_plain
#define LINGER_WINDOW_MAX_8 linger_window_max_plain
#else
#define LINGER_WINDOW_SUM_8_32 linger_window_sum_8_32
#define LINGER_WINDOW_MAX_8 linger_window_max_8
#endif

LINGER_DEFINE_WINDOW_SUM(LINGER_WINDOW_SUM_8_32, int8_t, int32_t)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_8_64, int8_t, int64_t)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_16_32, int16_t, int32_t)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_16_64, int16_t, int64_t)
LINGER_DEFINE_WINDOW_MAX(LINGER_WINDOW_MAX_8, int8_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_16, int16_t)

#undef LINGER_DEFINE_WINDOW_SUM
#undef LINGER_DEFINE_WINDOW_MAX
#undef LINGER_POOL_BLOCK
#undef LINGER_WINDOW_SUM_8_32
#undef LINGER_WINDOW_MAX_8

#if defined(LINGER_X86)

/* 16 channels. 16-bit lanes hold the sum of 255 bytes (255 * 128 < 2^15); then they are emptied into 32-bit ones. */
LINGER_INSIDE void linger_window_sum_block(int32_t *sums, const int8_t *x, int32_t rows, int32_t x_row, int32_t columns,
                                           int32_t x_column)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i narrow = zero;
    __m256i sum_0 = zero;
    __m256i sum_1 = zero;
    int32_t room = 255;
    int32_t row;
    int32_t column;
    for (row = 0; row < rows; row++) {
        for (column = 0; column < columns; column++) {
            if (room == 0) {
                sum_0 = _mm256_add_epi32(sum_0, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(narrow)));
                sum_1 = _mm256_add_epi32(sum_1, _mm256_cvtepi16_epi32(_mm256_extracti128_si256(narrow, 1)));
                narrow = zero;
                room = 255;
            }
            narrow = _mm256_add_epi16(narrow, linger_widen_16(&x[(row * x_row) + (column * x_column)]));
            room--;
        }
    }
    sum_0 = _mm256_add_epi32(sum_0, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(narrow)));
    sum_1 = _mm256_add_epi32(sum_1, _mm256_cvtepi16_epi32(_mm256_extracti128_si256(narrow, 1)));
    _mm256_storeu_si256((__m256i *)(void *)sums, sum_0);
    _mm256_storeu_si256((__m256i *)(void *)&sums[8], sum_1);
}

/* The last block ends with the last channel: it computes some channels a second time. */
LINGER_SHARED void linger_window_sum_8_32(int32_t *restrict sums, int32_t channels, const int8_t *restrict x, int32_t rows,
                                          int32_t x_row, int32_t columns, int32_t x_column)
{
    int32_t first;
    for (first = 0; (channels - first) >= 16; first += 16) {
        linger_window_sum_block(&sums[first], &x[first], rows, x_row, columns, x_column);
    }
    if (channels < 16) {
        linger_window_sum_plain(sums, channels, x, rows, x_row, columns, x_column);
    } else if (first < channels) {
        linger_window_sum_block(&sums[channels - 16], &x[channels - 16], rows, x_row, columns, x_column);
    } else {
        /* no channel is left */
    }
}

/* 16 channels. */
LINGER_INSIDE void linger_window_max_block(int8_t *largest, const int8_t *x, int32_t rows, int32_t x_row, int32_t columns,
                                           int32_t x_column)
{
    __m128i most = _mm_set1_epi8((char)-128);
    int32_t row;
    int32_t column;
    for (row = 0; row < rows; row++) {
        for (column = 0; column < columns; column++) {
            const int8_t *from = &x[(row * x_row) + (column * x_column)];
            most = _mm_max_epi8(most, _mm_loadu_si128((const __m128i *)(const void *)from));
        }
    }
    _mm_storeu_si128((__m128i *)(void *)largest, most);
}

LINGER_SHARED void linger_window_max_8(int8_t *restrict largest, int32_t channels, const int8_t *restrict x, int32_t rows,
                                       int32_t x_row, int32_t columns, int32_t x_column)
{
    int32_t first;
    for (first = 0; (channels - first) >= 16; first += 16) {
        linger_window_max_block(&largest[first], &x[first], rows, x_row, columns, x_column);
    }
    if (channels < 16) {
        linger_window_max_plain(largest, channels, x, rows, x_row, columns, x_column);
    } else if (first < channels) {
        linger_window_max_block(&largest[channels - 16], &x[channels - 16], rows, x_row, columns, x_column);
    } else {
        /* no channel is left */
    }
}

#endif

#endif
