# SPDX-License-Identifier: Apache-2.0
"""torch's two exporters, called so that nothing of theirs but the graph is noticed."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.jit._trace import TracerWarning
from torch.utils._pytree import tree_map

from linger.errors import UsageError
from linger.onnx.exporter.options import ExportOptions
from linger.onnx.exporter.standard_output import without_torch_graph
from linger.onnx.exporter.unsupported_op_location import callers_of
from linger.quantization.core.qtensor import QTensor
from linger.simulation.example_call import ExampleCall

torch_export: Any = torch.onnx.export
"""torch's own function, taken before anybody redirects it; loosely typed, as it has changed with every release."""


_LOST_VALUE = "unordered_map::at"
"""All that torch says when the inside of a function of its own kind was not traced."""

_LOST_VALUE_REMEDY = (
    "Forward uses a reentrant checkpoint, or a torch.autograd.Function that uses tensors it is not given, which a trace "
    "cannot hold. Write checkpoint(…, use_reentrant=False), and give the function all it uses as arguments."
)

_UNKNOWN_WRAPPER = "Cannot insert a Tensor that requires grad as a constant"
"""What torch says to a quantised tensor that is given to a torch.autograd.Function."""


class FunctionMetError(UsageError):
    """A torch.autograd.Function was given a quantised tensor, which this trace does not follow."""


def trace(model: Any, call: ExampleCall, options: ExportOptions, target: io.BytesIO | Path) -> None:
    """Run torch's tracing exporter into a buffer or a file."""
    arguments: dict[str, Any] = {
        "export_params": options.export_params,
        "input_names": list(options.input_names) or None,
        "output_names": list(options.output_names) or None,
        "opset_version": options.opset,
        "do_constant_folding": options.do_constant_folding,
        "dynamic_axes": _plain_axes(options.dynamic_axes),
        "keep_initializers_as_inputs": bool(options.keep_initializers_as_inputs),
        "custom_opsets": dict(options.custom_opsets or {}) or None,
        **options.torch_keywords,
    }
    if options.operator_export_type is not None:
        arguments["operator_export_type"] = options.operator_export_type
    if options.training is not None:
        arguments["training"] = options.training
    if not options.strip_doc_string:
        arguments["verbose"] = True  # torch writes doc strings only when it also prints
    with _quietly(model, call):
        torch_export(model, tuple(call.tensors()), target, dynamo=False, **arguments)


def trace_dynamo(model: Any, call: ExampleCall, options: ExportOptions) -> bytes:
    """Run torch's torch.export-based exporter."""
    names = {"input_names": list(options.input_names) or None, "output_names": list(options.output_names) or None}
    shapes = options.dynamic_shapes
    if options.dynamic_axes:
        shapes = _shapes_from_axes(options)
    with _quietly(model, call):
        program = torch_export(
            model,
            tuple(call.tensors()),
            dynamo=True,
            opset_version=options.opset,
            dynamic_shapes=shapes,
            verbose=False,
            report=options.report,
            **names,
            **options.torch_keywords,
        )
    assert program is not None  # without a file torch returns the program
    content: bytes = program.model_proto.SerializeToString()
    return content


@contextlib.contextmanager
def _quietly(model: Any, call: ExampleCall) -> Iterator[None]:
    """No deprecation notices, no tracer warnings, no listing; errors of torch become one of ours."""
    handle = None
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        handle = model.register_forward_hook(_real_outputs)
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    try:
        exporter_log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), without_torch_graph():
            # the tracing exporter announces its own retirement on every call, and traces Python numbers on purpose
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", TracerWarning)
            yield
    except (RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError) as error:
        reason = " ".join(str(error).split())
        if reason.startswith(_UNKNOWN_WRAPPER):
            raise FunctionMetError(f"{type(model).__name__}: {reason}") from error
        if reason == _LOST_VALUE:
            reason += f". {_LOST_VALUE_REMEDY}"
        where = callers_of(model, call, reason)
        raise UsageError(f"{where}: torch cannot export the model: {reason}") from error
    finally:
        exporter_log.setLevel(level)
        if handle is not None:
            handle.remove()


def _real_outputs(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001 - a hook's signature
    """Outputs of a file are real values: each integer output gets its Dequant."""
    return tree_map(lambda leaf: leaf.dequantize() if isinstance(leaf, QTensor) else leaf, output)


def _plain_axes(axes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if not axes else {k: dict(v) if isinstance(v, Mapping) else list(v) for k, v in axes.items()}


def _shapes_from_axes(options: ExportOptions) -> tuple[Any, ...]:
    """dynamic_axes as dynamic_shapes, one entry per graph input."""
    dims: dict[str, Any] = {}
    entries: list[dict[int, Any] | None] = []
    for name in options.input_names:
        axes = (options.dynamic_axes or {}).get(name)
        if axes is None:
            entries.append(None)
            continue
        named = axes if isinstance(axes, Mapping) else {a: f"{name}_dynamic_axes_{i + 1}" for i, a in enumerate(axes)}
        entries.append({int(a): dims.setdefault(str(label), Dim(str(label))) for a, label in named.items()})
    return tuple(entries)


def axes_from_shapes(shapes: Any, input_names: tuple[str, ...]) -> dict[str, dict[int, str]]:
    """dynamic_shapes as dynamic_axes, for the tracing exporter."""
    by_name = shapes if isinstance(shapes, Mapping) else dict(zip(input_names, shapes, strict=False))
    result = {}
    for name, axes in by_name.items():
        if axes:
            pairs = axes.items() if isinstance(axes, Mapping) else enumerate(axes)
            result[name] = {
                int(a): getattr(d, "__name__", None) or (d if isinstance(d, str) else f"{name}_dim_{a}")
                for a, d in pairs
                if d is not None
            }
    return result


def declared_axes(options: ExportOptions) -> Mapping[str, Any]:
    """The axes that shall stay open, in either spelling, as dynamic_axes."""
    return options.dynamic_axes or axes_from_shapes(options.dynamic_shapes, options.input_names)
