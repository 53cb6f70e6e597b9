# SPDX-License-Identifier: Apache-2.0
"""The one quantised layer: any op that stands for a torch module, with its weights, ranges and folded batch norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from linger.constraint.conv_bn import fold, fold_factor, normalize_folded
from linger.dialect import Op, Refusal
from linger.errors import listing
from linger.numeric.fixed import BIAS_BITS, limits, scale_for
from linger.numeric.torch_exact import SplitPlan, plan_product, run_product
from linger.numeric.torch_kernel import carrier, integer_type
from linger.numeric.torch_quantize import fake_quantize, max_abs
from linger.quantization.dispatch import bindings_by_path
from linger.quantization.functional import quantize_input, requantize_to, run_functional, twin
from linger.quantization.qtensor import QTensor, to_carrier, unwrap
from linger.quantization.runtime import OpRecord, Runtime
from linger.quantization.statistics import QuantizedBase


@dataclass(frozen=True)
class Widths:
    """Bits of a layer's input, parameters and output."""

    data: int = 8
    parameter: int = 8
    output: int = 8


@dataclass(frozen=True)
class _Frozen:
    """A layer's parameters as integers for one input scale: as real carriers and as the file stores them."""

    weight: Tensor
    bias: Tensor | None
    weight_integers: Tensor
    bias_integers: Tensor | None
    scale_w: float
    plan: SplitPlan


class QuantLayer(QuantizedBase):
    """A torch layer computed as integers; its parameters are those of the layer it replaced.

    Training: parameters and activations are rounded with straight-through gradients, batch norm is folded into the
    one convolution and still learns. Evaluation: the integers of the device, exactly.
    """

    def __init__(self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime) -> None:
        has_weight = "w" in op.inputs
        super().__init__(("x", "w", "o") if has_weight else ("x", "o") if op.limit or op.name == "AvgPool2dInt" else ("x",))
        self.op_name = op.name
        self._op = op
        self.geometry = dict(geometry)
        self.widths = widths
        self.runtime = runtime
        self.path = ""
        self.is_ahead_of_relu = False
        self._frozen: dict[tuple[Any, ...], _Frozen] = {}
        self._frozen_for: tuple[Any, ...] = ()
        self.bn: nn.Module | None = None
        for name in getattr(source, "__constants__", ()):
            if hasattr(source, name) and name not in ("bias", "weight"):
                setattr(self, name, getattr(source, name))
        if has_weight:
            self.weight = source.weight
            self.bias = source.bias
        for name in op.constant_names:
            self.register_buffer(name, torch.zeros((), dtype=integer_type(widths.data)))
        self.train(source.training)

    def take_batch_norm(self, bn: nn.Module) -> None:
        """Fold a batch norm that goes on learning. The bias key exists in every checkpoint of this stage."""
        self.bn = bn
        if self.bias is None:
            channels = self.weight.shape[0]
            self.bias = nn.Parameter(torch.zeros(channels, device=self.weight.device), requires_grad=False)

    def extra_repr(self) -> str:
        """The op and its widths."""
        widths = f"{self.widths.data}/{self.widths.parameter}/{self.widths.output} bits"
        return f"{self.op_name}, {widths}" + (", before relu" if self.is_ahead_of_relu else "")

    def missing_scale(self, where: str) -> str:
        """Names every layer of the model that has no scale, not only the one that met it first."""
        missing = [layer.path for layer in self.runtime.layers if layer.lacks_scale]
        if len(missing) <= 1:
            return super().missing_scale(where)
        return (
            f"{listing(missing, limit=99)} have no scale yet. "
            "Run data through the model inside `with linger.calibration():`, or train it."
        )

    @property
    def lacks_scale(self) -> bool:
        """Whether a range of this layer was never seen."""
        return any(self.read(name) == 0.0 for name in ("running_x", "running_o") if name in self._buffers)

    # -- forward ----------------------------------------------------------------------------------
    def forward(self, x: Any) -> Any:
        """Integers in, integers out; a float input is quantised first."""
        runtime = self.runtime
        geometry = self._bind(x)
        if isinstance(geometry, Refusal):
            return self._in_float(x, geometry.reason)
        if not isinstance(x, QTensor) or x.scale is None:
            q = quantize_input(unwrap(x), self, self.widths.data, runtime, self.path)
        else:
            q = requantize_to(x, self.widths.data, runtime, self.path)
            self._adopt_input_range(q)
        if "w" not in self._op.inputs:
            if self._op.constant_names and runtime.emitter is None:
                self._keep_constants(geometry, q)
            result = run_functional(self._op, [q], geometry, runtime, layer=self)
            if "running_o" in self._buffers and runtime.emitter is None:
                self.write("running_o", self.read("running_x"))
                self.write("scale_o", result.scale or 0.0)
            return result
        name = runtime.unique_name(self.path, self.op_name)
        if self.is_observing and runtime.emitter is None:
            return self._learn(q, geometry, name)
        return self._deploy(q, geometry, name)

    def _bind(self, x: Any) -> Mapping[str, Any] | Refusal:
        """The op's attributes; layers that are a function call are bound when the input's size is known."""
        if "call" not in self.geometry:
            return self.geometry
        return bindings_by_path()[self.geometry["call"]](x, *self.geometry["arguments"])

    def _in_float(self, x: Any, reason: str) -> Any:
        function: Any = torch
        for part in self.geometry["call"].split(".")[1:]:
            function = getattr(function, part)
        self.runtime.note(OpRecord(self.path, self.op_name, is_integer=False, reason=reason))
        return function(unwrap(x), *self.geometry["arguments"])

    def _adopt_input_range(self, q: QTensor) -> None:
        """The range of a quantised input follows from its scale: nothing is observed."""
        if self.runtime.emitter is None:
            assert q.scale is not None
            self.write("running_x", limits(q.bits)[1] / q.scale)
            self.write("scale_x", q.scale)

    def _keep_constants(self, geometry: Mapping[str, Any], q: QTensor) -> None:
        make = self._op.make_constants
        assert make is not None
        for name, value in zip(self._op.constant_names, make(scale=q.scale, bits=q.bits, **geometry), strict=True):
            self._buffers[name].fill_(value)  # type: ignore[union-attr]  # registered in __init__

    # -- training -----------------------------------------------------------------------------------
    def _learn(self, q: QTensor, geometry: Mapping[str, Any], name: str) -> QTensor:
        """The layer on rounded operands, its output rounded to the observed range."""
        assert q.scale is not None
        is_learning_bn = self.bn is not None and self.bn.training and self.training
        if is_learning_bn:
            factor = fold_factor(self.bn)
            weight = self.weight * factor.reshape(-1, *([1] * (self.weight.dim() - 1)))
            bias = None
        else:
            weight, bias = self._folded()
        scale_w = self._weight_scale(weight.detach(), None if bias is None else bias.detach(), q.scale)
        weight_q = fake_quantize(weight, scale_w, self.widths.parameter, can_saturate=False)
        bias_q = None if bias is None else _round_bias(bias, q.scale * scale_w)
        y = self._product(q.inner, weight_q, bias_q, geometry)
        if is_learning_bn:
            y = normalize_folded(y, self.bias, self.bn, factor)
        is_relu = self.is_ahead_of_relu
        seen = self.observe("o", y, name, is_relu=is_relu)
        bits = self.widths.output
        scale_o = self.scale_of("o", bits, name, at_most=q.scale * scale_w)
        is_fused = is_relu and self.training
        can_saturate = seen * scale_o > limits(bits)[1] or (is_relu and not is_fused)
        values = fake_quantize(to_carrier(y, bits), scale_o, bits, is_relu=is_fused, can_saturate=can_saturate)
        self._note(name, q, y)
        return QTensor(values, scale_o, bits, self.runtime, is_nonnegative=is_fused)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Mapping[str, Any]) -> Tensor:
        fast = twin(self._op)
        assert fast is not None  # ops with weights have one
        result: Tensor = fast.accumulate(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), geometry)
        return result

    def _folded(self) -> tuple[Tensor, Tensor | None]:
        if self.bn is None:
            return self.weight, self.bias
        return fold(self.weight, self.bias, self.bn)

    def _weight_scale(self, weight: Tensor, bias: Tensor | None, scale_x: float) -> float:
        """The weights' own scale, lowered where the int32 bias at scale_x·scale_w would not fit."""
        largest = max_abs(weight)
        self.write("running_w", largest)
        scale = scale_for(largest, self.widths.parameter)
        if bias is not None and bias.numel():
            scale = min(scale, scale_for(max_abs(bias) * scale_x, BIAS_BITS))
        self.write("scale_w", scale)
        return scale

    # -- evaluation and export ------------------------------------------------------------------------
    def _deploy(self, q: QTensor, geometry: Mapping[str, Any], name: str) -> QTensor:
        """The exact integers, simulated or written to the file."""
        assert q.scale is not None
        bits = self.widths.output
        frozen = self.freeze(q.scale)
        scale_o = self.scale_of("o", bits, name, at_most=q.scale * frozen.scale_w)
        attributes = dict(geometry) | {
            "data_bits": self.widths.data,
            "parameter_bits": self.widths.parameter,
            "o_bits": bits,
            "scale_x": q.scale,
            "scale_w": frozen.scale_w,
            "scale_o": scale_o,
        }
        if self.runtime.emitter is not None:
            tensors = [q.inner, frozen.weight_integers, frozen.bias_integers]
            self._note(name, q, None)
            return QTensor(self.runtime.emit(self._op, tensors, attributes, name), scale_o, bits, self.runtime)
        y = self._exact_product(q.inner, frozen, geometry)
        if math.log2(q.scale * frozen.scale_w / scale_o) > 24:  # noqa: PLR2004 - float32 holds v + ½ exactly up to this shift
            y = y.double()
        values = fake_quantize(y, scale_o, bits).to(carrier(bits)) if bits <= 24 else _saturate_wide(y, scale_o, bits)  # noqa: PLR2004
        result = QTensor(values, scale_o, bits, self.runtime)
        self._note(name, q, y)
        self.runtime.record(name, result)
        return result

    def _exact_product(self, x: Tensor, frozen: _Frozen, geometry: Mapping[str, Any]) -> Tensor:
        fast = twin(self._op)
        assert fast is not None

        def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            result: Tensor = fast.accumulate(x, w, b, geometry)
            return result

        return run_product(
            product,
            x,
            frozen.weight,
            frozen.bias,
            frozen.plan,
            group=geometry.get("group", 1),
            axis=fast.CHANNEL_AXIS,
        )

    def freeze(self, scale_x: float) -> _Frozen:
        """The parameters as integers for this input scale, kept until a parameter changes."""
        state = self._fingerprint()
        if state != self._frozen_for:
            self._frozen.clear()
            self._frozen_for = state
        key = (scale_x, self.widths)
        if key not in self._frozen:
            # with gradients (backward in evaluation mode) nothing is kept: the graph belongs to one pass
            frozen = self._make_frozen(scale_x)
            if torch.is_grad_enabled() and frozen.weight.requires_grad:
                return frozen
            self._frozen[key] = frozen
        return self._frozen[key]

    def _make_frozen(self, scale_x: float) -> _Frozen:
        weight, bias = self._folded()
        weight = weight.float()
        scale_w = self._weight_scale(weight.detach(), None if bias is None else bias.detach(), scale_x)
        bits = self.widths.parameter
        rounded = fake_quantize(weight, scale_w, bits, can_saturate=False)
        rounded_bias = None if bias is None else _round_bias(bias, scale_x * scale_w)
        weight_integers = (rounded.detach() * scale_w).to(integer_type(bits))
        bias_integers = None
        if rounded_bias is not None:
            bias_integers = (rounded_bias.detach() * (scale_x * scale_w)).to(integer_type(BIAS_BITS))
        plan = plan_product(weight_integers, bias_integers, self.widths.data)
        return _Frozen(rounded, rounded_bias, weight_integers, bias_integers, scale_w, plan)

    def _fingerprint(self) -> tuple[Any, ...]:
        """Changes whenever a parameter does, also through `.data`, which torch does not count."""
        if self.runtime.emitter is not None:
            return self._frozen_for  # the pass before the export has filled the cache; a trace must not see these sums
        tensors = [self.weight, self.bias, *(self.bn.state_dict().values() if self.bn is not None else ())]
        with torch.no_grad():
            return tuple(
                (t.data_ptr(), t._version, float(t.sum()))  # noqa: SLF001 - torch has no public version counter
                for t in tensors
                if t is not None
            ) + (torch.is_grad_enabled(),)

    def _note(self, name: str, q: QTensor, y: Tensor | None) -> None:
        macs = 0 if y is None else int(y.numel() * self.weight.shape[1:].numel())
        del q
        self.runtime.note(OpRecord(name.rpartition(".")[0], self.op_name, is_integer=True, macs=macs))

    # -- checkpoints ------------------------------------------------------------------------------------
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("weight", "bias"):
            if f"{prefix}conv.{name}" in state_dict:
                state_dict[prefix + name] = state_dict.pop(f"{prefix}conv.{name}")
        if self.bn is not None:
            self._load_batch_norm(state_dict, prefix)
        for name in self._op.constant_names:
            state_dict.setdefault(prefix + name, self._buffers[name])
        self._frozen.clear()
        self._frozen_for = ()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _load_batch_norm(self, state_dict: dict[str, Any], prefix: str) -> None:
        assert self.bias is not None  # take_batch_norm made it
        has_bn = any(key.startswith(f"{prefix}bn.") for key in state_dict)
        if not has_bn and f"{prefix}weight" in state_dict and f"{prefix}bias" in state_dict:
            # a checkpoint whose batch norm is already folded into the weights
            self.bn = None
            self.bias.requires_grad_(mode=True)
        else:
            state_dict.setdefault(f"{prefix}bias", torch.zeros_like(self.bias))


def _round_bias(bias: Tensor, scale: float) -> Tensor:
    """The bias at int32 precision, saturated; float64, because float32 cannot hold 32 bits."""
    return fake_quantize(bias.double(), scale, BIAS_BITS, can_saturate=True)


def _saturate_wide(y: Tensor, scale: float, bits: int) -> Tensor:
    """Requantisation to 32 bits needs float64 throughout."""
    return fake_quantize(y.double(), scale, bits)
