# SPDX-License-Identifier: Apache-2.0
"""Two reasons why integers differ: kernels that saturate on this CPU, and float ops that differ in their last bits.

A value between two integers may round to one of them in one computation and to the other in the next, if the float ops
before it differ in their last bits; everything computed from it then differs too. Two observations show that no integer is
computed wrongly. First, with the expected integers put in behind every float op, the rest of the file computes what was expected.
Second, these expected integers are what Quant makes of a number within float rounding of the exact one (of torch's own
number, where that was recorded).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import GraphError, LingerError
from linger.graph.core.carriers import SAFE_WEIGHT
from linger.graph.core.dialect_node import attributes_of, describe, is_dialect, op_of
from linger.graph.files.model_io import copied
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime import saturation
from linger.runtime.reference import Reference
from linger.verification.array_files import Array
from linger.verification.proof.comparison import PLAIN, Arrays, Batch, RecordingComparison, Way, unequal
from linger.verification.proof.first_divergence import ancestors, nodes_before
from linger.verification.proof.result import Cause, Flip, FloatRow, TensorRow
from linger.verification.recording import Recording

SWITCHES = ("session.qdqisint8allowed", "session.disable_quant_qdq", "session.x64quantprecision")
"""Config entries with which ONNX Runtime avoids u8×s8: int8 kernels, float ops as written, u8×u8 kernels."""

OTHER_ORDER = 8.0
"""How much further from the exact result another computation may be than those that were run.

All of them have the same bound, u·n·Σ|terms| for a sum of n terms and a few u for a function; in which order they add
decides how much of it each uses up. Three bits cover what orders of summation and libraries of functions differ by.
"""

_INTEGER_OPERANDS = {"MatMulInteger": (0, 1), "ConvInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
_FLOAT_OPS = frozenset({"MatMul", "Gemm", "Conv"})
_SIGNED, _UNSIGNED = ir.DataType.INT8, ir.DataType.UINT8
_OWN = "linger.own."
"""Before the name of a tensor that was replaced by an input."""

_UNIT = 2.0**-24
"""The unit roundoff u of float32."""


def find_cause(model: ir.Model, comparison: RecordingComparison) -> Cause | None:
    """Run the batch of the first difference again without u8×s8 kernels.

    Returns:
        None where nothing differs, where it is not ONNX Runtime that differs, where no such product comes before the
        difference, or where this CPU computes such products exactly.
    """
    first, batch = comparison.first, comparison.first_batch
    if first is None or batch is None or first.found_by.removesuffix(PLAIN) not in comparison.sessions:
        return None
    nodes = byte_products_before(comparison.model.graph, first.tensor)
    if not nodes or not saturation.has_saturating_products():
        return None
    tried = [switch for switch in SWITCHES if switch not in comparison.way.options]
    vanishes = (switch for switch in tried if _agrees_with(switch, model, comparison.way, batch.recording))
    return Cause(tuple(nodes), next(vanishes, ""))


def _agrees_with(switch: str, model: ir.Model, way: Way, recording: Recording) -> bool:
    try:
        again = RecordingComparison(model, replace(way, options={**way.options, switch: "1"}))
        again.add(recording)
    except GraphError:  # ONNX Runtime 1.31 cannot load every file with the last of the switches
        return False
    return again.first is None


def byte_products_before(graph: ir.Graph, tensor: str) -> list[str]:
    """Products that may run in u8×s8 kernels among the nodes that a tensor depends on, in the order of computation.

    These are integer ops whose operands differ in sign, and float ops between int8 Q and DQ nodes, whose data ONNX Runtime
    converts to unsigned bytes. Constant weights within ±64 cannot saturate, so their products are left out.
    """
    before = ancestors(graph, tensor)
    return [describe(node) for node in graph if node in before and _may_saturate(node)]


def _may_saturate(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type in _FLOAT_OPS:
        data, weight = (_quantized(v) for v in node.inputs[:2])
        return _type(data) in (_SIGNED, _UNSIGNED) and _type(weight) == _SIGNED and not _is_safe(weight)
    operands = [node.inputs[i] for i in _INTEGER_OPERANDS.get(node.op_type, ()) if i < len(node.inputs)]
    return {_SIGNED, _UNSIGNED} == {*map(_type, operands)} - {None} and not any(map(_is_safe, operands))


def _quantized(value: ir.Value | None) -> ir.Value | None:
    """The integers from which a DequantizeLinear computes a float tensor."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and node.op_type == "DequantizeLinear" else None


def _type(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _is_safe(value: ir.Value | None) -> bool:
    """Whether a constant of signed bytes keeps every pair of products within 16 bits."""
    if value is None or value.const_value is None or value.dtype != _SIGNED:
        return False
    return bool((np.abs(value.const_value.numpy().astype(np.int16)) <= SAFE_WEIGHT).all())


def find_flips(comparison: RecordingComparison, batch: Batch) -> list[Flip]:
    """The values that flip in a batch that differs; none where flips do not explain every difference in it."""
    quants = {_name(node): node for node in comparison.model.graph if _follows_floats(node)}
    expected = {name: batch.expected(name) for name in quants}
    forced = {name: array for name, array in expected.items() if array is not None}
    if not forced or _has_other_witness(batch):
        return []
    try:
        with np.errstate(all="ignore"):  # comparisons with infinities and NaN are false, without a warning
            return _flips(comparison, batch, [quants[name] for name in forced], forced)
    except LingerError:  # the file does not run in this form, so nothing is explained
        return []


def _flips(comparison: RecordingComparison, batch: Batch, quants: list[ir.Node], forced: Arrays) -> list[Flip]:
    model = _with_forced(comparison.model, forced)
    again = RecordingComparison(model, comparison.way)
    feeds, given = {**batch.feeds, **forced}, batch.recording
    integers = {_OWN + name if name in forced else name: array for name, array in given.integers.items()}
    made = again.add(
        Recording(list(feeds.values()), given.outputs, integers, tuple(feeds), given.output_names, is_complete=False)
    )
    if _differs_elsewhere(again) or not again.missing.keys() <= comparison.missing.keys():
        return []
    exact = Reference(model, is_precise=True, is_checked=True).intermediates(feeds)
    flips = []
    for node in quants:
        if again.rows[_OWN + _name(node)].differing:
            flip = _flip(node, made, forced[_name(node)], exact, given.floats)
            if flip is None:
                return []
            flips.append(flip)
    return flips


def _has_other_witness(batch: Batch) -> bool:
    """Whether a witness computes another number than the file does, which flips between model and file cannot explain."""
    said = [(name, array) for statement in batch.witnessed.values() for name, array in statement.tensors.items()]
    return any(unequal(batch.reference[name], array).any() for name, array in said)


def _differs_elsewhere(again: RecordingComparison) -> bool:
    """Whether anything differs but the tensors that were replaced."""
    rows: list[TensorRow | FloatRow] = [*again.rows.values(), *again.output_rows.values()]
    return any(row.differing and not row.name.startswith(_OWN) for row in rows)


def _flip(node: ir.Node, made: Batch, expected: Array, exact: Arrays, recorded: Arrays) -> Flip | None:
    """The flips of a Quant; None where an integer differs by more than a flip, or a float by more than rounding."""
    source = node.inputs[0]
    assert source is not None  # _follows_floats has looked
    truth, floats = exact[source.name or ""], recorded.get(_name(node))
    scale, count = attributes_of(node, op_of(node))["scale_x"], 0
    for tensors in (made.reference, *made.watched.values()):
        found = tensors[_OWN + _name(node)]
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return None
        bound = _bound(tensors[source.name or ""], truth, np.iinfo(found.dtype), scale)
        is_near = floats is None or (np.abs(floats - truth) <= bound)[np.isfinite(truth)].all()
        if not is_near or not _are_neighbours(node, expected, found, truth, bound):
            return None
        count = max(count, int(np.count_nonzero(unequal(expected, found))))
    return Flip(_name(node), describe(node), tuple(describe(n) for n in float_ops_before(node)), count)


def _are_neighbours(node: ir.Node, expected: Array, found: Array, truth: Array, bound: Array) -> bool:
    """Whether both integers come from numbers within the bound around the exact one, and differ by at most 1."""
    op = op_of(node)
    attributes = attributes_of(node, op)
    low, high = (op.body(NumpyKernel(), (truth + end).astype(np.float32), **attributes) for end in (-bound, bound))
    are_within = all(((low <= q) & (q <= high)).all() for q in (expected, found))
    return are_within and np.abs(expected.astype(np.int64) - found).max(initial=0) <= 1


def _bound(real: Array, truth: Array, ends: np.iinfo[Any], scale: float) -> NDArray[np.float64]:
    """How far from its exact value each number may be: the largest error in the range of the integers, or u of the value."""
    is_within = np.isfinite(truth) & (np.abs(truth) * scale <= ends.max + 1)
    error = float(np.abs(real - truth, where=is_within, out=np.zeros(truth.shape)).max(initial=0.0))
    return OTHER_ORDER * np.maximum(error, _UNIT * np.abs(np.where(np.isfinite(truth), truth, 0.0)))


def _follows_floats(node: ir.Node) -> bool:
    """Whether a node is a Quant behind float ops."""
    return is_dialect(node) and node.op_type == "Quant" and bool(float_ops_before(node))


def float_ops_before(node: ir.Node) -> list[ir.Node]:
    """The float ops between a Quant and the integers or inputs they start from, in the order of computation."""
    found = nodes_before(node.graph, node.inputs, lambda n: is_dialect(n) or n.op_type == "Constant")
    return [n for n in node.graph or () if n in found]


def _with_forced(model: ir.Model, forced: Arrays) -> ir.Model:
    """A copy in which some tensors are inputs; the nodes that computed them have outputs of another name."""
    copy = copied(model)
    for node in list(copy.graph):
        if node.outputs and node.outputs[0].name in forced:
            made = node.outputs[0]
            name = made.name or ""
            made.name = _OWN + name
            given = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(forced[name].dtype)))
            made.replace_all_uses_with(given, replace_graph_outputs=True)
            copy.graph.inputs.append(given)
    return copy


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or ""
