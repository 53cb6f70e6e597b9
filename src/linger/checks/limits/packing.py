# SPDX-License-Identifier: Apache-2.0
"""Limits of the packer: which nodes it reads, in what form, and how large a model may be."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from linger.dialect import ops
from linger.graph.core.dialect_node import is_dialect, platform_of
from linger.graph.core.finding import ERROR, Finding, Rule, Site
from linger.graph.core.walking import all_nodes
from linger.targets import KB, Target

_FLOAT = "Keep it out of the file: give the layer an integer form, or compute it outside of the model."
_CONSTANT_SHAPE = "Export with fixed sizes, so that the shape is a constant."


def check_known(site: Site, target: Target) -> Iterator[Finding]:
    """The packer stops at an op that it does not know."""
    name = site.op_type
    if name in target.ops or name == "Clip":
        return
    if name in target.unpacked_ops:
        yield site.warning(
            f"{target.name} runs {name}, but the public packer does not know it",
            "Ask the vendor for a packer that does.",
        )
    else:
        yield site.error(f"{target.name}'s packer has no {name}", _REMEDIES.get(name, _FLOAT))


_REMEDIES = {
    "iqSum": "Replace the sum by an average pool, or by a product with a matrix of ones.",
    **dict.fromkeys(
        ("QGelu", "QSwish", "iqGelu", "iqSwish"), "GELU and SiLU exist on venusA only; use ReLU, or the target venusA."
    ),
    "iqSubMax": "Keep the scores within ±64 with linger.normalize_module; or quantise with linger.init(model, target=…), "
    "which leaves the subtraction out and says what is lost; or leave the softmax out: its largest input decides anyway.",
    "Identity": "Export with linger, which leaves no Identity in the middle of a graph.",
}


def check_platform(site: Site, target: Target) -> Iterator[Finding]:
    """A node computes as the chip does that it names; without a name as venus does."""
    if not is_dialect(site.node):
        return
    named = platform_of(site.node)
    has_variants = site.op_type in ops() and bool(ops()[site.op_type].variants)
    if named not in (None, target.name):
        yield site.error(f"the node is for {named}, not for {target.name}", _INIT.format(target.name))
    elif has_variants and named is None and target.is_named_in_nodes:
        yield site.error(f"the node computes as venus does, not as {target.name}", _INIT.format(target.name))


_INIT = "Quantise the model for this chip: linger.init(model, target={!r})."


def check_compared(site: Site, target: Target) -> Iterator[Finding]:
    """Ops whose formula is known, but not from this chip."""
    if site.op_type in target.uncompared_ops:
        yield site.warning(
            f"nobody has compared {site.op_type} with what {target.name} computes", "Compare a few outputs on the chip."
        )


def check_clip(site: Site, target: Target) -> Iterator[Finding]:
    """ReLU6 and other limits inside the range of the integers."""
    if not target.has_clip:
        yield site.error(
            f"{target.name}'s packer cannot take Clip (ReLU6, clamp), and here it limits inside the range of the integers",
            "Use ReLU; or keep the layer before within ±4 (linger.normalize_module(layer, normalize_output_value=4)): its "
            "8-bit output then saturates below 6 by itself and ReLU6 becomes Relu.",
        )


def check_transpose(site: Site, target: Target) -> Iterator[Finding]:
    """Axes and planes of what is turned round."""
    shape, order = site.shape(0), site.attribute("perm")
    if shape is None:
        yield site.unchecked("the number of its axes")
        return
    if target.transposed_axes is None or (order is not None and order == tuple(range(len(order)))):
        return
    if len(shape) > target.transposed_axes:
        yield site.error(
            f"exchanges axes of a tensor of {len(shape)} axes; {target.name} has that for at most {target.transposed_axes}",
            "Merge axes that stay together with a reshape first, or keep the order of axes.",
        )
        return
    if len(shape) == 3:
        plane = site.sizes(0, -2, -1)
        size = None if plane is None else plane[0] * plane[1] * (site.bits(0) or 8) // 8
        if size is None:
            yield site.unchecked("the size of its planes")
        elif size > target.plane_bytes:
            yield site.error(
                f"exchanges axes of planes of {size} bytes; {target.name} has {target.plane_bytes // KB} KB",
                "Cut the tensor into parts, turn each, and join them.",
            )


def check_axes_attribute(site: Site, target: Target) -> Iterator[Finding]:
    """The packer reads axes from an attribute, as opsets below 13 have it."""
    del target
    if len(site.node.inputs) > 1:
        yield site.error("its axes are an input, which the packer does not read", "Export with opset_version=12 or 11.")


def check_constant_shape(site: Site, target: Target) -> Iterator[Finding]:
    """The packer reads shapes and bounds while it packs."""
    del target
    if any(site.input(i) is not None and site.constant(i) is None for i in range(1, len(site.node.inputs))):
        yield site.error("its shape or bounds are computed; the packer wants constants", _CONSTANT_SHAPE)


def check_slice(site: Site, target: Target) -> Iterator[Finding]:
    """One axis at a time."""
    yield from check_constant_shape(site, target)
    starts = site.constant(1)
    if starts is not None and starts.size > 1:
        yield site.error(f"slices {starts.size} axes at once; the packer takes one", "Slice one axis after the other.")


def check_split(site: Site, target: Target) -> Iterator[Finding]:
    """The packer reads the sizes of the parts from an attribute `dims` that ONNX does not have."""
    del target
    if site.attribute("dims") is None:
        yield site.error(
            "the packer reads the parts of Split from an attribute 'dims', which standard ONNX does not have",
            "Slice the parts out (x[:, :n], x[:, n:]) instead of split or chunk.",
        )


def check_quant(site: Site, target: Target) -> Iterator[Finding]:
    """The chip's Quant always makes 8 bits."""
    bits = site.attribute("data_bits", 8)
    if bits != 8:
        yield site.error(
            f"quantises to {bits} bits; {target.name} makes 8 bits whatever is asked for",
            "Leave data_bits of the layer behind at 8.",
        )


def check_tensor_widths(site: Site, target: Target) -> Iterator[Finding]:
    """Widths that the chip's documents do not list."""
    widths = sorted({bits for i in range(len(site.node.inputs)) if (bits := site.bits(i)) is not None})
    strange = [bits for bits in widths if bits not in target.data_bits]
    if strange and site.op_type != "Dequant":
        yield site.warning(
            f"works on {strange[0]}-bit numbers; {target.name} is documented for {', '.join(map(str, target.data_bits))} bits",
            "Leave out_bits of the layer before at 8, or try the file on the chip.",
        )


def check_model(model: ir.Model, target: Target) -> Iterator[Finding]:
    """The model as a whole: not empty of constants, not too large."""
    graph = model.graph
    has_constants = bool(graph.initializers) or any(n.op_type == "Constant" for n in all_nodes(model))
    if not has_constants:
        yield Finding(
            ERROR, "", "the graph holds no constants, and the packer refuses such a graph", "Add a layer with weights."
        )
    tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    size = sum(t.nbytes for t in tensors if t.dtype != ir.DataType.STRING)  # words have no fixed width
    if size > target.model_bytes:
        yield Finding(
            ERROR,
            "",
            f"the parameters have {size} bytes; {target.name} has room for {target.model_bytes} ({target.model_bytes >> 20} MB)",
            "Use fewer or narrower parameters.",
        )


RULES: dict[str, tuple[Rule, ...]] = {
    "Clip": (check_clip,),
    "Transpose": (check_transpose,),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), (check_axes_attribute,)),
    **dict.fromkeys(("Reshape", "Expand"), (check_constant_shape,)),
    "Slice": (check_slice,),
    "Split": (check_split,),
    "Quant": (check_quant,),
}
"""What is asked of each op type; every node is asked whether the packer knows it, and for its widths."""
