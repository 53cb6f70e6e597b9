"""Where a torch function on quantized tensors goes: integers where linger has an op, correct floats everywhere else."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init
from linger.errors import UsageError
from tests.support.functions import bindings_by_path
from tests.support.quantization import bindings, dispatch
from tests.support.wired import Wired, after, image, quantize


def both(function):
    return after(lambda h: (h.clone(), function(h)))


def pair(function):
    """A calibrated model that returns two quantized tensors of different scales and a function of them."""

    def forward(m, x):
        a, b = m.conv(x), m.conv2(F.relu(m.conv(x)))
        return a.clone(), b.clone(), function(a, b)

    return quantize(Wired(forward), image())


def float_ops(model):
    return [(op.where, op.op) for op in linger.coverage(model).float_ops]


# -- known functions ------------------------------------------------------------------------------------------


def plus_in_place(a, b):
    a += b
    return a


def times_in_place(a, b):
    a *= b
    return a


def minus_in_place(a, b):
    a -= b
    return a


SUMS = {
    "+": lambda a, b: a + b,
    "+=": plus_in_place,
    "add_": lambda a, b: a.add_(b),
    "add": lambda a, b: a.add(b),
    "add by keyword": lambda a, b: a.add(other=b),
    "torch.add": torch.add,
    "torch.add by keyword": lambda a, b: torch.add(input=a, other=b),
    "torch.add, one keyword": lambda a, b: torch.add(a, other=b),
    "torch.add, alpha 1": lambda a, b: torch.add(a, b, alpha=1),
}
PRODUCTS = {
    "*": lambda a, b: a * b,
    "*=": times_in_place,
    "mul_": lambda a, b: a.mul_(b),
    "mul": lambda a, b: a.mul(b),
    "torch.mul": torch.mul,
    "torch.mul by keyword": lambda a, b: torch.mul(input=a, other=b),
    "torch.multiply": torch.multiply,
}
DIFFERENCES = {
    "-": lambda a, b: a - b,
    "-=": minus_in_place,
    "sub_": lambda a, b: a.sub_(b),
    "sub": lambda a, b: a.sub(b),
    "torch.sub": torch.sub,
    "torch.sub by keyword": lambda a, b: torch.sub(input=a, other=b),
    "torch.subtract": torch.subtract,
    "torch.rsub": lambda a, b: torch.rsub(b, a),
    "torch.rsub by keyword": lambda a, b: torch.rsub(b, other=a),
}
MATRICES = {
    "@": lambda a, b: a @ b.transpose(2, 3),
    "torch.matmul": lambda a, b: torch.matmul(a, b.transpose(2, 3)),
    "torch.matmul by keyword": lambda a, b: torch.matmul(input=a, other=b.transpose(2, 3)),
    "matmul": lambda a, b: a.matmul(b.transpose(2, 3)),
}
LARGER = {"torch.maximum": torch.maximum, "maximum": lambda a, b: a.maximum(b), "torch.max": torch.max}
JOINS = {
    "torch.cat": lambda a, b: torch.cat([a, b], 1),
    "torch.cat, tuple": lambda a, b: torch.cat((a, b), dim=1),
    "torch.cat by keyword": lambda a, b: torch.cat(tensors=[a, b], dim=1),
    "torch.cat, axis": lambda a, b: torch.cat([a, b], axis=1),
    "torch.concat": lambda a, b: torch.concat([a, b], 1),
    "torch.concatenate": lambda a, b: torch.concatenate([a, b], axis=1),
}


@pytest.mark.parametrize(
    ("function", "op_name", "exact"),
    [pytest.param(f, "iqAdd", torch.add, id=n) for n, f in SUMS.items()]
    + [pytest.param(f, "iqMul", torch.mul, id=n) for n, f in PRODUCTS.items()]
    + [pytest.param(f, "iqSub", torch.sub, id=n) for n, f in DIFFERENCES.items()]
    + [pytest.param(f, "BmmInt", lambda a, b: a @ b.transpose(2, 3), id=n) for n, f in MATRICES.items()]
    + [pytest.param(f, "iqMax", torch.maximum, id=n) for n, f in LARGER.items()]
    + [pytest.param(f, "iqCat", lambda a, b: torch.cat([a, b], 1), id=n) for n, f in JOINS.items()],
)
def test_every_spelling_is_computed_as_integers(function, op_name, exact):
    model = pair(function)
    a, b, result = model(image())
    assert isinstance(result, QTensor)
    expected = exact(a.dequantize(), b.dequantize())
    # each operand is rounded to the output's scale: half a step for each
    assert float((result.dequantize() - expected).detach().abs().max()) <= 1 / result.scale
    assert torch.equal(result.integers().float() / result.scale, result.dequantize())
    assert float_ops(model) == []
    assert linger.coverage(model).ops[-1].op == op_name


LIMITED = {
    "clamp": (lambda h: h.clamp(-0.25, 0.5), -0.25, 0.5),
    "torch.clamp, one side": (lambda h: torch.clamp(h, max=0.125), -math.inf, 0.125),
    "clip by name": (lambda h: torch.clip(input=h, min=0), 0.0, math.inf),
    "clamp_": (lambda h: h.clamp_(-0.5, 0.5), -0.5, 0.5),
    "crossed bounds": (lambda h: h.clamp(0.5, -0.25), -0.25, -0.25),
    "hardtanh": (lambda h: F.hardtanh(h, -0.5, 0.25), -0.5, 0.25),
}


@pytest.mark.parametrize(("function", "low", "high"), LIMITED.values(), ids=LIMITED.keys())
def test_bounds_are_steps_of_the_tensor(function, low, high):
    model = both(function)
    h, result = model(image())
    assert isinstance(result, QTensor)
    assert result.scale == h.scale
    # these bounds are whole steps, so the result is exact
    assert torch.equal(result.dequantize(), h.dequantize().clamp(low, high))
    assert float_ops(model) == []


SCALARS = {
    "x + 1": (lambda h: h + 1, lambda h: h + 1),
    "1 + x": (lambda h: 1 + h, lambda h: h + 1),
    "x + 0.5": (lambda h: h + 0.5, lambda h: h + 0.5),
    "x * 3": (lambda h: h * 3, lambda h: h * 3),
    "3 * x": (lambda h: 3 * h, lambda h: h * 3),
    "x * 0.25": (lambda h: h * 0.25, lambda h: h * 0.25),
    "x * -1": (lambda h: h * -1, lambda h: -h),
    "x - 0.5": (lambda h: h - 0.5, lambda h: h - 0.5),
    "1 - x": (lambda h: 1 - h, lambda h: 1 - h),
    "-x": (lambda h: -h, lambda h: -h),
    "torch.neg": (torch.neg, lambda h: -h),
    "x / 4": (lambda h: h / 4, lambda h: h / 4),
    "torch.div by -0.5": (lambda h: torch.div(h, -0.5), lambda h: h * -2),
    "x ** 2": (lambda h: h**2, lambda h: h * h),
    "square": (lambda h: h.square(), lambda h: h * h),
    "mean over the image": (lambda h: h.mean((2, 3)), lambda h: h.mean((2, 3))),
    "mean, kept axes": (lambda h: torch.mean(input=h, dim=[-1, -2], keepdim=True), lambda h: h.mean((2, 3), True)),
    "x + 0": (lambda h: h + 0, lambda h: h),
    "x * 0": (lambda h: h * 0, lambda h: h * 0),
    "x + (-2)": (lambda h: h + -2, lambda h: h - 2),
    "add_": (lambda h: h.add_(1.0), lambda h: h + 1),
    "mul_": (lambda h: h.mul_(2.0), lambda h: h * 2),
    "torch.add": (lambda h: torch.add(h, 2), lambda h: h + 2),
}


@pytest.mark.parametrize(("function", "exact"), SCALARS.values(), ids=SCALARS.keys())
def test_numbers_are_constants(function, exact):
    model = both(function)
    h, result = model(image())
    assert isinstance(result, QTensor)
    # these constants are whole steps of their own scales; each operand loses half a step
    assert float((result.dequantize() - exact(h.dequantize())).detach().abs().max()) <= 1 / result.scale
    assert float_ops(model) == []


def test_a_number_that_no_scale_holds_is_rounded():
    # 0.3 at 8 bits is 77/256; nothing is said about it, as for any weight
    _, result = both(lambda h: h * 0 + 0.3)(image())
    assert result.dequantize().unique().tolist() == [pytest.approx(0.3, abs=1 / 256 + 1 / result.scale)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_none_is_computed_in_float(value):
    model = both(lambda h: h + value)
    _, result = model(image())
    assert not isinstance(result, QTensor)
    assert not torch.isfinite(result).any()
    assert float_ops(model) == [("", "add")]


RELUS = {
    "F.relu": F.relu,
    "F.relu in place": lambda h: F.relu(h, inplace=True),
    "F.relu by keyword": lambda h: F.relu(input=h),
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "relu": lambda h: h.relu(),
    "relu_": lambda h: h.relu_(),
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("function", RELUS.values(), ids=RELUS.keys())
def test_every_relu_keeps_the_scale(function, mode):
    model = both(function)
    model.train(mode == "train")
    h, result = model(image())
    assert (result.scale, result.is_nonnegative) == (h.scale, True)
    assert torch.equal(result.integers(), torch.relu(h.integers()))
    assert float_ops(model) == []


KEEPING = {
    "F.relu6": (F.relu6, lambda h, s: h.clamp(0, 6)),
    "F.hardtanh": (F.hardtanh, lambda h, s: h.clamp(-1, 1)),
    "nn.Hardtanh": (nn.Hardtanh(-0.5, 0.5), lambda h, s: h.clamp(-0.5, 0.5)),
    "F.max_pool2d": (lambda h: F.max_pool2d(h, 2), lambda h, s: F.max_pool2d(h, 2)),
    "F.max_pool2d by keyword": (
        lambda h: F.max_pool2d(input=h, kernel_size=3, stride=2, padding=1),
        lambda h, s: F.max_pool2d(h, 3, 2, 1),
    ),
    "nn.MaxPool2d": (nn.MaxPool2d(3, 2, 1), lambda h, s: F.max_pool2d(h, 3, 2, 1)),
    "nn.MaxPool2d, ceil": (nn.MaxPool2d(4, 3, ceil_mode=True), lambda h, s: F.max_pool2d(h, 4, 3, ceil_mode=True)),
    "F.avg_pool2d": (lambda h: F.avg_pool2d(h, 2), lambda h, s: torch.floor(F.avg_pool2d(h, 2) * s + 0.5) / s),
    "F.adaptive_avg_pool2d to its own size": (lambda h: F.adaptive_avg_pool2d(h, 6), lambda h, s: h),
}


@pytest.mark.parametrize(("function", "exact"), KEEPING.values(), ids=KEEPING.keys())
def test_functions_that_keep_the_scale(function, exact):
    model = both(function)
    h, result = model(image())
    assert isinstance(result, QTensor)
    assert (result.scale, result.bits) == (h.scale, h.bits)
    assert torch.equal(result.dequantize(), exact(h.dequantize(), h.scale))
    assert float_ops(model) == []


def test_in_place_functions_return_the_tensor_itself():
    def forward(h):
        same = h
        for change in (lambda t: t.add_(1), lambda t: t.mul_(2), F.relu_, lambda t: F.relu6(t, inplace=True)):
            assert change(same) is h
        same += 1
        assert same is h
        return h

    assert isinstance(after(forward)(image()), QTensor)


def test_in_place_sum_is_seen_under_every_name_of_the_tensor():
    def forward(h):
        alias = h
        h += 1.0
        return alias

    torch.manual_seed(0)
    found = after(forward)(image())
    torch.manual_seed(0)
    assert torch.equal(found.integers(), after(lambda h: h + 1.0)(image()).integers())


def test_in_place_sum_that_would_grow_the_tensor_is_refused():
    def forward(h):
        small = h[:, :1].clone()
        small += h
        return small

    with pytest.raises(UsageError, match=r"in place would change the shape \(2, 1, 6, 6\) to \(2, 4, 6, 6\)"):
        after(forward)


# -- everything else is float, right and visible -----------------------------------------------------------------


def masked(h):
    h[h > 0] = 0
    return h


def celu_in_place(h):
    F.celu(h, 0.5, inplace=True)
    return h


def into_a_float_tensor(h):
    result = torch.zeros(h.shape)
    result[:] = h
    return result


UNKNOWN = {
    "softmax of another type": ("softmax", lambda h: torch.softmax(h, 1, dtype=torch.float64)),
    "sin": ("sin", torch.sin),
    "cos": ("cos", lambda h: h.cos()),
    "sum as float64": ("sum", lambda h: h.sum(dtype=torch.float64)),
    "standard deviation": ("std", lambda h: h.std(1)),
    "variance with another correction": ("var", lambda h: h.var(1, correction=2)),
    "division by zero": ("div", lambda h: (h / 0.0).clamp(-1, 1).nan_to_num()),
    "mean as float64": ("mean", lambda h: h.mean((2, 3), dtype=torch.float64)),
    "cube": ("pow", lambda h: h**3),
    "division that rounds": ("div", lambda h: torch.div(h, 2, rounding_mode="floor")),
    "celu": ("celu", lambda h: F.celu(h, 0.5)),
    "celu in place": ("celu", celu_in_place),
    "nn.CELU in place": ("celu", nn.CELU(0.5, inplace=True)),
    "x[mask] = 0": ("__setitem__", masked),
    "into a float tensor": ("__setitem__", into_a_float_tensor),
    "interpolate": ("interpolate", lambda h: F.interpolate(h, scale_factor=2, mode="bicubic")),
    "alpha": ("add", lambda h: torch.add(h, h, alpha=2)),
    "pool to uneven windows": ("adaptive_avg_pool2d", lambda h: F.adaptive_avg_pool2d(h[0], 4)),
    "overhanging windows": ("avg_pool2d", lambda h: F.avg_pool2d(h, 4, 3, ceil_mode=True)),
    "clamp by a tensor": ("clamp", lambda h: torch.clamp(h, min=torch.zeros(()))),
    "largest along an axis": ("amax", lambda h: h.amax(1)),
    "einsum": ("einsum", lambda h: torch.einsum("nchw,nchw->nc", h, h)),
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("name", "function"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_function_gives_the_right_floats_and_is_reported(name, function, mode):
    model = both(function)
    model.train(mode == "train")
    h, result = model(image())
    expected = function(h.dequantize().clone())
    assert torch.equal(result.dequantize() if isinstance(result, QTensor) else result, expected)
    assert getattr(result, "scale", None) is None
    (record,) = [op for op in linger.coverage(model).float_ops if op.op == name]
    assert record.where == ""
    assert record.reason


def test_the_module_that_called_an_unknown_function_is_named():
    class Gate(nn.Module):
        def forward(self, x):
            return torch.sin(x)

    model = quantize(
        nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Identity(), Gate()), nn.Linear(4, 2)), torch.randn(5, 3)
    )
    assert float_ops(model) == [("1.1", "sin")]
    assert "1.1: sin stays float: linger has no integer form" in str(linger.coverage(model))
    with torch.no_grad():
        assert isinstance(model(torch.randn(5, 3)), QTensor)  # the next layer is quantized again


def test_pooling_with_indices_stays_float():
    model = both(lambda h: F.max_pool2d(h, 2, return_indices=True))
    h, (values, indices) = model(image())
    expected = F.max_pool2d(h.dequantize(), 2, return_indices=True)
    assert torch.equal(values, expected[0])
    assert torch.equal(indices, expected[1])
    assert float_ops(model) == [("", "max_pool2d_with_indices")]


def test_what_gives_no_floats_is_not_reported():
    model = both(lambda h: (h > 0, h.argmax(1), h.shape, h.size(0), h.dtype, h.device, h.is_contiguous(), len(h)))
    h, (positive, largest, *_) = model(image())
    assert torch.equal(positive, h.dequantize() > 0)
    assert torch.equal(largest, h.dequantize().argmax(1))
    assert float_ops(model) == []


def test_a_tensor_overwritten_by_floats_is_quantized_again_by_the_next_layer():
    def forward(m, x):
        h = m.conv(x)
        h[:, 0] = 0.3
        return m.conv2(h)

    model = quantize(Wired(forward), image())
    with torch.no_grad():
        assert isinstance(model(image()), QTensor)
    assert float_ops(model) == [("", "__setitem__")]


def test_a_loss_outside_the_model_is_not_reported():
    model = after(lambda h: h)
    result = model(image())
    before = linger.coverage(model).ops
    loss = F.mse_loss(result, torch.zeros(result.shape)) + (result + result).sum() + torch.cat([result, result]).mean()
    assert type(loss) is torch.Tensor
    assert linger.coverage(model).ops == before
    assert not any(k.startswith("_linger") for k in model.state_dict())
    loss.backward()
    assert model.conv.weight.grad is not None


def test_sums_outside_the_model_are_exact_floats():
    result = after(lambda h: h)(image())
    assert type(result + result) is torch.Tensor
    assert torch.equal(result + result, 2 * result.dequantize())
    assert isinstance(result.reshape(-1), QTensor)


# -- tables ------------------------------------------------------------------------------------------------------


def test_every_bound_function_is_one_of_torch():
    assert len(bindings()) >= 20
    assert all(callable(function) for function in bindings())
    assert {path.split(".")[0] for path in bindings_by_path()} == {"torch"}
    assert bindings()[torch.add][0].name == "iqAdd"


def test_out_argument_stays_float():
    target = torch.zeros(2, 4, 6, 6)
    model = both(lambda h: torch.add(h, h, out=target))
    with torch.no_grad():
        h, result = model(image())
    assert torch.equal(result, 2 * h.dequantize())
    assert torch.equal(target, result)
    assert len(float_ops(model)) == 1


def test_functions_of_two_models_meet_outside():
    first, second = after(lambda h: h)(image()), after(lambda h: h)(image(seed=2))
    assert torch.equal(
        dispatch(first.runtime, torch.add, (first, second), {}), first.dequantize() + second.dequantize()
    )


def test_two_inputs_are_quantized_each_by_its_layer():
    model = Wired(lambda m, x, y: m.conv(x) + m.conv2(torch.cat([y, y[:, :1]], 1)))
    model = init(model).eval()
    with linger.calibration():
        model(image(), image(seed=2))
    result = model(image(), image(seed=2))
    assert isinstance(result, QTensor)
    assert float_ops(model) == [("", "cat")]
