# SPDX-License-Identifier: Apache-2.0
"""Call torch's two exporters without their notices, warnings and prints; their errors become one of ours."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn
from torch.export import Dim
from torch.jit._trace import TracerWarning
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from linger.errors import UsageError, listing
from linger.quantization.core.qtensor import QTensor
from linger.simulation.example_call import ExampleCall, Exportable

torch_export: Any = torch.onnx.export
"""torch's own function, taken before `redirect`; not typed, because its signature changes with every release."""


_LOST_VALUE = "unordered_map::at"
"""torch's whole message if a value is used whose computation was not traced."""

_LOST_VALUE_REMEDY = (
    "Forward uses a reentrant checkpoint, or a torch.autograd.Function that uses tensors it is not given, which a trace "
    "cannot hold. Write checkpoint(…, use_reentrant=False), and give the function all it uses as arguments."
)

_UNKNOWN_WRAPPER = "Cannot insert a Tensor that requires grad as a constant"
"""torch's message if a torch.autograd.Function gets a quantised tensor."""

TORCH_KEYWORDS = frozenset(
    {"autograd_inlining", "custom_translation_table", "optimize", "fallback", "profile", "dump_exported_program",
     "artifacts_dir", "export_modules_as_functions"}
)  # fmt: skip
"""Arguments of today's torch.onnx.export that are passed on unchanged."""

DynamicAxes = Mapping[str, Sequence[int] | Mapping[int, str]]
"""Axes whose size stays open: {name: [axes]} or {name: {axis: label}}."""

DynamicShapes = Mapping[str, Any] | Sequence[Any] | None
"""The same in the spelling of torch.export: for each input None, or a Dim by axis."""


@dataclass(frozen=True)
class TraceOptions:
    """The arguments of an export that torch's exporters get."""

    export_params: bool = True
    training: object = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    operator_export_type: object = None
    opset: int = 12
    do_constant_folding: bool = True
    strip_doc_string: bool = True
    dynamic_axes: DynamicAxes | None = None
    keep_initializers_as_inputs: bool | None = None
    custom_opsets: Mapping[str, int] | None = None
    dynamo: bool = False
    dynamic_shapes: DynamicShapes = None
    report: bool = False
    torch_keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_dynamic(self) -> bool:
        """Whether some size stays open."""
        return bool(self.dynamic_axes) or bool(self.dynamic_shapes)


class FunctionMetError(UsageError):
    """A torch.autograd.Function was given a quantised tensor, which this trace does not follow."""


def trace(model: Exportable, call: ExampleCall, options: TraceOptions, target: io.BytesIO | Path) -> None:
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


def trace_dynamo(model: Exportable, call: ExampleCall, options: TraceOptions) -> bytes:
    """Run torch's newer exporter, which is based on torch.export."""
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


@contextmanager
def _quietly(model: Exportable, call: ExampleCall) -> Iterator[None]:
    """Suppress deprecation notices, tracer warnings and listings; turn errors of torch into a UsageError."""
    handle = None
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        handle = model.register_forward_hook(_real_outputs)
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    try:
        exporter_log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), without_torch_graph():
            # the tracing exporter is deprecated, which it says on every call; that Python numbers become constants is intended
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


def _real_outputs(module: nn.Module, args: object, output: object) -> object:  # noqa: ARG001 - a hook's signature
    """Dequantise the outputs: those of a file are real values."""
    return tree_map(lambda leaf: leaf.dequantize() if isinstance(leaf, QTensor) else leaf, output)


def _plain_axes(axes: DynamicAxes | None) -> dict[str, Any] | None:
    return None if not axes else {k: dict(v) if isinstance(v, Mapping) else list(v) for k, v in axes.items()}


def _shapes_from_axes(options: TraceOptions) -> tuple[Any, ...]:
    """Translate dynamic_axes into dynamic_shapes, one entry per graph input."""
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


def axes_from_shapes(shapes: DynamicShapes, input_names: tuple[str, ...]) -> dict[str, dict[int, str]]:
    """Translate dynamic_shapes into dynamic_axes, for the tracing exporter."""
    by_name = shapes if isinstance(shapes, Mapping) else dict(zip(input_names, shapes or (), strict=False))
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


def declared_axes(options: TraceOptions) -> DynamicAxes:
    """The axes that are to stay open, as dynamic_axes, whichever spelling the user has chosen."""
    return options.dynamic_axes or axes_from_shapes(options.dynamic_shapes, options.input_names)


_GRAPH = b"Torch IR graph at exception: "
"""Begins what torch's C++ side prints when an export fails. It cannot be switched off: the exporter switches it on."""

_STDOUT = 1


@contextmanager
def without_torch_graph() -> Iterator[None]:
    """Keep torch's graph from file descriptor 1; what others write there meanwhile is written afterwards."""
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # standard output is closed: there is nothing to hide
        yield
        return
    with tempfile.TemporaryFile() as caught:
        _flush()
        os.dup2(caught.fileno(), _STDOUT)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
            _pass_on(caught)


def _pass_on(caught: IO[bytes]) -> None:
    caught.seek(0)
    waiting = caught.read().partition(_GRAPH)[0]
    while waiting:
        waiting = waiting[os.write(_STDOUT, waiting) :]


def _flush() -> None:
    """Flush what C code has printed, where the C library can be asked to."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)


_OPERATOR = re.compile(r"\b(\w+)::(\w+)")


class _OpWatch(TorchDispatchMode):
    """Notes which modules call each op: the label of the innermost module that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.callers: dict[str, dict[str, None]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        self.callers.setdefault(name, {}).update(dict.fromkeys(self.running[-1:]))
        return func(*args, **(kwargs or {}))

    def run(self, model: nn.Module, call: ExampleCall) -> None:
        """One forward pass of the model."""
        with ExitStack() as stack:
            for path, module in model.named_modules():
                label = f"{path or type(model).__name__} ({type(module).__name__})"
                before = module.register_forward_pre_hook(lambda *_, label=label: self.running.append(label))
                after = module.register_forward_hook(lambda *_: self.running.pop() and None, always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(self)
            model(*call.args, **call.kwargs)


def callers_of(model: object, call: ExampleCall, message: str) -> str:
    """The modules that call the op in an exporter's message; the model's type if none can be found.

    The tracing exporter says which op it cannot write, but not where it stands in the model.
    """
    fallback = type(model).__name__
    names = ["::".join(found) for found in _OPERATOR.findall(message)]
    if not names or not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return fallback
    watch = _OpWatch()
    try:
        watch.run(model, call)
    except Exception:  # noqa: BLE001 - this only looks for a better message than the one that is being reported
        return fallback
    found = [caller for name in names for caller in watch.callers.get(name, {})]
    return listing(dict.fromkeys(found)) or fallback
