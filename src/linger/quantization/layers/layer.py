# SPDX-License-Identifier: Apache-2.0
"""The one quantized layer: any op that stands for a torch module, with its weights, ranges and folded batch norm.

Its forward is a straight way: quantize the input, multiply by rounded weights, requantize the product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.conv_bn import (
    fold,
    fold_by_batch,
    learn_statistics,
    learning_factor,
    normalize_folded,
    output_padding,
)
from linger.constraint.limits import Limits, Widths, clamp, exceeds
from linger.dialect import Op, Refusal
from linger.errors import UsageError, listing
from linger.numeric.fixed import BIAS_BITS
from linger.numeric.torch.kernel import integer_type
from linger.numeric.torch.quantize import Scale, output_channels, per_weight
from linger.ops.fast.fast_path import accumulate
from linger.quantization.core.qtensor import QTensor, signed, unwrap
from linger.quantization.core.quantized import (
    OWN_INPUT,
    Batch,
    Frozen,
    HasWidths,
    Ready,
    Watchman,
    add_widths,
    integer_bound,
    kept,
    limit_parameters,
    make_frozen,
    make_ready,
    round_bias,
)
from linger.quantization.core.runtime import RUN_FIRST, OpCall, OpRecord, Pass, Runtime, TorchFunction
from linger.quantization.functions.dispatch import bindings_by_path, pool_slices
from linger.quantization.functions.functional import constants_of, run_functional
from linger.quantization.functions.resizing import ADAPTIVE

Parameters = tuple[Tensor, Tensor | None, Tensor | None]
"""Weight, the factor on it (one number per output channel), and bias."""

_NO_INPUT_SCALE = 1.0
"""Stands for the scale of indices, which have none, in the keys of frozen parameters."""


def range_names(op: Op) -> tuple[str, ...]:
    """The ranges of a layer that runs this op."""
    if "w" in op.inputs:
        return ("x", "w", "o")
    return ("x", "o") if op.limit or op.has_attribute("scale_o") else ("x",)


class QuantLayer(HasWidths):
    """A torch layer computed as integers; its parameters are those of the layer it replaced.

    Training: parameters and activations are rounded with straight-through gradients, batch norm is folded into the
    one convolution and still learns. Evaluation: the integers of the device, exactly.
    """

    is_layer = True
    holds_batch_norm = False
    """Whether a batch norm has its running statistics in training, too."""
    is_always_exact = False
    """Whether training computes the integers of the device, too."""
    weight: nn.Parameter
    bias: nn.Parameter | None
    bn: nn.Module | None

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        has_weight = "w" in op.inputs
        super().__init__(range_names(op))
        self.add_optional(OWN_INPUT, "x")
        add_widths(self)
        self.op_name = op.name
        self._op, self._has_weight = op, has_weight
        self.is_lookup = op.inputs[0] == "w"
        self.geometry = dict(geometry)
        # of a transposed convolution, whose weights are [in, out/groups, …]
        self.transposed_groups: int | None = geometry["group"] if op.is_transposed else None
        self.widths = widths
        self.runtime = runtime
        self.is_ahead_of_relu = False
        self.limited_to = Limits()
        self._frozen: dict[float, Frozen] = {}
        self._simulation: dict[tuple[Any, ...], Ready] = {}
        self._frozen_for: tuple[Any, ...] = ()  # the settings that both were made for
        self._watchman = Watchman()
        self.bn = None
        for name in getattr(source, "__constants__", ()):
            if hasattr(source, name) and name not in ("bias", "weight"):
                setattr(self, name, getattr(source, name))
        if has_weight:
            self.weight = cast(nn.Parameter, source.weight)
            self.bias = cast("nn.Parameter | None", getattr(source, "bias", None))
            self._had_bias = self.bias is not None
            if runtime.is_per_channel and op.has_attribute("exponents_w"):
                groups = self.transposed_groups
                self.ranges["w"].split(output_channels(self.weight, groups), groups)
        self.constant_names = op.constant_names
        for name in op.constant_names:
            self.register_buffer(name, torch.zeros((), dtype=integer_type(widths.data)))
        self.train(source.training)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle leaves out what can be computed again."""
        return self.__dict__ | {"_frozen": {}, "_simulation": {}, "_watchman": Watchman()}

    def take_batch_norm(self, bn: nn.Module) -> None:
        """Fold a batch norm that goes on learning. The bias key exists in every checkpoint of this stage."""
        self.bn = bn
        if self.bias is None:
            channels = cast(Tensor, bn.running_mean).numel()
            self.bias = nn.Parameter(torch.zeros(channels, device=self.weight.device), requires_grad=False)

    @property
    def can_shift(self) -> bool:
        """Whether numbers can be added to its output channel by channel: it is a product, and has or can have a bias."""
        return self._has_weight and not self.is_lookup and not self._op.normalizes

    @property
    def real_weight(self) -> Tensor:
        """The weights before they are rounded, with a batch norm folded in."""
        weight, factor, _ = self._limited_parts()
        real = weight if factor is None else weight * per_weight(factor, weight, self.transposed_groups)
        return real.detach()

    @property
    def real_bias(self) -> Tensor | None:
        """What is added to each channel before it is rounded, with a batch norm folded in; None where nothing is."""
        return None if (bias := self._limited_parts()[2]) is None else bias.detach()

    def shift_output(self, shift: Tensor) -> None:
        """Add one number to each channel of the output: to β of a folded batch norm, else to the bias, made where there is none."""
        with torch.no_grad():
            offset = self.bias if self.bn is None else cast("Tensor | None", self.bn.bias)
            if self.bn is None and offset is None:
                device = self.ranges["o"].running.buffer.device
                self._make_bias(torch.zeros_like(shift, dtype=torch.float32, device=device))
                offset = self.bias
            if self.bn is not None and offset is None:
                assert self.bias is not None  # take_batch_norm made it
                # b' = (b − μ)/σ without β and γ: 1/σ is never zero
                factor, _ = fold(self.bias.new_ones(len(self.bias), 1), None, self.bn)
                offset, shift = self.bias, shift.to(factor) / factor.squeeze(1)
            assert offset is not None
            offset.add_(shift.to(offset))

    def _make_bias(self, values: Tensor) -> None:
        """Give a bias to a layer that had none; checkpoints have it from now on."""
        learns = any(p.requires_grad for p in self.parameters(recurse=False))
        with torch.inference_mode(mode=False):
            self.bias = nn.Parameter(values.detach().clone(), requires_grad=learns)

    def fold_batch_norm(self) -> None:
        """Fold the batch norm into weight and bias for good, by its running statistics; checkpoints hold none then."""
        if self.bn is None:
            return
        with torch.no_grad():
            weight, bias = fold(self.weight, self.bias, self.bn, transposed_groups=self.transposed_groups)
            self.weight.copy_(weight)
            assert self.bias is not None  # take_batch_norm made it
            self.bias.copy_(bias)
        self.bn = None
        self.bias.requires_grad_()

    def extra_repr(self) -> str:
        """The op and its widths."""
        return f"{self.op_name}, {self.widths} bits" + (", before relu" if self.is_ahead_of_relu else "")

    def missing_scale(self, where: str) -> str:
        """Name every layer of the model that has no scale, not only the first one that needed it."""
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
            self.ranges[name].running.read() == 0.0 for name in ("x", "o") if name in self.ranges
        )

    # forward
    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Integers in, integers out; a float input is quantized first. `output_size` as of a transposed convolution."""
        if self.is_lookup:
            return self._look_up(x)
        geometry = self._bind(x, output_size)
        if isinstance(geometry, Refusal):
            return self._call_in_float(x, geometry.reason)
        q = self._quantized(x)
        return self._multiply(q, geometry) if self._has_weight else self._run_without_weight(q, geometry)

    def _multiply(self, q: QTensor, geometry: Mapping[str, Any]) -> QTensor:
        """The product with rounded weights, or in real numbers, as the pass demands, in the range of the output."""
        call = self.runtime.begin(self._op, self.path, self)
        if self.is_always_exact or not (call.is_learning or call.now.is_real):
            return self._deploy(q, geometry, call)
        if self.bn is not None and self.bn.training and self.training and not self.holds_batch_norm:
            y, scale_w = self._learn_batch_norm(q, geometry, call.now)
        else:
            y, scale_w = self._learn_product(q, geometry, self._limited_parts(), call.now)
        y = clamp(y, self.limited_to.output) if call.now.is_real else y
        bits, is_relu = self._widths.output, self.is_ahead_of_relu
        return self.ranges["o"].round_product(call, q, y, scale_w, bits, taps=self._taps, is_relu=is_relu)

    def _bind(self, x: Tensor, output_size: Sequence[int] | None = None) -> Mapping[str, Any] | Refusal:
        """The op's attributes. Layers that are a function call are bound when the input's size is known.

        `output_size` is what a caller may give to a transposed convolution.
        """
        geometry = self.geometry
        if output_size is not None:
            # an attribute is a number, also in a trace, where sizes are tensors
            return geometry | {"output_padding": tuple(int(n) for n in output_padding(self, x, output_size))}
        if "call" not in geometry:
            return geometry
        if self.runtime.has_open_sizes and self._function() in ADAPTIVE:
            return Refusal("its windows depend on an open size")
        return bindings_by_path()[geometry["call"]](x, *geometry["arguments"])

    def _function(self) -> TorchFunction:
        """The torch function that a layer is a call of."""
        return cast(TorchFunction, reduce(getattr, self.geometry["call"].split(".")[1:], cast(Any, torch)))

    def _by_torch(self, x: Tensor) -> Tensor:
        """The function itself, on real values."""
        return cast(Tensor, self._function()(x, *self.geometry["arguments"]))

    def _call_in_float(self, x: Tensor, reason: str) -> Tensor:
        """Call the layer's function: as several pools where that is possible, else on real values, noted as float."""
        function, runtime = self._function(), self.runtime
        if function in ADAPTIVE:
            is_real = not isinstance(x, QTensor) or x.scale is None
            q = self.ranges["x"].quantize(unwrap(x), self.widths.data, runtime, self.path) if is_real else x
            pooled = pool_slices(runtime, function, (q, *self.geometry["arguments"]), {})
            if pooled is not None:
                return pooled
        runtime.note(OpRecord(self.path, self.op_name, is_integer=False, reason=reason))
        return self._by_torch(unwrap(x))

    def _quantized(self, x: Tensor) -> QTensor:
        """The input in the layer's width and padded. Its range is observed, or follows from the scale that it has."""
        bits, runtime, range_ = self._widths.data, self.runtime, self.ranges["x"]
        if not isinstance(x, QTensor) or x.scale is None:
            self._own_input_range()
            q = range_.quantize(unwrap(x) if isinstance(x, QTensor) else x, bits, runtime, self.path)
        else:
            x = x if self._op.takes_unsigned else signed(x)
            if x.bits > bits:
                self._own_input_range()  # what is too wide gets a scale that fits its values
            q = x if x.bits == bits else range_.requantize(x, bits, runtime, self.path)
            # a layer that also gets float inputs (it may be called twice) keeps their range
            if self.input_range != "own" and self._may_adopt(q, runtime.now):
                self.input_range = "adopted"
                range_.adopt(q)
        return q if self.__dict__.get("padding_mode", "zeros") == "zeros" else self._pad(q)

    def _may_adopt(self, q: QTensor, now: Pass) -> bool:
        """Whether the input's range is to be that of a quantized tensor; a scale that other code has written is replaced."""
        range_, is_due = self.ranges["x"], self.input_range == "stale"
        is_due = is_due or self.training or now.calibration is not None
        is_other = is_due or isinstance(q.scale, Tensor) or range_.stored_scale.read() != q.scale
        if not is_other or now.is_traced or self.keeps_own_input:
            return False
        return is_due or range_.is_foreign

    def _own_input_range(self) -> None:
        if self.input_range in ("adopted", "stale") and (self.training or self.runtime.now.calibration is not None):
            self.ranges["x"].running.write(0.0)
            self.write(OWN_INPUT, 1.0)
        self.input_range = "own"

    def _pad(self, q: QTensor) -> QTensor:
        """The input of a convolution with the border that its padding_mode asks for; zeros are the convolution's own."""
        kernel, dilation, padding = (cast(Any, getattr(self, name)) for name in ("kernel_size", "dilation", "padding"))
        pads: list[int] = []
        for axis in reversed(range(len(kernel))) if padding != "valid" else ():
            total = dilation[axis] * (kernel[axis] - 1)
            pads += [total // 2, total - total // 2] if padding == "same" else [padding[axis]] * 2
        return cast(QTensor, F.pad(q, pads, mode=cast(str, self.padding_mode))) if any(pads) else q

    def _run_without_weight(self, q: QTensor, geometry: Mapping[str, Any]) -> QTensor:
        """A layer that is a function of its input: an activation, a pool."""
        runtime, now = self.runtime, self.runtime.now
        is_kept = runtime.emitter is None and (self.ranges["x"].observes(now) or not now.is_real)
        if self._op.constant_names and is_kept and not now.is_exporting:
            for name, value in zip(self._op.constant_names, constants_of(self._op, geometry, q), strict=True):
                buffer = self.get_buffer(name)  # quant_module may have changed its width
                self._buffers[name] = buffer.to(q.integer_type).fill_(value)
        result = run_functional(self._op, [q], geometry, runtime, layer=self, real=lambda: self._by_torch(q.content))
        if "o" in self.ranges and is_kept:
            self.ranges["o"].set(self.ranges["x"].value(now), 0.0 if result.scale is None else result.scale)
        return result

    def _look_up(self, indices: Tensor) -> QTensor:
        """Rows of an embedding's rounded table, learned through in training.

        The output has the scale and width of the weights, so no data are needed to choose them.

        Raises:
            UsageError: The indices are no integers.
        """
        runtime = self.runtime
        call = runtime.begin(self._op, self.path)
        if not isinstance(indices, Tensor) or indices.is_floating_point():
            kind = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
            raise UsageError(
                f"{call.name}: the indices have type {kind}; an embedding needs integers. Convert them with .long()."
            )
        frozen, bits = self.freeze(_NO_INPUT_SCALE, call.now), self.widths.parameter
        scale = frozen.scale_w
        attributes = {"scale_w": scale, "scale_o": scale, "parameter_bits": bits, "o_bits": bits}
        call.note()
        if call.is_written:
            return QTensor(call.emit([frozen.weight_integers, indices], attributes), scale, bits, runtime)
        if not call.now.is_exporting:
            w = self.ranges["w"]
            self.ranges["o"].set(w.value(call.now), w.value(call.now, w.stored_scale))
        table = self._limited_parts()[0] if call.now.is_real else frozen.weight
        rows = F.embedding(indices, table, cast("int | None", self.padding_idx))
        result = QTensor(rows, scale, bits, runtime)
        call.record(result, (indices, frozen), attributes)
        return result

    # training
    @property
    def _taps(self) -> int:
        """Products in each sum."""
        return self.weight.shape[1:].numel()

    def _learn_product(
        self, q: QTensor, geometry: Mapping[str, Any], parts: Parameters, now: Pass
    ) -> tuple[Tensor, Scale]:
        """The product with the parameters as the pass wants them, and the scale of the weights."""
        bias = parts[2]
        if now.is_real:
            real, scale_w = self._real_weight(parts, q.scale, now)
            return accumulate(self._op, geometry, q.content, real, bias), scale_w
        rounded, scale_w = self._round_weight(parts, q.scale, now, is_real=True)
        bias_q = None if bias is None else round_bias(bias, q.scale * scale_w)
        return accumulate(self._op, geometry, q.content, rounded, bias_q), scale_w

    def _learn_batch_norm(self, q: QTensor, geometry: Mapping[str, Any], now: Pass) -> tuple[Tensor, Scale]:
        """Batch norm of one convolution; where a folded parameter is beyond its limit, a second one with limited ones.

        The statistics are always those of the unlimited convolution, so they do not move with the limits.
        """
        assert self.bn is not None  # checked by the caller
        factor, gain = learning_factor(self.bn), 1.0
        stays_there = not self.weight.is_cpu or self.ranges["w"].rows is not None
        parts = (self.weight, factor.values, None)
        if now.is_real:  # nothing is folded, so that eps acts as in the float model
            _, scale_w = self._real_weight(parts, q.scale, now)
            weight, factor = (
                self._laid_out(self.weight),
                factor._replace(values=torch.ones_like(factor.values), signs=None),
            )
        else:
            # batch norm cancels a common gain, so the integers need not be scaled back; but its eps must be a number
            weight, scale_w = self._round_weight(parts, q.scale, now, is_real=stays_there)
            gain = gain if stays_there else scale_w
        z = accumulate(self._op, geometry, q.content, weight, None)
        learn = partial(self._learn_statistics, z.numel(), now)
        # a group of processes waits for a gradient of each parameter
        y = normalize_folded(z, self.bias, self.bn, factor, gain, learn, reaches_bias=now.is_shared)
        limits = self.limited_to
        if limits.weight is None and limits.bias is None:
            return y, scale_w
        bits = self._limit_bits
        weight, bias = fold_by_batch(self.weight, self.bias, self.bn, z, factor.values * gain, self.transposed_groups)
        bound = integer_bound(limits.weight, bits)
        widest = self.ranges["w"].running.buffer.double()  # beyond the bound, its rounding would be too coarse
        if exceeds((widest, bound), (weight, bound), (bias, limits.bias)):
            return self._learn_product(q, geometry, limit_parameters(limits, bits, weight, None, bias), now)
        return y, scale_w

    @property
    def learning_norm(self) -> nn.Module | None:
        """The folded batch norm."""
        return self.bn

    def _learn_statistics(self, numbers: int, now: Pass, bn: nn.Module, mean: Tensor, var: Tensor) -> None:
        """Let a batch move the statistics of a batch norm, or keep it for the exchange of all processes."""
        if not (now.is_shared and self.training):
            learn_statistics(bn, mean, var)
        elif not now.is_repeated:
            self.batches.append(Batch(numbers // len(mean), mean, var))

    # parameters
    @property
    def largest_output(self) -> float:
        """The output's limit: the integers saturate there, so no op has to clip them."""
        limit = self.limited_to.output
        bound = None if limit is None else integer_bound(limit, self._widths.output)
        return math.inf if bound is None else bound

    def range_weights(self) -> dict[str, Tensor]:
        """The weights as they are rounded, with a batch norm folded in, by the name of their range."""
        with torch.no_grad():
            return {"w": self.real_weight} if self._has_weight else {}

    @property
    def has_fixed_output(self) -> bool:
        """Whether the range of the output follows from another one: that of the input, or of an embedding's table."""
        return self.is_lookup or not self._has_weight

    def follow_range(self, name: str) -> None:
        """A layer that is a function of its input has its range."""
        if name == "x" and not self._has_weight and "o" in self.ranges:
            self.ranges["o"].running.write(self.ranges["x"].running.read())

    def _limited_parts(self) -> Parameters:
        """Weight, the factor on it and bias, with the running statistics of a batch norm folded in, within limits."""
        bits, groups = self._limit_bits, self.transposed_groups
        if self.bn is None:
            return limit_parameters(self.limited_to, bits, self.weight, None, self.bias)
        assert self.bias is not None  # take_batch_norm made it
        factor, bias = fold(self.bias.new_ones(len(self.bias), 1), self.bias, self.bn)
        return limit_parameters(self.limited_to, bits, self.weight, factor.squeeze(1), bias, groups)

    @property
    def _limit_bits(self) -> int:
        """The width whose integers keep the limits of parameters; a float reference reaches the limits themselves."""
        return BIAS_BITS if self.runtime.now.has_float_limits else self.widths.parameter

    def _real_weight(self, parts: Parameters, scale_x: Scale, now: Pass) -> tuple[Tensor, Scale]:
        """Weights in real numbers, and the scale that they would be rounded to."""
        weight, factor, bias = parts
        real = weight if factor is None else weight * per_weight(factor, weight, self.transposed_groups)
        scale = self.ranges["w"].observe_weight(real, bias, scale_x, self.widths.parameter, self.path, now)
        return self._laid_out(real), scale

    def _laid_out(self, weight: Tensor) -> Tensor:
        """The weights with the axes that the op has."""
        return weight

    def _round_weight(
        self, parts: Parameters, scale_x: Scale, now: Pass, *, is_real: bool = False
    ) -> tuple[Tensor, Scale]:
        """Integer weights, as real values if `is_real`, and their scale."""
        weight, factor, bias = parts
        wide = None if factor is None else per_weight(factor, weight, self.transposed_groups)
        if wide is not None and wide.requires_grad:  # a frozen batch norm, whose gamma still learns
            weight, wide = weight * wide, None
        memory = self.memory if self.training else None
        how = (scale_x, self._widths.parameter, self.path, now)
        rounded, scale = self.ranges["w"].round_weight(weight, wide, bias, *how, is_real=is_real, memory=memory)
        return self._laid_out(rounded), scale

    # evaluation and export
    def _deploy(self, q: QTensor, geometry: Mapping[str, Any], call: OpCall) -> QTensor:
        """The exact integers, simulated or written to the file."""
        assert q.scale_on_host is not None
        frozen = self.freeze(q.scale, call.now)
        ready_for, is_relu = partial(self._ready, frozen, q, call.now), self.is_ahead_of_relu
        return self.deploy_product(call, q, frozen, geometry, self._widths, ready_for, is_relu=is_relu)

    def _ready(self, frozen: Frozen, q: QTensor, now: Pass, scale_o: Scale) -> Ready:
        """The frozen parameters in the cheapest exact form for this output scale; kept as long as they are."""
        is_differentiable = torch.is_grad_enabled() and not now.is_exporting
        has_gradient = is_differentiable and (q.content.requires_grad or self._is_trainable)
        key = (q.scale, scale_o, q.is_nonnegative, q.is_unsigned)
        if not has_gradient and key in self._simulation:
            return self._simulation[key]
        if now.is_exporting:
            raise UsageError(RUN_FIRST)
        how: dict[str, Any] = {"is_nonnegative": q.is_nonnegative, "transposed_groups": self.transposed_groups}
        make = partial(make_ready, frozen, q.scale, scale_o, q.signed_bits, self._widths.output, **how)
        if has_gradient:
            return make(can_fold=False)
        with kept():
            self._simulation[key] = make()
        return self._simulation[key]

    def freeze(self, scale_x: float, now: Pass | None = None) -> Frozen:
        """The parameters as integers for this input scale, kept until a parameter changes."""
        now, range_ = now or self.runtime.now, self.ranges["w"]
        self._follow_settings(range_.chosen_value(now))
        if now.is_exporting:
            if scale_x not in self._frozen:
                raise UsageError(RUN_FIRST)
            return self._frozen[scale_x]
        if (self.training or now.calibration is not None) and not range_.running.buffer.is_cpu:
            return self._make_frozen(scale_x, now)  # a look for changes would stall the device
        self._forget_if_changed()
        if torch.is_grad_enabled() and self._is_trainable:
            return self._make_frozen(scale_x, now)  # backward in evaluation mode: the graph belongs to one pass
        if scale_x not in self._frozen:
            with kept():
                self._frozen[scale_x] = self._make_frozen(scale_x, now)
        return self._frozen[scale_x]

    def _follow_settings(self, chosen: Scale | None) -> None:
        """Drop what was frozen for other widths or another range."""
        several = isinstance(chosen, Tensor) and chosen.dim()
        settings = (self._widths, None if chosen is None else tuple(chosen.tolist()) if several else float(chosen))
        if settings != self._frozen_for:
            self._thaw()
            self._frozen_for = settings

    def _thaw(self) -> None:
        """Drop the integers: they are made from other parameters or settings."""
        self._frozen.clear()
        self._simulation.clear()

    @property
    def _is_trainable(self) -> bool:
        return any(p.requires_grad for p in self.parameters())

    def _make_frozen(self, scale_x: float, now: Pass) -> Frozen:
        parts = self._limited_parts()
        integers, scale_w = self._round_weight(parts, scale_x, now)
        return make_frozen(integers, parts[2], scale_x, scale_w, self.widths.parameter, self.ranges["w"].rows)

    def _forget_if_changed(self) -> None:
        """Drop what was frozen when a parameter has changed, also through `.data`, which torch does not count."""
        if self.runtime.emitter is not None:
            return  # the pass before the export has filled the cache; a trace must not see the comparison
        tensors = [t for t in self._sources() if t is not None]
        if self._watchman.has_changed(tensors, is_thorough=self.runtime.is_thorough):
            self._thaw()

    def _sources(self) -> list[Tensor | None]:
        """What the integer parameters are made from."""
        weight = self.weight if self.transposed_groups is None else self.weight.transpose(0, 1)  # output channels first
        if self.bn is None:
            return [weight, self.bias]
        bn = cast(Any, self.bn)
        return [weight, self.bias, bn.weight, bn.bias, bn.running_mean, bn.running_var]

    def train(self, mode: bool = True) -> QuantLayer:  # noqa: FBT001, FBT002 - torch's signature
        """Switch the mode; parameters are frozen anew, in case an edit has left their checksums equal."""
        if mode != self.training:
            self._watchman.forget()
            self.memory.release()
        self.follow_widths()
        return super().train(mode)

    # checkpoints
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("weight", "bias"):
            if f"{prefix}conv.{name}" in state_dict:
                state_dict[prefix + name] = state_dict.pop(f"{prefix}conv.{name}")
        self._load_bias(state_dict, prefix)
        for name in self.constant_names:
            state_dict.setdefault(prefix + name, self._buffers[name])
        self._thaw()
        self._watchman.forget()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _load_bias(self, state_dict: dict[str, Any], prefix: str) -> None:
        """A layer without a bias gets the one of a checkpoint in which it was corrected, and none from any other."""
        stored, has_weight = state_dict.get(f"{prefix}bias"), f"{prefix}weight" in state_dict
        if self.bn is not None:
            has_bn = any(key.startswith(f"{prefix}bn.") for key in state_dict)
            if has_weight and stored is not None and not has_bn:
                # a checkpoint whose batch norm is already folded into the weights
                self.bn = None
                cast(nn.Parameter, self.bias).requires_grad_()  # take_batch_norm made it
                return
            state_dict.setdefault(f"{prefix}bias", torch.zeros_like(cast(Tensor, self.bias)))
        elif not self.can_shift or self._had_bias:
            return
        elif stored is None:
            self.bias = None if has_weight else self.bias
        elif self.bias is None:
            self._make_bias(stored.to(self.ranges["o"].running.buffer.device, torch.float32))
