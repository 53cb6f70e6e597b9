# SPDX-License-Identifier: Apache-2.0
"""Steps on the finished graph that a user can ask for: simplify it, check the limits of a chip."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from linger.checks.limits.limit import BY_EXPORT, NO_EXACT_FORM
from linger.checks.limits.target_findings import target_findings
from linger.checks.limits.whole_file import PLATFORM
from linger.errors import GraphError, UnsupportedError, UsageError, install_line
from linger.graph.core.finding import ERROR, NOTE
from linger.graph.core.nodes import all_nodes, is_dialect
from linger.numeric.fixed import limits
from linger.onnx.exporter.naming import keep_scalars_as_nodes
from linger.runtime.session import ORT_ERRORS
from linger.targets import find_target

_COMPARED_BITS = 8

RELATIVE_TOLERANCE = 1e-4
"""A simplifier may compute floats in another order: a few hundred roundings of 2^-24 each stay far below this."""


def list_initializers(proto: onnx.ModelProto) -> None:
    """List the initializers among the graph's inputs, too, as runtimes of before IR version 4 want it."""
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in known:
            shape = ir.Shape(tuple(tensor.dims))
            value = ir.Value(name=tensor.name, type=ir.TensorType(ir.DataType(tensor.data_type)), shape=shape)
            proto.graph.input.append(ir.to_proto(value))


def simplify(proto: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> onnx.ModelProto:
    """Simplify a model, keeping dialect nodes and functions, and compare its outputs on the example input.

    Raises:
        UsageError: Neither tool is installed.
        GraphError: The tool changed what the model computes.
    """
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    after = _run_tool(proto)
    model = ir.from_proto(after)
    keep_scalars_as_nodes(model)
    after = ir.to_proto(model)
    _require_same_nodes(before, after)
    if before.functions or not any(node.domain for node in before.graph.node):
        _require_same_results(before, after, inputs)
    return after


def _run_tool(proto: onnx.ModelProto) -> onnx.ModelProto:
    if importlib.util.find_spec("onnxslim") is not None:
        slimmed: onnx.ModelProto = importlib.import_module("onnxslim").slim(proto)
        return slimmed
    if importlib.util.find_spec("onnxsim") is not None:
        simplified: onnx.ModelProto = importlib.import_module("onnxsim").simplify(proto)[0]
        return simplified
    raise UsageError(f"export: simplify=True needs onnxslim or onnxsim. Install them with: {install_line('simplify')}")


def _require_same_nodes(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    counts = [
        sorted(node.op_type for node in all_nodes(ir.from_proto(model)) if is_dialect(node))
        for model in (before, after)
    ]
    if counts[0] != counts[1] or len(before.functions) != len(after.functions):
        raise GraphError("export: the simplifier removed dialect nodes or functions. Export with simplify=False.")


def _require_same_results(before: onnx.ModelProto, after: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> None:
    old, new = (_run(model, inputs) for model in (before, after))
    is_exact = bool(before.functions)
    for name, want, have in zip([o.name for o in before.graph.output], old, new, strict=True):
        if want.shape != have.shape or not (
            np.array_equal(want, have) if is_exact else np.allclose(want, have, rtol=RELATIVE_TOLERANCE, atol=1e-5)
        ):
            raise GraphError(f"export: the simplified file computes another {name!r}. Export with simplify=False.")


def _run(proto: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {i.name: _as_wanted(i.type, x) for i, x in zip(session.get_inputs(), inputs, strict=False)}
        result: list[NDArray[Any]] = session.run(None, feeds)
    except ORT_ERRORS as error:
        raise GraphError(f"export: the simplified file does not run ({error}). Export with simplify=False.") from error
    return result


def _as_wanted(kind: str, x: NDArray[Any]) -> NDArray[Any]:
    """An example in the type of an input; any integers serve for a comparison of two files (`is_input_quant`)."""
    bits = {"tensor(int8)": 8, "tensor(int16)": 16, "tensor(int32)": 32}.get(kind)
    if bits is None or x.dtype.kind != "f":
        return x
    low, high = limits(min(bits, _COMPARED_BITS))
    integers: NDArray[Any] = np.clip(np.rint(x * high), low, high).astype(f"int{bits}")
    return integers


logger = logging.getLogger(__name__)


def require_suitable(proto: onnx.ModelProto, target: str) -> None:
    """Refuse a model that the chip cannot take; log what may go wrong and what could not be checked.

    Raises:
        UnsupportedError: There are errors among the findings; all findings are in the message.
    """
    found = [
        replace(finding, remedy=NO_EXACT_FORM)
        if BY_EXPORT.format(target) in finding.remedy
        else finding  # it was tried
        for finding in target_findings(ir.from_proto(proto), find_target(target))
        if (finding.rule, finding.severity) != (PLATFORM.id, NOTE)  # the user has just named the chip
    ]
    errors = sum(f.severity == ERROR for f in found)
    if errors:
        listed = "\n".join(f"  {f.severity}: {f}" for f in found)
        raise UnsupportedError(
            f"export: {target} cannot take this model: {errors} of {len(found)} findings are errors. Nothing was written.\n"
            f"{listed}"
        )
    for finding in found:
        level = logging.INFO if finding.severity == NOTE else logging.WARNING
        logger.log(level, "export for %s: %s", target, finding)
