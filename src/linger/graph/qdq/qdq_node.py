# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear nodes, ops that do to integers what they do to floats, and islands of such ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.nodes import NOTE, Finding, all_graphs, describe
from linger.graph.core.rewiring import needed_nodes
from linger.graph.core.tensor_types import constant_tensor, takes, tensor_key

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_DOMAINS = frozenset({"", "com.microsoft"})
_DEFAULT_AXIS = 1

WIDTHS = {
    **dict.fromkeys((ir.DataType.INT4, ir.DataType.UINT4), 4),
    **dict.fromkeys((ir.DataType.INT8, ir.DataType.UINT8), 8),
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16), 16),
}
"""The integers of Q/DQ nodes and how wide they are. Dequantizing int32 rounds: float32 has 24 bits."""

_EXACT_BITS = {ir.DataType.FLOAT: 16, ir.DataType.FLOAT16: 8}
"""By the type of the scale, the widest integers that come back from DQ → Q as they were.

d = q - z is exact and |d| < 2^bits. DQ rounds d·s, Q rounds the quotient by s, and a kernel may round 1/s before: at most
three relative errors of half a unit in the last place. That is 3·2^-24 of 2^16 in float32 (below 0.02) and 3·2^-11 of 2^8 in
float16 (below 0.4), so rounding gives d again. Bfloat16, with 8 bits, does not.
"""

_SAFE_SCALES = {ir.DataType.FLOAT: (2.0**-100, 2.0**100), ir.DataType.FLOAT16: (2.0**-14, 2.0**7)}
"""By the type of the scale, the scales at which d·s is neither subnormal nor infinite for any d of these widths."""

_DOUBTFUL = 0.02
"""How near to a tie a quotient may be rounded either way: it is off by at most 3·2^-24 of 2^16."""


@dataclass(frozen=True)
class Quantization:
    """How a Q or DQ node quantizes: q = round(x / scale) + zero_point, saturated. Equal objects quantize alike.

    Attributes:
        element: The type of the integers.
        scale_type: The type of the scale, in which the node computes.
        parameters: A key of the contents of scale and zero point.
        axis: The axis along which there is a scale for each channel; None for one scale.
        block: How many numbers along the axis share a scale; 0 for one number.
    """

    element: ir.DataType
    scale_type: ir.DataType
    parameters: Hashable
    axis: int | None
    block: int

    @property
    def is_per_tensor(self) -> bool:
        """Whether one scale holds for the whole tensor."""
        return self.axis is None


def is_qdq(node: ir.Node, op_type: str) -> bool:
    """Whether a node is standard ONNX's (or ONNX Runtime's own) Q or DQ."""
    return node.op_type == op_type and node.domain in _DOMAINS


def is_qdq_parameter(value: ir.Value) -> bool:
    """Whether a value is the scale or the zero point of any Q or DQ node."""
    return any(index in (1, 2) and (is_qdq(n, QUANTIZE) or is_qdq(n, DEQUANTIZE)) for n, index in value.uses())


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The content of an initializer or a Constant node; None for any other tensor, and where the content is in another file."""
    tensor = None if value is None or value.is_graph_input() else constant_tensor(value)
    return None if isinstance(tensor, ir.ExternalTensor) else tensor


def quantization_of(node: ir.Node) -> Quantization | None:
    """How a Q or DQ node quantizes; None where its integers are of no type known here, or a parameter is not constant."""
    scale, zero = constant(_input(node, 1)), constant(_input(node, 2))
    element = _element(node)
    if scale is None or element not in WIDTHS or (zero is None and _input(node, 2) is not None):
        return None
    # a node works in the type of its scale; from opset 23 on it can say otherwise
    stated = _attribute(node, "precision" if node.op_type == QUANTIZE else "output_dtype", 0)
    if element is None or stated not in (0, scale.dtype.value):
        return None
    if scale.size == 1 and len(scale.shape) <= 1:
        parameters = ((scale.dtype, scale.tobytes()), _zero_key(zero, is_number=True))
        return Quantization(element, scale.dtype, parameters, None, 0)
    keys = (tensor_key(scale), _zero_key(zero, is_number=False))
    axis, block = _attribute(node, "axis", _DEFAULT_AXIS), _attribute(node, "block_size", 0)
    return Quantization(element, scale.dtype, keys, axis, block)


def _zero_key(zero: ir.TensorProtocol | None, *, is_number: bool) -> Hashable:
    """A key of a zero point, 0 where it is left out or 0 everywhere."""
    if zero is None or not np.any(zero.numpy().astype(np.int64)):
        return 0
    return _first_number(zero) if is_number else tensor_key(zero)


def scale_of(node: ir.Node) -> NDArray[Any]:
    """The constant scale of a node that has a `quantization_of`."""
    tensor = constant(_input(node, 1))
    assert tensor is not None  # the caller asked quantization_of
    return tensor.numpy()


def zero_of(node: ir.Node) -> int:
    """The constant zero point of a per-tensor node that has a `quantization_of`."""
    tensor = constant(_input(node, 2))
    return 0 if tensor is None else _first_number(tensor)


def _first_number(tensor: ir.TensorProtocol) -> int:
    return int(tensor.numpy().astype(np.int64).reshape(-1)[0])


def quantized(number: float, node: ir.Node, element: ir.DataType) -> int | None:
    """The integer that a per-tensor node makes of a number; None for a number that kernels may round either way."""
    is_signed = element in (ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16)
    low = -(2 ** (WIDTHS[element] - 1)) if is_signed else 0
    high = low + 2 ** WIDTHS[element] - 1
    place = float(np.clip(number / float(scale_of(node).reshape(-1)[0]) + zero_of(node), low, high))
    is_doubtful = np.isnan(number) or abs(place % 1.0 - 0.5) < _DOUBTFUL
    return None if is_doubtful else int(np.rint(place))


def returns_every_integer(node: ir.Node, quantization: Quantization) -> bool:
    """Whether DQ and then Q, both like this node, give back every integer of the type as it was."""
    widest = _EXACT_BITS.get(quantization.scale_type, 0)
    if WIDTHS[quantization.element] > widest:
        return False
    low, high = _SAFE_SCALES[quantization.scale_type]
    scale = scale_of(node).astype(np.float64)
    return bool(np.all((scale >= low) & (scale <= high)))


def _element(node: ir.Node) -> ir.DataType | None:
    """The type of a node's integers: that of the zero point, else as the node says, else that of the data, or the default."""
    zero = constant(_input(node, 2))
    if zero is not None:
        return zero.dtype
    if node.op_type == QUANTIZE:
        declared = _attribute(node, "output_dtype", 0)
        return ir.DataType(declared) if declared else ir.DataType.UINT8
    x = _input(node, 0)
    if x is None or x.dtype is not None:
        return None if x is None else x.dtype
    maker = x.producer()
    return _element(maker) if maker is not None and is_qdq(maker, QUANTIZE) else None


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _attribute(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


MOVE = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Identity"),
    *("Gather", "GatherElements", "GatherND", "Expand", "Tile"),
)
"""Ops that move or repeat numbers."""

MOVE_BYTES = ("DepthToSpace", "SpaceToDepth", "Pad")
"""Ops that do so too, but for which ONNX Runtime has no kernel of 16 bits."""

COMPARE = ("Relu", "Clip", "MaxPool", "ReduceMax", "ReduceMin")
"""Ops that choose or limit numbers by comparing them."""

DATA_INPUTS = {**dict.fromkeys((*MOVE, *MOVE_BYTES, *COMPARE), (0,)), "Concat": None, "Where": (1, 2)}
"""Which inputs hold the numbers; None: all. Bounds and indices are not among them."""


def is_moving(node: ir.Node) -> bool:
    """Whether a node moves, repeats, chooses or limits numbers, so that it does to integers what it does to floats."""
    return node.op_type in DATA_INPUTS and not node.domain


def data_inputs(node: ir.Node) -> list[int]:
    """The indices of the inputs that hold the numbers."""
    indices = DATA_INPUTS[node.op_type]
    return list(range(len(node.inputs)) if indices is None else indices)


def data_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that hold the numbers: not the indices that MaxPool may give."""
    return list(node.outputs[:1] if node.op_type == "MaxPool" else node.outputs)


_BOUNDS = {"Clip": (1, 2), "Pad": (2,)}


def bounds_of(node: ir.Node) -> list[int]:
    """The indices of inputs that have the type of the data but are no data: the limits of Clip, the border of Pad."""
    indices = _BOUNDS.get(node.op_type, ())
    return [index for index in indices if index < len(node.inputs) and node.inputs[index] is not None]


OTHER_NUMBERS = (
    "without it ONNX Runtime would choose other kernels for the ops around it, which round otherwise "
    "and may saturate on x64 CPUs without VNNI"
)
"""The reason for not making a repair, for messages."""


class ByteFusing:
    """The tensors of a model whose readers must stay, so that ONNX Runtime joins what it joined before.

    From its level "extended" on, ONNX Runtime joins DQ → op → Q into one integer kernel. That kernel rounds otherwise than
    the float op, and where it multiplies unsigned by signed bytes it saturates on x64 CPUs without VNNI. Two things decide:

    - Nothing but the Q may read the op's float result, not even a node that leads nowhere.
    - On x64 int8 becomes uint8 first, but only in a tensor that a Q makes and a single DQ reads, for a single reader; an op
      is joined if all its data is of one type then.

    So a repair that changes who reads these tensors would change numbers, on some CPUs or on all.

    Attributes:
        results: Float tensors beside an op that computes with dequantized numbers: what ops have moved between the DQ and
            it, and what leads from it to the Q behind it.
        signed: Where there is such an op, the signed bytes that Qs make and what DQs and moving ops make of them: ONNX
            Runtime merges pairs and drops moving ops first, so each of them may come to stand beside the op.
    """

    def __init__(self, model: ir.Model, gone: Collection[ir.Node] = ()) -> None:
        """Look at a model as it will be once some nodes are gone."""
        nodes = [node for place in all_graphs(model) for node in place.graph if node not in gone]
        real = _spread((node.outputs[0] for node in nodes if is_qdq(node, DEQUANTIZE)), _moved_to)
        joined = [node for node in filter(_computes, nodes) if not real.isdisjoint(node.inputs)]
        signed = filter(_makes_signed_bytes, nodes if joined else ())
        self.results = _results(joined, real)
        self.signed = _spread((node.outputs[0] for node in signed), _moved_or_dequantized)

    def holds(self, values: Iterable[ir.Value | None]) -> bool:
        """Whether ONNX Runtime might join other ops if one of these tensors had other readers."""
        return any(value in self.results or value in self.signed for value in values)


def _results(joined: list[ir.Node], real: set[ir.Value]) -> set[ir.Value]:
    moved = {value for value in real if joined and not is_made_by(value, DEQUANTIZE)}
    return moved | _spread((output for node in joined for output in node.outputs), _moved_to)


def is_made_by(value: ir.Value, op_type: str) -> bool:
    """Whether a node of an op type, Q or DQ, makes a tensor."""
    maker = value.producer()
    return maker is not None and is_qdq(maker, op_type)


def is_between_pair(value: ir.Value) -> bool:
    """Whether a Q makes a tensor and a single DQ reads it, for a single reader."""
    uses = list(value.uses())
    if not is_made_by(value, QUANTIZE) or value.is_graph_output() or len(uses) != 1:
        return False
    reader = uses[0].node
    return is_qdq(reader, DEQUANTIZE) and len(reader.outputs[0].uses()) + reader.outputs[0].is_graph_output() == 1


def _computes(node: ir.Node) -> bool:
    return node.domain == "" and not is_moving(node) and not is_qdq(node, QUANTIZE) and not is_qdq(node, DEQUANTIZE)


def _spread(values: Iterable[ir.Value], onward: Callable[[ir.Value], list[ir.Value]]) -> set[ir.Value]:
    """Some tensors and all that can be reached from them, step by step."""
    reached: set[ir.Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in reached:
            reached.add(value)
            waiting += onward(value)
    return reached


def _moved_to(value: ir.Value) -> list[ir.Value]:
    """What ops that only move or limit numbers make of a tensor."""
    return [output for use in value.uses() if is_moving(use.node) for output in data_outputs(use.node)]


def _moved_or_dequantized(value: ir.Value) -> list[ir.Value]:
    return [*_moved_to(value), *(use.node.outputs[0] for use in value.uses() if is_qdq(use.node, DEQUANTIZE))]


def _makes_signed_bytes(node: ir.Node) -> bool:
    quantization = quantization_of(node) if is_qdq(node, QUANTIZE) else None
    return quantization is not None and quantization.element == ir.DataType.INT8


# Islands are float ops between DequantizeLinear and QuantizeLinear. Quantizing is monotonic: it never reverses the order of two
# numbers. So ops that move, repeat, choose or limit numbers do to the integers what they do to the floats, as long as all Q and
# DQ around them have one scale and one zero point.
_FIRST_OPSET = {
    4: {},
    8: dict.fromkeys((*MOVE, *MOVE_BYTES, "Concat", "Where"), 11) | dict.fromkeys(COMPARE, 12),
    16: dict.fromkeys((*MOVE, "Concat"), 11),
}
"""By the width of the integers, the opset from which ONNX Runtime 1.31 has an op's CPU kernel, as measured (Relu as Clip).

Left out: `Max` and `Min` of bytes, which ONNX Runtime 1.16 to 1.22 do not have, and Resize.
"""


_LEFT = "It stays as it is. Quantize both sides alike, as uint8 and for the whole tensor, to have it in integers."
_DEAD = (
    "some of its nodes lead nowhere and decide all the same which kernels ONNX Runtime chooses around them; on integers they "
    "would not, and other kernels round otherwise and may saturate on x64 CPUs without VNNI"
)
_OWN_KERNEL = (
    "ONNX Runtime has an integer kernel of its own for Where between them, QLinearWhere, and would choose another kernel for "
    "a Where of integers"
)
_TO_FILL = "Choose the rule fill_float_islands to have it in integers."
_REMEDIES = {
    "": _TO_FILL,
    _DEAD: "It stays as it is. Remove by hand what leads nowhere to have it in integers, and compare the numbers.",
    _OWN_KERNEL: "It stays as it is. Nothing needs to be done.",
}
"""What to do about an obstacle; `_LEFT` for all others."""


@dataclass(frozen=True)
class Island:
    """Connected float nodes, with nothing but DQ before and Q behind them.

    Attributes:
        nodes: The float nodes, in the order of the graph.
        sources: The DQ nodes before them.
        sinks: The Q nodes behind them.
        quantization: How all Q and DQ around quantize; None where they differ.
        obstacle: Why integers cannot go through as they are; empty where they can.
    """

    nodes: tuple[ir.Node, ...]
    sources: tuple[ir.Node, ...]
    sinks: tuple[ir.Node, ...]
    quantization: Quantization | None
    obstacle: str


def float_islands(model: ir.Model) -> list[Island]:
    """Every island of the model, in branches, bodies and functions too."""
    islands: list[Island] = []
    fusing = ByteFusing(model)
    for place in all_graphs(model):
        opset = (place.function.opset_imports if place.function is not None else model.opset_imports).get("", 0)
        islands += filter(None, (_island(nodes, opset, fusing) for nodes in _groups(place.graph)))
    if all(island.obstacle for island in islands):
        return islands
    needed = needed_nodes(model)
    return [replace(i, obstacle=i.obstacle or _dead_part(i, needed, fusing)) for i in islands]


def island_findings(model: ir.Model) -> tuple[Finding, ...]:
    """Every island as a note: integers could go through it as they are, or why not."""
    findings = []
    for island in float_islands(model):
        types = list(dict.fromkeys(node.op_type for node in island.nodes))
        reason = (
            f"{' and '.join(types)} {'works' if len(types) == 1 else 'work'} in float between DequantizeLinear and "
            f"QuantizeLinear: {island.obstacle or 'integers would give the same numbers'}"
        )
        remedy = _REMEDIES.get(island.obstacle, _LEFT)
        findings.append(Finding(NOTE, describe(island.nodes[0]), reason, remedy))
    return tuple(findings)


def _groups(graph: ir.Graph) -> list[list[ir.Node]]:
    """Moving nodes, grouped (union-find) so that nodes that pass data to each other within the graph are in one group."""
    leader = {node: node for node in graph if is_moving(node)}

    def lead(node: ir.Node) -> ir.Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in leader:
        for maker in (_maker(node, index) for index in data_inputs(node)):
            if maker is not None and maker in leader:
                leader[lead(node)] = lead(maker)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in leader:
        groups.setdefault(lead(node), []).append(node)
    return list(groups.values())


def _maker(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.producer()


def _island(nodes: list[ir.Node], opset: int, fusing: ByteFusing) -> Island | None:
    """The island that nodes form; None where other floats come in or go out."""
    before, behind = _sources(nodes), _sinks(nodes)
    if before is None or behind is None:
        return None
    kinds = {quantization_of(end) for end in (*before, *behind)}
    common = next(iter(kinds)) if len(kinds) == 1 else None
    if common is not None:
        obstacle = _obstacle(nodes, behind[0], common, opset) or _fused(before, behind, fusing)
    elif None in kinds:
        obstacle = "its scales are not constant or its integers are of no known type"
    else:
        obstacle = "scales, zero points or types before and behind it differ, so numbers are rounded anew"
    return Island(tuple(nodes), before, behind, common, obstacle)


def _sources(nodes: list[ir.Node]) -> tuple[ir.Node, ...] | None:
    """The DQ nodes that feed some nodes; None where other floats come in."""
    makers = dict.fromkeys(_maker(node, index) for node in nodes for index in data_inputs(node))
    inside = set(nodes)
    outside = [maker for maker in makers if maker not in inside]
    sources = tuple(maker for maker in outside if maker is not None and is_qdq(maker, DEQUANTIZE))
    return sources if len(sources) == len(outside) else None


def _sinks(nodes: list[ir.Node]) -> tuple[ir.Node, ...] | None:
    """The Q nodes that read the floats of some nodes; None where there are none, or the floats go elsewhere, too."""
    results, inside = _island_results(nodes), set(nodes)
    users = [use for use in _uses(results) if use[0] not in inside]
    if not users or any(result.is_graph_output() for result in results):
        return None
    is_sunk = all(is_qdq(user, QUANTIZE) and index == 0 for user, index in users)
    return tuple(dict.fromkeys(user for user, _ in users)) if is_sunk else None


def _island_results(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [output for node in nodes for output in data_outputs(node)]


def _uses(values: Iterable[ir.Value]) -> list[tuple[ir.Node, int]]:
    return [(use.node, use.idx) for value in values for use in value.uses()]


def _obstacle(nodes: list[ir.Node], sink: ir.Node, common: Quantization, opset: int) -> str:
    if not common.is_per_tensor:
        return "there is a scale for each channel"
    if not returns_every_integer(sink, common):
        return "float arithmetic does not give every integer back"
    for node in nodes:
        missing = _missing_form(node, common.element, opset) or _doubtful_bound(node, sink, common.element)
        if missing:
            return missing
    return _OWN_KERNEL if any(node.op_type == "Where" for node in nodes) else ""


def _fused(before: Iterable[ir.Node], behind: Iterable[ir.Node], fusing: ByteFusing) -> str:
    """The obstacle that ONNX Runtime makes unsigned bytes of int8 between Q and DQ only, not where an op reads the integers."""
    if not fusing.holds([*(node.inputs[0] for node in before), *(node.outputs[0] for node in behind)]):
        return ""
    return (
        "with int8 going through, ONNX Runtime on x64 would choose other kernels for the ops that compute before or behind "
        "it, which round otherwise and may saturate on CPUs without VNNI"
    )


def _dead_part(island: Island, needed: set[ir.Node], fusing: ByteFusing) -> str:
    """The obstacle that `remove_dead_code` keeps nodes that lead nowhere while they read a float result that others need."""
    results = _island_results(node for node in island.nodes if node in needed)
    readers = [user for user, _ in _uses(results) if user not in needed]
    return _DEAD if any(fusing.holds(reader.inputs) for reader in readers) else ""


def _missing_form(node: ir.Node, element: ir.DataType, opset: int) -> str:
    first = _FIRST_OPSET[WIDTHS[element]].get(node.op_type)
    op_type = "Clip" if node.op_type == "Relu" else node.op_type
    is_taken = takes(op_type, min(data_inputs(node), default=0), element, opset)
    if first is None or opset < first or not is_taken:
        since = "" if first is None else f" before opset {max(first, opset + 1)}"
        return f"there is no {node.op_type} of {element.name.lower()}{since}"
    return ""


def _doubtful_bound(node: ir.Node, sink: ir.Node, element: ir.DataType) -> str:
    for index in bounds_of(node):
        tensor = constant(node.inputs[index])
        if tensor is None or tensor.size != 1:
            return f"the bounds or the border of {describe(node)} are computed"
        number = float(tensor.numpy().reshape(-1)[0])
        if quantized(number, sink, element) is None:
            return f"{number} in {describe(node)} lies between two integers, and kernels may round it either way"
    return ""
