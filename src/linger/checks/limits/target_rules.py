# SPDX-License-Identifier: Apache-2.0
"""The rules behind the limits of a chip, so that each finding of `target_findings` has an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from linger.checks.limits import operands as operand_limits
from linger.checks.limits import packing as packing_limits
from linger.checks.limits import products as product_limits
from linger.checks.limits import windows as window_limits
from linger.graph.core.check_rules import CheckRule
from linger.graph.core.finding import ERROR, WARNING, Finding

_HELP = "The limit is the chip's or its packer's. Only with a target."


def _rule(number: int, name: str, summary: str, severity: str = ERROR) -> CheckRule:
    return CheckRule(f"LGR{number}", f"target-{name}", severity, summary, _HELP)


TARGET_RULES: Mapping[Callable[..., Iterable[Finding]], CheckRule] = MappingProxyType({
    packing_limits.check_model: _rule(901, "model", "The model has constants and fits into the chip's memory."),
    packing_limits.check_known: _rule(902, "op", "The chip's packer knows the op."),
    packing_limits.check_platform: _rule(903, "platform", "Nodes compute as the chip does."),
    packing_limits.check_compared: _rule(904, "compared", "The op's numbers were compared with the chip's.", WARNING),
    packing_limits.check_tensor_widths: _rule(905, "tensor-width", "Tensors have widths that the chip lists.", WARNING),
    operand_limits.check_scales: _rule(906, "scale", "Scales are powers of two from 1 on; results are shifted right."),
    window_limits.check_window: _rule(911, "window", "Kernel, stride, padding and dilation are the chip's."),
    window_limits.check_widths: _rule(912, "window-width", "Convolutions have the chip's widths."),
    window_limits.check_depthwise: _rule(913, "depthwise", "Depthwise convolutions are of two axes and fit."),
    window_limits.check_room: _rule(914, "room", "Input or weights of a convolution fit into the chip's memory."),
    window_limits.check_average: _rule(915, "average", "Average pools have windows that the chip divides by."),
    window_limits.check_pool_input: _rule(916, "pool", "Pools take 8-bit pictures."),
    product_limits.check_left_matrix: _rule(921, "left-matrix", "The left matrix of a product fits."),
    product_limits.check_right_matrix: _rule(922, "right-matrix", "The right matrix of a product fits."),
    product_limits.check_product_widths: _rule(923, "product-width", "Matrix products have the chip's widths."),
    product_limits.check_product_rank: _rule(924, "product-rank", "Matrix products have at most three axes."),
    product_limits.check_layer_norm: _rule(925, "layer-norm", "Sums of a layer norm fit.", WARNING),
    product_limits.check_softmax: _rule(926, "softmax", "Softmax runs along the last axis, over rows that fit."),
    product_limits.check_recurrent: _rule(927, "recurrent", "Recurrent nodes have one layer, with time first."),
    operand_limits.check_sum: _rule(931, "sum", "Summands are integers, repeated along one axis at most."),
    operand_limits.check_factor: _rule(932, "factor", "Factors have equal shapes, or are a scalar Constant."),
    operand_limits.check_divisor: _rule(933, "divisor", "Divisors are 8-bit powers of two."),
    operand_limits.check_join: _rule(934, "join", "Wide tensors that are joined have one scale."),
    operand_limits.check_curve: _rule(935, "curve", "Sigmoid and tanh have the width of the chip's tables."),
    operand_limits.check_variance: _rule(936, "variance", "Variances run along axis 2."),
    packing_limits.check_clip: _rule(941, "clip", "There is no Clip."),
    packing_limits.check_transpose: _rule(942, "transpose", "Transposed tensors have few axes and small planes."),
    packing_limits.check_axes_attribute: _rule(943, "axes", "Axes are attributes."),
    packing_limits.check_constant_shape: _rule(944, "constant-shape", "Shapes and bounds are constants."),
    packing_limits.check_slice: _rule(945, "slice", "A Slice cuts one axis, at constant bounds."),
    packing_limits.check_split: _rule(946, "split", "A Split has the attribute that the packer reads."),
    packing_limits.check_quant: _rule(947, "quant", "A Quant makes 8 bits."),
})  # fmt: skip
"""Which rule each check of a limit stands for."""
