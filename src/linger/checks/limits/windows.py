# SPDX-License-Identifier: Apache-2.0
"""Limits of ops with a window: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from linger.checks.limits.limit import BY_EXPORT, KB, Site, aligned, limit, one_of
from linger.graph.core.check_rules import NO_EXACT_FORM
from linger.graph.core.nodes import Finding

Numbers = tuple[int, ...]

_REMEDY_SIZE = "Use a size that the chip has: no exact form of another one is known."
_TWO_STEPS = "Pool in two steps (25×5 as 5×5, then 5×1), as linger.init(model, target={!r}) does by itself where it can"
_ANOTHER_AREA = f"{_TWO_STEPS}; or use a size whose area is a power of two."
_SMALLER_POOL = "Use a smaller image, fewer channels or a smaller kernel at this layer."


@dataclass(frozen=True)
class WindowLimits:
    """The table [windows] of a chip's file; `targets/packer.toml` explains each value."""

    kernel: tuple[int, int]
    dilated_kernel: tuple[int, int]
    signal_kernel: tuple[int, int]
    strides: tuple[int, ...]
    pads: tuple[int, int]
    dilations: tuple[int, ...]
    signal_dilations: tuple[int, ...]
    transposed_dilations: tuple[int, ...]
    data_bits: int
    weight_bits: tuple[int, ...]
    output_bits: tuple[int, ...]
    transposed_output_bits: tuple[int, ...]
    weight_bytes: int
    weight_alignment: tuple[int, int]
    depthwise_alignment: int
    width_alignment: int
    groups_reach_kernel: bool
    groups: int
    divided_area: int
    pool_sum: int
    pool_axes: int
    has_global_stride: bool
    largest_max_pool: int | None = None
    transposed_input_bytes: int | None = None
    signal_samples: int | None = None
    global_area: int | None = None
    spilled_bytes: int | None = None
    averaged_bytes: int | None = None
    uneven_averaged_bytes: int | None = None
    largest_average_pool: int | None = None
    pooled_bytes: tuple[int, int] | None = None


@limit(911, "window", "Kernel, stride, padding and dilation are the chip's.")
def check_window(site: Site) -> Iterator[Finding]:
    """Kernel, stride, padding and dilation of a convolution."""
    limits, (kernel, strides, pads, dilations) = site.limits(WindowLimits), _geometry(site)
    low, high = limits.kernel if set(dilations) <= {1} else limits.dilated_kernel
    known = limits.transposed_dilations if site.op.is_transposed else limits.dilations
    if site.op.window_axes == 1:
        (low, high), known = limits.signal_kernel, limits.signal_dilations
    if any(not low <= size <= high for size in kernel):
        yield site.error(f"a kernel of {_times(kernel)}; {site.chip} has {low} to {high}", _REMEDY_SIZE)
    if not set(strides) <= set(limits.strides):
        yield site.error(f"a stride of {_times(strides)}; {site.chip} has {one_of(limits.strides)}", _REMEDY_SIZE)
    yield from _padding_findings(site, limits, kernel, pads)
    if not set(dilations) <= set(known):
        yield site.error(f"a dilation of {_times(dilations)}; {site.chip} has {one_of(known)} here", _REMEDY_SIZE)
    if _steps_beyond(kernel, strides):
        reason = f"a kernel of {_times(kernel)} steps by {_times(strides)}, beyond itself; the packer refuses that"
        yield site.error(reason, f"Use a kernel as large as the stride, with zeros: {BY_EXPORT.format(site.chip)}.")
    if site.op.window_axes == 1:
        yield from _length_findings(site, limits.signal_samples)


def _length_findings(site: Site, most: int | None) -> Iterator[Finding]:
    length = site.sizes(0, -1)
    if most is None:
        return
    if length is None:
        yield site.unchecked("the length of its signal")
    elif length[0] > most:
        reason = f"a signal of {length[0]} samples; {site.chip} takes fewer than {most + 1}"
        yield site.error(reason, f"Cut the signal into parts, or step in an earlier layer. {NO_EXACT_FORM}")


def _steps_beyond(kernel: Numbers, strides: Numbers) -> bool:
    return any(size < step for size, step in zip(kernel, strides, strict=False))


def _padding_findings(site: Site, limits: WindowLimits, kernel: Numbers, pads: Numbers) -> Iterator[Finding]:
    low, high = limits.pads
    if any(not low <= pad <= high for pad in pads):
        yield site.error(f"a padding of {max(pads)}; {site.chip} has {low} to {high}", _REMEDY_SIZE)
    if _steps_beyond(kernel * 2, pads):
        yield site.error(f"padding {pads} beyond the kernel {_times(kernel)}", "Pad by at most the kernel's size.")
    if pads[: len(kernel)] != pads[len(kernel) :]:
        reason = f"padding {pads}, more at one end than at the other, which nobody has seen on {site.chip}"
        yield site.untried(reason, "Pad both ends alike, or compare a few outputs on the chip.")


def _geometry(site: Site) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Kernel, strides, pads and dilations."""
    kernel = site.attribute("kernel_shape", ())
    ones, zeros = (1,) * len(kernel), (0,) * (2 * len(kernel))
    return kernel, *(site.attribute(n, d) for n, d in (("strides", ones), ("pads", zeros), ("dilations", ones)))


@limit(912, "window-width", "Convolutions have the chip's widths.")
def check_widths(site: Site) -> Iterator[Finding]:
    """Bits of the input, the weights and the output."""
    limits = site.limits(WindowLimits)
    data, weight, output = (site.attribute(name, 8) for name in ("data_bits", "parameter_bits", "o_bits"))
    allowed = limits.transposed_output_bits if site.op.is_transposed else limits.output_bits
    if data > limits.data_bits:
        reason = f"{data}-bit input; convolutions take {limits.data_bits} bits"
        yield site.error(reason, f"Leave data_bits of this layer at {limits.data_bits}.")
    if weight not in limits.weight_bits:
        remedy = f"Choose one of these with linger.quant_module(layer, parameter_bits={limits.weight_bits[-1]})."
        yield site.error(f"{weight}-bit weights; {site.chip} has {one_of(limits.weight_bits)}{site.beyond}", remedy)
    if output not in allowed:
        reason = f"an output of {output} bits; {site.chip} gives {allowed[0]}{site.beyond}"
        yield site.error(reason, f"Leave out_bits of this layer at {allowed[0]}.")


@limit(913, "depthwise", "Depthwise convolutions are of two axes and fit.")
def check_depthwise(site: Site) -> Iterator[Finding]:
    """Depthwise convolutions: over two axes only, not transposed, and with weights that fit."""
    limits, group, kernel = site.limits(WindowLimits), site.attribute("group", 1), site.attribute("kernel_shape", ())
    # every group has one input channel; the weight is [out, in/group, …] or, transposed, [in, out/group, …]
    size = site.sizes(1, 0 if site.op.is_transposed else 1)
    if group == 1 or size is None or size[0] != (group if site.op.is_transposed else 1):
        return
    step = limits.depthwise_alignment
    count = aligned(group, step) * math.prod(kernel)
    if site.op.is_transposed or site.op.window_axes == 1:
        kind = "transposed convolution" if site.op.is_transposed else "convolution over one axis"
        remedy = f"Use one group, with zero weights between the channels: {BY_EXPORT.format(site.chip)}."
        yield site.error(f"a depthwise {kind}, which the packer refuses", remedy)
    elif count > limits.weight_bytes:
        reason = f"{count} bytes of depthwise weights (channels in steps of {step} times taps)"
        room = f"{site.chip} has room for {limits.weight_bytes // KB} KB"
        yield site.error(f"{reason}; {room}", f"Use fewer channels or a smaller kernel. {NO_EXACT_FORM}")


@limit(914, "room", "Input and weights of a transposed convolution fit into the chip's memory.")
def check_room(site: Site) -> Iterator[Finding]:
    """Input and weights of a transposed convolution, neither of which is split; those of others are."""
    limits = site.limits(WindowLimits)
    if limits.transposed_input_bytes is None:
        return
    channels, sizes = _channels(site), site.sizes(0, *range(2, 2 + site.op.window_axes))
    if channels is None or sizes is None:
        yield site.unchecked("the room for its input and weights")
        return
    inputs, outputs, taps = channels
    filled = aligned(inputs, limits.weight_alignment[0])
    weight_bytes = filled * aligned(outputs, limits.weight_alignment[1]) * taps
    input_bytes = filled * math.prod(sizes[:-1]) * aligned(sizes[-1], limits.width_alignment)
    rooms = {"weights": (weight_bytes, limits.weight_bytes), "input": (input_bytes, limits.transposed_input_bytes)}
    for what, (size, room) in rooms.items():
        if size > room:
            has = f"{site.chip} has room for {room // KB} KB of a transposed convolution"
            remedy = f"Use fewer channels or a smaller image at this layer. {NO_EXACT_FORM}"
            yield site.error(f"{size} bytes of {what} (in the chip's alignment); {has}", remedy)


@limit(918, "groups", "Grouped convolutions are of a kind that the chip computes.")
def check_groups(site: Site) -> Iterator[Finding]:
    """Groups with few inputs, many groups, and groups of a transposed convolution; depthwise ones have a rule of their own."""
    limits, group, channels = site.limits(WindowLimits), site.attribute("group", 1), _channels(site)
    if group == 1:
        return
    if channels is None:
        yield site.unchecked("the channels of its groups")
        return
    inputs, outputs, _ = channels
    is_depthwise = inputs == 1 and (outputs == 1 or site.op.is_transposed or site.op.window_axes == 1)
    remedy = f"Use fewer groups, with zero weights between them: {BY_EXPORT.format(site.chip)}."
    if site.op.is_transposed:
        reason = f"a transposed convolution in {group} groups, which the packer refuses"
    elif group > limits.groups:
        reason = f"{group} groups; the packer takes {limits.groups}"
    elif outputs == 1:
        reason = f"{group} groups of {inputs} inputs and 1 output, which the packer refuses"
    else:
        reason = _padded_groups(site, inputs) if limits.groups_reach_kernel and not is_depthwise else ""
    if reason and not is_depthwise:
        yield site.error(reason, remedy)


def _padded_groups(site: Site, inputs: int) -> str:
    """Why windows over two axes that reach over the upper or lower edge are wrong in groups of few inputs; empty: they are not."""
    kernel, _, pads, _ = _geometry(site)
    rows = kernel[0] if len(kernel) == 2 and (pads[0] or pads[2]) else 0
    wrong = f"{site.chip} computes the first group wrongly where a group has fewer inputs than the kernel has rows, here {rows}"
    return (
        f"{site.attribute('group', 1)} groups of {inputs} inputs with rows of padding: {wrong}" if inputs < rows else ""
    )


@limit(919, "transposed-bias", "Transposed convolutions have a bias.")
def check_transposed_bias(site: Site) -> Iterator[Finding]:
    """The packer reads the bias of a transposed convolution without asking whether there is one."""
    if site.input(2) is None:
        reason = "a transposed convolution without a bias, which the packer refuses"
        yield site.error(reason, f"Give it a bias of zeros: {BY_EXPORT.format(site.chip)}.")


def _channels(site: Site) -> tuple[int, int, int] | None:
    """Input and output channels of one group, and taps; None where the weight's shape is not known."""
    weight, group = site.sizes(1, *range(len(site.shape(1) or ()))), site.attribute("group", 1)
    if weight is None or len(weight) < 2 or group < 1:
        return None
    first, second, *window = weight
    inputs, outputs = (first // group, second) if site.op.is_transposed else (second, first // group)
    return inputs, outputs, math.prod(window)


@limit(915, "average", "Average pools have windows that the chip divides by.")
def check_average(site: Site) -> Iterator[Finding]:
    """Average pools divide by large areas wrongly, and their sums may not fit."""
    limits, area = site.limits(WindowLimits), math.prod(site.attribute("kernel_shape", ()))
    is_power, reach = area & (area - 1) == 0, 1 << (limits.data_bits - 1)
    if not is_power and area > limits.divided_area:
        reason = f"a window of {area} pixels, no power of two; above {limits.divided_area} the chip's result is wrong"
        yield site.error(reason, _ANOTHER_AREA.format(site.chip))
    if is_power and area * reach > limits.pool_sum:
        end = f"above {limits.pool_sum} the chip's result is wrong"
        most = 1 << int(math.log2(limits.pool_sum // reach))
        remedy = f"Pool in two steps, so that no window has more than {most} pixels."
        yield site.warning(f"a window of {area} pixels may add up to {area * reach}; {end}", remedy)
    yield from _averaged_findings(site, limits, is_divided=not is_power)


def _averaged_findings(site: Site, limits: WindowLimits, *, is_divided: bool) -> Iterator[Finding]:
    """What depends on the whole input of an average pool; `is_divided`: its area is no power of two."""
    sizes, (kernel, strides, pads, _) = site.sizes(0, 1, 2, 3), _geometry(site)
    if len(site.shape(0) or ()) != limits.pool_axes or len(strides) != 2:  # a wrong node, of which another rule tells
        return
    if sizes is None:
        yield site.unchecked("the size of its input")
        return
    channels, height, width = sizes
    most = limits.largest_average_pool
    if kernel == (height, width) and not any(pads):
        yield from _divided_findings(site, limits, channels, height * width) if is_divided else ()
    elif most is not None and max(kernel) > most:
        yield site.error(f"a kernel of {_times(kernel)}; nobody has seen {site.chip} take {most + 1}", _SMALLER_POOL)
    yield from _average_room_findings(site, limits, sizes, strides[1])


def _average_room_findings(site: Site, limits: WindowLimits, sizes: Numbers, stride: int) -> Iterator[Finding]:
    channels, height, width = sizes
    row = limits.width_alignment << min(max(stride, 0) >> 1, 32)  # it grows with the stride; no memory is larger
    whole, rooms = aligned(channels, limits.weight_alignment[0]), [(limits.averaged_bytes, limits.width_alignment, "")]
    if channels != whole:
        rooms += [(limits.uneven_averaged_bytes, row, " where the channels are no multiple of 8")]
    for room, step, where in rooms:
        size = whole * height * aligned(width, step)
        if room is not None and size > room:
            what = f"{size} bytes of input of an average pool (in the chip's alignment)"
            reason = f"{what}; nobody has seen {site.chip} compute more than {room} exactly{where}"
            yield site.error(reason, f"{_SMALLER_POOL} {NO_EXACT_FORM}")


def _divided_findings(site: Site, limits: WindowLimits, channels: int, area: int) -> Iterator[Finding]:
    """A global average pool whose area is no power of two: where its sums or its scratch overlap other numbers."""
    what, size = f"a window of {area} pixels, no power of two", channels * area
    if limits.global_area is not None and area > limits.global_area * channels:
        wrong = f"{site.chip} computes more than {limits.global_area} for each channel wrongly"
        yield site.error(
            f"{what}, over {channels} channels; {wrong}", f"{_TWO_STEPS.format(site.chip)}; or use more channels."
        )
    if limits.spilled_bytes is not None and size > limits.spilled_bytes:
        harmless = f"that was harmless up to {limits.spilled_bytes}, and wrong beyond"
        reason = f"the engine writes {size} bytes beyond what the packer reserves for {what}; {harmless}"
        yield site.error(reason, _ANOTHER_AREA.format(site.chip))


@limit(916, "pool", "Pools take 8-bit images.")
def check_pool_input(site: Site) -> Iterator[Finding]:
    """Width and axes of what a pool takes."""
    limits, bits, shape = site.limits(WindowLimits), site.bits(0), site.shape(0)
    if bits is not None and bits > limits.data_bits:
        reason = f"a pool of {bits}-bit numbers; the chip takes {limits.data_bits} bits"
        yield site.error(reason, f"Leave out_bits of the layer before at {limits.data_bits}.")
    if shape is not None and len(shape) != limits.pool_axes:
        reason = f"a pool over {len(shape)} axes; the packer takes {limits.pool_axes}"
        yield site.error(reason, "Add an axis of size 1 before it.")


@limit(917, "pool-window", "Pools have kernels from their stride to what the chip has, and no ceil_mode.")
def check_pool_window(site: Site) -> Iterator[Finding]:
    """Kernels smaller than the stride, too large for the chip, or that hang over the edge."""
    limits, (kernel, strides, _, dilations) = site.limits(WindowLimits), _geometry(site)
    if site.is_of_floats:  # which is refused as such
        return
    missing = [name for name in ("kernel_shape", "strides", "pads") if site.attribute(name) is None]
    if missing:
        yield site.error(f"without {' and '.join(missing)}, for which the packer asks", "Write these attributes out.")
    if not set(dilations) <= {1}:
        spread = f"taps that are spread by {_times(dilations)}"
        remedy = "Use dilation=1, or compare a few outputs on the chip."
        yield site.untried(f"{spread}, which nobody has compared with what {site.chip} computes", remedy)
    if _steps_beyond(kernel, strides):
        reason = f"a pool of {_times(kernel)} steps by {_times(strides)}, beyond itself; the packer refuses that"
        yield site.error(reason, f"Use a kernel as large as the stride. {NO_EXACT_FORM}")
    if site.attribute("ceil_mode", 0):
        remedy = f"Use ceil_mode=False and a size that the stride divides. {NO_EXACT_FORM}"
        yield site.error("ceil_mode, with which the engine gives another shape", remedy)
    if site.op.name == "MaxPool":
        yield from _part_findings(site, limits)
        yield from _max_pool_findings(site, limits.largest_max_pool)


def _max_pool_findings(site: Site, most: int | None) -> Iterator[Finding]:
    """Kernels of max pools, which are small or span all rows and, where they are wider than the chip has, all columns."""
    (kernel, _, pads, _), size = _geometry(site), site.sizes(0, -2, -1)
    if most is None or max(kernel, default=0) <= most:
        return
    if size is None:
        yield site.unchecked("whether its kernel spans the image")
    elif any(pads) or len(kernel) != 2 or kernel[0] != size[0] or (kernel[1] != size[1] and kernel[1] > most):
        steps = f"Pool in steps, say 3×3 and then 2×2 for 6×6: {BY_EXPORT.format(site.chip)} where that is equal."
        yield site.error(
            f"a kernel of {_times(kernel)}; {site.chip} has {most}, or all rows, or the whole image", steps
        )


def _part_findings(site: Site, limits: WindowLimits) -> Iterator[Finding]:
    """Large inputs of max pools, which are cut into equal parts."""
    sizes = site.sizes(0, 1, 2, 3)
    if limits.pooled_bytes is None or len(site.shape(0) or ()) != limits.pool_axes:
        return
    if sizes is None:
        yield site.unchecked("the size of its input")
        return
    room, most = limits.pooled_bytes
    size = aligned(sizes[0], limits.weight_alignment[0]) * sizes[1] * aligned(sizes[2], limits.width_alignment)
    part = -(-size // max(-(-size // room), 1))
    if size > room and part > most:
        what = f"{size} bytes of input of a max pool, in parts of {part}"
        remedy = f"{_SMALLER_POOL} {NO_EXACT_FORM}"
        yield site.error(f"{what}; {site.chip} computes parts of more than {most} wrongly", remedy)


def _times(sizes: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in sizes)
