# SPDX-License-Identifier: Apache-2.0
"""compare_layers: where in a quantized model an error arises ("born"), and where it is only passed on."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, as_batches, float_tensors, fresh, run_batch
from linger.constraint.conv_bn import EmptyBatchNorm
from linger.constraint.tracing import follow
from linger.dialect import Interval, Op
from linger.errors import UsageError, listing
from linger.progress import progress
from linger.quantization.core.observation import is_calibrating
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Runtime, runtime_of
from linger.quantization.core.stored import EVERYTHING
from linger.quantization.diagnosis.call_watch import (
    Arguments,
    Call,
    CallWatch,
    FunctionKey,
    Key,
    SignalNoise,
    as_real,
    decibels,
    inner_product,
    mismatch,
    range_of_function,
    squared_error,
    working_copy,
)
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.records.table import Column, Result, bars_html

_FACTOR = 2.0
"""One error counts alone where its power exceeds the other's by more than this."""

_ROUNDING = 2.0**-40
"""Noise power that is no error, in units of the signal's: errors 16 times as large as the rounding of float32, whose half
unit in the last place is 2^−24 of a value. Rounding to 16 bits, the finest there is, makes about 2^−33."""

_COLUMNS = (
    Column("name", "layer"),
    Column("call", "call", "{:d}"),
    Column("op", "op"),
    Column("input_db", "input dB", "{:.1f}"),
    Column("sqnr_db", "SQNR dB", "{:.1f}"),
    Column("born_db", "born dB", "{:.1f}"),
    Column("passed_db", "passed dB", "{:.1f}"),
    Column("verdict", "error"),
    Column("cosine", "cosine", "{:.6f}"),
    Column("max_lsb", "max LSB", "{:.1f}"),
)


@dataclass(frozen=True)
class LayerRow:
    """One call of one layer or function. Every number of decibels is a signal-to-noise ratio: small is bad, ∞ is no error.

    Attributes:
        name: The layer's path; of a function, the name of its node in the file: the module's path and the op.
        call: Which of its calls in a forward pass, from 0; every call of a function has a name of its own.
        op: The op it runs as, or the type of a layer that stayed float.
        input_db: What arrives against what arrives in the float model.
        sqnr_db: Its output against the float model's.
        born_db: The error that it makes itself: its output against the float layer on the same, quantized, input.
        passed_db: The error that it hands on: the float layer on the quantized input against that on the float input.
        verdict: "born" or "passed" if that error's power is more than twice the other's, "both" if neither is,
            "none" if both are below float32 rounding.
        cosine: Of the angle between both outputs.
        max_lsb: Largest |f − q|·scale, in units of the last bit; None where the output is float.
        is_function: Whether it is a function of a forward, such as x + y, and no layer.
    """

    name: str
    call: int
    op: str
    input_db: float
    sqnr_db: float
    born_db: float
    passed_db: float
    verdict: str
    cosine: float
    max_lsb: float | None
    is_function: bool = False


@dataclass(frozen=True)
class LayerComparison(Result):
    """A quantized model against its float model, layer by layer in the order of the calls.

    Attributes:
        rows: The layers and functions.
        unmatched: Paths (with their call, from the second on) that ran in one of the models only.
        output_db: SQNR at the output of the model.
    """

    rows: tuple[LayerRow, ...]
    unmatched: tuple[str, ...]
    output_db: float

    _columns, _row_type, _fact_names = _COLUMNS, LayerRow, ("output_db", "unmatched")

    def worst(self, n: int = 5) -> tuple[LayerRow, ...]:
        """The rows that are furthest from the float model."""
        return tuple(sorted(self.rows, key=lambda row: row.sqnr_db)[:n])

    def born(self) -> tuple[LayerRow, ...]:
        """The rows where an error is born, alone or besides one that was passed on, largest first."""
        return tuple(sorted((r for r in self.rows if r.verdict in ("born", "both")), key=lambda row: row.born_db))

    def summary(self) -> str:
        """The result in one line."""
        functions, born = sum(row.is_function for row in self.rows), self.born()
        return (
            f"{self.output_db:.1f} dB at the output, {len(self.rows) - functions} calls of layers"
            + (f", {functions} of functions" if functions else "")
            + (f"; most error is born in {born[0].name or 'the model'} ({born[0].born_db:.1f} dB)" if born else "")
            + (f"; {len(self.unmatched)} without a counterpart" if self.unmatched else "")
        )

    def __repr__(self) -> str:
        return f"LayerComparison({len(self.rows)} calls of layers, {self.output_db:.1f} dB at the output)"

    def _notes(self) -> list[str]:
        return [f"without a counterpart: {name}" for name in self.unmatched]

    def _image(self) -> str:
        names = [f"{row.name} ({row.call})" if row.call else row.name for row in self.rows]
        return bars_html(names, [row.sqnr_db for row in self.rows], "dB")


def compare_layers(float_model: nn.Module, quantized_model: nn.Module, inputs: object) -> LayerComparison:
    """Compare a quantized model with its float model, layer by layer, on the same inputs in evaluation mode.

    Every layer and every function that runs as integers (x + y, torch.cat, F.relu) gets a row, each of its calls in a pass one of
    its own. The float layer is also run on what the quantized layer received. What the quantized output differs from that was born here; what that differs from the
    float model's output was passed on. Powers are summed over all batches; an error counts alone ("born", "passed")
    where its power is more than twice the other's, else the verdict is "both"; "none" where both are 120 dB or more
    below the signal, which is float32 rounding.

    - A layer whose output only ReLU sees is compared after ReLU: the negative part is never used.
    - A convolution that only one of the models has fused with its batch norm is compared at the batch norm's path.
    - A function is paired with the same call of the same torch function in the same module of the float model. One that is all that
      a module computes is that module's row.

    Both models stay as they are. What the quantized model computes for one batch is kept in memory.

    Args:
        float_model: The model before `init`, fused by `trace_layers` or not.
        quantized_model: The same model, quantized and calibrated.
        inputs: The arguments of a pass, or an iterable of such (page "Inputs").

    Raises:
        UsageError: A model is not what it should be, the models have no layer in common or differ in shapes, or
            there are no inputs.
    """
    _check(float_model, quantized_model)
    with torch.random.fork_rng(), torch.no_grad():  # also for inputs that shuffle themselves
        copies = [working_copy(model, "compare_layers") for model in (float_model, quantized_model)]
        follow(copies[0], dict(copies[1].named_modules()))
        comparison = _Comparison(*copies)
        for batch in progress(as_batches(float_model, inputs, "compare_layers"), "compare_layers"):
            comparison.add(batch)
    return comparison.result()


def _check(float_model: nn.Module, quantized_model: nn.Module) -> None:
    wrong = [type(m).__name__ for m in (float_model, quantized_model) if not isinstance(m, nn.Module)]
    if wrong:
        raise UsageError(f"compare_layers: two torch modules are expected, not {listing(wrong)}.")
    if any(isinstance(module, QuantizedBase) for module in float_model.modules()):
        raise UsageError("compare_layers: the first model is quantized. Give the float model first.")
    if runtime_of(quantized_model) is None:
        raise UsageError("compare_layers: the second model is not quantized. Call linger.init(model) first.")
    if is_calibrating():
        raise UsageError("compare_layers: call it after `with linger.calibration():`, not inside.")


@dataclass
class _Sums:
    """What is summed over the batches for one row."""

    op: str
    is_function: bool = False
    output: SignalNoise = field(default_factory=SignalNoise)
    arriving: SignalNoise = field(default_factory=SignalNoise)
    born: float = 0.0
    passed: float = 0.0
    product: float = 0.0
    quantized_power: float = 0.0
    max_lsb: float | None = None

    def add(self, reference: Tensor, local: Tensor, quantized: Tensor, used: tuple[float, float]) -> None:
        """Count one output: the float model's, the float layer's on the quantized input, the quantized one."""
        f, between, q = (as_real(tensor).clamp(*used) for tensor in (reference, local, quantized))
        self.output.add(f, q)
        self.born += squared_error(between, q)
        self.passed += squared_error(f, between)
        self.product += inner_product(f, q)
        self.quantized_power += inner_product(q, q)
        if isinstance(quantized, QTensor) and quantized.scale is not None and f.numel():
            self.max_lsb = max(self.max_lsb or 0.0, float((f - q).abs().max()) * quantized.scale)

    def row(self, key: Key) -> LayerRow:
        """The finished row. The cosine is 1 between two zero tensors, 0 between a zero one and another."""
        signal, quantized_power = self.output.signal, self.quantized_power
        if signal == 0 or quantized_power == 0:
            cosine = 1.0 if signal == quantized_power else 0.0
        else:
            cosine = max(-1.0, min(1.0, self.product / math.sqrt(signal) / math.sqrt(quantized_power)))
        levels = (self.arriving.db, self.output.db, decibels(signal, self.born), decibels(signal, self.passed))
        verdict = _verdict(signal, self.born, self.passed)
        return LayerRow(*key, self.op, *levels, verdict, cosine, self.max_lsb, self.is_function)


def _used(layer: nn.Module | None) -> tuple[float, float]:
    """The numbers of a layer's output that its readers look at; what lies beyond, as below a ReLU, may be anything."""
    if not isinstance(layer, (QuantLayer, FunctionalLayer)):
        return EVERYTHING
    low, high = layer.ranges["o"].used_interval if "o" in layer.ranges else EVERYTHING
    return (max(low, 0.0) if isinstance(layer, QuantLayer) and layer.is_ahead_of_relu else low), high


def _verdict(signal: float, born: float, passed: float) -> str:
    if max(born, passed) <= _ROUNDING * signal:
        return "none"
    if born > _FACTOR * passed:
        return "born"
    return "passed" if passed > _FACTOR * born else "both"


class _Expected(NamedTuple):
    """A quantized call that waits for its float counterpart.

    `through` is the call of the convolution, where convolution and batch norm are compared as one.
    """

    call: Call
    output: list[Tensor]
    through: Call | None = None


class _ExpectedFunction(NamedTuple):
    """A function of the quantized model that waits for its float counterpart: its node's name and its op.

    `arguments` are real values; `used_inputs` and `used` say what is looked at of each tensor among them, and of the output.
    """

    name: str
    op: str
    arguments: Arguments
    used_inputs: list[Interval]
    output: QTensor
    used: Interval


class _Comparison:
    """Two models, run batch by batch: the quantized one first, then the float one, layer against layer."""

    def __init__(self, float_model: nn.Module, quantized_model: nn.Module) -> None:
        self._float_model, self._quantized_model = float_model, quantized_model
        self._quantized = CallWatch(quantized_model, self._keep, self._keep_function)
        self._float = CallWatch(float_model, self._compare, self._compare_function)
        runtime = runtime_of(quantized_model)
        assert runtime is not None  # checked by the caller
        runtime.observers.append(partial(self._note_op, runtime))
        self._batches = 0
        self._rows: dict[Key, _Sums] = {}
        self._unmatched: dict[Key, None] = {}  # a set that keeps its order
        self._mismatches: dict[str, str] = {}
        self._output = SignalNoise()
        # of the present batch: quantized calls, those that wait for the float model, and float calls of convolutions
        self._kept: dict[Key, _Expected] = {}
        self._layers: dict[Key, nn.Module] = {}
        self._waiting: dict[Key, _Expected] = {}
        self._begun: dict[Key, Call | None] = {}
        self._functions: dict[FunctionKey, _ExpectedFunction] = {}
        self._uses: dict[int, tuple[weakref.ref[Tensor], Interval]] = {}
        self._ops: list[tuple[str, str, Interval]] = []

    def add(self, batch: Batch) -> None:
        """Run both models on one batch."""
        self._batches += 1
        self._kept, self._functions, self._uses = {}, {}, {}
        outputs = self._run(self._quantized_model, self._quantized, batch)
        self._waiting = self._pair_up()
        self._begun = {e.through.key: None for e in self._waiting.values() if e.through is not None}
        self._layers = {key: expected.call.module for key, expected in self._kept.items()}
        self._kept = {}  # what has been compared is not kept any longer
        reference = self._run(self._float_model, self._float, batch)
        self._unmatched |= dict.fromkeys([*self._waiting, *((e.name, 0) for e in self._functions.values())])
        difference = mismatch(reference, outputs)
        if difference is not None:
            self._mismatches.setdefault("output", difference)
        if self._mismatches:
            where = listing(f"{path}: {text}" for path, text in self._mismatches.items())
            raise UsageError(
                f"compare_layers: the models are not of the same architecture. {where}. "
                "Give a quantized model and the float model it was made from."
            )
        self._output.add_all(reference, outputs)

    @staticmethod
    def _run(model: nn.Module, watch: CallWatch, batch: Batch) -> list[Tensor]:
        watch.begin()
        try:
            with torch.random.fork_rng():  # both models see the same random state
                return float_tensors(run_batch(model, fresh(batch)))
        finally:
            watch.end()

    def _keep(self, call: Call, output: object) -> None:
        """A call of the quantized model has ended."""
        leaves = float_tensors(output)
        if leaves and not call.has_inner:
            self._kept[call.key] = _Expected(call, fresh(leaves))
            own = [key for key in self._functions if key[:2] == call.key]
            if len(own) == 1:  # the module's row is the function's
                del self._functions[own[0]]

    def _note_op(self, runtime: Runtime, name: str, op: Op, *rest: object) -> None:
        """An observer: the quantized model has computed an op."""
        del rest
        path = None if runtime.frame is None else range_of_function(op, runtime.frame)
        used = EVERYTHING if path is None else _used(self._quantized_model.get_submodule(path))
        self._ops.append((name, op.name, used))

    def _keep_function(self, key: FunctionKey, call: partial[object], arguments: Arguments) -> object:
        """A function of the quantized model: keep what it takes and what it returns, if it runs as an op."""
        operands = float_tensors(arguments)
        if not any(isinstance(x, QTensor) for x in operands):
            return call()
        used, real = [self._use_of(x) for x in operands], unwrap(fresh(arguments))
        self._ops.clear()
        result = call()
        if self._ops and isinstance(result, QTensor) and result.scale is not None:
            name, op, use = self._ops[-1]  # those before it brought its operands to their formats
            self._uses[id(result)] = (weakref.ref(result), use)
            self._functions[key] = _ExpectedFunction(name, op, real, used, fresh(result), use)
        return result

    def _use_of(self, x: Tensor) -> Interval:
        """What is looked at of what a layer or a function of the quantized model has returned."""
        result, use = self._uses.get(id(x), (None, EVERYTHING))
        if result is not None and result() is x:
            return use
        expected = self._kept.get(self._quantized.origin(x) or ("", -1))
        return EVERYTHING if expected is None else _used(expected.call.module)

    def _compare_function(self, key: FunctionKey, call: partial[object], arguments: Arguments) -> object:
        """A function of the float model, against that of the quantized one."""
        expected = self._functions.get(key)
        arriving = [] if expected is None else fresh(float_tensors(arguments))
        result = call()
        if expected is None or not isinstance(result, Tensor):
            return result
        operands, (args, kwargs) = float_tensors(expected.arguments), expected.arguments
        if mismatch(arriving, operands) is None and mismatch([result], [expected.output]) is None:
            del self._functions[key]
            sums = self._rows.setdefault((expected.name, 0), _Sums(expected.op, is_function=True))
            for f, q, used in zip(arriving, operands, expected.used_inputs, strict=True):
                sums.arriving.add(f.clamp(*used), q.clamp(*used))
            sums.add(result, cast(Tensor, call.func(*args, **kwargs)), expected.output, expected.used)
        return result

    def _pair_up(self) -> dict[Key, _Expected]:
        """What to compare: a convolution and its batch norm as one where only one of the models has fused them."""
        waiting: dict[Key, _Expected] = {}
        for key, expected in self._kept.items():
            counterpart = self._float.modules.get(key[0])
            is_fused, is_fused_there = (isinstance(m, EmptyBatchNorm) for m in (expected.call.module, counterpart))
            source = self._kept.get(expected.call.source or ("", -1))
            if counterpart is not None and is_fused == is_fused_there:
                if not is_fused:
                    waiting[key] = expected
            elif counterpart is None or source is None:
                self._unmatched[key] = None
            else:
                # the convolution's own result means something else in the other model, and so does what handed it on
                conv = source.call.key
                waiting = {k: e for k, e in waiting.items() if conv not in (k, e.call.source)}
                waiting[key] = expected._replace(through=source.call)
        return waiting

    def _compare(self, call: Call, output: object) -> None:
        """A call of the float model has ended."""
        if call.key in self._begun:
            self._begun[call.key] = call
        expected = self._waiting.pop(call.key, None)
        if expected is not None:
            first = call if expected.through is None else self._begun[expected.through.key]
            if first is None:
                self._unmatched[call.key] = None
                return
            self._compare_layer(call.key, expected, first, call.module, float_tensors(output))
        elif not call.has_inner and call.key not in self._layers:
            path = call.key[0]  # the quantized model may have one layer in place of the part that this belongs to
            if not any(not outer or path.startswith(f"{outer}.") for outer, _ in self._layers if outer != path):
                self._unmatched[call.key] = None

    def _compare_layer(
        self, key: Key, expected: _Expected, first: Call, last: nn.Module, reference: Sequence[Tensor]
    ) -> None:
        begin = expected.through or expected.call  # whose input is the input of this row
        arriving = [float_tensors((call.args, call.kwargs)) for call in (first, begin)]
        difference = mismatch(*arriving) or mismatch(reference, expected.output)
        if difference is not None:
            self._mismatches.setdefault(key[0], difference)
            return
        layer = begin.module
        sums = self._rows.setdefault(key, _Sums(getattr(layer, "op_name", type(layer).__name__)))
        used = _used(None if begin.source is None else self._layers.get(begin.source))  # what anybody looks at
        for f, q in zip(*arriving, strict=True):
            sums.arriving.add(*((f, q) if used == EVERYTHING else (f.clamp(*used), q.clamp(*used))))
        with self._float.paused():
            local = run_batch(first.module, begin.args, begin.kwargs)
            if expected.through is not None:
                local = run_batch(last, (local,))
        end = expected.call.module  # of a pair, the batch norm, unless it is folded into the convolution
        used = _used(end if isinstance(end, QuantLayer) else layer)
        for f, between, q in zip(reference, float_tensors(local), expected.output, strict=True):
            sums.add(f, between, q, used)

    def result(self) -> LayerComparison:
        """Everything that was summed."""
        if not self._batches:
            raise UsageError("compare_layers: the inputs are empty. Give at least one batch.")
        if not self._rows:
            raise UsageError(
                f"compare_layers: {type(self._float_model).__name__} and {type(self._quantized_model).__name__} have no "
                "layer in common. Give a quantized model and the float model it was made from."
            )
        return LayerComparison(
            rows=tuple(sums.row(key) for key, sums in self._rows.items()),
            unmatched=tuple(f"{path} (call {call})" if call else path for path, call in self._unmatched),
            output_db=self._output.db,
        )
