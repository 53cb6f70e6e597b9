# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.export: a model becomes an ONNX file, and the model stays as it was."""

from __future__ import annotations

import inspect
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import onnx
import onnx_ir as ir
import torch.onnx
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor, nn
from torch.onnx import TrainingMode
from torch.utils._pytree import tree_leaves

from linger.analysis.batches import Forward, kept_attributes
from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.errors import UnsupportedError, UsageError, VerificationError, listing
from linger.files import write_atomically
from linger.graph.files.model_io import save
from linger.graph.passes.dequants import cancel_dq_q
from linger.onnx.exporter.assembly import assemble
from linger.onnx.exporter.emission import SymbolicEmitter, TraceEmitter, WrapperTrace
from linger.onnx.exporter.finishing import list_initializers, require_suitable, unwrap_names
from linger.onnx.exporter.finishing import simplify as simplify_model
from linger.onnx.exporter.forms import OPSET, chosen_form
from linger.onnx.exporter.options import (
    ExportOptions,
    check_keywords,
    check_names,
    check_options,
    check_place,
    check_tensors,
    warn_about_removed,
    with_names,
    with_one_sample,
    with_target,
)
from linger.onnx.exporter.tracing import (
    DecisionWatch,
    DynamicAxes,
    DynamicShapes,
    Example,
    FunctionMetError,
    declared_axes,
    require_open,
    torch_export,
    trace,
    trace_dynamo,
)
from linger.onnx.operators.operator import attach_bodies, translation_table, with_bodies
from linger.proof import verify as prove
from linger.quantization.core.distributed.fsdp import refuse_sharded
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Runtime, runtime_of
from linger.reporting.tree import print_listing
from linger.simulation.example_call import (
    WRAPPED,
    ExampleCall,
    Exportable,
    FlatModel,
    as_constant_of_a_trace,
    default_names,
    preserved,
    read_call,
    run_once,
)
from linger.verification.feeds import OWN_TRIALS

Target = str | os.PathLike[str] | IO[bytes]

LIMIT = 2**31 - 2**27
"""A protobuf has at most 2 GiB; some of it is left for the graph itself."""


def export(
    model: Exportable,
    args: object,
    f: Target,
    export_params: bool = True,  # noqa: FBT001, FBT002
    verbose: bool = False,  # noqa: FBT001, FBT002
    training: object = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    aten: bool = False,  # noqa: FBT001, FBT002
    export_raw_ir: bool = False,  # noqa: FBT001, FBT002
    operator_export_type: object = None,
    opset_version: int | None = None,
    _retain_param_name: bool = True,  # noqa: FBT001, FBT002
    do_constant_folding: bool = True,  # noqa: FBT001, FBT002
    example_outputs: object = None,
    strip_doc_string: bool = True,  # noqa: FBT001, FBT002
    dynamic_axes: DynamicAxes | None = None,
    keep_initializers_as_inputs: bool | None = None,  # noqa: FBT001
    custom_opsets: Mapping[str, int] | None = None,
    enable_onnx_checker: bool = True,  # noqa: FBT001, FBT002
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
    is_update_dequant: bool = True,  # noqa: FBT001, FBT002
    is_input_quant: bool = False,  # noqa: FBT001, FBT002
    is_scoped_info: bool = True,  # noqa: FBT001, FBT002
    debug_dump: bool | str | os.PathLike[str] = False,  # noqa: FBT001, FBT002
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamo: bool = False,
    dynamic_shapes: DynamicShapes = None,
    external_data: bool | None = None,
    report: bool = False,
    verify: bool = False,
    form: str | None = None,
    qdq_symmetric: bool = False,
    integer_kernels: bool = True,
    simplify: bool = False,
    target: str | None = None,
    allow_findings: bool = False,
    **torch_keywords: Any,
) -> None:
    """Write a model as an ONNX file, with any argument of the old or of today's torch.onnx.export.

    A quantized model becomes nodes of the `thinker` dialect with integer weights, a Dequant wherever a float op or an
    output needs real values. A float model gives the graph of torch's own tracing exporter at the opset asked for.

    Args:
        model: Quantized (and calibrated or trained), float, scripted or traced. It is not changed.
        args: Example input: a tensor, a tuple of arguments (the last may be a dict of keywords), a dict, or another form of the
            page "Inputs".
        f: Path or binary file object. A path is written whole or not at all.
        export_params: False: weights become typed inputs of the graph.
        verbose: Print a listing of the exported graph.
        training: torch's TrainingMode for a float model; a quantized model is exported in evaluation form.
        input_names: Names of the graph's inputs; None, or fewer than there are: as forward's parameters are called.
        output_names: Names of the graph's outputs; None, or fewer than there are: `output`, `output_1`, ….
        aten: Removed from torch; ignored with a DeprecationWarning.
        export_raw_ir: As `aten`.
        operator_export_type: torch's OperatorExportTypes, e.g. ONNX_ATEN_FALLBACK.
        opset_version: 11 to 20 for a quantized model, 9 to 20 for a float one; 12 if not given.
        _retain_param_name: As `aten`.
        do_constant_folding: Let torch fold constants (and batch norms) of float parts.
        example_outputs: As `aten`.
        strip_doc_string: False keeps torch's source locations in the nodes.
        dynamic_axes: Axes whose size stays open: {name: [axes]} or {name: {axis: label}}.
        keep_initializers_as_inputs: List the weights among the graph's inputs too.
        custom_opsets: Versions of custom domains.
        enable_onnx_checker: False: do not check the result.
        use_external_data_format: The older name of `external_data`.
        is_update_dequant: False: leave the Dequant nodes out (a file to look at), with a warning.
        is_input_quant: Integer inputs and outputs: no Quant after an input, no Dequant before an output.
        is_scoped_info: Node names follow module paths.
        debug_dump: True or a folder: keep every stage of the export there.
        kwargs: Keyword arguments of the example call.
        dynamo: Use torch's newer exporter (opset 18 and up): the same nodes, the same integers.
        dynamic_shapes: The newer spelling of `dynamic_axes`.
        external_data: Weights in a file of their own; None: where the model would pass 2 GB.
        report: Let torch's newer exporter write its report.
        verify: Compare the file with the model, every integer, and write it only if they are equal.
        form: "dialect", "bare", "standard" or "qdq"; None: the one that the target's packer takes, "dialect" without a target.
        qdq_symmetric: With form "qdq": zero points of 0 and real biases only, as TensorRT demands.
        integer_kernels: With form "standard": 8-bit layers in ONNX's integer kernels and curves as tables. False: float nodes only, for
            runtimes that requantize otherwise than ONNX Runtime.
        simplify: Simplify the result (extra `simplify`).
        target: "venus", "arcs" or "venusA": write what this chip computes exactly, with a batch of 1, and refuse what it
            cannot take, with the remedies. None: the target that linger.init was given, if any; else no limits.
        allow_findings: Write the file for a chip also where the chip cannot take it; `linger.check` then says why.
        torch_keywords: Further arguments of today's torch.onnx.export.

    Raises:
        UsageError: An argument is wrong, a layer has no scale, the model fails on the example input.
        UnsupportedError: The target cannot take the model; the message has every finding, and nothing is written.
    """
    check_place(f)
    warn_about_removed(
        aten=aten,
        export_raw_ir=export_raw_ir,
        _retain_param_name=_retain_param_name,
        example_outputs=example_outputs,
    )
    check_keywords(torch_keywords, inspect.signature(export).parameters)
    if "torch.distributed.tensor" in sys.modules:  # else nothing is sharded
        refuse_sharded(model, "export")
    runtime = runtime_of(model) if isinstance(model, nn.Module) else None
    own_target = None if runtime is None else runtime.target
    options = ExportOptions(
        export_params=export_params,
        verbose=verbose,
        training=training,
        input_names=tuple(input_names or ()),
        output_names=tuple(output_names or ()),
        operator_export_type=operator_export_type,
        opset=_default_opset(opset_version, is_dynamo=dynamo),
        do_constant_folding=do_constant_folding,
        strip_doc_string=strip_doc_string,
        dynamic_axes=dynamic_axes or None,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
        custom_opsets=custom_opsets,
        enable_onnx_checker=enable_onnx_checker,
        external_data=True if use_external_data_format else external_data,
        is_update_dequant=is_update_dequant,
        is_input_quant=is_input_quant,
        is_scoped_info=is_scoped_info,
        debug_folder=_debug_folder(debug_dump, f),
        dynamo=dynamo,
        dynamic_shapes=dynamic_shapes,
        report=report,
        form=chosen_form(form, target or own_target),
        is_qdq_symmetric=qdq_symmetric,
        has_integer_kernels=integer_kernels,
        simplify=simplify,
        target=target,
        allow_findings=allow_findings,
        torch_keywords=torch_keywords,
    )
    call = read_call(model, args, kwargs)
    check_tensors(model, call.tensors(), options.opset, is_quantized=runtime is not None)
    content = _convert(model, call, options, f)
    if content is None:
        return  # a large float model, which is written already; there are no integers to compare
    if verify:
        require_equal(model, call, content, f)
    _write(f, content, options)


def export_debug(model: Exportable, args: object, f: Target, *positional: Any, **options: Any) -> None:
    """`export` under the name the documents use for debugging: the same arguments, the same defaults."""
    export(model, args, f, *positional, **options)


def redirect() -> None:
    """Make `torch.onnx.export` linger's, as after `linger.init`; `restore` undoes it."""
    setattr(torch.onnx, "export", export)  # noqa: B010 - the types differ on purpose


def restore() -> None:
    """Give torch its own export back; harmless when nothing was redirected."""
    setattr(torch.onnx, "export", torch_export)  # noqa: B010


def _convert(model: Exportable, call: ExampleCall, options: ExportOptions, f: Target) -> bytes | None:
    """The finished file's content (None: too large for memory, already written); the model is as before afterwards."""
    was_training = bool(getattr(model, "training", False))
    with preserved(model) as runtime:
        _refuse_parts(model, is_quantized=runtime is not None)
        options = _completed(model, call, options, runtime)
        # torch's exporter passes defaults of arguments that are taken by name only as if they were taken by position
        is_wrapped = not call.is_plain or Forward.of(model).has_names_only
        subject = FlatModel(model, call) if is_wrapped else model
        if runtime is None:
            training = _training_mode(options.training, was_training=was_training)
            return _convert_float(subject, call, replace(options, training=training), f)
        content, watch = _trace_quantized(subject, call, options, runtime)
    proto = assemble(content, options, is_wrapped=is_wrapped)
    if options.keep_initializers_as_inputs:
        list_initializers(proto)
    _warn_about_losses(proto, call, watch)
    return _finished(proto, call, options, is_quantized=True)


def _completed(model: Exportable, call: ExampleCall, options: ExportOptions, runtime: Runtime | None) -> ExportOptions:
    """The options with the model's chip and a name for every input and output, checked against a run of the model."""
    if runtime is not None:
        options = with_target(options, runtime.target)
    check_options(options, is_quantized=runtime is not None)
    with kept_attributes(model):
        output = run_once(model, call)
    tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
    options = with_names(options, default_names(model, call), len(tensors))
    if options.dynamic_shapes and not options.dynamo:
        options = replace(options, dynamic_axes=declared_axes(options), dynamic_shapes=None)
    check_names(options, [t.dim() for t in call.tensors()], [t.dim() for t in tensors])
    return options if options.target is None else with_one_sample(options, [tuple(t.shape) for t in call.tensors()])


def _trace_quantized(
    subject: Exportable, call: ExampleCall, options: ExportOptions, runtime: Runtime
) -> tuple[bytes, DecisionWatch]:
    """Trace the model; return what torch's exporter wrote, and where Python read values meanwhile."""
    runtime.emitter = SymbolicEmitter() if options.dynamo else TraceEmitter(is_dynamic=options.is_dynamic)
    opsets = {**(options.custom_opsets or {}), DOMAIN: DOMAIN_VERSION}
    options = replace(
        options, export_params=True, training=None, custom_opsets=opsets, keep_initializers_as_inputs=False
    )
    axes = declared_axes(options) if options.is_dynamic else {}
    runtime.has_open_sizes = any(int(axis) != 0 for places in axes.values() for axis in places)
    with DecisionWatch() as watch:
        content = _run_quantized(subject, call, options, runtime)
    if axes:
        content = _opened(content, _example(subject, call, options, runtime), axes, runtime)
    return content, watch


def _opened(content: bytes, example: Example, axes: DynamicAxes, runtime: Runtime) -> bytes:
    """Return the trace if it holds no size of its example, else a second one in which pools read the sizes from the shape."""
    try:
        require_open(content, example, axes)
    except UnsupportedError:
        if runtime.has_open_sizes:
            raise
        runtime.has_open_sizes = True
        content = example.trace(ExampleCall(tuple(example.tensors), {}))
        require_open(content, example, axes)
    return content


def _example(subject: Exportable, call: ExampleCall, options: ExportOptions, runtime: Runtime) -> Example:
    """The example of a trace, which can be run and traced again at other sizes."""
    emitter = runtime.emitter

    def run(other: ExampleCall) -> None:
        runtime.emitter = None
        with kept_attributes(subject):
            run_once(subject, other)

    def trace_again(other: ExampleCall) -> bytes:
        runtime.emitter = emitter
        with DecisionWatch():  # as the first time: with the watch, torch orders some nodes in another way
            return _run_quantized(subject, other, options, runtime)

    return Example(call.tensors(), options.input_names, run, trace_again)


def _refuse_parts(model: object, *, is_quantized: bool) -> None:
    """Refuse a module that only holds quantized layers: the model that `init` returned knows how to write them."""
    parts = [] if is_quantized or not isinstance(model, nn.Module) else list(model.named_modules())
    found = [path or type(module).__name__ for path, module in parts if isinstance(module, QuantizedBase)]
    inside = [path for path, module in parts if runtime_of(module) is not None]
    if found:
        wrapped = f" If it is a wrapper for training, export model.{inside[0]}." if len(inside) == 1 else ""
        raise UsageError(
            f"export: {listing(found)} of this model is quantized, the model as a whole is not. "
            f"Call linger.init on the whole model and export what it returns.{wrapped}"
        )


def _warn_about_losses(proto: onnx.ModelProto, call: ExampleCall, watch: DecisionWatch) -> None:
    """Warn about values that Python read, and about inputs that the file does not have."""
    if watch.summary():
        warnings.warn(watch.summary(), stacklevel=4)
    given, kept = len(call.tensors()), len(proto.graph.input)
    if kept < given:
        warnings.warn(
            f"export: the file has {kept} of the {given} inputs: its outputs do not depend on the others. "
            "If they should, forward leaves torch on the way (numpy, tolist, pickle).",
            stacklevel=4,
        )


def _run(subject: Exportable, call: ExampleCall, options: ExportOptions) -> bytes:
    """Trace once, starting from the state in the model's attributes, which stays as it is."""
    with kept_attributes(subject, as_constant_of_a_trace):
        if options.dynamo:
            table = {**translation_table(), **(options.torch_keywords.get("custom_translation_table") or {})}
            keywords = {**options.torch_keywords, "custom_translation_table": table}
            content = trace_dynamo(subject, call, replace(options, torch_keywords=keywords))
        else:
            buffer = io.BytesIO()
            trace(subject, call, options, buffer)
            content = buffer.getvalue()
    return with_bodies(content, form=options.form)


def _run_quantized(subject: Exportable, call: ExampleCall, options: ExportOptions, runtime: Runtime) -> bytes:
    """Trace; if a torch.autograd.Function gets a quantized tensor, trace again and follow the tensor into it."""
    if runtime.announcer is None:
        try:
            return _run(subject, call, options)
        except FunctionMetError:
            runtime.abandon()
            runtime.announcer = WrapperTrace(runtime)
    model = ir.from_proto(onnx.load_from_string(_run(subject, call, options)))
    cancel_dq_q(model)
    return bytes(ir.to_proto(model).SerializeToString())


def _convert_float(subject: Exportable, call: ExampleCall, options: ExportOptions, f: Target) -> bytes | None:
    if isinstance(subject, nn.Module) and is_large(subject) and options.export_params and not options.dynamo:
        if not isinstance(f, (str, os.PathLike)):
            raise UsageError("export: the model is larger than 2 GB, which needs a data file. Give a path.")
        export_large(subject, call, options, Path(f))
        return None
    content = _run(subject, call, options)
    if call.is_plain and not options.simplify and not options.verbose:
        return content
    proto = onnx.load_from_string(content)
    if not call.is_plain:
        model = ir.from_proto(proto)
        unwrap_names(model)
        proto = ir.to_proto(model)
    return _finished(proto, call, options, is_quantized=False)


def is_large(model: nn.Module) -> bool:
    """Whether a float model's weights do not fit into one protobuf."""
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


def _finished(proto: onnx.ModelProto, call: ExampleCall, options: ExportOptions, *, is_quantized: bool) -> bytes:
    """The content of the file, after the steps that were asked for: simplified, checked for a chip, weights as inputs."""
    if options.simplify:
        proto = simplify_model(proto, [t.detach().cpu().numpy() for t in call.tensors()])
    if options.target is not None and not options.allow_findings:
        require_suitable(proto, options.target)
    if is_quantized and not options.export_params:
        model = ir.from_proto(proto)
        parameters_to_inputs(model)
        proto = ir.to_proto(model)
    if options.verbose:
        print_listing(proto)
    return bytes(proto.SerializeToString())


def parameters_to_inputs(model: ir.Model) -> None:
    """Every initializer becomes a typed input of the graph, in the order of the weights."""
    for value in list(model.graph.initializers.values()):
        assert value.name is not None  # initializers have names
        value.const_value = None
        del model.graph.initializers[value.name]
        model.graph.inputs.append(value)


def _write(f: Target, content: bytes, options: ExportOptions) -> None:
    if not isinstance(f, (str, os.PathLike)):
        f.write(content)
    elif options.external_data:
        save(ir.from_proto(onnx.load_from_string(content)), f, external_data=True)
    else:
        write_atomically(Path(f), content)


def require_equal(model: Exportable, call: ExampleCall, content: bytes, f: Target) -> None:
    """Prove what is to be written to `f`; a float model has no integers to compare.

    Raises:
        VerificationError: It computes something else than the model; the message says where.
    """
    if not isinstance(model, nn.Module) or runtime_of(model) is None:
        return
    result = prove(model, content, call.args, kwargs=call.kwargs, sizes=OWN_TRIALS)
    if not result.ok:
        raise VerificationError(f"{f}: nothing is written: {result.summary()}")


def _training_mode(training: object, *, was_training: bool) -> TrainingMode:
    if training in (None, False, TrainingMode.EVAL):
        return TrainingMode.EVAL
    if training is TrainingMode.PRESERVE:
        return TrainingMode.TRAINING if was_training else TrainingMode.EVAL
    return TrainingMode.TRAINING


def _default_opset(opset: int | None, *, is_dynamo: bool) -> int:
    return opset if opset is not None else 18 if is_dynamo else OPSET


def _debug_folder(debug_dump: bool | str | os.PathLike[str], f: Target) -> Path | None:  # noqa: FBT001
    if debug_dump is False or debug_dump is None:
        return None
    if debug_dump is not True:
        return Path(debug_dump)
    return Path(f).with_name(f"{Path(f).stem}_debug") if isinstance(f, (str, os.PathLike)) else Path("linger_debug")
