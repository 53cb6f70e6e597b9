"""Pools, means and interpolations of images whose size a file leaves open: the integers of the simulation at every size."""

import math

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.functions import _linear, _nearest, linear_weights, nearest_places
from tests.support.wired import image, quantize

OTHER_SIZES = ((1, 3, 13, 17), (3, 3, 9, 7))
AXES = {"x": {0: "n", 2: "height", 3: "width"}}


class Net(nn.Module):
    """Several results of one convolution, so that one export shows them all."""

    def __init__(self, *branches):
        super().__init__()
        self.conv, self.pool, self.branches = nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(2), branches

    def forward(self, x):
        y = self.conv(x)
        return tuple(branch(self, y) for branch in self.branches)


BRANCHES = {
    "averages": (
        lambda m, y: F.adaptive_avg_pool2d(y, 1),
        lambda m, y: m.pool(y),
        lambda m, y: F.adaptive_avg_pool2d(y, (3, None)),
        lambda m, y: y.mean((2, 3)),
        lambda m, y: y * y.mean((-1, -2), keepdim=True),
        lambda m, y: F.adaptive_avg_pool1d(y.flatten(2), 3),
        lambda m, y: y.var((2, 3)),
    ),
    "largest": (
        lambda m, y: F.adaptive_max_pool2d(y, 1),
        lambda m, y: F.adaptive_max_pool2d(y, (None, 3)),
        lambda m, y: F.adaptive_max_pool1d(y.flatten(2), 2),
    ),
    "interpolations": (
        lambda m, y: F.interpolate(y, scale_factor=1.5, mode="bilinear"),
        lambda m, y: F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True),
        lambda m, y: F.interpolate(y, size=(9, 11), mode="bilinear"),
        lambda m, y: F.interpolate(F.max_pool2d(y, 2), size=y.shape[2:], mode="bilinear"),
        lambda m, y: F.interpolate(F.max_pool2d(y, 2), size=y.shape[2:]),
        lambda m, y: F.interpolate(y, scale_factor=0.75, mode="nearest-exact"),
    ),
}


def images():
    return [torch.randn(size, generator=torch.Generator().manual_seed(7)) for size in OTHER_SIZES]


def assert_right(model, path, form="dialect"):
    """Every integer and output at other sizes; ONNX Runtime alone, too, where the form runs there."""
    result = linger.verify(model, path, [(x,) for x in images()])
    assert result.ok, result.summary()
    if form == "bare":
        return
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for x in images():
        with torch.no_grad():
            expected = model(x)
        for found, y in zip(session.run(None, {"x": x.numpy()}), expected, strict=True):
            assert found.shape == tuple(y.shape)
            assert torch.equal(torch.from_numpy(found), y.dequantize())


@pytest.mark.parametrize("kind", BRANCHES)
def test_right_at_every_size_in_every_form(kind, tmp_path):
    model = quantize(Net(*BRANCHES[kind]), image(), *images())
    for form in ("dialect", "standard", "qdq", "bare") if kind == "averages" else ("dialect", "standard"):
        path = tmp_path / f"{form}.onnx"
        linger.onnx.export(model, (image(),), path, input_names=["x"], dynamic_axes=AXES, form=form)
        assert_right(model, path, form)


def test_right_from_the_newer_exporter(tmp_path):
    chosen = [branches[1] for branches in BRANCHES.values()]
    model = quantize(Net(*chosen), image(), *images())
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (image(),), path, input_names=["x"], dynamic_axes=AXES, dynamo=True)
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in dims] == ["n", "", "height", "width"]
    assert_right(model, path)


def test_a_fixed_image_keeps_the_pools_that_devices_have(tmp_path):
    model = quantize(Net(BRANCHES["averages"][0], BRANCHES["largest"][0]), image())
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": [0]})
    types = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert {"AvgPool2dInt", "MaxPool"} <= set(types)
    assert not {"iqAdaptiveAvgPool", "iqLargest"} & set(types)


def test_a_first_axis_that_is_no_batch_is_open_too(tmp_path):
    class Signal(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x):
            return F.adaptive_avg_pool1d(self.fc(x).t()[None], 2)

    x, longer = torch.randn(8, 3), torch.randn(13, 3)
    model = quantize(Signal(), x, longer)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": [0]})
    assert linger.verify(model, tmp_path / "net.onnx", longer).ok


def test_an_open_window_is_a_finding_of_a_chip(tmp_path):
    model = quantize(Net(BRANCHES["averages"][0]), image())
    with pytest.raises(linger.UnsupportedError, match="iqAdaptiveAvgPool"):
        linger.onnx.export(
            model, (image(1),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes=AXES, target="venus"
        )


@pytest.mark.parametrize(
    ("old", "new", "factor"), [(4, 6, 1.5), (7, 3, None), (5, 8, 1.7), (1, 4, None), (9, 1, None), (6, 6, None)]
)
def test_weights_and_places_are_those_of_known_sizes(old, new, factor):
    if factor is not None:
        new = math.floor(old * factor)
    content = torch.zeros(1, 1, old, 1)
    for is_exact in (False, True):
        places = _nearest(content, 2, new, factor, is_exact=is_exact)
        assert tuple(places.tolist()) == nearest_places(old, new, factor, is_exact=is_exact)
    for align_corners in (False, True):
        if factor in (None, 1.5):  # 1.7 is no ratio of small numbers
            weights = _linear(content, 2, new, factor, align_corners=align_corners)
            assert weights.T.tolist() == [
                list(row) for row in linear_weights(old, new, factor, align_corners=align_corners)
            ]
