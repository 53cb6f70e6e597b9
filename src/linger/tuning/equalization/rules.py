# SPDX-License-Identifier: Apache-2.0
"""What torch functions do to labels. A function that is not here keeps the channels of its inputs as they are.

Every function here gives s·f(x) for s·x, with a positive s that is the same wherever the function mixes elements: products,
ReLU and its kin, pools, resizing, means, sums of tensors that carry the same factor, and all that only moves numbers.
"""

from __future__ import annotations

import re

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from linger.analysis.batches import Function
from linger.tuning.equalization.watching import ANY, PINNED, Call, Clip, Form, Rules, Watch, as_numbers, tensors

_SIGNED = ("leaky_relu", "prelu", "abs", "neg")
"""Functions to which the negative numbers of a layer's output matter, too."""

_SMOOTH = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area", "bicubic")


# layers
def _conv(watch: Watch, call: Call) -> bool:
    weight = call.given["weight"]
    axis = -(weight.dim() - 1)
    form = Form(int(call.given.get("groups", 1)), "transpose" in call.name)
    layer = watch.product(call.x, weight, call.given.get("bias"), form, axis)
    if layer is None:
        return False
    padding = call.given.get("padding", 0)
    layer.is_padded |= padding != "valid" if isinstance(padding, str) else any(tree_leaves(padding))
    watch.made(call.output, layer, axis)
    return True


def _linear(watch: Watch, call: Call) -> bool:
    layer = watch.product(call.x, call.given["weight"], call.given.get("bias"), Form(), -1)
    if layer is not None:
        watch.made(call.output, layer, -1)
    return layer is not None


def _batch_norm(watch: Watch, call: Call) -> bool:
    mean, var, weight, bias = (call.given.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
    norm = watch.norm_of(mean, var, weight, bias, call.given.get("eps", 1e-5))
    if norm is None or call.given.get("training"):
        return False
    maker = watch.makers.get(call.x)
    feeder = None if maker is None or maker[0].norm is not None else maker[0]
    watch.normalize(call.x, feeder, norm, call.output, 1)
    return True


# functions of each element
def _same(watch: Watch, call: Call) -> bool:
    """A function of each element: it keeps its label."""
    labels = watch.channels.labels(call.x)
    if call.name.startswith(_SIGNED):
        watch.observe_made(call.x)
        watch.channels.keep_origin(call.x)
    if labels is not None:
        watch.channels.label(call.output, labels)
    return True


def _clamp(watch: Watch, call: Call) -> bool:
    """Limits: 0 below and nothing above is ReLU; 0 below and a number above is noted, and pinned later if need be."""
    lowest, highest = {"relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0), "hardtanh_": (-1.0, 1.0)}.get(
        call.name, (None, None)
    )
    low = call.given.get("min", call.given.get("min_val", lowest))
    high = call.given.get("max", call.given.get("max_val", highest))
    if low is None or isinstance(low, Tensor) or float(low) != 0.0:
        return False
    if high is None:
        return _same(watch, call)
    return not isinstance(high, Tensor) and float(high) > 0 and _clip(watch, call.x, float(high), call.output)


def _clip(watch: Watch, x: Tensor, limit: float, output: Tensor) -> bool:
    labels, maker, uses = watch.channels.labels(x), watch.makers.get(x), watch.uses_of(x)
    is_in_place = output is x
    if labels is None or maker is None or (is_in_place and uses[0] != 1):
        return False
    layer, axis = maker
    watch.channels.keep_origin(x)
    watch.clips.append(Clip(watch.returned_by.get(x), layer.rows, limit, uses, is_in_place, axis))
    watch.channels.label(output, labels)
    return True


# sums and products of tensors
def _add(watch: Watch, call: Call) -> bool:
    """A sum, a difference, the larger or smaller of two: both carry the same factor."""
    first, second = call.x, call.given.get("other", call.given.get("dim"))
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        number = second if isinstance(first, Tensor) else first
        return not isinstance(number, Tensor) and number == 0 and _same(watch, call._replace(name="relu"))
    a, b = watch.channels.labels(first), watch.channels.labels(second)
    if a is None and b is None:
        return True
    watch.channels.keep_origin(first)
    watch.channels.keep_origin(second)
    joined = watch.channels.join_labels(_or_pinned(a, first), _or_pinned(b, second))
    watch.observe_made(first)
    watch.observe_made(second)
    watch.channels.label(call.output, joined)
    if sum(size > 1 for size in joined.shape) == 1:  # the channels of the sum lie along one axis
        watch.channels.observe(call.output, int(np.argmax(joined.shape)), as_numbers(joined.reshape(-1)))
    return True


def _or_pinned(labels: Tensor | None, tensor: Tensor) -> Tensor:
    if labels is not None:
        return labels
    return torch.full([1] * tensor.dim(), float(PINNED), dtype=torch.double).expand(tensor.shape)


def _scaled(watch: Watch, call: Call) -> bool:
    """A product with, or a quotient by, numbers that carry no factor."""
    first, second = (_labels_and_origin(watch, operand) for operand in (call.x, call.given.get("other")))
    is_quotient = "div" in call.name and (second is not None or call.given.get("rounding_mode") is not None)
    if is_quotient or (first is not None and second is not None):
        return False
    labels = second if first is None else first
    if labels is not None:
        watch.channels.label(call.output, labels)
    return True


def _labels_and_origin(watch: Watch, operand: object) -> Tensor | None:
    """The labels of an operand, to which no constant can be added from now on."""
    if not isinstance(operand, Tensor):
        return None
    watch.channels.keep_origin(operand)
    return watch.channels.labels(operand)


# functions that move numbers, or reduce them along some axes
def _move(watch: Watch, call: Call) -> bool:
    """The same function moves the labels. Tensors beside labeled ones that carry no factor are pinned."""
    if all(watch.channels.labels(t) is None for t in tensors(call.x)):
        return all(watch.channels.labels(t) is None for t in tensors((call.args, call.kwargs)))

    def labeled(leaf: object) -> object:
        return _or_pinned(watch.channels.labels(leaf), leaf) if isinstance(leaf, Tensor) else leaf

    reshaping: dict[str, Function] = {"view": torch.Tensor.reshape, "view_as": torch.Tensor.reshape_as}
    func = reshaping.get(call.name, call.func)
    result = func(tree_map(labeled, call.x), *call.args[1:], **call.kwargs)
    for output, labels in zip(tensors(call.output), tensors(result), strict=True):
        watch.channels.label(output, labels)
    return True


def _pad(watch: Watch, call: Call) -> bool:
    mode, labels = call.given.get("mode", "constant"), watch.channels.labels(call.x)
    if labels is None or (mode == "constant" and (call.given.get("value") or 0.0) != 0.0):
        return labels is None
    if mode == "constant":
        watch.channels.keep_origin(call.x)
    value = float(ANY) if mode == "constant" else None
    watch.channels.label(call.output, F.pad(labels, call.given["pad"], mode=mode, value=value))
    return True


def _window(watch: Watch, call: Call) -> bool:
    """Pools and resizing mix what lies along the last axes."""
    labels = watch.channels.labels(call.x)
    if labels is None:
        return True
    axes = re.search(r"(\d)d", call.name)
    if axes is None and call.given.get("mode", "nearest") not in _SMOOTH:
        return False
    if call.name.startswith("avg_pool"):  # it may count zeros of its padding
        watch.channels.keep_origin(call.x)
    dim = call.x.dim()
    collapsed = watch.channels.collapse(labels, list(range(2 if axes is None else dim - int(axes[1]), dim)))
    watch.channels.label(call.output if isinstance(call.output, Tensor) else call.output[0], collapsed)
    return True


def _reduce(watch: Watch, call: Call) -> bool:
    """Means, sums and largest numbers along axes; torch.max of two tensors is a choice between them."""
    axes, labels = call.given.get("dim"), watch.channels.labels(call.x)
    if isinstance(axes, Tensor):
        return _add(watch, call)
    if labels is None or "other" in call.given:
        return labels is None
    if call.name == "sum":
        watch.channels.keep_origin(call.x)
    dim = call.x.dim()
    chosen = list(range(dim)) if axes is None else [a % dim for a in tree_leaves(axes)]
    output = call.output if isinstance(call.output, Tensor) else call.output[0]
    watch.channels.label(output, watch.channels.collapse(labels, chosen).reshape(output.shape))
    return True


_BY_RULE = (
    (_conv, "input weight bias stride padding dilation groups", "conv1d conv2d conv3d"),
    (
        _conv,
        "input weight bias stride padding output_padding groups dilation",
        "conv_transpose1d conv_transpose2d conv_transpose3d",
    ),
    (_linear, "input weight bias", "linear"),
    (_batch_norm, "input running_mean running_var weight bias training momentum eps", "batch_norm"),
    (
        _same,
        "input",
        "relu relu_ leaky_relu leaky_relu_ prelu abs abs_ dropout dropout1d dropout2d dropout3d alpha_dropout "
        "feature_dropout contiguous clone detach float double to type_as neg __neg__",
    ),
    (_clamp, "input", "relu6"),
    (_clamp, "input min_val max_val", "hardtanh hardtanh_"),
    (_clamp, "input min max", "clamp clamp_ clip clip_"),
    (_add, "input other", "add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ maximum minimum"),
    (_scaled, "input other", "mul mul_ __mul__ __rmul__ __imul__ div div_ __truediv__ __itruediv__ true_divide"),
    (
        _move,
        "input",
        "reshape view view_as flatten unflatten permute transpose swapaxes swapdims movedim squeeze unsqueeze chunk split "
        "tensor_split unbind __getitem__ narrow select expand expand_as repeat tile roll flip cat concat concatenate stack "
        "hstack vstack pixel_shuffle pixel_unshuffle channel_shuffle repeat_interleave index_select t mT",
    ),
    (_pad, "input pad mode value", "pad"),
    (
        _window,
        "input size scale_factor mode",
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices "
        "max_pool2d_with_indices max_pool3d_with_indices interpolate",
    ),
    (_reduce, "input dim", "mean sum amax amin max min"),
)
"""Rules, the positional arguments of the functions that they are about, and the names of these functions."""

RULES: Rules = {name: (rule, names.split()) for rule, names, functions in _BY_RULE for name in functions.split()}
"""The rule of each function by its name, whether it is a method, a function of torch or one of torch.nn.functional."""
