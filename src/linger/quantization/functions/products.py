# SPDX-License-Identifier: Apache-2.0
"""F.linear, F.conv2d and the like with a parameter as weight, called in a user's own forward: layers without a module.

The weight is rounded as a layer's is (its scale from its largest value, the bias int32); the ranges are kept in a
functional layer of the module whose forward makes the call. An export uses the integers of the pass before it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch.compiler import is_exporting

from linger.constraint.marks import Widths
from linger.dialect import Op, Refusal, find_op
from linger.errors import UsageError
from linger.numeric.torch.exact import run_product
from linger.numeric.torch.quantize import fake_quantize, round_weight
from linger.numeric.torch.scale import Scale, may_saturate
from linger.ops.fast.twin import product_twin
from linger.quantization.core.frozen import Frozen, kept, make_frozen, make_ready, round_bias, round_output
from linger.quantization.core.qtensor import QTensor, to_carrier, unwrap
from linger.quantization.core.runtime import RUN_FIRST, Frame, OpCall, Runtime
from linger.quantization.core.statistics import QuantizedBase, weight_scale
from linger.quantization.core.switched import reason_of, why_off
from linger.quantization.functions.constants import is_fixed, is_state
from linger.quantization.functions.functional_layer import KEY_PREFIX, begin_function


@dataclass(frozen=True)
class Product:
    """One call, read: the op, its operands and its geometry."""

    op: Op
    x: Any
    weight: Tensor
    bias: Tensor | None
    geometry: Mapping[str, Any]

    @property
    def transposed_groups(self) -> int | None:
        """Groups of a transposed convolution, whose weights are [in, out/groups, …]."""
        return self.geometry["group"] if "output_padding" in self.geometry else None


Reader = Callable[..., "Product | Refusal"]


def _linear(input: Any, weight: Any, bias: Any = None) -> Product | Refusal:  # noqa: A002 - torch's name
    if weight.dim() != 2 or input.dim() < 2:
        return Refusal("a weight or an input of one axis has no integer form; use matrices")
    return Product(find_op("LinearInt"), input, weight, bias, {})


def _convolution(
    op_name: str, layer_name: str, axes: int, x: Any, weight: Any, bias: Any, **settings: Any
) -> Product | Refusal:
    if x.dim() != axes + 2:
        return Refusal("an input without a batch axis has no integer form; use unsqueeze(0)")
    wide = {k: v if k == "groups" else _per_axis(v, axes) for k, v in settings.items()}
    layer = SimpleNamespace(padding_mode="zeros", kernel_size=tuple(int(n) for n in weight.shape[2:]), **wide)
    op = find_op(op_name)
    geometry = op.layers[f"torch.nn.{layer_name}"](layer)
    return geometry if isinstance(geometry, Refusal) else Product(op, x, weight, bias, geometry)


def _per_axis(value: Any, axes: int) -> Any:
    if isinstance(value, str):
        return value
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(n) for n in (numbers * axes if len(numbers) == 1 else numbers))


def _conv1d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Product | Refusal:
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _convolution("Conv1dInt", "Conv1d", 1, input, weight, bias, **settings)


def _conv2d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Product | Refusal:
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _convolution("Conv2dInt", "Conv2d", 2, input, weight, bias, **settings)


def _conv_transpose2d(
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Product | Refusal:
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    settings["output_padding"] = output_padding
    return _convolution("ConvTranspose2dInt", "ConvTranspose2d", 2, input, weight, bias, **settings)


PRODUCTS: dict[Any, Reader] = {
    F.linear: _linear,
    F.conv1d: _conv1d,
    F.conv2d: _conv2d,
    F.conv_transpose2d: _conv_transpose2d,
}
"""Functions whose second argument is a weight."""

MATRIX_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul, torch.mm, Tensor.mm})
"""Functions whose second argument, where it is a parameter, is a transposed weight."""


def as_linear(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], runtime: Runtime
) -> Product | Refusal | None:
    """x @ w with a parameter or buffer w of two axes as the fully connected layer that it is; None if it is none.

    A Refusal where it is one and the model's switch keeps it float.
    """
    if func not in MATRIX_PRODUCTS:
        return None
    x = args[0] if args else kwargs.get("input")
    weight = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("mat2"))
    if not is_state(weight, runtime) or weight is None or weight.dim() != 2 or is_state(x, runtime):
        return None
    if not runtime.switches.linear:
        return Refusal(reason_of("linear"))
    found = read_product(F.linear, (x, weight.t()), {}, runtime)
    return found if isinstance(found, Product) else None


def read_product(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], runtime: Runtime) -> Product | Refusal:
    """The call as a product of integers, or why it stays float."""
    frame, policy = runtime.frame, runtime.products
    if frame is None or policy is None:
        return Refusal("outside the model")
    reason = why_off(func, runtime.switches)
    if reason is not None:
        return Refusal(reason)
    given = inspect.signature(PRODUCTS[func]).bind(*args, **kwargs).arguments
    if isinstance(given["weight"], QTensor) or isinstance(given.get("bias"), QTensor):
        return Refusal("its weight is computed from a quantised tensor; use torch.matmul")
    found = PRODUCTS[func](**given)
    if isinstance(found, Refusal):
        return found
    if not policy.allows(found.op.name, frame):
        return Refusal("this layer stays float, as init was asked")
    if not _is_constant(found, runtime, frame):
        return Refusal("its weight is computed from the input; a file can only hold constant weights")
    return found


def _is_constant(product: Product, runtime: Runtime, frame: Frame) -> bool:
    """Whether the parameters are the model's own. A watched pass knows; it leaves a layer that tells the later ones."""
    parameters = [t for t in (product.weight, product.bias) if t is not None]
    if all(is_state(t, runtime) for t in parameters):
        return True
    if runtime.is_watching:
        return all(is_fixed(t, runtime) for t in parameters)
    key = f"{KEY_PREFIX}{product.op.state_name}_{frame.indices[product.op.name]}"
    return frame.module.training or key in frame.module._modules  # noqa: SLF001 - hasattr would find other things


def compute_product(product: Product, runtime: Runtime) -> QTensor:
    """The product as integers: observed, simulated exactly or emitted, as the pass demands."""
    frame, policy = runtime.frame, runtime.products
    assert frame is not None  # read_product asked
    assert policy is not None
    call, layer = begin_function(product.op, runtime, product.weight.device)
    widths = policy.widths_in(frame.module)
    made = _ProductCall(product, _input(product.x, layer, widths.data, call), layer, widths, call)
    return made.learn() if call.is_learning else made.deploy()


def _input(x: Tensor, layer: QuantizedBase, bits: int, call: OpCall) -> QTensor:
    if not isinstance(x, QTensor) or x.scale is None:
        return layer.quantize(unwrap(x), bits, call.runtime, call.path)
    q = layer.requantize(x, bits, call.runtime, call.path)
    if x.bits <= bits and call.is_learning:
        layer.adopt_range(q)  # as of a layer
    return q


@dataclass(frozen=True)
class _ProductCall:
    product: Product
    q: QTensor
    layer: QuantizedBase
    widths: Widths
    call: OpCall

    @property
    def scale_x(self) -> Scale:
        return self.q.scale if self.layer.is_observing else self.q.scale_on_host

    def learn(self) -> QTensor:
        """The product of rounded operands, its output rounded to the observed range."""
        integers, scale_w = self._round_weight()
        bias = self.product.bias
        bias = None if bias is None else round_bias(bias, self.scale_x * scale_w)
        y = self._accumulate(self.q.content, integers * (1.0 / scale_w), bias)
        seen = self.layer.observe("o", y, self.call.name)
        bits = self.widths.output
        scale_o = self.layer.scale_of("o", bits, self.call.name, at_most=self.scale_x * scale_w)
        can_saturate = may_saturate(seen, scale_o, bits)
        values = fake_quantize(to_carrier(y, bits), scale_o, bits, can_saturate=can_saturate, is_owned=True)
        self.call.note(macs=self._macs(y))
        return QTensor(values, scale_o, bits, self.call.runtime)

    def deploy(self) -> QTensor:
        """The exact integers, simulated or written to the file."""
        data, parameter, bits = self.widths.data, self.widths.parameter, self.widths.output
        product, call = self.product, self.call
        tensors = [self.q.content, product.weight, product.bias]
        is_differentiable = torch.is_grad_enabled() and not call.runtime.is_tracing
        has_gradient = is_differentiable and any(t is not None and t.requires_grad for t in tensors)
        frozen = self._frozen(has_gradient=has_gradient)
        scale_o = self.layer.scale_of("o", bits, call.name, at_most=self.scale_x * frozen.scale_w)
        scales = {"scale_x": self.scale_x, "scale_w": frozen.scale_w, "scale_o": scale_o}
        widths = {"data_bits": data, "parameter_bits": parameter, "o_bits": bits}
        attributes = {**product.geometry, **widths, **scales}
        if call.is_written:
            call.note()
            integers = [self.q.content, frozen.weight_integers, frozen.bias_integers]
            return QTensor(call.emit(integers, attributes), scale_o, bits, call.runtime)
        groups = product.transposed_groups
        ready = make_ready(
            frozen,
            self.scale_x,
            scale_o,
            data,
            bits,
            is_nonnegative=self.q.is_nonnegative,
            can_fold=not has_gradient,
            transposed_groups=groups,
        )
        y = run_product(
            self._accumulate,
            self.q.content,
            ready.weight,
            ready.bias,
            ready.plan,
            group=product.geometry.get("group", 1),
            axis=product_twin(product.op).channel_axis,
            is_transposed=groups is not None,
        )
        call.note(macs=self._macs(y))
        values = round_output(y, scale_o, bits, is_rounding_folded=ready.is_rounding_folded, is_relu=False)
        result = QTensor(values, scale_o, bits, call.runtime)
        call.record(result, (self.q, frozen), attributes)
        return result

    def _frozen(self, *, has_gradient: bool) -> Frozen:
        """The parameters as integers. A trace, which must not see the rounding, takes those of the pass before it."""
        store, name = self.call.runtime.parameters, self.call.name
        if self.call.runtime.is_tracing:
            found = store.get(name)
            if found is None or found[0] != self.scale_x:
                raise UsageError(RUN_FIRST)
            return found[1]
        if has_gradient:
            frozen = self._make_frozen()
            bias = frozen.bias
            alone = replace(frozen, weight=frozen.weight.detach(), bias=None if bias is None else bias.detach())
        else:
            with kept():
                alone = frozen = self._make_frozen()
        store[name] = (self.scale_x, alone)
        return frozen

    def _make_frozen(self) -> Frozen:
        integers, scale_w = self._round_weight()
        return make_frozen(integers, self.product.bias, self.scale_x, scale_w, self.widths.parameter)

    def _round_weight(self) -> tuple[Tensor, Scale]:
        """Integer weights and their scale, lowered where the int32 bias at scale_x·scale_w would not fit."""
        bias = self.product.bias

        def choose_scale(largest: Scale) -> Scale:
            scale = weight_scale(largest, self.widths.parameter, bias, self.scale_x, self.call.name)
            self.layer.write("running_w", largest)
            self.layer.write("scale_w", scale)
            return scale

        weight = self.product.weight
        single = weight if weight.dtype == torch.float32 else weight.float()
        return round_weight(single, None, choose_scale, stays_there=self.layer.is_observing)

    def _accumulate(self, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        b = None if b is None else b.to(x.dtype)
        result: Tensor = product_twin(self.product.op).accumulate(x, w.to(x.dtype), b, self.product.geometry)
        return result

    def _macs(self, y: Tensor) -> int:
        if is_exporting():
            return 0  # in a trace the count would fix an open batch size
        several = y if self.product.transposed_groups is None else self.q.content
        return int(several.numel() * self.product.weight.shape[1:].numel())
