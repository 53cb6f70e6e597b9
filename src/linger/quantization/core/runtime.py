# SPDX-License-Identifier: Apache-2.0
"""The state of a quantized model during a forward pass: what kind of pass it is, the running module, the names of ops.

One `Runtime` belongs to one model (it is made by `init`) and is reached from its layers and from the tensors they
make. Nothing here is global. Where a pass begins, its `Pass` is chosen once, and every op and range is handed it.

Around every module torch.autocast is off, because integers are carried in float32 and float64 and must not be rounded to
16 bits; and torch.compile pauses, because a compiler that traced the model would break its graph at every range, name and
mode, and gain nothing.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C._dynamo import eval_frame
from torch.compiler import is_exporting
from torch.utils._pytree import tree_leaves, tree_map

from linger.constraint.limits import QUANTIZATION, Widths
from linger.dialect import Op
from linger.errors import UsageError
from linger.quantization.core.distributed.fsdp import check_shards
from linger.quantization.core.observation import CALIBRATION, Calibration
from linger.settings import Switches

RUN_FIRST = "torch.export needs the scales and integer weights of a pass before it. Run model.eval() once under torch.no_grad() first."
"""The advice where a trace, which sees no values, needs one that no earlier pass has kept."""


_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
_NOT_COMPILED = (
    "a model quantized by linger runs as it is inside torch.compile, with the same integers. Leave fullgraph=True out, or "
    "compile what stands before and after the model"
)
_F = TypeVar("_F", bound=Callable[..., Any])


# what torch does around a pass
def put_autocast_aside() -> tuple[str, ...]:
    """Switch autocast off; returns the devices for which it was on."""
    # one question instead of four, but it leaves mps out
    if not torch._C._is_any_autocast_enabled() and not torch.is_autocast_enabled("mps"):  # noqa: SLF001 - as torch.compile asks
        return ()
    devices = tuple([device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)])
    for device in devices:
        torch.set_autocast_enabled(device, False)  # noqa: FBT003 - torch takes it by position only
    return devices


def take_autocast_up(devices: tuple[str, ...]) -> None:
    """Switch autocast on again for these devices."""
    for device in devices:
        torch.set_autocast_enabled(device, True)  # noqa: FBT003 - as above


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch autocast off inside the block."""
    devices = put_autocast_aside()
    try:
        yield
    finally:
        take_autocast_up(devices)


def not_traced(function: _F) -> _F:
    """Mark a function as one that torch's compiler calls instead of looking into it (`torch.compiler.disable` loads it)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - the marks that it sets
    function._torchdynamo_disable_msg = _NOT_COMPILED  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def no_script(name: str) -> str:
    """The message for TorchScript, which keeps what depends on values and counts as constants."""
    text = "a quantized model is no TorchScript, which would keep its scales and integers as they are in one pass. Write a file"
    return f"{name}: {text} with linger.onnx.export(model, (x,), path), or a program with torch.export.export(model, (x,))."


def is_in_backward() -> bool:
    """Whether torch computes gradients in this thread: a forward pass now is a second one."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - torch's checkpoint asks so too


def may_be_repeated() -> bool:
    """Whether a checkpoint may be at work: it runs its function without gradients, or keeps what gradients need."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001 - torch has no public question
    return not torch.is_grad_enabled() or hooks(True) is not None  # noqa: FBT003 - its signature


def is_in_group() -> bool:
    """Whether this process belongs to a group of torch.distributed. A group of one follows the same rules as any other."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


@dataclass(frozen=True, slots=True)
class Pass:
    """What kind of forward pass is at work: chosen once, where it begins, and handed down.

    Attributes:
        calibration: The calibration block around it.
        is_repeated: Whether a checkpoint runs it again in the backward pass, so that it changes nothing.
        is_exporting: Whether torch.export follows it.
        is_traced: Whether a file or a program of torch.export is being written, so that no value may be looked at.
        is_real: Whether it computes what the float model does: no operand, weight or result is rounded. So it is while ranges are
            calibrated, which then depend on no scale, in a warm-up, and in what `real_copy` made.
        has_float_limits: Whether parameters reach their limits, as in the float model; integers of few bits end a step before.
        is_shared: Whether what it sees in training changes nothing until all processes of a group have exchanged it (`exchange`).
    """

    calibration: Calibration | None
    is_repeated: bool
    is_exporting: bool
    is_traced: bool
    is_real: bool
    has_float_limits: bool
    is_shared: bool

    @classmethod
    def here(cls, *, is_written: bool = False, is_float: bool = False) -> Pass:
        """The pass that would begin here; that of code outside any model."""
        block, traced = CALIBRATION.get(), is_exporting()
        is_real = (is_float or block is not None) and not is_written
        shared = block is None and is_in_group()
        return cls(block, is_in_backward(), traced, is_written or traced, is_real, is_float, shared)


_RUNTIME = "_linger_runtime"
_SCOPE = "_linger_scope"

TorchFunction = Callable[..., Any]
"""A function of torch, or a method of its tensors."""


class Keeping(NamedTuple):
    """What `init` was asked about a module.

    Attributes:
        reason: Why functions of its forward stay float; empty where they may become integers.
        is_whole: Whether functions of the modules that it calls stay float, too.
    """

    reason: str = ""
    is_whole: bool = False


NOT_KEPT = Keeping()


@dataclass(slots=True)
class Frame:
    """One module call in progress, and what was switched off around it.

    `keeping` is decided when the module is entered, so that a function only has to look at it.
    """

    path: str
    module: nn.Module
    indices: dict[str, int] = field(default_factory=partial(defaultdict, int))
    autocast: tuple[str, ...] = ()
    compiler: Any = None
    keeping: Keeping = NOT_KEPT
    now: Pass | None = None

    def next_index(self, counter: str) -> int:
        """0, 1, 2 … for the functional ops of this call that are numbered together."""
        self.indices[counter] += 1
        return self.indices[counter] - 1


class OpRecord(NamedTuple):
    """One op of the last forward pass, for the coverage report; `macs` are its multiply-accumulates.

    `judged` gives the reason where it depends on scales that were not known in the pass. A tuple, because every op of every
    pass makes one.
    """

    where: str
    op: str
    is_integer: bool
    reason: str = ""
    macs: int = 0
    judged: Callable[[], str] | None = None


@dataclass(frozen=True)
class ProductPolicy:
    """Where a call of F.linear or F.conv2d in a user's own forward becomes an integer layer.

    Attributes:
        ops: Names of the ops that `init` was asked for.
        float_paths: Modules that stay float.
        widths: Bits of input, parameters and output, unless a module is marked with its own.
    """

    ops: frozenset[str]
    float_paths: frozenset[str]
    widths: Widths

    def allows(self, op_name: str, frame: Frame) -> bool:
        """Whether this op may be computed as integers in the module at work."""
        return op_name in self.ops and frame.path not in self.float_paths and not frame.keeping.reason

    def widths_in(self, module: nn.Module) -> Widths:
        """The module's own widths, if `quant_module` gave it some."""
        choice = QUANTIZATION.of(module)
        return self.widths if choice is None or choice.widths is None else choice.widths


Operands = Sequence[Any]
"""What an op was computed from: tensors; a layer's parameters are one `Frozen`."""

Observer = Callable[[str, Op, Operands, Mapping[str, Any], Any], None]
"""Receives every op that the simulation computes: name, op, operands, attributes, result (a QTensor)."""


class _Thread(threading.local):
    """One thread's forward pass: threads may share a model."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.records: list[OpRecord] = []
        self.names: Counter[str] = Counter()
        self.watched: list[Any] = []  # the users of ranges (`ReadInterval`)
        # sees every function, and what is computed from parameters alone
        self.watch: AbstractContextManager[Any] | None = None
        self.sees_all = False
        self.edge: AbstractContextManager[Any] | None = None
        self.derived: dict[int, weakref.ref[Tensor]] = {}
        self.state_memory: dict[int, Any] | None = None


@dataclass
class Runtime:
    """State of one model's forward passes.

    Attributes:
        dispatch: Runs the torch functions that meet this model's tensors.
        target: The chip whose arithmetic is simulated.
        is_per_channel: Whether weights have one scale for each output channel.
        is_unsigned: Whether 8-bit activations that are never negative use 0 … 255.
        methods: Methods of calibration by the kind of range, where `calibration()` is called without one.
        scales: How scales are to be found in training, as the model's configuration says.
        emitter: Writes dialect nodes instead of simulating them (`linger.onnx.exporter.emission`); None outside an export.
        recorder: Receives the name and the integers of every tensor that the simulation computes.
        announcer: Lets a trace follow quantized tensors into functions that it records as one node (implemented by the exporter).
        reasons: Why modules stay float, by their path.
        asked: By path, modules to stay float with the functions of their forward, and those to be quantized wherever called.
        last_pass: What the last pass with values has found under the names of its ops; `recall` gives it to a trace.
        has_open_sizes: Whether a file that leaves sizes of images open is written or proven: what depends on one is computed.
        make_unpacking: Makes the mode that keeps packed sequences padded in exports, where all recurrent layers are quantized.
        make_function: Makes the child of a module that holds the range of a function, by the child's name.
        recomputation: Remembers what a checkpoint may ask for again (`linger.quantization.core.recomputation`).
        exchange: Tells other processes what a pass has seen (`linger.quantization.core.distributed.exchange`); a layer alone has none.
        stays_real: Whether every pass computes in real numbers, as `real_copy` asks; `trains_real`: those in training mode.
        holds_ranges: Whether ranges that are known stay as they are in training.
        schedule: What changes the model while it trains (`linger.tuning.schedule`); None where nothing does.
        current: This thread's part of it.
        keeps_float_operands: Whether functions of a float and a quantized tensor stay float, as in an older linger.
    """

    dispatch: Callable[[Runtime, TorchFunction, tuple[Any, ...], dict[str, Any]], Any]
    target: str | None = None
    is_per_channel: bool = False
    is_unsigned: bool = False
    switches: Switches = field(default_factory=Switches)
    methods: Mapping[str, str] = field(default_factory=dict)
    scales: str = "running"
    emitter: Any = None
    recorder: Callable[[str, Tensor], None] | None = None
    observers: list[Observer] = field(default_factory=list)
    ops: list[OpRecord] = field(default_factory=list)
    layers: list[Any] = field(default_factory=list)
    products: ProductPolicy | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Keeping] = field(default_factory=dict)
    last_pass: dict[str, Any] = field(default_factory=dict)
    make_edge: Callable[[Runtime], AbstractContextManager[Any]] | None = None
    is_thorough: bool = False
    has_open_sizes: bool = False
    make_watch: Callable[[Runtime], AbstractContextManager[Any]] | None = None
    is_watched: bool = False
    make_unpacking: Callable[[], AbstractContextManager[Any]] | None = None
    announcer: Any = None
    make_function: Callable[[nn.Module, str], nn.Module] | None = None
    recomputation: Any = None
    exchange: Any = None
    stays_real: bool = False
    trains_real: bool = False
    holds_ranges: bool = False
    schedule: Any = None
    keeps_float_operands: bool = False
    current: _Thread = field(default_factory=_Thread)

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model has no observers and no pass in progress."""
        fresh: dict[str, Any] = {"observers": [], "last_pass": {}, "schedule": None}
        return {k: v for k, v in self.__dict__.items() if k != "current"} | fresh

    def __setstate__(self, state: dict[str, Any]) -> None:
        older = {"methods": {}, "asked": {}, "keeps_float_operands": True}  # a file of an older linger has none
        self.__dict__.update(older | state)
        self.current = _Thread()

    # the pass
    @property
    def frames(self) -> list[Frame]:
        """The module calls in progress in this thread, the outermost first."""
        return self.current.frames

    @property
    def frame(self) -> Frame | None:
        """The innermost module at work; None outside the model."""
        frames = self.current.frames
        return frames[-1] if frames else None

    @property
    def path(self) -> str:
        """Path of the innermost module at work."""
        frames = self.current.frames
        return frames[-1].path if frames else ""

    @property
    def now(self) -> Pass:
        """The pass at work; outside the model the one that would begin."""
        frames = self.current.frames
        now = frames[-1].now if frames else None
        return self._chosen_pass(frames[0].module if frames else None) if now is None else now

    def _chosen_pass(self, root: nn.Module | None) -> Pass:
        """What kind of pass begins with a module."""
        is_float = self.stays_real or (self.trains_real and root is not None and root.training)
        return Pass.here(is_written=self.emitter is not None, is_float=is_float)

    def enter(self, path: str, module: nn.Module) -> Frame:
        """A module's forward begins; the outermost one starts a new pass."""
        current = self.current
        if not path and current.frames:
            self.abandon()  # the root never runs inside itself: an interrupted pass is still here
        if not current.frames:
            now = self._chosen_pass(module)
            self._start(current, module, path, now)
        else:
            now = current.frames[-1].now or self.now  # the property costs a call, and every module asks
            # a gradient inside a forward pass, or an interrupted one
            if now.is_repeated != is_in_backward() or now.calibration is not CALIBRATION.get():
                now = self._chosen_pass(current.frames[0].module)
        is_cast = torch._C._is_any_autocast_enabled() or torch.is_autocast_enabled("mps")  # noqa: SLF001 - as torch.compile asks
        autocast = put_autocast_aside() if is_cast else ()
        frame = Frame(path, module, autocast=autocast, keeping=self._keeping_of(path), now=now)
        current.frames.append(frame)
        return frame

    def _keeping_of(self, path: str) -> Keeping:
        """What was asked about a module that begins, or about one around it."""
        frames, own = self.current.frames, self.asked.get(path)
        if frames and frames[-1].keeping.is_whole and (own is None or own.reason):
            return frames[-1].keeping
        return NOT_KEPT if own is None else own

    def _start(self, current: _Thread, module: nn.Module, path: str, now: Pass) -> None:
        # of the root alone: another model that is being exported may hold a layer of this one
        if not path and torch._C._is_tracing() and not now.is_traced:  # noqa: SLF001 - torch.jit hides it from mypy
            raise UsageError(no_script("torch.jit.trace"))
        if not path and is_in_group():
            check_shards(module)
        calibration = now.calibration
        if calibration is not None:
            calibration.passes += 1
            calibration.begin(module)
            self.keeps_float_operands = False
        current.records, current.state_memory = [], None
        for noted in (current.names, current.watched, current.derived):
            noted.clear()
        if self.make_edge is not None:
            current.edge = self.make_edge(self)
            current.edge.__enter__()
        if self.make_watch is not None and calibration is not None:
            current.watch, current.sees_all = self.make_watch(self), True
        elif self.emitter is not None and self.make_unpacking is not None:
            current.watch = self.make_unpacking()
        if current.watch is not None:
            current.watch.__enter__()

    def leave(self, module: nn.Module) -> Frame | None:
        """A module's forward ends, normally or by an exception; returns its frame, if it had one."""
        frames, own = self.current.frames, None
        while frames and own is None:
            frame = frames.pop()
            if frame.autocast:
                take_autocast_up(frame.autocast)
            own = frame if frame.module is module else None
        if not frames:
            # the ops of a watched pass are complete, so those of a later, unwatched one do not replace them
            sees_all = self.current.sees_all
            self._stop_modes()
            self.is_watched = self.is_watched or sees_all
            if sees_all or not self.is_watched:
                self.ops = self.current.records
        return own

    def _stop_modes(self) -> None:
        current = self.current
        for mode in (current.watch, current.edge):  # the one that began last ends first
            if mode is not None:
                mode.__exit__(None, None, None)
        current.watch = current.edge = None
        current.sees_all = False

    def abandon(self) -> None:
        """Forget a pass that did not end."""
        if self.current.frames and self.exchange is not None:
            self.exchange.abandon(self.current.frames[0].module)
        while self.current.frames:
            take_autocast_up(self.current.frames.pop().autocast)
        self.settle_ranges(is_complete=False)
        self._stop_modes()

    def settle_ranges(self, *, is_complete: bool) -> None:
        """Tell the watched ranges that the pass has ended."""
        watched, self.current.watched = self.current.watched, []
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - the arithmetic of ranges is no function of the model
            for each in watched:
                each.settle(is_complete=is_complete)

    # the ops of a pass
    def begin(self, op: Op, path: str, layer: nn.Module | None = None) -> OpCall:
        """Name an op of this pass and return its `OpCall`; `layer` holds the ranges that it may change."""
        now, is_written = self.now, self.emitter is not None
        observes = layer is not None and not is_written and (layer.training or now.calibration is not None)
        return OpCall(self, op, path, self.unique_name(path, op.name), now, is_written, observes)

    def unique_name(self, path: str, op_name: str) -> str:
        """`path.Op`, with a number from the second call in this pass on: the same in every pass of one model."""
        stem = f"{path}.{op_name}" if path else op_name
        names = self.current.names
        count = names[stem]
        names[stem] = count + 1
        return stem if count == 0 else f"{stem}_{count}"

    @property
    def is_recorded(self) -> bool:
        """Whether every op is recorded or observed: then each one runs on its own, as in the file."""
        return self.recorder is not None or bool(self.observers)

    def recall(self, name: str) -> Any:
        """What the pass before a trace has kept, as the trace sees no values; a `UsageError` where there was none."""
        if name not in self.last_pass:
            raise UsageError(RUN_FIRST)
        return self.last_pass[name]

    def record(self, name: str, x: Any, op: Op, operands: Operands, attributes: Mapping[str, Any]) -> None:
        """Give a computed tensor, and what it was computed from, to the recorder and the observers."""
        if self.recorder is not None:
            self.recorder(name, x.integers())
        for observer in self.observers:
            observer(name, op, operands, attributes, x)

    def emit(self, op: Op, tensors: Sequence[Any], attributes: Mapping[str, Any], name: str, **how: Any) -> Tensor:
        """Write one node of the file being exported; tensors hold integers, a tuple is an int64 constant."""
        return cast(Tensor, self.emitter.call(op, tensors, attributes, name, **how)[0])

    def note(self, record: OpRecord) -> None:
        """Remember an op of this pass."""
        if (current := self.current).frames:
            current.records.append(record)

    def note_float(self, op_name: str, reason: str, macs: int = 0) -> None:
        """Remember an op of this pass that stays float."""
        frame = self.frame
        asked = "" if frame is None else frame.keeping.reason
        reason = asked or self.reasons.get(self.path, reason)
        self.note(OpRecord(self.path, op_name, is_integer=False, reason=reason, macs=macs))


@dataclass(slots=True)
class OpCall:
    """One op at work: all that it needs of the pass it belongs to.

    Attributes:
        runtime: The model's.
        op: The op.
        path: The module, in which it is noted.
        name: Its name in the file and in recordings.
        now: The pass.
        is_written: Whether it becomes a node of a file instead of being simulated.
        is_learning: Whether it changes ranges on the way.
        judged: As of an `OpRecord`.
    """

    runtime: Runtime
    op: Op
    path: str
    name: str
    now: Pass
    is_written: bool
    is_learning: bool
    judged: Callable[[], str] | None = None

    def note(self, *, macs: int = 0, reason: str = "") -> None:
        """Remember it for the coverage report."""
        if (current := self.runtime.current).frames:
            current.records.append(OpRecord(self.path, self.op.name, True, reason, macs, self.judged))  # noqa: FBT003 - in order

    def emit(self, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> Tensor:
        """Write its node; returns the integers."""
        return self.runtime.emit(self.op, tensors, attributes, self.name)

    def record(self, result: Any, operands: Operands, attributes: Mapping[str, Any]) -> None:
        """Give its result to the recorder and the observers."""
        self.runtime.record(self.name, result, self.op, operands, attributes)


class Scope:
    """The hooks of one module: they tell the runtime when its forward begins and ends."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self.runtime, self.path = runtime, path

    @not_traced
    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook."""
        runtime = self.runtime
        # before torch's compiler was ever loaded there is nothing to pause
        compiler = eval_frame.set_eval_frame(None) if "torch._dynamo" in sys.modules else None
        frame = runtime.enter(self.path, module)
        frame.compiler = compiler
        if module.training and (is_in_backward() or may_be_repeated()):
            runtime.recomputation.enter(frame, args)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:  # noqa: ARG002 - a hook's signature
        """Forward hook, called after an exception too. A program of torch.export returns ordinary tensors."""
        runtime = self.runtime
        if is_in_backward():
            runtime.recomputation.leave(module)
        is_last = len(runtime.current.frames) == 1
        if is_last and runtime.current.watched:
            self._use_results(output)
        frame = runtime.leave(module)
        try:
            if is_last and runtime.exchange is not None and is_in_group():
                runtime.exchange.finish(runtime, module, is_complete=output is not None)
        finally:
            if frame is not None and frame.compiler is not None:
                eval_frame.set_eval_frame(frame.compiler)
        return tree_map(self._real, output) if is_exporting() and not runtime.frames else None

    def _use_results(self, output: Any) -> None:
        """Every number of a model's results counts. After an exception there are none, and some users were not reached."""
        for leaf in filter(self._is_own, tree_leaves(output)):
            leaf.use()
        self.runtime.settle_ranges(is_complete=output is not None)

    def _is_own(self, leaf: object) -> bool:
        return isinstance(leaf, Tensor) and getattr(leaf, "runtime", None) is self.runtime

    def _real(self, leaf: Any) -> object:
        return leaf.dequantize() if self._is_own(leaf) else leaf


def attach_scope(runtime: Runtime, path: str, module: nn.Module) -> Scope:
    """A scope that the module knows; the root of the model knows its runtime, too."""
    scope = module.__dict__[_SCOPE] = Scope(runtime, path)
    if not path:
        module.__dict__[_RUNTIME] = runtime
    return scope


def scope_of(module: nn.Module) -> Scope | None:
    """The scope of a module of a quantized model; None for any other."""
    return cast(Scope | None, module.__dict__.get(_SCOPE))


def runtime_of(model: nn.Module) -> Runtime | None:
    """The runtime of a quantized model; None for a float one, and for what is no model."""
    return cast(Runtime | None, getattr(model, "__dict__", {}).get(_RUNTIME))


def required_runtime(model: nn.Module, where: str) -> Runtime:
    """The runtime of a model that must be quantized, else a `UsageError` says so."""
    runtime = runtime_of(model)
    if runtime is None:
        raise UsageError(f"{where}: {type(model).__name__} is not quantized. Give the model that linger.init returned.")
    return runtime
