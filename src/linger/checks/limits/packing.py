# SPDX-License-Identifier: Apache-2.0
"""Limits of the packer for nodes that move numbers, and for the ends of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from linger.analysis.multiplications import product_of
from linger.checks.limits.limit import BY_EXPORT, KB, NO_EXACT_FORM, Site, limit
from linger.errors import listing
from linger.graph.core.nodes import WARNING, Finding
from linger.graph.lowering.bodies import Shape

_CONSTANT_SHAPE = "Export without dynamic_axes or with target=…, so that every size is fixed and the shape a constant."


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
        yield site.error(
            f"{site.chip}'s packer cannot take Clip (ReLU6, clamp), and here it limits inside the range of the integers",
            f"Quantize the model for this chip, linger.init(model, target={site.chip!r}): a ReLU6 then is a Relu whose integers "
            "saturate, in training too. For other bounds no exact form is known.",
        )


@limit(942, "transpose", "Transposed tensors have few axes and small planes.", "Transpose")
def check_transpose(site: Site) -> Iterator[Finding]:
    """Axes and planes of a tensor whose axes are exchanged."""
    limits = site.limits(PackingLimits)
    shape, order = site.shape(0), site.attribute("perm")
    name = "".join(map(str, order or ()))  # as the chips' files write it: 0213
    if shape is None:
        yield site.unchecked("the number of its axes")
    elif limits.transposed_axes is None or site.is_of_floats or order == tuple(range(len(shape))):
        return
    elif len(shape) > limits.transposed_axes:
        most = limits.transposed_axes
        yield site.error(
            f"exchanges axes of a tensor of {len(shape)} axes; {site.chip} has that for at most {most}",
            f"Keep the order of axes, or merge axes that stay together with a reshape first; else {NO_EXACT_FORM[0].lower()}"
            f"{NO_EXACT_FORM[1:]}",
        )
    elif limits.orders is not None:
        if name not in limits.orders:
            yield site.error(
                f"the order {name} of axes, which {site.chip} was seen to compute otherwise, or nobody has tried",
                f"Use one of {listing(limits.orders)}, with the batch first. {NO_EXACT_FORM}",
            )
    elif _was_exact(site, limits, shape, name):
        return
    elif len(shape) == 3:
        yield from _plane_findings(site, limits)
    elif len(shape) > 3 and limits.turned_bytes is not None:
        yield from _turning_findings(site, limits.turned_bytes, order)


def _was_exact(site: Site, limits: PackingLimits, shape: Shape, name: str) -> bool:
    """Whether a tensor as large was seen to be exact in this order."""
    count = product_of(shape)
    return count is not None and count * (site.bits(0) or 8) // 8 <= limits.turned_orders.get(name, 0)


def _plane_findings(site: Site, limits: PackingLimits) -> Iterator[Finding]:
    plane = site.sizes(0, -2, -1)
    if plane is None:
        yield site.unchecked("the size of its planes")
        return
    size = math.prod(plane) * (site.bits(0) or 8) // 8
    if size > limits.plane_bytes:
        yield site.error(
            f"exchanges axes of planes of {size} bytes; {site.chip} has {limits.plane_bytes // KB} KB",
            "Cut the tensor into parts, turn each, and join them.",
        )


def _turning_findings(site: Site, room: int, order: tuple[int, ...] | None) -> Iterator[Finding]:
    shape = site.shape(0)
    if not order or order[0] != 0:
        yield site.error(
            f"moves the first axis of a tensor of four axes; {site.chip} leaves that in place", "Keep the batch first."
        )
    elif shape is None or None in shape:
        yield site.unchecked("its size")
    else:
        size = math.prod(n for n in shape if n is not None) * (site.bits(0) or 8) // 8
        if size > room:
            yield site.error(
                f"exchanges axes of a tensor of {size} bytes; {site.chip} has room for {room // KB} KB",
                "Cut the tensor into parts, turn each, and join them.",
            )


@limit(943, "axes", "Axes are attributes, counted from the front.", "Squeeze", "Unsqueeze")
def check_axes_attribute(site: Site) -> Iterator[Finding]:
    """The packer reads axes from an attribute, as opsets below 13 have it, and takes positive ones."""
    if len(site.node.inputs) > 1:
        yield site.error(
            "its axes are an input, which the packer does not read",
            "Export with opset_version=12 or 11, and dynamo=False.",
        )
    negative = [axis for axis in site.attribute("axes", ()) if axis < 0]
    if negative:
        yield site.error(
            f"its axis {negative[0]} is counted from the end; the packer takes axes that are counted from the front",
            f"Write the positive axis, as in x.unsqueeze(2): {BY_EXPORT.format(site.chip)}.",
        )


@limit(944, "constant-shape", "Shapes and bounds are constants.", "Reshape", "Expand")
def check_constant_shape(site: Site) -> Iterator[Finding]:
    """The packer reads shapes while it packs."""
    yield from _computed_bounds(site)


def _computed_bounds(site: Site) -> Iterator[Finding]:
    if any(site.input(i) is not None and site.constant(i) is None for i in range(1, len(site.node.inputs))):
        yield site.error("its shape or bounds are computed; the packer wants constants", _CONSTANT_SHAPE)


@limit(945, "slice", "A Slice cuts one axis, at constant bounds.", "Slice")
def check_slice(site: Site) -> Iterator[Finding]:
    """Constant bounds, and few axes at a time."""
    yield from _computed_bounds(site)
    starts, most = site.constant(1), site.limits(PackingLimits).slice_axes
    if starts is not None and starts.size > most:
        yield site.error(
            f"slices {starts.size} axes at once; the packer takes {most}", "Slice one axis after the other."
        )
    steps = site.constant(4)
    if steps is not None and any(step != 1 for step in steps.reshape(-1).tolist()):
        (step, *_) = [step for step in steps.reshape(-1).tolist() if step != 1]
        also = " A convolution that reads it can step itself (stride=2)." if step > 1 else ""
        yield site.error(f"steps by {step}; the engine takes every number", f"{NO_EXACT_FORM}{also}")


@limit(946, "split", "A Split has the attribute that the packer reads.", "Split")
def check_split(site: Site) -> Iterator[Finding]:
    """The packer reads the sizes of the parts from an attribute `dims` that ONNX does not have."""
    if site.attribute("dims") is None:
        yield site.error(
            "the packer reads the parts of Split from an attribute 'dims', which standard ONNX does not have",
            f"Slice the parts out (x[:, :n], x[:, n:]): {BY_EXPORT.format(site.chip)}.",
        )


@limit(947, "quant", "A Quant makes 8 bits.")
def check_quant(site: Site) -> Iterator[Finding]:
    """The chip's Quant makes one width."""
    bits, made = site.attribute("data_bits", 8), site.limits(PackingLimits).quant_bits
    if bits != made:
        yield site.error(
            f"quantizes to {bits} bits; {site.chip} makes {made} bits whatever is asked for",
            f"Leave data_bits of the layer behind at {made}.",
        )


@limit(949, "pad", "A border is of zeros, around few axes.")
def check_pad(site: Site) -> Iterator[Finding]:
    """How many axes one iqPad pads, of how many, and with what."""
    pads, value, most = site.constant(1), site.constant(2), site.limits(PackingLimits).padded_axes
    shape, rank = site.shape(0), site.limits(PackingLimits).padded_rank
    if shape is not None and len(shape) != rank:
        more, fewer = f"Add axes of size 1 before it: {BY_EXPORT.format(site.chip)}.", "Merge axes with a reshape."
        reason = f"pads a tensor of {len(shape)} axes; the engine takes {rank}"
        yield site.error(reason, more if len(shape) < rank else fewer)
    if pads is not None and pads.size % 2 == 0:
        padded = int((pads.reshape(2, -1) != 0).any(axis=0).sum())
        if padded > most:
            yield site.error(
                f"pads {padded} axes; the engine takes {most}", "Leave padding to the convolution behind (padding=)."
            )
    if pads is not None and (pads < 0).any():
        yield site.error(
            "cuts numbers off, by a negative padding", f"Slice them off instead (x[..., 1:]). {NO_EXACT_FORM}"
        )
    if value is not None and value.any():
        yield site.error(
            f"a border of {value.reshape(-1).tolist()[0]}; the packer takes zeros", f"Pad with zeros. {NO_EXACT_FORM}"
        )


@limit(950, "wide-end", "Integers that become real numbers have 8 bits.")
def check_wide_dequant(site: Site) -> Iterator[Finding]:
    """A Dequant of wide integers, which the packer makes 8 bits; at the end of a network it leaves it out by default."""
    bits, most = site.bits(0), site.limits(PackingLimits).dequant_bits
    if bits is None or bits <= most:
        return
    reason = f"turns {bits}-bit integers into real numbers; {site.chip}'s packer takes them for {most} bits"
    if all(output.is_graph_output() and not output.uses() for output in site.node.outputs):
        yield site.warning(
            f"{reason} where it keeps the float ends",
            "Pack without keeping them, or export with is_input_quant=True: the file then ends in integers, which are exact.",
        )
    else:
        yield site.error(reason, f"Leave out_bits of the layer before at {most}.")


@limit(905, "tensor-width", "Tensors have widths that the chip lists.", severity=WARNING, everywhere=True)
def check_tensor_widths(site: Site) -> Iterator[Finding]:
    """Widths that the chip's documents do not list."""
    known = site.limits(PackingLimits).data_bits
    widths = sorted({bits for i in range(len(site.node.inputs)) if (bits := site.bits(i)) is not None})
    strange = [bits for bits in widths if bits not in known]
    if strange and site.op_type != "Dequant":
        yield site.untried(
            f"works on {strange[0]}-bit numbers; {site.chip} is documented for {', '.join(map(str, known))} bits",
            "Leave out_bits of the layer before at 8, or try the file on the chip.",
        )
