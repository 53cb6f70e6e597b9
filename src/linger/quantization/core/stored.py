# SPDX-License-Identifier: Apache-2.0
"""Where a range keeps its numbers: buffers of a module, read and written as Python numbers.

`Recomputation` gives modules and functions that run again in the backward pass (torch.utils.checkpoint) the buffers of their first
run. A second run would otherwise move ranges and running statistics twice, round with other scales than the pass whose gradient it
computes, and, outside any module, not know which module's ranges to use.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting
from torch.utils._pytree import tree_leaves

from linger.dialect import Interval
from linger.errors import UnsupportedError, UsageError, listing
from linger.numeric.fixed import as_float32
from linger.numeric.torch.quantize import ZEROS, Scale, largest_of, magnitude_within, smallest
from linger.quantization.core.observation import Calibration
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import (
    RUN_FIRST,
    Frame,
    Keeping,
    OpCall,
    Runtime,
    TorchFunction,
    is_in_backward,
    scope_of,
)


class Kind(Enum):
    """What a range belongs to."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"


_KINDS = (
    (re.compile(r"(w|iw|hw)(_l\d+)?(_reverse)?"), Kind.WEIGHT),
    (re.compile(r"(x|i)(_l\d+)?"), Kind.INPUT),
    (re.compile(r"o(_l\d+)?"), Kind.OUTPUT),
)
"""The ranges that can be chosen; the others of a recurrent layer follow from these."""


def kind_of(name: str) -> Kind | None:
    """What the range of this name belongs to; None where it follows from others."""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)


class NotFiniteError(UsageError):
    """A tensor of this process holds NaN or infinity; the other processes will say so too."""


def not_finite(where: str) -> str:
    """The message for a tensor without a largest number."""
    return f"{where}: the tensor holds NaN or infinity, so no scale can be chosen. Check the input and the weights."


def other_numbers(finer: Iterable[str], whole: Iterable[str], unsigned: Iterable[str], how: Mapping[str, bool]) -> str:
    """The message for a checkpoint with other scales or signs than the model's; `how`: the arguments of `init` for those it has."""
    each, one, signs = "one for each output channel", "one scale", "0 … 255 there, signed here"
    told = {f"{each} there, {one} here": finer, f"{one} there, {each} here": whole, signs: unsigned}
    return (
        f"load_state_dict: {'; '.join(f'{listing(names)} ({what})' for what, names in told.items() if names)}: this checkpoint "
        "is of a model that was quantized with other numbers. Make the model as that one was made, by its settings file or with "
        f"linger.init(…, {', '.join(f'{name}={value}' for name, value in how.items())}), and load it then."
    )


class RangeHolder(nn.Module):
    """What a range asks of the module that holds its buffers (`linger.quantization.core.quantized.QuantizedBase`).

    Attributes:
        is_layer: Whether it stands for a layer of the float model.
        path: Where it stands in the model.
        holds_ranges: Whether ranges that are known stay as they are in training.
        input_range: Where the range of its input comes from: "own" observation, "adopted" from a quantized input, "stale" until then.
        stored: Its buffers by name, those of other code left out.
    """

    is_layer = False
    path = ""
    holds_ranges = False
    input_range = ""
    stored: dict[str, Stored]

    def read(self, key: str) -> Any:
        """The number in a buffer, or the list of its numbers."""
        return self.stored[key].read()

    def write(self, key: str, value: Any) -> None:
        """Set a buffer."""
        self.stored[key].write(value)

    def known_values(self) -> dict[str, Any]:
        """The numbers of buffers as far as they are known without reading them."""
        known = {key: each.last_known for key, each in self.stored.items()}
        return {key: numbers for key, numbers in known.items() if numbers is not None}

    def put_buffers(self, buffers: Mapping[str, Tensor | None], known: Mapping[str, Any]) -> None:
        """Put other tensors in the place of buffers; `known` gives those of their numbers that are known."""
        self._buffers.update(buffers)
        for key, each in self.stored.items():
            each.forget()
            if key in known:
                each.note(known[key])

    @property
    def is_shared(self) -> bool:
        """Whether several calls of one pass had the range of its output, so that it is not used."""
        return False

    @property
    def largest_output(self) -> float:
        """The upper bound of the range of its output; a layer within limits has a finite one."""
        return math.inf

    def range_weights(self) -> dict[str, Tensor]:
        """The weights of a layer as they are rounded, batch norm folded in, by the names of their ranges."""
        return {}

    def follow_range(self, name: str) -> None:
        """Write what follows from the range `name`, which has got another value."""

    def missing_scale(self, where: str) -> str:
        """The message for a layer without a scale."""
        return f"{where} has no scale yet. Run data through the model inside `with linger.calibration():`, or train it."


class Stored:
    """A buffer of a module, read and written as numbers: read again only where torch has counted another write.

    A buffer may be absent from checkpoints as long as it says nothing; it exists from the beginning all the same, because torch
    pairs the buffers of a model and of its average (`torch.optim.swa_utils`) by their order.

    Attributes:
        absent: What it holds while it says nothing: of a mean with a number, as over time, nothing may be left of it.
        of: Of one that may be absent, the buffer whose presence in a checkpoint shows that it is; None: it then stays as it is.
    """

    def __init__(
        self,
        holder: RangeHolder,
        key: str,
        device: torch.device | None = None,
        *,
        size: int = 1,
        dtype: torch.dtype = torch.float32,
        absent: float = 0.0,
        of: str | None = None,
        is_optional: bool = False,
    ) -> None:
        self.holder, self.key, self.absent, self.of, self.is_optional = holder, key, absent, of, is_optional
        with torch.inference_mode(mode=False):  # a layer made in an inference pass can be trained later
            buffer = torch.full((size,), absent, dtype=dtype, device=device)
        holder.register_buffer(key, buffer, persistent=not is_optional)
        holder.stored[key] = self
        self._known: tuple[int, Any] | None = None  # the version that was read or written, and its numbers
        if is_optional:
            self.note([absent] * size if size > 1 else absent)

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads its buffer anew: its version begins again."""
        return self.__dict__ | {"_known": None}

    @property
    def buffer(self) -> Tensor:
        """The tensor."""
        buffer = self.holder._buffers[self.key]  # noqa: SLF001 - get_buffer takes ten times as long
        assert buffer is not None  # ours never are
        return buffer

    def note(self, numbers: Any) -> Any:
        """Remember the numbers that the buffer has now."""
        self._known = self.buffer._version, numbers  # noqa: SLF001 - torch's public name is missing
        return numbers

    def forget(self) -> None:
        """Read the buffer anew: another one has its place."""
        self._known = None

    @property
    def last_known(self) -> Any:
        """Its numbers as far as they are known without reading a device; None where they are not."""
        buffer, known = self.buffer, self._known
        is_known = known is not None and not buffer.is_meta and known[0] == buffer._version  # noqa: SLF001 - as above
        return known[1] if known is not None and is_known else None

    def read(self) -> Any:
        """Its number, or the list of its numbers where it holds several.

        A `UsageError` where torch.export follows the pass, and none before it has read the buffer.
        """
        buffer, known = self.holder._buffers[self.key], self._known  # noqa: SLF001 - as above
        assert buffer is not None
        if type(buffer) is not Tensor and is_exporting():  # a traced buffer has no value
            if known is None:
                raise UsageError(RUN_FIRST)
            return known[1]
        if known is None or known[0] != buffer._version:  # noqa: SLF001 - as above
            return self.note(buffer.tolist() if buffer.numel() > 1 else float(buffer))
        return known[1]

    def write(self, value: Any) -> None:
        """Set its number, or all of its numbers."""
        buffer = self.buffer
        if isinstance(value, Tensor):
            with torch.no_grad():
                buffer.copy_(value)
        elif isinstance(value, (tuple, list)):
            buffer.copy_(torch.tensor(value, dtype=buffer.dtype))
            self.note(list(value))
        elif (self.read() if buffer.is_cpu else self.last_known) != value:
            buffer.fill_(value)
            self.note(as_float32(value) if buffer.numel() == 1 else [as_float32(value)] * buffer.numel())

    def value(self, *, stays_there: bool) -> Scale:
        """Its number: a tensor without axes where it stays on a device."""
        if stays_there and not self.buffer.is_cpu:
            return self.buffer.detach().double().squeeze(0)
        return self.read()

    @property
    def is_said(self) -> bool:
        """Whether it says something."""
        if self.buffer.is_meta:
            return False
        numbers = self.read()
        first = numbers[0] if isinstance(numbers, list) else numbers
        return math.isfinite(first) and first != self.absent


EVERYTHING = (-math.inf, math.inf)
"""The interval of a tensor all of whose numbers are used."""

_BYTE = 8
_OPEN = float(torch.finfo(torch.float32).max)
"""Stands for infinity in checkpoints: a mean of infinite numbers, as of weights over time, would be none."""


class ReadInterval:
    """Which numbers of a range its users read; the others may saturate.

    The users run after the range is observed, so they are known when a pass has ended. Then the range is brought down to
    what is used. It is never narrower than any pass has asked for.

    Attributes:
        range: The range (`linger.quantization.core.ranges.Range`).
        applied: The interval that the last pass observed by.
        held: The interval whose numbers the range holds now.
        last: The ends of the tensor that was observed last, and the range before it.
        is_open: Whether more of its numbers may be found unused; not where all are known to be used.
        waits: Whether the users of all processes decide, once they have told each other (`exchange`).
        unsigned: Whether the tensor is stored as 0 … 255; None: the model has no such tensors, or no pass has asked yet.
    """

    def __init__(self, range_: Any) -> None:
        self.range = range_
        self.applied: Interval = EVERYTHING
        self.held: Interval = EVERYTHING
        self.last: tuple[Scale, Scale, Scale] | None = None
        self.waits, self.is_open = False, True
        self.unsigned: Stored | None = None
        self._can_be_unsigned, self._is_never_negative = False, False
        self._read: Interval | None = None
        self._tensors: list[tuple[Scale, Scale]] = []
        self._before: Scale = 0.0
        self._block: weakref.ref[Calibration] | None = None
        self._is_settled = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a model has no pass in progress."""
        return self.__dict__ | {"last": None, "_read": None, "_tensors": [], "_block": None}

    def watch(self, block: Calibration | None) -> None:
        """Expect users of the tensor that was observed last, and of those before it in this pass or calibration block."""
        if self.last is None:
            self._tensors = []  # observed as a whole: what came before it is not to be taken back
            return
        (low, high, before), self.last = self.last, None
        is_same = (None if self._block is None else self._block()) is block
        if self._tensors and is_same and block is not None:
            old_low, old_high = self._tensors[0]
            self._tensors = [(smallest([low, old_low]), largest_of([high, old_high]))]
            return
        if self._is_settled or not is_same:
            self._tensors, self._is_settled = [], False
            self._block = None if block is None else weakref.ref(block)
        if not self._tensors:
            self._before = before
        self._tensors.append((low, high))

    def use(self, low: float, high: float) -> None:
        """A user reads the numbers between these two; zero always counts."""
        self._read = _joined((min(low, 0.0), max(high, 0.0)), self._read)

    def settle(self, *, is_complete: bool) -> None:
        """Bring the range down to what was used; the users of an incomplete pass are forgotten."""
        if self.waits and is_complete:
            return
        read, self._read, self._is_settled = self._read, None, True
        if read is None or not is_complete:
            return
        used = self.join(read)
        if used == self.held:
            return
        self.held = used
        if not self._tensors or self.range.layer.is_shared:
            return
        # the range becomes what it would be, had the tensors of the pass or block been observed by this interval
        running, is_calibrating = self._before, self._block is not None
        for low, high in self._tensors:
            running = self.range.widened(running, magnitude_within(low, high, used), is_calibrating=is_calibrating)
        self.range.running.write(running)
        self.range.follow_running()

    @property
    def so_far(self) -> Interval | None:
        """What is used as far as this process knows, in this pass and before; None where it knows nothing."""
        known: Interval | None = self.range.known_use
        return known if self._read is None else _joined(self._read, known)

    def forget(self) -> None:
        """The users of this pass have been told."""
        self._read, self.waits = None, False

    def join(self, interval: Interval) -> Interval:
        """Use these numbers, too, from now on; checkpoints say so, unless everything was used from the first pass on."""
        known, stored = self.range.known_use, self.range.used
        used = _joined(interval, known)
        if used != known and stored is not None:
            end = math.inf if known is None and used == EVERYTHING else _OPEN
            stored.write((max(used[0], -end), min(used[1], end)))
        self.decide_sign()
        return used

    def are_unsigned(
        self, call: OpCall, bits: int, *, never_negative: bool = False, seen: Tensor | None = None
    ) -> bool:
        """Whether a pass stores the tensor as 0 … 255, in a model that has such tensors.

        So it is where an op can write it, and it is never negative, or its readers take no negative number for another one than 0.
        Of what comes from outside all that was `seen` decides. What passes that observe the range have found is kept.
        """
        is_observed = self.range.observes(call.now)
        if seen is not None and is_observed:
            is_open = self.range.running.read() <= ZEROS or self._is_never_negative or self.is_unsigned(bits)
            # processes that train together see other data each, so there it stays as it is
            never_negative = self.is_unsigned(bits) if call.now.is_shared else is_open and bool((seen >= 0).all())
        if self.unsigned is None and is_observed:
            self.add_unsigned()
        if is_observed and not self.range.holds(call.now):
            self._can_be_unsigned = bits == _BYTE and call.op.has_attribute("o_unsigned")
            self._is_never_negative = never_negative
            self.decide_sign()
        return self.is_unsigned(bits)

    def is_unsigned(self, bits: int) -> bool:
        """Whether it was found that a tensor of this width is stored as 0 … 255."""
        return self.unsigned is not None and bits == _BYTE and bool(self.unsigned.read())

    def add_unsigned(self, *, is_unsigned: bool = False) -> None:
        """Add the buffer that says so."""
        running, name = self.range.running, f"unsigned_{self.range.name}"
        self.unsigned = Stored(self.range.layer, name, running.buffer.device, of=running.key, is_optional=True)
        if is_unsigned:
            self.unsigned.write(1.0)

    def decide_sign(self) -> None:
        """Let the tensor be unsigned where it can, as far as its users are known."""
        if self.unsigned is None:
            return
        known = self.range.known_use
        is_read_so = self._is_never_negative or (known is not None and known[0] >= 0.0)
        if (self._can_be_unsigned and is_read_so) != bool(self.unsigned.read()):
            self.unsigned.write(float(self._can_be_unsigned and is_read_so))
            self.range.change_room()

    def set(self, used: Interval | None) -> None:
        """Use these numbers, whatever was known before."""
        if self.range.used is not None:
            self.range.used.write((math.inf, math.inf))
        if used is not None:
            self.join(used)


def _joined(one: Interval, other: Interval | None) -> Interval:
    """The interval that holds both."""
    return one if other is None else (min(one[0], other[0]), max(one[1], other[1]))


# modules and functions that run again in the backward pass
_KEPT_CALLS = 32
"""Calls of one module that are remembered: as many may lie between a forward pass and its backward pass."""

_KEPT_FUNCTIONS = 2048  # the same for functions of all modules together
_Inputs = list[tuple[tuple[int, ...], Tensor]]
"""Shape and sum of each tensor; equal tensors have equal sums, since both are added in the same order."""


@dataclass(frozen=True)
class _Statistics:
    """What one module has learned from its inputs so far."""

    holder: nn.Module
    buffers: dict[str, Tensor | None]
    input_range: str | None
    known: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, holder: nn.Module) -> _Statistics:
        """The tensors themselves, not copies."""
        known = holder.known_values() if isinstance(holder, RangeHolder) else {}
        return cls(holder, dict(holder._buffers), getattr(holder, "input_range", None), known)  # noqa: SLF001 - by name, with None

    def copied(self) -> _Statistics:
        """The same with copies of the tensors."""
        return replace(self, buffers={n: None if b is None else b.clone() for n, b in self.buffers.items()})

    def emptied(self) -> _Statistics:
        """The same before the first call."""
        stored = self.holder.stored if isinstance(self.holder, RangeHolder) else {}
        absent = {key: each.absent for key, each in stored.items()}
        empty = {n: None if b is None else torch.full_like(b, absent.get(n, 0.0)) for n, b in self.buffers.items()}
        return _Statistics(self.holder, empty, "")

    def install(self) -> None:
        """Put these tensors in the place of the buffers; none is written, as gradients may need its content."""
        if isinstance(self.holder, RangeHolder):
            self.holder.input_range = self.input_range or ""
            self.holder.put_buffers(self.buffers, self.known)
        else:
            self.holder._buffers.update(self.buffers)  # noqa: SLF001 - setattr would ask for a registration again


@dataclass(frozen=True)
class _Call:
    """One call of a module, or of a function in a module: its inputs, the statistics before it, whether functions stayed float."""

    inputs: _Inputs
    state: list[_Statistics]
    keeping: Keeping
    place: Frame
    function: TorchFunction | None = None

    @classmethod
    def of(cls, frame: Frame, args: tuple[Any, ...], function: TorchFunction | None = None) -> _Call:
        """The call that begins in a frame."""
        state = [_Statistics.of(holder).copied() for holder in _holders(frame.module)]
        place = Frame(frame.path, frame.module, Counter(frame.indices))
        return cls(_described(args), state, frame.keeping, place, function)

    def is_for(self, inputs: _Inputs) -> bool:
        """Whether the inputs are the same."""
        if [shape for shape, _ in inputs] != [shape for shape, _ in self.inputs]:
            return False
        return all(torch.equal(a, b) for (_, a), (_, b) in zip(inputs, self.inputs, strict=True))


class Recomputation:
    """Keeps the calls that torch's checkpointing may repeat. The hooks of every module report them."""

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[nn.Module, deque[_Call]] = WeakKeyDictionary()
        self._functions: deque[_Call] = deque(maxlen=_KEPT_FUNCTIONS)
        self._set_aside: dict[nn.Module, list[_Statistics]] = {}

    def __reduce__(self) -> Any:
        """A copy of a model remembers no calls."""
        return Recomputation, ()

    def enter(self, frame: Frame, args: tuple[Any, ...]) -> None:
        """A module in training begins: remember the statistics, or bring those of the first run back."""
        module = frame.module
        if not is_in_backward():
            self._calls.setdefault(module, deque(maxlen=_KEPT_CALLS)).append(_Call.of(frame, args))
        elif calls := self._calls.get(module):  # else a hook of the user runs the model in the backward pass
            scope = scope_of(module)
            first = _first_run(calls, args, (scope.path if scope else "") or type(module).__name__)
            frame.keeping = first.keeping  # the modules around it are not at work now
            self._set_aside[module] = _bring_back(first)

    def leave(self, module: nn.Module) -> None:
        """A repeated call ends, normally or by an exception: what the first run learned stays."""
        _install(self._set_aside.pop(module, []))

    def remember(self, function: TorchFunction, args: tuple[Any, ...], frame: Frame) -> None:
        """Note a function of a module at work."""
        self._functions.append(_Call.of(frame, args, function))

    def kept_float(self, function: TorchFunction, args: tuple[Any, ...]) -> bool:
        """Whether the first run of a function was in a module that is kept float."""
        calls = [call for call in self._functions if call.function is function and call.keeping.reason]
        inputs = _described(args) if calls else []
        return any(call.is_for(inputs) for call in calls)

    @contextmanager
    def place_of(self, function: TorchFunction, args: tuple[Any, ...], runtime: Runtime) -> Iterator[None]:
        """Run a function again in the frame, and with the statistics, of its first run."""
        name = getattr(function, "__name__", str(function))
        calls = [call for call in self._functions if call.function is function]
        first = _first_run(calls, args, f"{name}, outside any module,")
        set_aside = _bring_back(first)
        runtime.frames.append(replace(first.place, indices=Counter(first.place.indices), keeping=first.keeping))
        try:
            yield
        finally:
            runtime.frames.pop()
            _install(set_aside)

    @property
    def is_awaited(self) -> bool:
        """Whether something ran in a way that a checkpoint may repeat."""
        return bool(self._calls) or bool(self._functions)


def is_repeating(runtime: Runtime) -> bool:
    """Whether a checkpoint of this model may be at work; a function's own backward computes without gradients."""
    return is_in_backward() and torch.is_grad_enabled() and runtime.recomputation.is_awaited


def _first_run(calls: Iterable[_Call], args: tuple[Any, ...], what: str) -> _Call:
    """The latest call that had the same inputs; an `UnsupportedError` where there was none."""
    inputs = _described(args)
    first = next((call for call in reversed(list(calls)) if call.is_for(inputs)), None)
    if first is None:
        raise UnsupportedError(
            f"{what}: a checkpoint runs it again in the backward pass, with an input it has not had before, so the scales of the "
            "first run are not known. Let the function compute the same both times (preserve_rng_state=True), or leave the "
            "checkpoint out."
        )
    return first


def _described(args: Any) -> _Inputs:
    with torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - no computation of the model: none is noted
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        contents = [x.moved_content if isinstance(x, QTensor) else x for x in tensors]
        return [(tuple(x.shape), x.sum(dtype=None if x.is_complex() else torch.float64)) for x in contents]


def _holders(module: nn.Module) -> Iterator[nn.Module]:
    """Modules whose statistics change in a call of this one: itself, and parts that are not called as modules."""
    if isinstance(module, RangeHolder):
        yield from module.modules()
        return
    yield module
    yield from (child for child in module.children() if scope_of(child) is None)


def _bring_back(call: _Call) -> list[_Statistics]:
    """Give a module the statistics of an earlier call; returns those it had. Ranges made since then begin with zeros."""
    present = [_Statistics.of(holder) for holder in _holders(call.place.module)]
    before = {statistics.holder: statistics.copied() for statistics in call.state}
    _install([before.get(p.holder) or p.emptied() for p in present])
    return present


def _install(state: list[_Statistics]) -> None:
    for statistics in state:
        statistics.install()
