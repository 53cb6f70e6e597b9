# SPDX-License-Identifier: Apache-2.0
"""An op that ONNX does not have: deform_conv2d as `custom::deform_conv2d`, with a body that ONNX Runtime can run.

    python examples/08_deform_conv2d.py

The torch op has the name and the arguments of torchvision's; where torchvision is not installed, the one below stands in.
The body is an onnxscript function (ONNX text would do as well) and travels inside the file, so stock ONNX Runtime needs
no plugin. A packer or TensorRT that has a deformable convolution of its own reads the same node and ignores the body.

Keeps no file; prints:

    nodes: Conv, Conv, Sigmoid, deform_conv2d
    function: custom::deform_conv2d, 241 nodes of standard ONNX
    1 output on 2 inputs, all within tolerance
    output  type     shape               max abs  max rel  tolerance
    y       float32  1×8×16×16, 2×8×9×7  6.7e-06  0.00025  0.00014    ok
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
import torch
from onnxscript import FLOAT, script
from onnxscript import opset12 as op
from onnxscript.values import Opset
from torch import Tensor, nn

import linger

custom = Opset("custom", 1)


def define_torch_op() -> torch.library.Library | None:
    """torchvision's op, or one that computes the same."""
    if importlib.util.find_spec("torchvision") is not None:
        importlib.import_module("torchvision")
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(
        "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
        "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
        "SymInt offset_groups, bool use_mask) -> Tensor"
    )
    library.impl("deform_conv2d", in_torch, "CompositeExplicitAutograd")
    return library


def in_torch(x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *geometry: int) -> Tensor:
    """Every tap of the kernel looks where its offset sends it, between four pixels; outside is zero."""
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups, use_mask = geometry
    (n, c, h, w), (kernel_h, kernel_w), (out_h, out_w) = x.shape, weight.shape[2:], offset.shape[2:]
    moved = offset.view(n * offset_groups, kernel_h, kernel_w, 2, out_h, out_w)
    rows = torch.arange(out_h).view(-1, 1) * stride_h - pad_h + torch.arange(kernel_h).view(-1, 1, 1, 1) * dilation_h
    columns = torch.arange(out_w) * stride_w - pad_w + torch.arange(kernel_w).view(-1, 1, 1) * dilation_w
    y, z = ((moved[:, :, :, i] + base).flatten(1) for i, base in enumerate((rows, columns)))
    pixels = nn.functional.pad(x, (1, 1, 1, 1)).view(n * offset_groups, c // offset_groups, -1)

    def pixel(i: Tensor, j: Tensor) -> Tensor:
        index = (i.clamp(-1, h).long() + 1) * (w + 2) + j.clamp(-1, w).long() + 1
        return pixels.gather(2, index.unsqueeze(1).expand(-1, pixels.shape[1], -1))

    top, left = y.floor(), z.floor()
    down, right = (y - top).unsqueeze(1), (z - left).unsqueeze(1)
    upper = pixel(top, left) * (1 - right) + pixel(top, left + 1) * right
    lower = pixel(top + 1, left) * (1 - right) + pixel(top + 1, left + 1) * right
    sampled = upper * (1 - down) + lower * down
    if use_mask:
        sampled = sampled * mask.reshape(n * offset_groups, 1, -1)
    product = weight.reshape(groups, weight.shape[0] // groups, -1) @ sampled.reshape(n, groups, -1, out_h * out_w)
    return product.reshape(n, -1, out_h, out_w) + bias.view(-1, 1, 1)


@script(custom, default_opset=op)
def bordered_index(position: FLOAT, size: FLOAT):
    """A position among the pixels −1 … size, counted from the border of zeros."""
    one = op.Constant(value_float=1.0)
    inside = op.Max(op.Min(position, op.Cast(size, to=1)), op.Neg(one))
    return op.Cast(inside + one, to=7)


@script(custom, default_opset=op)
def pixel_at(pixels: FLOAT, row: FLOAT, column: FLOAT, height: FLOAT, width: FLOAT):
    """The values at whole positions."""
    line = width + op.Constant(value_int=2)
    index = bordered_index(row, height) * line + bordered_index(column, width)
    return op.GatherND(pixels, index, batch_dims=1)


@script(custom, default_opset=op)
def positions(offset: FLOAT, weight: FLOAT, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]):
    """Where every tap looks, moved by its offset: rows and columns, batch·offset_groups × samples × 1."""
    zero = op.Constant(value_int=0)
    one = op.Constant(value_int=1)
    kernel = op.Shape(weight)[2:4]
    places = op.Shape(offset)[2:4]
    strides = op.Constant(value_ints=stride)
    paddings = op.Constant(value_ints=padding)
    dilations = op.Constant(value_ints=dilation)
    tap_rows = op.Reshape(op.Range(zero, kernel[0], one) * dilations[0], op.Constant(value_ints=[-1, 1, 1, 1]))
    tap_columns = op.Reshape(op.Range(zero, kernel[1], one) * dilations[1], op.Constant(value_ints=[-1, 1, 1]))
    rows = op.Reshape(op.Range(zero, places[0], one) * strides[0] - paddings[0], op.Constant(value_ints=[-1, 1]))
    columns = op.Range(zero, places[1], one) * strides[1] - paddings[1]
    moved = op.Reshape(
        offset, op.Concat(op.Constant(value_ints=[-1]), kernel, op.Constant(value_ints=[2]), places, axis=0)
    )
    flat = op.Constant(value_ints=[0, -1, 1])
    y = op.Reshape(op.Gather(moved, zero, axis=3) + op.Cast(tap_rows + rows, to=1), flat)
    z = op.Reshape(op.Gather(moved, one, axis=3) + op.Cast(tap_columns + columns, to=1), flat)
    return y, z


@script(custom, default_opset=op)
def sample(pixels: FLOAT, y: FLOAT, z: FLOAT, height: FLOAT, width: FLOAT):
    """Between the four pixels around each position."""
    one = op.Constant(value_float=1.0)
    top = op.Floor(y)
    left = op.Floor(z)
    down = y - top
    right = z - left
    upper_left = pixel_at(pixels, top, left, height, width)
    upper_right = pixel_at(pixels, top, left + one, height, width)
    lower_left = pixel_at(pixels, top + one, left, height, width)
    lower_right = pixel_at(pixels, top + one, left + one, height, width)
    upper = upper_left * (one - right) + upper_right * right
    lower = lower_left * (one - right) + lower_right * right
    return upper * (one - down) + lower * down


@script(custom, default_opset=op)
def in_onnx(
    x: FLOAT,
    weight: FLOAT,
    offset: FLOAT,
    mask: FLOAT,
    bias: FLOAT,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    offset_groups: int,
    use_mask: int,
):
    """The same in standard ONNX, from opset 12 on."""
    two = op.Constant(value_int=2)
    single = op.Constant(value_ints=[1])
    rest = op.Constant(value_ints=[-1])
    image = op.Shape(x)
    kernel = op.Shape(weight)[2:4]
    places = op.Shape(offset)[2:4]

    slices = op.Reshape(image[0] * op.Constant(value_int=offset_groups), single)
    area = op.Reshape((image[2] + two) * (image[3] + two), single)
    padded = op.Pad(x, op.Constant(value_ints=[0, 0, 1, 1, 0, 0, 1, 1]))
    pixels = op.Transpose(op.Reshape(padded, op.Concat(slices, rest, area, axis=0)), perm=[0, 2, 1])
    y, z = positions(offset, weight, stride=stride, padding=padding, dilation=dilation)
    sampled = sample(pixels, y, z, image[2], image[3])
    if op.Cast(op.Constant(value_int=use_mask), to=9):
        weighed = sampled * op.Reshape(mask, op.Concat(slices, rest, single, axis=0))
    else:
        weighed = op.Identity(sampled)

    taps = op.Reshape(kernel[0] * kernel[1], single)
    count = op.Reshape(places[0] * places[1], single)
    batch = op.Reshape(image[0], single)
    group_count = op.Reshape(op.Constant(value_int=groups), single)
    by_tap = op.Reshape(weighed, op.Concat(slices, taps, count, rest, axis=0))
    samples = op.Reshape(op.Transpose(by_tap, perm=[0, 3, 1, 2]), op.Concat(batch, group_count, rest, count, axis=0))
    filters = op.Shape(weight)[0:1] / group_count
    product = op.MatMul(op.Reshape(weight, op.Concat(group_count, filters, rest, axis=0)), samples)
    result = op.Reshape(product, op.Concat(batch, rest, places, axis=0))
    return result + op.Reshape(bias, op.Constant(value_ints=[1, -1, 1, 1]))


class Model(nn.Module):
    """A deformable convolution that computes its own offsets and mask."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Conv2d(4, 18, 3, padding=1)
        self.mask = nn.Conv2d(4, 9, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(8, 4, 3, 3))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        offset, mask = self.offset(x), torch.sigmoid(self.mask(x))
        geometry = (1, 1, 1, 1, 1, 1, 1, 1, True)  # stride, padding, dilation, groups, offset groups, mask
        return torch.ops.torchvision.deform_conv2d(x, self.weight, offset, mask, self.bias, *geometry)


def main(folder: Path) -> int:
    library = define_torch_op()
    torch.manual_seed(0)
    model, x = Model(), torch.randn(1, 4, 16, 16)
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n", 2: "h", 3: "w"}}}
    with linger.onnx.operator(
        "torchvision::deform_conv2d",
        to="custom::deform_conv2d",
        inputs=["input", "weight", "offset", "mask", "bias"],
        attributes={
            "stride": ["stride_h", "stride_w"],
            "padding": ["pad_h", "pad_w"],
            "dilation": ["dilation_h", "dilation_w"],
            "groups": "groups",
            "offset_groups": "offset_groups",
            "use_mask": "use_mask",
        },
        body=in_onnx,
    ):
        linger.onnx.export(model, (x,), folder / "deform.onnx", opset_version=12, **names)

    proto = onnx.load(folder / "deform.onnx")
    function = proto.functions[0]
    print(f"nodes: {', '.join(node.op_type for node in proto.graph.node)}")
    print(f"function: {function.domain}::{function.name}, {len(function.node)} nodes of standard ONNX")
    comparison = linger.onnx.compare(model, folder / "deform.onnx", [x, torch.randn(2, 4, 9, 7)])
    print(comparison)
    del library  # the op lives as long as its library
    return 0 if comparison.ok else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        raise SystemExit(main(Path(temporary)))
