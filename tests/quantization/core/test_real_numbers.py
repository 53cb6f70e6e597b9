"""A quantized model that computes in real numbers: its own float reference, and the passes of calibration."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.quantization import real_copy


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.prelu, self.gelu = nn.PReLU(4), nn.GELU()
        self.pool, self.head = nn.AvgPool2d(3), nn.Linear(8, 5)

    def forward(self, x):
        h = F.relu6(self.bn(self.conv(x)))
        h = F.leaky_relu(self.inner(h), 0.1) + h
        h = self.gelu(self.prelu(self.up(F.max_pool2d(h, 2))))
        h = torch.cat([self.pool(h), torch.tanh(F.hardswish(F.avg_pool2d(h, 3)))], 1)
        h = F.interpolate(F.pad(h, (1, 1), value=0.3), scale_factor=1.5, mode="bilinear")
        return torch.softmax(self.head(h.mean((2, 3)) * 0.37), 1)


class Sequence(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.inner = nn.Conv1d(6, 6, 3, padding=1)
        self.cell = kind(6, 7, batch_first=True, **settings)

    def forward(self, x):
        out, last = self.cell(torch.sigmoid(self.inner(x)).transpose(1, 2))
        return out, *(last if isinstance(last, tuple) else (last,))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.place = nn.Embedding(11, 8), nn.Parameter(torch.randn(6, 8))
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, tokens):
        h = self.table(tokens) + self.place
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        h = self.norm(h + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0])
        return self.norm(h + self.narrow(F.silu(self.wide(h)) / 3.0))


IMAGE = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
SIGNAL = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(2))
MODELS = {
    "images": (Residual, IMAGE),
    "lstm": (lambda: Sequence(nn.LSTM, num_layers=2, bidirectional=True), SIGNAL),
    "gru": (lambda: Sequence(nn.GRU, bias=False), SIGNAL),
    "attention": (Attention, torch.arange(12).reshape(2, 6) % 11),
}


def float_model(kind):
    torch.manual_seed(3)
    make, x = MODELS[kind]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model.eval(), x


def tensors(outputs):
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(t.dequantize() if hasattr(t, "dequantize") else t).detach() for t in found]


def assert_equal_within_rounding(found, expected):
    # the same sums in another order: each of some 40 operations in a row adds a relative error of about √n·2^-24, n ≤ 100
    # terms, to numbers that are themselves of the size of the largest one
    for a, b in zip(tensors(found), tensors(expected), strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 40 * math.sqrt(100) * 2.0**-24 * b.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("is_calibrated", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", MODELS)
def test_real_copy_is_the_float_model(kind, is_calibrated):
    model, x = float_model(kind)
    with torch.no_grad():
        expected = model(x)
    quantized = linger.init(copy.deepcopy(model)).eval()
    if is_calibrated:
        with linger.calibration():
            quantized(x)
    reference = real_copy(quantized)
    state = {key: value.clone() for key, value in reference.state_dict().items()}
    with torch.no_grad():
        assert_equal_within_rounding(reference(x), expected)
    after = reference.state_dict()
    assert list(after) == list(state)
    # what follows from weights alone may be written by any pass
    assert all(torch.equal(after[key], value) for key, value in state.items() if not key.endswith(("_w", "_o")))
    assert [path for path, _ in reference.named_modules()] == [path for path, _ in quantized.named_modules()]


@pytest.mark.parametrize("kind", MODELS)
def test_calibration_computes_what_the_float_model_does(kind):
    model, x = float_model(kind)
    with torch.no_grad():
        expected = model(x)
    quantized = linger.init(copy.deepcopy(model)).eval()
    with linger.calibration():
        assert_equal_within_rounding(quantized(x), expected)


@pytest.mark.parametrize("kind", ["images", "lstm", "gru"])
def test_order_of_batches_does_not_matter(kind):
    torch.manual_seed(5)
    batches = [torch.randn_like(MODELS[kind][1]) * size for size in (1.0, 0.2, 3.0, 0.6)]
    states = []
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        quantized = linger.init(float_model(kind)[0]).eval()
        with linger.calibration():
            for k in order:
                quantized(batches[k])
        states.append(quantized.state_dict())
    assert all(torch.equal(value, other[key]) for other in states[1:] for key, value in states[0].items())


class Rectified(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        h = linger.quant_tensor(self, x)
        part = h[:, :1]
        h.relu_()
        return self.head(h) + part


def test_function_in_place_writes_into_the_views_and_not_into_the_input():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    kept, model = x.clone(), Rectified()
    expected = model(x.clone()).detach()
    model = linger.init(model)
    with linger.calibration():
        assert_equal_within_rounding(model(x), expected)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("function", [F.gelu, F.silu])
def test_range_of_a_function_ends_with_the_devices_format(function):
    class Net(nn.Module):
        def forward(self, x):
            return function(linger.quant_tensor(self, x))

    x = torch.linspace(-30.0, 30.0, 61)
    model, reference = linger.init(Net()), function(x)
    with pytest.warns(UserWarning, match="the device's format ends at ±16"), linger.calibration():
        assert torch.equal(model(x).dequantize(), reference)
    (key,) = [key for key in model.state_dict() if key.endswith("running_o")]
    assert model.state_dict()[key].item() == 16.0


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.other = nn.Linear(4, 4), nn.Parameter(torch.linspace(0.1, 0.7, 4))

    def forward(self, x):
        h = self.inner(x)
        h = torch.where(h > 0.1, h, self.other)
        return h.masked_fill(h > 0.6, 0.123) / (h - h + 3.0)


def test_choices_and_constants_are_not_rounded():
    torch.manual_seed(1)
    model, x = Chosen(), torch.randn(8, 4, generator=torch.Generator().manual_seed(4))
    expected = model(x).detach()
    model = linger.init(model).eval()
    with linger.calibration():
        assert_equal_within_rounding(model(x), expected)
    assert_equal_within_rounding(real_copy(model)(x), expected)


def test_float_model_is_refused():
    with pytest.raises(UsageError, match="Linear is not quantized"):
        real_copy(nn.Linear(2, 2))


def test_gradients_are_those_of_the_float_model():
    model, x = float_model("images")
    reference = real_copy(linger.init(copy.deepcopy(model)))
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(first).square().sum().backward()
    reference(second).dequantize().square().sum().backward()
    assert torch.allclose(first.grad, second.grad, rtol=1e-3, atol=1e-6)
