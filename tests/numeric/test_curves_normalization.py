"""Normalized lines of integers, held against Python's integers; the table against its description."""

import numpy as np
import pytest

from tests.support.arithmetic import NumpyKernel, curves
from tests.support.integer_norm import normalized_line, root_entry, times_inverse_root
from tests.support.onnx_body import assert_kernels_give

pytestmark = pytest.mark.needs_torch


def body(scale, eps=1e-5):
    return lambda k, x: curves.normalize(k, k.wide(x), source=k.scalar(scale), eps=eps)


def expected_lines(x, scale, eps=1e-5):
    return np.array([normalized_line(line, scale, eps) for line in x.tolist()], np.float64)[None]


def test_table_is_the_published_formula():
    assert [root_entry(t) for t in range(256, 1024)] == list(curves.ROOTS)
    assert curves.ROOTS[:2] == (32767, 32704)  # ⌊32768·√(256/257)⌋ = ⌊32704.19⌋
    assert curves.ROOTS[-1] == 16392  # ⌊32768·√(256/1023)⌋ = ⌊16392.01⌋


def test_by_hand():
    # (1, 3): N = 2, S1 = 4, S2 = 10, D = 20 − 16 = 4; the distances are 2·1 − 4 = −2 and 2·3 − 4 = 2
    # 4 is in pair 1: t = 4·2^6 = 256, the entry 32767, ±2·32767·2^(10−15−1) = ±1023.97 → ±1024
    # (0, 0): D = 0, every distance 0
    x = np.array([[1, 3], [0, 0]], np.int8)
    assert_kernels_give(body(1.0), [x], np.array([[[-1024, 1024], [0, 0]]], np.float64))


def test_eps_by_hand():
    # (1, 3) at scale 2^9: eps·2^18·4 = 10.49 → 10, D = 14, pair 1: t = 14·2^6 = 896, ⌊32768·√(256/896)⌋ = 17515
    # 2·17515/64 = 547.3 → 547, and −547
    x = np.array([[1, 3]], np.int8)
    assert root_entry(896) == 17515
    assert_kernels_give(body(512.0), [x], np.array([[[-547, 547]]], np.float64))


@pytest.mark.parametrize("eps", [1e-5, 0.0, 1e-3, 2.0], ids=str)
@pytest.mark.parametrize("scale", [1.0, 2.0**-3, 16.0, 2.0**12, 2.0**24], ids=str)
def test_lines_of_eight_bits(scale, eps, draw):
    wide, narrow = draw.integers(-128, 128, (6, 24)), draw.integers(5, 8, (6, 24))
    x = np.concatenate([wide, narrow, np.full((1, 24), -128), np.eye(1, 24, dtype=np.int64) * 127]).astype(np.int8)
    assert_kernels_give(body(scale, eps), [x], expected_lines(x, scale, eps), opsets=(11, 18))


@pytest.mark.parametrize("count", [1, 2, 3, 100, 2048])
def test_lines_of_sixteen_bits(count, draw):
    x = draw.integers(-(2**15), 2**15, (3, count)).astype(np.int16)
    x[1], x[2] = -(2**15), np.where(np.arange(count) % 2, 2**15 - 1, -(2**15))
    assert_kernels_give(body(2048.0), [x], expected_lines(x, 2048.0), element_bits=16, opsets=(12,))


def test_one_number_far_from_many_saturates():
    # √(N − 1) = 45.2 at N = 2048, and 16 bits in Q10 end at 32
    x = np.zeros((2, 2048), np.int8)
    x[0, 7], x[1, 9] = 127, -128
    found = expected_lines(x, 16.0)
    assert (found.max(), found.min()) == (32767, -32768)
    assert_kernels_give(body(16.0), [x], found, opsets=(12,))


@pytest.mark.parametrize("exponent", range(0, 53, 4))
def test_root_at_the_edges_of_the_pairs(exponent):
    for d in (2**exponent - 1, 2**exponent, 2**exponent + 1, 3 * 2**exponent // 2, 2 ** (exponent + 1) - 1):
        k = NumpyKernel()
        root, shift = curves.inverse_root(k, np.array([[float(d)]]))
        found = np.floor(root * shift * 12345.0 + 0.5)
        if d:
            assert np.clip(found.item(), -32768, 32767) == times_inverse_root(12345, d)


def test_result_is_near_the_real_one(draw):
    x = draw.integers(-128, 128, (50, 64)).astype(np.int8)
    found = curves.normalize(NumpyKernel(), x.astype(np.float64), source=np.float64(16.0), eps=1e-5)[0] / 1024
    real = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    # t keeps at least 8 bits and a half of D, so 1/√D is at most 2^-9 off, and rounding adds half a step
    assert np.abs(found - real).max() < np.abs(real).max() * 2**-9 + 2**-11 + 2**-12


def test_bound_of_exact_sums():
    assert curves.is_exact(94906265 >> 7, 8)  # ⌊√(2^53)⌋/2^7
    assert not curves.is_exact((94906266 >> 7) + 1, 8)
    assert curves.is_exact(2896, 16)
    assert not curves.is_exact(2897, 16)
