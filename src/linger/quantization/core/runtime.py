# SPDX-License-Identifier: Apache-2.0
"""What a quantised model knows while it runs: which module is at work, how calls are named, who is watching.

One `Runtime` belongs to one model (it is made by `init`) and is reached from its layers and from the tensors they
make. Nothing here is global.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from linger.constraint.marks import QUANTIZATION
from linger.dialect import Op, find_op
from linger.quantization.core.calibrate import current_calibration
from linger.quantization.core.compilation import not_traced, pause, resume
from linger.quantization.core.packing import Unpacked
from linger.quantization.core.precision import put_autocast_aside, take_autocast_up
from linger.quantization.core.qtensor import unwrap
from linger.settings import Switches

if TYPE_CHECKING:
    from linger.quantization.core.frozen import Frozen
    from linger.quantization.core.product_policy import ProductPolicy
    from linger.quantization.core.qtensor import QTensor

RUN_FIRST = "torch.export needs the scales and integer weights of a pass before it. Run model.eval() once under torch.no_grad() first."
"""What to do when a trace, which sees no values, asks for one that no earlier pass has left."""


@dataclass
class Frame:
    """One module call in progress."""

    path: str
    module: nn.Module
    indices: Counter[str] = field(default_factory=Counter)
    autocast: tuple[str, ...] = ()
    compiler: Any = None

    def next_index(self, counter: str) -> int:
        """0, 1, 2 … for the functional ops of this call that are numbered together."""
        self.indices[counter] += 1
        return self.indices[counter] - 1


@dataclass(frozen=True)
class OpRecord:
    """One op of the last forward pass, for the coverage report; `macs` are its multiply-accumulates."""

    where: str
    op: str
    is_integer: bool
    reason: str = ""
    macs: int = 0


class Emitter(Protocol):
    """Writes dialect nodes instead of simulating them (implemented by the exporter)."""

    def call(self, op: Op, tensors: Sequence[Any], attributes: Mapping[str, Any], name: str) -> Tensor:
        """Emit one node; tensors and result hold integers. A tuple is an int64 constant."""

    def call_many(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        attributes: Mapping[str, Any],
        name: str,
        parameters: Mapping[str, str],
    ) -> tuple[Tensor, ...]:
        """Emit one node of an op with several outputs; `parameters` names the initializers of its inputs."""


class Announcer(Protocol):
    """Lets a trace follow quantised tensors into functions that it records as one node (implemented by the exporter)."""

    def announce(self, wrapper: QTensor, content: Tensor, scale: float | None) -> None:
        """A quantised tensor was made, or has got other content."""

    def real(self, wrapper: QTensor) -> Tensor:
        """Its real values, as the trace knows them here."""

    def integers(self, wrapper: QTensor) -> Tensor:
        """Its integers, as the trace knows them here."""


Recorder = Callable[[str, Tensor], None]
"""Receives the name and the integers of every tensor the simulation computes."""

Observer = Callable[[str, Op, "Sequence[Tensor | Frozen]", Mapping[str, Any], "QTensor"], None]
"""Receives every op that the simulation computes: name, op, operands (a layer's parameters as `Frozen`), attributes, result."""


class _Pass(threading.local):
    """One thread's forward pass: threads may share a model."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.records: list[OpRecord] = []
        self.names: Counter[str] = Counter()
        self.watch: Any = None
        self.edge: Any = None
        self.derived: dict[int, weakref.ref[Tensor]] = {}
        self.state_memory: dict[int, Any] | None = None


_FRESH: dict[str, Any] = {"observers": [], "parameters": {}, "constants": {}, "facts": {}}
"""What a copy of a model begins with."""


@dataclass
class Runtime:
    """State of one model's forward passes; `target` is the chip whose arithmetic it simulates."""

    target: str | None = None
    switches: Switches = field(default_factory=Switches)
    emitter: Emitter | None = None
    recorder: Recorder | None = None
    observers: list[Observer] = field(default_factory=list)
    ops: list[OpRecord] = field(default_factory=list)
    layers: list[Any] = field(default_factory=list)
    products: ProductPolicy | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    """Why modules stay float, by their path."""
    parameters: dict[str, tuple[float, Frozen]] = field(default_factory=dict)
    constants: dict[str, tuple[float, Tensor]] = field(default_factory=dict)
    facts: dict[str, bool] = field(default_factory=dict)
    make_edge: Callable[[Runtime], Any] | None = None
    is_thorough: bool = False
    has_open_sizes: bool = False
    """Whether a file is written, or proven, that leaves sizes of pictures open: what depends on one is computed from it."""
    make_watch: Callable[[Runtime], Any] | None = None
    is_watched: bool = False
    is_unpacking: bool = False
    """Whether exports keep packed sequences padded: there are quantised recurrent layers, and no float ones."""
    announcer: Announcer | None = None
    recomputation: Any = None
    """Remembers what a checkpoint may ask for again (`linger.quantization.core.recomputation`)."""
    _pass: _Pass = field(default_factory=_Pass)

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model is not observed, and not at work."""
        return {k: v for k, v in self.__dict__.items() if k != "_pass"} | _FRESH

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pass = _Pass()

    @property
    def frames(self) -> list[Frame]:
        """The module calls in progress in this thread, the outermost first."""
        return self._pass.frames

    @property
    def current(self) -> _Pass:
        """This thread's pass."""
        return self._pass

    def enter(self, path: str, module: nn.Module) -> None:
        """A module's forward begins; the outermost one starts a new pass."""
        if not path:
            self.abandon()  # the root never runs inside itself: an interrupted pass is still here
        if not self.frames:
            calibration = current_calibration()
            if calibration is not None:
                calibration.passes += 1
            self._pass.records = []
            self._pass.names.clear()
            self._pass.state_memory = None
            self._pass.derived.clear()
            if self.make_edge is not None:
                self._pass.edge = self.make_edge(self)
                self._pass.edge.__enter__()
            if self.make_watch is not None and calibration is not None:
                self._pass.watch = self.make_watch(self)
            elif self.emitter is not None and self.is_unpacking:
                self._pass.watch = Unpacked()
            if self._pass.watch is not None:
                self._pass.watch.__enter__()
        self.frames.append(Frame(path, module, autocast=put_autocast_aside()))

    def leave(self, module: nn.Module) -> None:
        """A module's forward ends, normally or by an exception."""
        while self.frames and self._pop().module is not module:
            pass
        if not self.frames:
            self._finish()

    def _pop(self) -> Frame:
        frame = self.frames.pop()
        take_autocast_up(frame.autocast)
        return frame

    def _finish(self) -> None:
        """A pass is over. What a watched pass saw is complete, so a later, unwatched one does not replace it."""
        is_watching = self._pass.watch is not None and not isinstance(self._pass.watch, Unpacked)
        self._stop_modes()
        if is_watching:
            self.is_watched = True
        if is_watching or not self.is_watched:
            self.ops = self._pass.records

    def _stop_modes(self) -> None:
        for mode in (self._pass.watch, self._pass.edge):  # the one that began last ends first
            if mode is not None:
                mode.__exit__(None, None, None)
        self._pass.watch = self._pass.edge = None

    def abandon(self) -> None:
        """Forget a pass that did not end."""
        while self.frames:
            self._pop()
        self._stop_modes()

    @property
    def is_watching(self) -> bool:
        """Whether this pass sees every function, so that it knows what is computed from parameters alone."""
        return self._pass.watch is not None

    @property
    def frame(self) -> Frame | None:
        """The innermost module at work; None outside the model."""
        return self.frames[-1] if self.frames else None

    @property
    def path(self) -> str:
        """Path of the innermost module at work."""
        return self.frames[-1].path if self.frames else ""

    def unique_name(self, path: str, op_name: str) -> str:
        """`path.Op`, with a number from the second call in this pass on: the same in every pass of one model."""
        stem = f"{path}.{op_name}" if path else op_name
        count = self._pass.names[stem]
        self._pass.names[stem] += 1
        return stem if count == 0 else f"{stem}_{count}"

    @property
    def is_recorded(self) -> bool:
        """Whether somebody looks at every op: then each one runs on its own, as in the file."""
        return self.recorder is not None or bool(self.observers)

    def record(
        self,
        name: str,
        x: QTensor,
        op: Op,
        operands: Sequence[Tensor | Frozen],
        attributes: Mapping[str, Any],
    ) -> None:
        """Show a computed tensor, and what it was computed from, to whoever records."""
        if self.recorder is not None:
            self.recorder(name, x.integers())
        for observer in self.observers:
            observer(name, op, operands, attributes, x)

    def emit(self, op: Op, tensors: Sequence[Any], attributes: Mapping[str, Any], name: str) -> Tensor:
        """Write one node of the file being exported."""
        assert self.emitter is not None  # callers ask first
        return self.emitter.call(op, tensors, attributes, name)

    def dequantize(self, x: QTensor) -> Tensor:
        """The real values of integers in an export: one Dequant node."""
        return self.emit(find_op("Dequant"), [x.content], {"scale_o": x.scale}, self.unique_name(self.path, "Dequant"))

    def note(self, record: OpRecord) -> None:
        """Remember an op of this pass."""
        if self.frames:
            self._pass.records.append(record)

    def note_float(self, op_name: str, reason: str, macs: int = 0) -> None:
        """Remember an op of this pass that stays float."""
        choices = [QUANTIZATION.of(frame.module) for frame in self.frames]
        is_disabled = any(choice is not None and choice.is_disabled for choice in choices)
        reason = "kept float by linger.disable_quant" if is_disabled else self.reasons.get(self.path, reason)
        self.note(OpRecord(self.path, op_name, is_integer=False, reason=reason, macs=macs))


_SCOPE = "_linger_scope"


class Scope:
    """The hooks of one module: they tell the runtime when its forward begins and ends."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self.runtime, self.path = runtime, path

    @not_traced
    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - a hook's signature
        """Forward pre-hook."""
        before = pause()
        self.runtime.enter(self.path, module)
        self.runtime.frames[-1].compiler = before

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        """Forward hook, called after an exception too. A program of torch.export returns ordinary tensors."""
        before = next((f.compiler for f in reversed(self.runtime.frames) if f.module is module), None)
        self.runtime.leave(module)
        resume(before)
        return unwrap(output) if is_exporting() and not self.runtime.frames else None


def attach_scope(runtime: Runtime, path: str, module: nn.Module) -> Scope:
    """A scope that the module knows."""
    scope = module.__dict__[_SCOPE] = Scope(runtime, path)
    return scope


def scope_of(module: nn.Module) -> Scope | None:
    """The scope of a module of a quantised model; None for any other."""
    found: Scope | None = module.__dict__.get(_SCOPE)
    return found


def is_exporting() -> bool:
    """Whether torch.export is tracing: tensors have no values then."""
    return torch.compiler.is_exporting()
