# SPDX-License-Identifier: Apache-2.0
"""Products of data and weights that a user's forward computes by a function (F.linear, F.conv2d, x @ w): quantization and MACs.

Such a call is quantized like the layer that it replaces: the scale of the weight comes from its largest magnitude, and the bias is
int32. A functional layer of the module whose forward makes the call holds the ranges. An export uses the integer weights of the
forward pass before it.

`count_macs` counts the multiply-accumulates of a call of any torch function that computes convolutions or matrix products, from the
shapes. Element-wise products (a · b, a norm, an activation) are not counted: they are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.analysis.multiplications import products_of
from linger.dialect import Op, Refusal
from linger.errors import UsageError
from linger.numeric.torch.quantize import Scale, output_channels
from linger.ops.fast.fast_path import accumulate
from linger.quantization.core.qtensor import QTensor, is_quantized, unwrap
from linger.quantization.core.quantized import Frozen, QuantizedBase, Ready, kept, make_frozen, make_ready, round_bias
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import RUN_FIRST, Frame, OpCall, Runtime, TorchFunction
from linger.quantization.core.stored import other_numbers
from linger.quantization.core.supported import reason_of, supported_types, why_off
from linger.quantization.functions.constants import is_fixed, is_state
from linger.quantization.functions.functional_layer import KEY_PREFIX, begin_function


@dataclass(frozen=True)
class Product:
    """A call as a layer: the op, its operands, and its geometry (strides, pads, dilations, group)."""

    op: Op
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    geometry: Mapping[str, Any]

    @property
    def transposed_groups(self) -> int | None:
        """Groups of a transposed convolution, whose weights are [in, out/groups, …]; None for other ops."""
        return self.geometry["group"] if self.op.is_transposed else None


_WINDOW = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
"""Arguments of a convolution that have one number per axis, and their defaults."""

PRODUCTS: dict[TorchFunction, tuple[type[nn.Module], tuple[str, ...]]] = {
    F.linear: (nn.Linear, ()),
    F.conv1d: (nn.Conv1d, ("stride", "padding", "dilation", "groups")),
    F.conv2d: (nn.Conv2d, ("stride", "padding", "dilation", "groups")),
    F.conv_transpose2d: (nn.ConvTranspose2d, ("stride", "padding", "output_padding", "groups", "dilation")),
}
"""Functions whose second argument is a weight: the equivalent layer, and the names of the arguments after (input, weight, bias)."""

MATRIX_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul, torch.mm, Tensor.mm})
"""Functions whose second argument is a transposed weight, if it is a parameter."""


def _as_layer(func: TorchFunction, arguments: Mapping[str, Any]) -> Product | Refusal:
    """A call as the equivalent layer; the op of the layer converts the arguments to its geometry, or refuses them."""
    kind, names = PRODUCTS[func]
    op, bind = supported_types()[kind]
    x, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if kind is nn.Linear:
        if weight.dim() != 2 or x.dim() < 2:
            return Refusal("a weight or an input with only one axis has no integer form; use matrices")
        return Product(op, x, weight, bias, {})
    axes = op.window_axes
    if x.dim() != axes + 2:
        return Refusal("an input without a batch axis has no integer form; use unsqueeze(0)")
    settings = {name: _per_axis(arguments.get(name, _WINDOW[name]), axes) for name in names if name in _WINDOW}
    settings |= {"padding_mode": "zeros", "kernel_size": tuple(map(int, weight.shape[2:]))}
    geometry = bind(SimpleNamespace(groups=arguments.get("groups", 1), **settings))
    return geometry if isinstance(geometry, Refusal) else Product(op, x, weight, bias, geometry)


def _per_axis(value: str | int | Sequence[int], axes: int) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(n) for n in (numbers * axes if len(numbers) == 1 else numbers))


def as_linear(
    func: TorchFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any], runtime: Runtime
) -> Product | Refusal | None:
    """x @ w as a fully connected layer, if w is a parameter or buffer with two axes; None for other calls.

    A Refusal if the model's switch `linear` keeps fully connected layers float.
    """
    if func not in MATRIX_PRODUCTS:
        return None
    x = args[0] if args else kwargs.get("input")
    weight = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("mat2"))
    if not is_state(weight, runtime) or weight is None or weight.dim() != 2 or is_state(x, runtime):
        return None
    if not runtime.switches.linear:
        return Refusal(reason_of("linear"))
    product = read_product(F.linear, (x, weight.t()), {}, runtime)
    return product if isinstance(product, Product) else None


def read_product(
    func: TorchFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any], runtime: Runtime
) -> Product | Refusal:
    """The call as a product that can be quantized, or the reason why it stays float."""
    frame, policy = runtime.frame, runtime.products
    if frame is None or policy is None:
        return Refusal("outside the model")
    reason = why_off(func, runtime.switches)
    if reason is not None:
        return Refusal(reason)
    # arguments by name; torch has already checked them
    arguments = {**dict(zip(("input", "weight", "bias", *PRODUCTS[func][1]), args, strict=False)), **kwargs}
    if isinstance(arguments["weight"], QTensor) or isinstance(arguments.get("bias"), QTensor):
        return Refusal("its weight is computed from a quantized tensor; use torch.matmul")
    product = _as_layer(func, arguments)
    if isinstance(product, Refusal):
        return product
    if not policy.allows(product.op.name, frame):
        return Refusal("this layer stays float, as init was asked")
    if not _is_constant(product, runtime, frame):
        return Refusal("its weight is computed from the input; a file can only hold constant weights")
    return product


def _is_constant(product: Product, runtime: Runtime, frame: Frame) -> bool:
    """Whether weight and bias do not depend on the input.

    For computed ones a watched pass decides that; later passes look for the functional layer that it leaves.
    """
    parameters = [t for t in (product.weight, product.bias) if t is not None]
    if all(is_state(t, runtime) for t in parameters):
        return True
    if runtime.current.watch is not None:
        return all(is_fixed(t, runtime) for t in parameters)
    key = f"{KEY_PREFIX}{product.op.state_name}_{frame.indices[product.op.name]}"
    return frame.module.training or key in frame.module._modules  # noqa: SLF001 - hasattr would find other things


def compute_product(product: Product, runtime: Runtime) -> QTensor:
    """The quantized product: observed, simulated exactly or exported, depending on the kind of the forward pass."""
    call, layer = begin_function(product.op, runtime, product.weight.device)
    widths = cast(Any, runtime.products).widths_in(cast(Frame, runtime.frame).module)  # both checked by read_product
    q = _input(product.x, layer, widths.data, call)
    now, range_w = call.now, _weight_range(product, layer, call)
    scale_x: Scale = q.scale if range_w.observes(now) else q.scale_on_host
    weight = product.weight.float()
    weight_arguments = (product.bias, scale_x, widths.parameter, call.name, now)
    round_weight = partial(
        range_w.round_weight, weight, None, *weight_arguments, memory=layer.memory if layer.training else None
    )
    if now.is_real or call.is_learning:
        if now.is_real:
            bias, scale_w = product.bias, range_w.observe_weight(weight, *weight_arguments)
        else:
            weight, scale_w = round_weight(is_real=True)
            bias = None if product.bias is None else round_bias(product.bias, scale_x * scale_w)
        y, taps = accumulate(product.op, product.geometry, q.content, weight, bias), product.weight.shape[1:].numel()
        return layer.ranges["o"].round_product(call, q, y, scale_w, widths.output, taps=taps)

    requires_grad = [getattr(t, "requires_grad", False) for t in (q.content, product.weight, product.bias)]
    has_gradient = torch.is_grad_enabled() and not now.is_traced and any(requires_grad)

    def freeze() -> Frozen:
        integers, scale_w = round_weight()
        return make_frozen(integers, product.bias, scale_x, scale_w, widths.parameter, range_w.rows)

    frozen = _frozen(call, scale_x, freeze, has_gradient=has_gradient)

    def ready_for(scale_o: Scale) -> Ready:
        return make_ready(
            frozen,
            scale_x,
            scale_o,
            q.signed_bits,
            widths.output,
            is_nonnegative=q.is_nonnegative,
            can_fold=not has_gradient,
            transposed_groups=product.transposed_groups,
        )

    return layer.deploy_product(call, q, frozen, product.geometry, widths, ready_for)


def _weight_range(product: Product, layer: QuantizedBase, call: OpCall) -> Range:
    """The range of the weight, or of its output channels where these have scales of their own."""
    range_, groups = layer.ranges["w"], product.transposed_groups
    if call.runtime.is_per_channel:
        channels = output_channels(product.weight, groups)
        if range_.is_loaded_whole and channels > 1:
            raise UsageError(other_numbers([], [f"{call.name}.w"], [], {"per_channel": False}))
        range_.split(channels, groups)
    return range_


def _input(x: Tensor, layer: QuantizedBase, bits: int, call: OpCall) -> QTensor:
    if not is_quantized(x):
        return layer.ranges["x"].quantize(unwrap(x), bits, call.runtime, call.path)
    q = layer.ranges["x"].requantize(x, bits, call.runtime, call.path)
    is_due = call.is_learning or (
        not call.now.is_traced and (layer.input_range == "stale" or layer.ranges["x"].is_foreign)
    )
    if x.bits <= bits and is_due:
        layer.input_range = "adopted"
        layer.ranges["x"].adopt(q)  # as a layer does
    return q


def _frozen(call: OpCall, scale_x: Scale, freeze: Callable[[], Frozen], *, has_gradient: bool) -> Frozen:
    """The parameters as integers. A trace must not record the rounding, so it takes the integers of the pass before it."""
    runtime = call.runtime
    if call.now.is_traced:
        known_scale, known = runtime.recall(call.name)
        if known_scale != scale_x:
            raise UsageError(RUN_FIRST)
        return cast(Frozen, known)
    if has_gradient:
        frozen = freeze()
        bias = frozen.bias
        detached = replace(frozen, weight=frozen.weight.detach(), bias=None if bias is None else bias.detach())
    else:
        with kept():
            detached = frozen = freeze()
    runtime.last_pass[call.name] = (scale_x, detached)
    return frozen


_Arguments = Mapping[str, Any]
_MacCounter = Callable[[_Arguments, Tensor], int]
"""Computes the multiply-accumulates of a call from its arguments by name and its result."""


def count_macs(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> int:
    """Multiply-accumulates of one call of a torch function; 0 for a function that multiplies no matrices.

    >>> import torch
    >>> x, w = torch.zeros(2, 3), torch.zeros(4, 3)
    >>> count_macs("linear", (x, w), {}, torch.nn.functional.linear(x, w))
    24
    """
    known = _MAC_COUNTERS.get(name.strip("_"))
    if known is None:
        return 0
    names, count = known
    return count({**dict(zip(names, args, strict=False)), "operands": args[1:], **kwargs}, cast(Tensor, result))


def _as_onnx(op: str, names: Sequence[str], arguments: _Arguments, result: Tensor) -> int:
    """The multiply-accumulates of an ONNX op whose inputs are the arguments with these names."""
    shape = (
        result.shape if isinstance(result, Tensor) else None
    )  # an LSTM cell returns a pair; cells are counted by their inputs
    return products_of(op, [shape, *(arguments[name].shape for name in names)]) or 0


def _batched_sum(arguments: _Arguments, result: Tensor) -> int:
    """The products of all matrices of a batch are added up."""
    return int(result.numel() * arguments["batch1"].shape[-1] * arguments["batch1"].shape[0])


def _bilinear(arguments: _Arguments, result: Tensor) -> int:
    """x1·W over the last axis of x1, then the product with x2 over its last axis."""
    _, first, second = arguments["weight"].shape
    return int(result.numel() * (first * second + second))


def _recurrent(arguments: _Arguments, result: Tensor) -> int:  # noqa: ARG001
    """Every weight matrix once per time step and sequence: (data, state, weights, …) or (data, sizes, state, weights, …)."""
    data, second = arguments["data"], arguments["second"]
    # packed: data are rows, and `second` has the batch size of each step; else [time, batch, …] or [batch, time, …]
    is_packed = isinstance(second, Tensor) and not second.is_floating_point()
    weights = arguments["fourth" if is_packed else "third"]
    return int(math.prod(data.shape[:-1]) * sum(w.numel() for w in weights if w.dim() == 2))


def _attention(arguments: _Arguments, result: Tensor) -> int:
    """q·kᵀ over the width of a head, then its product with v."""
    return int((arguments["query"].numel() + result.numel()) * arguments["key"].shape[-2])


def _attention_with_projections(arguments: _Arguments, result: Tensor) -> int:  # noqa: ARG001
    """Three projections in, attention over all heads, one projection out; inputs are [length, batch, width]."""
    q, k, v = (arguments[name] for name in ("query", "key", "value"))
    projections = (2 * q.numel() + k.numel() + v.numel()) * q.shape[-1]
    return int(projections + 2 * q.numel() * k.shape[0])


def _einsum(arguments: _Arguments, result: Tensor) -> int:
    """Every output element is a sum over the labels that the output does not have."""
    if not isinstance(arguments["equation"], str):
        return 0  # the form with lists of axes has no labels to read
    inputs, arrow, output = arguments["equation"].replace(" ", "").partition("->")
    operands = arguments["operands"]
    if isinstance(operands[0], (tuple, list)):
        operands = operands[0]
    sizes: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), operands, strict=True):
        before, _, after = labels.partition("...")
        sizes |= dict(zip(before, operand.shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(operand.shape), strict=False))
    output_labels = output if arrow else "".join(label for label in sizes if inputs.count(label) == 1)
    products = max(len(operands) - 1, 0)
    return int(result.numel() * products * math.prod(n for label, n in sizes.items() if label not in output_labels))


_MATRIX_PRODUCT_NAMES = ("linear", "mm", "bmm", "matmul", "mv", "dot", "vdot", "inner")
_CONV_INPUTS = ("input", "weight")
_CELL_INPUTS = ("input", "hx", "w_ih", "w_hh")

_MAC_COUNTERS: dict[str, tuple[tuple[str, ...], _MacCounter]] = {
    **dict.fromkeys(_MATRIX_PRODUCT_NAMES, (("input",), partial(_as_onnx, "MatMul", ("input",)))),
    "rmatmul": (("input", "other"), partial(_as_onnx, "MatMul", ("other",))),
    "addmm": (("input", "mat1"), partial(_as_onnx, "MatMul", ("mat1",))),
    "baddbmm": (("input", "batch1"), partial(_as_onnx, "MatMul", ("batch1",))),
    "addmv": (("input", "mat"), partial(_as_onnx, "MatMul", ("mat",))),
    "addbmm": (("input", "batch1"), _batched_sum),
    **{f"conv{n}d": (_CONV_INPUTS, partial(_as_onnx, "Conv", _CONV_INPUTS)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (_CONV_INPUTS, partial(_as_onnx, "ConvTranspose", _CONV_INPUTS)) for n in (1, 2, 3)},
    "bilinear": (("input1", "input2", "weight"), _bilinear),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (("data", "second", "third", "fourth"), _recurrent)),
    **{
        f"{kind}_cell": (_CELL_INPUTS, partial(_as_onnx, "LSTM", ("input", "w_ih", "w_hh")))
        for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
    "scaled_dot_product_attention": (("query", "key"), _attention),
    "multi_head_attention_forward": (("query", "key", "value"), _attention_with_projections),
    "einsum": (("equation",), _einsum),
    # each sum has n = √(|a|·|b|/|y|) terms: |a| = rows·n, |b| = n·columns, |y| = rows·columns
    "tensordot": (("a", "b"), lambda args, y: math.isqrt(args["a"].numel() * args["b"].numel() * y.numel())),
}
"""The names of a function's first arguments and its counter, by the function's name without leading and trailing underscores (`matmul`
for __matmul__, `addmm` for addmm_)."""
