/* Compares every function of the linger_*.h that add integers with plain loops on random cases; prints what differs. */

#include <stdio.h>

#include "linger_columns.h"
#include "linger_depthwise.h"
#include "linger_dots.h"
#include "linger_panels.h"
#include "linger_pools.h"

#ifndef CASES
#define CASES 60
#endif

#define X_SIZE 3072
#define W_SIZE 6144
#define SUMS 600
#define GUARD 77

typedef int8_t T_8;
typedef uint8_t T_u8;
typedef int16_t T_16;
typedef int32_t T_32;
typedef int64_t T_64;
#define WIDTH_8 8
#define WIDTH_u8 8
#define WIDTH_16 16

static uint32_t state = 1U;

static int32_t draw(int32_t low, int32_t high)
{
    state = (state * 1664525U) + 1013904223U;
    return low + (int32_t)((state >> 8) % (uint32_t)(high - low + 1));
}

/* Small and odd sizes are drawn more often: they are all tail. */
static int32_t draw_size(int32_t high)
{
    return (draw(0, 2) == 0) ? draw(0, high) : draw(0, (high < 9) ? high : 9);
}

/* 16-bit numbers of 32-bit sums are small enough that no sum overflows. */
static int32_t limit(int bits, int other, int sum)
{
    if (bits == 8) {
        return 128;
    }
    return (sum == 64) ? 32768 : ((other == 16) ? 1500 : 12000);
}

#define ARRAYS(BITS, OFFSET)                                                                                                  \
    static T_##BITS x_##BITS[X_SIZE];                                                                                         \
    static void fill_##BITS(T_##BITS *numbers, int32_t count, int32_t most)                                                   \
    {                                                                                                                         \
        const int32_t kind = draw(0, 3);                                                                                      \
        int32_t i;                                                                                                            \
        for (i = 0; i < count; i++) {                                                                                         \
            const int32_t number = (kind == 0) ? -most : ((kind == 1) ? (draw(0, 1) * ((2 * most) - 1)) - most                \
                                                                      : draw(-most, most - 1));                               \
            numbers[i] = (T_##BITS)(number + (OFFSET));                                                                       \
        }                                                                                                                     \
    }
ARRAYS(8, 0)
ARRAYS(u8, 128)
ARRAYS(16, 0)
static int8_t w_8[W_SIZE];
static int16_t w_16[W_SIZE];

static int32_t sums_32[SUMS];
static int64_t sums_64[SUMS];
static int8_t largest_8[SUMS];
static uint8_t largest_u8[SUMS];
static int16_t largest_16[SUMS];
static int32_t bias_numbers[SUMS];
static int failures = 0;

static void fill_bias(void)
{
    int32_t i;
    for (i = 0; i < SUMS; i++) {
        bias_numbers[i] = draw(-1000000, 1000000);
    }
}

static void expect(int64_t given, int64_t wanted, const char *name, int32_t number)
{
    if ((given != wanted) && (failures < 20)) {
        failures++;
        (void)printf("%s: case %d\n", name, (int)number);
    }
}

/* The elements behind the results must stay as they were. */
#define CLEAR(ARRAY, T)                                                                                                       \
    for (i = 0; i < SUMS; i++) {                                                                                              \
        (ARRAY)[i] = (T)GUARD;                                                                                                \
    }
#define EXPECT_REST(ARRAY, COUNT, NAME)                                                                                       \
    for (i = (COUNT); i < SUMS; i++) {                                                                                        \
        expect((int64_t)(ARRAY)[i], GUARD, NAME, number);                                                                     \
    }

#define CHECK_DOTS(X, W, S)                                                                                                   \
    static void check_dots_##X##_##W##_##S(void)                                                                              \
    {                                                                                                                         \
        int32_t number;                                                                                                       \
        for (number = 0; number < CASES; number++) {                                                                          \
            const int32_t pixels = draw(1, LINGER_PIXELS), outputs = draw(1, 19), runs = draw(0, 4);                          \
            const int32_t length = draw_size(150), x_pixel = draw(0, 90), x_step = draw(0, 1) == 0 ? length : draw(0, 200);   \
            const int32_t w_step = draw(0, 1) == 0 ? length + (draw(0, 1) * draw(0, 3)) : draw(0, 90);                        \
            const int32_t w_output = draw(0, 1) == 0 ? (runs * w_step) % 240 : draw(0, 240);                                  \
            const int32_t *bias = draw(0, 1) == 0 ? NULL : bias_numbers;                                                      \
            const T_##X *x = &x_##X[draw(0, 7)];                                                                              \
            const T_##W *w = &w_##W[draw(0, 7)];                                                                              \
            int32_t i, o, p, r;                                                                                               \
            fill_##X(x_##X, X_SIZE, limit(WIDTH_##X, W, S));                                                                  \
            fill_##W(w_##W, W_SIZE, limit(W, WIDTH_##X, S));                                                                  \
            CLEAR(sums_##S, T_##S)                                                                                            \
            linger_dots_##X##_##W##_##S(sums_##S, pixels, outputs, x, x_pixel, runs, x_step, length, w, w_output, w_step,     \
                                        bias);                                                                                \
            for (p = 0; p < pixels; p++) {                                                                                    \
                for (o = 0; o < outputs; o++) {                                                                               \
                    int64_t sum = (bias == NULL) ? 0 : bias[o];                                                               \
                    for (r = 0; r < runs; r++) {                                                                              \
                        for (i = 0; i < length; i++) {                                                                        \
                            sum += (int64_t)x[(p * x_pixel) + (r * x_step) + i] * w[(o * w_output) + (r * w_step) + i];       \
                        }                                                                                                     \
                    }                                                                                                         \
                    expect((int64_t)sums_##S[(p * outputs) + o], sum, "linger_dots_" #X "_" #W "_" #S, number);               \
                }                                                                                                             \
            }                                                                                                                 \
            EXPECT_REST(sums_##S, pixels *outputs, "linger_dots_" #X "_" #W "_" #S)                                           \
        }                                                                                                                     \
    }

#define CHECK_COLUMNS(X, W, S)                                                                                                \
    static void check_columns_##X##_##W##_##S(void)                                                                           \
    {                                                                                                                         \
        int32_t number;                                                                                                       \
        for (number = 0; number < CASES; number++) {                                                                          \
            const int32_t outputs = draw_size(140), length = draw_size(60), w_step = draw(0, 90);                             \
            const T_##X *x = &x_##X[draw(0, 7)];                                                                              \
            const T_##W *w = &w_##W[draw(0, 7)];                                                                              \
            int32_t i, o;                                                                                                     \
            fill_##X(x_##X, X_SIZE, limit(WIDTH_##X, W, S));                                                                  \
            fill_##W(w_##W, W_SIZE, limit(W, WIDTH_##X, S));                                                                  \
            CLEAR(sums_##S, T_##S)                                                                                            \
            linger_columns_##X##_##W##_##S(sums_##S, outputs, x, length, w, w_step);                                          \
            for (o = 0; o < outputs; o++) {                                                                                   \
                int64_t sum = 0;                                                                                              \
                for (i = 0; i < length; i++) {                                                                                \
                    sum += (int64_t)x[i] * w[(i * w_step) + o];                                                               \
                }                                                                                                             \
                expect((int64_t)sums_##S[o], sum, "linger_columns_" #X "_" #W "_" #S, number);                                \
            }                                                                                                                 \
            EXPECT_REST(sums_##S, outputs, "linger_columns_" #X "_" #W "_" #S)                                                \
        }                                                                                                                     \
    }

/* Every third time all pixels are neighbors and have windows of 3 x 3, which some variants treat differently. */
#define CHECK_DEPTHWISE(X, W, S)                                                                                              \
    static void check_depthwise_##X##_##W##_##S(void)                                                                         \
    {                                                                                                                         \
        int32_t number;                                                                                                       \
        for (number = 0; number < CASES; number++) {                                                                          \
            const int is_row = draw(0, 2) == 0;                                                                               \
            const int32_t pixels = is_row ? LINGER_PIXELS : draw(1, LINGER_PIXELS);                                           \
            const int32_t channels = draw_size(140), rows = is_row ? 3 : draw(0, 5), columns = is_row ? 3 : draw(0, 5);       \
            const int32_t x_row = draw(0, 300), x_column = draw(0, 150), w_row = draw(0, 300), w_column = draw(0, 150);       \
            const int32_t x_pixel = is_row ? x_column : draw(0, 150);                                                         \
            const int32_t *bias = draw(0, 1) == 0 ? NULL : bias_numbers;                                                      \
            const T_##X *x = &x_##X[draw(0, 7)];                                                                              \
            const T_##W *w = &w_##W[draw(0, 7)];                                                                              \
            int32_t i, c, k, p, r;                                                                                            \
            fill_##X(x_##X, X_SIZE, limit(WIDTH_##X, W, S));                                                                  \
            fill_##W(w_##W, W_SIZE, limit(W, WIDTH_##X, S));                                                                  \
            CLEAR(sums_##S, T_##S)                                                                                            \
            linger_depthwise_##X##_##W##_##S(sums_##S, pixels, channels, x, x_pixel, rows, x_row, columns, x_column, w,       \
                                             w_row, w_column, bias);                                                          \
            for (p = 0; p < pixels; p++) {                                                                                    \
                for (c = 0; c < channels; c++) {                                                                              \
                    const T_##X *from = &x[(p * x_pixel) + c];                                                                \
                    int64_t sum = (bias == NULL) ? 0 : bias[c];                                                               \
                    for (r = 0; r < rows; r++) {                                                                              \
                        for (k = 0; k < columns; k++) {                                                                       \
                            sum += (int64_t)from[(r * x_row) + (k * x_column)] * w[(r * w_row) + (k * w_column) + c];         \
                        }                                                                                                     \
                    }                                                                                                         \
                    expect((int64_t)sums_##S[(p * channels) + c], sum, "linger_depthwise_" #X "_" #W "_" #S, number);         \
                }                                                                                                             \
            }                                                                                                                 \
            EXPECT_REST(sums_##S, pixels *channels, "linger_depthwise_" #X "_" #W "_" #S)                                     \
        }                                                                                                                     \
    }

/* The first window has 18 x 18 = 324 numbers, all the smallest: more than 16-bit lanes can add up. */
#define CHECK_WINDOW_SUM(X, S)                                                                                                \
    static void check_window_sum_##X##_##S(void)                                                                              \
    {                                                                                                                         \
        int32_t number;                                                                                                       \
        for (number = 0; number < CASES; number++) {                                                                          \
            const int is_full = number == 0;                                                                                  \
            const int32_t channels = is_full ? 140 : draw_size(140), rows = is_full ? 18 : draw_size(18);                     \
            const int32_t columns = is_full ? 18 : draw_size(18);                                                             \
            const int32_t x_row = draw(0, 60), x_column = draw(0, 60);                                                        \
            const T_##X *x = &x_##X[draw(0, 7)];                                                                              \
            int32_t i, c, k, r;                                                                                               \
            fill_##X(x_##X, X_SIZE, limit(WIDTH_##X, WIDTH_##X, 64));                                                         \
            for (i = 0; is_full && (i < X_SIZE); i++) {                                                                       \
                x_##X[i] = (T_##X)-limit(WIDTH_##X, WIDTH_##X, 64);                                                           \
            }                                                                                                                 \
            CLEAR(sums_##S, T_##S)                                                                                            \
            linger_window_sum_##X##_##S(sums_##S, channels, x, rows, x_row, columns, x_column);                               \
            for (c = 0; c < channels; c++) {                                                                                  \
                int64_t sum = 0;                                                                                              \
                for (r = 0; r < rows; r++) {                                                                                  \
                    for (k = 0; k < columns; k++) {                                                                           \
                        sum += x[(r * x_row) + (k * x_column) + c];                                                           \
                    }                                                                                                         \
                }                                                                                                             \
                expect((int64_t)sums_##S[c], sum, "linger_window_sum_" #X "_" #S, number);                                    \
            }                                                                                                                 \
            EXPECT_REST(sums_##S, channels, "linger_window_sum_" #X "_" #S)                                                   \
        }                                                                                                                     \
    }

#define CHECK_WINDOW_MAX(X)                                                                                                   \
    static void check_window_max_##X(void)                                                                                    \
    {                                                                                                                         \
        int32_t number;                                                                                                       \
        for (number = 0; number < CASES; number++) {                                                                          \
            const int32_t channels = draw_size(140), rows = draw(1, 5), columns = draw(1, 5);                                 \
            const int32_t x_row = draw(0, 300), x_column = draw(0, 150);                                                      \
            const T_##X *x = &x_##X[draw(0, 7)];                                                                              \
            int32_t i, c, k, r;                                                                                               \
            fill_##X(x_##X, X_SIZE, limit(WIDTH_##X, WIDTH_##X, 64));                                                         \
            CLEAR(largest_##X, T_##X)                                                                                         \
            linger_window_max_##X(largest_##X, channels, x, rows, x_row, columns, x_column);                                  \
            for (c = 0; c < channels; c++) {                                                                                  \
                int64_t most = INT16_MIN;                                                                                     \
                for (r = 0; r < rows; r++) {                                                                                  \
                    for (k = 0; k < columns; k++) {                                                                           \
                        const int64_t here = x[(r * x_row) + (k * x_column) + c];                                             \
                        most = (here > most) ? here : most;                                                                   \
                    }                                                                                                         \
                }                                                                                                             \
                expect((int64_t)largest_##X[c], most, "linger_window_max_" #X, number);                                       \
            }                                                                                                                 \
            EXPECT_REST(largest_##X, channels, "linger_window_max_" #X)                                                       \
        }                                                                                                                     \
    }

#if defined(LINGER_X86)
/* An image of up to 6 x 9 pixels, some with channels that no window reads. */
#define CHECK_PANEL(X, IS_UNSIGNED)                                                                                           \
    static void check_panel_##X(void)                                                                                         \
    {                                                                                                                         \
        static linger_packed packed[LINGER_PACKED(LINGER_PANEL_OUTPUTS, 400)];                                                \
        int32_t number;                                                                                                       \
        for (number = 0; number < CASES; number++) {                                                                          \
            const int32_t outputs = draw(1, LINGER_PANEL_OUTPUTS), inside = (draw(0, 2) == 0) ? draw(1, 10) : 8;              \
            const int32_t step = inside + draw(0, 1);                                                                         \
            const int32_t down = draw(1, 3), taps = draw(1, 3), pad = draw(0, 1), stride = draw(1, 2);                        \
            const int32_t height = draw(down, 6), width = draw(taps, 9), across = taps * inside;                              \
            const int32_t is_joined = (step == inside) ? 1 : 0, columns = ((width + (2 * pad) - taps) / stride) + 1;          \
            const int32_t *bias = draw(0, 1) == 0 ? NULL : bias_numbers;                                                      \
            linger_windows windows = {0, 0, 0, 0, 0, {0, 0}, {0, 0}, {1, 1}, 0, 0, 0, 0};                                     \
            int32_t begin[LINGER_PANEL_OUTPUTS];                                                                              \
            const int32_t rows = ((height + (2 * pad) - down) / stride) + 1, first = draw(0, (rows * columns) - 1);           \
            int32_t pixels = (rows * columns) - first, i, o, p, r;                                                            \
            pixels = draw(1, (pixels > LINGER_PANEL_PIXELS) ? LINGER_PANEL_PIXELS : pixels);                                  \
            windows.columns = columns;                                                                                        \
            windows.height = height;                                                                                          \
            windows.width = width;                                                                                            \
            windows.x_row = width * step;                                                                                     \
            windows.x_column = step;                                                                                          \
            windows.strides[0] = windows.strides[1] = stride;                                                                 \
            windows.pads[0] = windows.pads[1] = pad;                                                                          \
            windows.down = down;                                                                                              \
            windows.along = (is_joined != 0) ? 1 : taps;                                                                      \
            windows.taps = (is_joined != 0) ? taps : 1;                                                                       \
            windows.inside = inside;                                                                                          \
            fill_##X(x_##X, X_SIZE, 128);                                                                                     \
            fill_8(w_8, W_SIZE, 128);                                                                                         \
            CLEAR(sums_32, int32_t)                                                                                           \
            linger_pack(packed, begin, &windows, outputs, w_8, bias, IS_UNSIGNED);                                            \
            linger_panel_##X##_8_32(sums_32, pixels, outputs, packed, begin, &windows, x_##X, first);                         \
            for (p = 0; p < pixels; p++) {                                                                                    \
                const int32_t top = (((first + p) / columns) * stride) - pad;                                                 \
                const int32_t left = (((first + p) % columns) * stride) - pad;                                                \
                for (o = 0; o < outputs; o++) {                                                                               \
                    int64_t sum = (bias == NULL) ? 0 : bias[o];                                                               \
                    for (r = 0; r < down; r++) {                                                                              \
                        for (i = 0; i < across; i++) {                                                                        \
                            const int32_t y = top + r, x = left + (i / inside);                                               \
                            if ((y >= 0) && (y < height) && (x >= 0) && (x < width)) {                                        \
                                sum += (int64_t)x_##X[(((y * width) + x) * step) + (i % inside)] *                            \
                                       w_8[(((o * down) + r) * across) + i];                                                  \
                            }                                                                                                 \
                        }                                                                                                     \
                    }                                                                                                         \
                    expect(sums_32[(p * outputs) + o], sum, "linger_panel_" #X, number);                                      \
                }                                                                                                             \
            }                                                                                                                 \
            EXPECT_REST(sums_32, pixels *outputs, "linger_panel_" #X)                                                         \
        }                                                                                                                     \
    }
CHECK_PANEL(8, 0)
CHECK_PANEL(u8, 1)
#endif

#define EACH_WIDTH(DO)                                                                                                        \
    DO(8, 8, 32) DO(8, 8, 64) DO(8, 16, 32) DO(8, 16, 64) DO(u8, 8, 32) DO(u8, 8, 64) DO(u8, 16, 32) DO(u8, 16, 64) DO(16, 8, 32) DO(16, 8, 64) DO(16, 16, 32) DO(16, 16, 64)

EACH_WIDTH(CHECK_DOTS)
EACH_WIDTH(CHECK_COLUMNS)
EACH_WIDTH(CHECK_DEPTHWISE)
CHECK_WINDOW_SUM(8, 32)
CHECK_WINDOW_SUM(8, 64)
CHECK_WINDOW_SUM(u8, 32)
CHECK_WINDOW_SUM(u8, 64)
CHECK_WINDOW_SUM(16, 32)
CHECK_WINDOW_SUM(16, 64)
CHECK_WINDOW_MAX(8)
CHECK_WINDOW_MAX(u8)
CHECK_WINDOW_MAX(16)

#define RUN_EACH(X, W, S)                                                                                                     \
    check_dots_##X##_##W##_##S();                                                                                             \
    check_columns_##X##_##W##_##S();                                                                                          \
    check_depthwise_##X##_##W##_##S();

int main(void)
{
    fill_bias();
    EACH_WIDTH(RUN_EACH)
#if defined(LINGER_X86)
    check_panel_8();
    check_panel_u8();
#endif
    check_window_sum_8_32();
    check_window_sum_8_64();
    check_window_sum_u8_32();
    check_window_sum_u8_64();
    check_window_sum_16_32();
    check_window_sum_16_64();
    check_window_max_8();
    check_window_max_u8();
    check_window_max_16();
    (void)printf("%d cases each, LINGER_PIXELS %d, %s: %d differ\n", CASES, LINGER_PIXELS, LINGER_VARIANT, failures);
    return (failures == 0) ? 0 : 1;
}
