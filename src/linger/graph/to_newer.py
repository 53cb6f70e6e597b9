# SPDX-License-Identifier: Apache-2.0
"""Nodes of the older dialect (domain `thinker`) as nodes of the newer one (domain `linger`): one plan per node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import Op, find_op, is_known
from linger.errors import listing
from linger.graph.conversion_plan import (
    NoEquivalent,
    Plan,
    Scene,
    content_of,
    drop_unused,
    known,
    known_number,
    made_attributes,
    renamed,
    replace_inputs,
    rewrite,
    sizes_of,
)
from linger.graph.dialect_node import is_dialect
from linger.graph.dialects import CELL_BITS, CELL_SCALE, NEWER, NEWER_OPS, QUANT_MODE, NewerOp
from linger.graph.older_attributes import platform_named

_WEIGHTS = 4
_BATCHED_AXES = 3
_KEEP = "Keep the file in the domain thinker, or convert the rest of it with partial=True."
_WITHOUT_ROUNDING = frozenset({"Quant", "Dequant", "Gather"})
"""Ops that round in one way only, or not at all: their nodes name no quant_mode."""

_NEWER_NAMES: Mapping[str, str] = {
    **{op.older: op.name for op in NEWER_OPS.values() if op.older is not None},
    "Conv2dInt": "QConv2d",
    "ConvTranspose2dInt": "QConvTranspose2d",
    "BatchNorm2dInt": "QBatchNorm2d",
    "AvgPool2dInt": "QAvgPool2d",
    "BmmInt": "QBmm",
}
"""The newer op for each older one; of several the customary."""

_WHY_NOT = {
    "LayerNormInt": "QLayerNorm normalises to Q15 in 32 bits, LayerNormInt to Q10 in 16 bits, so their numbers differ",
    "Requant": "it has no op that changes a scale alone; only a Requant in front of iqSigmoid or iqTanh goes with them",
}


def plan_newer(node: ir.Node, scene: Scene) -> Plan:
    """How to write a node of the older dialect in the newer one.

    Raises:
        NoEquivalent: It cannot be written there.
    """
    if not is_known(node.op_type):
        raise NoEquivalent(f"linger has no op {node.op_type!r}", _KEEP)
    op = find_op(node.op_type, platform_named(node))
    if op.standard_name is not None:
        return _plan_standard(node, op)
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    if op.name == "Requant" and _is_taken_in(node):
        return Plan(lambda: drop_unused(node.outputs[0]), "taken in by what follows")
    if op.name not in _NEWER_NAMES:
        raise NoEquivalent(f"the domain linger has no such op: {_WHY_NOT.get(op.name, 'none computes this')}", _KEEP)
    newer = NEWER_OPS[_NEWER_NAMES[op.name]]
    return _SPECIAL.get(op.name, _plan_plain)(node, newer, op, scene)


def _plan_standard(node: ir.Node, op: Op) -> Plan:
    """Integer Relu, MaxPool and Clip are of the standard domain in files of both dialects."""
    known_names = {a.name for a in op.attributes}
    attributes = {name: a for name, a in node.attributes.items() if name in known_names}
    return Plan(lambda: rewrite(node, "", op.standard_name or "", attributes), f"became standard {op.standard_name}")


def _plan_plain(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    del scene
    attributes = newer_attributes(node, newer, op)
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def newer_attributes(
    node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] | None = None
) -> dict[str, ir.Attr]:
    """The node's attributes under their newer names; widths that older nodes do not say come from their tensors.

    Raises:
        NoEquivalent: Attributes are missing.
    """
    written = made_attributes(more or {})
    missing = [a.name for a in op.attributes if a.is_required and a.name not in node.attributes]
    if missing:
        raise NoEquivalent(f"it lacks {listing(missing)}", "Export the file again, or add it.")
    for attribute in op.attributes:
        name = newer.older_names.get(attribute.name, attribute.name)
        if attribute.kind == "str" or name in written:
            continue  # platform_quant, castor_mode, mode, and the chip, which is written below
        given = node.attributes.get(attribute.name)
        written |= made_attributes({name: attribute.default}) if given is None else {name: renamed(given, name)}
    if op.is_variadic:
        written |= {name: a for name, a in node.attributes.items() if op.is_variadic_attribute(name)}
    if newer.name == "Dequant":
        return written
    written |= made_attributes({"platform": platform_named(node)})
    return written if newer.name in _WITHOUT_ROUNDING else written | made_attributes({"quant_mode": QUANT_MODE})


def _plan_quant(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    del scene
    attributes = newer_attributes(node, newer, op, {"zero_point": 0})
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def _plan_of_tensors(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """Ops whose older node does not say how wide its inputs are."""
    del scene
    real = [str(i) for i, value in enumerate(node.inputs) if value is not None and value.dtype == ir.DataType.FLOAT]
    if real:
        raise NoEquivalent(f"its input {listing(real)} is real; {newer.name} takes integers only", _KEEP)
    names = [f"x_{i}" for i in range(len(node.inputs))] if op.is_variadic else newer.inputs[: len(node.inputs)]
    widths = {f"{name}_bits": width_of(value) for name, value in zip(names, node.inputs, strict=False)}
    chosen = newer
    if op.name == "BmmInt" and any(len(sizes_of(v) or (0,) * _BATCHED_AXES) != _BATCHED_AXES for v in node.inputs):
        chosen = NEWER_OPS["QMatmul"]
    attributes = newer_attributes(node, chosen, op, widths)
    return Plan(lambda: rewrite(node, NEWER, chosen.name, attributes), f"became {chosen.name}")


def width_of(value: ir.Value | None) -> int:
    """The width of an integer tensor: what the node says that made it, else that of its storage; 8 where nothing is known."""
    seen = 0
    while value is not None and seen < _FAR:
        maker, seen = value.producer(), seen + 1
        if maker is not None and not maker.domain and maker.op_type in _MOVES:
            value = maker.inputs[0]
            continue
        if maker is None or not is_dialect(maker) or not is_known(maker.op_type):
            break
        op = find_op(maker.op_type)
        if op.output_bits is not None:
            defaults = {a.name: a.default for a in op.attributes}
            found = maker.attributes.get(op.output_bits)
            bits = defaults.get(op.output_bits) if found is None or found.is_ref() else found.value
            return bits if isinstance(bits, int) else 8
        value = maker.inputs[0] if maker.inputs else None
    return 8 if value is None or value.dtype is None else int(value.dtype.itemsize * 8)


_FAR = 64
"""How many Relus, pools and the like are looked through for a width."""

_MOVES = frozenset(
    {"Clip", "Expand", "Flatten", "Identity", "MaxPool", "Pad", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
) | {"Transpose", "Unsqueeze"}
"""Standard ops whose output has the width of their first input."""


def _plan_curve(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """A Requant that only widens goes: the newer op takes narrow input."""
    del scene
    before = _widening(node)
    if before is None:
        attributes = newer_attributes(node, newer, op, {"x_bits": width_of(node.inputs[0])})
        return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")
    source = before.inputs[0]
    taken = {"x_bits": known(before, "data_bits"), "scale_x": known_number(before, "scale_x")}
    attributes = newer_attributes(node, newer, op, taken)

    def edit() -> None:
        node.replace_input_with(0, source)
        rewrite(node, NEWER, newer.name, attributes)
        drop_unused(before.outputs[0])

    return Plan(edit, f"became {newer.name}, with the Requant before it")


def _widening(node: ir.Node) -> ir.Node | None:
    """The Requant in front of a curve, where it does nothing but shift left into a wider type."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is None or not is_dialect(maker) or maker.op_type != "Requant" or maker.graph is not node.graph:
        return None
    source, target = known_number(maker, "scale_x"), known_number(maker, "scale_o")
    narrow, wide = known(maker, "data_bits"), known(maker, "o_bits")
    is_exact = source > 0 and target == known_number(node, "scale_x") and target / source == 2.0 ** (wide - narrow)
    return maker if is_exact and wide > narrow else None


def _is_taken_in(node: ir.Node) -> bool:
    """Whether everyone who uses a Requant is a curve that takes it in."""
    output = node.outputs[0]
    users: Iterable[ir.Node] = output.consumers()
    is_curve = all(is_dialect(user) and user.op_type in ("iqSigmoid", "iqTanh") for user in users)
    return bool(users) and not output.is_graph_output() and is_curve and all(_widening(u) is node for u in users)


def _plan_batch_norm(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """The newer op has no running statistics; nothing reads them."""
    plain = _plan_plain(node, newer, op, scene)

    def edit() -> None:
        replace_inputs(node, node.inputs[:3])
        plain.edit()

    return Plan(edit, f"{plain.what}, without running statistics")


def _plan_pool(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    del scene
    attributes = newer_attributes(node, newer, op, {"count_include_pad": 1, "divisor_override": -1})
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def _plan_softmax(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """Chips with an arithmetic of their own read `axis`, which may stand beside `dim`."""
    del scene
    attributes = newer_attributes(node, newer, op)
    if "axis" in node.attributes:
        attributes["axis"] = node.attributes["axis"]
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def _plan_rows(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """The newer Gather says scale and width once."""
    del scene
    attributes = newer_attributes(node, newer, op)
    for own in ("scale_o", "o_bits"):
        attributes.pop(own)
    if (known(node, "scale_o"), known(node, "o_bits")) != (known(node, "scale_w"), known(node, "parameter_bits")):
        raise NoEquivalent("its rows have another scale or width than its table", "Make them the table's.")
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), "became Gather of the domain linger")


def _plan_recurrent(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """Real states get a Quant each; the newer op has no lengths, so only full ones can go."""
    if len(node.inputs) not in {len(form) for form in op.forms}:
        raise NoEquivalent(f"it has {len(node.inputs)} inputs, which no form of it has", "Export the file again.")
    given = dict(zip(op.form(len(node.inputs)), node.inputs, strict=True))
    if "lengths" in given and not _are_full(given["lengths"], node):
        raise NoEquivalent("its sequences have lengths, which the newer op cannot be told", _KEEP)
    states = [name for name in ("h", "c") if name in given]
    more: dict[str, Any] = {"has_hidden": int("h" in given)}
    if op.name == "LSTMInt":
        more |= {"has_cell": int("c" in given), "scale_c": CELL_SCALE}
    attributes = newer_attributes(node, newer, op, more)
    attributes.pop("dropout", None)
    quants = {"h": (known_number(node, "scale_h"), known(node, "o_bits")), "c": (CELL_SCALE, CELL_BITS)}

    def edit() -> None:
        made = [_quantized(node, given[name], *quants[name], attributes, scene) for name in states]
        replace_inputs(node, [given["x"], *made, *node.inputs[-_WEIGHTS:]])
        rewrite(node, NEWER, newer.name, attributes)

    return Plan(edit, f"became {newer.name}")


def _quantized(
    node: ir.Node, state: ir.Value | None, scale: float, bits: int, attributes: Mapping[str, ir.Attr], scene: Scene
) -> ir.Value:
    written = made_attributes({"data_bits": bits, "scale_x": scale, "zero_point": 0})
    written["platform"] = attributes["platform"]
    return scene.before(
        node,
        "Quant",
        [state],
        [written[name] for name in sorted(written)],
        domain=NEWER,
        wish=f"{node.outputs[0].name}_state",
        like=state,
        element=ir.DataType.INT32 if bits == CELL_BITS else ir.DataType.INT8 if bits <= 8 else ir.DataType.INT16,
    )


def _are_full(lengths: ir.Value | None, node: ir.Node) -> bool:
    """Whether every sequence is as long as the input."""
    content, sizes = content_of(lengths), sizes_of(node.inputs[0])
    time = 1 if known(node, "batch_first", 0) else 0
    if content is None or sizes is None or len(sizes) <= time:
        return False
    return bool(np.all(content == sizes[time])) if sizes[time] is not None else False


Planner = Callable[[ir.Node, NewerOp, Op, Scene], Plan]

_SPECIAL: Mapping[str, Planner] = {
    "Quant": _plan_quant,
    **dict.fromkeys(("iqAdd", "iqMul", "BmmInt", "iqCat", "iqGelu", "iqSwish"), _plan_of_tensors),
    **dict.fromkeys(("iqSigmoid", "iqTanh"), _plan_curve),
    "BatchNorm2dInt": _plan_batch_norm,
    "AvgPool2dInt": _plan_pool,
    "SoftmaxInt": _plan_softmax,
    "Gather": _plan_rows,
    **dict.fromkeys(("LSTMInt", "GRUInt"), _plan_recurrent),
}
