# SPDX-License-Identifier: Apache-2.0
"""Turn what torch's exporter wrote into the file: names, initializers, shapes, and the form that was asked for.

Then the last steps that a user can ask for: simplify the graph, check the limits of a chip.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from linger.checks.limits.limit import BY_EXPORT
from linger.checks.limits.products import PackingLimits, ProductLimits
from linger.checks.limits.target_findings import PLATFORM, target_findings
from linger.checks.limits.windows import WindowLimits
from linger.checks.memory_use import MemoryLimits, scratch_shortage
from linger.dialect import DOMAIN, find_op
from linger.errors import GraphError, UnsupportedError, UsageError, install_line, listing
from linger.files import made_folder, write_atomically
from linger.graph.core.check_rules import NO_EXACT_FORM
from linger.graph.core.nodes import ERROR, NOTE, Changes, all_nodes, is_dialect, opset_of
from linger.graph.core.tensor_types import infer_element_types
from linger.graph.formats.tensor_formats import SHAPE_OPS, can_run
from linger.graph.lowering.bodies import attach_functions, expand_dialect, known_tensors, state_recurrent_shapes
from linger.graph.lowering.byte_layers import write_byte_layers
from linger.graph.lowering.to_qdq import to_qdq
from linger.graph.passes import chip_axes, chip_windows, well_formed
from linger.graph.passes.constants import fix_shapes, own_parameters
from linger.graph.passes.declared_types import complete_types
from linger.numeric.fixed import limits
from linger.onnx.exporter.emission import (
    keep_scalars_as_nodes,
    name_by_modules,
    name_nodes,
    store_parameters,
    unwrap_names,
)
from linger.onnx.exporter.tracing import ExportOptions
from linger.runtime.session import ORT_ERRORS
from linger.targets import Target, find_target
from linger.version import __version__

logger = logging.getLogger(__name__)

_SIZES_FROM = {
    **dict.fromkeys(("Expand", "OneHot", "Pad", "Reshape", "Split", "Tile", "TopK", "Upsample"), (1,)),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""The inputs of an op whose values decide the size of its result."""

_SIZES_FROM_CONTENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
_ASKS_FOR_SIZES = frozenset({"Shape", "Size"})


def forget_sizes_from_values(model: ir.Model) -> None:
    """Leave open the sizes of outputs that depend on values of inputs.

    The trace has the sizes that follow from the example's values. Sizes that can be inferred are inferred again.
    """
    by_value = set(model.graph.inputs) - set(model.graph.initializers.values())
    sized_by_value: set[ir.Value] = set()
    for node in model.graph:
        is_sized = not sized_by_value.isdisjoint(node.inputs) or _is_sized_by(node, by_value)
        has_values = node.op_type not in _ASKS_FOR_SIZES and not by_value.isdisjoint(node.inputs)
        if is_sized:
            sized_by_value |= set(node.outputs)
        if has_values or is_sized:
            by_value |= set(node.outputs)
    for output in model.graph.outputs:
        if output in sized_by_value and output.shape is not None:
            output.shape = ir.Shape([None] * len(output.shape))


def _is_sized_by(node: ir.Node, by_value: set[ir.Value]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _SIZES_FROM_CONTENT:
        return not by_value.isdisjoint(node.inputs)
    return any(node.inputs[i] in by_value for i in _SIZES_FROM.get(node.op_type, ()) if i < len(node.inputs))


_MOVING = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather"})
_MOVING |= {"Expand", "Tile", "Split"}
"""Ops that may stand between an input and its Quant: they move integers as they move real numbers."""


def keep_integers_at_the_ends(model: ir.Model) -> dict[str, str]:
    """Make graph inputs and outputs integers: remove the Quant behind an input and the Dequant before an output.

    Device integrators feed and read the integers themselves. A Quant may stand behind ops that only move numbers.

    Returns:
        The inputs that stay float, each with the reason.
    """
    refused = {}
    for source in model.graph.inputs:
        if source.dtype == ir.DataType.FLOAT:
            reason = _take_integers(source, opset_of(model))
            if reason:
                refused[source.name or ""] = reason
    for node in [n for n in model.graph if is_dialect(n, "Dequant")]:
        if node.outputs[0].is_graph_output():
            _bypass(node)
    return refused


def remove_dequants(model: ir.Model) -> int:
    """Take every Dequant out and connect its consumers to the integers: a file to look at, not to run."""
    dequants = [n for n in all_nodes(model) if is_dialect(n, "Dequant")]
    for node in dequants:
        _bypass(node)
    return len(dequants)


def _take_integers(source: ir.Value, opset: int) -> str:
    """Make an input take integers; return the reason if that is not possible, else an empty text."""
    quants: list[ir.Node] = []
    moving: list[ir.Node] = []
    waiting = [source]
    while waiting:
        for use in waiting.pop().uses():
            node = use.node
            if is_dialect(node, "Quant"):
                quants.append(node)
            elif (use.idx, node.domain) == (0, "") and node.op_type in _MOVING:
                moving.append(node)
                waiting += node.outputs
            elif node.op_type not in SHAPE_OPS:
                return f"{_label(node)} reads its real values"
    if any(value.is_graph_output() for value in _outputs(moving)):
        return "it is an output as well"
    return _quantize_outside(source, quants, moving, opset) if quants else ""


def _quantize_outside(source: ir.Value, quants: list[ir.Node], moving: list[ir.Node], opset: int) -> str:
    """Remove the Quants of an input, so that the nodes before them move integers; return the reason if they cannot."""
    formats = sorted({(n.attributes["scale_x"].as_float(), n.outputs[0].dtype) for n in quants}, key=str)
    if len(formats) > 1:
        return f"it is quantized with the scales {listing(f'{scale:g}' for scale, _ in formats)}"
    kind = quants[0].outputs[0].dtype
    assert kind is not None  # `assemble` has inferred the types
    bits = quants[0].attributes["data_bits"].as_int()
    stuck = next((n for n in moving if not can_run(n, kind, bits, opset)), None)
    if stuck is not None:
        return f"{_label(stuck)} takes no integers of {bits} bits"
    for value in (source, *_outputs(moving)):
        value.dtype = kind
    for node in quants:
        name, moved = node.outputs[0].name, _bypass(node)
        moved.name = moved.name if moved.is_graph_input() else name  # a moving op's result gets that of the integers
    return ""


def _bypass(node: ir.Node) -> ir.Value:
    """Remove a node with one input, which is returned; where its result is a graph output, it gets the output's name."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None and node.graph is not None  # noqa: PT018 - both hold for any node of a sorted graph
    name = result.name
    is_output = result.is_graph_output()
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    if is_output and not source.is_graph_input():
        source.name, source.shape = name, result.shape  # not every op's shape can be inferred
    return source


def _outputs(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [value for node in nodes for value in node.outputs]


def _label(node: ir.Node) -> str:
    return f"{node.name or 'a node'} ({node.op_type})"


_Pass = Callable[[ir.Model], Changes]


def suit(model: ir.Model, target: Target) -> Changes:
    """Make the changes that a chip wants and that change no integer of any tensor.

    What a chip computes otherwise and no change of form can mend (ReLU6, subtraction) is decided by `linger.init(target=)`, so
    that the simulation follows.
    """
    windows = target.table("windows", WindowLimits)
    products = target.table("products", ProductLimits)
    packing = target.table("packing", PackingLimits)
    passes: list[_Pass] = [
        chip_axes.count_axes_from_the_front,
        chip_axes.slice_parts,
        chip_windows.widen_kernels,
        partial(chip_windows.join_groups, reaches_kernel=windows.groups_reach_kernel, most_groups=windows.groups),
        chip_axes.give_transposed_biases,
        partial(_reserve, target=target),  # before layers are flattened: what it adds is named after their results
        partial(chip_axes.flatten_products, most_axes=products.axes),
        partial(chip_axes.flatten_norms, fewest_axes=products.layer_norm_axes),
        chip_axes.turn_fewer_axes,
        partial(chip_axes.pad_more_axes, rank=packing.padded_rank),
        *([] if windows.has_global_stride else [chip_windows.step_global_pools_by_one]),
    ]
    if windows.largest_max_pool is not None:
        passes.append(partial(chip_windows.split_max_pools, largest=windows.largest_max_pool))
    if not target.takes("Clip"):
        passes.append(chip_windows.replace_idle_clips)
    passes.append(own_parameters)  # behind every pass that makes or shares some
    if not target.is_default:
        passes.append(partial(chip_windows.name_platform, platform=target.name))
    changes = Changes()
    for each in passes:
        changes.entries += each(model).entries
    return changes


def _reserve(model: ir.Model, *, target: Target) -> Changes:
    """Let the packer reserve the scratch that the engine writes. This costs something, so it is said."""
    memory = target.table("memory", MemoryLimits)
    missing = scratch_shortage(model, known_tensors(model).shapes, memory) if memory.scratch_written else {}
    changes = (
        chip_axes.reserve_scratch(model, missing, per_number=memory.scratch_reserved["LinearInt"])
        if missing
        else Changes()
    )
    for change in changes:
        logger.warning("export for %s: %s: %s.", target.name, change.where, change.what)
    return changes


@dataclass
class _Stages:
    """Keeps the model after every step in a folder, for a user who debugs an export."""

    folder: Path | None
    notes: list[str] = field(default_factory=list)

    def keep(self, name: str, model: ir.Model | onnx.ModelProto, what: str) -> None:
        """Save the model under the next number, and note what the step did."""
        if self.folder is None:
            return
        made_folder("debug_dump", self.folder)
        file = f"{len(self.notes) + 1}_{name}.onnx"
        proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
        write_atomically(self.folder / file, proto.SerializeToString())
        self.notes.append(f"{file}: {what}")
        write_atomically(self.folder / "stages.txt", ("\n".join(self.notes) + "\n").encode())


def assemble(content: bytes, options: ExportOptions, *, is_wrapped: bool = False) -> onnx.ModelProto:
    """Turn a trace into the finished model of the form asked for, checked by onnx."""
    stages = _Stages(options.debug_folder)
    model = ir.from_proto(onnx.load_from_string(content))
    stages.keep("traced", model, "what torch's exporter wrote; node names travel in the attribute linger_name")
    name_nodes(model)
    store_parameters(model)
    if is_wrapped:
        unwrap_names(model)
    _forget_shapes(model)
    forget_sizes_from_values(model)
    infer_element_types(model.graph)
    model.producer_name, model.producer_version = "linger", __version__
    stages.keep("named", model, "nodes and integer parameters carry the names of modules and checkpoint keys")
    chip_windows.drop_ceil_mode(model)  # where it does nothing, onnx's inference may count a window too many
    if not options.is_dynamic and fix_shapes(model):
        stages.keep("fixed_shapes", model, "shapes that were computed from fixed sizes became constants")
    if options.is_input_quant:
        refused = keep_integers_at_the_ends(model)
        if refused:
            reasons = "; ".join(f"{name!r}, as {reason}" for name, reason in refused.items())
            warnings.warn(
                f"export: is_input_quant leaves an input float: {reasons}. Feed real values there, or let a quantized layer be "
                "the first to use it.",
                UserWarning,
                stacklevel=4,
            )
        stages.keep("integer_ends", model, "Quant at inputs and Dequant at outputs removed (is_input_quant)")
    if not options.is_update_dequant:
        count = remove_dequants(model)
        warnings.warn(
            f"export: is_update_dequant=False leaves out {count} Dequant nodes; the file is not checked and will not run.",
            UserWarning,
            stacklevel=4,
        )
        is_whole = options.form == "dialect"  # with bodies, so that a repaired file runs
        options = replace(options, enable_onnx_checker=False, form="dialect" if is_whole else "bare")
    if options.target is not None:
        done = suit(model, find_target(options.target))
        stages.keep("suited", model, f"{len(done)} changes of form that {options.target} wants; they change no number")
    proto = _in_form(model, options)
    stages.keep(options.form, proto, f"the form {options.form!r}: the finished file")
    return proto


def _in_form(model: ir.Model, options: ExportOptions) -> onnx.ModelProto:
    if options.form == "qdq":
        attach_functions(model)  # shapes are inferred through the bodies, and a Gemm needs to know its rank
        model = ir.from_proto(_finished(model, options))
        summary = to_qdq(model, is_symmetric=options.qdq_symmetric).summary()
        if summary:  # what is not exact in every runtime
            logger.warning("export, form 'qdq': %s", summary)
    if options.form == "standard" and options.integer_kernels:
        write_byte_layers(model)
    if options.form in ("standard", "qdq"):
        state_recurrent_shapes(model)
        expand_dialect(model)
        well_formed.remove_dead_code(model)  # the nodes of a body compute states even if nothing reads them
        _name(model, options)
        well_formed.name_nodes(model)  # the loops of two layers hold nodes of the same names
        return _finished(model, options)
    _name(model, options)
    bare = None if options.form == "dialect" else ir.to_proto(model)
    if bare is not None and not options.is_update_dequant:
        return _bare(ir.from_proto(bare), None, options)
    attach_functions(model)
    finished = _finished(model, options)
    return finished if bare is None else _bare(ir.from_proto(bare), finished, options)


def _name(model: ir.Model, options: ExportOptions) -> None:
    if options.is_scoped_info:
        name_by_modules(model)
        return
    for index, node in enumerate(all_nodes(model)):  # by op type and position, without modules
        node.name = f"{node.op_type}_{index}"


def _forget_shapes(model: ir.Model) -> None:
    """Drop the shapes of the trace, which hold for the example's sizes only; they are inferred again."""
    outputs = {id(value) for value in model.graph.outputs}
    for node in all_nodes(model):
        for value in node.outputs:
            if id(value) not in outputs:
                value.shape = None
                value.type = None


def _finished(model: ir.Model, options: ExportOptions) -> onnx.ModelProto:
    """Infer the shapes and let onnx check the model."""
    proto = ir.to_proto(model)
    if options.dynamic_axes:
        _open_outputs(proto, options.dynamic_axes)
    # the checker refuses values that have a type and no shape
    del proto.graph.value_info[:]
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    shaped = [v for v in proto.graph.value_info if v.type.tensor_type.HasField("shape")]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(shaped)
    proto = _completed(proto)
    if not options.enable_onnx_checker:
        return proto
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"the exported graph does not pass onnx's checker: {error}") from error
    return proto


def _completed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Declare what onnx's inference leaves open behind an op whose body it cannot follow, so that a repair has nothing to do."""
    declared = {value.name for value in (*proto.graph.value_info, *proto.graph.output)}
    if all(name in declared for node in proto.graph.node for name in node.output if name):
        return proto
    model = ir.from_proto(proto)
    complete_types(model)
    return ir.to_proto(model)


def _open_outputs(proto: onnx.ModelProto, dynamic_axes: Mapping[str, Any]) -> None:
    """Drop the names that the exporter made up for open sizes of outputs; keep those of the user."""
    named = {label for axes in dynamic_axes.values() if isinstance(axes, Mapping) for label in axes.values()}
    for output in proto.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            is_users = dim.dim_param in named or "_dynamic_axes_" in dim.dim_param
            if dim.HasField("dim_param") and not is_users:
                dim.ClearField("dim_param")


def _bare(model: ir.Model, finished: onnx.ModelProto | None, options: ExportOptions) -> onnx.ModelProto:
    """Write the nodes without functions, integer Relu and the like in the standard domain, with the shapes of the full form."""
    for node in all_nodes(model):
        if node.domain == DOMAIN:
            op = find_op(node.op_type)
            node.op_type = op.bare_name(len(node.inputs))
            if op.standard_name:
                node.domain = ""
                for name in chip_windows.CHIP_ATTRIBUTES:  # which no standard op has
                    node.attributes.pop(name, None)
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    if finished is not None:
        proto.graph.value_info.extend(finished.graph.value_info)
        del proto.graph.output[:]
        proto.graph.output.extend(finished.graph.output)
    if options.enable_onnx_checker:
        onnx.checker.check_model(proto)
    return proto


_COMPARED_BITS = 8

_RELATIVE_TOLERANCE = 1e-4
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
    """Simplify a model; refuse a result with other dialect nodes or functions, or other outputs on the example input."""
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    model = ir.from_proto(_simplified(proto))
    keep_scalars_as_nodes(model)
    after = ir.to_proto(model)
    types = [sorted(n.op_type for n in all_nodes(ir.from_proto(p)) if is_dialect(n)) for p in (before, after)]
    if types[0] != types[1] or len(before.functions) != len(after.functions):
        raise GraphError("export: the simplifier removed dialect nodes or functions. Export with simplify=False.")
    if before.functions or not any(node.domain for node in before.graph.node):
        _require_same_results(before, after, inputs)
    return after


def _simplified(proto: onnx.ModelProto) -> onnx.ModelProto:
    if importlib.util.find_spec("onnxslim") is not None:
        slimmed: onnx.ModelProto = importlib.import_module("onnxslim").slim(proto)
        return slimmed
    if importlib.util.find_spec("onnxsim") is not None:
        simplified: onnx.ModelProto = importlib.import_module("onnxsim").simplify(proto)[0]
        return simplified
    raise UsageError(f"export: simplify=True needs onnxslim or onnxsim. Install them with: {install_line('simplify')}")


def _require_same_results(before: onnx.ModelProto, after: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> None:
    tolerance = 0.0 if before.functions else _RELATIVE_TOLERANCE  # functions compute integers
    old, new = (_run(model, inputs) for model in (before, after))
    for output, want, have in zip(before.graph.output, old, new, strict=True):
        is_close = want.shape == have.shape and np.allclose(want, have, rtol=tolerance, atol=1e-5)
        if not (is_close if tolerance else np.array_equal(want, have)):
            raise GraphError(
                f"export: the simplified file computes another {output.name!r}. Export with simplify=False."
            )


def _run(proto: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {}
        for i, x in zip(session.get_inputs(), inputs, strict=False):
            feeds[i.name] = x
            bits = {"tensor(int8)": 8, "tensor(int16)": 16, "tensor(int32)": 32}.get(i.type)
            if bits is not None and x.dtype.kind == "f":  # any integers serve for a comparison (`is_input_quant`)
                low, high = limits(min(bits, _COMPARED_BITS))
                feeds[i.name] = np.clip(np.rint(x * high), low, high).astype(f"int{bits}")
        result: list[NDArray[Any]] = session.run(None, feeds)
    except ORT_ERRORS as error:
        raise GraphError(f"export: the simplified file does not run ({error}). Export with simplify=False.") from error
    return result


def require_suitable(proto: onnx.ModelProto, target: str) -> None:
    """Refuse a model that the chip cannot take, with all findings; log what may go wrong or could not be checked."""
    by_export = BY_EXPORT.format(target)
    findings = [
        replace(finding, remedy=NO_EXACT_FORM) if by_export in finding.remedy else finding  # it was tried
        for finding in target_findings(ir.from_proto(proto), find_target(target))
        if (finding.rule, finding.severity) != (PLATFORM.id, NOTE)  # the user has just named the chip
    ]
    errors = sum(finding.severity == ERROR for finding in findings)
    if errors:
        listed = "\n".join(f"  {finding.severity}: {finding}" for finding in findings)
        raise UnsupportedError(
            f"export: {target} cannot take this model: {errors} of {len(findings)} findings are errors. Nothing was written.\n"
            f"{listed}"
        )
    for finding in findings:
        level = logging.INFO if finding.severity == NOTE else logging.WARNING
        logger.log(level, "export for %s: %s", target, finding)
