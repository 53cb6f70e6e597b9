"""Steps in time, in all kernels: order, lengths, ends, products, tables; every opset's ONNX Runtime against numpy by hand."""

import numpy as np
import pytest

from tests.support.onnx_body import assert_kernels_give

pytestmark = pytest.mark.needs_torch

LENGTHS = np.array([2, 4, 1], np.int64)
X = np.arange(4 * 3 * 2, dtype=np.int8).reshape(4, 3, 2)  # time first


def turned(x):
    """Each sequence reversed inside its length, by loops."""
    out = x.copy()
    for b, n in enumerate(LENGTHS):
        for t in range(n):
            out[t, b] = x[n - 1 - t, b]
    return out


def masked(x):
    out = x.copy()
    for b, n in enumerate(LENGTHS):
        out[n:, b] = 0
    return out


@pytest.mark.parametrize("batch_first", [0, 1])
@pytest.mark.parametrize("go_forward", [0, 1])
def test_order_with_and_without_lengths(batch_first, go_forward):
    given = X.swapaxes(0, 1).copy() if batch_first else X
    settings = {"batch_first": batch_first, "go_forward": go_forward}
    steps = X if go_forward else turned(X)
    assert_kernels_give(lambda k, x, n: k.to_steps(x, n, **settings), [given, LENGTHS], steps)
    back = masked(X).swapaxes(0, 1).copy() if batch_first else masked(X)
    assert_kernels_give(lambda k, y, n: k.from_steps(y, n, **settings), [steps, LENGTHS], back)
    plain = X if go_forward else X[::-1].copy()
    assert_kernels_give(lambda k, x: k.to_steps(x, None, **settings), [given], plain)
    assert_kernels_give(lambda k, y: k.from_steps(y, None, **settings), [plain], given)


def test_states_at_the_ends():
    expected = np.stack([X[n - 1, b] for b, n in enumerate(LENGTHS)])
    assert_kernels_give(lambda k, y, n: k.at_end(y, n), [X, LENGTHS], expected)


def test_rounded_product_by_hand():
    # (3·2 + 5·(−1) + 1)·¼ + ½ = 1, floor 1; (3·1 + 5·1 − 2)·¼ + ½ = 2
    x, w, b = np.array([[3, 5]], np.int8), np.array([[2, -1], [1, 1]], np.int8), np.array([1, -2], np.int32)
    for axes in (2, 3):
        given = x if axes == 2 else x[None]

        def body(k, x, w, b, axes=axes):
            return k.store(k.rounded_product(w, b, k.scalar(0.25), axes=axes)(k.narrow(x)), 8)

        expected = np.array([[1, 2]], np.int8)
        assert_kernels_give(body, [given, w, b], expected if axes == 2 else expected[None])


def test_entries_of_a_table():
    values = [v % 100 - 50 for v in range(300)]
    index = np.array([[0, 7, 99], [200, 299, 1]], np.int16)

    def body(k, x):
        row = k.split(k.narrow(x), 2, 0)[0]
        return k.store(k.entries(k.table(values), k.squeeze_first(row))(k.narrow(x)), 8)

    assert_kernels_give(body, [index], np.array(values, np.int8)[index], element_bits=16)


def test_scan_of_two_states():
    # a' = a + x, b' = b + a' ; from zeros: partial sums and their sums
    def body(k, x, w):
        steps = k.narrow(x)
        zero = k.zero_state(steps, w)

        def step(states, item):
            a = k.add(states[0], item)
            return a, k.add(states[1], a)

        (a, b), (stack,) = k.scan(step, (zero, zero), steps, stacked=1)
        return k.store(k.concat([stack, k.unsqueeze_first(a), k.unsqueeze_first(b)], 0), 16)

    sums = np.cumsum(X.astype(np.int16), axis=0)
    expected = np.concatenate([sums, sums[-1:], sums.sum(axis=0, keepdims=True)]).astype(np.int16)
    assert_kernels_give(body, [X, np.zeros((5, 2), np.int8)], expected)
