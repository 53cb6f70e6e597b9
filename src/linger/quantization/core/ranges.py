# SPDX-License-Identifier: Apache-2.0
"""A range: all that is known of the numbers of one tensor, and what is rounded by it.

A scale is a Python number, or a tensor that is computed with element by element: one without axes in a pass that leaves ranges on
a device, because reading one back would stall it, or one with a number for each channel.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from linger.constraint.limits import Widths
from linger.dialect import Interval, find_op
from linger.errors import UsageError
from linger.numeric.fixed import is_power_of_two, limits, scale_for
from linger.numeric.torch.kernel import TorchKernel, carrier
from linger.numeric.torch.quantize import (
    ZEROS,
    Memory,
    Rows,
    Scale,
    base_of,
    channel_scales,
    ends_of,
    fake_quantize,
    largest_magnitude,
    largest_of,
    magnitude_within,
    may_saturate,
    round_weight,
    rows_of,
    scale_for_range,
    smallest,
    weight_scale,
    widened_range,
)
from linger.quantization.core.observation import Histogram
from linger.quantization.core.qtensor import Origin, QTensor, compute, to_carrier
from linger.quantization.core.runtime import OpCall, Pass, Runtime
from linger.quantization.core.stored import (
    EVERYTHING,
    Kind,
    NotFiniteError,
    RangeHolder,
    ReadInterval,
    Stored,
    kind_of,
    not_finite,
)

_FAR = 2.0**64  # an end of an interval beyond it is open, also as a mean of ends of which one was

NOMINAL = 1.0
"""The scale of a tensor in real numbers whose range was not observed: nothing is rounded to it."""

_find_op = cache(find_op)  # every tensor of every pass asks for it

Saved = tuple[float, Any, float | tuple[float, ...] | None]  # range, scale and chosen range of weights


class Range:
    """One range of a layer or function, in buffers of its module; 0 where nothing was seen yet.

    Attributes:
        layer: The module.
        name: Its name there: x, w, o; of a recurrent layer i, iw, hw, o with the suffix of torch.
        kind: Input, weight or output; None where it follows from other ranges.
        running: The largest magnitude, as passes have seen it.
        stored_scale: The scale that followed from it last.
        used: The lowest and highest number that its users read; weights have none.
        chosen: The range that weights are rounded for, whatever their largest magnitude is; others have none.
        rows: Of weights with a scale for each output channel, how they are told apart (`quantize.Rows`); checkpoints have all of them.
        is_loaded_whole: Whether a checkpoint has given the weights of a function, whose channels only a pass knows, one scale.
        width: The bits that it was last used for; None: it was not.
        bound: The finest scale that the device's format allowed then.
        method: The method of calibration that found it, where that was not the largest magnitude.
        histogram: What calibration has counted; no part of a checkpoint.
        learned: The parameter that it follows instead of the data (`linger.quantization.core.learned`); None: it is not learned.
        ends: The lowest and highest number of this pass, where other processes train too, and whether the range is new (`exchange`).
        users: Those that read the tensor.
        key: Path of the layer and name, in the model whose ranges were asked for last (`ranges_of`): `block.conv.o`.
        usual: The method of calibration that this model's configuration names for ranges of this kind.
    """

    def __init__(self, layer: RangeHolder, name: str, device: torch.device | None = None) -> None:
        self.layer, self.name, self.kind = layer, name, kind_of(name)
        self.running = Stored(layer, f"running_{name}", device)
        self.stored_scale = Stored(layer, f"scale_{name}", device)
        self.used: Stored | None = None
        self.chosen: Stored | None = None
        self.rows: Rows = None
        self.is_loaded_whole = False
        self.width: int | None = None
        self.bound: Scale | None = None
        self.method: str | None = None
        self.histogram: Histogram | None = None
        self.learned: Any = None
        self.ends: tuple[Scale, Scale, Any] | None = None
        self.users = ReadInterval(self)
        self.key = name
        self.usual: str | None = None
        self._scale_of: tuple[tuple[Scale, ...], Scale] | None = None  # what the scale followed from, and the scale
        self._seen: Tensor | None = None  # weights of a function with a scale for each channel, in the last calibration
        self._chosen_there: int | None = None  # the version of a choice that was left on a device

    def add_optional(self, device: torch.device | None, channels: int = 1) -> None:
        """Add the buffer of what is found or decided later, after those of all ranges."""
        how: dict[str, Any] = {"absent": math.inf, "of": self.running.key, "is_optional": True}
        if self.is_of_weights:
            self.chosen = Stored(self.layer, f"chosen_{self.name}", device, size=channels, **how)
        else:
            self.used = Stored(self.layer, f"used_{self.name}", device, size=2, dtype=torch.float64, **how)

    def split(self, channels: int, transposed_groups: int | None) -> None:
        """Give weights a scale for each of so many output channels; what was chosen before is forgotten."""
        self.rows = rows_of(transposed_groups) if channels > 1 else None
        if cast(Stored, self.chosen).buffer.numel() != channels:
            self.add_optional(self.running.buffer.device, channels)
            self.stored_scale = Stored(self.layer, self.stored_scale.key, self.running.buffer.device, size=channels)

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads its buffers anew."""
        return self.__dict__ | {"_chosen_there": None}

    @property
    def is_of_weights(self) -> bool:
        """Whether it is that of weights: w, iw, hw."""
        return "w" in self.name.partition("_")[0]

    @property
    def bits(self) -> int:
        """The width that it was last used for; of a layer's weights the one that the layer has."""
        widths: Widths | None = getattr(self.layer, "widths", None)
        if self.kind is Kind.WEIGHT and widths is not None:
            return widths.parameter
        if self.width is None and widths is not None:
            return widths.data if self.kind is Kind.INPUT else widths.output
        return 8 if self.width is None else self.width

    @property
    def room(self) -> int:
        """The width of signed integers that hold its numbers: one more than its bits where these are unsigned."""
        return self.bits + self.users.is_unsigned(self.bits)

    def change_room(self) -> None:
        """Its numbers have become unsigned, or signed: the scale is found again."""
        self._scale_of = None
        if self.learned is not None:
            self.learned.change_width(self.room)

    @property
    def scale(self) -> float:
        """The scale that it has now; 0 where nothing was seen yet."""
        scale = self.stored_scale.read()
        return min(scale) if isinstance(scale, list) else float(scale)

    @property
    def largest(self) -> float:
        """The range itself: the largest magnitude seen, or what was chosen instead."""
        chosen = self.chosen_range()
        return max(chosen) if isinstance(chosen, tuple) else float(self.running.read()) if chosen is None else chosen

    @property
    def limit(self) -> float:
        """Its upper bound."""
        return self.layer.largest_output if self.name == "o" else math.inf

    def observes(self, now: Pass) -> bool:
        """Whether a pass changes it."""
        return self.layer.training or now.calibration is not None

    def value(self, now: Pass, stored: Stored | None = None) -> Scale:
        """Its largest magnitude, or another of its numbers: a tensor without axes where this pass leaves ranges on a device."""
        is_changing = self.layer.training or now.calibration is not None
        return (self.running if stored is None else stored).value(stays_there=is_changing)

    def set(self, running: Scale, scale: Scale) -> None:
        """Set both numbers."""
        self.running.write(running)
        self.stored_scale.write(scale)

    def holds(self, now: Pass) -> bool:
        """Whether it is known and does not follow the data; calibration changes it all the same."""
        return self.layer.holds_ranges and now.calibration is None and bool(self.running.read() > ZEROS)

    @property
    def is_foreign(self) -> bool:
        """Whether other code has written a scale that no range gives, such as the mean of several scales."""
        return self.scale != 0.0 and not is_power_of_two(self.scale)

    def adopt(self, q: QTensor) -> None:
        """Take over the range of a quantized input, which follows from its scale: nothing is observed."""
        self.set(limits(q.signed_bits)[1] / q.scale, q.scale)

    # choices
    def choose(self, scale: float, exponents: tuple[int, ...] = ()) -> None:
        """Choose a scale, a power of two, of channels by their exponents, too; an output is never finer than its sum all the same."""
        if not is_power_of_two(scale):
            raise UsageError(f"{self.key}: the scale {scale!r} is no power of two.")
        self.method = None
        largest: Scale = limits(self.room)[1] / scale
        if self.kind is Kind.WEIGHT:
            rows, known = self.real_rows, self.chosen_value(Pass.here())
            if rows is not None and not exponents:  # all channels move alike
                known = rows.abs().amax(1) if known is None else known
                largest = known * (scale_for_range(float(known.max()), self.bits) / scale)
            self.choose_range(tuple(largest * 2.0**-e for e in exponents) or largest)
        else:
            self.set(largest, scale)
        self.restart_learning()

    def save(self) -> Saved:
        """What `restore` needs to undo later choices."""
        return self.running.read(), self.stored_scale.read(), self.chosen_range()

    def restore(self, saved: Saved) -> None:
        """Undo choices."""
        self.set(*saved[:2])
        if self.kind is Kind.WEIGHT:
            self.choose_range(saved[2])
        self.restart_learning()

    def choose_range(self, largest: Scale | tuple[float, ...] | None) -> None:
        """Choose the range of weights, or with None follow their largest magnitude; a checkpoint has the buffer only then."""
        assert self.chosen is not None  # weights have one
        if isinstance(largest, tuple) and self.rows is None:  # of a function that no pass has run yet
            self.split(len(largest), None)
        self.chosen.write(self.chosen.absent if largest is None else largest)
        is_there = isinstance(largest, Tensor) and not largest.is_cpu
        self._chosen_there = self.chosen.buffer._version if is_there else None  # noqa: SLF001 - torch's public name is missing

    @property
    def real_rows(self) -> Tensor | None:
        """Weights with a scale for each output channel before they are rounded, a row for each; None where they are not known."""
        weight = self.layer.range_weights().get(self.name) if self.layer.is_layer else self._seen
        return None if self.rows is None or weight is None else self.rows[2](weight)

    @property
    def is_chosen(self) -> bool:
        """Whether the range of weights was chosen."""
        if self.chosen is None:
            return False
        is_there = self._chosen_there is not None and self._chosen_there == self.chosen.buffer._version  # noqa: SLF001 - as above
        return is_there or math.isfinite(max(self.chosen.read()) if self.rows else self.chosen.read())

    def chosen_range(self) -> float | tuple[float, ...] | None:
        """The range that weights are rounded for, or those of their channels; None where the largest magnitude is."""
        largest = self.chosen_value(Pass.here())
        return None if largest is None else float(largest) if self.rows is None else tuple(largest.tolist())

    def chosen_value(self, now: Pass) -> Scale | None:
        """The same in a pass; a tensor where that leaves ranges on a device."""
        if self.learned is not None:
            self.learned.follow(now)
        if self.rows is not None and self.is_chosen:
            return cast(Stored, self.chosen).buffer.detach().double()
        return self.value(now, self.chosen) if self.is_chosen else None

    def restart_learning(self) -> None:
        """The range has got another value: where it is learned, its parameter begins there."""
        if self.learned is not None:
            self.learned.begin()

    # observation
    def observe(self, x: Tensor, where: str, now: Pass, *, is_relu: bool = False) -> Scale:
        """Let a tensor widen the range; returns the tensor's own largest magnitude.

        Calibration keeps the largest value and counts all numbers; training keeps an exponential mean, unless the range is
        learned: then nothing is looked at, and None is returned. A tensor with NaN or infinity is a `UsageError`.
        """
        calibration = now.calibration
        if calibration is None and self.learned is not None:
            return None
        if self.holds(now):
            return math.inf  # anything may saturate
        is_sharing = now.is_shared and self.layer.training
        magnitude = (self._observe_shared if is_sharing else self._observe)(x, where, now, is_relu=is_relu)
        if calibration is not None:
            calibration.count(self, x)
        else:
            self.histogram = None  # the range is no longer what was counted
        return magnitude

    def _observe(self, x: Tensor, where: str, now: Pass, *, is_relu: bool) -> Scale:
        known = self.known_use
        interval = self._apply_use(known, now)
        is_limited = interval != EVERYTHING and not (is_relu and interval[1] == math.inf)
        if (is_limited or known is None) and x.numel():
            return self._observe_used(x, where, now, is_relu=is_relu)
        magnitude = largest_magnitude(x, is_relu=is_relu)
        if isinstance(magnitude, Tensor) or x.numel() or not math.isfinite(magnitude):
            self._widen(magnitude, where, now)
        return magnitude

    def _observe_used(self, x: Tensor, where: str, now: Pass, *, is_relu: bool) -> Scale:
        """`observe` by the numbers that are used; remembers the ends, as the users of this pass come later."""
        low, high = ends_of(x, is_relu=is_relu)
        before, own = self.value(now), magnitude_within(low, high, EVERYTHING)
        is_finite = isinstance(own, Tensor) or (math.isfinite(low) and math.isfinite(high))
        self._widen(magnitude_within(low, high, self.users.applied) if is_finite else math.nan, where, now)
        if not now.is_repeated:
            self.users.last = low, high, before.clone() if isinstance(before, Tensor) else before
        return own

    def _observe_shared(self, x: Tensor, where: str, now: Pass, *, is_relu: bool) -> Scale:
        if not x.numel():
            return 0.0
        low, high = ends_of(x, is_relu=is_relu)
        self._share(low, high, where, now, self._apply_use(self.known_use, now))
        self.users.waits = not now.is_repeated
        return magnitude_within(low, high, EVERYTHING)

    def _share(self, low: Scale, high: Scale, where: str, now: Pass, interval: Interval) -> None:
        """Keep the ends of a tensor for the exchange; a range that was never seen is that of this process until then."""
        is_there = isinstance(high, Tensor)
        if is_there:
            self._follow_device(high)
        elif not (math.isfinite(low) and math.isfinite(high)):
            raise NotFiniteError(not_finite(where))
        before = self.value(now)
        is_new = before <= ZEROS
        if is_there or is_new:
            own = self.widened(before, magnitude_within(low, high, interval), is_calibrating=True)
            self.running.write(torch.where(is_new, own, before) if is_there else own)
        if now.is_repeated:
            return
        if self.ends is not None:
            low, high, is_new = smallest([low, self.ends[0]]), largest_of([high, self.ends[1]]), self.ends[2]
        self.ends = low, high, is_new

    def widen(self, magnitude: Scale, where: str, now: Pass) -> None:
        """Widen the range by a largest magnitude; NaN and infinity on a device stay there, where an evaluation finds them."""
        if now.is_shared and self.layer.training:
            self._share(-magnitude, magnitude, where, now, EVERYTHING)
        else:
            self._widen(magnitude, where, now)

    def _widen(self, magnitude: Scale, where: str, now: Pass) -> None:
        is_there = isinstance(magnitude, Tensor)
        if is_there:
            self._follow_device(magnitude)
        elif not math.isfinite(magnitude):
            raise UsageError(not_finite(where))
        before: Scale = self.running.buffer.double().squeeze(0) if is_there else self.running.read()
        self.running.write(self.widened(before, magnitude, is_calibrating=now.calibration is not None))

    def _follow_device(self, there: Tensor) -> None:
        """Have the ranges where a tensor is: the model was moved since, or runs on several devices."""
        if self.running.buffer.device != there.device:
            self.layer.to(there.device)

    def widened(self, before: Scale, magnitude: Scale, *, is_calibrating: bool) -> Scale:
        """The range with one more tensor: the largest magnitude of all in calibration, else a running mean."""
        return widened_range(before, magnitude, self.limit, is_calibrating=is_calibrating)

    # the numbers that users read
    @property
    def known_use(self) -> Interval | None:
        """The lowest and highest number that its users read; None where no pass has shown it yet."""
        low, high = (math.inf, math.inf) if self.used is None else self.used.read()
        if math.isnan(low) or low == math.inf:
            return None
        return (low if low > -_FAR else -math.inf, high if high < _FAR else math.inf)

    @property
    def used_interval(self) -> Interval:
        """The same as far as is known; what lies beyond may saturate."""
        return self.known_use or EVERYTHING

    def _apply_use(self, known: Interval | None, now: Pass) -> Interval:
        """The interval to observe by: that of the first run where a checkpoint runs again."""
        users = self.users
        if not now.is_repeated:
            users.applied = users.held = known or EVERYTHING
            users.waits, users.is_open = False, known != EVERYTHING
        return users.applied

    def origins(self, call: OpCall) -> tuple[Origin, ...]:
        """The origin of a tensor that was just rounded to the range; none where its users need not be watched."""
        now, users = call.now, self.users
        is_learned = self.learned is not None and now.calibration is None
        if now.is_repeated or is_learned or not users.is_open or self.holds(now):
            return ()
        users.watch(now.calibration)
        call.runtime.current.watched.append(users)
        return (Origin(users),)

    # processes that train together
    def forget_pass(self) -> None:
        """What the pass has seen was told to all processes."""
        self.ends = None
        self.users.forget()

    def learn_from_all(self, before: float, ends: Interval, used: Interval | None, bits: int, at_most: float) -> None:
        """Let what all processes have seen and use widen the range, and choose its scale."""
        if used is not None:
            self.users.join(used)
        running = self.widened(before, magnitude_within(*ends, used or EVERYTHING), is_calibrating=False)
        self.running.write(running)
        if bits:
            scale = self._new_scale(running, self.limit, bits, self.layer.path, at_most)
            self._scale_of = (running, self.limit, bits, at_most), scale

    # scales
    def scale_at(self, bits: int, where: str, now: Pass, *, at_most: Scale = math.inf) -> Scale:
        """The scale of the range, not above `at_most`; a `UsageError` where nothing was seen, or no number."""
        if self.learned is not None:
            self.learned.follow(now)
        running, limit = self.value(now), self.limit
        if isinstance(running, Tensor) or isinstance(at_most, Tensor):
            return self._new_scale(running, limit, bits, where, at_most)
        source, known = (running, limit, bits, at_most), self._scale_of  # a change of sign drops it
        if known is not None and known[0] == source and self.stored_scale.read() == known[1]:
            return known[1]
        scale = self._new_scale(running, limit, bits, where, at_most)
        self._scale_of = source, scale
        return scale

    def _new_scale(self, running: Scale, limit: float, bits: int, where: str, at_most: Scale) -> Scale:
        if not isinstance(running, Tensor) and (running == 0.0 or not math.isfinite(running)):
            raise UsageError(self.layer.missing_scale(where) if running == 0.0 else not_finite(where))
        room = bits if self.users.unsigned is None else bits + self.users.is_unsigned(bits)
        if isinstance(running, Tensor) or isinstance(at_most, Tensor):
            scale = smallest([scale_for_range(smallest([running, limit]), room), at_most])
        else:
            scale = min(scale_for(min(running, limit), room), at_most)
        self.width, self.bound = bits, at_most
        self.stored_scale.write(scale)
        return scale

    def scale_in(self, call: OpCall, bits: int, *, at_most: Scale = math.inf) -> Scale:
        """`scale_at` in a pass; one in real numbers that observes nothing needs no range."""
        if call.now.is_real and not self.observes(call.now):
            return NOMINAL
        return self.scale_at(bits, call.name, call.now, at_most=at_most)

    def follow_running(self) -> None:
        """Find the scale again, in the format that the range was last used for."""
        if self.width is not None and self.bound is not None:
            self.scale_at(self.width, self.layer.path, Pass.here(), at_most=self.bound)

    # what is rounded by it
    def learn(self, rounded: Tensor, real: Tensor, scale: Scale, bits: int, now: Pass, **how: Any) -> Tensor:
        """`real` rounded by the range; in training its gradient reaches the parameter of a learned one (`how`: see `attach`)."""
        if self.learned is None or not self.layer.training:
            return rounded
        return cast(Tensor, self.learned.attach(rounded, real, scale, bits, now, **how))

    def quantize(self, x: Tensor, bits: int, runtime: Runtime, path: str, *, reason: str = "") -> QTensor:
        """A float tensor as integers, any other is a `UsageError`; `reason`: what coverage says of it."""
        call = runtime.begin(_find_op("Quant"), path, self.layer)
        now = call.now
        if not x.is_floating_point():
            raise UsageError(
                f"{call.name}: the input has type {x.dtype}; a quantized layer needs a float tensor. Convert it with "
                ".float()."
            )
        if x.dtype != torch.float32:
            x = x.float()  # asked for only where needed: a trace would write a Cast
        is_unsigned = runtime.is_unsigned and self.users.are_unsigned(call, bits, seen=x)
        magnitude = self.observe(x, call.name, now) if call.is_learning else None
        if now.calibration is not None:
            now.calibration.observe_input(call.name, x)
        scale = self.scale_in(call, bits)
        attributes = {"data_bits": bits, "scale_x": scale} | ({"o_unsigned": 1} if is_unsigned else {})
        call.note(reason=reason)
        if call.is_written:
            integers = runtime.emit(call.op, [x], attributes, call.name, may_be_constant=bool(reason))
            return QTensor(integers, scale, bits, runtime, is_unsigned=is_unsigned)
        values = self._quantized(x, magnitude, call, attributes)
        result = QTensor(values, scale, bits, runtime, is_unsigned=is_unsigned and not now.is_real)
        if magnitude is not None:
            result.origins = self.origins(call)
        if runtime.recorder is not None or runtime.observers:
            call.record(result, [x], attributes)
        return result

    def _quantized(self, x: Tensor, magnitude: Scale, call: OpCall, attributes: dict[str, Any]) -> Tensor:
        scale, bits, is_unsigned = attributes["scale_x"], attributes["data_bits"], "o_unsigned" in attributes
        if call.now.is_real:
            return to_carrier(x.clone(), bits)  # a function in place must not write into the caller's tensor
        room = bits + is_unsigned
        if carrier(bits) == torch.float32:
            can_saturate = is_unsigned or may_saturate(magnitude, scale, room)
            values = fake_quantize(x, scale, room, can_saturate=can_saturate, is_relu=is_unsigned)
        else:
            values = call.op.body(TorchKernel(device=x.device), x, **call.op.complete(attributes)) / scale
        return self.learn(values, x, scale, room, call.now, is_relu=is_unsigned)

    def requantize(self, x: QTensor, bits: int, runtime: Runtime, path: str) -> QTensor:
        """A tensor of another width: wider, the scale moves by as many bits; narrower, it follows the range.

        A sum may be wide and use a few of its bits only, and dropping the low ones by their number would leave nothing.
        """
        if x.bits == bits:
            return x
        assert x.scale is not None
        call = runtime.begin(_find_op("Requant"), path, self.layer)
        scale_o = x.scale * 2.0 ** (bits - x.signed_bits)
        if bits < x.bits:
            if call.is_learning:
                self.observe(x.content, call.name, call.now)
            scale_o = self.scale_in(call, bits, at_most=x.scale)
        attributes = {"data_bits": x.bits, "o_bits": bits, "scale_x": x.scale, "scale_o": scale_o}
        learn = partial(self.learn, real=x.content, scale=scale_o, bits=bits, now=call.now)
        return compute(call, [x], attributes, scale_o, bits, learn=learn if bits < x.bits else None)

    def round_product(
        self, call: OpCall, q: QTensor, y: Tensor, scale_w: Scale, bits: int, *, taps: int, is_relu: bool = False
    ) -> QTensor:
        """A product, requantized to the observed range unless the pass is in real numbers. `taps`: products in each sum."""
        now, scale_w = call.now, base_of(scale_w) if isinstance(scale_w, Tensor) else scale_w
        # as `products_in` counts; in a trace the count would fix an open batch size
        call.note(macs=0 if now.is_exporting else int((q.content if call.op.is_transposed else y).numel() * taps))
        if now.is_real:
            return self.observe_output(call, y, bits, at_most=q.scale * scale_w, is_relu=is_relu)
        is_unsigned = call.runtime.is_unsigned and self.users.are_unsigned(call, bits)
        magnitude = self.observe(y, call.name, now, is_relu=is_relu)
        scale_o = self.scale_at(bits, call.name, now, at_most=q.scale * scale_w)
        is_fused, room = (is_relu and self.layer.training) or is_unsigned, bits + is_unsigned
        can_saturate = may_saturate(magnitude, scale_o, room) or (is_relu and not is_fused)
        how = {"is_relu": is_fused, "can_saturate": can_saturate, "is_owned": self.learned is None}
        values = fake_quantize(to_carrier(y, bits), scale_o, room, **how)
        values = self.learn(values, y, scale_o, room, now, is_relu=is_fused)
        result = QTensor(values, scale_o, bits, call.runtime, is_nonnegative=is_fused, is_unsigned=is_unsigned)
        result.origins = self.origins(call)
        return result

    def observe_output(
        self, call: OpCall, y: Tensor, bits: int, *, at_most: Scale = math.inf, is_relu: bool = False
    ) -> QTensor:
        """The result of an op in real numbers; its range is observed where the pass changes ranges."""
        is_observed = self.observes(call.now)
        if is_observed:
            self.observe(y, call.name, call.now, is_relu=is_relu)
            if call.runtime.is_unsigned:
                self.users.are_unsigned(call, bits)
        result = QTensor(to_carrier(y, bits), self.scale_in(call, bits, at_most=at_most), bits, call.runtime)
        if is_observed:
            result.origins = self.origins(call)
        return result

    # weights
    def round_weight(
        self,
        weight: Tensor,
        factor: Tensor | None,
        bias: Tensor | None,
        scale_x: Scale,
        bits: int,
        where: str,
        now: Pass,
        *,
        is_real: bool = False,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Scale]:
        """Weights rounded as `quantize.round_weight` does, and their scale, at which the int32 bias fits, too."""
        chosen = self.chosen_value(now)
        fit = partial(self.fit_weight, bias, scale_x, bits, where, chosen)
        rounded, scale = round_weight(
            weight,
            factor,
            fit,
            saturates_at=None if chosen is None else bits,
            stays_there=self.observes(now),
            is_real=is_real,
            memory=memory,
            rows=self.rows,
        )
        return self.learn(rounded, weight, scale, bits, now, factor=factor, is_integer=not is_real), scale

    def fit_weight(
        self, bias: Tensor | None, scale_x: Scale, bits: int, where: str, chosen: Scale | None, largest: Scale
    ) -> Scale:
        """The scale of weights up to `largest`, which is remembered."""
        if self.rows is None:
            scale = weight_scale(largest, bits, bias, scale_x, where, chosen=chosen)
            self.set(largest, scale)
        else:
            scale = channel_scales(largest, bits, bias, scale_x, where, chosen=chosen)
            self.set(-base_of(-largest), scale)
        self.width = bits
        return scale

    def observe_weight(
        self, weight: Tensor, bias: Tensor | None, scale_x: Scale, bits: int, where: str, now: Pass
    ) -> Scale:
        """The scale of weights that a pass in real numbers does not round."""
        if not self.observes(now):
            return NOMINAL
        if now.calibration is not None and not self.layer.is_layer:  # a layer's own weights can be asked for later
            now.calibration.count(self, weight, is_whole=True)
        self._seen = None if self.rows is None or self.layer.is_layer else weight.detach()
        largest = largest_magnitude(weight) if self.rows is None else self.rows[0](weight)
        return self.fit_weight(bias, scale_x, bits, where, self.chosen_value(now), largest)
