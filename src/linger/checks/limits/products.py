# SPDX-License-Identifier: Apache-2.0
"""Limits of ops that work on rows: matrix products, layer norm, softmax, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from linger.checks.limits.limit import BY_EXPORT, KB, NO_EXACT_FORM, Site, aligned, limit, one_of
from linger.graph.core.finding import WARNING, Finding

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
    limits = site.limits(ProductLimits)
    size = site.sizes(0, _LAST)
    if limits.left_bytes is None:
        return
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
    weight, data = site.attribute("parameter_bits", 8), site.attribute("data_bits", 8)
    if data not in {width for width, _, _ in limits.alignment}:
        yield site.untried(
            f"{data}-bit input, which nobody has compared with what {site.chip} computes",
            "Leave data_bits of this layer at 8, or compare a few outputs on the chip.",
        )
    if site.op.weight_axes is not None and weight not in limits.weight_bits:
        yield site.error(
            f"{weight}-bit weights; {site.chip} has {one_of(limits.weight_bits)}{site.beyond}",
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
            f"an input of {len(shape)} axes; the packer takes {most}",
            f"Flatten the leading axes before it: {BY_EXPORT.format(site.chip)}.",
        )
    rows, allowed = site.sizes(0, *range(len(shape or ()) - 1)), site.limits(ProductLimits).rows
    if allowed is not None and site.op.weight_axes is not None and (rows is None or math.prod(rows) > allowed):
        found = "an open number of" if rows is None else str(math.prod(rows))
        yield site.error(
            f"{found} rows; {site.chip} was seen to compute more than {allowed} otherwise",
            f"Give it one. {NO_EXACT_FORM}",
        )


@limit(925, "layer-norm", "Sums of a layer norm fit.", severity=WARNING)
def check_layer_norm(site: Site) -> Iterator[Finding]:
    """The sums N·Σq² and (Σq)² of a layer norm fit into the chip's integers."""
    limits, shape, weight = site.limits(ProductLimits), site.shape(0), site.shape(1)
    if shape is not None and len(shape) < limits.layer_norm_axes:
        yield site.error(
            f"an input of {len(shape)} axes; the chip takes {limits.layer_norm_axes} or more",
            f"Add an axis of size 1 before it: {BY_EXPORT.format(site.chip)}.",
        )
    last = site.sizes(0, _LAST)
    if weight is not None and last is not None and weight != last:
        yield site.error(
            f"normalises {weight[0]} numbers, more than the last axis has; the chip computes that otherwise",
            f"Flatten these axes before it and normalise one axis, which gives the same numbers: {BY_EXPORT.format(site.chip)}.",
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
        has_own_form = site.chip in site.op.variants
        yield site.error(
            f"{site.chip} reads the axis of softmax from the attribute {limits.softmax_axis!r}, which is missing",
            f"Quantise the model for this chip: linger.init(model, target={site.chip!r})."
            if has_own_form
            else f"{NO_EXACT_FORM} Leave it out of the model: its largest input decides anyway.",
        )
    last = {_LAST} if shape is None or limits.softmax_axis_is_negative else {_LAST, len(shape) - 1}
    if axis is not None and axis not in last:
        yield site.error(
            f"softmax along axis {axis}; {site.chip} takes the last axis only, as {_LAST}",
            "Move that axis to the end before it (linger does so by itself for softmax on quantised tensors).",
        )
    axes, size = limits.softmax_axes, site.sizes(0, _LAST)
    if axes is not None and shape is not None and len(shape) != axes:
        yield site.error(
            f"softmax of a tensor of {len(shape)} axes; {site.chip} was seen to be exact on {axes} only",
            f"Flatten the leading axes before it. {NO_EXACT_FORM}",
        )
    if size is None:
        yield site.unchecked("the length of its rows")
    elif size[0] > limits.softmax_length:
        yield site.error(
            f"rows of {size[0]} numbers; {site.chip} has softmax for at most {limits.softmax_length}",
            f"Use shorter rows. {NO_EXACT_FORM}",
        )


@limit(927, "recurrent", "Recurrent nodes have one layer and as many steps as inputs, for one sequence at a time.")
def check_recurrent(site: Site) -> Iterator[Finding]:
    """One layer per node, the batch first; the packer takes the number of steps for that of inputs, so both must be equal."""
    limits = site.limits(ProductLimits)
    layers, most = site.attribute("num_layers", 1), limits.recurrent_layers
    if layers != most:
        yield site.error(f"{layers} layers in one node; the chip has {most}", "Use one recurrent module per layer.")
    if not site.attribute("batch_first", 0):
        yield site.error(
            "batch_first=False, with which the packer gives another shape",
            "Build the layer with batch_first=True, and as many steps as each step has numbers.",
        )
        return
    if len(site.node.inputs) > len(site.op.forms[0]) or any(output.uses() for output in site.node.outputs[1:]):
        yield site.warning(
            f"lengths, or states that go in or out, which nobody has compared with what {site.chip} computes",
            "Use the sequence alone, or compare a few outputs on the chip.",
        )
    sizes = site.sizes(0, 0, 1, 2)
    if sizes is None:
        yield site.unchecked("the number of its sequences and steps")
        return
    yield from _sequence_findings(site, *sizes)


def _sequence_findings(site: Site, batch: int, steps: int, numbers: int) -> Iterator[Finding]:
    if batch != 1:
        yield site.error(f"{batch} sequences at once, which the chip computes otherwise", "Give it one at a time.")
    if steps != numbers:
        yield site.error(
            f"{steps} steps of {numbers} numbers; the packer takes the one for the other",
            f"Use as many steps as each has numbers. {NO_EXACT_FORM}",
        )
