"""Comparisons, fills and choices of quantized tensors: by hand, in torch's own numbers, and in the file."""

import math

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init
from tests.support.functions import COMPARISONS, Refusal, fill, masks_scores
from tests.support.quantization import Runtime, dispatch, runtime_of, unwrap
from tests.support.wired import Wired, after, image, quantize


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pair(function):
    """A calibrated model that returns two quantized tensors of different scales and a function of them."""

    def forward(m, x):
        a, b = m.conv(x), m.conv2(F.relu(m.conv(x)) * 5)
        return a.clone(), b.clone(), function(a, b)

    return quantize(Wired(forward), image())


def proven(model, tmp_path, *inputs, opsets=(11, 12, 18)):
    """The file, with no integer that differs at any of the opsets."""
    path = tmp_path / "model.onnx"
    for opset in opsets:
        linger.onnx.export(model, inputs, path, opset_version=opset)
        assert linger.verify(model, path, [inputs]).ok
    return onnx.load(path).graph


# -- comparisons ----------------------------------------------------------------------------------------------------
NUMBERS = {
    "x > 0": lambda h: h > 0,
    "x >= 0.25": lambda h: h >= 0.25,
    "x < 0.1": lambda h: h < 0.1,
    "x <= -0.3": lambda h: h <= -0.3,
    "x == 0": lambda h: h == 0,
    "x == 0.1": lambda h: h == 0.1,
    "x != 0.5": lambda h: h != 0.5,
    "x != 0.1": lambda h: h != 0.1,
    "0.5 < x": lambda h: h > 0.5,
    "beyond": lambda h: h < 1e9,
    "x > −∞": lambda h: h > -math.inf,
    "torch.gt": lambda h: torch.gt(h, 0.1),
    "greater_equal": lambda h: h.greater_equal(0.1),
    "x.eq": lambda h: h.eq(0),
}


@pytest.mark.parametrize("function", NUMBERS.values(), ids=NUMBERS.keys())
@pytest.mark.thin
def test_comparison_with_a_number_is_one_of_integers(function, tmp_path):
    model = after(lambda h: (h.clone(), torch.where(function(h), h, 0.0)))
    h, result = model(image())
    assert torch.equal(function(h), function(h.dequantize()))
    assert torch.equal(result.dequantize(), torch.where(function(h.dequantize()), h.dequantize(), 0.0))
    assert linger.coverage(model).float_ops == ()
    graph = proven(model, tmp_path, image())
    # real values at the two outputs only
    assert [n.op_type for n in graph.node].count("Dequant") == 2


@pytest.mark.parametrize("value", [0.0, 0.1, -0.1, 6 / 64, -6 / 64, 6.5 / 64, 127 / 64, 2.0, -2.0, -2.1, math.inf])
@pytest.mark.parametrize("kind", ["gt", "ge", "lt", "le", "eq", "ne"])
def test_integers_of_a_file_compare_as_their_values(kind, value):
    integers = torch.arange(-128, 128).to(torch.int8)
    x = QTensor(integers, 64.0, 8, Runtime(dispatch))
    compare = getattr(torch, kind)
    assert torch.equal(compare(x, value), compare(integers.float() / 64, value))


TENSORS = {name: getattr(torch, name) for name in ("gt", "ge", "lt", "le", "eq", "ne")}


@pytest.mark.parametrize("function", TENSORS.values(), ids=TENSORS.keys())
def test_comparison_of_two_scales_is_exact(function, tmp_path):
    model = pair(lambda a, b: torch.where(function(a, b), a, b))
    a, b, result = model(image())
    assert a.scale != b.scale
    assert torch.equal(function(a, b), function(a.dequantize(), b.dequantize()))
    assert linger.coverage(model).float_ops == ()
    graph = proven(model, tmp_path, image(), opsets=(11, 17))
    assert [n.op_type for n in graph.node].count("Dequant") == 3
    chosen = torch.where(function(a.dequantize(), b.dequantize()), a.dequantize(), b.dequantize())
    assert float((result.dequantize() - chosen).detach().abs().max()) <= 0.5 / result.scale


def test_comparison_with_a_float_tensor_is_torchs_own():
    model = after(lambda h: (h.clone(), h > torch.zeros(h.shape)))
    h, result = model(image())
    assert torch.equal(result, h.dequantize() > 0)
    assert not torch.eq(h, math.nan).any()
    assert (torch.zeros(()) < h).equal(h.dequantize() > 0)


def test_every_spelling_of_a_comparison_is_known():
    assert {f.__name__ for f in COMPARISONS} >= {"gt", "greater", "__gt__", "le", "less_equal", "__eq__", "not_equal"}


# -- fills --------------------------------------------------------------------------------------------------------------
def quantized(values, scale, bits=8):
    """A tensor of these integers, inside a running model."""
    model = init(nn.Sequential(nn.Linear(1, 1)))
    runtime = runtime_of(model)
    runtime.enter("", model)
    return QTensor(torch.tensor(values) / scale, scale, bits, runtime)


MASK = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("scale", "bits", "value", "expected"),
    [
        pytest.param(16.0, 8, 0.0, (16.0, 8, 0), id="zero"),
        pytest.param(16.0, 8, 0.1, (16.0, 8, 2), id="0.1·16 = 1.6 → 2"),
        pytest.param(16.0, 8, -8.0, (16.0, 8, -128), id="the lowest"),
        pytest.param(16.0, 8, 7.97, (16.0, 16, 128), id="7.97·16 = 127.52 → 128 needs 16 bits"),
        pytest.param(16.0, 8, -100.0, (16.0, 16, -1600), id="16 bits hold it"),
        pytest.param(16.0, 8, -1e9, (16.0, 16, -32768), id="saturates"),
        pytest.param(16.0, 8, -math.inf, (16.0, 16, -32768), id="minus infinity"),
        pytest.param(2.0**12, 8, -math.inf, (512.0, 16, -32768), id="a fine scale makes room for −64"),
        pytest.param(2.0**12, 8, -5.0, (2.0**12, 16, -20480), id="a fine scale stays for what fits"),
        pytest.param(1024.0, 16, -math.inf, (512.0, 16, -32768), id="16 bits"),
        pytest.param(2.0**20, 32, -math.inf, (2.0**20, 32, -(2**31)), id="32 bits"),
    ],
)
def test_filled_integers_by_hand(scale, bits, value, expected):
    x = quantized([3.0, 5.0], scale, bits)
    result = fill(x, MASK, value)
    assert (result.scale, result.bits, int(result.integers()[0])) == expected
    # what is not masked keeps its value; at a coarser scale it is rounded: 5/2^12 → 5/8 → 1 step of 2^-9
    kept = 5 if result.scale == scale else math.floor(5 * result.scale / scale + 0.5)
    assert int(result.integers()[1]) == kept
    assert result.own_bits == bits


@pytest.mark.parametrize("value", [3000.0, -60.0 * 1000])
def test_what_sixteen_bits_do_not_hold_is_refused_unless_it_masks(value):
    found = fill(quantized([3.0, 5.0], 16.0), MASK, value)
    assert isinstance(found, Refusal) if value > 0 else found.integers()[0] == -32768


FILLS = {
    "masked_fill": lambda h, m: h.masked_fill(m, 0.25),
    "torch.masked_fill": lambda h, m: torch.masked_fill(h, mask=m, value=-1),
    "masked_fill_": lambda h, m: h.masked_fill_(m, 0.0),
    "masked_fill with a tensor": lambda h, m: h.masked_fill(m, torch.tensor(0.5)),
    "where, number second": lambda h, m: torch.where(m, h, 0.25),
    "where, number first": lambda h, m: torch.where(m, 0.25, h),
    "x.where": lambda h, m: h.where(m, torch.tensor(0.0)),
    "times booleans": lambda h, m: h * m,
    "booleans times": lambda h, m: m * h,
    "times booleans in place": lambda h, m: h.mul_(m),
}


@pytest.mark.parametrize("function", FILLS.values(), ids=FILLS.keys())
@pytest.mark.thin
def test_fills_keep_the_scale(function, tmp_path):
    model = Wired(lambda m, x, mask: (lambda h: (h.clone(), function(h, mask)))(m.conv(x)))
    mask = noise(2, 1, 6, 6) > 0
    model = init(model).eval()
    with linger.calibration():
        model(image(), mask)
    h, result = model(image(), mask)
    assert isinstance(result, QTensor)
    assert (result.scale, result.bits) == (h.scale, 8)
    assert torch.equal(result.dequantize(), function(h.dequantize().clone(), mask))
    assert linger.coverage(model).float_ops == ()
    proven(model, tmp_path, image(), mask)


def test_times_a_buffer_of_zeros_and_ones(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)
            self.register_buffer("keep", (noise(6) > 0).float())

        def forward(self, x):
            h = self.fc(x)
            return h.clone(), h * self.keep

    model = quantize(Net(), noise(4, 6))
    h, result = model(noise(4, 6))
    assert torch.equal(result.integers(), h.integers() * model.keep.to(torch.int8))
    proven(model, tmp_path, noise(4, 6))


class Learning(nn.Module):
    """A parameter that holds what a mask could hold, and is none."""

    def __init__(self, use, start):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.use, self.learned = use, nn.Parameter(torch.full((6,), start))

    def forward(self, x):
        h = self.fc(x)
        return h.clone(), self.use(h, self.learned)


LEARNING = {
    "x * ones": (lambda h, p: h * p, 1.0, lambda h: h),
    "x * a view of ones": (lambda h, p: torch.mul(p.view(1, 6), h), 1.0, lambda h: h),
    "x * zeros": (lambda h, p: h * p, 0.0, lambda h: h),
    "x + zeros": (lambda h, p: h + p, 0.0, torch.ones_like),
    "a view of zeros + x": (lambda h, p: p[None] + h, 0.0, torch.ones_like),
}


@pytest.mark.parametrize(("use", "start", "slope"), LEARNING.values(), ids=LEARNING)
def test_a_parameter_is_never_a_mask(use, start, slope, tmp_path):
    """It learns as that of the float model: d(h·p)/dp = h and d(h + p)/dp = 1, here without rounding in the sums."""
    model = init(Learning(use, start)).train()
    h, result = model(noise(4, 6))
    signs = torch.sign(noise(4, 6, seed=5))
    (result * signs).sum().backward()
    assert torch.equal(model.learned.grad, (slope(h.content.detach()) * signs).sum(0))
    names = {row.op for row in linger.coverage(model).table()}
    assert {"iqMul", "iqAdd"} & names
    assert "iqWhere" not in names
    keys = list(model.state_dict())
    # one rule: neither evaluation nor freezing makes a mask of it
    model.eval().requires_grad_(False)
    with torch.no_grad():
        model(noise(4, 6))
    assert list(model.state_dict()) == keys
    proven(model, tmp_path, noise(4, 6))


FILLED = {
    "masked_fill": lambda h, p: h.masked_fill(h > 0, p),
    "where": lambda h, p: torch.where(h > 0, p, h),
    "where not": lambda h, p: torch.where(h <= 0, h, p.view(1)[0]),
}


@pytest.mark.parametrize("use", FILLED.values(), ids=FILLED)
def test_a_learned_value_that_fills_learns(use, tmp_path):
    """What is filled in counts once for each place: its gradient is the sum of those of the places."""
    model = init(Learning(use, 0.25))
    model.learned = nn.Parameter(torch.tensor(0.25))
    h, result = model.train()(noise(4, 6))
    signs = torch.sign(noise(4, 6, seed=5))
    (result * signs).sum().backward()
    assert model.learned.grad == signs[h.content > 0].sum()
    assert linger.coverage(model).float_ops == ()
    keys = list(model.state_dict())
    with torch.no_grad():
        model.eval()(noise(4, 6))
    assert list(model.state_dict()) == keys
    proven(model, tmp_path, noise(4, 6))


def test_a_learned_summand_of_scores_is_no_mask():
    """A bias of the scores begins with zeros, as a mask that blocks nothing would."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)
            self.bias = nn.Parameter(torch.zeros(5, 5))

        def forward(self, x):
            h = self.fc(x)
            return F.scaled_dot_product_attention(h, h, h, attn_mask=self.bias)

    model = init(Net()).train()
    (model(noise(2, 5, 6)) * noise(2, 5, 6)).sum().backward()
    assert model.bias.grad.abs().min() > 0
    assert linger.coverage(model).float_ops == ()


def test_a_frozen_parameter_that_blocks_scores_is_a_mask():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 5)
            mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -math.inf)
            self.mask = nn.Parameter(mask, requires_grad=False)

        def forward(self, x):
            return torch.softmax(self.fc(x) + self.mask, -1)

    model = quantize(Net(), noise(2, 5, 6))
    assert torch.equal(unwrap(model(noise(2, 5, 6))).triu(1), torch.zeros(2, 5, 5))
    assert linger.coverage(model).float_ops == ()


def test_the_gradient_goes_where_the_number_came_from():
    model = after(lambda h: torch.where(h > 0, h, 0.0)).train()
    x = image()
    h = model.conv(x).dequantize()
    model.zero_grad()
    model(x).sum().backward()
    positive = (h > 0).sum((0, 2, 3)).float()
    assert torch.equal(model.conv.bias.grad, positive)


REFUSED = {
    "masked_fill": lambda h: h.masked_fill(h > 0, math.inf),
    "masked_fill ": lambda h: h.masked_fill(h > 0, 1e9),
    "where": lambda h: torch.where(h > 0, h, math.inf),
}


@pytest.mark.parametrize(("name", "function"), REFUSED.items())
def test_what_has_no_integer_is_computed_in_float_and_said(name, function):
    model = after(lambda h: (h.clone(), function(h)))
    h, result = model(image())
    assert torch.equal(result, function(h.dequantize()))
    assert [o.op for o in linger.coverage(model).float_ops] == [name.strip()]


# -- masked scores ----------------------------------------------------------------------------------------------------
class Scores(nn.Module):
    """softmax of masked scores; `mask(model, scores)` masks them."""

    def __init__(self, mask):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("causal", torch.full((6, 6), -math.inf).triu(1))
        self.register_buffer("finite", torch.full((6, 6), -1e4).triu(1))
        self.mask = mask

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return self.mask(self, scores).softmax(-1)


BLOCKED = torch.ones(6, 6, dtype=torch.bool).triu(1)
MASKINGS = {
    "additive −∞": lambda m, s: s + m.causal,
    "mask first": lambda m, s: m.causal + s,
    "in place": lambda m, s: s.add_(m.causal),
    "additive −10⁴": lambda m, s: s + m.finite,
    "slice of a buffer": lambda m, s: s + m.causal[: s.shape[1], : s.shape[2]],
    "masked_fill": lambda m, s: s.masked_fill(m.causal == -math.inf, -math.inf),
    "computed": lambda m, s: s + torch.zeros(6, 6).masked_fill(BLOCKED, -math.inf),
    "where": lambda m, s: torch.where(BLOCKED, torch.finfo(torch.float32).min, s),
}


@pytest.mark.parametrize("mask", MASKINGS.values(), ids=MASKINGS.keys())
@pytest.mark.thin
def test_masked_probabilities_are_exactly_zero(mask, tmp_path):
    torch.manual_seed(0)
    model = quantize(Scores(mask), noise(3, 6, 8))
    result = model(noise(3, 6, 8))
    assert (result.bits, linger.coverage(model).float_ops) == (8, ())
    assert not result.integers()[:, BLOCKED].any()
    real = Scores(mask)
    real.load_state_dict({k: v for k, v in model.state_dict().items() if k in real.state_dict()})
    # 8 bits of scores up to 4 and of probabilities: steps of 1/32 before, 1/64 after the softmax
    assert float((result.dequantize() - real(noise(3, 6, 8))).detach().abs().max()) < 0.06
    graph = proven(model, tmp_path, noise(3, 6, 8))
    assert [n.op_type for n in graph.node].count("Dequant") == 1


def test_a_fully_masked_row_is_uniform_not_nan():
    model = quantize(Scores(lambda m, s: s.masked_fill(torch.ones(6, 6, dtype=torch.bool), -math.inf)), noise(3, 6, 8))
    result = model(noise(3, 6, 8)).dequantize()
    assert result.unique().numel() == 1
    assert float(result.detach().max()) == pytest.approx(1 / 6, abs=1 / 128)


def test_an_ordinary_float_summand_is_no_mask():
    assert masks_scores(torch.tensor([0.0, -math.inf, -64.0]), is_surely=False)
    assert not masks_scores(torch.tensor([0.0, 0.0]), is_surely=False)
    assert masks_scores(torch.tensor([0.0, 0.0]), is_surely=True)
    assert not masks_scores(torch.tensor([0.0, -63.0]), is_surely=True)
    with pytest.warns(UserWarning, match="Quant saw nothing but zeros"):
        model = after(lambda h: h + torch.zeros(h.shape))
    assert [o.op for o in linger.coverage(model).integer_ops] == ["Quant", "Conv2dInt", "Quant", "iqAdd"]


def test_gradients_of_masked_scores_are_near_those_of_float():
    torch.manual_seed(0)
    real = Scores(MASKINGS["additive −∞"])
    model = Scores(MASKINGS["additive −∞"])
    model.load_state_dict(real.state_dict())
    model = quantize(model, noise(3, 6, 8)).train()
    target = noise(3, 6, 6, seed=9)
    for m in (real, model):
        (m(noise(3, 6, 8)) * target).sum().backward()
    for a, b in ((real.q.weight.grad, model.q.weight.grad), (real.k.weight.grad, model.k.weight.grad)):
        assert torch.isfinite(b).all()
        # rounding to 8 bits leaves a few percent of noise
        assert float((a - b).norm() / a.norm()) < 0.15
