# SPDX-License-Identifier: Apache-2.0
"""Ranges and scales as buffers of a layer, the one rule that turns a range into a scale, and what is rounded by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.constraint.marks import Widths
from linger.dialect import Interval, Op, find_op
from linger.errors import UsageError
from linger.numeric.fixed import as_float32, is_power_of_two, limits
from linger.numeric.torch.exact import run_product
from linger.numeric.torch.kernel import TorchKernel, carrier
from linger.numeric.torch.quantize import Memory, ends_of, fake_quantize, largest_magnitude, round_weight
from linger.numeric.torch.scale import Scale, magnitude_within, may_saturate, scale_for_range, smallest
from linger.ops.fast.twin import accumulate, product_twin
from linger.quantization.core.compute import compute, product_attributes
from linger.quantization.core.frozen import Frozen, Ready, round_output
from linger.quantization.core.histogram import Histogram
from linger.quantization.core.kept.buffers import RangeBuffers
from linger.quantization.core.kept.learned import LearnedRange, load_learned
from linger.quantization.core.kept.scales import not_finite, weight_scale
from linger.quantization.core.kept.use import EVERYTHING, RangeUse
from linger.quantization.core.observation import CALIBRATION
from linger.quantization.core.processes.seen import NotFiniteError, Seen, is_shared
from linger.quantization.core.qtensor import Origin, QTensor, to_carrier
from linger.quantization.core.runtime import OpCall, Runtime, no_script
from linger.quantization.core.surroundings import is_in_backward

NOMINAL = 1.0
"""The scale of a tensor in real numbers whose range was not looked at: nothing is rounded to it."""

ZEROS = 2.0**-126
"""Range of a tensor that held nothing but zeros: seen, but negligible."""

_find_op = cache(find_op)
"""Cached, because every tensor of every pass asks for it."""

OWN_INPUT = "own_x"
"""Buffer of a layer whose input keeps a range of its own, though quantised inputs came, too."""

MOMENTUM = 0.1
"""Weight of the newest batch in a running range during training; the mean starts at the first one."""


class QuantizedBase(RangeBuffers):
    """A module with ranges: they follow its tensors, its scales follow from them, and tensors are rounded by these."""

    is_layer = False
    """Whether it stands for a layer of the float model."""

    path = ""
    """Where it stands in the model."""

    constant_names: tuple[str, ...] = ()
    """Buffers that hold integers which follow from a scale."""

    holds_ranges = False
    """Whether ranges that are known stay as they are in training."""

    input_range = ""
    """Where the range of a layer's input comes from: "own" observation, "adopted" from a quantised input, "stale" until then."""

    floor: Scale = 0.0
    """The coarsest scale of the output: that of the input, of a function which is never coarser; else 0."""

    def __init__(self, names: tuple[str, ...], device: torch.device | None = None) -> None:
        super().__init__(names, device)
        self.bits_of: dict[str, int] = {}  # the width that each range was last used for
        self._bounds: dict[str, Scale] = {}  # and the finest scale that the device's format allowed then
        self._scales: dict[str, tuple[tuple[Scale, ...], Scale]] = {}  # what each scale followed from, and the scale
        self._uses: dict[str, RangeUse] = {}
        self.learned: dict[str, LearnedRange] = {}  # the ranges that follow a parameter, not the data
        self.method_of: dict[str, str] = {}  # the method that found each range, where it was not the largest magnitude
        self._memory = Memory()  # of the weights of a training step
        self.seen = Seen()  # by this process in the pass at work, where others train with it
        self.histograms: dict[str, Histogram] = {}  # of the ranges that were calibrated; no part of a checkpoint

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        """Keep learned ranges in their type, as those that follow the data."""
        learned = [(each, each.parameter.data) for each in self.learned.values()]
        super()._apply(fn, recurse)
        for each, data in learned:
            each.keep_type(data)
        return self

    @property
    def keeps_own_input(self) -> bool:
        """Whether the range of its input is observed, though quantised inputs came, too."""
        return OWN_INPUT in self._buffers and self.read(OWN_INPUT) != 0.0

    # ranges as one part of a calibration finds them, and as all parts together set them
    def format_of(self, name: str) -> tuple[int, float]:
        """The width that a range was last used for (0: none), and the finest scale that the device's format allowed then."""
        return self.bits_of.get(name, 0), float(self._bounds.get(name, math.inf))

    def set_range(self, name: str, running: float, scale: float, bits: int, bound: float) -> None:
        """Set a range, its scale, and its format where that is known."""
        self.write(f"running_{name}", running)
        self.write(f"scale_{name}", scale)
        if bits:
            self.bits_of[name], self._bounds[name] = bits, bound

    @property
    def lacks_scale(self) -> bool:
        """Whether a range of a layer was never seen."""
        return False

    @property
    def learning_norm(self) -> nn.Module | None:
        """The batch norm whose statistics learn when this layer runs."""
        return None

    @property
    def flags(self) -> tuple[bool, ...]:
        """What the layer has decided from the numbers it saw: that the range of its input is its own, where it may be another's."""
        return (self.keeps_own_input,) if OWN_INPUT in self._buffers else ()

    @flags.setter
    def flags(self, decided: tuple[bool, ...]) -> None:
        """Decide what one of several processes has."""
        if any(decided) and not self.keeps_own_input:
            self.write(OWN_INPUT, 1.0)
            self.input_range = "own"

    def bound_of(self, name: str) -> Scale:
        """The finest scale that the device's format allowed when a range was last used."""
        return self._bounds.get(name, math.inf)

    def largest_range(self, name: str) -> float:  # noqa: ARG002 - for those that override it
        """The upper bound of a range; a layer within limits has a finite one."""
        return math.inf

    def observe(self, name: str, x: Tensor, where: str, *, is_relu: bool = False) -> Scale:
        """Let a tensor widen the range `name`; returns the tensor's own maximum.

        Calibration keeps the largest value and counts all numbers; training keeps an exponential mean, unless the range is
        learned: then nothing is looked at, and None is returned.
        """
        calibration = CALIBRATION.get()
        if calibration is None and name in self.learned:
            return None
        if self.holds(name):
            return math.inf  # anything may saturate
        seen = (self._observe_shared if self.is_sharing else self._observe)(name, x, where, is_relu=is_relu)
        if calibration is not None:
            calibration.count(self, name, x)
        else:
            self.histograms.pop(name, None)  # the range is no longer what was counted
        return seen

    def holds(self, name: str) -> bool:
        """Whether a range is known and does not follow the data; calibration changes it all the same."""
        return self.holds_ranges and CALIBRATION.get() is None and self.read(f"running_{name}") > ZEROS

    @property
    def is_sharing(self) -> bool:
        """Whether what this pass sees changes nothing until all processes of a group have exchanged it (`exchange`)."""
        return self.training and is_shared() and CALIBRATION.get() is None

    def _observe_shared(self, name: str, x: Tensor, where: str, *, is_relu: bool) -> Scale:
        if not x.numel():
            return 0.0
        use = self._uses.get(name) or self._uses.setdefault(name, RangeUse(self, name))
        low, high = ends_of(x, is_relu=is_relu)
        self._share(name, low, high, where, use.apply())
        use.is_shared = not is_in_backward()
        return magnitude_within(low, high, EVERYTHING)

    def _share(self, name: str, low: Scale, high: Scale, where: str, interval: Interval) -> None:
        """Keep the ends of a tensor for the exchange; a range that was never seen is that of this process until then."""
        is_there = isinstance(high, Tensor)
        if not is_there and not (math.isfinite(low) and math.isfinite(high)):
            raise NotFiniteError(not_finite(where))
        if is_there:
            self._follow_device(f"running_{name}", high)
        before = self.value(f"running_{name}")
        is_new = before <= ZEROS
        if is_there or is_new:
            own = self.widened(name, before, magnitude_within(low, high, interval), is_calibrating=True)
            self.write(f"running_{name}", torch.where(is_new, own, before) if is_there else own)
        if not is_in_backward():
            self.seen.add(name, low, high, is_new)

    def _observe(self, name: str, x: Tensor, where: str, *, is_relu: bool) -> Scale:
        use = self._uses.get(name) or self._uses.setdefault(name, RangeUse(self, name))
        interval = use.apply()
        is_limited = interval != EVERYTHING and not (is_relu and interval[1] == math.inf)
        if (is_limited or use.known is None) and x.numel():
            return self._observe_used(use, x, where, interval, is_relu=is_relu)
        found = largest_magnitude(x, is_relu=is_relu)
        seen = found if self.is_observing else float(found)
        if isinstance(seen, Tensor) or x.numel() or not math.isfinite(seen):
            self._widen(name, seen, where)
        return seen

    def _observe_used(self, use: RangeUse, x: Tensor, where: str, interval: Interval, *, is_relu: bool) -> Scale:
        """`observe` by the numbers within an interval; remembers the ends, as the users of this pass come later."""
        low, high = ends_of(x, is_relu=is_relu)
        before = self.value(f"running_{use.name}")
        own = magnitude_within(low, high, EVERYTHING)
        is_finite = isinstance(own, Tensor) or (math.isfinite(low) and math.isfinite(high))
        self._widen(use.name, magnitude_within(low, high, interval) if is_finite else math.nan, where)
        if not is_in_backward():
            use.last = low, high, before.clone() if isinstance(before, Tensor) else before
        return own

    def use_so_far(self, name: str) -> Interval | None:
        """Which numbers of a range are used as far as this process knows, the pass at work included."""
        use = self._uses.get(name)
        return self.known_use(name) if use is None else use.so_far

    def forget_seen(self) -> None:
        """What the pass has seen was told to all processes."""
        self.seen.clear()
        for use in self._uses.values():
            use.forget()

    def learn_range(
        self, name: str, before: float, ends: Interval, used: Interval | None, bits: int, at_most: float
    ) -> None:
        """Let what all processes have seen and use widen a range, and choose its scale."""
        if used is not None:
            self._uses.setdefault(name, RangeUse(self, name)).join(used)
        seen = magnitude_within(*ends, used or EVERYTHING)
        running = self.widened(name, before, seen, is_calibrating=False)
        self.write(f"running_{name}", running)
        if bits:
            scale = self._new_scale(name, running, bits, self.path, at_most)
            self._scales[name] = (running, self.largest_range(name), bits, at_most), scale

    def observe_again(
        self,
        name: str,
        before: Scale,
        seen: Sequence[tuple[Scale, Scale]],
        interval: Interval,
        *,
        is_calibrating: bool,
    ) -> None:
        """Set a range to what it would be, had the tensors since `before` been observed by this interval."""
        for low, high in seen:
            before = self.widened(name, before, magnitude_within(low, high, interval), is_calibrating=is_calibrating)
        if seen:
            self.write(f"running_{name}", before)
            self.scale_of(name, self.bits_of[name], self.path, at_most=self._bounds[name])

    def used_interval(self, name: str) -> Interval:
        """The lowest and highest number of a range that its users look at, as far as is known; what lies beyond may saturate."""
        return self.known_use(name) or EVERYTHING

    def set_use(self, name: str, interval: Interval | None) -> None:
        """Set what the users of a range look at, as passes over other data have shown it."""
        self._uses.setdefault(name, RangeUse(self, name)).set(interval)

    def origins(self, name: str, runtime: Runtime) -> tuple[Origin, ...]:
        """The origin of a tensor that was just rounded to an observed range; none where its users need not be watched."""
        use = self._uses.get(name)
        if use is None or not use.is_open or self.holds(name) or (name in self.learned and CALIBRATION.get() is None):
            return ()
        use.watch()
        runtime.current.watched.append(use)
        return (Origin(use),)

    def widen(self, name: str, seen: Scale, where: str) -> None:
        """Let the largest magnitude of a tensor widen the range `name`.

        What is on a device is not looked at: NaN and infinity stay in the range, where an evaluation finds them.
        """
        if self.is_sharing:
            self._share(name, -seen, seen, where, EVERYTHING)
        else:
            self._widen(name, seen, where)

    def _widen(self, name: str, seen: Scale, where: str) -> None:
        key = f"running_{name}"
        if not isinstance(seen, Tensor):
            if not math.isfinite(seen):
                raise UsageError(not_finite(where))
            before: Scale = self.read(key)
        else:
            self._follow_device(key, seen)
            before = self.get_buffer(key).double().squeeze(0)
        self.write(key, self.widened(name, before, seen, is_calibrating=CALIBRATION.get() is not None))

    def _follow_device(self, key: str, seen: Tensor) -> None:
        """Have the ranges where a tensor is: the model was moved since, or runs on several devices."""
        if self.get_buffer(key).device != seen.device:
            self.to(seen.device)

    def widened(self, name: str, before: Scale, seen: Scale, *, is_calibrating: bool) -> Scale:
        """A range with one more tensor: the largest magnitude of all in calibration, else a running mean."""
        if isinstance(seen, Tensor):
            kept = seen.clamp(max=self.largest_range(name)).masked_fill(~seen.isfinite(), math.nan)
            after = torch.maximum(before, kept) if is_calibrating else (1 - MOMENTUM) * before + MOMENTUM * kept
            after = torch.where(before <= ZEROS, kept, after).float()
            return after.masked_fill(after == 0.0, ZEROS)
        kept = min(seen, self.largest_range(name))
        if before <= ZEROS:  # nothing but zeros so far: the first real batch sets the range
            after = kept
        elif is_calibrating:
            after = max(before, kept)
        else:
            after = (1 - MOMENTUM) * before + MOMENTUM * kept
        # rounded to float32 as the buffer is, so that both give the same scale
        return as_float32(after) or ZEROS

    def scale_of(self, name: str, bits: int, where: str, *, at_most: Scale = math.inf) -> Scale:
        """The scale of a range, not above `at_most`.

        Raises:
            UsageError: The range was never seen, or what was seen on a device was no number.
        """
        if name in self.learned:
            self.learned[name].follow()
        running = self.value(f"running_{name}")
        if isinstance(running, Tensor) or isinstance(at_most, Tensor):
            return self._new_scale(name, running, bits, where, at_most)
        source, known = (running, self.largest_range(name), bits, at_most), self._scales.get(name)
        if known is not None and known[0] == source and self.read(f"scale_{name}") == known[1]:
            return known[1]
        scale = self._new_scale(name, running, bits, where, at_most)
        self._scales[name] = source, scale
        return scale

    def _new_scale(self, name: str, running: Scale, bits: int, where: str, at_most: Scale) -> Scale:
        if not isinstance(running, Tensor):
            if running == 0.0:
                raise UsageError(self.missing_scale(where))
            if not math.isfinite(running):
                raise UsageError(not_finite(where))
        # a checkpoint of a model without limits may hold a larger range
        scale = smallest([scale_for_range(smallest([running, self.largest_range(name)]), bits), at_most])
        self.bits_of[name], self._bounds[name] = bits, at_most
        self.write(f"scale_{name}", scale)
        return scale

    def scale_in(self, call: OpCall, name: str, bits: int, *, at_most: Scale = math.inf) -> Scale:
        """`scale_of` in a pass; one in real numbers that observes nothing needs no range."""
        if call.runtime.is_real and not self.is_observing:
            return NOMINAL
        return self.scale_of(name, bits, call.name, at_most=at_most)

    def follow_learned(self) -> None:
        """Give learned ranges, and the scales that follow from them, the values that their parameters have come to."""
        for name, each in self.learned.items():
            each.follow()
            if name in self._bounds and self.read(f"running_{name}"):
                self.scale_of(name, self.bits_of[name], self.path, at_most=self._bounds[name])

    def restart_learning(self, name: str) -> None:
        """The range has got another value: where it is learned, its parameter begins there."""
        if name in self.learned:
            self.learned[name].begin()

    # a range that was chosen for weights, whatever their largest magnitude is
    def chosen_range(self, name: str) -> float | None:
        """The range that weights `name` are rounded for; None where it is that of their largest magnitude."""
        return self.read(f"chosen_{name}") if self._has_choice(name) else None

    def chosen_value(self, name: str) -> Scale | None:
        """The same; a tensor where this pass leaves ranges on a device."""
        return self.value(f"chosen_{name}") if self._has_choice(name) else None

    def _has_choice(self, name: str) -> bool:
        if name in self.learned:
            self.learned[name].follow()
        return self.is_chosen(name)

    def missing_scale(self, where: str) -> str:
        """The message for a layer without a scale."""
        return f"{where} has no scale yet. Run data through the model inside `with linger.calibration():`, or train it."

    # quantising with a range
    def quantize(
        self, x: Tensor, bits: int, runtime: Runtime, path: str, *, key: str = "x", reason: str = ""
    ) -> QTensor:
        """A float tensor as integers, with the range `key`; `reason`: what coverage says of it.

        Raises:
            UsageError: It is no float tensor.
        """
        call = runtime.begin(_find_op("Quant"), path)
        if not x.is_floating_point():
            raise UsageError(
                f"{call.name}: the input has type {x.dtype}; a quantised layer needs a float tensor. Convert it with "
                ".float()."
            )
        if x.dtype != torch.float32:
            x = x.float()  # asked for only where needed: a trace would write a Cast
        seen = self.observe(key, x, call.name) if self.is_observing else None
        calibration = CALIBRATION.get()
        if calibration is not None:
            calibration.see_input(call.name, x)
        scale = self.scale_in(call, key, bits)
        attributes = {"data_bits": bits, "scale_x": scale}
        call.note(reason=reason)
        if call.is_written:
            integers = runtime.emit(call.op, [x], attributes, call.name, may_be_constant=bool(reason))
            return QTensor(integers, scale, bits, runtime)
        if runtime.is_real:
            values = to_carrier(x.clone(), bits)  # a function in place must not write into the caller's tensor
        elif carrier(bits) == torch.float32:
            values = fake_quantize(x, scale, bits, can_saturate=may_saturate(seen, scale, bits))
        else:
            values = call.op.body(TorchKernel(device=x.device), x, **call.op.complete(attributes)) / scale
        if not runtime.is_real:
            values = self.learn(key, values, x, scale, bits)
        result = QTensor(values, scale, bits, runtime)
        if seen is not None:
            result.origins = self.origins(key, runtime)
        call.record(result, [x], attributes)
        return result

    def requantize(self, x: QTensor, bits: int, runtime: Runtime, path: str, *, key: str = "x") -> QTensor:
        """A tensor of another width.

        Wider, the scale moves by the same number of bits. Narrower, it follows the range `key`: a sum may be wide and use
        a few of its bits only, and dropping the low ones by their number would leave nothing.
        """
        if x.bits == bits:
            return x
        assert x.scale is not None
        call = runtime.begin(_find_op("Requant"), path, is_observing=self.is_observing)
        scale_o = x.scale * 2.0 ** (bits - x.bits)
        if bits < x.bits:
            if call.is_learning:
                self.observe(key, x.content, call.name)
            scale_o = self.scale_in(call, key, bits, at_most=x.scale)
        attributes = {"data_bits": x.bits, "o_bits": bits, "scale_x": x.scale, "scale_o": scale_o}
        learn = partial(self.learn, key, real=x.content, scale=scale_o, bits=bits)
        return compute(call, [x], attributes, scale_o, bits, learn=learn if bits < x.bits else None)

    def learn(self, name: str, rounded: Tensor, real: Tensor, scale: Scale, bits: int, **how: Any) -> Tensor:
        """`real` rounded by a range; in training its gradient reaches the parameter of a learned one (`how`: see `attach`)."""
        learned = self.learned.get(name) if self.training else None
        return rounded if learned is None else learned.attach(rounded, real, scale, bits, **how)

    def is_foreign(self, name: str) -> bool:
        """Whether other code has written a scale that no range gives, such as the mean of several scales."""
        scale = self.read(f"scale_{name}")
        return scale != 0.0 and not is_power_of_two(scale)

    def adopt_range(self, q: QTensor, key: str = "x") -> None:
        """Take over the range of a quantised input, which follows from its scale: nothing is observed."""
        self.write(f"running_{key}", limits(q.bits)[1] / q.scale)
        self.write(f"scale_{key}", q.scale)

    # products
    def round_weight(
        self, weight: Tensor, factor: Tensor | None, bias: Tensor | None, scale_x: Scale, bits: int, at: str, **how: Any
    ) -> tuple[Tensor, Scale]:
        """Weights rounded as `how` tells `quantize.round_weight`, and their scale, at which the int32 bias fits, too."""
        how["saturates_at"] = bits if self._has_choice("w") else None
        fit = partial(self._fit_weight, bias, scale_x, bits, at)
        memory = self._memory if self.training else None
        rounded, scale = round_weight(weight, factor, fit, stays_there=self.is_observing, memory=memory, **how)
        is_integer = not how.get("is_real", False)
        return self.learn("w", rounded, weight, scale, bits, factor=factor, is_integer=is_integer), scale

    def _fit_weight(self, bias: Tensor | None, scale_x: Scale, bits: int, where: str, largest: Scale) -> Scale:
        """The scale of weights up to `largest`, which is remembered."""
        scale = weight_scale(largest, bits, bias, scale_x, where, chosen=self.chosen_value("w"))
        self.write("running_w", largest)
        self.write("scale_w", scale)
        self.bits_of["w"] = bits
        return scale

    def observe_weight(self, weight: Tensor, bias: Tensor | None, scale_x: Scale, bits: int, where: str) -> Scale:
        """The scale of weights that a pass in real numbers does not round."""
        if not self.is_observing:
            return NOMINAL
        calibration = CALIBRATION.get()
        if calibration is not None and not self.is_layer:  # a layer's own weights can be asked for later
            calibration.count(self, "w", weight, is_whole=True)
        return self._fit_weight(bias, scale_x, bits, where, largest_magnitude(weight))

    def learn_output(
        self, call: OpCall, q: QTensor, y: Tensor, scale_w: Scale, bits: int, *, taps: int, is_relu: bool = False
    ) -> QTensor:
        """A product, rounded to the observed range unless the pass is in real numbers. `taps`: products in each sum."""
        if call.runtime.is_real:
            call.note(macs=_products_in(call.op, q, y, taps))
            return self.observe_output(call, y, bits, at_most=q.scale * scale_w, is_relu=is_relu)
        seen = self.observe("o", y, call.name, is_relu=is_relu)
        scale_o = self.scale_of("o", bits, call.name, at_most=q.scale * scale_w)
        is_fused = is_relu and self.training
        can_saturate = may_saturate(seen, scale_o, bits) or (is_relu and not is_fused)
        is_owned = "o" not in self.learned
        values = fake_quantize(
            to_carrier(y, bits), scale_o, bits, is_relu=is_fused, can_saturate=can_saturate, is_owned=is_owned
        )
        values = self.learn("o", values, y, scale_o, bits, is_relu=is_fused)
        call.note(macs=_products_in(call.op, q, y, taps))
        result = QTensor(values, scale_o, bits, call.runtime, is_nonnegative=is_fused)
        result.origins = self.origins("o", call.runtime)
        return result

    def observe_output(
        self, call: OpCall, y: Tensor, bits: int, *, at_most: Scale = math.inf, is_relu: bool = False
    ) -> QTensor:
        """The result of an op in real numbers; its range is observed where the pass changes ranges."""
        if self.is_observing:
            self.observe("o", y, call.name, is_relu=is_relu)
        result = QTensor(to_carrier(y, bits), self.scale_in(call, "o", bits, at_most=at_most), bits, call.runtime)
        if self.is_observing:
            result.origins = self.origins("o", call.runtime)
        return result

    def deploy_product(
        self,
        call: OpCall,
        q: QTensor,
        frozen: Frozen,
        geometry: Mapping[str, Any],
        widths: Widths,
        ready_for: Callable[[Scale], Ready],
        *,
        is_relu: bool = False,
    ) -> QTensor:
        """The exact integers of a product, simulated or written to the file.

        `ready_for` gives the parameters as they are multiplied for an output scale. `is_relu`: a ReLU may be fused.
        """
        op, bits, runtime = call.op, widths.output, call.runtime
        scale_o = self.scale_of("o", bits, call.name, at_most=q.scale * frozen.scale_w)
        if call.is_written:
            call.note()
            tensors = [q.content, frozen.weight_integers, frozen.bias_integers, *frozen.extras]
            made = call.emit(tensors, product_attributes(geometry, widths, q.scale, frozen.scale_w, scale_o))
            return QTensor(made, scale_o, bits, runtime)
        ready, content = ready_for(scale_o), q.content
        if ready.plan.is_plain:
            y = accumulate(op, geometry, content, ready.weight, ready.bias)
        else:
            settings: dict[str, Any] = {"axis": product_twin(op).channel_axis, "is_transposed": op.is_transposed}
            settings |= {"group": geometry.get("group", 1), "parts": ready.parts}
            product = partial(accumulate, op, geometry)
            y = run_product(product, content, ready.weight, ready.bias, ready.plan, **settings)
        call.note(macs=_products_in(op, q, y, frozen.weight_integers.shape[1:].numel()))
        is_recorded = runtime.is_recorded
        is_relu = is_relu and not is_recorded
        values = round_output(y, scale_o, bits, is_rounding_folded=ready.is_rounding_folded, is_relu=is_relu)
        result = QTensor(values, scale_o, bits, runtime, is_nonnegative=is_relu)
        if is_recorded:
            call.record(result, (q, frozen), product_attributes(geometry, widths, q.scale, frozen.scale_w, scale_o))
        return result

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script asks for this first.

        Raises:
            UsageError: Always: it would compile the forward of this layer.
        """
        raise UsageError(no_script("torch.jit.script"))

    # checkpoints
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.range_names():
            if f"{prefix}running_{name}" in state_dict:
                self.histograms.pop(name, None)
        begun = load_learned(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self.keeps_own_input:
            self.input_range = "own"
        for each in begun:
            each.begin()


def _products_in(op: Op, q: QTensor, y: Tensor, taps: int) -> int:
    """Multiply-accumulates, as `products_of` counts them, without a look-up in every pass of every layer."""
    if is_exporting():
        return 0  # in a trace the count would fix an open batch size
    return int((q.content if op.is_transposed else y).numel() * taps)
