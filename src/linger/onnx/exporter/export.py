# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.export: a model becomes an ONNX file, and the model stays as it was."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import onnx
import onnx_ir as ir
import torch.onnx
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor, nn
from torch.onnx import TrainingMode

from linger.analysis.batches import Forward, kept_attributes
from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.errors import UnsupportedError, UsageError, VerificationError, listing, refuse_if, refuse_unknown
from linger.files import write_atomically
from linger.graph.files.model_io import save
from linger.graph.passes.dequants import cancel_dq_q
from linger.onnx.exporter import OPSET, PACKED_FORMS, check_form, check_opset, check_packed, chosen_form
from linger.onnx.exporter.assembly import assemble, list_initializers, require_suitable
from linger.onnx.exporter.assembly import simplify as simplify_model
from linger.onnx.exporter.emission import SymbolicEmitter, TraceEmitter, WrapperTrace, free_name, unwrap_names
from linger.onnx.exporter.tracing import (
    TORCH_KEYWORDS,
    DecisionWatch,
    DynamicAxes,
    DynamicShapes,
    Example,
    ExportOptions,
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
from linger.reporting.printed import print_listing
from linger.simulation import (
    WRAPPED,
    ExampleCall,
    Exportable,
    FlatModel,
    as_constant_of_a_trace,
    default_names,
    preserved,
    read_call,
    run_once,
    tensors_in,
)
from linger.targets import find_chip
from linger.verification.feeds import OWN_TRIALS

Target = str | os.PathLike[str] | IO[bytes]

LIMIT = 2**31 - 2**27
"""A protobuf has at most 2 GiB; some of it is left for the graph itself."""

_FIRST_BFLOAT16_OPSET = 13
"""The first opset at which ONNX's ops take bfloat16."""

_IMAGE_AXES = 4
"""An input with so many axes has samples on its first one; rows of a matrix, and matrices, are no batch."""

_REMOVED = {"aten": False, "export_raw_ir": False, "_retain_param_name": True, "example_outputs": None}
"""Arguments that torch removed and that have no meaning left, with the defaults they had."""

logger = logging.getLogger(__name__)


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
    if not isinstance(f, (str, os.PathLike)) and not callable(getattr(f, "write", None)):
        raise UsageError(
            f"export: f={f!r} is no place for a file. Give a path, or a file object that is open for writing bytes."
        )
    removed = {
        "aten": aten,
        "export_raw_ir": export_raw_ir,
        "_retain_param_name": _retain_param_name,
        "example_outputs": example_outputs,
    }
    for name in (name for name, value in removed.items() if value != _REMOVED[name]):
        warnings.warn(
            f"linger.onnx.export: the argument {name!r} has no meaning in today's torch and is ignored.",
            DeprecationWarning,
            stacklevel=2,
        )
    refuse_unknown("export", torch_keywords, {*TORCH_KEYWORDS, *inspect.signature(export).parameters})
    if "torch.distributed.tensor" in sys.modules:  # else nothing is sharded
        refuse_sharded(model, "export")
    runtime = runtime_of(model) if isinstance(model, nn.Module) else None
    options = ExportOptions(
        export_params=export_params,
        training=training,
        input_names=tuple(input_names or ()),
        output_names=tuple(output_names or ()),
        operator_export_type=operator_export_type,
        opset=opset_version if opset_version is not None else 18 if dynamo else OPSET,
        do_constant_folding=do_constant_folding,
        strip_doc_string=strip_doc_string,
        dynamic_axes=dynamic_axes or None,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
        custom_opsets=custom_opsets,
        dynamo=dynamo,
        dynamic_shapes=dynamic_shapes,
        report=report,
        torch_keywords=torch_keywords,
        form=chosen_form(form, target or (None if runtime is None else runtime.target)),
        is_update_dequant=is_update_dequant,
        is_input_quant=is_input_quant,
        is_scoped_info=is_scoped_info,
        enable_onnx_checker=enable_onnx_checker,
        qdq_symmetric=qdq_symmetric,
        integer_kernels=integer_kernels,
        target=target,
        debug_folder=_debug_folder(debug_dump, f),
        verbose=verbose,
        external_data=True if use_external_data_format else external_data,
        simplify=simplify,
        allow_findings=allow_findings,
    )
    call = read_call(model, args, kwargs)
    _check_tensors(model, call.tensors(), options.opset, is_quantized=runtime is not None)
    content = _convert(model, call, options, f)
    if content is None:
        return  # a large float model, which is written already; there are no integers to compare
    if verify:
        require_equal(model, call, content, f)
    if not isinstance(f, (str, os.PathLike)):
        f.write(content)
    elif options.external_data:
        save(ir.from_proto(onnx.load_from_string(content)), f, external_data=True)
    else:
        write_atomically(Path(f), content)


def export_debug(model: Exportable, args: object, f: Target, *positional: Any, **options: Any) -> None:
    """`export` under the name the documents use for debugging: the same arguments, the same defaults."""
    export(model, args, f, *positional, **options)


def redirect() -> None:
    """Make `torch.onnx.export` linger's, as after `linger.init`; `restore` undoes it."""
    setattr(torch.onnx, "export", export)  # noqa: B010 - the types differ on purpose


def restore() -> None:
    """Give torch its own export back; harmless when nothing was redirected."""
    setattr(torch.onnx, "export", torch_export)  # noqa: B010


def _debug_folder(debug_dump: bool | str | os.PathLike[str], f: Target) -> Path | None:  # noqa: FBT001
    if debug_dump is False or debug_dump is None:
        return None
    if debug_dump is not True:
        return Path(debug_dump)
    return Path(f).with_name(f"{Path(f).stem}_debug") if isinstance(f, (str, os.PathLike)) else Path("linger_debug")


def _check_tensors(model: object, inputs: Sequence[Tensor], opset: int, *, is_quantized: bool) -> None:
    """Refuse tensors that a file cannot hold, all at once. Weights of a quantized model become integers, of any type."""
    given = {f"input {i}": tensor for i, tensor in enumerate(inputs)}
    stored = dict(chain(model.named_parameters(), model.named_buffers())) if isinstance(model, nn.Module) else {}
    empty = [name for name, tensor in (given | stored).items() if tensor.is_meta]
    refuse_if(
        empty,
        f"export: {listing(empty)} on the device 'meta', without numbers that a file could hold. "
        "Load the weights first (model.to_empty(device='cpu'), then load_state_dict), and give an input with values.",
    )
    written = given if is_quantized else given | stored
    brief = [name for name, tensor in written.items() if tensor.dtype == torch.bfloat16]
    refuse_if(
        brief and opset < _FIRST_BFLOAT16_OPSET,
        f"export: {listing(brief)} of type bfloat16, which ONNX has from opset {_FIRST_BFLOAT16_OPSET} on, not at {opset}. "
        f"Give model.float() and inputs in float32, or opset_version={_FIRST_BFLOAT16_OPSET}.",
    )


def _convert(model: Exportable, call: ExampleCall, options: ExportOptions, f: Target) -> bytes | None:
    """The finished file's content (None: too large for memory, already written); the model is as before afterwards."""
    was_training = bool(getattr(model, "training", False))
    with preserved(model) as runtime:
        _refuse_parts([] if runtime is not None or not isinstance(model, nn.Module) else list(model.named_modules()))
        options = _completed(model, call, options, runtime)
        # torch's exporter passes defaults of arguments that are taken by name only as if they were taken by position
        is_wrapped = not call.is_plain or Forward.of(model).has_names_only
        subject = FlatModel(model, call) if is_wrapped else model
        if runtime is None:
            training = _training_mode(options.training, was_training=was_training)
            return _convert_float(subject, call, replace(options, training=training), f)
        content, decisions = _trace_quantized(subject, call, options, runtime)
    proto = assemble(content, options, is_wrapped=is_wrapped)
    if options.keep_initializers_as_inputs:
        list_initializers(proto)
    if decisions:
        warnings.warn(decisions, stacklevel=3)
    inputs, in_file = len(call.tensors()), len(proto.graph.input)
    if in_file < inputs:
        warnings.warn(
            f"export: the file has {in_file} of the {inputs} inputs: its outputs do not depend on the others. "
            "If they should, forward leaves torch on the way (numpy, tolist, pickle).",
            stacklevel=3,
        )
    return _finished(proto, call, options, is_quantized=True)


def _training_mode(training: object, *, was_training: bool) -> TrainingMode:
    if training in (None, False, TrainingMode.EVAL):
        return TrainingMode.EVAL
    if training is TrainingMode.PRESERVE:
        return TrainingMode.TRAINING if was_training else TrainingMode.EVAL
    return TrainingMode.TRAINING


def _refuse_parts(modules: Sequence[tuple[str, nn.Module]]) -> None:
    """Refuse a model that only holds quantized layers: the one that `init` returned knows how to write them."""
    quantized = [path or type(module).__name__ for path, module in modules if isinstance(module, QuantizedBase)]
    inside = [path for path, module in modules if runtime_of(module) is not None]
    if quantized:
        wrapped = f" If it is a wrapper for training, export model.{inside[0]}." if len(inside) == 1 else ""
        raise UsageError(
            f"export: {listing(quantized)} of this model is quantized, the model as a whole is not. "
            f"Call linger.init on the whole model and export what it returns.{wrapped}"
        )


def _completed(model: Exportable, call: ExampleCall, options: ExportOptions, runtime: Runtime | None) -> ExportOptions:
    """The options with the model's chip and a name for every input and output, checked against a run of the model."""
    options = _with_target(options, None if runtime is None else runtime.target)
    check_options(options, is_quantized=runtime is not None)
    chip = None if options.target is None else find_chip(options.target)
    if chip is None:  # nothing is written otherwise for what has no limits
        options = replace(options, target=None)
    with kept_attributes(model):
        tensors = tensors_in(run_once(model, call))
    options = _with_names(options, default_names(model, call), len(tensors))
    if options.dynamic_shapes and not options.dynamo:
        options = replace(options, dynamic_axes=declared_axes(options), dynamic_shapes=None)
    check_names(options, [t.dim() for t in call.tensors()], [t.dim() for t in tensors])
    return options if options.target is None else _with_one_sample(options, [tuple(t.shape) for t in call.tensors()])


def _with_target(options: ExportOptions, own: str | None) -> ExportOptions:
    """The options with the chip that the model simulates as target, if the form is for chips; refuse another chip."""
    refuse_if(
        own is not None and options.target not in (None, own),
        f"export: the model computes as {own} does (linger.init), not as {options.target}. "
        f"Leave target out, or quantize the model anew with linger.init(model, target={options.target!r}).",
    )
    is_packed = options.form in PACKED_FORMS and options.is_update_dequant
    is_for_chips = own is not None and find_chip(own) is not None and is_packed
    return replace(options, target=own) if is_for_chips else options


def check_options(options: ExportOptions, *, is_quantized: bool) -> None:
    """Refuse combinations of arguments that do not work, among them a target for what no packer reads, and name one that does."""
    check_form(options.form)
    check_opset(options.opset, is_quantized=is_quantized, is_dynamo=options.dynamo)
    if options.target is not None:
        where = f"export: target={options.target!r}"
        refuse_if(
            not is_quantized, f"{where} is for quantized models. Call linger.init(model) first, or leave target out."
        )
        check_packed(options.form, options.target)
        refuse_if(
            not options.is_update_dequant,
            f"{where} cannot be judged with is_update_dequant=False, whose file does not run.",
        )
        refuse_if(
            not options.export_params,
            f"{where} needs weights in the file: packers refuse one without. Leave export_params at True.",
        )
    refuse_if(
        options.dynamic_axes and options.dynamic_shapes,
        "export: dynamic_axes and dynamic_shapes say the same thing. Give one of them.",
    )


def _with_names(options: ExportOptions, inputs: Sequence[str], output_count: int) -> ExportOptions:
    """The options with a name for every input and output.

    Where fewer were given, the names of forward's parameters follow, and `output`, `output_1`, …; a taken name gets a number.
    """
    names, outputs = list(options.input_names), list(options.output_names)
    for name in inputs[len(names) :]:
        names.append(free_name(name, [*names, *outputs]))
    for number in range(len(outputs), output_count):
        outputs.append(free_name(f"output_{number}" if number else "output", [*names, *outputs]))
    return replace(options, input_names=tuple(names), output_names=tuple(outputs))


def check_names(options: ExportOptions, ranks: Sequence[int], output_ranks: Sequence[int]) -> None:
    """Refuse names and axes that do not fit the model's inputs and outputs."""
    wrong, rank_of = [], dict[str, int]()
    for what, names, own in (("input", options.input_names, ranks), ("output", options.output_names, output_ranks)):
        rank_of |= dict(zip(names, own, strict=False))
        if len(names) > len(own):
            wrong.append(f"{len(names)} {what} names ({listing(names)}) for {len(own)} {what} tensors")
        if len(set(names)) != len(names):
            wrong.append(f"{what} names that repeat ({listing(names)})")
    twice = [name for name in options.input_names if name in options.output_names]
    if twice:
        wrong.append(f"{listing(twice)} as the name of an input and of an output, which are two tensors")
    for name, axes in (options.dynamic_axes or {}).items():
        rank = rank_of.get(name)
        outside = [] if rank is None else [str(axis) for axis in axes if not -rank <= int(axis) < rank]
        if rank is None:
            wrong.append(f"dynamic_axes for {name!r}, which is no input or output name")
        elif outside:
            wrong.append(f"dynamic axis {listing(outside)} of {name!r}, which has {rank} axes")
    refuse_if(wrong, f"export: {'; '.join(wrong)}. Match names and axes to the model's inputs and outputs.")


def _with_one_sample(options: ExportOptions, shapes: Sequence[tuple[int, ...]]) -> ExportOptions:
    """The options with the batch fixed to one sample, as chips compute it; refuse an example with several."""
    axes = declared_axes(options) if options.is_dynamic else {}
    names = [name for name, places in axes.items() if any(int(axis) == 0 for axis in places)]
    several = [
        f"{name!r} of the shape {list(shape)}"
        for name, shape in zip(options.input_names, shapes, strict=False)
        if shape and shape[0] > 1 and (len(shape) >= _IMAGE_AXES or name in names)
    ]
    refuse_if(
        several,
        f"export: {options.target} computes one sample at a time, and the example has {listing(several)}. Give one "
        "sample, for example x[:1].",
    )
    refuse_if(
        names and options.dynamo,
        f"export: {options.target} computes one sample at a time, and dynamic_shapes leaves the batch of {listing(names)} "
        "open. Leave that axis out of dynamic_shapes.",
    )
    if not names:
        return options
    logger.warning("export for %s: the batch of %s is fixed to 1", options.target, listing(names))
    others = {name: _but_the_first(places) for name, places in axes.items()}
    return replace(options, dynamic_axes={name: places for name, places in others.items() if places} or None)


def _but_the_first(places: Mapping[int, str] | Sequence[int]) -> Mapping[int, str] | Sequence[int]:
    if isinstance(places, Mapping):
        return {axis: label for axis, label in places.items() if int(axis) != 0}
    return [axis for axis in places if int(axis) != 0]


def _trace_quantized(
    subject: Exportable, call: ExampleCall, options: ExportOptions, runtime: Runtime
) -> tuple[bytes, str]:
    """Trace the model; return what torch's exporter wrote, and a warning where Python read values meanwhile.

    A trace that holds a size of its example is made again, with pools that read the sizes from the shape.
    """
    emitter = SymbolicEmitter() if options.dynamo else TraceEmitter(is_dynamic=options.is_dynamic)
    opsets = {**(options.custom_opsets or {}), DOMAIN: DOMAIN_VERSION}
    options = replace(
        options, export_params=True, training=None, custom_opsets=opsets, keep_initializers_as_inputs=False
    )

    def run(other: ExampleCall) -> None:
        runtime.emitter = None
        with kept_attributes(subject):
            run_once(subject, other)

    def trace_again(other: ExampleCall) -> bytes:
        runtime.emitter = emitter
        with DecisionWatch():  # as the first time: with the watch, torch orders some nodes in another way
            return _run_quantized(subject, other, options, runtime)

    axes = declared_axes(options) if options.is_dynamic else {}
    runtime.emitter = emitter
    runtime.has_open_sizes = any(int(axis) != 0 for places in axes.values() for axis in places)
    with DecisionWatch() as watch:
        content = _run_quantized(subject, call, options, runtime)
    if axes:
        example = Example(call.tensors(), options.input_names, run, trace_again)
        try:
            require_open(content, example, axes)
        except UnsupportedError:
            if runtime.has_open_sizes:
                raise
            runtime.has_open_sizes = True
            content = example.trace(ExampleCall(tuple(example.tensors), {}))
            require_open(content, example, axes)
    return content, watch.summary()


def _run(subject: Exportable, call: ExampleCall, options: ExportOptions) -> bytes:
    """Trace once, starting from the state in the model's attributes, which stays as it is."""
    with kept_attributes(subject, as_constant_of_a_trace):
        if options.dynamo:
            table = {**translation_table(), **(options.torch_keywords.get("custom_translation_table") or {})}
            keywords = {**options.torch_keywords, "custom_translation_table": table}
            content = trace_dynamo(subject, call, replace(options, torch_keywords=keywords))
        else:
            content = trace(subject, call, options)
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
    """Write the file and its data file without a second copy of the weights; constants (batch norms) are not folded."""
    content = trace(subject, call, replace(options, export_params=False, do_constant_folding=False))
    model = ir.from_proto(onnx.load_from_string(content))
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
        for value in list(model.graph.initializers.values()):  # each becomes a typed input, in the order of the weights
            assert value.name is not None  # initializers have names
            value.const_value = None
            del model.graph.initializers[value.name]
            model.graph.inputs.append(value)
        proto = ir.to_proto(model)
    if options.verbose:
        print_listing(proto)
    return bytes(proto.SerializeToString())


def require_equal(model: Exportable, call: ExampleCall, content: bytes, f: Target) -> None:
    """Refuse to write to `f` what computes something else than the model; a float model has no integers to compare."""
    if not isinstance(model, nn.Module) or runtime_of(model) is None:
        return
    result = prove(model, content, call.args, kwargs=call.kwargs, sizes=OWN_TRIALS)
    if not result.ok:
        raise VerificationError(f"{f}: nothing is written: {result.summary()}")
