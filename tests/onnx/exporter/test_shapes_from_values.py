"""Sizes that depend on values are declared open: the super-resolution net of the documents, quantized."""

import warnings

import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.onnx.exporter.assembly import forget_sizes_from_values


class Enlarge(torch.autograd.Function):
    """Bicubic enlargement by a factor that is an input of the file."""

    @staticmethod
    def symbolic(g, x, scales):
        nothing = g.op("Constant", value_t=torch.tensor([], dtype=torch.float32))
        modes = {"coordinate_transformation_mode_s": "pytorch_half_pixel", "mode_s": "cubic", "nearest_mode_s": "floor"}
        return g.op("Resize", x, nothing, scales, cubic_coeff_a_f=-0.75, **modes)

    @staticmethod
    def forward(ctx, x, scales):
        return F.interpolate(x, scale_factor=scales.tolist()[-2:], mode="bicubic", align_corners=False)


class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 5, padding=2), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x, factor):
        return self.conv2(F.relu(self.conv1(Enlarge.apply(x, factor))))


def factor(n):
    return torch.tensor([1.0, 1.0, n, n])


@pytest.mark.parametrize("axes", [None, {"image": [2, 3]}], ids=["fixed", "open"])
def test_a_factor_that_is_given_at_run_time(axes, tmp_path):
    x = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    model = linger.init(SuperResolution()).eval()
    with linger.calibration():
        model(x, factor(3))
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the factor is not frozen, and nobody says so
        names = {"input_names": ["image", "factor"], "output_names": ["large"]}
        linger.onnx.export(model, (x, factor(3)), path, opset_version=11, dynamic_axes=axes, **names)
    dims = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
    assert [d.HasField("dim_value") for d in dims] == [False, True, False, False]
    assert linger.verify(model, path, [(x, factor(2)), (x, factor(5))]).ok


TEXT = """<ir_version: 8, opset_import: ["": 18]>
g (float[2,6] x, int64[2] sizes) => (float[3,4] a, float[2,6] b, float[3] c, float[n] d) {
  a = Reshape(x, sizes)
  b = Relu(x)
  shape = Shape(x)
  again = Reshape(x, shape)
  total = ReduceSum(a, shape)
  c = Identity(total)
  d = Identity(again)
}"""


def test_only_what_depends_on_values_is_left_open():
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    forget_sizes_from_values(model)
    a, b, c, d = (output.shape for output in model.graph.outputs)
    assert [dim.value for dim in a] == [None, None]
    assert list(b) == [2, 6]
    assert [dim.value for dim in c] == [None]
    assert [dim.value for dim in d] == ["n"]
