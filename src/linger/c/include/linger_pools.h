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
 * <x> is 8, u8 (unsigned) or 16, <s> is 32 or 64: the bits of the integers. The caller guarantees that the sum of any subset fits s_t.
 */

#ifndef LINGER_POOLS_H
#define LINGER_POOLS_H

#include "linger_simd.h"

#if defined(LINGER_CHANNELS_INSIDE)

#define LINGER_DEFINE_WINDOW_SUM(NAME, X_T, S_T)                                                                              \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,         \
                            int32_t columns, int32_t x_column)                                                                \
    {                                                                                                                         \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (c = 0; c < channels; c++) {                                                                                      \
            sums[c] = 0;                                                                                                      \
        }                                                                                                                     \
        for (row = 0; row < rows; row++) {                                                                                    \
            for (column = 0; column < columns; column++) {                                                                    \
                const X_T *x_here = &x[(row * x_row) + (column * x_column)];                                                  \
                for (c = 0; c < channels; c++) {                                                                              \
                    sums[c] += (S_T)x_here[c];                                                                                \
                }                                                                                                             \
            }                                                                                                                 \
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
                const X_T *x_here = &x[(row * x_row) + (column * x_column)];                                                  \
                for (c = 0; c < channels; c++) {                                                                              \
                    largest[c] = (x_here[c] > largest[c]) ? x_here[c] : largest[c];                                           \
                }                                                                                                             \
            }                                                                                                                 \
        }                                                                                                                     \
    }

#else

/* Some neighboring channels at a time, so that their results stay in registers. */
#define LINGER_DEFINE_WINDOW_SUM(NAME, X_T, S_T)                                                                              \
    LINGER_SHARED void NAME(S_T *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows, int32_t x_row,         \
                            int32_t columns, int32_t x_column)                                                                \
    {                                                                                                                         \
        int32_t first = 0;                                                                                                    \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (; channels - first >= LINGER_BLOCK; first += LINGER_BLOCK) {                                                     \
            S_T block[LINGER_BLOCK] = {0};                                                                                    \
            const X_T *x_start = &x[first];                                                                                   \
            for (row = rows; row > 0; row--) {                                                                                \
                const X_T *x_here = x_start;                                                                                  \
                for (column = columns; column > 0; column--) {                                                                \
                    LINGER_UNROLL                                                                                             \
                    for (c = 0; c < LINGER_BLOCK; c++) {                                                                      \
                        block[c] += (S_T)x_here[c];                                                                           \
                    }                                                                                                         \
                    x_here += x_column;                                                                                       \
                }                                                                                                             \
                x_start += x_row;                                                                                             \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (c = 0; c < LINGER_BLOCK; c++) {                                                                              \
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
        int32_t first = 0;                                                                                                    \
        int32_t row;                                                                                                          \
        int32_t column;                                                                                                       \
        int32_t c;                                                                                                            \
        for (; channels - first >= LINGER_BLOCK; first += LINGER_BLOCK) {                                                     \
            X_T block[LINGER_BLOCK];                                                                                          \
            const X_T *x_start = &x[first];                                                                                   \
            LINGER_UNROLL                                                                                                     \
            for (c = 0; c < LINGER_BLOCK; c++) {                                                                              \
                block[c] = x_start[c];                                                                                        \
            }                                                                                                                 \
            for (row = rows; row > 0; row--) {                                                                                \
                const X_T *x_here = x_start;                                                                                  \
                for (column = columns; column > 0; column--) {                                                                \
                    LINGER_UNROLL                                                                                             \
                    for (c = 0; c < LINGER_BLOCK; c++) {                                                                      \
                        block[c] = (x_here[c] > block[c]) ? x_here[c] : block[c];                                             \
                    }                                                                                                         \
                    x_here += x_column;                                                                                       \
                }                                                                                                             \
                x_start += x_row;                                                                                             \
            }                                                                                                                 \
            LINGER_UNROLL                                                                                                     \
            for (c = 0; c < LINGER_BLOCK; c++) {                                                                              \
                largest[first + c] = block[c];                                                                                \
            }                                                                                                                 \
        }                                                                                                                     \
        for (; first < channels; first++) {                                                                                   \
            X_T most = x[first];                                                                                              \
            for (row = 0; row < rows; row++) {                                                                                \
                for (column = 0; column < columns; column++) {                                                                \
                    const X_T here = x[(row * x_row) + (column * x_column) + first];                                          \
                    most = (here > most) ? here : most;                                                                       \
                }                                                                                                             \
            }                                                                                                                 \
            largest[first] = most;                                                                                            \
        }                                                                                                                     \
    }

#endif

/* The variants below take the plain functions for what they do not cover. */
#if defined(LINGER_X86)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_plain, int8_t, int32_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_plain, int8_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_u8, uint8_t)
#elif defined(LINGER_SMLAD)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_8_32, int8_t, int32_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_plain_0, int8_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_plain_1, uint8_t)
#elif !defined(LINGER_HELIUM)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_8_32, int8_t, int32_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_8, int8_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_u8, uint8_t)
#endif
#if !defined(LINGER_HELIUM)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_u8_32, uint8_t, int32_t)
#endif
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_8_64, int8_t, int64_t)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_u8_64, uint8_t, int64_t)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_16_32, int16_t, int32_t)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_16_64, int16_t, int64_t)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_16, int16_t)

#undef LINGER_DEFINE_WINDOW_SUM
#undef LINGER_DEFINE_WINDOW_MAX

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

#if defined(LINGER_HELIUM)

/* Four channels at a time, or as many of four as there are. */
#define LINGER_DEFINE_WINDOW_SUM(NAME, X_T, LOAD)                                                                             \
    LINGER_SHARED void NAME(int32_t *restrict sums, int32_t channels, const X_T *restrict x, int32_t rows,                    \
                                              int32_t x_row, int32_t columns, int32_t x_column)                               \
    {                                                                                                                         \
        int32_t first;                                                                                                        \
        for (first = 0; first < channels; first += 4) {                                                                       \
            const mve_pred16_t lanes = vctp32q((uint32_t)(channels - first));                                                 \
            const X_T *start = &x[first];                                                                                     \
            int32x4_t sum = vdupq_n_s32(0);                                                                                   \
            int32_t row;                                                                                                      \
            int32_t column;                                                                                                   \
            for (row = 0; row < rows; row++) {                                                                                \
                const X_T *here = start;                                                                                      \
                for (column = columns; column > 0; column--) {                                                                \
                    sum = vaddq_s32(sum, LOAD(here, lanes));                                                                  \
                    here += x_column;                                                                                         \
                }                                                                                                             \
                start += x_row;                                                                                               \
            }                                                                                                                 \
            vst1q_p_s32(&sums[first], sum, lanes);                                                                            \
        }                                                                                                                     \
    }

#define LINGER_LOAD_UNSIGNED(FROM, LANES) vreinterpretq_s32_u32(vldrbq_z_u32(FROM, LANES))
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_8_32, int8_t, vldrbq_z_s32)
LINGER_DEFINE_WINDOW_SUM(linger_window_sum_u8_32, uint8_t, LINGER_LOAD_UNSIGNED)

#undef LINGER_LOAD_UNSIGNED
#undef LINGER_DEFINE_WINDOW_SUM

/* 16 channels at a time, or as many of 16 as there are. */
#define LINGER_DEFINE_WINDOW_MAX(NAME, X_T, VECTOR, S, LEAST)                                                                 \
    LINGER_SHARED void NAME(X_T *restrict largest, int32_t channels, const X_T *restrict x, int32_t rows,                     \
                                           int32_t x_row, int32_t columns, int32_t x_column)                                  \
    {                                                                                                                         \
        int32_t first;                                                                                                        \
        for (first = 0; first < channels; first += 16) {                                                                      \
            const mve_pred16_t lanes = vctp8q((uint32_t)(channels - first));                                                  \
            const X_T *start = &x[first];                                                                                     \
            VECTOR most = vdupq_n_##S(LEAST);                                                                                 \
            int32_t row;                                                                                                      \
            int32_t column;                                                                                                   \
            for (row = 0; row < rows; row++) {                                                                                \
                const X_T *here = start;                                                                                      \
                for (column = columns; column > 0; column--) {                                                                \
                    most = vmaxq_##S(most, vldrbq_z_##S(here, lanes));                                                        \
                    here += x_column;                                                                                         \
                }                                                                                                             \
                start += x_row;                                                                                               \
            }                                                                                                                 \
            vstrbq_p_##S(&largest[first], most, lanes);                                                                       \
        }                                                                                                                     \
    }

LINGER_DEFINE_WINDOW_MAX(linger_window_max_8, int8_t, int8x16_t, s8, INT8_MIN)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_u8, uint8_t, uint8x16_t, u8, 0U)

#undef LINGER_DEFINE_WINDOW_MAX

#endif

#if defined(LINGER_SMLAD)

/* Each byte the larger of two. SSUB8, and USUB8 of unsigned ones, notes per byte whether the difference, before it is cut to
   8 bits, is negative. */
#define LINGER_DEFINE_WINDOW_MAX(NAME, X_T, SUBTRACT, PLAIN)                                                                  \
    LINGER_INSIDE uint32_t NAME##_of_bytes(uint32_t most, uint32_t four)                                                      \
    {                                                                                                                         \
        uint32_t difference;                                                                                                  \
        __asm__(SUBTRACT " %1, %2, %0\n\t"                                                                                    \
                "sel %0, %2, %0"                                                                                              \
                : "+r"(most), "=&r"(difference)                                                                               \
                : "r"(four)                                                                                                   \
                : "cc");                                                                                                      \
        return most;                                                                                                          \
    }                                                                                                                         \
    /* Four channels at a time. */                                                                                            \
    LINGER_SHARED void NAME(X_T *restrict largest, int32_t channels, const X_T *restrict x, int32_t rows,                     \
                                           int32_t x_row, int32_t columns, int32_t x_column)                                  \
    {                                                                                                                         \
        const int32_t whole = channels & ~3;                                                                                  \
        int32_t first;                                                                                                        \
        for (first = 0; first < whole; first += 4) {                                                                          \
            const X_T *start = &x[first];                                                                                     \
            uint32_t most = linger_load_four((const int8_t *)start);                                                          \
            int32_t row;                                                                                                      \
            int32_t column;                                                                                                   \
            for (row = rows; row > 0; row--) {                                                                                \
                const X_T *here = start;                                                                                      \
                for (column = columns; column > 0; column--) {                                                                \
                    most = NAME##_of_bytes(most, linger_load_four((const int8_t *)here));                                     \
                    here += x_column;                                                                                         \
                }                                                                                                             \
                start += x_row;                                                                                               \
            }                                                                                                                 \
            (void)__builtin_memcpy(&largest[first], &most, sizeof most);                                                      \
        }                                                                                                                     \
        if (whole < channels) {                                                                                               \
            PLAIN(&largest[whole], channels - whole, &x[whole], rows, x_row, columns, x_column);                              \
        }                                                                                                                     \
    }

LINGER_DEFINE_WINDOW_MAX(linger_window_max_8, int8_t, "ssub8", linger_window_max_plain_0)
LINGER_DEFINE_WINDOW_MAX(linger_window_max_u8, uint8_t, "usub8", linger_window_max_plain_1)

#undef LINGER_DEFINE_WINDOW_MAX

#endif

#endif
