# SPDX-License-Identifier: Apache-2.0
"""What torch functions do to labels. A function that is not here keeps the channels of its inputs as they are.

Every function here gives s·f(x) for s·x, with a positive s that is the same wherever the function mixes elements: products,
ReLU and its kin, pools, resizing, means, sums of tensors that carry the same factor, and all that only moves numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from linger.analysis.batches import Function
from linger.tuning.equalization.watching import ANY, PINNED, Clip, Form, Rule, Watch, as_numbers, named_norm

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_SIGNED = ("leaky_relu", "prelu", "abs", "neg")
"""Functions to which the negative numbers of a layer's output matter, too."""

_SMOOTH = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area", "bicubic")


def _bound(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; those of a method begin with the tensor itself."""
    found = dict(zip(names, args, strict=False)) | kwargs
    if "self" in found:
        found["input"] = found.pop("self")
    return found


# layers
def _conv(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    is_transposed = "transpose" in func.__name__
    given = _bound(_TRANSPOSED if is_transposed else _CONV, args, kwargs)
    weight = given["weight"]
    axis = -(weight.dim() - 1)
    layer = watch.product(
        given["input"], weight, given.get("bias"), Form(int(given.get("groups", 1)), is_transposed), axis
    )
    if layer is None:
        return False
    layer.is_padded |= _is_padding(given.get("padding", 0))
    watch.made(output, layer, axis)
    return True


def _is_padding(padding: object) -> bool:
    return padding != "valid" if isinstance(padding, str) else any(tree_leaves(padding))


def _linear(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    del func
    given = _bound(_CONV, args, kwargs)
    layer = watch.product(given["input"], given["weight"], given.get("bias"), Form(), -1)
    if layer is not None:
        watch.made(output, layer, -1)
    return layer is not None


def _batch_norm(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    del func
    given = _bound(_NORM, args, kwargs)
    mean, var, weight, bias = (given.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
    norm = named_norm(watch, mean, var, weight, bias, given.get("eps", 1e-5))
    if norm is None or given.get("training"):
        return False
    x = given["input"]
    maker = watch.maker(x)
    feeder = None if maker is None or maker[0].norm is not None else maker[0]
    watch.normalize(x, feeder, norm, output, 1)
    return True


# functions of each element
def _same(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> bool:
    """A function of each element: it keeps its label."""
    given = _bound(("input",), args, kwargs)
    labels = watch.channels.labels(given["input"])
    if func.__name__.startswith(_SIGNED):
        watch.observe_made(given["input"])
        watch.channels.keep_origin(given["input"])
    if labels is not None:
        watch.channels.label(output, labels)
    return True


def _clamp(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    """Limits: 0 below and nothing above is ReLU; 0 below and a number above is noted, and pinned later if need be."""
    name = func.__name__
    given = _bound(("input", *_limit_names(name)), args, kwargs)
    low = given.get("min", given.get("min_val", {"relu6": 0.0, "hardtanh": -1.0, "hardtanh_": -1.0}.get(name)))
    high = given.get("max", given.get("max_val", {"relu6": 6.0, "hardtanh": 1.0, "hardtanh_": 1.0}.get(name)))
    if low is None or isinstance(low, Tensor) or float(low) != 0.0:
        return False
    if high is None:
        return _same(watch, func, (given["input"],), {}, output)
    if isinstance(high, Tensor) or float(high) <= 0:
        return False
    return _clip(watch, given["input"], float(high), output)


def _limit_names(name: str) -> tuple[str, ...]:
    if name.startswith("hardtanh"):
        return ("min_val", "max_val")
    return () if name == "relu6" else ("min", "max")


def _clip(watch: Watch, x: Tensor, limit: float, output: Tensor) -> bool:
    labels, maker = watch.channels.labels(x), watch.maker(x)
    uses = watch.uses_of(x)
    is_in_place = output is x
    if labels is None or maker is None or (is_in_place and uses[0] != 1):
        return False
    layer, axis = maker
    watch.channels.keep_origin(x)
    watch.clips.append(Clip(watch.module_of(x), layer.rows, limit, uses, is_in_place, axis))
    watch.channels.label(output, labels)
    return True


# sums and products of tensors
def _add(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    """A sum, a difference, the larger or smaller of two: both carry the same factor."""
    del func
    given = _bound(("input", "other"), args, kwargs)
    first, second = given["input"], given.get("other")
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        number = second if isinstance(first, Tensor) else first
        return not isinstance(number, Tensor) and number == 0 and _same(watch, torch.relu, (first,), {}, output)
    labels = [watch.channels.labels(t) for t in (first, second)]
    if all(found is None for found in labels):
        return True
    watch.channels.keep_origin(first)
    watch.channels.keep_origin(second)
    a, b = (_or_pinned(found, t) for found, t in zip(labels, (first, second), strict=True))
    joined = watch.channels.join_labels(a, b)
    watch.observe_made(first)
    watch.observe_made(second)
    watch.channels.label(output, joined)
    _observe(watch, output, joined)
    return True


def _or_pinned(labels: Tensor | None, tensor: Tensor) -> Tensor:
    if labels is not None:
        return labels
    return torch.full([1] * tensor.dim(), float(PINNED), dtype=torch.double).expand(tensor.shape)


def _observe(watch: Watch, tensor: Tensor, labels: Tensor) -> None:
    """Note the magnitudes of a sum, if its channels lie along one axis."""
    axes = [d for d in range(labels.dim()) if labels.shape[d] > 1]
    if len(axes) == 1:
        watch.channels.observe(tensor, axes[0], as_numbers(labels.reshape(-1)))


def _scaled(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    """A product with, or a quotient by, numbers that carry no factor."""
    given = _bound(("input", "other"), args, kwargs)
    first, second = given["input"], given.get("other")
    labels = [_labels_and_origin(watch, operand) for operand in (first, second)]
    is_quotient = "div" in func.__name__ and (labels[1] is not None or given.get("rounding_mode") is not None)
    if is_quotient or None not in labels:
        return False
    for found in labels:
        if found is not None:
            watch.channels.label(output, found)
    return True


def _labels_and_origin(watch: Watch, operand: object) -> Tensor | None:
    """The labels of an operand, to which no constant can be added from now on."""
    if not isinstance(operand, Tensor):
        return None
    watch.channels.keep_origin(operand)
    return watch.channels.labels(operand)


# functions that move numbers, or reduce them along some axes
def _move(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> bool:
    """The same function moves the labels. Tensors beside labeled ones that carry no factor are pinned."""
    first = args[0] if args else next(iter(kwargs.values()))
    moved = [t for t in tree_leaves(first) if isinstance(t, Tensor)]
    if all(watch.channels.labels(t) is None for t in moved):
        return not any(watch.channels.labels(t) is not None for t in _tensors((args, kwargs)))

    def labeled(leaf: object) -> object:
        return _or_pinned(watch.channels.labels(leaf), leaf) if isinstance(leaf, Tensor) else leaf

    rest = args[1:]
    if func.__name__ in ("view", "view_as"):
        func = torch.Tensor.reshape if func.__name__ == "view" else torch.Tensor.reshape_as
    result = func(tree_map(labeled, first), *rest, **kwargs)
    for made, labels in zip(_tensors(output), _tensors(result), strict=True):
        watch.channels.label(made, labels)
    return True


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _pad(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Tensor) -> bool:
    del func
    given = _bound(("input", "pad", "mode", "value"), args, kwargs)
    x, mode = given["input"], given.get("mode", "constant")
    labels = watch.channels.labels(x)
    if labels is None or (mode == "constant" and (given.get("value") or 0.0) != 0.0):
        return labels is None
    if mode == "constant":
        watch.channels.keep_origin(x)
        padded = F.pad(labels, given["pad"], value=float(ANY))
    else:
        padded = F.pad(labels, given["pad"], mode=mode)
    watch.channels.label(output, padded)
    return True


def _window(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> bool:
    """Pools and resizing mix what lies along the last axes."""
    given = _bound(("input", "size", "scale_factor", "mode"), args, kwargs)
    x = given["input"]
    labels = watch.channels.labels(x)
    if labels is None:
        return True
    found = re.search(r"(\d)d", func.__name__)
    if found is None and given.get("mode", "nearest") not in _SMOOTH:
        return False
    count = x.dim() - 2 if found is None else int(found.group(1))
    if func.__name__.startswith("avg_pool"):  # it may count zeros of its padding
        watch.channels.keep_origin(x)
    collapsed = watch.channels.collapse(labels, list(range(x.dim() - count, x.dim())))
    watch.channels.label(output if isinstance(output, Tensor) else output[0], collapsed)
    return True


def _reduce(watch: Watch, func: Function, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> bool:
    """Means, sums and largest numbers along axes; torch.max of two tensors is a choice between them."""
    given = _bound(("input", "dim"), args, kwargs)
    x, axes = given["input"], given.get("dim")
    if isinstance(axes, Tensor):
        return _add(watch, func, args, kwargs, output)
    labels = watch.channels.labels(x)
    if labels is None:
        return True
    chosen = list(range(x.dim())) if axes is None else [a % x.dim() for a in tree_leaves(axes)]
    if "other" in given:
        return False
    if func.__name__ == "sum":
        watch.channels.keep_origin(x)
    made = output if isinstance(output, Tensor) else output[0]
    watch.channels.label(made, watch.channels.collapse(labels, chosen).reshape(made.shape))
    return True


_BY_RULE: dict[Rule, str] = {
    _conv: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    _linear: "linear",
    _batch_norm: "batch_norm",
    _same: "relu relu_ leaky_relu leaky_relu_ prelu abs abs_ dropout dropout1d dropout2d dropout3d alpha_dropout "
    "feature_dropout contiguous clone detach float double to type_as neg __neg__",
    _clamp: "relu6 hardtanh hardtanh_ clamp clamp_ clip clip_",
    _add: "add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ maximum minimum",
    _scaled: "mul mul_ __mul__ __rmul__ __imul__ div div_ __truediv__ __itruediv__ true_divide",
    _move: "reshape view view_as flatten unflatten permute transpose swapaxes swapdims movedim squeeze unsqueeze chunk split "
    "tensor_split unbind __getitem__ narrow select expand expand_as repeat tile roll flip cat concat concatenate stack "
    "hstack vstack pixel_shuffle pixel_unshuffle channel_shuffle repeat_interleave index_select t mT",
    _pad: "pad",
    _window: "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices "
    "max_pool2d_with_indices max_pool3d_with_indices interpolate",
    _reduce: "mean sum amax amin max min",
}

RULES: dict[str, Rule] = {name: rule for rule, names in _BY_RULE.items() for name in names.split()}
"""The rule of each function by its name, whether it is a method, a function of torch or one of torch.nn.functional."""
