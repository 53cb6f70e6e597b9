# SPDX-License-Identifier: Apache-2.0
"""What the diagnoses of a model share: copies of it, its calls in order and with numbers, powers of signal and noise; and coverage.

`CallWatch` sees the calls of modules and the torch functions that their own forwards call. `SignalNoise` sums in float64 over any
number of batches. `coverage` lists which ops run as integers and which stayed float, with the reason and the share of the work.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linger.analysis.batches import Batch, Function, Keywords, fresh
from linger.constraint.conv_bn import ConvBN
from linger.dialect import Op
from linger.errors import UsageError
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Frame, OpRecord, runtime_of
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.records.table import Column, Result

Key = tuple[str, int]
"""A module's path and which of its calls in this pass, from 0."""

FunctionKey = tuple[str, int, str, int]
"""A module's path, which of its calls, a torch function, and which of its calls there, from 0."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments."""

FunctionHandler = Callable[[FunctionKey, partial[object], Arguments], object]
"""Runs a function that is bound to its arguments, and returns what it returns."""

_Module = TypeVar("_Module", bound=nn.Module)

_WHOLE = (ConvBN, QuantizedBase, nn.MultiheadAttention)
"""What is inside such a layer is part of it."""


@dataclass
class Call:
    """One call of a module.

    Attributes:
        key: Path and number.
        module: The module.
        args: Positional arguments as real values, copied before the module could change them.
        kwargs: Keyword arguments, likewise.
        source: The call that returned the first argument (the same object).
        has_inner: Whether the module called another one.
        functions: How often it has called each torch function itself.
    """

    key: Key
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    source: Key | None = None
    has_inner: bool = False
    functions: Counter[str] = field(default_factory=Counter)


class CallWatch:
    """Hooks on a model that call `finished(call, output)` at the end of every module's call.

    `functions` runs the torch functions that modules call in their own forwards.
    """

    def __init__(
        self, model: nn.Module, finished: Callable[[Call, object], None], functions: FunctionHandler | None = None
    ) -> None:
        self.modules = dict(_watched(model))
        self._paths = {module: path for path, module in self.modules.items()}
        self._finished = finished
        self._is_paused = False
        self.begin()
        self._mode = None if functions is None else _FunctionMode(self, functions)
        if self._mode is not None:
            # begins last and ends first: it sees a function before the modes of a quantized model do
            model.register_forward_pre_hook(self._mode.enter)
            model.register_forward_hook(self._mode.leave, prepend=True)
        for module in self.modules.values():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave, with_kwargs=True)

    def function_key(self, name: str) -> FunctionKey | None:
        """Number a function of the module at work; None where a layer computes, which is compared as a whole."""
        if self._is_paused or not self._running or isinstance(self._running[-1].module, _WHOLE):
            return None
        call = self._running[-1]
        call.functions[name] += 1
        return (*call.key, name, call.functions[name] - 1)

    def begin(self) -> None:
        """A new forward pass."""
        self._running: list[Call] = []
        self._counts: Counter[str] = Counter()
        self._returned: dict[int, tuple[weakref.ref[Tensor], Key]] = {}

    def end(self) -> None:
        """The pass has ended, normally or by an exception."""
        if self._mode is not None:
            self._mode.end()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside this block are not watched."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_paused:
            return
        path = self._paths[module]
        key = (path, self._counts[path])
        self._counts[path] += 1
        with self.paused():
            copied_args, copied_kwargs = unwrap(fresh((args, kwargs)))
        for outer in self._running:
            outer.has_inner = True
        self._running.append(Call(key, module, copied_args, copied_kwargs, self.origin(args[0] if args else None)))

    def _leave(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:  # noqa: ARG002 - a hook's signature
        if self._is_paused:
            return
        call = self._running.pop()
        if isinstance(output, Tensor) and self.origin(output) is None:  # else it was only handed on
            # the id of a tensor that is gone may be used again, so a weak reference says whether it is the same one
            self._returned[id(output)] = (weakref.ref(output), call.key)
        with self.paused():
            self._finished(call, output)

    def origin(self, tensor: object) -> Key | None:
        """The call that returned a tensor."""
        known = self._returned.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _watched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules by their first path. What is inside a fused, quantized or attention layer is part of that layer."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module not in inside:
            yield path, module
        if isinstance(module, _WHOLE):
            inside |= set(module.modules()) - {module}


class _FunctionMode(TorchFunctionMode):
    """Hands the functions of a model's own forwards to a handler, from its first to its last module's call."""

    def __init__(self, watch: CallWatch, handler: FunctionHandler) -> None:
        super().__init__()
        self._watch, self._handler, self._depth = watch, handler, 0

    def enter(self, *_: object) -> None:
        """A forward pre-hook of the model, which may call itself."""
        if self._depth == 0:
            self.__enter__()
        self._depth += 1

    def leave(self, *_: object) -> None:
        """A forward hook of the model."""
        self._depth -= 1
        if self._depth == 0:
            self.__exit__(None, None, None)

    def end(self) -> None:
        """An exception may have left no time for hooks."""
        if self._depth > 0:
            self._depth = 0
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        """Run a function, or let the handler run it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        key = None if name in ("__get__", "size", "dim") else self._watch.function_key(name)
        if key is None:
            return func(*args, **kwargs)
        return self._handler(key, partial(func, *args, **kwargs), (args, kwargs))


@dataclass
class SignalNoise:
    """Σ f² and Σ (f − q)²."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, reference: Tensor, other: Tensor) -> None:
        """Count one pair of tensors of the same shape."""
        f = as_real(reference)
        self.signal += inner_product(f, f)
        self.noise += squared_error(f, as_real(other))

    def add_all(self, references: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Count pairs of tensors.

        Raises:
            UsageError: There are not as many of one as of the other, or their shapes differ.
        """
        difference = mismatch(references, others)
        if difference is not None:
            raise UsageError(f"{difference}. Compare results of the same computation.")
        for reference, other in zip(references, others, strict=True):
            self.add(reference, other)

    @property
    def db(self) -> float:
        """10·log10(signal/noise)."""
        return decibels(self.signal, self.noise)


def decibels(signal: float, noise: float) -> float:
    """10·log10(signal/noise); ∞ without noise, −∞ for noise without a signal.

    >>> decibels(100.0, 1.0), decibels(0.0, 0.0), decibels(0.0, 1.0)
    (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def inner_product(first: Tensor, second: Tensor) -> float:
    """Σ f·q over what is finite in both flat float64 tensors."""
    total = float(torch.dot(first, second))
    if math.isfinite(total):
        return total
    is_finite = first.isfinite() & second.isfinite()
    return float(torch.dot(first[is_finite], second[is_finite]))


def squared_error(reference: Tensor, other: Tensor) -> float:
    """Σ (f − q)² of flat float64 tensors; NaN and infinity are no error where both have the same."""
    difference = reference - other
    total = float(torch.dot(difference, difference))
    if math.isfinite(total):
        return total
    is_same = (reference == other) | (reference.isnan() & other.isnan())
    difference = difference.masked_fill(is_same, 0.0)
    return float(torch.dot(difference, difference)) if bool(difference.isfinite().all()) else math.inf


def as_real(tensor: Tensor) -> Tensor:
    """The values, flat, in float64; a quantized tensor's are q/scale, a complex one's are both parts."""
    plain = tensor.dequantize() if isinstance(tensor, QTensor) else tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.detach().double().reshape(-1)


def mismatch(references: Sequence[Tensor], others: Sequence[Tensor]) -> str | None:
    """How two lists of tensors differ in number or shape; None if they do not."""
    first, second = ([tuple(t.shape) for t in tensors] for tensors in (references, others))
    return None if first == second else f"shapes {first} in the float model, {second} in the quantized one"


def range_of_function(op: Op, frame: Frame) -> str | None:
    """The path of the functional layer that keeps the range of an op that was just computed; None if it has none."""
    if op.state_name is None:
        return None
    child = f"{KEY_PREFIX}{op.state_name}_{frame.indices[op.name if op.has_own_counter else ''] - 1}"
    layer = frame.module._modules.get(child)  # noqa: SLF001 - getattr would hide an AttributeError of the module
    return f"{frame.path}.{child}".lstrip(".") if isinstance(layer, FunctionalLayer) else None


@contextmanager
def abandoned_on_error(model: nn.Module) -> Iterator[None]:
    """End the pass of a quantized model that an error or an interruption stopped: what watched it must not stay at work."""
    try:
        yield
    except BaseException:
        runtime = runtime_of(model)
        if runtime is not None:
            runtime.abandon()
        raise


def working_copy(model: nn.Module, who: str) -> nn.Module:
    """A copy in evaluation mode, with weights of its own.

    Every module gets a hook that does nothing: torch's fused transformer layers skip the layers inside them
    unless one of these has a hook, and a quantized model has.

    Raises:
        UsageError: The model holds something that cannot be copied.
    """
    try:
        duplicate = copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"{who}: a copy of {type(model).__name__} cannot be made ({type(error).__name__}: {error}). Remove what "
            "copy.deepcopy does not copy: open files, generators, tensors that carry a gradient graph."
        ) from error
    duplicate.eval()
    for module in duplicate.modules():
        module.register_forward_pre_hook(lambda *_: None)
    return duplicate


def sharing_copy(module: _Module, *, instead: Sequence[tuple[object, object]] = ()) -> _Module:
    """A copy whose parameters are the same objects; everything else, buffers too, is its own.

    Args:
        module: What to copy.
        instead: Pairs of an object inside it and its replacement in the copy.
    """
    memo: dict[int, object] = {id(parameter): parameter for parameter in module.parameters()}
    memo |= {id(old): new for old, new in instead}
    return copy.deepcopy(module, memo)


_COLUMNS = (
    Column("where", "layer"),
    Column("op", "op"),
    Column("runs_as", "runs as"),
    Column("macs", "MACs", "{:,d}"),
    Column("percent", "share %", "{:.1f}"),
    Column("reason", "reason"),
)


@dataclass(frozen=True)
class CoverageRow:
    """One op of a forward pass.

    Attributes:
        where: Path of the module; empty for the model itself.
        op: The op of the dialect, or the torch function that stayed float.
        runs_as: "integer" or "float".
        reason: Why it stayed float; of an integer op, that its input leaves the device's format, or that it stands for an op
            that the chip does not have and gives other numbers.
        macs: Multiply-accumulates of convolutions and matrix products; 0 for everything else.
        share: Of all multiply-accumulates of the pass, 0 to 1.
    """

    where: str
    op: str
    runs_as: str
    reason: str
    macs: int
    share: float

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100.0 * self.share


@dataclass(frozen=True, repr=False)
class Coverage(Result):
    """The ops of one forward pass, in the order of execution."""

    ops: tuple[OpRecord, ...]

    _columns, _row_type, _fact_names = _COLUMNS, CoverageRow, ("macs", "integer_share")

    def _rows(self) -> tuple[CoverageRow, ...]:
        return self.table()

    @property
    def float_ops(self) -> tuple[OpRecord, ...]:
        """What stayed float."""
        return tuple(o for o in self.ops if not o.is_integer)

    @property
    def integer_ops(self) -> tuple[OpRecord, ...]:
        """What runs as integers."""
        return tuple(o for o in self.ops if o.is_integer)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the pass: those of convolutions and matrix products, integer or float."""
        return sum(o.macs for o in self.ops)

    @property
    def integer_share(self) -> float:
        """Share of the multiply-accumulates that run as integers, 0 to 1; 1 where there are none at all."""
        return sum(o.macs for o in self.integer_ops) / self.macs if self.macs else 1.0

    def rows(self) -> list[tuple[str, str, str, str, int, float]]:
        """(where, op, integer or float, reason, MACs, share of the MACs), in the order of execution."""
        return [(r.where, r.op, r.runs_as, r.reason, r.macs, r.share) for r in self.table()]

    def table(self) -> tuple[CoverageRow, ...]:
        """The rows with names."""
        total, kinds = self.macs or 1, ("float", "integer")
        return tuple(
            CoverageRow(o.where, o.op, kinds[o.is_integer], o.reason, o.macs, o.macs / total) for o in self.ops
        )

    def summary(self) -> str:
        """The result in one line."""
        counts = f"{len(self.integer_ops)} ops as integers, {len(self.float_ops)} in float"
        return f"{counts}; {_percent(self.integer_share)} of the multiplications as integers" if self.macs else counts

    def __str__(self) -> str:
        return "\n".join([self.summary(), *filter(None, map(_remark, self.table()))])


def _remark(row: CoverageRow) -> str:
    """A line about an op that stays float, or whose numbers differ; empty for any other."""
    if row.runs_as == "integer":
        return f"  {row.where or 'model'}: {row.op}: {row.reason}" if row.reason else ""
    share = f" ({_percent(row.share)} of the multiplications)" if row.macs else ""
    return f"  {row.where or 'model'}: {row.op} stays float{share}: {row.reason}"


def _percent(share: float) -> str:
    """One decimal, rounded down: only the whole is 100 %, and only nothing is 0 %."""
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return "100 %" if share == 1.0 else f"{math.floor(share * 1000) / 10:.1f} %"


def coverage(model: nn.Module) -> Coverage:
    """What a quantized model computes as integers, and what it does not, with the reasons and the share of the work.

    Describes the last calibration pass, which sees every op; if the model was never calibrated, the last forward pass,
    which does not see float ops that no quantized tensor reaches.

    Raises:
        UsageError: The model is not quantized, or has not run yet.
    """
    runtime = runtime_of(model)
    if runtime is None:
        raise UsageError("coverage: this model is not quantized. Call linger.init(model) first.")
    if not runtime.ops:
        raise UsageError("coverage: the model has not run yet. Run one forward pass first.")
    judged = (op if op.judged is None else op._replace(reason=op.judged(), judged=None) for op in runtime.ops)
    return Coverage(tuple(judged))
