# SPDX-License-Identifier: Apache-2.0
"""Turn what torch's exporter wrote into the file: names, initializers, shapes, and the form that was asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from linger.dialect import DOMAIN, find_op
from linger.errors import GraphError
from linger.files import made_folder, write_atomically
from linger.graph.core.nodes import all_nodes
from linger.graph.core.tensor_types import infer_element_types
from linger.graph.lowering.bodies import attach_functions, expand_dialect, state_recurrent_shapes
from linger.graph.lowering.byte_layers import write_byte_layers
from linger.graph.lowering.to_qdq import to_qdq
from linger.graph.passes.chip_windows import CHIP_ATTRIBUTES, drop_ceil_mode
from linger.graph.passes.fixed_shapes import fix_shapes
from linger.graph.passes.well_formed import remove_dead_code
from linger.onnx.exporter.boundary import keep_integers_at_the_ends, remove_dequants
from linger.onnx.exporter.naming import follow_modules, name_nodes, number_nodes, store_parameters, unwrap_names
from linger.onnx.exporter.shapes import forget_sizes_from_values
from linger.onnx.exporter.suiting import suit
from linger.onnx.exporter.tracing import TraceOptions
from linger.targets import find_target
from linger.version import __version__

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FormOptions(TraceOptions):
    """The arguments of an export that decide what the graph becomes, besides those of the trace."""

    form: str = "dialect"
    is_update_dequant: bool = True
    is_input_quant: bool = False
    is_scoped_info: bool = True
    enable_onnx_checker: bool = True
    is_qdq_symmetric: bool = False
    has_integer_kernels: bool = True
    target: str | None = None
    debug_folder: Path | None = None


@dataclass
class Stages:
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


def assemble(content: bytes, options: FormOptions, *, is_wrapped: bool = False) -> onnx.ModelProto:
    """Turn a trace into the finished model of the form asked for, checked by onnx."""
    stages = Stages(options.debug_folder)
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
    drop_ceil_mode(model)  # where it does nothing, onnx's inference may count a window that nobody computes
    if not options.is_dynamic and fix_shapes(model):
        stages.keep("fixed_shapes", model, "shapes that were computed from fixed sizes became constants")
    if options.is_input_quant:
        _warn_about_float_inputs(keep_integers_at_the_ends(model))
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


def _warn_about_float_inputs(refused: Mapping[str, str]) -> None:
    if refused:
        reasons = "; ".join(f"{name!r}, as {reason}" for name, reason in refused.items())
        warnings.warn(
            f"export: is_input_quant leaves an input float: {reasons}. Feed real values there, or let a quantised layer be "
            "the first to use it.",
            UserWarning,
            stacklevel=5,
        )


def _in_form(model: ir.Model, options: FormOptions) -> onnx.ModelProto:
    if options.form == "qdq":
        model = _with_qdq(model, options)
    if options.form == "standard" and options.has_integer_kernels:
        write_byte_layers(model)
    if options.form in ("standard", "qdq"):
        state_recurrent_shapes(model)
        expand_dialect(model)
        remove_dead_code(model)  # the nodes of a body compute states even if nothing reads them
        _name(model, options)
        return _finished(model, options)
    _name(model, options)
    bare = None if options.form == "dialect" else ir.to_proto(model)
    if bare is not None and not options.is_update_dequant:
        return _bare(ir.from_proto(bare), None, options)
    attach_functions(model)
    finished = _finished(model, options)
    return finished if bare is None else _bare(ir.from_proto(bare), finished, options)


def _with_qdq(model: ir.Model, options: FormOptions) -> ir.Model:
    """Write QuantizeLinear/DequantizeLinear pairs where that is possible; log what is not exact in every runtime."""
    attach_functions(model)  # shapes are inferred through the bodies, and a Gemm needs to know its rank
    shaped = ir.from_proto(_finished(model, options))
    summary = to_qdq(shaped, is_symmetric=options.is_qdq_symmetric).summary()
    if summary:
        logger.warning("export, form 'qdq': %s", summary)
    return shaped


def _name(model: ir.Model, options: FormOptions) -> None:
    if options.is_scoped_info:
        follow_modules(model)
    else:
        number_nodes(model)


def _forget_shapes(model: ir.Model) -> None:
    """Drop the shapes of the trace, which hold for the example's sizes only; they are inferred again."""
    outputs = {id(value) for value in model.graph.outputs}
    for node in all_nodes(model):
        for value in node.outputs:
            if id(value) not in outputs:
                value.shape = None
                value.type = None


def _finished(model: ir.Model, options: FormOptions) -> onnx.ModelProto:
    """Infer the shapes and let onnx check the model."""
    proto = ir.to_proto(model)
    if options.dynamic_axes:
        _open_outputs(proto, options.dynamic_axes)
    # the checker refuses values that have a type and no shape
    del proto.graph.value_info[:]
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    _drop_untyped(proto)
    if not options.enable_onnx_checker:
        return proto
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"the exported graph does not pass onnx's checker: {error}") from error
    return proto


def _open_outputs(proto: onnx.ModelProto, dynamic_axes: Mapping[str, Any]) -> None:
    """Drop the names that the exporter made up for open sizes of outputs; keep those of the user."""
    wanted = {name: set(axes.values()) if isinstance(axes, Mapping) else set() for name, axes in dynamic_axes.items()}
    named = set().union(*wanted.values()) if wanted else set()
    for output in proto.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            is_users = dim.dim_param in named or "_dynamic_axes_" in dim.dim_param
            if dim.HasField("dim_param") and not is_users:
                dim.ClearField("dim_param")


def _drop_untyped(proto: onnx.ModelProto) -> None:
    kept = [v for v in proto.graph.value_info if v.type.tensor_type.HasField("shape")]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)


def _bare(model: ir.Model, finished: onnx.ModelProto | None, options: FormOptions) -> onnx.ModelProto:
    """Write the nodes without functions, integer Relu and the like in the standard domain, with the shapes of the full form."""
    for node in all_nodes(model):
        if node.domain == DOMAIN:
            op = find_op(node.op_type)
            node.op_type = op.bare_name(len(node.inputs))
            if op.standard_name:
                node.domain = ""
                for name in CHIP_ATTRIBUTES:  # which no standard op has
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
