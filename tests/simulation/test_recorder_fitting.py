"""Files with integer inputs and outputs are proved on real inputs."""

import onnx
import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.models import quantized, small_net
from tests.support.wired import Wired, image


class Sum(nn.Module):
    """Two inputs, of which the second may be left unused, and two outputs; the second is an input of the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, a, b, factor=2):
        y = self.first(a)
        return y + self.second(b), y


@pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
def test_integer_ends_are_proved(tmp_path, form):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_input_quant=True, form=form, verify=True)
    proof = linger.verify(model, tmp_path / "net.onnx", [x, 2 * x])
    assert proof.ok, proof.summary()
    assert proof.expected_by == "torch"
    assert [row.dtype for row in proof.outputs] == ["int8"]


def test_a_wrong_integer_output_is_found(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_input_quant=True)
    proto = onnx.load(tmp_path / "net.onnx")
    (last,) = (n for n in proto.graph.node if n.output[0] == proto.graph.output[0].name)
    (scale,) = (a for a in last.attribute if a.name == "scale_o")
    scale.f /= 2
    onnx.save(proto, tmp_path / "net.onnx")
    proof = linger.verify(model, tmp_path / "net.onnx", x)
    assert proof.differing > 0
    assert proof.first.op_type == "LinearInt"


def test_several_integer_ends(tmp_path):
    torch.manual_seed(1)
    a, b = torch.randn(3, 4), 4 * torch.randn(3, 4)
    model = quantized(Sum(), a, b)
    linger.onnx.export(model, (a, b), tmp_path / "m.onnx", is_input_quant=True, verify=True)
    kinds = [v.type.tensor_type.elem_type for v in onnx.load(tmp_path / "m.onnx").graph.input]
    assert kinds == [onnx.TensorProto.INT8] * 2
    assert linger.verify(model, tmp_path / "m.onnx", (a, b)).ok


@pytest.mark.filterwarnings("ignore:export. the file has")
def test_inputs_that_the_file_left_out_are_left_out(tmp_path):
    torch.manual_seed(1)
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    model = quantized(Sum(), a, b)
    linger.onnx.export(model, (a, b, 3), tmp_path / "m.onnx", verify=True)
    assert [v.name for v in onnx.load(tmp_path / "m.onnx").graph.input] == ["a", "b"]


def test_integer_input_that_the_model_does_not_quantize_is_refused(tmp_path):
    model = linger.init(Wired(lambda m, x: m.conv(x.sin())))
    with linger.calibration():
        model(image())
    text = """<ir_version: 8, opset_import: ["": 12]> g (int8[n,c,h,w] x) => (int8[n,c,h,w] y) { y = Identity(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"takes integers for x.*is_input_quant=False"):
        linger.verify(model, tmp_path / "m.onnx", image())
