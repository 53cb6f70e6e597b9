"""Functions that a model's switches keep in float: every spelling, visibly, and the file still equals the simulation."""

import copy

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from linger import Switches, init
from tests.support.quantization import SETTERS, SWITCHES, bindings, find_op, why_off
from tests.support.wired import Wired, image


def quantized(forward, switches, x=None):
    model = init(forward if isinstance(forward, nn.Module) else Wired(forward), switches=switches).eval()
    with linger.calibration():
        model(image() if x is None else x)
    return model


def _in_place(name, *rest):
    def forward(m, x):
        y = m.conv(x)
        getattr(y, name)(*rest)
        return y

    return forward


def _augmented_add(m, x):
    y = m.conv(x)
    y += 0.5
    return y


def _augmented_mul(m, x):
    y = m.conv(x)
    y *= 0.5
    return y


def _augmented_div(m, x):
    y = m.conv(x)
    y /= 3.0
    return y


CALLS = [
    ("add", "iqAdd", lambda m, x: m.conv(x) + m.conv(x)),
    ("add", "iqAdd", lambda m, x: m.conv(x) + 0.5),
    ("add", "iqAdd", lambda m, x: 0.5 + m.conv(x)),
    ("add", "iqAdd", lambda m, x: torch.add(m.conv(x), m.conv(x))),
    ("add", "iqAdd", _in_place("add_", 0.5)),
    ("add", "iqAdd", _augmented_add),
    ("mul", "iqMul", lambda m, x: m.conv(x) * m.conv(x)),
    ("mul", "iqMul", lambda m, x: 0.3 * m.conv(x)),
    ("mul", "iqMul", lambda m, x: -m.conv(x)),
    ("mul", "iqMul", lambda m, x: m.conv(x) ** 2),
    ("mul", "iqMul", lambda m, x: m.conv(x) / 4.0),
    ("mul", "iqMul", _in_place("mul_", 0.5)),
    ("mul", "iqMul", _augmented_mul),
    ("div", "iqDiv", lambda m, x: m.conv(x) / (m.conv(x) * m.conv(x) + 2.0)),
    ("div", "iqMul", lambda m, x: m.conv(x) / 4.0),
    ("div", "iqDiv", lambda m, x: 1.0 / (m.conv(x) ** 2 + 2.0)),
    ("div", "iqDiv", lambda m, x: (m.conv(x) ** 2 + 2.0).reciprocal()),
    ("div", "iqDiv", _in_place("div_", 3.0)),
    ("div", "iqDiv", _augmented_div),
    ("sum", "iqSum", lambda m, x: m.conv(x).sum(-1)),
    ("sum", "iqSum", lambda m, x: torch.sum(m.conv(x), (2, 3), keepdim=True)),
    ("cat", "iqCat", lambda m, x: torch.cat([m.conv(x), m.conv(x)], 1)),
    ("cat", "iqCat", lambda m, x: torch.stack([m.conv(x), m.conv(x)], 1)),
    ("cat", "iqCat", lambda m, x: F.adaptive_avg_pool2d(m.conv(x), 4)),
    ("clamp", "Clip", lambda m, x: m.conv(x).clamp(-0.5, 0.5)),
    ("clamp", "Clip", lambda m, x: torch.clip(m.conv(x), max=0.5)),
    ("clamp", "Clip", _in_place("clamp_", -0.5, 0.5)),
    ("sigmoid", "iqSigmoid", lambda m, x: torch.sigmoid(m.conv(x))),
    ("sigmoid", "iqSigmoid", lambda m, x: nn.Sigmoid()(m.conv(x))),
    ("sigmoid", "iqSigmoid", _in_place("sigmoid_")),
    ("tanh", "iqTanh", lambda m, x: m.conv(x).tanh()),
    ("tanh", "iqTanh", _in_place("tanh_")),
    ("softmax", "SoftmaxInt", lambda m, x: F.softmax(m.conv(x), -1)),
    ("softmax", "SoftmaxInt", lambda m, x: m.conv(x).softmax(1)),
    ("log_softmax", "LogSoftmaxInt", lambda m, x: F.log_softmax(m.conv(x), -1)),
    ("var", "iqVar", lambda m, x: m.conv(x).var(-1)),
    ("bmm", "BmmInt", lambda m, x: m.conv(x) @ m.conv2(m.conv(x))),
    ("bmm", "BmmInt", lambda m, x: torch.bmm(m.conv(x).flatten(0, 1), m.conv(x).flatten(0, 1))),
    ("bmm", "BmmInt", lambda m, x: torch.einsum("bcij,bcjk->bcik", m.conv(x), m.conv(x))),
]


@pytest.mark.parametrize(
    ("field", "op_name", "forward"), CALLS, ids=[f"{i} {field} {op}" for i, (field, op, _) in enumerate(CALLS)]
)
@pytest.mark.thin(every=4)
def test_a_switch_keeps_its_function_float_and_no_other(field, op_name, forward, tmp_path):
    torch.manual_seed(0)
    on = quantized(forward, None)
    assert op_name in [o.op for o in linger.coverage(on).integer_ops]
    off = quantized(forward, Switches(**{field: False}))
    report = linger.coverage(off)
    assert op_name not in [o.op for o in report.integer_ops]
    assert f"switched off by {SETTERS[field]}(False)" in [o.reason for o in report.float_ops]
    linger.onnx.export(off, (image(),), tmp_path / "m.onnx")
    written = [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node]
    assert op_name not in written or op_name == "Clip"  # which is also the standard op on floats
    assert "Dequant" in written
    assert linger.verify(off, tmp_path / "m.onnx", [image(seed=4)]).ok


def test_the_float_result_is_that_of_torch():
    seen = []
    model = quantized(lambda m, x: seen.append(m.conv(x)) or seen[-1] + 0.3, Switches(add=False))
    result = model(image())
    assert not isinstance(result, linger.QTensor)
    assert torch.equal(result, seen[-1].dequantize() + 0.3)


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("add", ["iqAdd"]),
        ("mul", ["iqMul"]),
        ("div", ["iqDiv"]),
        ("sum", ["iqSum"]),
        ("cat", ["iqCat"]),
        ("sigmoid", ["iqSigmoid"]),
        ("tanh", ["iqTanh"]),
        ("softmax", ["SoftmaxInt"]),
        ("log_softmax", ["LogSoftmaxInt"]),
        ("var", ["iqVar"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_function_of_an_op_obeys_its_switch(field, names):
    functions = [func for func, (op, _) in bindings().items() if op in [find_op(name) for name in names]]
    assert functions
    for func in functions:
        assert why_off(func, Switches(**{field: False})) == f"switched off by {SETTERS[field]}(False)", func
        assert why_off(func, Switches()) is None


@pytest.mark.parametrize(
    "shuffle", [linger.channel_shuffle, lambda x, n: nn.ChannelShuffle(n)(x)], ids=["function", "layer"]
)
def test_a_shuffle_that_is_off_moves_the_same_integers(shuffle, tmp_path):
    torch.manual_seed(0)
    forward = Wired(lambda m, x: shuffle(m.conv(x), 2))
    on, off = quantized(copy.deepcopy(forward), None), quantized(forward, Switches(channel_shuffle=False))
    assert "ShuffleChannel" in [o.op for o in linger.coverage(on).integer_ops]
    assert [o.op for o in linger.coverage(off).ops] == ["Quant", "Conv2dInt"]
    assert torch.equal(on(image(seed=2)), off(image(seed=2)))
    linger.onnx.export(off, (image(),), tmp_path / "m.onnx")
    assert linger.verify(off, tmp_path / "m.onnx", [image(seed=4)]).ok


def test_torch_complains_about_a_wrong_shuffle():
    with pytest.raises(RuntimeError, match="channels"):
        quantized(lambda m, x: torch.channel_shuffle(m.conv(x), 3), Switches(channel_shuffle=False))


def test_others_obey_none():
    assert F.relu not in SWITCHES
    assert Tensor.sub not in SWITCHES
    assert F.hardtanh not in SWITCHES
    assert why_off(F.relu6, Switches(clamp=False)) is None


def test_relu6_is_no_clamp():
    model = quantized(lambda m, x: F.relu6(m.conv(x)), Switches(clamp=False))
    assert linger.coverage(model).float_ops == ()


class Products(nn.Module):
    """A float input that meets parameters before any layer."""

    def __init__(self, call):
        super().__init__()
        self.weight, self.fc = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 4)
        self.call = call

    def forward(self, x):
        return self.fc(self.call(x, self.weight))


@pytest.mark.parametrize("is_inside", [False, True], ids=["float input", "quantized input"])
@pytest.mark.parametrize(
    "call",
    [F.linear, torch.matmul, lambda x, w: F.linear(x, w * 1.0), lambda x, w: torch.addmm(w[0], x, w)],
    ids=["F.linear", "matmul", "computed weight", "addmm"],
)
def test_linear_products_with_parameters(call, is_inside, tmp_path):
    torch.manual_seed(0)
    body = (lambda x, w: call(torch.relu(linger.quant_tensor(model, x)), w)) if is_inside else call
    x = torch.randn(5, 6)
    model = Products(body)
    model = quantized(model, Switches(linear=False), x)
    report = linger.coverage(model)
    assert [o.op for o in report.integer_ops if o.op in ("LinearInt", "BmmInt")] == ["LinearInt"]  # the layer's own
    if call in (F.linear, torch.matmul) or is_inside:
        assert "switched off by SetFunctionLinearQuant(False)" in [o.reason for o in report.float_ops]
    linger.onnx.export(model, (x,), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", [torch.randn(5, 6)]).ok


class Attentive(nn.Module):
    def __init__(self, *, is_layer):
        super().__init__()
        self.fc, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True) if is_layer else None

    def forward(self, x):
        q, k, v = self.fc(x).chunk(3, -1)
        if self.attention is not None:
            return self.out(self.attention(q, k, v, need_weights=False)[0])
        return self.out(F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("is_layer", [False, True], ids=["function", "layer"])
@pytest.mark.parametrize("field", ["bmm", "softmax", "mul", "linear"])
def test_attention_is_float_as_a_whole(field, is_layer, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    model = quantized(Attentive(is_layer=is_layer), Switches(**{field: False}), x)
    reasons = [o.reason for o in linger.coverage(model).float_ops]
    is_off = is_layer or field != "linear"
    assert reasons == ([f"switched off by {SETTERS[field]}(False)"] if is_off else [])
    linger.onnx.export(model, (x,), tmp_path / "m.onnx", opset_version=14)  # the first with a form for it
    assert linger.verify(model, tmp_path / "m.onnx", [torch.randn(2, 5, 8)]).ok


def test_a_float_input_of_switched_off_attention_is_not_rounded():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    x = torch.randn(2, 5, 8)
    model = quantized(Net(), Switches(softmax=False), x)
    report = linger.coverage(model)
    assert "Quant" not in [o.op for o in report.integer_ops]
    assert "switched off by SetIQTensorSoftmax(False)" in [o.reason for o in report.float_ops]


def test_training_goes_through_what_is_off():
    model = init(Wired(_augmented_add), switches=Switches(add=False)).train()
    model(image()).square().sum().backward()
    assert model.conv.weight.grad.abs().max() > 0
