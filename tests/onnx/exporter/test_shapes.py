"""Shapes in files with fixed sizes: constants, which a chip's packer can read."""

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.models import quantized


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run
        self.first, self.second, self.part = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Conv2d(2, 4, 1)
        self.line = nn.Conv1d(4, 4, 1)

    def forward(self, x):
        return self.run(self, self.first(x))


MOVED = {
    "flatten": (lambda m, y: m.line(y.flatten(2)), ["Reshape"]),
    "chunk": (lambda m, y: m.part(y.chunk(2, 1)[0]), ["Slice"]),
    "expand_as": (lambda m, y: y + m.second(y.mean((2, 3), keepdim=True)).expand_as(y), ["Expand"]),
    "nearest": (lambda m, y: m.second(F.interpolate(y, scale_factor=2)), ["Reshape", "Expand", "Reshape"]),
    "window of a shape": (lambda m, y: m.second(F.avg_pool2d(y, y.shape[2:])), []),
    "window of sizes": (lambda m, y: m.second(F.max_pool2d(y, kernel_size=(y.size(2), y.size(3)))), ["MaxPool"]),
}


@pytest.mark.parametrize("case", MOVED)
def test_chip_takes_what_is_computed_from_fixed_sizes(tmp_path, case):
    run, standard = MOVED[case]
    torch.manual_seed(0)
    x, path = torch.randn(1, 3, 4, 4), tmp_path / "net.onnx"
    model = quantized(Net(run), x)
    linger.onnx.export(model, (x,), path, target="venus", verify=True)
    found = [n.op_type for n in onnx.load(path).graph.node if n.domain == ""]
    assert [kind for kind in found if kind != "Constant"] == standard


@pytest.mark.parametrize("form", ["bare", "standard"])
def test_other_forms_have_the_constants_too(tmp_path, form):
    torch.manual_seed(0)
    x, path = torch.randn(1, 3, 4, 4), tmp_path / "net.onnx"
    linger.onnx.export(quantized(Net(MOVED["flatten"][0]), x), (x,), path, form=form, verify=True)
    nodes = onnx.load(path).graph.node
    (reshape,) = (n for n in nodes if n.name == "Reshape")
    (shape,) = (n for n in nodes if reshape.input[1] in n.output)
    assert shape.op_type == "Constant"


def test_open_sizes_stay_computed(tmp_path):
    torch.manual_seed(0)
    x, path = torch.randn(1, 3, 4, 4), tmp_path / "net.onnx"
    model = quantized(Net(MOVED["flatten"][0]), x)
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes={"x": {2: "h"}})
    assert "Shape" in [n.op_type for n in onnx.load(path).graph.node]
    assert linger.verify(model, path, torch.randn(1, 3, 7, 4)).ok


def test_window_of_an_open_size_is_refused(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4, 4)
    model = quantized(Net(MOVED["window of a shape"][0]), x)
    with pytest.raises(linger.LingerError, match="AvgPool2dInt"):
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": {2: "h", 3: "w"}})
    assert not list(tmp_path.iterdir())
