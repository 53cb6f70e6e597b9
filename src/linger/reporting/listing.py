# SPDX-License-Identifier: Apache-2.0
"""A readable listing of a graph, weights left out."""

from __future__ import annotations

import onnx
from rich.console import Console


def listing(proto: onnx.ModelProto) -> str:
    """The model in ONNX's text form, with large tensors replaced by their size."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    lines = []
    for tensor in copy.graph.initializer:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        lines.append(f"#   {tensor.name}: {kind}{list(tensor.dims)}")
    del copy.graph.initializer[:]
    del copy.functions[:]
    header = [f"# {len(lines)} initializers"] if lines else []
    return "\n".join([onnx.printer.to_text(copy), *header, *lines])


def print_listing(proto: onnx.ModelProto) -> None:
    """What `verbose=True` asks for."""
    Console(soft_wrap=True).print(listing(proto), markup=False, highlight=False)
