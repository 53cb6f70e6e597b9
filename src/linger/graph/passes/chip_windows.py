# SPDX-License-Identifier: Apache-2.0
"""Convolutions and max pools in forms that packers of chips take.

Every tensor that had a name before keeps all of its integers: kernels grow by zeros, and a pool becomes several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN, ops
from linger.graph.core.dialects import DEQUANT, QUANT_MODE
from linger.graph.core.nodes import (
    Changes,
    Names,
    all_nodes,
    attributes_of,
    describe,
    graph_of,
    is_dialect,
    is_used,
    op_of,
    tensor_names,
)
from linger.graph.core.rewiring import drop_unused, remove_nodes
from linger.graph.core.tensor_types import INTEGERS, QUANTIZED, integer_bits
from linger.graph.core.window_chains import Windows, equal_chain
from linger.graph.lowering.bodies import Shape, dialect_nodes, known_tensors, shape_of
from linger.numeric.fixed import MOST_TRANSPOSED_TAPS, limits

CHIP_ATTRIBUTES = ("platform", "quant_mode")
"""What a node says of its chip."""


def replace_idle_clips(model: ir.Model) -> Changes:
    """Turn integer Clips from 0 to the type's largest number or beyond into Relu (ReLU6 at a scale from 32 on, at 8 bits).

    Requires: element types are known. Leaves: Clips on integers only where the upper bound acts or the lower one is
    neither 0 nor out of reach; the same integers.
    """
    changes = Changes()
    for node in [node for node in all_nodes(model) if node.op_type == "Clip"]:
        x = next(iter(node.inputs), None)
        bits = integer_bits(getattr(x, "dtype", None))
        if x is not None and bits is not None and x.dtype in INTEGERS:
            _replace_if_idle(node, x, limits(bits), changes)
    for name, value in list(model.graph.initializers.items()):  # bounds that nothing uses any more
        if name.rpartition(".")[2].startswith(("min_thresh", "max_thresh")) and not is_used(value):
            del model.graph.initializers[name]
    return changes


def _replace_if_idle(node: ir.Node, x: ir.Value, ends: tuple[int, int], changes: Changes) -> None:
    """Make a Clip of integers a Relu, or remove it, where the ends of their type limit them as much as it does."""
    low, high = _bound(node, 1, ends[0]), _bound(node, 2, ends[1])
    if low is None or high is None or high < ends[1]:
        return
    if low == 0:
        node.resize_inputs(1)
        node.op_type = "Relu"
        node.domain = DOMAIN if is_dialect(node) else node.domain
        changes.note(describe(node), f"was a Clip from 0 to {high}, which the type itself keeps to")
    elif low <= ends[0] and not node.outputs[0].is_graph_output():
        changes.note(describe(node), "removed: it limits nothing")
        node.outputs[0].replace_all_uses_with(x)
        remove_nodes([node])


def _bound(node: ir.Node, index: int, otherwise: int) -> int | None:
    """A bound of a Clip as a number, `otherwise` where it is left out; None where it is computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return otherwise
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else int(tensor.numpy())


def name_platform(model: ir.Model, platform: str) -> Changes:
    """Write `platform` and `quant_mode` into the dialect nodes that compute the same on every chip.

    Leaves: the chip's name in every dialect node except Dequants and ops that some chip computes in its own way: naming
    another chip would change what those compute.
    """
    changes = Changes()
    own = {DEQUANT, *(name for name, op in ops().items() if op.variants)}
    for node in dialect_nodes(model):
        if node.op_type not in own and "platform" not in node.attributes:
            for name, value in zip(CHIP_ATTRIBUTES, (platform, QUANT_MODE), strict=True):
                node.attributes[name] = ir.AttrString(name, value)
            changes.note(describe(node), f"is for {platform}")
    return changes


Array = NDArray[Any]

_CONVOLUTIONS = ("Conv1dInt", "Conv2dInt")
_TRANSPOSED = "ConvTranspose2dInt"


@dataclass(frozen=True)
class _NewWeight:
    """A weight that a node gets instead of its own; `form` is equal where equal weights become equal ones."""

    node: ir.Node
    old: ir.Value
    form: tuple[object, ...]
    make: Callable[[Array], Array]


def _own_weight(node: ir.Node) -> ir.Value | None:
    """The weight of a convolution if it is an initializer that nobody can exchange."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    return value


def _put(model: ir.Model, weights: Sequence[_NewWeight]) -> None:
    """Give nodes their new weights; nodes that share one go on to, and a weight that nobody else reads keeps its name."""
    groups: dict[tuple[ir.Value, tuple[object, ...]], list[_NewWeight]] = {}
    for each in weights:
        groups.setdefault((each.old, each.form), []).append(each)
    names = tensor_names(model)
    for (old, _), same in groups.items():
        assert old.const_value is not None  # _own_weight has looked
        content = same[0].make(old.const_value.numpy())
        element = old.const_value.dtype
        has_others = {node for node, _ in old.uses()} != {each.node for each in same} or old.is_graph_output()
        new = _initializer(old, names) if has_others else old
        new.const_value = ir.tensor(content, dtype=element, name=new.name)
        new.type, new.shape = ir.TensorType(element), ir.Shape(content.shape)
        for each in same:
            each.node.replace_input_with(1, new)
    drop_unused([each.old for each in weights], constants_only=True)


def _initializer(like: ir.Value, names: Names) -> ir.Value:
    """An initializer beside another one, named after it."""
    value = ir.Value(name=names.choose(str(like.name)), const_value=like.const_value)
    assert like.graph is not None  # it is an initializer
    like.graph.register_initializer(value)
    return value


def _set(node: ir.Node, **attributes: Sequence[int]) -> None:
    for name, numbers in attributes.items():
        node.attributes[name] = ir.AttrInt64s(name, list(numbers))


def _times(numbers: Sequence[int]) -> str:
    return "×".join(map(str, numbers))


def _spatial(value: ir.Value | None, shapes: Mapping[str, Shape], axes: int) -> list[int | None]:
    """The sizes of the last axes of a tensor, None for open ones."""
    shape = shape_of(value, shapes)
    return [None] * axes if shape is None or len(shape) != axes + 2 else list(shape[2:])


def widen_kernels(model: ir.Model) -> Changes:
    """Give convolutions kernels of at least their stride: zeros join the taps, so the sums stay the same.

    Leaves: kernels smaller than their stride only where the taps are spread or the weight is no initializer.
    """
    changes = Changes()
    small = [node for node in dialect_nodes(model, *_CONVOLUTIONS) if _steps_beyond(node) and _own_weight(node)]
    shapes = _sound_shapes(model) if small else {}
    _put(model, [_widened(node, shapes, changes) for node in small])
    return changes


def _steps_beyond(node: ir.Node) -> bool:
    """Whether the stride is larger than the kernel along an axis whose taps are not spread."""
    settings = attributes_of(node, op_of(node))
    axes = zip(settings["kernel_shape"], settings["strides"], settings["dilations"], strict=True)
    return any(kernel < stride and dilation == 1 for kernel, stride, dilation in axes)


def _widened(node: ir.Node, shapes: Mapping[str, Shape], changes: Changes) -> _NewWeight:
    """Widen the kernel of a node; the weight is to follow."""
    settings, weight = attributes_of(node, op_of(node)), _own_weight(node)
    assert weight is not None  # the caller has looked
    kernel, strides, pads, dilations = (settings[n] for n in ("kernel_shape", "strides", "pads", "dilations"))
    padding = [sum(ends) for ends in zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
    sizes = _spatial(node.inputs[0], shapes, len(kernel))
    zeros = [_zeros(*axis) for axis in zip(sizes, kernel, strides, padding, dilations, strict=True)]
    wider = [size + sum(more) for size, more in zip(kernel, zeros, strict=True)]
    # zeros before the taps move them; as much padding on both sides moves them back and adds no output
    _set(node, kernel_shape=wider, pads=[pad + more for pad, (more, _) in zip(pads, zeros * 2, strict=True)])
    what = f"its kernel of {_times(kernel)} became {_times(wider)} with zeros"
    changes.note(describe(node), f"{what}, because a kernel must not be smaller than its stride")
    around = ((0, 0), (0, 0), *zeros)
    return _NewWeight(node, weight, around, partial(np.pad, pad_width=around))


def _zeros(size: int | None, kernel: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """Zeros before and behind the taps of one axis."""
    if kernel >= stride or dilation != 1:
        return 0, 0
    if size is not None and (size + padding - stride) // stride == (size + padding - kernel) // stride:
        return 0, stride - kernel
    # for odd and open sizes the same on both sides: chips were seen to compute even padding exactly
    both = -(-(stride - kernel) // 2)
    return both, both


@dataclass(frozen=True)
class _Groups:
    """The channels of a grouped convolution; `rows` of its kernel where windows reach over the upper or lower edge, else 0."""

    op_type: str
    weight: ir.Value
    count: int
    inputs: int
    outputs: int
    rows: int

    @property
    def divisors(self) -> list[int]:
        """Smaller numbers of groups that each hold whole old ones, the largest first."""
        return [n for n in range(self.count - 1, 0, -1) if self.count % n == 0]

    @property
    def is_depthwise_image(self) -> bool:
        """Whether every group has one input and one output, over two axes: chips have these."""
        return self.op_type == "Conv2dInt" and self.inputs == self.outputs == self.count


def join_groups(model: ir.Model, *, reaches_kernel: bool, most_groups: int) -> Changes:
    """Make convolutions of fewer groups out of those that a chip refuses: zeros stand between the old groups.

    A convolution may have `most_groups`; with `reaches_kernel` a group must have as many inputs as the kernel has rows, where
    windows reach over the upper or lower edge. Leaves: depthwise convolutions over two axes as they are; other groups only where
    they keep to these numbers, where the weight is no initializer, or where a transposed convolution would add more products
    than can be added exactly.
    """
    changes, weights = Changes(), []
    objection = partial(_objection, reaches_kernel=reaches_kernel, most_groups=most_groups)
    for node in dialect_nodes(model, *_CONVOLUTIONS, _TRANSPOSED):
        groups = _groups_of(node)
        reason = None if groups is None else objection(groups, groups.count)
        if groups is None or reason is None:
            continue
        count, fewer = groups.count, next(n for n in groups.divisors if objection(groups, n) is None)
        node.attributes["group"] = ir.AttrInt64("group", fewer)
        weights.append(_NewWeight(node, groups.weight, (count, fewer), partial(_joined, count=count, fewer=fewer)))
        changes.note(describe(node), f"its {count} groups became {fewer} with zeros, because {reason}")
    _put(model, weights)
    return changes


def _groups_of(node: ir.Node) -> _Groups | None:
    """The channels of a convolution of several groups; None where they cannot be joined."""
    given, weight = attributes_of(node, op_of(node)), _own_weight(node)
    count = given["group"]
    if weight is None or weight.const_value is None or count < 2:
        return None
    first, second, *taps = weight.const_value.shape.numpy()
    if first % count:
        return None  # a broken file, which the checks report
    rows = taps[0] if len(taps) == 2 and (given["pads"][0] or given["pads"][2]) else 0
    if node.op_type != _TRANSPOSED:
        return _Groups(node.op_type, weight, count, second * count, first, rows)
    # runtimes do not add more products exactly; the op refuses such a node
    is_exact = first * math.prod(taps) <= MOST_TRANSPOSED_TAPS
    return _Groups(node.op_type, weight, count, first, second * count, rows) if is_exact else None


def _objection(groups: _Groups, count: int, *, reaches_kernel: bool, most_groups: int) -> str | None:
    """Why there must not be so many groups; None where they may be."""
    if count == 1 or groups.is_depthwise_image:
        return None
    if groups.op_type == _TRANSPOSED:
        return "a transposed convolution must not have groups"
    if groups.op_type == "Conv1dInt" and groups.inputs == count:
        return "a convolution over one axis must not be depthwise"
    if count > most_groups:
        return f"there must not be more than {most_groups}"
    if groups.outputs == count:  # with as many inputs it would be depthwise
        return "a group of several inputs must have several outputs"
    is_few = reaches_kernel and groups.inputs // count < groups.rows
    return f"with rows of padding a group must have {groups.rows} inputs, one for each kernel row" if is_few else None


def _joined(weight: Array, *, count: int, fewer: int) -> Array:
    """The weight [out, in/group, …], or [in, out/group, …] of a transposed convolution, for fewer groups."""
    together, (first, second) = count // fewer, weight.shape[:2]
    wider = np.zeros((first, second * together, *weight.shape[2:]), weight.dtype)
    for group in range(count):
        rows = slice(group * first // count, (group + 1) * first // count)
        place = group % together * second
        wider[rows, place : place + second] = weight[rows]
    return wider


def step_global_pools_by_one(model: ir.Model) -> Changes:
    """Write global average pools with a stride of 1: there is one window, so the stride means nothing.

    Leaves: other strides only where windows do not span the image or its size is open.
    """
    changes, pools = Changes(), dialect_nodes(model, "AvgPool2dInt")
    shapes = _sound_shapes(model) if pools else {}
    for node in pools:
        settings = attributes_of(node, op_of(node))
        is_global = list(settings["kernel_shape"]) == _spatial(node.inputs[0], shapes, 2) and not any(settings["pads"])
        if is_global and any(step != 1 for step in settings["strides"]):
            _set(node, strides=[1, 1])
            changes.note(describe(node), f"its stride of {_times(settings['strides'])} became 1: it has one window")
    return changes


def split_max_pools(model: ir.Model, *, largest: int) -> Changes:
    """Make chains of max pools with kernels of at most `largest` out of large ones, where every number sees the same pixels.

    Requires: types are known where pools are of standard ONNX. Leaves: larger kernels only where a size is open, taps are spread,
    windows hang over the end (`ceil_mode`), or no equal chain was found.
    """
    changes, names = Changes(), tensor_names(model)
    large = [node for node in _max_pools(model) if max(_numbers(node, "kernel_shape", [0])) > largest]
    shapes = _sound_shapes(model) if large else {}
    for node in large:
        kernel = _numbers(node, "kernel_shape", [])
        chain = None if _is_ceil(node) else _chain(_pool_axes(node, shapes) or [], largest)
        if chain is None:
            continue
        _put_chain(node, chain, names)
        kernels = " and ".join(_times([rows.kernel, columns.kernel]) for rows, columns in chain)
        reason = f"because a kernel must not be larger than {largest}"
        changes.note(describe(node), f"its kernel of {_times(kernel)} became a chain of {kernels}, {reason}")
    return changes


def _chain(axes: Sequence[tuple[Windows, int]], largest: int) -> list[tuple[Windows, Windows]] | None:
    """The stages of a chain over two axes that equals a pool; None where there is none."""
    if len(axes) != 2:
        return None
    rows, columns = (equal_chain(windows, size, largest) for windows, size in axes)
    if rows is None or columns is None:
        return None
    return list(zip_longest(rows, columns, fillvalue=Windows(1)))


def _put_chain(node: ir.Node, chain: Sequence[tuple[Windows, Windows]], names: Names) -> None:
    """Let a pool do the last stage of a chain, and new ones before it the others."""
    value, graph, result = node.inputs[0], graph_of(node), node.outputs[0]
    for number, stage in enumerate(chain[:-1], start=1):
        pool = ir.Node(node.domain, node.op_type, [value], attributes=list(node.attributes.values()))
        pool.name = f"{node.name or result.name}.stage{number}"
        _set_windows(pool, *stage)
        value = pool.outputs[0]
        value.name = names.choose(f"{result.name}.stage{number}")
        if result.type is not None:  # a file cannot have a shape without a type
            value.type, value.shape = result.type, ir.Shape([None] * 4)
        graph.insert_before(node, pool)
    node.replace_input_with(0, value)
    _set_windows(node, *chain[-1])


def _set_windows(node: ir.Node, *both: Windows) -> None:
    pads = [windows.pads[end] for end in (0, 1) for windows in both]
    _set(node, kernel_shape=[w.kernel for w in both], strides=[w.stride for w in both], pads=pads)


def drop_ceil_mode(model: ir.Model) -> Changes:
    """Remove `ceil_mode` from max pools of which no window hangs over the end.

    Requires: types are known where pools are of standard ONNX. Leaves: `ceil_mode` only where it acts or a size is open;
    behind no pool that is left does onnx's inference count a window that starts in the padding and is not computed.
    """
    changes = Changes()
    shapes: Mapping[str, Shape] | None = None
    for node in [node for node in _max_pools(model) if _is_ceil(node)]:  # in order: sizes before them are right by then
        shapes = known_tensors(model).shapes if shapes is None else shapes
        axes = _pool_axes(node, shapes)
        if axes is not None and all(windows.ceil_count(size) == windows.count(size) for windows, size in axes):
            node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
            changes.note(describe(node), "its ceil_mode, which adds no output at this size, became 0")
            shapes = None
    return changes


def _max_pools(model: ir.Model) -> list[ir.Node]:
    """Max pools of integers, of the dialect and of standard ONNX."""
    pools = [node for node in all_nodes(model) if node.op_type == "MaxPool" and len(node.outputs) == 1 and node.inputs]
    types = {node: getattr(node.inputs[0], "dtype", None) for node in pools if node.inputs[0] is not None}
    return [node for node in types if is_dialect(node) or (not node.domain and types[node] in QUANTIZED)]


def _is_ceil(node: ir.Node) -> bool:
    return bool(_numbers(node, "ceil_mode", [0])[0])


def _numbers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    """An attribute of whole numbers, or of one."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return default
    return [attribute.as_int()] if attribute.type == ir.AttributeType.INT else list(attribute.as_ints())


def _pool_axes(node: ir.Node, shapes: Mapping[str, Shape]) -> list[tuple[Windows, int]] | None:
    """The windows of a pool and the size, axis by axis; None where a size is open or padding is left to the runtime."""
    kernel, auto_pad = _numbers(node, "kernel_shape", []), node.attributes.get("auto_pad")
    axes = len(kernel)
    sizes = [size for size in _spatial(node.inputs[0], shapes, axes) if size is not None]
    if len(sizes) != axes or (auto_pad is not None and auto_pad.value != "NOTSET"):
        return None
    strides, dilations = (_numbers(node, name, [1] * axes) for name in ("strides", "dilations"))
    pads = _numbers(node, "pads", [0] * 2 * axes)
    windows = map(Windows, kernel, strides, zip(pads[:axes], pads[axes:], strict=True), dilations)
    return list(zip(windows, sizes, strict=True))


def _sound_shapes(model: ir.Model) -> Mapping[str, Shape]:
    """Shapes by name; none where onnx infers them wrongly.

    A last window that starts in the padding at the end is not computed, but onnx's inference counts it.
    """
    shapes = known_tensors(model).shapes
    for node in filter(_is_ceil, all_nodes(model)):
        for windows, size in _pool_axes(node, shapes) or ():
            has_rest = (size + sum(windows.pads) - windows.reach) % windows.stride
            if has_rest and windows.ceil_count(size) == windows.count(size):
                return {}
    return shapes
