"""A file with open sizes that would hold those of its example is refused, with the node, the axis and the remedy."""

import warnings

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UnsupportedError
from linger.onnx.exporter.tracing import Example, repeated, require_open
from tests.support.onnx_text import parse
from tests.support.wired import image, quantize

OPEN = {"x": {0: "n", 2: "height", 3: "width"}}

BAKED = {
    "parts of a fixed length": (lambda m, x: m.conv(x).split(3, 3)[0], "Split", ("axis 3",)),
    "padding to a multiple": (lambda m, x: F.pad(m.conv(x), (0, (8 - x.shape[3] % 8) % 8)), "iqPad", ("axis 3",)),
    "a norm of the whole image": (
        lambda m, x: F.layer_norm(m.conv(x), x.shape[2:]),
        "LayerNormInt",
        ("axis 2", "axis 3"),
    ),
    "windows over the edge": (
        lambda m, x: F.avg_pool2d(m.conv(x), 2, ceil_mode=True),
        "AvgPool2dInt",
        ("axis 2", "axis 3"),
    ),
    "a part of a parameter": (lambda m, x: m.conv(x) + m.table[:, : x.shape[2], :6], "iqAdd", ("axis 2",)),
    "a factor": (lambda m, x: m.conv(x) * (1.0 / x.shape[2]), "iqMul", ("axis 2",)),
    "a choice": (lambda m, x: m.relu(m.conv(x)) if x.shape[2] > 8 else m.conv(x), "Relu", ("axis 2",)),
}


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.conv, self.relu, self.run = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), run
        self.table = nn.Parameter(torch.linspace(-1, 1, 4 * 40 * 6).reshape(4, 40, 6))

    def forward(self, x):
        return self.run(self, x)


def net(forward):
    return quantize(Net(forward), image())


@pytest.mark.parametrize(("forward", "node", "axes"), BAKED.values(), ids=BAKED.keys())
def test_what_python_computes_from_a_size_is_refused(forward, node, axes, tmp_path):
    path, model = tmp_path / "net.onnx", net(forward)
    sizes = {"x": {0: "n", 2: "height"}} if axes == ("axis 2",) else OPEN
    with pytest.raises(UnsupportedError) as error:
        linger.onnx.export(model, (image(),), path, input_names=["x"], dynamic_axes=sizes)
    message = str(error.value)
    assert node in message.partition(": the file")[0]
    assert [f"axis {i}" for i in range(4) if f"axis {i} of 'x'" in message] == list(axes)
    assert "Fix that size" in message
    assert not path.exists()
    linger.onnx.export(model, (image(),), path, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert linger.verify(model, path, (image(3),)).ok


def test_the_newer_exporter_fixes_no_size_silently(tmp_path):
    model = net(BAKED["parts of a fixed length"][0])
    with pytest.raises(UnsupportedError, match=r"axis 3 of 'x' \(6\)"):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes=OPEN, dynamo=True)


def test_a_model_that_takes_no_other_size_is_said(tmp_path):
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)), image())
    with pytest.warns(UserWarning, match="none of the other sizes that were tried for axis 2 of 'x'"):
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": [2]})


def test_what_does_not_look_at_sizes_is_written_without_a_word(tmp_path):
    model = net(lambda m, x: m.conv(x)[:, :, 1:-1].flatten(2).transpose(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linger.onnx.export(model, (image(),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes=OPEN)
    assert linger.verify(model, tmp_path / "net.onnx", (torch.randn(3, 3, 9, 5),)).ok


def test_numbers_begin_again_where_they_end():
    assert repeated(torch.arange(6).reshape(2, 3), (1, 5)).tolist() == [[0, 1, 2, 0, 1]]


def traced(constant):
    """A trace of a model that multiplies by a constant."""
    text = f"c = Constant<value = float[1] {constant}>() y = Mul(x, c)"
    return ir.to_proto(parse(text)).SerializeToString()


def require_open_to(elsewhere):
    """Compare a trace with the trace at another size."""
    example = Example([torch.zeros(4)], ["x"], run=lambda call: None, trace=lambda call: elsewhere)
    require_open(traced("k {2.0}"), example, {"x": {0: "n"}})


def test_a_constant_may_have_another_name_at_another_size():
    require_open_to(traced("other {2.0}"))


def test_a_constant_may_not_have_another_value_at_another_size():
    with pytest.raises(UnsupportedError, match=r"Mul: the file would hold, .* axis 0 of 'x' \(4\)"):
        require_open_to(traced("k {3.0}"))
