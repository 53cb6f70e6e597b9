# SPDX-License-Identifier: Apache-2.0
"""Limits of what runs over rows: matrix products, layer norm, softmax, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from linger.graph.core.finding import Finding, Rule, Site, aligned, one_of
from linger.targets import KB, Target

_LAST = -1
_ALIGNMENT = {8: (4, 8), 16: (4, 2), 32: (2, 2)}
"""Rows and columns of a left matrix are filled up to multiples of these."""


def check_left_matrix(site: Site, target: Target) -> Iterator[Finding]:
    """The chip splits the left matrix by rows; the smallest part must fit."""
    size = site.sizes(0, _LAST)
    if size is None:
        yield site.unchecked("the room for its left matrix")
        return
    bits = site.bits(0) or 8
    rows, columns = _ALIGNMENT[bits]
    part = rows * aligned(size[0], columns) * bits // 8
    if part > target.left_matrix_bytes:
        yield site.error(
            f"{size[0]} numbers in a row need {part} bytes (the chip takes {rows} rows at a time); {target.name} has "
            f"{target.left_matrix_bytes // KB} KB",
            "Cut the rows into shorter ones, multiply each, and add the results.",
        )


def check_right_matrix(site: Site, target: Target) -> Iterator[Finding]:
    """A product of two tensors keeps the right one whole."""
    sizes = site.sizes(1, -2, -1)
    if sizes is None:
        yield site.unchecked("the room for its right matrix")
        return
    bits = site.bits(1) or 8
    columns, rows = _ALIGNMENT[bits]
    size = aligned(sizes[0], rows) * aligned(sizes[1], columns) * bits // 8
    if size > target.right_matrix_bytes:
        yield site.error(
            f"a right matrix of {sizes[0]}×{sizes[1]} needs {size} bytes; {target.name} has "
            f"{target.right_matrix_bytes // KB} KB",
            "Cut its columns into parts, multiply each, and join the results.",
        )


def check_product_widths(site: Site, target: Target) -> Iterator[Finding]:
    """Bits of the weights and the output of a matrix product."""
    weight = site.attribute("parameter_bits", 8)
    if site.op_type == "LinearInt" and weight not in target.weight_bits:
        yield site.error(
            f"{weight}-bit weights; {target.name} has {one_of(target.weight_bits)}",
            f"Choose one of these with linger.quant_module(layer, parameter_bits={target.weight_bits[-1]}).",
        )
    bits = site.attribute("o_bits", 8)
    if bits not in target.output_bits:
        yield site.error(
            f"an output of {bits} bits; {target.name} has {one_of(target.output_bits)}",
            "Choose one of these with linger.quant_module(layer, out_bits=…).",
        )


def check_product_rank(site: Site, target: Target) -> Iterator[Finding]:
    """The packer gets the shape of a fully connected layer's output wrong where there are four axes."""
    del target
    shape, most = site.shape(0), 3
    if shape is None:
        yield site.unchecked("the number of axes of its input")
    elif len(shape) > most:
        yield site.error(
            f"an input of {len(shape)} axes; the packer takes {most}", "Flatten the leading axes before it."
        )


def check_layer_norm(site: Site, target: Target) -> Iterator[Finding]:
    """Its sums N·Σq² and (Σq)² in the chip's integers."""
    shape, weight = site.shape(0), site.shape(1)
    if shape is not None and len(shape) < 3:
        yield site.error(f"an input of {len(shape)} axes; the chip takes 3 or more", "Add an axis of size 1 before it.")
    if target.layer_norm_bits is None:
        return
    if weight is None or None in weight:
        yield site.unchecked("the size of its sums")
        return
    count = math.prod(n for n in weight if n is not None)
    # |q| ≤ 2^(b−1): both N·Σq² and (Σq)² reach N²·2^(2b−2)
    reach = count * count << (2 * site.attribute("data_bits", 8) - 2)
    if reach >= 1 << (target.layer_norm_bits - 1):
        most = math.isqrt(((1 << (target.layer_norm_bits - 1)) - 1) >> (2 * site.attribute("data_bits", 8) - 2))
        yield site.warning(
            f"sums over {count} numbers may reach {reach}, beyond the chip's {target.layer_norm_bits}-bit integers, which wrap",
            f"Normalise over at most {most} numbers, or make sure that the input uses a small part of its range.",
        )


def check_softmax(site: Site, target: Target) -> Iterator[Finding]:
    """The axis and the length of its rows."""
    axis = site.attribute(target.softmax_axis)
    shape = site.shape(0)
    if axis is None:
        yield site.error(
            f"{target.name} reads the axis of softmax from the attribute {target.softmax_axis!r}, which is missing",
            f"Quantise the model for this chip: linger.init(model, target={target.name!r}).",
        )
    last = {_LAST} if shape is None or target.softmax_axis == "axis" else {_LAST, len(shape) - 1}
    if axis is not None and axis not in last:
        yield site.error(
            f"softmax along axis {axis}; {target.name} takes the last axis only, as {_LAST}",
            "Move that axis to the end before it (linger does so by itself for softmax on quantised tensors).",
        )
    size = site.sizes(0, _LAST)
    if size is None:
        yield site.unchecked("the length of its rows")
    elif size[0] > target.softmax_length:
        yield site.error(
            f"rows of {size[0]} numbers; {target.name} has softmax for at most {target.softmax_length}",
            "Use shorter rows, or keep this softmax in float with linger.disable_quant.",
        )


def check_recurrent(site: Site, target: Target) -> Iterator[Finding]:
    """One layer per node; the packer counts the steps along the wrong axis where the batch comes first."""
    del target
    layers = site.attribute("num_layers", 1)
    if layers != 1:
        yield site.error(f"{layers} layers in one node; the chip has one", "Use one recurrent module per layer.")
    sizes = site.sizes(0, 1, 2)
    if not site.attribute("batch_first", 0):
        return
    if sizes is None:
        yield site.unchecked(
            "the number of its steps, which the packer reads from the wrong axis with batch_first=True,"
        )
    elif sizes[0] != sizes[1]:
        yield site.error(
            f"batch_first=True with {sizes[0]} steps of {sizes[1]} numbers; the packer takes the one for the other",
            "Build the layer with batch_first=False and transpose its input.",
        )


RULES: dict[str, tuple[Rule, ...]] = {
    "LinearInt": (check_left_matrix, check_product_widths, check_product_rank),
    "BmmInt": (check_left_matrix, check_right_matrix, check_product_widths, check_product_rank),
    "LayerNormInt": (check_layer_norm,),
    **dict.fromkeys(("SoftmaxInt", "LogSoftmaxInt"), (check_softmax,)),
    **dict.fromkeys(("LSTMInt", "GRUInt"), (check_recurrent,)),
}
"""What is asked of each op type."""
