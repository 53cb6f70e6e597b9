"""The C functions that add integers, each variant against numpy, beyond walls, under sanitizers and on emulated cores."""

import numpy as np
import pytest

from tests.support.c_compiler import SANITIZERS
from tests.support.integer_functions import (
    BOARDS,
    VARIANTS,
    WIDTHS,
    Library,
    board_check,
    c_type,
    headers_with_fault,
    host_check,
    require_variant,
)

CASES = 15
IDS = [f"{x}-{w}-{s}" for x, w, s in WIDTHS]


@pytest.fixture(scope="module", params=list(VARIANTS))
def library(request, tmp_path_factory):
    variant = require_variant(request.param)
    return Library(tmp_path_factory.mktemp(request.param), variant.options)


def most(bits: int | str, other: int | str, total: int) -> int:
    """The magnitude below which 600 products of 16-bit numbers fit 32 bits; else the type's own."""
    return 128 if bits in (8, "u8") else 32768 if total == 64 else 1500 if other == 16 else 12000


def numbers(rng, count: int, bits: int | str, limit: int) -> np.ndarray:
    """Random numbers, or only the smallest (of unsigned ones the largest), or only extremes."""
    kind = rng.integers(4)
    if bits == "u8":
        return (limit - 1 - numbers(rng, count, 16, limit)).astype(np.uint8)
    if kind == 0:
        return np.full(count, -limit, f"int{bits}")
    if kind == 1:
        return rng.choice([-limit, limit - 1], count).astype(f"int{bits}")
    return rng.integers(-limit, limit, count).astype(f"int{bits}")


def size(rng, high: int) -> int:
    return int(rng.integers(high + 1) if rng.integers(2) else rng.integers(min(high, 17) + 1))


def some_bias(rng, count: int) -> np.ndarray | None:
    return None if rng.integers(2) else rng.integers(-(10**6), 10**6, count).astype(np.int32)


def windows(array: np.ndarray, *axes: tuple[int, int]) -> np.ndarray:
    """The elements that nested loops visit; each axis is (how often, by how many elements)."""
    index = np.zeros((1,) * len(axes), np.int64)
    for number, (count, step) in enumerate(axes):
        index = index + (np.arange(count) * step).reshape([-1 if k == number else 1 for k in range(len(axes))])
    return array[index].astype(np.int64)


def reach(*axes: tuple[int, int]) -> int:
    """How many elements such loops span: an array of this size ends with the last one."""
    return 0 if any(count == 0 for count, _ in axes) else 1 + sum((count - 1) * step for count, step in axes)


@pytest.mark.parametrize(("x_bits", "w_bits", "s_bits"), WIDTHS, ids=IDS)
@pytest.mark.thin(every=2)
def test_dots_are_sums_of_products(library, x_bits, w_bits, s_bits):
    rng = np.random.default_rng(np.dtype(c_type(x_bits)[:-2]).itemsize * 8 * w_bits + s_bits)
    for _ in range(CASES):
        pixels, outputs, runs = int(rng.integers(1, library.pixels + 1)), int(rng.integers(1, 20)), int(rng.integers(5))
        length, x_pixel, x_step = size(rng, 150), int(rng.integers(90)), int(rng.integers(200))
        w_step = length + int(rng.integers(2) * rng.integers(4)) if rng.integers(2) else int(rng.integers(200))
        w_output = runs * w_step if rng.integers(2) else int(rng.integers(200))
        x_axes = ((pixels, x_pixel), (1, 0), (runs, x_step), (length, 1))
        w_axes = ((1, 0), (outputs, w_output), (runs, w_step), (length, 1))
        x = numbers(rng, reach(*x_axes), x_bits, most(x_bits, w_bits, s_bits))
        w = numbers(rng, reach(*w_axes), w_bits, most(w_bits, x_bits, s_bits))
        bias = some_bias(rng, outputs)
        wanted = (windows(x, *x_axes) * windows(w, *w_axes)).sum((2, 3)) + (0 if bias is None else bias)
        sizes = (x_pixel, runs, x_step, length)
        given = library.call(
            f"linger_dots_{x_bits}_{w_bits}_{s_bits}",
            np.full((pixels, outputs), 77, f"int{s_bits}"),
            *(pixels, outputs, x, *sizes, w, w_output, w_step, bias),
        )
        assert np.array_equal(given, wanted), (pixels, outputs, sizes, w_output, w_step)


def window_sums(x, w, bias, *, strides, pads, dilations):
    """The sums of a convolution of x [height, width, channels] with w [outputs, rows, columns, channels], pixel by pixel."""
    height, width, _ = x.shape
    padded = np.pad(x.astype(np.int64), [(pads[0], pads[0]), (pads[1], pads[1]), (0, 0)])
    down, along = ((n - 1) * d + 1 for n, d in zip(w.shape[1:3], dilations, strict=True))
    made = [
        (padded[r : r + down : dilations[0], c : c + along : dilations[1]] * w).sum((1, 2, 3))
        for r in range(0, height + 2 * pads[0] - down + 1, strides[0])
        for c in range(0, width + 2 * pads[1] - along + 1, strides[1])
    ]
    columns = (width + 2 * pads[1] - along) // strides[1] + 1
    return np.array(made).reshape(-1, w.shape[0]) + (0 if bias is None else bias), columns


@pytest.mark.parametrize("x_bits", [8, "u8"])
def test_panels_are_sums_over_windows(library, x_bits):
    if not library.variant.startswith("AVX"):
        pytest.skip("panels are for x86")
    rng = np.random.default_rng(3)
    for _ in range(4 * CASES):
        strides, pads, dilations = (rng.integers(low, 3, 2) for low in (1, 0, 1))
        kernel, more = rng.integers(1, 4, 2), int(rng.integers(2) * rng.integers(5))
        inside, outputs = 1 + size(rng, 80), int(rng.integers(1, 65))
        height, width = (kernel - 1) * dilations + 1 + rng.integers(9, size=2)
        joined = dilations[1] == 1 and more == 0
        column = inside + more  # channels of x that no window reads, as other groups have them
        steps = [width * column, column]
        x = numbers(rng, reach((height, steps[0]), (width, column), (inside, 1)), x_bits, 128)
        w = numbers(rng, outputs * inside * int(kernel.prod()), 8, 128).reshape(outputs, *kernel, inside)
        image = windows(x, (height, steps[0]), (width, column), (inside, 1))
        bias = some_bias(rng, outputs)
        wanted, columns = window_sums(image, w, bias, strides=strides, pads=pads, dilations=dilations)
        runs = (kernel[0], 1, kernel[1]) if joined else (*kernel, 1)
        sizes = np.array([columns, height, width, *steps, *strides, *pads, *dilations, *runs, inside], np.int32)
        given = library.call(
            f"linger_panel_{x_bits}", np.full(wanted.shape, 77, np.int32), sizes, *wanted.shape, x, w, bias
        )
        assert np.array_equal(given, wanted), sizes


@pytest.mark.parametrize(("x_bits", "w_bits", "s_bits"), WIDTHS, ids=IDS)
def test_columns_are_a_row_of_a_matrix_product(library, x_bits, w_bits, s_bits):
    rng = np.random.default_rng(np.dtype(c_type(x_bits)[:-2]).itemsize * 8 * w_bits + s_bits)
    for _ in range(CASES):
        outputs, length, w_step = size(rng, 140), size(rng, 70), int(rng.integers(150))
        w_axes = ((length, w_step), (outputs, 1))
        x = numbers(rng, length, x_bits, most(x_bits, w_bits, s_bits))
        w = numbers(rng, reach(*w_axes), w_bits, most(w_bits, x_bits, s_bits))
        given = library.call(
            f"linger_columns_{x_bits}_{w_bits}_{s_bits}",
            np.full(outputs, 77, f"int{s_bits}"),
            *(outputs, x, length, w, w_step),
        )
        assert np.array_equal(given, x.astype(np.int64) @ windows(w, *w_axes)), (outputs, length, w_step)


@pytest.mark.parametrize(("x_bits", "w_bits", "s_bits"), WIDTHS, ids=IDS)
@pytest.mark.thin(every=2)
def test_depthwise_sums_each_channel(library, x_bits, w_bits, s_bits):
    rng = np.random.default_rng(np.dtype(c_type(x_bits)[:-2]).itemsize * 8 * w_bits + s_bits)
    for _ in range(CASES):
        pixels, channels = int(rng.integers(1, library.pixels + 1)), size(rng, 140)
        rows, columns = (int(n) for n in rng.integers(6, size=2))
        x_pixel, x_row, x_column, w_row, w_column = (int(n) for n in rng.integers(200, size=5))
        if rng.integers(3) == 0:
            # neighbors with windows of 3 × 3, which some variants treat differently
            pixels, rows, columns, x_pixel = library.pixels, 3, 3, x_column
        x_axes = ((pixels, x_pixel), (rows, x_row), (columns, x_column), (channels, 1))
        w_axes = ((1, 0), (rows, w_row), (columns, w_column), (channels, 1))
        x = numbers(rng, reach(*x_axes), x_bits, most(x_bits, w_bits, s_bits))
        w = numbers(rng, reach(*w_axes), w_bits, most(w_bits, x_bits, s_bits))
        bias = some_bias(rng, channels)
        wanted = (windows(x, *x_axes) * windows(w, *w_axes)).sum((1, 2)) + (0 if bias is None else bias)
        given = library.call(
            f"linger_depthwise_{x_bits}_{w_bits}_{s_bits}",
            np.full((pixels, channels), 77, f"int{s_bits}"),
            *(pixels, channels, x, x_pixel, rows, x_row, columns, x_column, w, w_row, w_column, bias),
        )
        assert np.array_equal(given, wanted), (pixels, channels, rows, columns)


@pytest.mark.parametrize("s_bits", [32, 64])
@pytest.mark.parametrize("x_bits", [8, "u8", 16])
def test_window_sums_of_each_channel(library, x_bits, s_bits):
    rng = np.random.default_rng(s_bits)
    for _ in range(CASES):
        channels, rows, columns = size(rng, 140), size(rng, 20), size(rng, 20)
        x_row, x_column = (int(n) for n in rng.integers(100, size=2))
        axes = ((rows, x_row), (columns, x_column), (channels, 1))
        x = numbers(rng, reach(*axes), x_bits, 128 if x_bits != 16 else 32768)
        given = library.call(
            f"linger_window_sum_{x_bits}_{s_bits}",
            np.full(channels, 77, f"int{s_bits}"),
            *(channels, x, rows, x_row, columns, x_column),
        )
        assert np.array_equal(given, windows(x, *axes).sum((0, 1))), (channels, rows, columns)


@pytest.mark.parametrize("x_bits", [8, "u8", 16])
def test_window_maxima_of_each_channel(library, x_bits):
    rng = np.random.default_rng(8)
    for _ in range(CASES):
        channels, rows, columns = size(rng, 140), 1 + size(rng, 6), 1 + size(rng, 6)
        x_row, x_column = (int(n) for n in rng.integers(100, size=2))
        axes = ((rows, x_row), (columns, x_column), (channels, 1))
        x = numbers(rng, reach(*axes), x_bits, 128 if x_bits != 16 else 32768)
        given = library.call(
            f"linger_window_max_{x_bits}",
            np.full(channels, 77, c_type(x_bits)[:-2]),
            *(channels, x, rows, x_row, columns, x_column),
        )
        assert np.array_equal(given, windows(x, *axes).max((0, 1))), (channels, rows, columns)


def test_a_wide_sum_by_hand(library):
    # (−32768)² · 4 = 2³², one more than 32 bits hold
    x = np.full(4, -32768, np.int16)
    given = library.call("linger_dots_16_16_64", np.zeros(1, np.int64), 1, 1, x, 0, 1, 0, 4, x, 0, 0, None)
    assert given.tolist() == [2**32]


def test_a_large_window_by_hand(library):
    # 17 · 17 · (−128) = −36 992 does not fit 16 bits
    x = np.full((17, 17, 40), -128, np.int8)
    given = library.call("linger_window_sum_8_32", np.zeros(40, np.int32), 40, x, 17, 17 * 40, 17, 40)
    assert given.tolist() == [-36992] * 40


def test_the_compiler_chooses_the_variant(library, request):
    name = request.node.callspec.params["library"]
    assert library.variant == VARIANTS[name].chosen


FAULTS = {
    "generic": {
        "dots": ("linger_dots.h", "sum_11 += (S_T)(", "sum_11 -= (S_T)("),
        "columns": ("linger_columns.h", "sums[o] += (S_T)(x_here", "sums[o] -= (S_T)(x_here"),
        "depthwise": ("linger_depthwise.h", "(S_T)bias[c] :", "(S_T)bias[0] :"),
        "pixels": ("linger_depthwise.h", "&x[p * x_pixel], rows", "&x[0 * x_pixel], rows"),
        "sum": ("linger_pools.h", "sums[c] += (S_T)x_here[c]", "sums[c] |= (S_T)x_here[c]"),
        "max": ("linger_pools.h", "(x_here[c] > largest[c])", "(x_here[c] < largest[c])"),
    },
    "small-core": {
        "columns": ("linger_columns.h", "block[o] +=", "block[o] -="),
        "depthwise": ("linger_depthwise.h", "bias[first + c] :", "bias[first] :"),
        "sum": ("linger_pools.h", "block[c] += (S_T)x_here", "block[c] |= (S_T)x_here"),
        "max": ("linger_pools.h", "(x_here[c] > block[c])", "(x_here[c] < block[c])"),
    },
    "avx2": {
        "panels": ("linger_panels.h", "&to[8], s[(2 * p) + 1]", "&to[8], s[2 * p]"),
        "packed": ("linger_panels.h", "(o % 16) * 2", "(o % 8) * 2"),
        "shifted": (
            "linger_panels.h",
            "? linger_widen_16(from)",
            "? linger_widen_16(&from[1])",
        ),
        "copied": ("linger_panels.h", "(high - 8) : i", "(high - 9) : i"),
        "dots": ("linger_dots.h", "s_03 = _mm256_add_epi32(s_03", "s_03 = _mm256_sub_epi32(s_03"),
        "tail": ("linger_dots.h", "LINGER_TAIL(w_3))", "LINGER_TAIL(w_2))"),
        "columns": ("linger_columns.h", "(low, high, 0x31)", "(low, high, 0x20)"),
        "depthwise": ("linger_depthwise.h", "&x[3 * x_pixel], x_row", "&x[2 * x_pixel], x_row"),
        "three": ("linger_depthwise.h", "&x[4 * x_column]", "&x[3 * x_column]"),
        "lone": ("linger_depthwise.h", "_mm256_and_si256(pairs.b", "_mm256_or_si256(pairs.b"),
        "sum": ("linger_pools.h", "int32_t room = 255;", "int32_t room = 300;"),
        "max": ("linger_pools.h", "_mm_max_epi8", "_mm_max_epu8"),
        "unsigned": (
            "linger_dots.h",
            "(linger_copied)linger_byte(from, i, 1)",
            "(linger_copied)linger_byte(from, i, 0)",
        ),
    },
    "avx512": {
        "panels": (
            "linger_panels.h",
            "linger_few_lanes(outputs - (16 * g))",
            "linger_few_lanes(outputs - (15 * g) - 1)",
        ),
        "packed": ("linger_panels.h", "&w[16 * g * numbers]", "&w[(16 * g * numbers) + 1]"),
        "panel raise": ("linger_panels.h", "_mm512_sub_epi32(start, raised)", "_mm512_add_epi32(start, raised)"),
        "transposed": ("linger_panels.h", "_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD)", "t[i]"),
        "last pixel": ("linger_panels.h", "(p < (pixels - 1)) ?", "(p < (pixels - 2)) ?"),
        "edges": ("linger_panels.h", "(right < windows->width)", "(right <= windows->width)"),
        "dots": ("linger_dots.h", "s_03 = linger_products(s_03", "s_03 = linger_products(s_02"),
        "raise": ("linger_dots.h", "is_unsigned), raise)", "is_unsigned), -raise)"),
        "columns": ("linger_columns.h", "high = _mm512_dpwssd_epi32(high", "high = _mm512_dpwssd_epi32(low"),
        "depthwise": ("linger_depthwise.h", "? lanes : 0U, &w[(rows > 3)", "? lanes : lanes, &w[(rows > 3)"),
        "three": (
            "linger_depthwise.h",
            "linger_add_raise_of_three(&raised, w_2)",
            "linger_add_raise_of_three(&raised, w_1)",
        ),
        "order": ("linger_depthwise.h", "(s.c, s.d, 0x31)", "(s.c, s.d, 0x20)"),
        "unsigned": ("linger_dots.h", "_mm512_dpbusd_epi32(sums, x, w)", "_mm512_dpbusd_epi32(sums, w, x)"),
    },
    "cortex-m4": {
        "dots": ("linger_dots.h", "smlad r8, r12, r7, r8", "smladx r8, r12, r7, r8"),
        "tail": ("linger_dots.h", "mla r8, r10, lr, r8", "mls r8, r10, lr, r8"),
        "one": ("linger_dots.h", "sum_1 += x_here * (int32_t)*w_1++", "sum_1 -= x_here * (int32_t)*w_1++"),
        "short": ("linger_dots.h", "to_1[i] = x_1[i]", "to_1[i] = x_0[i]"),
        "columns": ("linger_columns.h", "(sum_3, x_here, odd)", "(sum_3, x_here, even)"),
        "depthwise": ("linger_depthwise.h", "smlatt lr, r4, r2, lr", "smlabb lr, r4, r2, lr"),
        "lone": ("linger_depthwise.h", "(sum_3, x_odd, w_odd)", "(sum_3, x_odd, w_even)"),
        "unsigned": ("linger_dots.h", 'unsigned_two, "uxtb16"', 'unsigned_two, "sxtb16"'),
        "unsigned tail": ("linger_dots.h", '"uxtb16", "ldrb"', '"uxtb16", "ldrsb"'),
        "unsigned one": ("linger_simd.h", "(four >> 8) & 0x00FF00FFU", "(four >> 8) & 0x007F00FFU"),
        "unsigned depthwise": ("linger_depthwise.h", 'unsigned_two, "uxtb16"', 'unsigned_two, "sxtb16"'),
        "unsigned max": ("linger_pools.h", 'max_u8, uint8_t, "usub8"', 'max_u8, uint8_t, "ssub8"'),
        "max": ("linger_pools.h", 'max_8, int8_t, "ssub8"', 'max_8, int8_t, "usub8"'),
    },
    "cortex-m55": {
        "dots": ("linger_dots.h", "vmladava.s8 r10, q1, q3", "vmladava.u8 r10, q1, q3"),
        "columns": ("linger_columns.h", "vldrbq_s32(&row[12])", "vldrbq_s32(&row[8])"),
        "short": ("linger_dots.h", "vstrb.8 q1, [r0, #48]", "vstrb.8 q0, [r0, #48]"),
        "vector": ("linger_dots.h", "vmladava.s8 r8, q1, q2", "vmladava.s8 r8, q0, q2"),
        "depthwise": ("linger_depthwise.h", "vmovlt.s16 q1, q3", "vmovlb.s16 q1, q3"),
        "unsigned": ("linger_dots.h", 'LINGER_CORRECT("r8", "r12")', 'LINGER_CORRECT("r8", "r6")'),
        "unsigned six": ("linger_dots.h", "sub r12, r6, r3, lsl #7", "sub r12, r6, r1, lsl #7"),
        "unsigned four": ("linger_dots.h", "vmladava.u8 r8, q0, q3", "vmladava.s8 r8, q0, q3"),
        "unsigned vector": ("linger_dots.h", "vaddv.u8 r4, q1", "vaddv.s8 r4, q1"),
        "unsigned odd": ("linger_dots.h", '"lsls r6, r6, #31', '"lsls r6, r6, #30'),
        "raised by 127": ("linger_dots.h", "vmov.i8 q4, #128", "vmov.i8 q4, #127"),
        "sums of x": ("linger_dots.h", "vaddva.u8 r12, q1", "vaddva.u8 r12, q0"),
        "unsigned depthwise": ("linger_depthwise.h", "vldrb.u16 q0", "vldrb.s16 q0"),
        "unsigned rest": ("linger_depthwise.h", "? vreinterpretq_s16_u16(", "? -vreinterpretq_s16_u16("),
        "room": ("linger_depthwise.h", '"mvn r8, #0\\n\\t"\n', '"mov r8, #0\\n\\t"\n'),
        "rest": ("linger_depthwise.h", "vmulltq_int_s16", "vmullbq_int_s16"),
        "sum": ("linger_pools.h", "vaddq_s32", "vsubq_s32"),
        "max": ("linger_pools.h", "vmaxq_##S", "vminq_##S"),
    },
}
# each fault is a compilation: one per instruction set of this machine is enough for every day
PLANTED = [
    pytest.param(
        variant,
        *fault,
        id=f"{variant}-{name}",
        marks=[pytest.mark.slow] if variant in BOARDS or name not in ("dots", "panels") else [],
    )
    for variant, faults in FAULTS.items()
    for name, fault in faults.items()
]


@pytest.mark.parametrize(("variant", "header", "old", "new"), PLANTED)
def test_a_planted_fault_is_caught(variant, header, old, new, tmp_path):
    headers = headers_with_fault(tmp_path, header, old, new)
    if variant in BOARDS:
        done = board_check(tmp_path, variant, headers=headers)
    else:
        done = host_check(tmp_path, (*require_variant(variant).options, "-O0"), headers)
    assert done.returncode == 1
    assert "differ" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_sanitizers_are_silent(name, tmp_path):
    done = host_check(tmp_path, (*require_variant(name).options, "-O1", "-DCASES=300", *SANITIZERS))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-O3",), ("-DLINGER_GENERIC",)], ids=["plain", "O3", "generic"])
@pytest.mark.parametrize("cpu", BOARDS)
def test_emulated_cores_agree(cpu, options, tmp_path):
    done = board_check(tmp_path, cpu, options)
    chosen = "generic" if "-DLINGER_GENERIC" in options else BOARDS[cpu].chosen
    assert done.returncode == 0, done.stdout
    assert f"{chosen}: 0 differ" in done.stdout
