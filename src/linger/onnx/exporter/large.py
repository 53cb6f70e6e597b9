# SPDX-License-Identifier: Apache-2.0
"""Float models too large for one protobuf: the graph is traced without weights, which are then streamed to a file."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor
from torch import nn

from linger.graph.files.model_io import save
from linger.onnx.exporter.naming import unwrap_names
from linger.onnx.exporter.options import ExportOptions
from linger.onnx.exporter.tracing import trace
from linger.onnx.operators.operator import attach_bodies
from linger.simulation.example_call import WRAPPED, ExampleCall

LIMIT = 2**31 - 2**27
"""A protobuf ends at 2 GiB; the graph itself needs some room."""


def is_large(model: Any) -> bool:
    """Whether a float model's weights do not fit into one protobuf."""
    if not isinstance(model, nn.Module):
        return False
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())) > LIMIT


def export_large(subject: nn.Module, call: ExampleCall, options: ExportOptions, target: Path) -> None:
    """Write the file and its data file; at no time are there two copies of the weights.

    Constants are not folded: a batch norm stays a node of its own.
    """
    buffer = io.BytesIO()
    trace(subject, call, replace(options, export_params=False, do_constant_folding=False), buffer)
    model = ir.from_proto(onnx.load_from_string(buffer.getvalue()))
    weights = dict(subject.state_dict(keep_vars=True))
    for value in list(model.graph.inputs):
        if value.name in weights:
            model.graph.inputs.remove(value)
            value.const_value = TorchTensor(weights[value.name].detach(), name=value.name)
            model.graph.register_initializer(value)
    if any(name.startswith(f"{WRAPPED}.") for name in model.graph.initializers):
        unwrap_names(model)
    attach_bodies(model, form=options.form)
    save(model, target, external_data=True)
