"""Sigmoid, tanh, softmax and log-softmax of quantized tensors: every spelling runs as the device's integers."""

import math

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import init
from tests.support.quantization import find_op
from tests.support.samples import run_numpy
from tests.support.wired import Wired, after, image

SIGMOIDS = {
    "torch": torch.sigmoid,
    "torch, in place": torch.sigmoid_,
    "method": lambda h: h.sigmoid(),
    "method, in place": lambda h: h.sigmoid_(),
    "F": F.sigmoid,
    "special": torch.special.expit,
    "nn": nn.Sigmoid(),
    "by name": lambda h: torch.sigmoid(input=h),
}
TANHS = {
    "torch": torch.tanh,
    "torch, in place": torch.tanh_,
    "method": lambda h: h.tanh(),
    "method, in place": lambda h: h.tanh_(),
    "F": F.tanh,
    "nn": nn.Tanh(),
}
SOFTMAXES = {
    "torch": lambda h: torch.softmax(h, 1),
    "torch, named": lambda h: torch.softmax(input=h, dim=1),
    "numpy's spelling": lambda h: torch.softmax(h, axis=1),
    "method": lambda h: h.softmax(1),
    "method, from the end": lambda h: h.softmax(-3),
    "with a type": lambda h: h.softmax(1, dtype=torch.float32),
    "F": lambda h: F.softmax(h, dim=1),
    "special": lambda h: torch.special.softmax(h, 1),
    "nn": nn.Softmax(dim=1),
    "nn, of channels": nn.Softmax2d(),
}
LOG_SOFTMAXES = {
    "torch": lambda h: torch.log_softmax(h, 1),
    "method": lambda h: h.log_softmax(1),
    "F": lambda h: F.log_softmax(h, dim=1),
    "special": lambda h: torch.special.log_softmax(h, 1),
    "nn": nn.LogSoftmax(dim=1),
}
ALONG_AN_AXIS = [
    pytest.param(op, real, function, id=f"{op}: {name}")
    for op, real, table in (
        ("SoftmaxInt", torch.softmax, SOFTMAXES),
        ("LogSoftmaxInt", torch.log_softmax, LOG_SOFTMAXES),
    )
    for name, function in table.items()
]
SPELLINGS = [
    pytest.param(op, real, function, id=f"{op}: {name}")
    for op, real, table in (("iqSigmoid", torch.sigmoid, SIGMOIDS), ("iqTanh", torch.tanh, TANHS))
    for name, function in table.items()
]
FIXED = pytest.mark.parametrize(
    ("op", "real"), [("iqSigmoid", torch.sigmoid), ("iqTanh", torch.tanh)], ids=["sigmoid", "tanh"]
)


def both(function):
    """A calibrated model that returns the convolution's output and the function of it."""

    def forward(m, x):
        h = m.conv(x)
        return h.clone(), function(h)

    return after_forward(forward)


def after_forward(forward, out_bits=8):
    model = Wired(forward)
    linger.quant_module(model, out_bits=out_bits)
    model = init(model).eval()
    with linger.calibration():
        model(image())
    return model


def integer_ops(model):
    return [record.op for record in linger.coverage(model).ops if record.is_integer]


@pytest.mark.parametrize(("op", "real", "function"), SPELLINGS)
def test_every_spelling_runs_as_integers(op, real, function):
    model = both(function)
    h, y = model(image())
    assert (y.scale, y.bits) == (128.0, 8)
    wide = (h.integers().numpy().astype(np.int16) * 256).astype(np.int16)
    expected = run_numpy(find_op(op), [wide], {"scale_x": h.scale * 256, "scale_o": 128.0})
    np.testing.assert_array_equal(y.integers().numpy(), expected)
    assert integer_ops(model)[-2:] == ["Requant", op]
    assert not linger.coverage(model).float_ops
    assert (y.dequantize() - real(h.dequantize())).abs().max() < 0.01  # half a step of the output and the table's error


@pytest.mark.parametrize(("op", "real", "function"), ALONG_AN_AXIS)
def test_every_spelling_along_an_axis_runs_as_integers(op, real, function):
    model = both(function)
    h, y = model(image())
    of_range = 2.0 ** math.floor(math.log2(127 / real(h.dequantize().detach(), 1).abs().max().item()))
    assert (y.scale, y.bits) == (of_range, 8)
    attributes = {"dim": 1, "data_bits": 8, "o_bits": 8, "scale_x": h.scale, "scale_o": y.scale}
    expected = run_numpy(find_op(op), [h.integers().numpy()], attributes)
    np.testing.assert_array_equal(y.integers().numpy(), expected)
    assert integer_ops(model)[-1] == op
    assert not linger.coverage(model).float_ops
    assert f"_linger_round_tensor_{op}_0.running_o" in "".join(model.state_dict())


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
def test_any_axis_is_written_as_the_last_one(axis, tmp_path):
    model = after(lambda h: torch.softmax(h, axis))
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", form="bare")
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    (node,) = [n for n in nodes if n.op_type == "SoftmaxInt"]
    assert {a.name: a.i for a in node.attribute}["dim"] == -1
    assert sum(n.op_type == "Transpose" for n in nodes) == (0 if axis in (3, -1) else 2)
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


def test_axis_out_of_range_is_torchs_error():
    with pytest.raises(IndexError, match="Dimension out of range"):
        after(lambda h: torch.softmax(h, 4))


def test_softmax_of_another_type_stays_float_and_says_why():
    model = after(lambda h: F.softmax(h, 1, dtype=torch.float64))
    assert [(o.op, o.reason) for o in linger.coverage(model).float_ops] == [
        ("softmax", "the result is asked for as torch.float64")
    ]


@pytest.mark.parametrize("real", [torch.softmax, torch.log_softmax])
def test_training_along_an_axis_sees_the_real_gradient(real):
    model = after(lambda h: real(h, 1)).train()
    seen = {}

    def forward(m, x):
        h = m.conv(x)
        seen["h"] = h.content
        h.content.retain_grad()
        return real(h, 1)

    model.run = forward
    y = model(image())
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    (y * weight).sum().backward()
    h = seen["h"].detach().clone().requires_grad_()
    (real(h, 1) * weight).sum().backward()
    torch.testing.assert_close(seen["h"].grad, h.grad)  # the axis is moved, so sums run in another order


def test_result_in_place_replaces_the_operand():
    def forward(m, x):
        h = m.conv(x)
        h.sigmoid_()
        return h + h

    model = after_forward(forward)
    assert integer_ops(model)[-3:] == ["Requant", "iqSigmoid", "iqAdd"]


def test_sixteen_bits_need_no_requant():
    model = after_forward(lambda m, x: torch.tanh(m.conv(x)), out_bits=16)
    assert "Requant" not in integer_ops(model)
    assert model(image()).bits == 8


def test_wider_input_is_narrowed_by_its_range(tmp_path):
    model = after_forward(lambda m, x: torch.sigmoid(m.conv(x)), out_bits=32)
    y = model(image())
    assert (y.scale, y.bits) == (128.0, 8)
    assert integer_ops(model)[-2:] == ["Requant", "iqSigmoid"]
    fresh = Wired(lambda m, x: torch.sigmoid(m.conv(x)))
    linger.quant_module(fresh, out_bits=32)
    fresh = init(fresh).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(image()).integers(), y.integers())
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@FIXED
def test_checkpoint_holds_the_documented_keys(op, real):
    model = after(real)
    prefix = f"_linger_round_tensor_{op.lower()}_0."
    state = model.state_dict()
    assert {key.removeprefix(prefix) for key in state if key.startswith(prefix)} == {
        "running_x", "scale_x", "running_o", "scale_o"
    }  # fmt: skip
    assert (state[f"{prefix}running_o"].item(), state[f"{prefix}scale_o"].item()) == (1.0, 128.0)
    old = state | {f"{prefix}scale_local_o": torch.ones(1)}
    after(real).load_state_dict(old)


def test_index_is_shared_with_the_other_functional_ops():
    model = after_forward(lambda m, x: torch.tanh(m.conv(x) + m.conv(x)))
    assert "_linger_round_tensor_iqtanh_1.running_o" in model.state_dict()


@FIXED
def test_training_sees_the_gradient_of_the_real_function(op, real):
    model = after(real).train()
    seen = {}

    def forward(m, x):
        h = m.conv(x)
        seen["h"] = h.content
        h.content.retain_grad()
        return real(h)

    model.run = forward
    y = model(image())
    y.sum().backward()
    h = seen["h"].detach().clone().requires_grad_()
    real(h).sum().backward()
    assert torch.equal(seen["h"].grad, h.grad)
    assert torch.equal(y.dequantize() * 128, (y.dequantize() * 128).round())  # and the numbers are the integers


class Gated(nn.Module):
    """All of them in one model."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.gate, self.curve, self.share = nn.Sigmoid(), nn.Tanh(), nn.Softmax(dim=1)

    def forward(self, x):
        h = self.first(x)
        h = self.third(self.curve(self.second(h)) * self.gate(h))
        return torch.log_softmax(h, 0) + self.share(h)


@pytest.fixture
def gated():
    torch.manual_seed(3)
    x = 2 * torch.randn(4, 6)
    model = init(Gated()).eval()
    with linger.calibration():
        model(x)
    return model, x


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 20])
@pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
@pytest.mark.thin
def test_file_gives_every_integer(gated, form, opset, tmp_path):
    model, x = gated
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form=form, opset_version=opset)
    result = linger.verify(model, tmp_path / "net.onnx", (x,))
    assert result.ok
    assert result.differing == 0


def test_file_gives_every_integer_after_a_training_step(gated, tmp_path):
    model, x = gated
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).pow(2).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    optimizer.step()
    model.eval()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok


def test_newer_exporter_and_open_batch(gated, tmp_path):
    model, x = gated
    linger.onnx.export(model, (x,), tmp_path / "new.onnx", dynamo=True)
    assert linger.verify(model, tmp_path / "new.onnx", (x,)).ok
    linger.onnx.export(
        model, (x,), tmp_path / "open.onnx", input_names=["x"], output_names=["y"], dynamic_axes={"x": [0], "y": [0]}
    )
    assert linger.verify(model, tmp_path / "open.onnx", (x[:3],)).ok


def test_qdq_form_keeps_them_exactly_as_explicit_nodes(gated, tmp_path, caplog):
    model, x = gated
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="qdq")
    assert "iqSigmoid has no QDQ form" in caplog.text
    session = linger.Session(tmp_path / "net.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_array_equal(found, model(x).dequantize().detach().numpy())


def test_node_carries_what_the_format_wants(gated, tmp_path):
    model, x = gated
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare")
    nodes = {node.name: node for node in onnx.load(tmp_path / "net.onnx").graph.node}
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in nodes["gate.iqSigmoid"].attribute}
    assert attributes.pop("scale_x") > 0
    assert attributes == {"scale_o": 128.0, "castor_mode": b"luna", "platform_quant": b"luna_quant"}
    assert nodes["gate.Requant"].output[0] == nodes["gate.iqSigmoid"].input[0]


def test_program_of_torch_export_gives_the_same_numbers(gated):
    model, x = gated
    with torch.no_grad():
        expected = model(x).dequantize()
    program = torch.export.export(model, (x,), strict=False)
    assert torch.equal(program.module()(x), expected)
    with torch.no_grad():
        assert torch.equal(model(x).dequantize(), expected)


@pytest.mark.parametrize("real", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("bits", [16, 32])
def test_softmax_of_wide_numbers_keeps_their_width(real, bits, tmp_path):
    model = after_forward(lambda m, x: real(m.conv(x), 1), out_bits=bits)
    y = model(image())
    assert y.bits == bits
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok
