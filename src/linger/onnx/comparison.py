# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.compare: torch and ONNX Runtime side by side on the same inputs, output by output.

Two runtimes that add the same floats in another order round differently, and the tolerance is what that explains. With N
roundings behind a value, each by at most the unit roundoff u, the error of one runtime stays below λ·√N·u with a probability
of at least 1 − 2N·exp(−λ²/2)
(Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019); λ = 8 makes the
exception rarer than N in 10¹³. Both runtimes err, so the bound is twice that, relative to the largest magnitude of
the output. It does not cover a network that amplifies errors: give a tolerance of your own there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.errors import UsageError, counted, listing
from linger.graph.core.nodes import all_nodes
from linger.graph.files.model_io import ModelLike
from linger.quantization.core.qtensor import QTensor
from linger.records.table import aligned
from linger.runtime.session import Session
from linger.simulation import ExampleCall, are_by_name, calls_of, default_names, preserved, run_once, tensors_in

Array = NDArray[Any]

CONFIDENCE = 8.0
"""λ in the docstring of this file."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True, repr=False)
class OutputComparison:
    """One output over all inputs: the largest errors, the tolerance they were judged by, and what else is wrong.

    `max_abs` is the largest |torch − file|, `max_rel` the largest |torch − file| / max(|torch|, |file|). An element is within
    the tolerance if |torch − file| ≤ atol + rtol·|torch|.
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    max_abs: float
    max_rel: float
    atol: float
    rtol: float
    is_within: bool
    note: str = ""

    def __repr__(self) -> str:
        return f"OutputComparison({' '.join(cell for cell in self.cells() if cell)})"

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        shapes = ", ".join("×".join(map(str, shape)) or "scalar" for shape in self.shapes)
        tolerance = f"{self.atol:.2g} + {self.rtol:.2g}·|torch|" if self.rtol else f"{self.atol:.2g}"
        verdict = "ok" if self.is_within else "FAILS"
        verdict = f"{verdict}: {self.note}" if self.note else verdict
        return (self.name, self.dtype, shapes, f"{self.max_abs:.2g}", f"{self.max_rel:.2g}", tolerance, verdict)


@dataclass(frozen=True, repr=False)
class ModelComparison:
    """A model and its file, output by output; printed as a table."""

    outputs: tuple[OutputComparison, ...]
    runs: int

    COLUMNS = ("output", "type", "shape", "max abs", "max rel", "tolerance", "")

    @property
    def ok(self) -> bool:
        """Whether there is something to compare and all of it is within its tolerance."""
        return bool(self.outputs) and self.runs > 0 and all(output.is_within for output in self.outputs)

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text per output, in the order of `COLUMNS`."""
        return [output.cells() for output in self.outputs]

    def summary(self) -> str:
        """The verdict in one line."""
        failing = sum(not output.is_within for output in self.outputs)
        verdict = "all within tolerance" if self.ok else f"{failing} not within tolerance"
        return f"{counted(len(self.outputs), 'output')} on {counted(self.runs, 'input')}, {verdict}"

    def __repr__(self) -> str:
        return f"ModelComparison({self.summary()})"

    def __str__(self) -> str:
        return f"{self.summary()}\n{aligned(self.COLUMNS, self.rows())}"


def compare(
    model: nn.Module, path: ModelLike, inputs: object, *, atol: float | None = None, rtol: float | None = None
) -> ModelComparison:
    """Run a model in torch and its file in ONNX Runtime on the same inputs.

    Outputs are matched in order, nested ones flattened (a dict in the order of its keys). NaN equals NaN.

    Args:
        model: The torch model, run in evaluation mode without gradients; it stays as it was.
        path: The exported file, in any form.
        inputs: What was given to the export, or an iterable of such (page "Inputs").
        atol: Absolute tolerance. If neither is given: 0 for integers and for outputs that a quantized model computes as
            integers, else what rounding explains for a graph of this size.
        rtol: Relative tolerance; if only one of the two is given, the other is 0.

    Returns:
        A row per output; print it for a table, ask `.ok` for the verdict.

    Raises:
        UsageError: The inputs do not fit the model or the file.
    """
    session = Session(path, as_written=True)
    limits = _Limits(atol, rtol, count_roundings(session.model))
    names = [output.name for output in session.get_outputs()]
    rows: dict[str, OutputComparison] = {}
    runs = 0
    for call in calls_of(model, inputs):
        with preserved(model):
            arrays = [(_as_array(leaf), isinstance(leaf, QTensor)) for leaf in tensors_in(run_once(model, call))]
        for row in _rows(names, arrays, session.run(None, _feeds(session, model, call)), limits):
            rows[row.name] = _joined(rows[row.name], row) if row.name in rows else row
        runs += 1
    return ModelComparison(tuple(rows.values()), runs)


@dataclass(frozen=True)
class _Limits:
    atol: float | None
    rtol: float | None
    roundings: int

    def for_output(self, expected: Array, *, is_exact: bool) -> tuple[float, float]:
        """(atol, rtol) of one output."""
        if self.atol is not None or self.rtol is not None:
            return self.atol or 0.0, self.rtol or 0.0
        if is_exact or expected.dtype.kind != "f":
            return 0.0, 0.0
        finite = np.abs(expected[np.isfinite(expected)])
        return rounding_tolerance(self.roundings, expected.dtype) * float(finite.max(initial=0.0)), 0.0


def _as_array(tensor: Tensor) -> Array:
    plain = tensor.dequantize() if isinstance(tensor, QTensor) else tensor
    plain = plain.detach().cpu()
    return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())


def _feeds(session: Session, model: nn.Module, call: ExampleCall) -> dict[str, Array]:
    """Give the call's tensors to the file's inputs: in order, or by name if they are given so, or the file has fewer inputs."""
    names = [i.name for i in session.get_inputs()]
    everything = call.tensors()
    named = dict(zip(default_names(model, call), everything, strict=True))
    if not are_by_name(call, list(named), names):
        for candidates in (everything, [value for _, value in call.leaves() if isinstance(value, Tensor)]):
            if len(candidates) == len(names):
                return {name: _as_array(value) for name, value in zip(names, candidates, strict=True)}
    if set(names) <= set(named):
        return {name: _as_array(named[name]) for name in names}
    raise UsageError(
        f"compare: the file has {len(names)} inputs ({listing(names)}), the call gives {len(everything)} "
        f"({listing(named)}). Pass what was given to the export."
    )


def _rows(
    names: Sequence[str], expected: Sequence[tuple[Array, bool]], in_file: Sequence[Any], limits: _Limits
) -> list[OutputComparison]:
    """A row per output; `expected` has torch's arrays, each with whether it is computed as integers."""
    rows = []
    for index, ((want, is_exact), have) in enumerate(zip(expected, map(np.asarray, in_file), strict=False)):
        rows.append(_judge(names[index], want, have, limits.for_output(want, is_exact=is_exact)))
    count = len(rows)
    rows += [
        _only(f"torch output {i}", expected[i][0], "the file has no such output") for i in range(count, len(expected))
    ]
    rows += [_only(names[i], np.asarray(in_file[i]), "torch has no such output") for i in range(count, len(in_file))]
    return rows


def _only(name: str, array: Array, note: str) -> OutputComparison:
    kind, nan = str(array.dtype), np.nan
    return OutputComparison(name, kind, (array.shape,), nan, nan, 0.0, 0.0, is_within=False, note=note)


def _judge(name: str, want: Array, have: Array, limits: tuple[float, float]) -> OutputComparison:
    if want.shape != have.shape:
        return _only(name, want, f"torch has shape {list(want.shape)}, the file {list(have.shape)}")
    atol, rtol = limits
    a, b = (x.astype(np.float64) for x in (want, have))
    only_one_nan = np.isnan(a) != np.isnan(b)
    is_equal = (want == have) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.where(is_equal | only_one_nan, 0.0, np.abs(a - b))
        relative = error / np.maximum(np.maximum(np.abs(a), np.abs(b)), np.finfo(np.float64).tiny)
        is_within = is_equal | (np.isfinite(error) & ~only_one_nan & (error <= atol + rtol * np.abs(a)))
    notes = []
    if want.dtype != have.dtype:
        notes.append(f"torch has {want.dtype}, the file {have.dtype}")
    if only_one_nan.any():
        notes.append(f"{np.count_nonzero(only_one_nan)} values are NaN on one side only")
    relative = np.where(np.isnan(relative), np.inf, relative)
    errors = (float(error.max(initial=0.0)), float(relative.max(initial=0.0)))
    is_ok = bool(is_within.all()) and want.dtype == have.dtype
    kind, note = str(want.dtype), "; ".join(notes)
    return OutputComparison(name, kind, (want.shape,), *errors, atol, rtol, is_within=is_ok, note=note)


def _joined(first: OutputComparison, second: OutputComparison) -> OutputComparison:
    """Join two rows of one output: the larger errors, and the tolerance of the row that comes nearer to its own."""
    rows = (first, second)
    nearer = max(rows, key=lambda row: (not row.is_within, row.max_abs / row.atol if row.atol else row.max_abs))
    return replace(
        nearer,
        shapes=tuple(dict.fromkeys((*first.shapes, *second.shapes))),
        max_abs=float(np.fmax(first.max_abs, second.max_abs)),
        max_rel=float(np.fmax(first.max_rel, second.max_rel)),
        is_within=first.is_within and second.is_within,
        note="; ".join(dict.fromkeys(note for note in (first.note, second.note) if note)),
    )


def rounding_tolerance(roundings: int, dtype: Any) -> float:
    """The bound, relative to the largest magnitude of the output; 0 for a type that does not round.

    >>> f"{rounding_tolerance(1, np.float32):.1e}"
    '9.5e-07'
    """
    if np.dtype(dtype).kind != "f":
        return 0.0
    unit = float(np.finfo(dtype).eps) / 2
    return 2 * CONFIDENCE * math.sqrt(roundings) * unit


def count_roundings(model: ir.Model) -> int:
    """Roundings behind one value, counted as if every node were behind it: one per node, one per term of a sum."""
    return max(1, sum(_terms(node, model) for node in all_nodes(model)))


def _terms(node: ir.Node, model: ir.Model) -> int:
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return sum(_terms(inner, model) for inner in all_nodes(function))
    sizes = [_sizes(value) for value in (*node.inputs[:2], *node.outputs[:1])]
    if node.op_type in _PRODUCTS:
        return _product_terms(node, sizes[1])
    before, after = sizes[0], sizes[-1]
    if not node.inputs or before is None or after is None or not math.prod(after):
        return 1
    # a reduction (a mean, a pooling) adds what it makes disappear
    return max(1, math.prod(before) // math.prod(after))


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape if all of it is known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()


def _product_terms(node: ir.Node, weight: tuple[int, ...] | None) -> int:
    if not weight:
        return 1
    if node.op_type == "Conv":
        return math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return weight[0] * math.prod(weight[2:])
    is_turned = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    return weight[-1] if is_turned or len(weight) == 1 else weight[-2]
