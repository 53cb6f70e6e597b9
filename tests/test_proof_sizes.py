"""linger.verify at other sizes than those of the inputs."""

import onnx
import pytest
from torch import nn

import linger
from linger.onnx.exporter.export import require_equal
from linger.simulation import ExampleCall
from tests.support.wired import image as picture
from tests.support.wired import quantize


def written(tmp_path, axes):
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)), picture())
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (picture(),), path, input_names=["image"], dynamic_axes=axes)
    return model, path


def wrong(tmp_path):
    """A global pool written for 6×6 pictures, in a file that says that their size is open."""
    model, path = written(tmp_path, {"image": [0]})
    proto = onnx.load(path)
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side_{axis}"
    del proto.graph.value_info[:]
    for axis in range(4):
        proto.graph.output[0].type.tensor_type.shape.dim[axis].dim_param = f"out_{axis}"
    onnx.save(proto, path)
    return model, path


def test_sizes_show_what_one_size_does_not(tmp_path):
    model, path = wrong(tmp_path)
    assert linger.verify(model, path, (picture(),)).ok
    assert not linger.verify(model, path, (picture(),), sizes={"image": [(1, 3, 8, 7)]}).ok
    found = linger.verify(model, path, (picture(),), sizes=1)
    assert not found.ok
    assert "Other sizes that were tried: image 3×3×15×17" in found.summary()
    # the second size is smaller than the window
    with pytest.raises(linger.LingerError, match=r"at the size image 4×3×5×7: .*AvgPool2dInt"):
        require_equal(model, ExampleCall((picture(),), {}), path.read_bytes(), "net.onnx")


def test_sizes_of_a_file_that_is_right(tmp_path):
    model, path = written(tmp_path, {"image": [0, 2, 3]})
    named = linger.verify(model, path, (picture(),), sizes={"image": [(1, 3, 8, 7), (2, 3, 5, 11)]})
    assert named.ok
    assert named.batches == 3
    assert named.sizes == ("image 1×3×8×7", "image 2×3×5×11")
    alone = linger.verify(None, path, batches=1, sizes=2)
    assert alone.ok
    assert alone.sizes == ("image 3×3×7×9", "image 4×3×3×5")
    with pytest.raises(linger.UsageError, match="Leave sizes out"):
        linger.verify(None, path, picture().numpy(), sizes=1)


def test_sizes_that_the_model_cannot_take_are_said(tmp_path):
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)), picture())
    path = tmp_path / "net.onnx"
    with pytest.warns(UserWarning, match="none of the other sizes"):
        linger.onnx.export(model, (picture(),), path, input_names=["x"], dynamic_axes={"x": [2]}, verify=True)
    found = linger.verify(model, path, (picture(),), sizes=2)
    assert found.ok
    assert found.sizes == ()
    assert "Sizes that could not be tried: x 2×3×13×6" in found.summary()
    with pytest.raises(linger.UsageError, match="the forward pass fails"):
        linger.verify(model, path, (picture(),), sizes={"x": [(2, 3, 9, 6)]})
