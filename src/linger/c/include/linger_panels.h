/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of products of bytes for x86, with outputs along the lanes: convolutions (NHWC) and linear layers of several pixels.
 *
 *   void linger_pack(linger_packed *packed, int32_t *begin, const linger_windows *windows, int32_t outputs, const int8_t *w,
 *                    const int32_t *bias, int32_t is_unsigned)
 *   void linger_panel_<x>_8_32(int32_t *sums, int32_t pixels, int32_t outputs, linger_packed *packed, const int32_t *begin,
 *                              const linger_windows *windows, const x_t *x, int32_t first)
 *
 *   sums[p * outputs + o] = (bias ? bias[o] : 0) + the products of output o's weights with the window of output pixel first + p
 *
 * for p < pixels, 1 <= pixels <= LINGER_PANEL_PIXELS, and o < outputs, 1 <= outputs <= 64. Pixels are counted row by row; what a
 * window has outside the image counts as zero. Weights are packed once for all pixels: for each four (AVX2: two) neighboring
 * numbers of a window, those of 16 outputs side by side. Every lane of such a vector meets the same numbers of x, so that each
 * lane holds the sum of an output, and nothing is folded. `packed` has LINGER_PACKED(outputs, numbers) elements, where `numbers`
 * are those of a window with every run padded to a multiple of 4, and room for the windows of some pixels; `begin` has LINGER_PANEL_OUTPUTS. The
 * caller guarantees that the sum of any subset of the products and the bias fits 32 bits. Nothing is rounded.
 */

#ifndef LINGER_PANELS_H
#define LINGER_PANELS_H

#include "linger_simd.h"

#if defined(LINGER_X86)

#define LINGER_PANEL_PIXELS 8
#define LINGER_PANEL_OUTPUTS 64 /* at most */
/* How many outputs a panel has: as many as their packed weights leave room on the stack. Define LINGER_PANEL_BYTES where stacks are
   small. */
#if !defined(LINGER_PANEL_BYTES)
#define LINGER_PANEL_BYTES 300000
#endif
#define LINGER_FITS(OUTPUTS, NUMBERS) (((OUTPUTS) * (NUMBERS) * (int32_t)sizeof(linger_packed)) <= LINGER_PANEL_BYTES)
#define LINGER_PANEL(NUMBERS) (LINGER_FITS(64, NUMBERS) ? 64 : (LINGER_FITS(32, NUMBERS) ? 32 : 16))
#define LINGER_PACKED(OUTPUTS, NUMBERS) ((((((OUTPUTS) + 15) / 16) * 16) + LINGER_PANEL_PIXELS) * (NUMBERS) + 64)

/* Where the windows of an image and their weights are. A window has `down` times `along` runs, each of `taps` neighboring pixels
   with `inside` numbers; runs lie side by side in the weights. */
typedef struct {
    int32_t columns; /* of the output */
    int32_t height;  /* of the input */
    int32_t width;
    int32_t x_row; /* from one row of the input to the next */
    int32_t x_column;
    int32_t strides[2];   /* between windows, in pixels */
    int32_t pads[2];      /* before the first row and the first column */
    int32_t dilations[2]; /* between runs, in pixels */
    int32_t down;
    int32_t along;
    int32_t taps;
    int32_t inside;
} linger_windows;

/* The numbers of a run, padded. */
LINGER_INSIDE int32_t linger_padded(int32_t length)
{
    return (length + 3) & ~3;
}

/* The numbers of a window, padded. */
LINGER_INSIDE int32_t linger_window_numbers(const linger_windows *windows)
{
    return windows->down * windows->along * linger_padded(windows->taps * windows->inside);
}

#if defined(LINGER_AVX512)
typedef int8_t linger_packed;
#define LINGER_READS_IN_PLACE(RUN) (((RUN) % 4) == 0)
#else
typedef int16_t linger_packed;
#define LINGER_READS_IN_PLACE(RUN) ((RUN) < 0)
#endif

/* The windows of some pixels as the multiplication reads them. */
typedef struct {
    const linger_packed *pixel[LINGER_PANEL_PIXELS];
    int32_t down;
    int32_t along;
    int32_t step_down;
    int32_t step_along;
    int32_t length;
} linger_view;

/* Hides how a number is computed: compilers that know make pointers of it, more than there are registers. */
#if defined(__GNUC__)
#define LINGER_HIDE(NUMBER) __asm__("" : "+r"(NUMBER))
#define LINGER_KEEP(VECTOR) __asm__("" : "+v"(VECTOR))
#define LINGER_UNROLLED _Pragma("GCC unroll 16")
#else
#define LINGER_HIDE(NUMBER) (void)(NUMBER)
#define LINGER_KEEP(VECTOR) (void)(VECTOR)
#define LINGER_UNROLLED
#endif

LINGER_INSIDE int32_t linger_limited(int32_t x, int32_t low, int32_t high)
{
    return (x < low) ? low : ((x > high) ? high : x);
}

#if defined(LINGER_AVX512)

/* The first `count` bits, or all. */
LINGER_INSIDE __mmask64 linger_few_lanes(int32_t count)
{
    return (count >= 64) ? ~(__mmask64)0 : ((count <= 0) ? 0U : (~(__mmask64)0 >> (64U - (uint32_t)count)));
}

/* Copies numbers `low` to `high` - 1 of a run to their places, with zeros before and behind them; it may write 63 more zeros. */
LINGER_INSIDE void linger_copy_taps(linger_packed *to, const int8_t *from, int32_t low, int32_t high, int32_t size,
                                    int32_t is_unsigned)
{
    int32_t i;
    (void)is_unsigned;
    for (i = 0; i < low; i += 64) {
        _mm512_storeu_si512((void *)&to[i], _mm512_setzero_si512());
    }
    for (i = low; i < high; i += 64) {
        _mm512_storeu_si512((void *)&to[i], _mm512_maskz_loadu_epi8(linger_few_lanes(high - i), &from[i]));
    }
    for (; i < size; i += 64) {
        _mm512_storeu_si512((void *)&to[i], _mm512_setzero_si512());
    }
}

/* So many bytes before they are packed, weights are fetched: 16 rows at a time are more than the processor follows. */
#define LINGER_AHEAD 512

/* 16 vectors of 16 numbers of 32 bits, transposed. */
LINGER_INSIDE void linger_transpose(__m512i v[16])
{
    __m512i t[16];
    int32_t i;
    LINGER_UNROLLED
    for (i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    LINGER_UNROLLED
    for (i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    LINGER_UNROLLED
    for (i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xDD);
    }
    LINGER_UNROLLED
    for (i = 0; i < 4; i++) {
        v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

/* The weights of up to 16 outputs. VPDPBUSD multiplies unsigned by signed bytes: signed x enter as x + 128, and 128 times the sum
   of all weights is taken off the number to begin with. Vectors wrap around where they overflow, so the detour is exact. */
LINGER_INSIDE __m512i linger_pack_group(linger_packed *packed, int32_t step, const linger_windows *windows, int32_t outputs,
                                        const int8_t *w)
{
    const int32_t run = windows->taps * windows->inside;
    const int32_t runs = windows->down * windows->along;
    const int32_t is_joined = ((run % 4) == 0) ? 1 : 0;
    const int32_t length = (is_joined != 0) ? (run * runs) : run;
    __m512i raised = _mm512_setzero_si512();
    int32_t r;
    int32_t i;
    int32_t k;
    for (r = 0; r < ((is_joined != 0) ? 1 : runs); r++) {
        for (i = 0; i < length; i += 64) {
            const __mmask64 lanes = linger_few_lanes(length - i);
            __m512i v[16];
            LINGER_UNROLLED
            for (k = 0; k < 16; k++) {
                const int8_t *from = &w[((k < outputs) ? (k * run * runs) : 0) + (r * run) + i];
                _mm_prefetch((const char *)from + LINGER_AHEAD, _MM_HINT_T0);
                v[k] = _mm512_maskz_loadu_epi8((k < outputs) ? lanes : 0U, from);
            }
            linger_transpose(v);
            for (k = 0; (k < 16) && ((4 * k) < (length - i)); k++) {
                _mm512_storeu_si512((void *)packed, v[k]);
                raised = _mm512_dpbusd_epi32(raised, _mm512_set1_epi8((char)-128), v[k]);
                packed += step;
            }
        }
    }
    return raised;
}

/* Four numbers of x in every lane, unsigned. */
LINGER_INSIDE __m512i linger_broadcast(const linger_packed *x, int32_t is_unsigned)
{
    int32_t four;
    (void)memcpy(&four, x, sizeof four);
    return (is_unsigned != 0) ? _mm512_set1_epi32(four)
                              : _mm512_xor_si512(_mm512_set1_epi32(four), _mm512_set1_epi8((char)-128));
}

/* `groups` of 16 outputs of `most` pixels; both are literals. */
LINGER_INSIDE void linger_panel_tile(int32_t *sums, int32_t pixels, int32_t outputs, const linger_packed *packed,
                                     const int32_t *begin, const linger_view *view, int32_t first, int32_t most,
                                     int32_t groups, int32_t is_unsigned)
{
    const linger_packed *x[LINGER_PANEL_PIXELS];
    __m512i s[LINGER_PANEL_PIXELS * 4];
    int32_t down;
    int32_t along;
    int32_t p;
    int32_t g;
    LINGER_UNROLLED
    for (p = 0; p < most; p++) {
        x[p] = view->pixel[first + p];
        LINGER_UNROLLED
        for (g = 0; g < groups; g++) {
            s[(p * 4) + g] = _mm512_loadu_si512((const void *)&begin[16 * g]);
        }
    }
    for (down = 0; down < view->down; down++) {
        for (along = 0; along < view->along; along++) {
            intptr_t i = (down * (intptr_t)view->step_down) + (along * (intptr_t)view->step_along);
            const intptr_t end = i + view->length;
            for (; i < end; i += 4) {
                __m512i w[4];
                LINGER_HIDE(i);
                LINGER_UNROLLED
                for (g = 0; g < groups; g++) {
                    w[g] = _mm512_loadu_si512((const void *)&packed[64 * g]);
                }
                packed += 64 * groups;
                LINGER_UNROLLED
                for (p = 0; p < most; p++) {
                    const __m512i four = linger_broadcast(&x[p][i], is_unsigned);
                    LINGER_UNROLLED
                    for (g = 0; g < groups; g++) {
                        s[(p * 4) + g] = _mm512_dpbusd_epi32(s[(p * 4) + g], four, w[g]);
                        LINGER_KEEP(s[(p * 4) + g]);
                    }
                }
            }
        }
    }
    LINGER_UNROLLED
    for (p = 0; p < most; p++) {
        if ((first + p) < pixels) {
            LINGER_UNROLLED
            for (g = 0; g < groups; g++) {
                _mm512_mask_storeu_epi32(&sums[((first + p) * outputs) + (16 * g)],
                                         (__mmask16)linger_few_lanes(outputs - (16 * g)), s[(p * 4) + g]);
            }
        }
    }
}

LINGER_INSIDE void linger_multiply_panel(int32_t *sums, int32_t pixels, int32_t outputs, const linger_packed *packed,
                                         const int32_t *begin, const linger_view *view, int32_t is_unsigned)
{
    int32_t first;
    for (first = 0; first < pixels; first += (outputs <= 32) ? 8 : 4) {
        if (outputs <= 16) {
            linger_panel_tile(sums, pixels, outputs, packed, begin, view, first, 8, 1, is_unsigned);
        } else if (outputs <= 32) {
            linger_panel_tile(sums, pixels, outputs, packed, begin, view, first, 8, 2, is_unsigned);
        } else if (outputs <= 48) {
            linger_panel_tile(sums, pixels, outputs, packed, begin, view, first, 4, 3, is_unsigned);
        } else {
            linger_panel_tile(sums, pixels, outputs, packed, begin, view, first, 4, 4, is_unsigned);
        }
    }
}

LINGER_SHARED void linger_pack(linger_packed *packed, int32_t *begin, const linger_windows *windows, int32_t outputs,
                               const int8_t *w, const int32_t *bias, int32_t is_unsigned)
{
    const int32_t groups = (outputs + 15) / 16;
    const int32_t numbers = windows->down * windows->along * windows->taps * windows->inside;
    int32_t g;
    for (g = 0; g < groups; g++) {
        const int32_t count = outputs - (16 * g);
        const __mmask16 lanes = (__mmask16)linger_few_lanes(count);
        const __m512i raised =
            linger_pack_group(&packed[64 * g], 64 * groups, windows, (count < 16) ? count : 16, &w[16 * g * numbers]);
        __m512i start = _mm512_setzero_si512();
        if (bias != NULL) {
            start = _mm512_maskz_loadu_epi32(lanes, &bias[16 * g]);
        }
        start = (is_unsigned != 0) ? start : _mm512_sub_epi32(start, raised);
        _mm512_storeu_si512((void *)&begin[16 * g], start);
    }
}

#else

LINGER_INSIDE __m256i linger_widened(__m128i bytes, int32_t is_unsigned)
{
    return (is_unsigned != 0) ? _mm256_cvtepu8_epi16(bytes) : _mm256_cvtepi8_epi16(bytes);
}

/* Copies numbers `low` to `high` - 1 of a run to their places, with zeros before and behind them. */
LINGER_INSIDE void linger_copy_taps(linger_packed *to, const int8_t *from, int32_t low, int32_t high, int32_t size,
                                    int32_t is_unsigned)
{
    int32_t i = low;
    (void)memset(to, 0, (size_t)low * sizeof(linger_packed));
    for (; (high - i) >= 16; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)&from[i]);
        _mm256_storeu_si256((__m256i *)(void *)&to[i], linger_widened(bytes, is_unsigned));
    }
    if ((high - low) >= 8) {
        /* eight at a time, the last of which end with the run */
        for (; i < high; i += 8) {
            const int32_t at = ((high - i) < 8) ? (high - 8) : i;
            const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)&from[at]);
            _mm_storeu_si128((__m128i *)(void *)&to[at], _mm256_castsi256_si128(linger_widened(bytes, is_unsigned)));
        }
    }
    for (; i < high; i++) {
        to[i] = (linger_packed)linger_byte(from, i, is_unsigned);
    }
    for (i = high; i < size; i++) {
        to[i] = 0;
    }
}

/* 8 vectors of 8 numbers of 32 bits, transposed. */
LINGER_INSIDE void linger_transpose(__m256i v[8])
{
    __m256i t[8];
    int32_t i;
    LINGER_UNROLLED
    for (i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    LINGER_UNROLLED
    for (i = 0; i < 8; i += 4) {
        v[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    LINGER_UNROLLED
    for (i = 0; i < 4; i++) {
        const __m256i low = _mm256_permute2x128_si256(v[i], v[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(v[i], v[i + 4], 0x31);
        v[i] = low;
    }
}

/* The weights of up to 8 outputs. */
LINGER_INSIDE void linger_pack_group(linger_packed *packed, int32_t step, const linger_windows *windows, int32_t outputs,
                                     const int8_t *w)
{
    const int32_t run = windows->taps * windows->inside;
    const int32_t runs = windows->down * windows->along;
    const int32_t is_joined = ((run % 4) == 0) ? 1 : 0;
    const int32_t length = (is_joined != 0) ? (run * runs) : run;
    int32_t r;
    int32_t i;
    int32_t k;
    for (r = 0; r < ((is_joined != 0) ? 1 : runs); r++) {
        for (i = 0; i < length; i += 16) {
            __m256i v[8];
            LINGER_UNROLLED
            for (k = 0; k < 8; k++) {
                const int8_t *from = &w[((k < outputs) ? (k * run * runs) : 0) + (r * run) + i];
                v[k] = ((k < outputs) && ((length - i) >= 16)) ? linger_widen_16(from)
                                                               : linger_widen_some(from, (k < outputs) ? (length - i) : 0);
            }
            linger_transpose(v);
            for (k = 0; (k < 8) && ((2 * k) < linger_padded(length - i)); k++) {
                _mm256_storeu_si256((__m256i *)(void *)packed, v[k]);
                packed += step;
            }
        }
    }
}

/* 16 outputs, or the `count` of them that there are, of four pixels. */
LINGER_INSIDE void linger_panel_tile(int32_t *sums, int32_t pixels, int32_t outputs, int32_t count,
                                     const linger_packed *packed, const int32_t *begin, const linger_view *view, int32_t first)
{
    const linger_packed *x[4];
    __m256i s[8];
    intptr_t i;
    int32_t p;
    LINGER_UNROLLED
    for (p = 0; p < 4; p++) {
        x[p] = view->pixel[first + p];
        s[2 * p] = _mm256_loadu_si256((const __m256i *)(const void *)begin);
        s[(2 * p) + 1] = _mm256_loadu_si256((const __m256i *)(const void *)&begin[8]);
    }
    for (i = 0; i < view->length; i += 2) {
        const __m256i w_0 = _mm256_loadu_si256((const __m256i *)(const void *)packed);
        const __m256i w_1 = _mm256_loadu_si256((const __m256i *)(const void *)&packed[16]);
        packed += 32;
        LINGER_HIDE(i);
        LINGER_UNROLLED
        for (p = 0; p < 4; p++) {
            int32_t two;
            __m256i pair;
            (void)memcpy(&two, &x[p][i], sizeof two);
            pair = _mm256_set1_epi32(two);
            s[2 * p] = _mm256_add_epi32(s[2 * p], _mm256_madd_epi16(pair, w_0));
            s[(2 * p) + 1] = _mm256_add_epi32(s[(2 * p) + 1], _mm256_madd_epi16(pair, w_1));
        }
    }
    LINGER_UNROLLED
    for (p = 0; p < 4; p++) {
        int32_t *to = &sums[(first + p) * outputs];
        if (((first + p) < pixels) && (count >= 16)) {
            _mm256_storeu_si256((__m256i *)(void *)to, s[2 * p]);
            _mm256_storeu_si256((__m256i *)(void *)&to[8], s[(2 * p) + 1]);
        } else if ((first + p) < pixels) {
            int32_t numbers[16];
            _mm256_storeu_si256((__m256i *)(void *)numbers, s[2 * p]);
            _mm256_storeu_si256((__m256i *)(void *)&numbers[8], s[(2 * p) + 1]);
            (void)memcpy(to, numbers, (size_t)count * sizeof(int32_t));
        } else {
            /* a pixel that is not there */
        }
    }
}

LINGER_INSIDE void linger_multiply_panel(int32_t *sums, int32_t pixels, int32_t outputs, const linger_packed *packed,
                                         const int32_t *begin, const linger_view *view, int32_t is_unsigned)
{
    int32_t first;
    int32_t o;
    (void)is_unsigned;
    for (o = 0; o < outputs; o += 16) {
        for (first = 0; first < pixels; first += 4) {
            linger_panel_tile(&sums[o], pixels, outputs, outputs - o, &packed[o * view->length], &begin[o], view, first);
        }
    }
}

LINGER_SHARED void linger_pack(linger_packed *packed, int32_t *begin, const linger_windows *windows, int32_t outputs,
                               const int8_t *w, const int32_t *bias, int32_t is_unsigned)
{
    const int32_t numbers = windows->down * windows->along * windows->taps * windows->inside;
    const int32_t padded = linger_window_numbers(windows);
    int32_t o;
    (void)is_unsigned;
    for (o = 0; o < outputs; o += 8) {
        linger_pack_group(&packed[((o / 16) * 16 * padded) + ((o % 16) * 2)], 32, windows,
                          ((outputs - o) < 8) ? (outputs - o) : 8, &w[o * numbers]);
    }
    for (o = 0; o < LINGER_PANEL_OUTPUTS; o++) {
        begin[o] = ((bias != NULL) && (o < outputs)) ? bias[o] : 0;
    }
}

#endif

/* The window of the pixel at a row and column of the output, as a copy. */
LINGER_INSIDE void linger_copy_window(linger_packed *to, const linger_windows *windows, const int8_t *x, int32_t row,
                                      int32_t column, int32_t is_unsigned)
{
    const int32_t top = (row * windows->strides[0]) - windows->pads[0];
    const int32_t left = (column * windows->strides[1]) - windows->pads[1];
    const int32_t padded = linger_padded(windows->taps * windows->inside);
    int32_t down;
    int32_t along;
    for (down = 0; down < windows->down; down++) {
        const int32_t at = top + (down * windows->dilations[0]);
        const int32_t taps = ((at >= 0) && (at < windows->height)) ? windows->taps : 0;
        for (along = 0; along < windows->along; along++) {
            const int32_t begin = left + (along * windows->dilations[1]);
            const int32_t low = linger_limited(-begin, 0, taps);
            const int32_t high = linger_limited(windows->width - begin, low, taps);
            linger_copy_taps(to, &x[(at * windows->x_row) + (begin * windows->x_column)], low * windows->inside,
                             high * windows->inside, padded, is_unsigned);
            to += padded;
        }
    }
}

/* Finds the windows of some pixels: where they lie inside the image, in one row, and are read as they are, else as copies. */
LINGER_INSIDE void linger_look(linger_view *view, linger_packed *copy, const linger_windows *windows, int32_t pixels,
                               const int8_t *x, int32_t first, int32_t is_unsigned)
{
    const int32_t run = windows->taps * windows->inside;
    int32_t row = first / windows->columns;
    int32_t column = first % windows->columns;
    const int32_t top = (row * windows->strides[0]) - windows->pads[0];
    const int32_t left = (column * windows->strides[1]) - windows->pads[1];
    const int32_t bottom = top + ((windows->down - 1) * windows->dilations[0]);
    const int32_t right = left + ((pixels - 1) * windows->strides[1]) + ((windows->along - 1) * windows->dilations[1]) +
                          windows->taps - 1;
    int32_t p;
    if (LINGER_READS_IN_PLACE(run) && ((column + pixels) <= windows->columns) && (top >= 0) && (left >= 0) &&
        (bottom < windows->height) && (right < windows->width)) {
        const int8_t *from = &x[(top * windows->x_row) + (left * windows->x_column)];
        for (p = 0; p < LINGER_PANEL_PIXELS; p++) {
            view->pixel[p] = (const linger_packed *)(const void *)from;
            from += (p < (pixels - 1)) ? (windows->strides[1] * windows->x_column) : 0;
        }
        view->down = windows->down;
        view->along = windows->along;
        view->step_down = windows->dilations[0] * windows->x_row;
        view->step_along = windows->dilations[1] * windows->x_column;
        view->length = run;
    } else {
        const int32_t numbers = linger_window_numbers(windows);
        for (p = 0; p < LINGER_PANEL_PIXELS; p++) {
            /* pixels that are not there repeat the last one and are dropped */
            view->pixel[p] = &copy[((p < pixels) ? p : (pixels - 1)) * numbers];
        }
        for (p = 0; p < pixels; p++) {
            linger_copy_window(&copy[p * numbers], windows, x, row, column, is_unsigned);
            column++;
            if (column == windows->columns) {
                column = 0;
                row++;
            }
        }
        view->down = 1;
        view->along = 1;
        view->step_down = 0;
        view->step_along = 0;
        view->length = numbers;
    }
}

#define LINGER_DEFINE_PANEL(NAME, X_T, IS_UNSIGNED)                                                                           \
    LINGER_SHARED void NAME(int32_t *restrict sums, int32_t pixels, int32_t outputs, linger_packed *restrict packed,          \
                            const int32_t *restrict begin, const linger_windows *windows, const X_T *restrict x,              \
                            int32_t first)                                                                                    \
    {                                                                                                                         \
        linger_view view;                                                                                                     \
        linger_packed *copy = &packed[((outputs + 15) / 16) * 16 * linger_window_numbers(windows)];                           \
        linger_look(&view, copy, windows, pixels, (const int8_t *)x, first, IS_UNSIGNED);                                     \
        linger_multiply_panel(sums, pixels, outputs, packed, begin, &view, IS_UNSIGNED);                                      \
    }

LINGER_DEFINE_PANEL(linger_panel_8_8_32, int8_t, 0)
LINGER_DEFINE_PANEL(linger_panel_u8_8_32, uint8_t, 1)

#undef LINGER_DEFINE_PANEL
#undef LINGER_READS_IN_PLACE

#endif

#endif
