# SPDX-License-Identifier: Apache-2.0
"""Everything in a model that a chip does not take, or not as it is meant. Looks only; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import onnx
import onnx_ir as ir

from linger.checks.findings.node_places import places_of
from linger.checks.limits import operands as operand_limits
from linger.checks.limits import packing as packing_limits
from linger.checks.limits import products as product_limits
from linger.checks.limits import windows as window_limits
from linger.checks.limits.target_rules import TARGET_RULES
from linger.errors import LingerError
from linger.graph.conversion.convert import convert_nodes, has_nodes_of
from linger.graph.core.dialects import NEWER, NEWER_OPS, OLDER, is_newer
from linger.graph.core.finding import ERROR, SEVERITIES, Finding, Rule, Shape, Site
from linger.graph.core.walking import all_nodes
from linger.graph.files.model_io import copied
from linger.graph.forms.attach_functions import attach_functions
from linger.targets import Target

_EVERY_NODE: tuple[Rule, ...] = (
    packing_limits.check_known,
    packing_limits.check_platform,
    packing_limits.check_compared,
    operand_limits.check_scales,
    packing_limits.check_tensor_widths,
)
_TABLES = (window_limits.RULES, product_limits.RULES, operand_limits.RULES, packing_limits.RULES)


def target_findings(model: ir.Model, target: Target, *, skip: Collection[str] = ()) -> tuple[Finding, ...]:
    """What a chip has against a model, the worst first, in the order of the nodes.

    Sizes come from shape inference through the bodies of the dialect's ops. A limit that depends on an open size gives a
    finding of the severity "note". Nodes of the domain `linger` are judged as the older ops that the packer takes them
    for. The model is not changed.

    Args:
        model: The model.
        target: The chip.
        skip: Nodes, as findings name them, that are not asked: their attributes or operands are not those of their op.
    """
    found: list[Finding] = []
    if has_nodes_of(model, NEWER):
        found += _unpacked_names(model, target)
        model = copied(model)
        convert_nodes(model, OLDER, partial=True)
    shapes, types = _known_tensors(model, is_sound=not skip)
    found += [_of(packing_limits.check_model, f) for f in packing_limits.check_model(model, target)]
    for place in places_of(model.graph):
        node = place.node
        if str(place) in skip:
            continue
        site = Site(node, shapes, types)
        rules = (*_EVERY_NODE, *(rule for table in _TABLES for rule in table.get(node.op_type, ())))
        for rule in rules:
            found += (replace(_of(rule, f), node=str(place)) for f in rule(site, target))
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _unpacked_names(model: ir.Model, target: Target) -> list[Finding]:
    """Names of the newer dialect that the packer does not know, although it knows an op that computes the same."""
    found = []
    for place in places_of(model.graph):
        op = NEWER_OPS.get(place.node.op_type) if is_newer(place.node) else None
        if op is not None and not op.is_packed and op.older in target.ops:
            reason = f"{target.name}'s packer does not know the name {op.name}"
            remedy = f"linger.convert_dialect(model, to={OLDER!r}) writes it as {op.older}."
            found.append(_of(packing_limits.check_known, Finding(ERROR, str(place), reason, remedy)))
    return found


def _of(rule: Callable[..., Iterable[Finding]], finding: Finding) -> Finding:
    return replace(finding, rule=TARGET_RULES[rule].id)


def _inferred(model: ir.Model) -> ir.Model:
    """A copy with the types and shapes that follow from each other, as far as that goes."""
    copy = ir.from_proto(ir.to_proto(model))
    try:
        attach_functions(copy)
        proto = ir.to_proto(copy)
        del proto.graph.value_info[:]  # half-known ones would stop the inference
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    except (LingerError, onnx.shape_inference.InferenceError, ValueError):  # ValueError: absurd sizes
        return copy


def _known_tensors(model: ir.Model, *, is_sound: bool) -> tuple[dict[str, Shape], dict[str, ir.DataType]]:
    """Shapes and types by name; of a file with ops that linger does not know, those that the file itself tells."""
    copy = _inferred(model) if is_sound else model
    shapes: dict[str, Shape] = {}
    types: dict[str, ir.DataType] = {}
    values = [*copy.graph.inputs, *copy.graph.initializers.values()]
    values += [value for node in all_nodes(copy) for value in node.outputs]
    for value in values:
        if value.name is None:
            continue
        if value.shape is not None:
            shapes[value.name] = tuple(n if isinstance(n, int) else None for n in value.shape)
        if value.dtype is not None:
            types[value.name] = value.dtype
    return shapes, types
