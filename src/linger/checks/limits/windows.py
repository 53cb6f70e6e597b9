# SPDX-License-Identifier: Apache-2.0
"""Limits of what looks through a window: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Iterator

from linger.graph.core.finding import Finding, Rule, Site, aligned, one_of
from linger.targets import KB, Target

_REMEDY_SIZE = "Use a size that the chip has, or keep the layer in float with linger.disable_quant."


def _geometry(site: Site) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides, pads and dilations."""
    kernel = site.attribute("kernel_shape", ())
    ones = (1,) * len(kernel)
    zeros = (0,) * (2 * len(kernel))
    return (
        kernel,
        site.attribute("strides", ones),
        site.attribute("pads", zeros),
        site.attribute("dilations", ones),
    )


def _is_depthwise(site: Site) -> bool:
    """One input channel per group. The weight is [out, in/group, …] or, transposed, [in, out/group, …]."""
    group = site.attribute("group", 1)
    axis = 0 if site.op_type == "ConvTranspose2dInt" else 1
    size = site.sizes(1, axis)
    if group == 1 or size is None:
        return False
    return size[0] == (group if axis == 0 else 1)


def check_window(site: Site, target: Target) -> Iterator[Finding]:
    """Kernel, stride, padding and dilation of a convolution."""
    kernel, strides, pads, dilations = _geometry(site)
    is_dilated = any(d != 1 for d in dilations)
    is_signal = site.op_type == "Conv1dInt"
    low, high = target.signal_kernel if is_signal else target.dilated_kernel if is_dilated else target.kernel
    if any(not low <= size <= high for size in kernel):
        yield site.error(f"a kernel of {_times(kernel)}; {target.name} has {low} to {high}", _REMEDY_SIZE)
    if any(step not in target.strides for step in strides):
        yield site.error(f"a stride of {_times(strides)}; {target.name} has {one_of(target.strides)}", _REMEDY_SIZE)
    low, high = target.pads
    if any(not low <= pad <= high for pad in pads):
        yield site.error(f"a padding of {max(pads)}; {target.name} has {low} to {high}", _REMEDY_SIZE)
    if any(pad > size for pad, size in zip(pads, kernel * 2, strict=False)):
        yield site.error(f"padding {pads} beyond the kernel {_times(kernel)}", "Pad by at most the kernel's size.")
    known = (1,) if site.op_type == "ConvTranspose2dInt" else target.dilations
    if any(d not in known for d in dilations):
        yield site.error(f"a dilation of {_times(dilations)}; {target.name} has {one_of(known)} here", _REMEDY_SIZE)
    if any(size < step for size, step in zip(kernel, strides, strict=False)):
        yield site.error(
            f"a kernel of {_times(kernel)} steps by {_times(strides)}, beyond itself; the packer refuses that",
            "Slice the input (x[:, :, ::2, ::2]) before a convolution with stride 1, or use a kernel as large as the stride.",
        )


def check_widths(site: Site, target: Target) -> Iterator[Finding]:
    """Bits of the input, the weights and the output."""
    if site.attribute("data_bits", 8) > 8:
        yield site.error(
            f"{site.attribute('data_bits')}-bit input; convolutions take 8 bits", "Leave data_bits of this layer at 8."
        )
    if site.attribute("parameter_bits", 8) not in target.weight_bits:
        yield site.error(
            f"{site.attribute('parameter_bits')}-bit weights; {target.name} has {one_of(target.weight_bits)}",
            f"Choose one of these with linger.quant_module(layer, parameter_bits={target.weight_bits[-1]}).",
        )
    allowed = (8,) if site.op_type == "ConvTranspose2dInt" else target.conv_output_bits
    bits = site.attribute("o_bits", 8)
    if bits not in allowed:
        yield site.error(
            f"an output of {bits} bits, which {target.name} packs but computes as 8 bits",
            "Leave out_bits of this layer at 8.",
        )


def check_depthwise(site: Site, target: Target) -> Iterator[Finding]:
    """A channel of its own for every filter: over two axes only, and not transposed."""
    if not _is_depthwise(site):
        return
    if site.op_type != "Conv2dInt":
        kind = "transposed convolution" if site.op_type == "ConvTranspose2dInt" else "convolution over one axis"
        yield site.error(
            f"a depthwise {kind}, which the packer refuses",
            "Use group=1 here, or write a signal as a picture of one row and take Conv2d.",
        )
        return
    kernel = site.attribute("kernel_shape", ())
    size = aligned(site.attribute("group", 1), 16) * math.prod(kernel)
    if size > target.conv_weight_bytes:
        yield site.error(
            f"{size} bytes of depthwise weights (channels in sixteens times taps); {target.name} has room for "
            f"{target.conv_weight_bytes // KB} KB",
            "Split the channels over several layers.",
        )


def check_room(site: Site, target: Target) -> Iterator[Finding]:
    """Input and weights in the chip's memory: one of them can be split, not both."""
    if target.conv_input_bytes is None or _is_depthwise(site):
        return
    weight = site.shape(1)
    if weight is None or None in weight or len(weight) < 2:
        yield site.unchecked("the room for its weights")
        return
    taps = math.prod(n for n in weight[2:] if n is not None)
    group = site.attribute("group", 1)
    outputs, inputs = (n or 0 for n in weight[:2])
    if site.op_type == "ConvTranspose2dInt":
        inputs, outputs = outputs // group, inputs
    else:
        outputs //= group
    weight_bytes = aligned(inputs, 8) * aligned(outputs, 2) * taps
    if weight_bytes <= target.conv_weight_bytes:
        return
    sizes = site.sizes(0, 2, 3) if len(weight) == 4 else site.sizes(0, 2)
    if sizes is None:
        yield site.unchecked(f"the room for its input beside {weight_bytes} bytes of weights")
        return
    height, width = sizes if len(sizes) == 2 else (1, sizes[0])
    stride = site.attribute("strides", (1,))[-1]
    input_bytes = aligned(inputs, 8) * aligned(width, 8 * stride) * height
    if input_bytes > target.conv_input_bytes:
        yield site.error(
            f"{input_bytes} bytes of input and {weight_bytes} bytes of weights (in the chip's alignment); {target.name} splits "
            f"an input beyond {target.conv_input_bytes // KB} KB or weights beyond {target.conv_weight_bytes // KB} KB, not both",
            "Use fewer channels or groups, or a smaller picture at this layer.",
        )


def check_average(site: Site, target: Target) -> Iterator[Finding]:
    """Average pools: the reciprocal of a large area, and sums that do not fit."""
    area = math.prod(site.attribute("kernel_shape", ()))
    is_power = area & (area - 1) == 0
    if not is_power and area > target.largest_divided_area:
        yield site.error(
            f"a window of {area} pixels, no power of two; above {target.largest_divided_area} the chip's result is wrong",
            "Pool in two steps (say 4×4, then the rest), or use a size whose area is a power of two.",
        )
    reach = 1 << 7  # of the 8 bits that pools take
    if is_power and area * reach > target.pool_sum:
        yield site.warning(
            f"a window of {area} pixels may add up to {area * reach}; above {target.pool_sum} the chip's result is wrong",
            "Pool in two steps, so that no window has more than "
            f"{1 << int(math.log2(target.pool_sum // reach))} pixels.",
        )


def check_pool_input(site: Site, target: Target) -> Iterator[Finding]:
    """Pools take pictures of 8 bits."""
    del target
    bits, shape = site.bits(0), site.shape(0)
    if bits is not None and bits > 8:
        yield site.error(
            f"a pool of {bits}-bit numbers; the chip takes 8 bits", "Leave out_bits of the layer before at 8."
        )
    if shape is not None and len(shape) != 4:
        yield site.error(f"a pool over {len(shape)} axes; the packer takes 4", "Add an axis of size 1 before it.")


def _times(sizes: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in sizes)


_CONVOLUTION: tuple[Rule, ...] = (check_window, check_widths, check_depthwise, check_room)

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt"), _CONVOLUTION),
    "AvgPool2dInt": (check_average, check_pool_input),
    "MaxPool": (check_pool_input,),
}
"""What is asked of each op type."""
