# SPDX-License-Identifier: Apache-2.0
"""The one quantised layer: any op that stands for a torch module, with its weights, ranges and folded batch norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from linger.constraint.conv_bn import fold, learning_factor, normalize_folded, per_weight
from linger.constraint.limits import Limits, exceeds
from linger.constraint.marks import Widths
from linger.dialect import Op, Refusal
from linger.errors import UsageError, listing
from linger.numeric.fixed import limits
from linger.numeric.torch.exact import run_product
from linger.numeric.torch.kernel import integer_type
from linger.numeric.torch.quantize import fake_quantize, round_weight
from linger.numeric.torch.scale import Scale, may_saturate
from linger.quantization.core.frozen import (
    Frozen,
    Ready,
    Watchman,
    kept,
    make_frozen,
    make_ready,
    round_bias,
    round_output,
)
from linger.quantization.core.integer_limits import fold_by_batch, integer_bound, limit_parameters
from linger.quantization.core.qtensor import QTensor, to_carrier, unwrap
from linger.quantization.core.runtime import RUN_FIRST, OpRecord, Runtime, is_exporting
from linger.quantization.core.statistics import QuantizedBase, weight_scale
from linger.quantization.functions.functional import constants_of, quantize_input, requantize_to, run_functional, twin
from linger.quantization.functions.padding import pad_for
from linger.quantization.layers.binding import bind, call_in_float
from linger.quantization.layers.lookup import look_up


class QuantLayer(QuantizedBase):
    """A torch layer computed as integers; its parameters are those of the layer it replaced.

    Training: parameters and activations are rounded with straight-through gradients, batch norm is folded into the
    one convolution and still learns. Evaluation: the integers of the device, exactly.
    """

    is_layer = True
    weight: nn.Parameter
    bias: nn.Parameter | None
    bn: nn.Module | None

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        has_weight = "w" in op.inputs
        super().__init__(
            ("x", "w", "o") if has_weight else ("x", "o") if op.limit or op.name == "AvgPool2dInt" else ("x",)
        )
        self.op_name = op.name
        self._op = op
        self.is_lookup = op.inputs[0] == "w"
        self.geometry = dict(geometry)
        # of a transposed convolution, whose weights are [in, out/groups, …]
        self.transposed_groups: int | None = geometry["group"] if "output_padding" in geometry else None
        self.widths = widths
        self.runtime = runtime
        self.path = ""
        self.is_ahead_of_relu = False
        self.limited_to = Limits()
        self._frozen: dict[tuple[Any, ...], Frozen] = {}
        self._simulation: dict[tuple[Any, ...], Ready] = {}
        self._watchman = Watchman()
        self.bn = None
        for name in getattr(source, "__constants__", ()):
            if hasattr(source, name) and name not in ("bias", "weight"):
                setattr(self, name, getattr(source, name))
        if has_weight:
            self.weight = cast(nn.Parameter, source.weight)
            self.bias = cast("nn.Parameter | None", getattr(source, "bias", None))
        for name in op.constant_names:
            self.register_buffer(name, torch.zeros((), dtype=integer_type(widths.data)))
        self.train(source.training)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a file holds: not what can be computed again."""
        return self.__dict__ | {"_frozen": {}, "_simulation": {}, "_watchman": Watchman()}

    def take_batch_norm(self, bn: nn.Module) -> None:
        """Fold a batch norm that goes on learning. The bias key exists in every checkpoint of this stage."""
        self.bn = bn
        if self.bias is None:
            channels = cast(Tensor, bn.running_mean).numel()
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
        """Whether a range of this layer was never seen; a table needs none."""
        return not self.is_lookup and any(
            self.read(name) == 0.0 for name in ("running_x", "running_o") if name in self._buffers
        )

    # -- forward ----------------------------------------------------------------------------------
    def forward(self, x: Any, output_size: Any = None) -> Any:
        """Integers in, integers out; a float input is quantised first. `output_size` as of a transposed convolution."""
        if self.is_lookup:
            return look_up(self, x)
        runtime = self.runtime
        geometry = bind(self, x, output_size)
        if isinstance(geometry, Refusal):
            return call_in_float(self, x, geometry.reason)
        is_real = not isinstance(x, QTensor) or x.scale is None
        if is_real or x.bits > self.widths.data:
            self._own_input_range()  # what is too wide gets a scale that fits its values
        if is_real:
            q = quantize_input(unwrap(x), self, self.widths.data, runtime, self.path)
        else:
            q = requantize_to(x, self.widths.data, runtime, self.path, self)
            self._adopt_input_range(q)
        q = pad_for(self, q)
        if "w" not in self._op.inputs:
            if self._op.constant_names and runtime.emitter is None and not is_exporting():
                self._keep_constants(geometry, q)
            result = run_functional(self._op, [q], geometry, runtime, layer=self)
            if "running_o" in self._buffers and runtime.emitter is None:
                self.write("running_o", self.value("running_x"))
                self.write("scale_o", 0.0 if result.scale is None else result.scale)
            return result
        name = runtime.unique_name(self.path, self.op_name)
        if self.is_observing and runtime.emitter is None:
            return self._learn(q, geometry, name)
        return self._deploy(q, geometry, name)

    def _adopt_input_range(self, q: QTensor) -> None:
        """The range of a quantised input follows from its scale: nothing is observed.

        Unless the layer also gets float inputs, whose range it keeps (a layer may be called twice).
        """
        if self.is_observing and self.runtime.emitter is None and self.input_range != "own":
            assert q.scale is not None
            self.input_range = "adopted"
            self.write("running_x", limits(q.bits)[1] / q.scale)
            self.write("scale_x", q.scale)

    def _own_input_range(self) -> None:
        if self.is_observing and self.input_range == "adopted":
            self.write("running_x", 0.0)
        self.input_range = "own"

    def _keep_constants(self, geometry: Mapping[str, Any], q: QTensor) -> None:
        for name, value in zip(self._op.constant_names, constants_of(self._op, geometry, q), strict=True):
            buffer = self._buffers[name]
            assert buffer is not None  # registered in __init__; quant_module may have changed its width
            self._buffers[name] = buffer.to(integer_type(q.bits)).fill_(value)

    # -- training -----------------------------------------------------------------------------------
    def _learn(self, q: QTensor, geometry: Mapping[str, Any], name: str) -> QTensor:
        """The layer on rounded operands, its output rounded to the observed range."""
        assert q.scale is not None
        is_learning_bn = self.bn is not None and self.bn.training and self.training
        if is_learning_bn:
            y, scale_w = self._learn_batch_norm(q, geometry)
        else:
            y, scale_w = self._learn_product(q, geometry, *self._limited_parts())
        is_relu = self.is_ahead_of_relu
        seen = self.observe("o", y, name, is_relu=is_relu)
        bits = self.widths.output
        scale_o = self.scale_of("o", bits, name, at_most=q.scale * scale_w)
        is_fused = is_relu and self.training
        can_saturate = may_saturate(seen, scale_o, bits) or (is_relu and not is_fused)
        values = fake_quantize(
            to_carrier(y, bits), scale_o, bits, is_relu=is_fused, can_saturate=can_saturate, is_owned=True
        )
        self._note(name, q, y)
        return QTensor(values, scale_o, bits, self.runtime, is_nonnegative=is_fused)

    def _learn_product(
        self, q: QTensor, geometry: Mapping[str, Any], weight: Tensor, factor: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Scale]:
        """The product with rounded parameters, and the scale of the weights."""
        assert q.scale is not None
        integers, scale_w = self._round_weight(weight, factor, bias, q.scale)
        bias_q = None if bias is None else round_bias(bias, q.scale * scale_w)
        return self._product(q.content, integers * (1.0 / scale_w), bias_q, geometry), scale_w

    def _learn_batch_norm(self, q: QTensor, geometry: Mapping[str, Any]) -> tuple[Tensor, Scale]:
        """Batch norm of one convolution; where a folded parameter is beyond its limit, a second one with limited ones.

        The statistics are always those of the unlimited convolution, so they do not move with the limits.
        """
        assert q.scale is not None
        factor = learning_factor(self.bn)
        integers, scale_w = self._round_weight(self.weight, factor, None, q.scale)
        # batch norm cancels a common gain, so the integers need not be scaled back; but its eps must be a number
        weight, gain = (integers * (1.0 / scale_w), 1.0) if isinstance(scale_w, Tensor) else (integers, scale_w)
        z = self._product(q.content, weight, None, geometry)
        y = normalize_folded(z, self.bias, self.bn, factor, gain=gain)
        limits_kept, bits = self.limited_to, self.widths.parameter
        if limits_kept.weight is None and limits_kept.bias is None:
            return y, scale_w
        weight, bias = fold_by_batch(self.weight, self.bias, self.bn, z, factor * gain, self.transposed_groups)
        bound = integer_bound(limits_kept.weight, bits)
        widest = self.get_buffer("running_w").double()  # beyond the bound, its rounding would be too coarse
        if exceeds((widest, bound), (weight, bound), (bias, limits_kept.bias)):
            return self._learn_product(q, geometry, *limit_parameters(limits_kept, bits, weight, None, bias))
        return y, scale_w

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Mapping[str, Any]) -> Tensor:
        fast = twin(self._op)
        assert fast is not None  # ops with weights have one
        result: Tensor = fast.accumulate(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), geometry)
        return result

    # -- parameters -------------------------------------------------------------------------------------
    def largest_range(self, name: str) -> float:
        """The output's limit: the integers saturate there, so that no op has to."""
        bound = integer_bound(self.limited_to.output, self.widths.output) if name == "o" else None
        return math.inf if bound is None else bound

    def _limited_parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Weight, the factor on it and bias, with the running statistics of a batch norm folded in, within limits."""
        bits, groups = self.widths.parameter, self.transposed_groups
        if self.bn is None:
            return limit_parameters(self.limited_to, bits, self.weight, None, self.bias)
        assert self.bias is not None  # take_batch_norm made it
        factor, bias = fold(self.bias.new_ones(len(self.bias), 1), self.bias, self.bn)
        return limit_parameters(self.limited_to, bits, self.weight, factor.squeeze(1), bias, groups)

    def _round_weight(
        self, weight: Tensor, factor: Tensor | None, bias: Tensor | None, scale_x: Scale
    ) -> tuple[Tensor, Any]:
        """Integer weights and their scale, lowered where the int32 bias at scale_x·scale_w would not fit."""

        def choose_scale(largest: Scale) -> Scale:
            scale = weight_scale(largest, self.widths.parameter, bias, scale_x, self.path)
            self.write("running_w", largest)
            self.write("scale_w", scale)
            return scale

        wide = None if factor is None else per_weight(factor, weight, self.transposed_groups)
        if wide is not None and wide.requires_grad:  # a frozen batch norm, whose gamma still learns
            return round_weight(weight * wide, None, choose_scale, stays_there=self.leaves_ranges_there)
        return round_weight(weight, wide, choose_scale, stays_there=self.leaves_ranges_there)

    # -- evaluation and export ------------------------------------------------------------------------
    def _deploy(self, q: QTensor, geometry: Mapping[str, Any], name: str) -> QTensor:
        """The exact integers, simulated or written to the file."""
        assert q.scale_on_host is not None
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
            tensors = [q.content, frozen.weight_integers, frozen.bias_integers, *frozen.extras]
            self._note(name, q, None)
            return QTensor(self.runtime.emit(self._op, tensors, attributes, name), scale_o, bits, self.runtime)
        is_differentiable = torch.is_grad_enabled() and not is_exporting()
        has_gradient = is_differentiable and (q.content.requires_grad or self._is_trainable)
        ready = self._ready(frozen, q, scale_o, has_gradient=has_gradient)
        is_relu = self.is_ahead_of_relu and not self.runtime.is_recorded
        y = self._exact_product(q.content, ready, geometry)
        self._note(name, q, y)
        values = round_output(y, scale_o, bits, is_rounding_folded=ready.is_rounding_folded, is_relu=is_relu)
        result = QTensor(values, scale_o, bits, self.runtime, is_nonnegative=is_relu)
        self.runtime.record(name, result, self._op, (q, frozen), attributes)
        return result

    def _ready(self, frozen: Frozen, q: QTensor, scale_o: float, *, has_gradient: bool) -> Ready:
        """The frozen parameters in the cheapest exact form for this output scale; kept as long as they are."""
        assert q.scale is not None
        key = (q.scale, scale_o, q.is_nonnegative, self.widths)
        if not has_gradient and key in self._simulation:
            return self._simulation[key]
        if is_exporting():
            raise UsageError(RUN_FIRST)
        widths = (self.widths.data, self.widths.output)
        make = partial(make_ready, frozen, q.scale, scale_o, *widths, is_nonnegative=q.is_nonnegative)
        make = partial(make, transposed_groups=self.transposed_groups)
        if has_gradient:
            return make(can_fold=False)
        with kept():
            self._simulation[key] = make()
        return self._simulation[key]

    def _exact_product(self, x: Tensor, ready: Ready, geometry: Mapping[str, Any]) -> Tensor:
        fast = twin(self._op)
        assert fast is not None  # ops with weights have one

        def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            result: Tensor = fast.accumulate(x, w, b, geometry)
            return result

        settings = {"axis": fast.CHANNEL_AXIS, "is_transposed": self.transposed_groups is not None}
        group = geometry.get("group", 1)
        return run_product(product, x, ready.weight, ready.bias, ready.plan, group=group, **settings)

    def freeze(self, scale_x: float) -> Frozen:
        """The parameters as integers for this input scale, kept until a parameter changes."""
        key = (scale_x, self.widths)
        if is_exporting():
            if key not in self._frozen:
                raise UsageError(RUN_FIRST)
            return self._frozen[key]
        if self.is_observing and not self._buffers["running_w"].is_cpu:  # type: ignore[union-attr]  # init makes it
            return self._make_frozen(scale_x)  # a look for changes would stall the device
        self._forget_if_changed()
        if torch.is_grad_enabled() and self._is_trainable:
            return self._make_frozen(scale_x)  # backward in evaluation mode: the graph belongs to one pass
        if key not in self._frozen:
            with kept():
                self._frozen[key] = self._make_frozen(scale_x)
        return self._frozen[key]

    @property
    def _is_trainable(self) -> bool:
        return any(p.requires_grad for p in self.parameters())

    def _make_frozen(self, scale_x: float) -> Frozen:
        weight, factor, bias = self._limited_parts()
        integers, scale_w = self._round_weight(weight, factor, bias, scale_x)
        return make_frozen(integers, bias, scale_x, scale_w, self.widths.parameter)

    def _forget_if_changed(self) -> None:
        """Drop what was frozen when a parameter has changed, also through `.data`, which torch does not count."""
        if self.runtime.emitter is not None:
            return  # the pass before the export has filled the cache; a trace must not see the comparison
        tensors = [t.detach() for t in self._sources() if t is not None]
        if self._watchman.has_changed(tensors, is_thorough=self.runtime.is_thorough):
            self._frozen.clear()
            self._simulation.clear()

    def _sources(self) -> list[Tensor | None]:
        """What the integer parameters are made from."""
        weight = self.weight if self.transposed_groups is None else self.weight.transpose(0, 1)  # output channels first
        return [weight, self.bias, *(self.bn.state_dict().values() if self.bn is not None else ())]

    def train(self, mode: bool = True) -> QuantLayer:  # noqa: FBT001, FBT002 - torch's signature
        """Switch the mode; what was frozen is made anew, so that no edit can hide behind an equal checksum for long."""
        if mode != self.training:
            self._watchman.forget()
        return super().train(mode)

    def _note(self, name: str, q: QTensor, y: Tensor | None) -> None:
        # each output takes in/group·taps products; transposed, each input gives out/group·taps
        several = None if y is None else y if self.transposed_groups is None else q.content
        is_counted = several is not None and not is_exporting()  # in a trace the count would fix an open batch size
        macs = int(several.numel() * self.weight.shape[1:].numel()) if several is not None and is_counted else 0
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
        self._simulation.clear()
        self._watchman.forget()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _load_batch_norm(self, state_dict: dict[str, Any], prefix: str) -> None:
        assert self.bias is not None  # take_batch_norm made it
        has_bn = any(key.startswith(f"{prefix}bn.") for key in state_dict)
        if not has_bn and f"{prefix}weight" in state_dict and f"{prefix}bias" in state_dict:
            # a checkpoint whose batch norm is already folded into the weights
            self.bn = None
            self.bias.requires_grad_()
        else:
            state_dict.setdefault(f"{prefix}bias", torch.zeros_like(self.bias))
