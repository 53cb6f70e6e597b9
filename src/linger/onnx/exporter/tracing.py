# SPDX-License-Identifier: Apache-2.0
"""The arguments of an export; torch's two exporters without their notices, warnings and prints.

Refuse traces with open sizes that hold the sizes of the example: the model is traced at other sizes too, and compared.

A trace keeps what Python computed from a size as a number. Two traces at two sizes then differ in a node, an attribute or a
constant, no matter whether torch, linger or the model's own code computed it.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import onnxscript
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.jit._trace import TracerWarning
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from linger.errors import LingerError, UnsupportedError, UsageError, listing
from linger.onnx.exporter.emission import NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE
from linger.quantization.core.qtensor import QTensor
from linger.simulation import ExampleCall, Exportable, repeated, tensors_in
from linger.verification.feeds import OpenAxis, other_sizes, resized_shape

torch_export: Any = torch.onnx.export
"""torch's own function, taken before `redirect`; not typed, because its signature changes with every release."""


_LOST_VALUE = "unordered_map::at"
"""torch's whole message if a value is used whose computation was not traced."""

_LOST_VALUE_REMEDY = (
    "Forward uses a reentrant checkpoint, or a torch.autograd.Function that uses tensors it is not given, which a trace "
    "cannot hold. Write checkpoint(…, use_reentrant=False), and give the function all it uses as arguments."
)

_UNKNOWN_WRAPPER = "Cannot insert a Tensor that requires grad as a constant"
"""torch's message if a torch.autograd.Function gets a quantized tensor."""

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
class ExportOptions:
    """All arguments of an export, under their names where they are taken as they are: of the trace, the graph, the last steps."""

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
    form: str = "dialect"
    is_update_dequant: bool = True
    is_input_quant: bool = False
    is_scoped_info: bool = True
    enable_onnx_checker: bool = True
    qdq_symmetric: bool = False
    integer_kernels: bool = True
    target: str | None = None
    debug_folder: Path | None = None
    verbose: bool = False
    external_data: bool | None = None
    simplify: bool = False
    allow_findings: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Whether some size stays open."""
        return bool(self.dynamic_axes) or bool(self.dynamic_shapes)

    @property
    def names(self) -> dict[str, list[str] | None]:
        """The names of inputs and outputs as torch's exporters take them."""
        return {"input_names": list(self.input_names) or None, "output_names": list(self.output_names) or None}


class FunctionMetError(UsageError):
    """A torch.autograd.Function was given a quantized tensor, which this trace does not follow."""


def trace(model: Exportable, call: ExampleCall, options: ExportOptions) -> bytes:
    """Run torch's tracing exporter."""
    axes = {k: dict(v) if isinstance(v, Mapping) else list(v) for k, v in (options.dynamic_axes or {}).items()}
    optional = {"operator_export_type": options.operator_export_type, "training": options.training}
    content = io.BytesIO()
    with _quietly(model, call):
        torch_export(
            model,
            tuple(call.tensors()),
            content,
            dynamo=False,
            export_params=options.export_params,
            opset_version=options.opset,
            do_constant_folding=options.do_constant_folding,
            dynamic_axes=axes or None,
            keep_initializers_as_inputs=bool(options.keep_initializers_as_inputs),
            custom_opsets=dict(options.custom_opsets or {}) or None,
            verbose=not options.strip_doc_string,  # torch writes doc strings only when it also prints
            **{name: value for name, value in optional.items() if value is not None},
            **options.names,
            **options.torch_keywords,
        )
    return content.getvalue()


def trace_dynamo(model: Exportable, call: ExampleCall, options: ExportOptions) -> bytes:
    """Run torch's newer exporter, which is based on torch.export."""
    with _quietly(model, call):
        program = torch_export(
            model,
            tuple(call.tensors()),
            dynamo=True,
            opset_version=options.opset,
            dynamic_shapes=_shapes_from_axes(options) if options.dynamic_axes else options.dynamic_shapes,
            verbose=False,
            report=options.report,
            **options.names,
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
        # the outputs of a file are real values
        handle = model.register_forward_hook(lambda _module, _args, output: tree_map(_dequantized, output))
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    try:
        exporter_log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), without_torch_graph():
            # the tracing exporter is deprecated, which it says on every call; that Python numbers become constants is intended
            for category in (DeprecationWarning, FutureWarning, UserWarning, TracerWarning):
                warnings.simplefilter("ignore", category)
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


def _dequantized(leaf: object) -> object:
    return leaf.dequantize() if isinstance(leaf, QTensor) else leaf


def _shapes_from_axes(options: ExportOptions) -> tuple[Any, ...]:
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


def declared_axes(options: ExportOptions) -> DynamicAxes:
    """The axes that are to stay open, as dynamic_axes, whichever spelling the user has chosen."""
    return options.dynamic_axes or axes_from_shapes(options.dynamic_shapes, options.input_names)


_GRAPH = b"Torch IR graph at exception: "
"""Begins what torch's C++ side prints when an export fails. It cannot be switched off: the exporter switches it on."""

_STDOUT = 1


@contextmanager
def without_torch_graph() -> Iterator[None]:
    """Keep torch's graph from file descriptor 1; what others write there meanwhile is written afterwards."""
    try:
        stdout = os.dup(_STDOUT)
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
            os.dup2(stdout, _STDOUT)
            os.close(stdout)
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
    names = ["::".join(match) for match in _OPERATOR.findall(message)]
    if not names or not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return fallback
    watch = _OpWatch()
    try:
        watch.run(model, call)
    except Exception:  # noqa: BLE001 - this only looks for a better message than the one that is being reported
        return fallback
    callers = [caller for name in names for caller in watch.callers.get(name, {})]
    return listing(dict.fromkeys(callers)) or fallback


_READS = frozenset(
    {"__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "__array__", "__contains__"}
)
_TORCH = str(Path(torch.__file__).parent)
_EXPORTER = str(Path(onnxscript.__file__).parent)
_LINGER = str(Path(__file__).parents[2])


class DecisionWatch(TorchFunctionMode):
    """Notes where the model's Python code reads values of tensors. Reading sizes is no such case."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, None] = {}
        self._from_values: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; note the line that calls it if it reads a value, and its results if they are made of values."""
        name = getattr(func, "__name__", "")
        has_values = any(t.is_floating_point() or id(t) in self._from_values for t in tensors_in((args, kwargs)))
        place = _place() if name in _READS and has_values else None
        if place is not None:
            self.places[place] = None
        result = func(*args, **(kwargs or {}))
        if has_values and name != "__get__":
            self._from_values |= {id(tensor): tensor for tensor in tensors_in(result)}
        return result

    def summary(self) -> str:
        """A warning for the user; empty if no value was read."""
        if not self.places:
            return ""
        return (
            f"export: forward reads values of tensors at {listing(list(self.places))}. The file keeps what they were for the "
            "example input, for every input. Compute with tensors instead (torch.where), and verify with other inputs."
        )


def _place() -> str | None:
    """The line of the model that reads a value; None if linger or the exporter reads it, or the file has a node for that code."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - inspect.stack would read every source file
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((_LINGER, _EXPORTER)) or _is_replaced(frame):
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_replaced(frame: FrameType | None) -> bool:
    """Whether a frame runs inside a torch.autograd.Function with a method `symbolic`, whose node replaces this code in the file."""
    functions = [kind for kind in _subclasses(torch.autograd.Function) if hasattr(kind, "symbolic")]
    replaced = {getattr(getattr(kind, "forward", None), "__code__", None) for kind in functions}
    while frame is not None:
        if frame.f_code in replaced:
            return True
        frame = frame.f_back
    return False


def _subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [each for child in children for each in (child, *_subclasses(child))]


@dataclass(frozen=True)
class Example:
    """The tensors of a trace, their names, and functions that run and trace the model on other tensors."""

    tensors: Sequence[Tensor]
    names: Sequence[str]
    run: Callable[[ExampleCall], None]
    trace: Callable[[ExampleCall], bytes]

    def open_axes(self, declared: DynamicAxes) -> list[OpenAxis]:
        """The declared axes, with the sizes that they have in the example."""
        result = []
        for name, tensor in zip(self.names, self.tensors, strict=False):
            axes = declared.get(name) or ()
            for axis in axes:
                place = int(axis) % tensor.dim()
                label = str(axes[axis]) if isinstance(axes, Mapping) else f"{name}[{place}]"
                result.append(OpenAxis(name, place, label, int(tensor.shape[place])))
        return result

    def elsewhere(self, axes: Sequence[OpenAxis]) -> ExampleCall | None:
        """The example resized to the first other sizes at which the model runs; None if it runs at no other."""
        for sizes in other_sizes(axes):
            shapes = [resized_shape(n, t.shape, sizes) for n, t in zip(self.names, self.tensors, strict=False)]
            resized = [repeated(t, shape) for t, shape in zip(self.tensors, shapes, strict=False)]
            call = ExampleCall((*resized, *self.tensors[len(resized) :]), {})
            try:
                self.run(call)
            except LingerError:
                continue
            return call
        return None


def require_open(content: bytes, example: Example, declared: DynamicAxes) -> None:
    """Refuse a trace that holds the sizes of its example; the message has the nodes, the axes and the remedy."""
    axes = example.open_axes(declared)
    if not axes:
        return
    elsewhere = example.elsewhere(axes)
    if elsewhere is None:
        warnings.warn(
            f"export: the model runs at none of the other sizes that were tried for {listing(map(str, axes))}, so nobody "
            "knows whether the file is right at another size than the example's. Fix the sizes, or verify with yours: "
            "linger.verify(model, file, inputs).",
            stacklevel=5,
        )
        return
    proto = onnx.load_from_string(content)
    fixed = _fixed(proto, axes)
    different = _differing(proto, onnx.load_from_string(example.trace(elsewhere)))
    if different or fixed:
        blamed = listing(f"{axis} ({axis.size})" for axis in fixed or _that_matter(axes, proto, example) or axes)
        raise UnsupportedError(
            f"export: {listing(different) or 'forward'}: the file would hold, for every input, what is computed here from the "
            f"example's size of {blamed}. Fix that size (leave the axis out of "
            "dynamic_axes), or write this without it: a number that Python computes from a shape is a constant of the file."
        )


def _fixed(proto: onnx.ModelProto, axes: Sequence[OpenAxis]) -> list[OpenAxis]:
    """The declared axes that have a fixed size in the trace all the same."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.input}
    return [axis for axis in axes if axis.tensor in dims and dims[axis.tensor][axis.axis].HasField("dim_value")]


def _that_matter(axes: Sequence[OpenAxis], proto: onnx.ModelProto, example: Example) -> list[OpenAxis]:
    """The axes that make a difference to the trace when each of them alone has another size."""
    result = []
    for axis in axes:
        elsewhere = example.elsewhere([axis])
        with suppress(LingerError):
            if elsewhere is not None and _differing(proto, onnx.load_from_string(example.trace(elsewhere))):
                result.append(axis)
    return result


def _differing(one: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    """Names of the nodes in which two traces differ; only the first where the traces have other nodes or another order."""
    left, right = _Reading(one.graph), _Reading(other.graph)
    kinds = [[(n.domain, n.op_type) for n in reading.nodes] for reading in (left, right)]
    if kinds[0] != kinds[1]:
        first = next((i for i, (a, b) in enumerate(zip(*kinds, strict=False)) if a != b), min(map(len, kinds)))
        return [f"{left.label(first)} (at another size {right.label(first)})"]
    lines = enumerate(zip(left.lines, right.lines, strict=True))
    return list(dict.fromkeys(left.label(i) for i, (a, b) in lines if a != b))


class _Reading:
    """Reads a graph as lines of text that do not depend on the names of its values."""

    def __init__(self, graph: onnx.GraphProto, outer: Mapping[str, str] | None = None) -> None:
        self.nodes = list(graph.node)
        self._known = dict(outer or {}) | {value.name: f"input {i}" for i, value in enumerate(graph.input)}
        self._known |= {tensor.name: _content(tensor) for tensor in graph.initializer}
        self.lines = [self._line(number, node) for number, node in enumerate(self.nodes)]
        self.lines += [self._known.get(value.name, "?") for value in graph.output]

    def _line(self, number: int, node: onnx.NodeProto) -> str:
        parts = [f"{node.domain}::{node.op_type}", *(self._known.get(name, "?") for name in node.input)]
        told = [a for a in node.attribute if a.name not in (NAME_ATTRIBUTE, PARAMETERS_ATTRIBUTE)]
        parts += [self._attribute(attribute) for attribute in sorted(told, key=lambda a: a.name)]
        self._known |= {name: f"{number}.{i}" for i, name in enumerate(node.output)}
        return "|".join(parts)

    def _attribute(self, attribute: onnx.AttributeProto) -> str:
        if attribute.type == onnx.AttributeProto.GRAPH:
            return "\n".join(_Reading(attribute.g, self._known).lines)
        if attribute.type == onnx.AttributeProto.TENSOR:
            return f"{attribute.name}={_content(attribute.t)}"
        return str(attribute.SerializeToString(deterministic=True))

    def label(self, number: int) -> str:
        """The module and op of a node; for a constant, those of the node that reads it."""
        number = min(number, len(self.nodes) - 1)
        node = self.nodes[number]
        if node.op_type == "Constant":
            node = next((n for n in self.nodes if node.output[0] in n.input), node)
        known = {a.name: a for a in node.attribute}
        if NAME_ATTRIBUTE in known:
            return str(known[NAME_ATTRIBUTE].s, "utf-8")
        return str(node.name.lstrip("/").replace("/", ".") or node.op_type)


def _content(tensor: onnx.TensorProto) -> str:
    unnamed = onnx.TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.name = ""
    digest = hashlib.sha256(unnamed.SerializeToString(deterministic=True)).hexdigest()
    return f"{tensor.data_type}{list(tensor.dims)}{digest}"
