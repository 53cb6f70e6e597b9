# SPDX-License-Identifier: Apache-2.0
"""Give every dialect node a function body, so that stock ONNX Runtime can run the file."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from linger.dialect import DOMAIN_VERSION
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import attributes_of, describe, is_dialect, op_of, opset_of
from linger.graph.core.walking import all_nodes
from linger.graph.forms.functions import DialectFunction, build_function
from linger.graph.forms.normal_form import bring_to_normal_form, element_bits_of, is_narrow_exact
from linger.numeric.onnx.writer import Derived, make_attribute

FUNCTION_IR_VERSION = 8
"""The IR version that introduced model-local functions; older runtimes refuse newer ones."""


def attach_functions(model: ir.Model) -> Changes:
    """Attach one function per op type and signature used.

    Leaves: every dialect node (integer Relu, MaxPool and Clip of the standard domain included) in a domain for which
    the model has a function, with every optional input and attribute present.

    Raises:
        UnsupportedError: Nodes whose op linger does not know, all of them named.
    """
    changes = bring_to_normal_form(model)
    library: dict[tuple[str, str | None, int, int, bool], DialectFunction] = {}
    for node in [n for n in all_nodes(model) if is_dialect(n) and n.op_identifier() not in model.functions]:
        op = op_of(node)
        attributes = attributes_of(node, op)
        arity, element_bits, is_narrow = len(node.inputs), element_bits_of(node), is_narrow_exact(node, op)
        key = (op.name, op.platform, arity, element_bits, is_narrow)
        if key not in library:
            library[key] = build_function(
                op, opset=opset_of(model), arity=arity, element_bits=element_bits, is_narrow_exact=is_narrow
            )
        chosen = library[key]
        node.domain = chosen.domain
        for name, value in attributes.items():
            if name not in node.attributes:
                node.attributes[name] = make_attribute(name, value)
        for name, derived in chosen.derived.items():
            node.attributes[name] = make_attribute(name, _compute(derived, attributes))
        changes.note(describe(node), f"runs as {chosen.domain}::{op.name}")
    for chosen in library.values():
        model.functions.setdefault(chosen.function.identifier(), chosen.function)
        model.graph.opset_imports.setdefault(chosen.domain, DOMAIN_VERSION)
    if library:
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
    return changes


def _compute(derived: Derived, attributes: dict[str, Any]) -> Any:
    return derived.compute(*(attributes[source.name] for source in derived.sources))
