"""Adaptive pools to any size, and pools of signals: ordinary pools over slices, joined."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init
from tests.support.functions import MOST_POOLS, pool_adaptively
from tests.support.quantization import unwrap
from tests.support.wired import Wired, image, quantize


def plainly(func, arguments):
    return func(*arguments)


@pytest.mark.parametrize("size", [1, 2, 3, 4, (5, 6), (None, 4), (7, 9), (10, 3)], ids=str)
@pytest.mark.parametrize("func", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d], ids=["average", "largest"])
def test_slices_give_the_same_numbers(func, size):
    x = torch.randint(-128, 128, (2, 3, 7, 9)).double()
    found = pool_adaptively(func, x, size, plainly)
    torch.testing.assert_close(found, func(x, size), rtol=1e-12, atol=1e-12)  # float64, of numbers below 2^7


def test_a_size_that_divides_is_one_pool():
    calls = []
    pool_adaptively(F.adaptive_avg_pool2d, torch.zeros(1, 1, 8, 12), (4, 3), lambda *call: calls.append(call))
    ((pool, (_, kernel, strides)),) = calls
    assert (pool, kernel, strides) == (F.avg_pool2d, (2, 4), (2, 4))


def test_too_many_slices_have_no_such_form():
    x, pools = torch.zeros(1, 1, 30, 30), []

    def counted(func, arguments):
        pools.append(func) if func is F.avg_pool2d else None
        return func(*arguments)

    assert pool_adaptively(F.adaptive_avg_pool2d, x, (19, 15), counted).shape[-2:] == (19, 15)
    assert 1 < len(pools) <= MOST_POOLS
    assert pool_adaptively(F.adaptive_avg_pool2d, x, 19, plainly) is None
    assert pool_adaptively(F.adaptive_avg_pool2d, x[0], 3, plainly) is None
    assert pool_adaptively(F.adaptive_avg_pool2d, x, 0, plainly) is None


def integers_of_windows(q, rows, columns):
    """⌊Σ/k + ½⌋ of every window; the areas here, 3 and 4, have no tie that the device's reciprocal moves."""
    height, width = q.shape[-2:]
    made = np.empty((*q.shape[:-2], rows, columns), np.int64)
    for i in range(rows):
        for j in range(columns):
            window = q[
                ...,
                i * height // rows : -(-(i + 1) * height // rows),
                j * width // columns : -(-(j + 1) * width // columns),
            ]
            area = window.shape[-1] * window.shape[-2]
            made[..., i, j] = (2 * window.sum((-2, -1)) + area) // (2 * area)
    return made


@pytest.mark.parametrize(("size", "pools"), [((3, 3), 1), ((2, 6), 1), (4, 4), (5, 1), ((4, 3), 2)], ids=str)
@pytest.mark.parametrize("is_layer", [True, False], ids=["layer", "function"])
@pytest.mark.thin
def test_averages_are_those_of_the_windows(size, pools, is_layer, tmp_path):
    x = image(3)
    pool = nn.AdaptiveAvgPool2d(size)
    if is_layer:
        model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), pool), x)
    else:
        model = quantize(Wired(lambda m, x: F.adaptive_avg_pool2d(m.conv(x), size)), x)
    conv = model[0] if is_layer else model.conv
    with torch.no_grad():
        found, h = model(x), conv(x)
    assert isinstance(found, QTensor)
    assert found.scale == h.scale
    rows, columns = size if isinstance(size, tuple) else (size, size)
    expected = integers_of_windows(h.integers().numpy().astype(np.int64), rows, columns)
    np.testing.assert_array_equal(found.integers().numpy(), expected)
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": {0: "n"}})
    result = linger.verify(model, tmp_path / "net.onnx", [x, 2 * x, x[:1]])
    assert result.ok
    assert result.differing == 0
    names = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert names.count("AvgPool2dInt") == pools


def test_a_layer_quantizes_a_float_input_first(tmp_path):
    x = image(3)
    model = quantize(nn.Sequential(nn.AdaptiveAvgPool2d(4)), x)
    assert next(op.op for op in linger.coverage(model).ops) == "Quant"
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", [x]).ok


def test_ranges_are_kept_in_the_checkpoint():
    x = image(3)
    make = lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(4))  # noqa: E731
    model, other = quantize(make(), x), init(make()).eval()
    other.load_state_dict(model.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(model(x).integers(), other(x).integers())


SIGNALS = {
    "AvgPool1d": (nn.AvgPool1d(2), "AvgPool2dInt"),
    "AvgPool1d, padded": (nn.AvgPool1d(3, 2, 1), "AvgPool2dInt"),
    "MaxPool1d": (nn.MaxPool1d(3, 2, padding=1), "MaxPool"),
    "MaxPool1d, dilated": (nn.MaxPool1d(2, 1, dilation=2), "MaxPool"),
    "MaxPool1d, ceil": (nn.MaxPool1d(3, 2, ceil_mode=True), "MaxPool"),
    "AdaptiveAvgPool1d": (nn.AdaptiveAvgPool1d(4), "AvgPool2dInt"),
    "AdaptiveAvgPool1d, uneven": (nn.AdaptiveAvgPool1d(5), "AvgPool2dInt"),
    "AdaptiveMaxPool1d": (nn.AdaptiveMaxPool1d(5), "MaxPool"),
}


@pytest.mark.parametrize(("pool", "op"), SIGNALS.values(), ids=SIGNALS.keys())
@pytest.mark.thin
def test_pools_of_signals(pool, op, tmp_path):
    torch.manual_seed(3)
    x = torch.randn(2, 3, 14)
    model = quantize(nn.Sequential(nn.Conv1d(3, 4, 3), pool), x)
    with torch.no_grad():
        found, h = model(x), model[0](x)
        real = pool(unwrap(h))
    assert isinstance(found, QTensor)
    assert found.content.shape == real.shape
    assert (unwrap(found) - real).abs().max() <= (0.5 / found.scale + 1e-6 if op == "AvgPool2dInt" else 0.0)
    assert not linger.coverage(model).float_ops
    assert op in [record.op for record in linger.coverage(model).integer_ops]
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", opset_version=12)
    assert linger.verify(model, tmp_path / "net.onnx", [x, 3 * x]).ok


@pytest.mark.parametrize("size", [2, 4])
def test_largest_of_adaptive_windows(size, tmp_path):
    x = image(3)
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveMaxPool2d(size)), x)
    with torch.no_grad():
        found, h = model(x), model[0](x)
    assert torch.equal(unwrap(found), F.adaptive_max_pool2d(unwrap(h), size))
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", [x]).ok


@pytest.mark.parametrize(
    "func", [F.adaptive_max_pool2d, F.max_pool1d, F.adaptive_max_pool1d], ids=["2d", "1d", "1d, adaptive"]
)
def test_positions_of_the_largest_stay_float(func):
    def call(m, x):
        h = m.conv(x)
        return func(h if func is F.adaptive_max_pool2d else h.flatten(2), 2, return_indices=True)[0]

    model = quantize(Wired(call), image())
    assert linger.coverage(model).float_ops


def test_gradient_reaches_the_layer_below():
    x = image(3)
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(4)), x).train()
    unwrap(model(x)).sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()
    assert model[0].weight.grad.abs().max() > 0
