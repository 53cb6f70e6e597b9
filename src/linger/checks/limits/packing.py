# SPDX-License-Identifier: Apache-2.0
"""Limits of the packer: which nodes it reads, in what form, and how large a model may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from linger.checks.limits.limit import KB, Site, limit, limit_rule
from linger.dialect import Op, ops
from linger.errors import listing
from linger.graph.core.dialect_node import is_dialect, platform_of
from linger.graph.core.dialects import NEWER_OPS
from linger.graph.core.finding import ERROR, WARNING, Finding
from linger.graph.core.walking import all_nodes
from linger.targets import DEFAULT_TARGET, Target, chips_with

_FLOAT = "Keep it out of the file: give the layer an integer form, or compute it outside of the model."
_CONSTANT_SHAPE = "Export with fixed sizes, so that the shape is a constant."
_INIT = "Quantise the model for this chip: linger.init(model, target={!r})."
_NO_IDENTITY = "Export with linger, which leaves no Identity in the middle of a graph."


@dataclass(frozen=True)
class PackingLimits:
    """The table [packing] of a chip's file; `targets/packer.toml` explains each value."""

    data_bits: tuple[int, ...]
    quant_bits: int
    slice_axes: int
    plane_bytes: int
    model_bytes: int
    transposed_axes: int | None = None


MODEL = limit_rule(901, "model", "The model has constants and fits into the chip's memory.")


def model_findings(model: ir.Model, target: Target, limits: PackingLimits) -> Iterator[Finding]:
    """The model as a whole: not empty of constants, not too large."""
    graph = model.graph
    has_constants = bool(graph.initializers) or any(n.op_type == "Constant" for n in all_nodes(model))
    if not has_constants:
        yield Finding(
            ERROR, "", "the graph holds no constants, and the packer refuses such a graph", "Add a layer with weights."
        )
    tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    size = sum(t.nbytes for t in tensors if t.dtype != ir.DataType.STRING)  # words have no fixed width
    most = limits.model_bytes
    if size > most:
        yield Finding(
            ERROR,
            "",
            f"the parameters have {size} bytes; {target.name} has room for {most} ({most // KB // KB} MB)",
            "Use fewer or narrower parameters.",
        )


@limit(902, "op", "The chip's packer knows the op.", everywhere=True)
def check_known(site: Site) -> Iterator[Finding]:
    """The packer stops at an op that it does not know."""
    name, target = site.op_type, site.target
    op = _op(name)
    if name in target.ops or (op is not None and "clip" in op.chip_limits):  # what it says of Clip is a rule of its own
        return
    if name in target.unpacked_ops:
        yield site.warning(
            f"{target.name} runs {name}, but the public packer does not know it",
            "Ask the vendor for a packer that does.",
        )
    else:
        yield site.error(f"{target.name}'s packer has no {name}", _remedy(name, op))


def _op(op_type: str) -> Op | None:
    """The op of this name in either dialect."""
    newer = NEWER_OPS.get(op_type)
    return ops().get(op_type if newer is None else newer.older or "")


def _remedy(op_type: str, op: Op | None) -> str:
    if op is None:
        return _NO_IDENTITY if op_type == "Identity" else _FLOAT
    chips = chips_with(op_type)
    only = f" Of the known chips only {listing(chips)} has it." if chips else ""
    return f"{op.if_missing or _FLOAT}{only}"


@limit(903, "platform", "Nodes compute as the chip does.", everywhere=True)
def check_platform(site: Site) -> Iterator[Finding]:
    """A node computes as the chip does that it names; without a name, as the default chip does."""
    if not is_dialect(site.node):
        return
    named, op = platform_of(site.node), ops().get(site.op_type)
    if named not in (None, site.chip):
        yield site.error(f"the node is for {named}, not for {site.chip}", _INIT.format(site.chip))
    elif op is not None and op.variants and named is None and not site.target.is_default:
        reason = f"the node computes as {DEFAULT_TARGET.name} does, not as {site.chip}"
        yield site.error(reason, _INIT.format(site.chip))


@limit(904, "compared", "The op's numbers were compared with the chip's.", severity=WARNING, everywhere=True)
def check_compared(site: Site) -> Iterator[Finding]:
    """Warn of ops whose results were never compared with those of this chip."""
    if site.op_type in site.target.uncompared_ops:
        yield site.warning(
            f"nobody has compared {site.op_type} with what {site.chip} computes", "Compare a few outputs on the chip."
        )


@limit(941, "clip", "There is no Clip.")
def check_clip(site: Site) -> Iterator[Finding]:
    """Clip that limits inside the range of the integers, as ReLU6 does."""
    if not site.target.has_clip:
        yield site.error(
            f"{site.chip}'s packer cannot take Clip (ReLU6, clamp), and here it limits inside the range of the integers",
            "Use ReLU; or keep the layer before within ±4 (linger.normalize_module(layer, normalize_output_value=4)): its "
            "8-bit output then saturates below 6 by itself and ReLU6 becomes Relu.",
        )


@limit(942, "transpose", "Transposed tensors have few axes and small planes.", "Transpose")
def check_transpose(site: Site) -> Iterator[Finding]:
    """Axes and planes of a tensor whose axes are exchanged."""
    limits = site.limits(PackingLimits)
    shape, order = site.shape(0), site.attribute("perm")
    if shape is None:
        yield site.unchecked("the number of its axes")
    elif limits.transposed_axes is None or (order is not None and order == tuple(range(len(order)))):
        return
    elif len(shape) > limits.transposed_axes:
        most = limits.transposed_axes
        yield site.error(
            f"exchanges axes of a tensor of {len(shape)} axes; {site.chip} has that for at most {most}",
            "Merge axes that stay together with a reshape first, or keep the order of axes.",
        )
    elif len(shape) == 3:
        yield from _plane_findings(site, limits)


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


@limit(943, "axes", "Axes are attributes.", "Squeeze", "Unsqueeze")
def check_axes_attribute(site: Site) -> Iterator[Finding]:
    """The packer reads axes from an attribute, as opsets below 13 have it."""
    if len(site.node.inputs) > 1:
        yield site.error("its axes are an input, which the packer does not read", "Export with opset_version=12 or 11.")


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


@limit(946, "split", "A Split has the attribute that the packer reads.", "Split")
def check_split(site: Site) -> Iterator[Finding]:
    """The packer reads the sizes of the parts from an attribute `dims` that ONNX does not have."""
    if site.attribute("dims") is None:
        yield site.error(
            "the packer reads the parts of Split from an attribute 'dims', which standard ONNX does not have",
            "Slice the parts out (x[:, :n], x[:, n:]) instead of split or chunk.",
        )


@limit(947, "quant", "A Quant makes 8 bits.")
def check_quant(site: Site) -> Iterator[Finding]:
    """The chip's Quant makes one width."""
    bits, made = site.attribute("data_bits", 8), site.limits(PackingLimits).quant_bits
    if bits != made:
        yield site.error(
            f"quantises to {bits} bits; {site.chip} makes {made} bits whatever is asked for",
            f"Leave data_bits of the layer behind at {made}.",
        )


@limit(905, "tensor-width", "Tensors have widths that the chip lists.", severity=WARNING, everywhere=True)
def check_tensor_widths(site: Site) -> Iterator[Finding]:
    """Widths that the chip's documents do not list."""
    known = site.limits(PackingLimits).data_bits
    widths = sorted({bits for i in range(len(site.node.inputs)) if (bits := site.bits(i)) is not None})
    strange = [bits for bits in widths if bits not in known]
    if strange and site.op_type != "Dequant":
        yield site.warning(
            f"works on {strange[0]}-bit numbers; {site.chip} is documented for {', '.join(map(str, known))} bits",
            "Leave out_bits of the layer before at 8, or try the file on the chip.",
        )
