# SPDX-License-Identifier: Apache-2.0
"""Chips as data: what each can run, and what its packer takes. Without a target no limit applies.

The numbers come from the public documents and sources of the engine, and from running its packer and its executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from linger.errors import UsageError

KB = 1024

PACKED_OPS = frozenset({
    "Add", "And", "ArgMax", "AvgPool2dInt", "BatchNorm2dInt", "BmmInt", "Cast", "Concat", "Constant",
    "ConstantOfShape", "Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "Dequant", "Div", "Equal", "Expand", "Flatten",
    "GRUInt", "Gather", "GluInt", "Greater", "GreaterOrEqual", "LSTMInt", "LayerNormInt", "Less", "LessOrEqual",
    "LinearInt", "LogSoftmax", "LogSoftmaxInt", "Max", "MaxPool", "Mean", "Min", "Mul", "Not", "Or", "PRelu",
    "Packing", "Pad", "Pow", "Quant", "Relu", "Requant", "Reshape", "Resize", "Shape", "ShuffleChannel", "Sigmoid",
    "Slice", "SoftmaxInt", "Split", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze", "Xor", "iqAdd",
    "iqCat", "iqDiv", "iqMul", "iqPad", "iqSigmoid", "iqSub", "iqTanh", "iqVar", "topN", "topN2",
})  # fmt: skip
"""Op types that the packer knows and that ran. It also lists Clip and iqSum, and fails on both."""


@dataclass(frozen=True)
class Target:
    """Limits of one chip, for the checks at export.

    Attributes:
        name: The chip, as the attribute `platform` of a node spells it.
        kernel: Smallest and largest window of a convolution.
        dilated_kernel: The same where the taps are spread.
        signal_kernel: The same for a convolution over one axis.
        strides: Steps of a convolution.
        pads: Smallest and largest padding.
        dilations: Spreads of a convolution's taps.
        output_bits: Widths that a matrix product may have.
        conv_output_bits: Widths that come out of a convolution as they should.
        weight_bits: Widths of weights.
        data_bits: Widths of tensors.
        has_clip: Whether the packer takes Clip.
        ops: Op types that the packer takes.
        is_named_in_nodes: Whether the packer wants the chip's name in the nodes; it takes a file without for venus.
        uncompared_ops: Op types whose numbers on this chip nobody has compared.
        unpacked_ops: Op types that the chip runs and the packer does not know.
        curve_bits: The width that sigmoid wants; None: any.
        multiplies_by_channel_only: Products element by element are of equal shapes, or with one number per channel.
        joins_wide_at_one_scale: Tensors of more than 8 bits are joined only where their scales agree.
        softmax_axis: The attribute in which softmax looks for its axis.
        softmax_length: The longest row of softmax.
        largest_divided_area: The largest window of an average pool whose area is no power of two.
        pool_sum: The largest sum of a window whose area is a power of two.
        layer_norm_bits: Width of the sums of a layer norm; None where it is not known to be a limit.
        transposed_axes: Most axes of a tensor whose axes are exchanged; None: any.
        plane_bytes: The largest plane of a transposed tensor of three axes.
        conv_input_bytes: Room for a convolution's input; larger ones are split along their height. None: not known.
        conv_weight_bytes: Room for a convolution's weights; more are split along the output channels.
        left_matrix_bytes: Room for the left matrix of a product; it is split by rows.
        right_matrix_bytes: Room for the right matrix of a product of two tensors.
        model_bytes: The largest model.
    """

    name: str
    kernel: tuple[int, int]
    strides: tuple[int, ...]
    pads: tuple[int, int]
    output_bits: tuple[int, ...]
    weight_bits: tuple[int, ...]
    has_clip: bool
    dilated_kernel: tuple[int, int] = (1, 12)
    signal_kernel: tuple[int, int] = (1, 12)
    dilations: tuple[int, ...] = (1, 2, 4, 8)
    conv_output_bits: tuple[int, ...] = (8,)
    data_bits: tuple[int, ...] = (8, 16, 32)
    ops: frozenset[str] = PACKED_OPS
    is_named_in_nodes: bool = True
    uncompared_ops: frozenset[str] = frozenset({"LogSoftmaxInt", "GRUInt", "LSTMInt", "LayerNormInt"})
    unpacked_ops: frozenset[str] = frozenset()
    curve_bits: int | None = 8
    multiplies_by_channel_only: bool = False
    joins_wide_at_one_scale: bool = False
    softmax_axis: str = "axis"
    softmax_length: int = 2048
    largest_divided_area: int = 127
    pool_sum: int = 32767
    layer_norm_bits: int | None = None
    transposed_axes: int | None = None
    plane_bytes: int = 64 * KB
    conv_input_bytes: int | None = None
    conv_weight_bytes: int = 32 * KB
    left_matrix_bytes: int = 64 * KB
    right_matrix_bytes: int = 32 * KB
    model_bytes: int = 8 * KB * KB


_VENUS = Target(
    "venus",
    kernel=(1, 5),
    dilated_kernel=(1, 5),
    signal_kernel=(1, 5),
    strides=(1, 2, 4),
    pads=(0, 4),
    dilations=(1,),
    output_bits=(8, 16, 32),
    weight_bits=(8,),
    has_clip=False,
    is_named_in_nodes=False,
    uncompared_ops=frozenset({"GRUInt", "iqVar", "Gather"}),
    curve_bits=16,
    multiplies_by_channel_only=True,
    joins_wide_at_one_scale=True,
    softmax_axis="dim",
    layer_norm_bits=32,
    transposed_axes=3,
    conv_input_bytes=64 * KB,
)

_ARCS = Target(
    "arcs",
    kernel=(1, 5),
    strides=(1, 2, 4),
    pads=(0, 11),
    output_bits=(8, 32),
    conv_output_bits=(8, 32),
    weight_bits=(4, 8),
    data_bits=(8, 32),
    has_clip=False,
)

_VENUS_A = Target(
    "venusA",
    kernel=(1, 5),
    strides=(1, 2, 4),
    pads=(0, 11),
    output_bits=(8, 16, 32),
    conv_output_bits=(8, 16, 32),
    weight_bits=(4, 8, 16, 32),
    has_clip=False,
    uncompared_ops=frozenset(
        {"AvgPool2dInt", "GRUInt", "LSTMInt", "LayerNormInt", "LogSoftmaxInt", "SoftmaxInt", "iqSigmoid", "iqTanh"}
    ),
    curve_bits=None,
    unpacked_ops=frozenset({"QGelu", "QSwish", "iqGelu", "iqSwish"}),
)

TARGETS: Mapping[str, Target] = MappingProxyType({t.name: t for t in (_VENUS, _ARCS, _VENUS_A)})


def find_target(name: str) -> Target:
    """The chip of this name.

    Raises:
        UsageError: There is none.
    """
    if name not in TARGETS:
        raise UsageError(
            f"target: there is no chip {name!r}. Choose one of {', '.join(TARGETS)}, or None for no limits."
        )
    return TARGETS[name]
