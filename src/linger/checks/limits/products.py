# SPDX-License-Identifier: Apache-2.0
"""Limits of ops that work on rows: matrix products, layer norm, softmax, recurrent layers.

Limits of element-wise ops (sums, products, joins, curves, variances), and of all scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from linger.analysis.multiplications import product_of
from linger.checks.findings.parameters import FACTORS, listed_scales
from linger.checks.limits.limit import BY_EXPORT, KB, QUANTIZE_FOR, Site, aligned, limit, one_of
from linger.dialect import ops
from linger.errors import listing
from linger.graph.core.check_rules import NO_EXACT_FORM
from linger.graph.core.nodes import WARNING, Finding
from linger.graph.lowering.bodies import Shape
from linger.numeric.fixed import is_power_of_two
from linger.targets import Status

_LAST = -1


@dataclass(frozen=True)
class ProductLimits:
    """The table [products] of a chip's file; `targets/packer.toml` explains each value."""

    weight_bits: tuple[int, ...]
    output_bits: tuple[int, ...]
    axes: int
    alignment: tuple[tuple[int, int, int], ...]
    right_bytes: int
    layer_norm_axes: int
    softmax_axis: str
    softmax_axis_is_negative: bool
    softmax_length: int
    recurrent_layers: int
    left_bytes: int | None = None
    layer_norm_bits: int | None = None
    rows: int | None = None
    softmax_axes: int | None = None

    def alignment_of(self, bits: int) -> tuple[int, int]:
        """Rows and columns of a left matrix of this width are filled up to multiples of these."""
        return {width: (rows, columns) for width, rows, columns in self.alignment}[bits]


@limit(921, "left-matrix", "The left matrix of a product fits.")
def check_left_matrix(site: Site) -> Iterator[Finding]:
    """The chip splits the left matrix by rows; the smallest part must fit."""
    limits, size = site.limits(ProductLimits), site.sizes(0, _LAST)
    if limits.left_bytes is None:
        return
    if size is None:
        yield site.unchecked("the room for its left matrix")
        return
    rows, columns = limits.alignment_of(site.bits(0) or 8)
    part = site.bytes(0, rows * aligned(size[0], columns))
    if part > limits.left_bytes:
        need = f"{size[0]} numbers in a row need {part} bytes (the chip takes {rows} rows at a time)"
        reason = f"{need}; {site.chip} has {limits.left_bytes // KB} KB"
        yield site.error(reason, "Cut the rows into shorter ones, multiply each, and add the results.")


@limit(922, "right-matrix", "The right matrix of a product fits.")
def check_right_matrix(site: Site) -> Iterator[Finding]:
    """In a product of two tensors the right one is not split, so it must fit."""
    limits, sizes = site.limits(ProductLimits), site.sizes(1, -2, -1)
    if sizes is None:
        yield site.unchecked("the room for its right matrix")
        return
    columns, rows = limits.alignment_of(site.bits(1) or 8)
    size, room = site.bytes(1, aligned(sizes[0], rows) * aligned(sizes[1], columns)), limits.right_bytes
    if size > room:
        reason = f"a right matrix of {sizes[0]}×{sizes[1]} needs {size} bytes; {site.chip} has {room // KB} KB"
        yield site.error(reason, "Cut its columns into parts, multiply each, and join the results.")


@limit(923, "product-width", "Matrix products have the chip's widths.")
def check_product_widths(site: Site) -> Iterator[Finding]:
    """Bits of the weights and the output of a matrix product."""
    limits = site.limits(ProductLimits)
    weight, data = site.attribute("parameter_bits", 8), site.attribute("data_bits", 8)
    if data not in [width for width, _, _ in limits.alignment]:  # an attribute of a wrong kind may have no hash
        reason = f"{data}-bit input, which nobody has compared with what {site.chip} computes"
        yield site.untried(reason, "Leave data_bits of this layer at 8, or compare a few outputs on the chip.")
    if site.op.weight_axes is not None and weight not in limits.weight_bits:
        remedy = f"Choose one of these with linger.quant_module(layer, parameter_bits={limits.weight_bits[-1]})."
        yield site.error(f"{weight}-bit weights; {site.chip} has {one_of(limits.weight_bits)}{site.beyond}", remedy)
    bits = site.attribute("o_bits", 8)
    if bits not in limits.output_bits:
        reason = f"an output of {bits} bits; {site.chip} has {one_of(limits.output_bits)}"
        yield site.error(reason, "Choose one of these with linger.quant_module(layer, out_bits=…).")


@limit(924, "product-rank", "Matrix products have at most three axes.")
def check_product_rank(site: Site) -> Iterator[Finding]:
    """The packer gets the shape of a fully connected layer's output wrong where there are more axes."""
    shape, most = site.shape(0), site.limits(ProductLimits).axes
    if shape is None:
        yield site.unchecked("the number of axes of its input")
    elif len(shape) > most:
        reason = f"an input of {len(shape)} axes; the packer takes {most}"
        yield site.error(reason, f"Flatten the leading axes before it: {BY_EXPORT.format(site.chip)}.")
    rows, allowed = site.sizes(0, *range(len(shape or ()) - 1)), site.limits(ProductLimits).rows
    if allowed is not None and site.op.weight_axes is not None and (rows is None or math.prod(rows) > allowed):
        found = "an open number of" if rows is None else str(math.prod(rows))
        reason = f"{found} rows; {site.chip} was seen to compute more than {allowed} otherwise"
        yield site.error(reason, f"Give it one. {NO_EXACT_FORM}")


@limit(925, "layer-norm", "Sums of a layer norm fit.", severity=WARNING)
def check_layer_norm(site: Site) -> Iterator[Finding]:
    """The sums N·Σq² and (Σq)² of a layer norm fit into the chip's integers."""
    limits, shape, weight, last = site.limits(ProductLimits), site.shape(0), site.shape(1), site.sizes(0, _LAST)
    if shape is not None and len(shape) < limits.layer_norm_axes:
        reason = f"an input of {len(shape)} axes; the chip takes {limits.layer_norm_axes} or more"
        yield site.error(reason, f"Add an axis of size 1 before it: {BY_EXPORT.format(site.chip)}.")
    if weight is not None and last is not None and weight != last:
        reason = f"normalizes {weight[0]} numbers, more than the last axis has; the chip computes that otherwise"
        remedy = "Flatten these axes before it and normalize one axis, which gives the same numbers"
        yield site.error(reason, f"{remedy}: {BY_EXPORT.format(site.chip)}.")
    if limits.layer_norm_bits is not None:
        yield from _norm_sum_findings(site, product_of(weight), limits.layer_norm_bits)


def _norm_sum_findings(site: Site, count: int | None, bits: int) -> Iterator[Finding]:
    if count is None:
        yield site.unchecked("the size of its sums")
        return
    # |q| ≤ 2^(b−1): both N·Σq² and (Σq)² reach N²·2^(2b−2)
    shift, end = 2 * site.attribute("data_bits", 8) - 2, 1 << (bits - 1)
    reach = count * count << shift
    if reach >= end:
        reason = f"sums over {count} numbers may reach {reach}, beyond the chip's {bits}-bit integers, which wrap"
        most = f"Normalize over at most {math.isqrt((end - 1) >> shift)} numbers"
        yield site.warning(reason, f"{most}, or make sure that the input uses a small part of its range.")


@limit(926, "softmax", "Softmax runs along the last axis, over rows that fit.")
def check_softmax(site: Site) -> Iterator[Finding]:
    """The axis of a softmax, and the length of its rows."""
    limits, shape = site.limits(ProductLimits), site.shape(0)
    axis, axes, size = site.attribute(limits.softmax_axis), limits.softmax_axes, site.sizes(0, _LAST)
    last = {_LAST} if shape is None or limits.softmax_axis_is_negative else {_LAST, len(shape) - 1}
    if axis is None:
        reason = f"{site.chip} reads the axis of softmax from the attribute {limits.softmax_axis!r}, which is missing"
        outside = f"{NO_EXACT_FORM} Leave it out of the model: its largest input decides anyway."
        yield site.error(reason, QUANTIZE_FOR.format(site.chip) if site.chip in site.op.variants else outside)
    elif axis not in last:
        remedy = "Move that axis to the end before it (linger does so by itself for softmax on quantized tensors)."
        yield site.error(f"softmax along axis {axis}; {site.chip} takes the last axis only, as {_LAST}", remedy)
    if shape is not None and axes not in (None, len(shape)):
        reason = f"softmax of a tensor of {len(shape)} axes; {site.chip} was seen to be exact on {axes} only"
        yield site.error(reason, f"Flatten the leading axes before it. {NO_EXACT_FORM}")
    if size is None:
        yield site.unchecked("the length of its rows")
    elif size[0] > limits.softmax_length:
        reason = f"rows of {size[0]} numbers; {site.chip} has softmax for at most {limits.softmax_length}"
        yield site.error(reason, f"Use shorter rows. {NO_EXACT_FORM}")


@limit(927, "recurrent", "Recurrent nodes have one layer and as many steps as inputs, for one sequence at a time.")
def check_recurrent(site: Site) -> Iterator[Finding]:
    """One layer per node, the batch first; the packer takes the number of steps for that of inputs, so both must be equal."""
    layers, most = site.attribute("num_layers", 1), site.limits(ProductLimits).recurrent_layers
    if layers != most:
        yield site.error(f"{layers} layers in one node; the chip has {most}", "Use one recurrent module per layer.")
    if not site.attribute("batch_first", 0):
        reason = "batch_first=False, with which the packer gives another shape"
        yield site.error(reason, "Build the layer with batch_first=True, and as many steps as each step has numbers.")
        return
    if len(site.node.inputs) > len(site.op.forms[0]) or any(output.uses() for output in site.node.outputs[1:]):
        reason = f"lengths, or states that go in or out, which nobody has compared with what {site.chip} computes"
        yield site.warning(reason, "Use the sequence alone, or compare a few outputs on the chip.")
    batch, steps, numbers = site.sizes(0, 0, 1, 2) or (None, None, None)
    if batch is None:
        yield site.unchecked("the number of its sequences and steps")
    elif batch != 1:
        yield site.error(f"{batch} sequences at once, which the chip computes otherwise", "Give it one at a time.")
    if steps != numbers:
        reason = f"{steps} steps of {numbers} numbers; the packer takes the one for the other"
        yield site.error(reason, f"Use as many steps as each has numbers. {NO_EXACT_FORM}")


_FOLD = (
    "Fold the number into the bias of the layer before, or make it a tensor of the same shape: of a constant a "
    "registered buffer, of a computed tensor torch.cat of copies."
)


@dataclass(frozen=True)
class OperandLimits:
    """The table [operands] of a chip's file; `targets/packer.toml` explains each value."""

    smallest_scale: int
    repeated_axes: int
    divisor_bits: int
    factor_shapes: str
    packed_curve_bits: Mapping[str, int]
    variance_axis: int
    has_mixed_joins: bool
    curve_bits: int | None = None
    mixed_join_bits: int | None = None


@limit(906, "scale", "Scales are powers of two from 1 on; results are shifted right.", everywhere=True)
def check_scales(site: Site) -> Iterator[Finding]:
    """Powers of two that are not too small; products and sums shift right only."""
    kinds, smallest = (ir.AttributeType.FLOAT, ir.AttributeType.INT), site.limits(OperandLimits).smallest_scale
    stated = {n: a for n, a in site.node.attributes.items() if n.startswith("scale_") and not a.is_ref()}
    scales = {name: float(attribute.value) for name, attribute in stated.items() if attribute.type in kinds}
    wrong = listed_scales(scales, lambda scale: not is_power_of_two(scale))
    small = listed_scales(scales, lambda scale: scale < smallest)
    if wrong:
        yield site.error(f"{wrong}: no power of two; the chip only shifts", "Choose scales that are powers of two.")
        return
    if small:
        beyond = "(values beyond the range of the integers themselves)"
        remedy = "Keep the layer's range smaller, with linger.normalize_layers or a scaled input."
        yield site.error(f"{small}: {site.chip} has no scales below {smallest} {beyond}", remedy)
    yield from _shift_findings(site, scales)


def _shift_findings(site: Site, scales: dict[str, float]) -> Iterator[Finding]:
    """Results of products and sums that would be shifted left; only ops that have limits on chips are known to be concerned."""
    op, output = ops().get(site.op_type), scales.get("scale_o", 0.0)
    if op is None or not op.chip_limits or op.limit not in (math.prod, min):
        return
    names = [a.name for a in op.attributes if a.name in FACTORS]
    bound = op.limit(scales.get(name, math.inf) for name in names)
    if output > bound:
        what, whose = ("output", "the product") if op.limit is math.prod else ("sum", "an operand")
        reason = f"the {what}'s scale {output:g} is above {bound:g}, that of {whose}; the chip shifts right only"
        yield site.error(reason, "Train or calibrate the model with linger, which keeps to that.")


@limit(931, "sum", "Summands are integers, repeated along no more axes than the chip has.")
def check_sum(site: Site) -> Iterator[Finding]:
    """Two integer tensors of which one is repeated along few axes."""
    if site.is_float(1):
        yield site.error("a float operand, which the packer refuses", _FOLD)
        return
    axes, most = _broadcast_axes(site), site.limits(OperandLimits).repeated_axes
    if axes is None:
        yield site.unchecked("how its operands are broadcast")
    elif axes > most:
        times = "1 axis" if axes == 1 else f"{axes} axes"
        yield site.error(f"one operand is repeated along {times}; {site.chip} takes {most}", _FOLD)


@limit(932, "factor", "Factors have equal shapes, or are a scalar Constant.")
def check_factor(site: Site) -> Iterator[Finding]:
    """A tensor of the same shape, one number per channel, or a scalar in a Constant node."""
    content, x, y = site.constant(1), site.shape(0), site.shape(1)
    allowed = site.limits(OperandLimits).factor_shapes
    if content is not None and content.size == 1:
        yield from _check_scalar(site)
    elif allowed == "any":
        return
    elif x is None or y is None:
        yield site.unchecked("how its operands are broadcast")
    elif _broadcast_axes(site) != 0 and not (allowed == "channel" and _is_per_channel(x, y)):
        also = ", or by one number per channel" if allowed == "channel" else ""
        shapes = f"{list(x)} and {list(y)}".replace("None", "?")
        reason = f"operands of the shapes {shapes}; the chip multiplies equal shapes{also}"
        yield site.error(reason, "Repeat the smaller operand with torch.cat, until both have one shape.")


def _is_per_channel(x: Shape, y: Shape) -> bool:
    """Whether y is [C, 1, 1], leading axes of size 1 aside, for images x."""
    return len(x) == 4 and len(y) >= 3 and y[-3:] == (x[1], 1, 1) and all(n == 1 for n in y[:-3])


@limit(933, "divisor", "Divisors are 8-bit powers of two.")
def check_divisor(site: Site) -> Iterator[Finding]:
    """A scalar of the chip's width that is a power of two, of either sign."""
    content, bits = site.constant(1), site.limits(OperandLimits).divisor_bits
    is_scalar = content is not None and content.size == 1 and content.dtype == f"int{bits}"
    if content is None or not is_scalar or not is_power_of_two(abs(float(content.reshape(-1)[0]))):
        reason = f"a divisor that is no {bits}-bit power of two, the only one that the chip runs"
        yield site.error(reason, "Multiply by the reciprocal instead (iqMul by a number is exact).")
    else:
        yield from _check_scalar(site)


@limit(934, "join", "Wide tensors that are joined have one scale.")
def check_join(site: Site) -> Iterator[Finding]:
    """Tensors of different scales: wide ones cannot be joined, on some chips none."""
    limits, count = site.limits(OperandLimits), len(site.node.inputs)
    if len({site.attribute(f"scale_x_{i}") for i in range(count)} | {site.attribute("scale_o")}) < 2:
        return
    if not limits.has_mixed_joins:
        reason = f"joins tensors of different scales, which {site.chip} was seen to compute otherwise"
        remedy = "Let the tensors come from layers of one range: linger.normalize_layers with equal limits, or a ReLU6 behind each."
        yield site.error(reason, remedy)
    most = limits.mixed_join_bits
    if most is not None and any((site.bits(i) or 0) > most for i in range(count)):
        reason = f"joins numbers of more than {most} bits at different scales; the chip does that for {most} bits only"
        yield site.error(reason, f"Leave out_bits of the layers before at {most}.")


@limit(935, "curve", "Sigmoid and tanh have the width of the chip's tables.")
def check_curve(site: Site) -> Iterator[Finding]:
    """The width that the chip's tables take, or for which the packer asks whatever they take."""
    limits, bits = site.limits(OperandLimits), site.bits(0)
    if bits is None or site.target.status_of(site.op_type) is Status.REFUSED:
        return
    packed = limits.packed_curve_bits.get(site.op_type)
    if packed is not None and packed != limits.curve_bits:
        if bits != packed:
            reason = f"{bits}-bit input of {site.op_type}, for which the packer asks for {packed} bits on every chip"
            yield site.warning(reason, f"Try the file on the chip. {NO_EXACT_FORM}")
    elif limits.curve_bits not in (None, bits):
        reason = f"{bits}-bit input; {site.chip} takes {limits.curve_bits} bits here"
        yield site.error(reason, QUANTIZE_FOR.format(site.chip))


@limit(936, "variance", "Variances run along axis 2.")
def check_variance(site: Site) -> Iterator[Finding]:
    """The packer reduces one axis whatever is asked for."""
    axis = site.limits(OperandLimits).variance_axis
    if site.attribute("dim", axis) != axis:
        reason = f"a variance along axis {site.attribute('dim')}; the packer takes axis {axis}"
        yield site.error(reason, f"Move that axis to place {axis}.")


def _check_scalar(site: Site) -> Iterator[Finding]:
    value, content = site.input(1), site.constant(1)
    assert content is not None  # callers ask first
    assert value is not None
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or content.ndim != 0:
        reason = "a scalar operand that is no Constant node of rank 0, which runs silently wrong on the chip"
        yield site.error(reason, "Write it as a Constant node of rank 0, as linger's own export does (not simplified).")


def _broadcast_axes(site: Site) -> int | None:
    """Along how many axes one of two operands is repeated; None where that depends on an open size."""
    x, y = site.shape(0), site.shape(1)
    if x is None or y is None:
        return None
    rank = max(len(x), len(y))
    pairs = list(zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True))
    # two open sizes come from the same batch
    if any((a is None) != (b is None) and 1 not in (a, b) for a, b in pairs):
        return None
    return sum(a != b for a, b in pairs)


@dataclass(frozen=True)
class PackingLimits:
    """The table [packing] of a chip's file; `targets/packer.toml` explains each value."""

    data_bits: tuple[int, ...]
    quant_bits: int
    slice_axes: int
    padded_axes: int
    padded_rank: int
    dequant_bits: int
    plane_bytes: int
    model_bytes: int
    turned_orders: Mapping[str, int]
    transposed_axes: int | None = None
    turned_bytes: int | None = None
    orders: tuple[str, ...] | None = None


@limit(941, "clip", "There is no Clip.")
def check_clip(site: Site) -> Iterator[Finding]:
    """Clip that limits inside the range of the integers, as ReLU6 does."""
    if not site.target.takes("Clip"):
        clip = f"{site.chip}'s packer cannot take Clip (ReLU6, clamp)"
        init = f"Quantize the model for this chip, linger.init(model, target={site.chip!r})"
        relu = (
            "a ReLU6 then is a Relu whose integers saturate, in training too. For other bounds no exact form is known."
        )
        yield site.error(f"{clip}, and here it limits inside the range of the integers", f"{init}: {relu}")


@limit(942, "transpose", "Transposed tensors have few axes and small planes.", "Transpose")
def check_transpose(site: Site) -> Iterator[Finding]:
    """Axes and planes of a tensor whose axes are exchanged."""
    limits, shape, order = site.limits(PackingLimits), site.shape(0), site.attribute("perm")
    name, most = "".join(map(str, order or ())), limits.transposed_axes  # as the chips' files write it: 0213
    if shape is None:
        yield site.unchecked("the number of its axes")
    elif most is None or site.is_of_floats or order == tuple(range(len(shape))):
        return
    elif len(shape) > most:
        reason = f"exchanges axes of a tensor of {len(shape)} axes; {site.chip} has that for at most {most}"
        remedy = "Keep the order of axes, or merge axes that stay together with a reshape first; else no exact form is known."
        yield site.error(reason, remedy)
    elif limits.orders is not None:
        if name not in limits.orders:
            reason = f"the order {name} of axes, which {site.chip} was seen to compute otherwise, or nobody has tried"
            yield site.error(reason, f"Use one of {listing(limits.orders)}, with the batch first. {NO_EXACT_FORM}")
    else:
        yield from _turning_findings(site, limits, shape, name)


def _turning_findings(site: Site, limits: PackingLimits, shape: Shape, order: str) -> Iterator[Finding]:
    """Tensors of three axes with large planes, and of more; not those that were seen to be exact in this order."""
    count, plane = product_of(shape), site.sizes(0, -2, -1)
    remedy = "Cut the tensor into parts, turn each, and join them."
    if count is not None and site.bytes(0, count) <= limits.turned_orders.get(order, 0):
        return
    if len(shape) == 3:
        size, room = None if plane is None else site.bytes(0, math.prod(plane)), limits.plane_bytes
        what, has, unknown = "planes", f"{site.chip} has", "the size of its planes"
    elif len(shape) > 3 and limits.turned_bytes is not None:
        size, room = None if count is None else site.bytes(0, count), limits.turned_bytes
        what, has, unknown = "a tensor", f"{site.chip} has room for", "its size"
        if order[:1] != "0":
            reason = f"moves the first axis of a tensor of four axes; {site.chip} leaves that in place"
            yield site.error(reason, "Keep the batch first.")
            return
    else:
        return
    if size is None:
        yield site.unchecked(unknown)
    elif size > room:
        yield site.error(f"exchanges axes of {what} of {size} bytes; {has} {room // KB} KB", remedy)


@limit(943, "axes", "Axes are attributes, counted from the front.", "Squeeze", "Unsqueeze")
def check_axes_attribute(site: Site) -> Iterator[Finding]:
    """The packer reads axes from an attribute, as opsets below 13 have it, and takes positive ones."""
    if len(site.node.inputs) > 1:
        reason = "its axes are an input, which the packer does not read"
        yield site.error(reason, "Export with opset_version=12 or 11, and dynamo=False.")
    negative = next((axis for axis in site.attribute("axes", ()) if axis < 0), None)
    if negative is not None:
        takes = "the packer takes axes that are counted from the front"
        remedy = f"Write the positive axis, as in x.unsqueeze(2): {BY_EXPORT.format(site.chip)}."
        yield site.error(f"its axis {negative} is counted from the end; {takes}", remedy)


@limit(944, "constant-shape", "Shapes and bounds are constants.", "Reshape", "Expand")
def check_constant_shape(site: Site) -> Iterator[Finding]:
    """The packer reads shapes while it packs."""
    if any(site.input(i) is not None and site.constant(i) is None for i in range(1, len(site.node.inputs))):
        remedy = "Export without dynamic_axes or with target=…, so that every size is fixed and the shape a constant."
        yield site.error("its shape or bounds are computed; the packer wants constants", remedy)


@limit(945, "slice", "A Slice cuts one axis, at constant bounds.", "Slice")
def check_slice(site: Site) -> Iterator[Finding]:
    """Constant bounds, and few axes at a time."""
    yield from check_constant_shape.check(site)
    starts, steps, most = site.constant(1), site.constant(4), site.limits(PackingLimits).slice_axes
    if starts is not None and starts.size > most:
        reason = f"slices {starts.size} axes at once; the packer takes {most}"
        yield site.error(reason, "Slice one axis after the other.")
    step = next((step for step in (() if steps is None else steps.reshape(-1).tolist()) if step != 1), None)
    if step is not None:
        also = " A convolution that reads it can step itself (stride=2)." if step > 1 else ""
        yield site.error(f"steps by {step}; the engine takes every number", f"{NO_EXACT_FORM}{also}")


@limit(946, "split", "A Split has the attribute that the packer reads.", "Split")
def check_split(site: Site) -> Iterator[Finding]:
    """The packer reads the sizes of the parts from an attribute `dims` that ONNX does not have."""
    if site.attribute("dims") is None:
        reason = "the packer reads the parts of Split from an attribute 'dims', which standard ONNX does not have"
        yield site.error(reason, f"Slice the parts out (x[:, :n], x[:, n:]): {BY_EXPORT.format(site.chip)}.")


@limit(947, "quant", "A Quant makes 8 bits.")
def check_quant(site: Site) -> Iterator[Finding]:
    """The chip's Quant makes one width."""
    bits, made = site.attribute("data_bits", 8), site.limits(PackingLimits).quant_bits
    if bits != made:
        reason = f"quantizes to {bits} bits; {site.chip} makes {made} bits whatever is asked for"
        yield site.error(reason, f"Leave data_bits of the layer behind at {made}.")


@limit(949, "pad", "A border is of zeros, around few axes.")
def check_pad(site: Site) -> Iterator[Finding]:
    """How many axes one iqPad pads, of how many, and with what."""
    pads, value, limits, shape = site.constant(1), site.constant(2), site.limits(PackingLimits), site.shape(0)
    pads = np.zeros(0) if pads is None else pads
    padded = np.count_nonzero(pads.reshape(2, -1).any(axis=0)) if pads.size % 2 == 0 else 0
    if shape is not None and len(shape) != limits.padded_rank:
        more, fewer = f"Add axes of size 1 before it: {BY_EXPORT.format(site.chip)}.", "Merge axes with a reshape."
        reason = f"pads a tensor of {len(shape)} axes; the engine takes {limits.padded_rank}"
        yield site.error(reason, more if len(shape) < limits.padded_rank else fewer)
    if padded > limits.padded_axes:
        reason = f"pads {padded} axes; the engine takes {limits.padded_axes}"
        yield site.error(reason, "Leave padding to the convolution behind (padding=).")
    if (pads < 0).any():
        remedy = f"Slice them off instead (x[..., 1:]). {NO_EXACT_FORM}"
        yield site.error("cuts numbers off, by a negative padding", remedy)
    if value is not None and value.any():
        reason = f"a border of {value.reshape(-1).tolist()[0]}; the packer takes zeros"
        yield site.error(reason, f"Pad with zeros. {NO_EXACT_FORM}")


@limit(950, "wide-end", "Integers that become real numbers have 8 bits.")
def check_wide_dequant(site: Site) -> Iterator[Finding]:
    """A Dequant of wide integers, which the packer makes 8 bits; at the end of a network it leaves it out by default."""
    bits, most = site.bits(0), site.limits(PackingLimits).dequant_bits
    if bits is None or bits <= most:
        return
    reason = f"turns {bits}-bit integers into real numbers; {site.chip}'s packer takes them for {most} bits"
    if all(output.is_graph_output() and not output.uses() for output in site.node.outputs):
        export = "export with is_input_quant=True: the file then ends in integers, which are exact."
        yield site.warning(f"{reason} where it keeps the float ends", f"Pack without keeping them, or {export}")
    else:
        yield site.error(reason, f"Leave out_bits of the layer before at {most}.")


@limit(905, "tensor-width", "Tensors have widths that the chip lists.", severity=WARNING, everywhere=True)
def check_tensor_widths(site: Site) -> Iterator[Finding]:
    """Widths that the chip's documents do not list."""
    known, widths = site.limits(PackingLimits).data_bits, {site.bits(i) for i in range(len(site.node.inputs))}
    strange = sorted(bits for bits in widths if bits is not None and bits not in known)
    if strange and site.op_type != "Dequant":
        reason = f"works on {strange[0]}-bit numbers; {site.chip} is documented for {', '.join(map(str, known))} bits"
        yield site.untried(reason, "Leave out_bits of the layer before at 8, or try the file on the chip.")
