# SPDX-License-Identifier: Apache-2.0
"""Limits of ops that work on rows: matrix products, layer norm, softmax, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from linger.checks.limits.limit import KB, Site, aligned, limit, one_of
from linger.graph.core.finding import WARNING, Finding

_LAST = -1


@dataclass(frozen=True)
class ProductLimits:
    """The table [products] of a chip's file; `targets/packer.toml` explains each value."""

    weight_bits: tuple[int, ...]
    output_bits: tuple[int, ...]
    axes: int
    alignment: tuple[tuple[int, int, int], ...]
    left_bytes: int
    right_bytes: int
    layer_norm_axes: int
    softmax_axis: str
    softmax_axis_is_negative: bool
    softmax_length: int
    recurrent_layers: int
    layer_norm_bits: int | None = None

    def alignment_of(self, bits: int) -> tuple[int, int]:
        """Rows and columns of a left matrix of this width are filled up to multiples of these."""
        return {width: (rows, columns) for width, rows, columns in self.alignment}[bits]


@limit(921, "left-matrix", "The left matrix of a product fits.")
def check_left_matrix(site: Site) -> Iterator[Finding]:
    """The chip splits the left matrix by rows; the smallest part must fit."""
    limits = site.limits(ProductLimits)
    size = site.sizes(0, _LAST)
    if size is None:
        yield site.unchecked("the room for its left matrix")
        return
    bits = site.bits(0) or 8
    rows, columns = limits.alignment_of(bits)
    part = rows * aligned(size[0], columns) * bits // 8
    if part > limits.left_bytes:
        yield site.error(
            f"{size[0]} numbers in a row need {part} bytes (the chip takes {rows} rows at a time); {site.chip} has "
            f"{limits.left_bytes // KB} KB",
            "Cut the rows into shorter ones, multiply each, and add the results.",
        )


@limit(922, "right-matrix", "The right matrix of a product fits.")
def check_right_matrix(site: Site) -> Iterator[Finding]:
    """In a product of two tensors the right one is not split, so it must fit."""
    limits = site.limits(ProductLimits)
    sizes = site.sizes(1, -2, -1)
    if sizes is None:
        yield site.unchecked("the room for its right matrix")
        return
    bits = site.bits(1) or 8
    columns, rows = limits.alignment_of(bits)
    size = aligned(sizes[0], rows) * aligned(sizes[1], columns) * bits // 8
    if size > limits.right_bytes:
        yield site.error(
            f"a right matrix of {sizes[0]}×{sizes[1]} needs {size} bytes; {site.chip} has "
            f"{limits.right_bytes // KB} KB",
            "Cut its columns into parts, multiply each, and join the results.",
        )


@limit(923, "product-width", "Matrix products have the chip's widths.")
def check_product_widths(site: Site) -> Iterator[Finding]:
    """Bits of the weights and the output of a matrix product."""
    limits = site.limits(ProductLimits)
    weight = site.attribute("parameter_bits", 8)
    if site.op.weight_axes is not None and weight not in limits.weight_bits:
        yield site.error(
            f"{weight}-bit weights; {site.chip} has {one_of(limits.weight_bits)}",
            f"Choose one of these with linger.quant_module(layer, parameter_bits={limits.weight_bits[-1]}).",
        )
    bits = site.attribute("o_bits", 8)
    if bits not in limits.output_bits:
        yield site.error(
            f"an output of {bits} bits; {site.chip} has {one_of(limits.output_bits)}",
            "Choose one of these with linger.quant_module(layer, out_bits=…).",
        )


@limit(924, "product-rank", "Matrix products have at most three axes.")
def check_product_rank(site: Site) -> Iterator[Finding]:
    """The packer gets the shape of a fully connected layer's output wrong where there are more axes."""
    shape, most = site.shape(0), site.limits(ProductLimits).axes
    if shape is None:
        yield site.unchecked("the number of axes of its input")
    elif len(shape) > most:
        yield site.error(
            f"an input of {len(shape)} axes; the packer takes {most}", "Flatten the leading axes before it."
        )


@limit(925, "layer-norm", "Sums of a layer norm fit.", severity=WARNING)
def check_layer_norm(site: Site) -> Iterator[Finding]:
    """The sums N·Σq² and (Σq)² of a layer norm fit into the chip's integers."""
    limits, shape, weight = site.limits(ProductLimits), site.shape(0), site.shape(1)
    if shape is not None and len(shape) < limits.layer_norm_axes:
        yield site.error(
            f"an input of {len(shape)} axes; the chip takes {limits.layer_norm_axes} or more",
            "Add an axis of size 1 before it.",
        )
    if limits.layer_norm_bits is None:
        return
    if weight is None or None in weight:
        yield site.unchecked("the size of its sums")
        return
    count = math.prod(n for n in weight if n is not None)
    # |q| ≤ 2^(b−1): both N·Σq² and (Σq)² reach N²·2^(2b−2)
    reach = count * count << (2 * site.attribute("data_bits", 8) - 2)
    if reach >= 1 << (limits.layer_norm_bits - 1):
        most = math.isqrt(((1 << (limits.layer_norm_bits - 1)) - 1) >> (2 * site.attribute("data_bits", 8) - 2))
        yield site.warning(
            f"sums over {count} numbers may reach {reach}, beyond the chip's {limits.layer_norm_bits}-bit integers, which wrap",
            f"Normalise over at most {most} numbers, or make sure that the input uses a small part of its range.",
        )


@limit(926, "softmax", "Softmax runs along the last axis, over rows that fit.")
def check_softmax(site: Site) -> Iterator[Finding]:
    """The axis of a softmax, and the length of its rows."""
    limits = site.limits(ProductLimits)
    axis = site.attribute(limits.softmax_axis)
    shape = site.shape(0)
    if axis is None:
        yield site.error(
            f"{site.chip} reads the axis of softmax from the attribute {limits.softmax_axis!r}, which is missing",
            f"Quantise the model for this chip: linger.init(model, target={site.chip!r}).",
        )
    last = {_LAST} if shape is None or limits.softmax_axis_is_negative else {_LAST, len(shape) - 1}
    if axis is not None and axis not in last:
        yield site.error(
            f"softmax along axis {axis}; {site.chip} takes the last axis only, as {_LAST}",
            "Move that axis to the end before it (linger does so by itself for softmax on quantised tensors).",
        )
    size = site.sizes(0, _LAST)
    if size is None:
        yield site.unchecked("the length of its rows")
    elif size[0] > limits.softmax_length:
        yield site.error(
            f"rows of {size[0]} numbers; {site.chip} has softmax for at most {limits.softmax_length}",
            "Use shorter rows, or keep this softmax in float with linger.disable_quant.",
        )


@limit(927, "recurrent", "Recurrent nodes have one layer, with time first.")
def check_recurrent(site: Site) -> Iterator[Finding]:
    """One layer per node; the packer counts the steps along the wrong axis where the batch comes first."""
    layers, most = site.attribute("num_layers", 1), site.limits(ProductLimits).recurrent_layers
    if layers != most:
        yield site.error(f"{layers} layers in one node; the chip has {most}", "Use one recurrent module per layer.")
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
