# SPDX-License-Identifier: Apache-2.0
"""A file that returns every tensor of its main graph, with the node, the scale and the width of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.core.dialects import POSITIVE, carried, is_dequant, stands_for
from linger.graph.core.nodes import graphs_in, required_inputs
from linger.graph.files.model_io import ModelLike
from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import Propagation
from linger.graph.network import Network
from linger.runtime.reference import Reference
from linger.runtime.session import Feeds, Session
from linger.verification.array_files import Array

ENGINES = ("onnxruntime", "numpy")

_MOVING = frozenset({"Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""Float ops whose outputs hold the numbers of their first input: what came from a Dequant still lies on its grid."""


class FileRunner:
    """One side of a comparison, run by "onnxruntime" or by "numpy"; `label` is its name in messages, where it has no path."""

    def __init__(self, model: ModelLike, label: str, engine: str = "onnxruntime") -> None:
        if engine not in ENGINES:
            raise UsageError(f"engine {engine!r} is none of {listing(ENGINES)}.")
        self.label = label_of(model) or label
        self._computed: Callable[[Feeds], dict[str, Array]]
        network = Network.of(model)
        if engine == "onnxruntime":
            session = Session(network, as_written=True)
            self.model, self._computed = session.model, session.intermediates
        else:
            self.model, self._computed = network.normal, Reference(network).intermediates
        self.facts = tensor_facts(self.model)
        self.inputs, self.outputs = (
            [value.name or "" for value in values] for values in (required_inputs(self.model), self.model.graph.outputs)
        )
        self.constants = constants_of(self.model)
        self.inside = [name for name in self.facts if self._is_inside(name) and name not in self.constants]
        """Tensors inside expanded nodes, as `conv/v3` beside `conv`."""

    def run(self, feed: dict[str, Array]) -> dict[str, Array]:
        """Every array that a node of the main graph computes, by name, in the order of execution.

        What lies inside an expanded node is left out: how a result is computed may differ between files.
        """
        found, left_out = self._computed(feed), {*self.inside, *self.constants, *self.inputs}
        return {
            name: array
            for name in self.facts
            if name not in left_out and isinstance(array := found.get(name), np.ndarray)
        }

    def _is_inside(self, name: str) -> bool:
        whole = stands_for(name.rpartition("/")[0])
        return name not in self.outputs and bool(whole) and (whole in self.facts or f"{whole}{POSITIVE}" in self.facts)

    def notes(self) -> list[str]:
        """Remarks on tensors that a comparison of the main graph leaves out."""
        inner = inner_tensor_count(self.model)
        if not inner:
            return []
        return [f"{self.label}: {inner} tensors inside branches and loops are not compared, only what these return."]


def label_of(model: ModelLike) -> str:
    """The path of a file; empty for a model in memory."""
    return str(Path(model)) if isinstance(model, (str, os.PathLike)) else ""


def constants_of(model: ir.Model) -> set[str]:
    """The tensors of the main graph that Constant nodes hold."""
    return {output.name or "" for node in model.graph if node.op_type == "Constant" for output in node.outputs}


@dataclass(frozen=True)
class TensorFact:
    """One tensor of the main graph, in the order of execution.

    Attributes:
        node: The name of the node that computes it; empty for an input.
        op_type: That node's type; `Input` for an input.
        order: Its place in the order of execution.
        scale: The factor from real values to its integers (for a float tensor: to the integers it was computed from).
        bits: The width of its integers.
    """

    name: str
    node: str
    op_type: str
    order: int
    scale: float | None = None
    bits: int | None = None


def tensor_facts(model: ir.Model) -> dict[str, TensorFact]:
    """Inputs and node outputs of a sorted main graph by name, in the order of execution; unsigned carriers as what they carry."""
    known = propagate(model)
    found: dict[str, TensorFact] = {}
    for value in required_inputs(model):
        name, fact = value.name or "", known.fact(value)
        scale = fact.scale if fact.scale is not None else _expected_scale(value)
        found[name] = TensorFact(name, "", "Input", len(found), scale, fact.bits)
    for node in model.graph:
        for output in node.outputs:
            if output.name:
                scale = _scale(node, output, known, found)
                bits = known.fact(output).bits
                name, _ = carried(output.name)
                # of a tensor that the file also has itself, its own node counts
                found.setdefault(name, TensorFact(name, node.name or "", node.op_type, len(found), scale, bits))
    return found


def inner_tensor_count(model: ir.Model) -> int:
    """How many tensors are in branches and loops, which a comparison of the main graph leaves out."""
    inner = graphs_in(model.graph)[1:]
    return sum(bool(output.name) for place in inner for node in place.graph for output in node.outputs)


def _scale(node: ir.Node, output: ir.Value, known: Propagation, found: dict[str, TensorFact]) -> float | None:
    if is_dequant(node):
        return _attribute(node, "scale_o") or known.fact(node.inputs[0]).scale
    if node.op_type == "DequantizeLinear" and not node.domain:
        return _linear_scale(node)
    stated = known.fact(output).scale
    return stated if stated is not None else _moved_scale(node, found)


def _moved_scale(node: ir.Node, found: dict[str, TensorFact]) -> float | None:
    """The scale of the first input, where the node only moves its numbers."""
    first = node.inputs[0] if node.op_type in _MOVING and not node.domain and node.inputs else None
    moved = None if first is None else found.get(first.name or "")
    return None if moved is None else moved.scale


def _attribute(node: ir.Node, name: str) -> float | None:
    found = node.attributes.get(name)
    if found is None or found.is_ref() or found.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
        return None
    return float(found.value) or None


def _linear_scale(node: ir.Node) -> float | None:
    """The scale of a DequantizeLinear, inverted since theirs divides and ours multiplies; None where there are several."""
    step = node.inputs[1] if len(node.inputs) > 1 else None
    if step is None or step.const_value is None or step.const_value.size != 1:
        return None
    length = float(step.const_value.numpy().reshape(())[()])
    return 1.0 / length if length else None


def _expected_scale(value: ir.Value) -> float | None:
    """The scale that the readers of an integer input expect; None where they disagree."""
    if value.dtype is None or not value.dtype.is_integer():
        return None
    expected = {_attribute(node, "scale_x") for node, index in value.uses() if index == 0}
    return expected.pop() if len(expected) == 1 else None
