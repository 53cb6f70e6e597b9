# SPDX-License-Identifier: Apache-2.0
"""Where a divergence begins, down to a branch or an iteration, and what causes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import GraphError, LingerError
from linger.graph.core.dialects import SAFE_WEIGHT, is_quantizing
from linger.graph.core.nodes import (
    attributes_of,
    defined_in,
    describe,
    graphs_in,
    inner_graphs,
    inputs_within,
    is_dialect,
    op_of,
)
from linger.graph.files.model_io import copied, exchanged, in_memory, load
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime import session
from linger.runtime.reference import Reference
from linger.runtime.session import Session
from linger.verification.array_files import Array
from linger.verification.proof.comparison import Arrays, Batch, RecordingComparison, Way, first_index
from linger.verification.proof.result import PLAIN, Cause, Divergence, Flip, FloatRow, TensorRow
from linger.verification.recording import Recording

MOST_ITERATIONS = 256
"""How far a loop is followed."""


def explain(model: ir.Model, comparison: RecordingComparison) -> Cause | None:
    """Follow the first difference to its origin; the result is its cause, where that was found."""
    comparison.first = narrow_down(comparison)
    comparison.first = look_inside(comparison)
    return find_cause(model, comparison)


def narrow_down(comparison: RecordingComparison) -> Divergence | None:
    """The first difference; one that only a plain run shows is followed to the layer where it begins.

    The search halves the layers before the output: it finds a layer whose output differs while the output of the layer before
    it, in the order of computation, does not.
    """
    first, batch = comparison.first, comparison.first_batch
    if first is None or batch is None or not first.found_by.endswith(PLAIN):
        return first
    session = comparison.sessions.get(first.found_by.removesuffix(PLAIN))
    if session is None:  # a witness, which cannot be cut
        return first
    cut = _CutFile(session, batch)
    before = ancestors(comparison.model.graph, first.tensor)
    ends = _layer_ends([node for node in comparison.model.graph if node in before], first.tensor)
    low, high = -1, len(ends) - 1  # the last one is known to differ
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cut.differs(ends[middle]) else (middle, high)
    return cut.divergence(ends[high], first)


def _layer_ends(nodes: list[ir.Node], last: str) -> list[str]:
    """Tensors behind which a file can be cut without separating fused nodes: DQ behind Q; all, where there are none."""
    joints = [node for node in nodes if node.op_type == "DequantizeLinear" and _quantizer(node) is not None]
    names = [node.outputs[0].name for node in joints or nodes if node.outputs]
    return [*(name for name in names if name and name != last), last]


def _quantizer(node: ir.Node) -> ir.Node | None:
    producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return producer if producer is not None and producer.op_type == "QuantizeLinear" else None


@dataclass(frozen=True)
class _CutFile:
    """The file, cut off behind one tensor or another, on one batch."""

    session: Session
    batch: Batch

    def differs(self, name: str) -> bool:
        return bool(self._run_up_to(name)[0].any())

    def _run_up_to(self, name: str) -> tuple[NDArray[np.bool_], Array]:
        """Where a tensor differs when the file ends with it, and its values."""
        want, have = self.batch.reference[name], self.session.run_up_to(name, self.batch.feeds)
        producer = _producer(self.session.model.graph, name)
        is_exact = want.dtype.kind != "f" or producer.op_type == "DequantizeLinear" or is_quantizing(producer)
        return RecordingComparison.places(want, have, is_exact=is_exact), have

    def divergence(self, name: str, first: Divergence) -> Divergence:
        """The difference in a tensor, which is that of `first` or comes before it."""
        made = first
        if name != first.tensor:
            differs, have = self._run_up_to(name)
            index, expected, found = first_index(differs, self.batch.reference[name], have)
            made = replace(first, tensor=name, index=index, expected_by="numpy", expected=expected, found=found)
        node = _layer(_producer(self.session.model.graph, name))
        varying = [v.name for v in node.inputs if v is not None and v.name and _varies(v)]
        inputs = {name: not self.differs(name) for name in varying}
        return replace(made, node=describe(node), op_type=node.op_type, inputs=inputs)


def _producer(graph: ir.Graph, name: str) -> ir.Node:
    return next(node for node in graph if any(o.name == name for o in node.outputs))


def _layer(node: ir.Node) -> ir.Node:
    """The node whose result a DQ behind a Q returns."""
    quantizer = _quantizer(node)
    if quantizer is None:
        return node
    computed = quantizer.inputs[0]
    return (None if computed is None else computed.producer()) or quantizer


def _varies(value: ir.Value) -> bool:
    """Whether a tensor is computed from the inputs: weights are not, nor are dequantized weights."""
    node = value.producer()
    if node is None or node.op_type == "Constant":
        return False
    source = node.inputs[0] if node.op_type == "DequantizeLinear" and node.inputs else None
    return source is None or source.const_value is None


def ancestors(graph: ir.Graph, tensor: str) -> set[ir.Node]:
    """The nodes of a graph that a tensor depends on."""
    return nodes_before(graph, [o for node in graph for o in node.outputs if o.name == tensor])


def nodes_before(
    graph: ir.Graph | None, values: Iterable[ir.Value | None], is_end: Callable[[ir.Node], bool] = lambda _: False
) -> set[ir.Node]:
    """The nodes of a graph that some tensors depend on, back to the nodes that are an end, which are left out."""
    waiting, found = list(values), set()
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if node is not None and node not in found and node.graph is graph and not is_end(node):
            found.add(node)
            waiting += inputs_within(node)
    return found


def look_inside(comparison: RecordingComparison) -> Divergence | None:
    """The first difference; if a node with a body computes it from inputs that agree, with the place in the body.

    The body runs on its own, on the inputs that numpy has, iteration by iteration, until numpy and ONNX Runtime differ.
    Where it cannot be run on its own the difference stays as it is.
    """
    first, batch = comparison.first, comparison.first_batch
    levels = {comparison.way.label(level): level for level in comparison.way.levels}
    if first is None or batch is None or first.found_by not in levels or first.inputs_agree is False:
        return first
    node = _producer(comparison.model.graph, first.tensor)
    if not inner_graphs(node):
        return first
    way = replace(comparison.way, levels=(levels[first.found_by],))
    try:
        inside = _run_body(node, comparison, batch, way)
    except (LingerError, StopIteration):
        return first
    return replace(first, inside=inside)


def _run_body(node: ir.Node, comparison: RecordingComparison, batch: Batch, way: Way) -> Divergence | None:
    values = {**batch.reference, **batch.feeds}
    runs = _runs(node, values)
    if runs is None:
        return None
    captured = {name: values[name] for name in _captured(runs.body) if name in values}
    inner: RecordingComparison | None = None
    outcome: dict[str, Array] = {}
    for feeds in islice(runs.feeds(outcome), MOST_ITERATIONS):
        given = {**feeds, **captured}
        inner = inner or RecordingComparison(_as_model(runs.body, comparison.model, given), way)
        outcome.update(inner.add(Recording(list(given.values()), input_names=tuple(given))).reference)
        if inner.first is not None:
            found = look_inside(inner)
            unit = "branch" if node.op_type == "If" else "iteration"
            return None if found is None else replace(found, unit=unit)
    return None


@dataclass(frozen=True)
class _Runs:
    """The body that a node runs, and a function that yields the inputs of each run from the results of the run before."""

    body: ir.Graph
    feeds: Callable[[Arrays], Iterator[dict[str, Array]]]


def _runs(node: ir.Node, values: Arrays) -> _Runs | None:
    """How a node runs its body; None where that cannot be repeated outside the node."""
    if node.op_type == "If":
        return _branch(node, values)
    inputs = _known_inputs(node, values)
    if inputs is None or "body" not in node.attributes:
        return None
    body = node.attributes["body"].as_graph()
    if node.op_type == "Loop":
        return _Runs(body, lambda last: _loop(body, inputs, last))
    if node.op_type == "Scan" and not {"scan_input_axes", "scan_input_directions"} & set(node.attributes):
        count = node.attributes["num_scan_inputs"].as_int()
        return _Runs(body, lambda last: _scan(body, inputs, count, last))
    return None


def _known_inputs(node: ir.Node, values: Arrays) -> list[Any] | None:
    """The inputs of a node, None for one that is left out; None where one is not known."""
    if any(v is not None and v.name not in values for v in node.inputs):
        return None
    return [None if v is None else values[v.name or ""] for v in node.inputs]


def _branch(node: ir.Node, values: Arrays) -> _Runs | None:
    condition = None if node.inputs[0] is None else values.get(node.inputs[0].name or "")
    if condition is None:
        return None
    branch = node.attributes["then_branch" if _is_true(condition) else "else_branch"]
    return _Runs(branch.as_graph(), lambda _: iter([{}]))


def _loop(body: ir.Graph, inputs: list[Any], last: Arrays) -> Iterator[dict[str, Array]]:
    count, goes_on, *state = inputs
    names = [v.name or "" for v in body.inputs]
    goes_on = np.ones((), bool) if goes_on is None else goes_on
    number = 0
    while _is_true(goes_on) and (count is None or number < int(np.asarray(count).reshape(()))):
        yield dict(zip(names, [np.array(number, np.int64), np.asarray(goes_on).reshape(()), *state], strict=True))
        goes_on, *state = (last[v.name or ""] for v in body.outputs[: len(names) - 1])
        number += 1


def _is_true(condition: Array) -> bool:
    return bool(np.asarray(condition).reshape(()))


def _scan(body: ir.Graph, inputs: list[Any], count: int, last: Arrays) -> Iterator[dict[str, Array]]:
    state, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    names = [v.name or "" for v in body.inputs]
    for number in range(sequences[0].shape[0]):
        yield dict(zip(names, [*state, *(s[number] for s in sequences)], strict=True))
        state = [last[v.name or ""] for v in body.outputs[: len(state)]]


def _captured(body: ir.Graph) -> list[str]:
    """Tensors of the graphs around a body that it uses, or that are outputs of it."""
    inside = {value for place in graphs_in(body) for value in defined_in(place.graph)}
    used = [v for n in body for v in inputs_within(n)] + list(body.outputs)
    return list(dict.fromkeys(v.name for v in used if v not in inside and v.name))


def _as_model(body: ir.Graph, model: ir.Model, feeds: Arrays) -> ir.Model:
    """A body as a model of its own, with the tensors that it captures as further inputs."""
    with exchanged(model, in_memory(model)):  # a model on its own has no folder with data files
        proto = onnx.ModelProto(ir_version=model.ir_version, graph=ir.to_proto(body))
        proto.functions.extend(ir.to_proto(function) for function in model.functions.values())
    for domain, version in model.graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    del proto.graph.input[:]
    for name, array in feeds.items():
        described = proto.graph.input.add(name=name)
        described.type.tensor_type.elem_type = int(ir.DataType.from_numpy(array.dtype))
    return load(proto)  # a new model: nobody has checked that the body is complete without the graphs around it


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
    if not nodes or not session.has_saturating_products():
        return None
    tried = [switch for switch in SWITCHES if switch not in comparison.way.options]
    vanishes = (switch for switch in tried if _agrees_with(switch, model, comparison, batch.recording))
    return Cause(tuple(nodes), next(vanishes, ""))


def _agrees_with(switch: str, model: ir.Model, comparison: RecordingComparison, recording: Recording) -> bool:
    way = comparison.way
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


def added_flips(flips: dict[str, Flip], comparison: RecordingComparison, batch: Batch) -> dict[str, Flip] | None:
    """The flips by tensor with those of one more batch, which differs; None where flips do not explain that."""
    found = find_flips(comparison, batch)
    added = {flip.tensor: flip for flip in found}
    for name in flips.keys() & added.keys():
        added[name] = replace(added[name], values=added[name].values + flips[name].values)
    return {**flips, **added} if found else None


def find_flips(comparison: RecordingComparison, batch: Batch) -> list[Flip]:
    """The values that flip in a batch that differs; none where flips do not explain every difference in it."""
    quants = {_name(node): node for node in comparison.model.graph if _follows_floats(node)}
    expected = {name: batch.expected(name) for name in quants}
    forced = {name: array for name, array in expected.items() if array is not None}
    if not forced or batch.has_other_witness:
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
        if not is_near or not _are_neighbors(node, expected, found, truth, bound):
            return None
        count = max(count, int(np.count_nonzero(expected != found)))
    return Flip(_name(node), describe(node), tuple(describe(n) for n in float_ops_before(node)), count)


def _are_neighbors(node: ir.Node, expected: Array, found: Array, truth: Array, bound: Array) -> bool:
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
    return is_dialect(node, "Quant") and bool(float_ops_before(node))


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
