# SPDX-License-Identifier: Apache-2.0
"""Write dialect nodes through torch's exporters, and give them the names of the simulation and the checkpoint.

One torch op computes the integers and becomes the node. It is registered with torch on the first export, not on import. The
exporters make up names of their own, so names travel in attributes, which are taken out of the graph again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, count
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.onnx import symbolic_helper

from linger.dialect import DOMAIN, DOMAIN_VERSION, Op, find_op
from linger.errors import UnsupportedError
from linger.graph.core.nodes import all_nodes, graph_of, is_dialect
from linger.graph.core.rewiring import drop_unused
from linger.graph.core.tensor_types import constant_tensor
from linger.numeric.torch.kernel import TorchKernel, carrier, integer_type
from linger.onnx.operators.declaration import GraphContext
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime
from linger.simulation import WRAPPED

NAME_ATTRIBUTE = "linger_name"
"""Attribute that carries the name of a node through the exporter."""

PARAMETERS_ATTRIBUTE = "linger_parameters"
"""Attribute that carries `_Names`."""

_Operands = Sequence[Any]
"""Tensors of integers, None for an optional input that is left out, a tuple for an int64 constant."""

_Names = Mapping[str, str] | None
"""The names of a node's initializers by input, where they do not follow from its own name."""

_KEPT = "call_of_constant"
"""The function for a node that torch would compute while it exports: the simulation has it, and so has the file."""

_SUFFIX = {"float": "f", "int": "i", "ints": "i", "str": "s"}
_STORED_BITS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32}


class TraceEmitter:
    """Emits dialect nodes into a torch trace."""

    def __init__(self, *, is_dynamic: bool) -> None:
        self._is_dynamic = is_dynamic
        register()

    def call(
        self,
        op: Op,
        tensors: _Operands,
        attributes: Mapping[str, Any],
        name: str,
        parameters: _Names = None,
        *,
        may_be_constant: bool = False,
    ) -> tuple[Tensor, ...]:
        """Write a node; optional inputs at the end that are None are left out."""
        given = [_as_tensor(t) for t in tensors]
        while given and given[-1] is None:
            given.pop()
        more = {"name": name, "is_dynamic": self._is_dynamic, "parameters": parameters}
        is_constant = may_be_constant and _is_tracing() and not any(map(_depends_on_values, given))
        if is_constant:
            _pass_lifts(given)
        function = _KEPT if is_constant else _name(len(op.outputs))
        results = getattr(torch.ops.linger, function)(given, _described(op, attributes, more))
        return results if isinstance(results, tuple) else (results,)


class SymbolicEmitter:
    """Emits dialect nodes into torch's newer exporter, which has an op for nodes of any domain."""

    def call(
        self,
        op: Op,
        tensors: _Operands,
        attributes: Mapping[str, Any],
        name: str,
        parameters: _Names = None,
        *,
        may_be_constant: bool = False,  # noqa: ARG002 - this exporter computes no nodes of other domains
    ) -> tuple[Tensor, ...]:
        """Write a node; its shapes come from the op's body, run on the exporter's shape-only tensors."""
        given = [t for t in tensors if t is not None]
        with disable_proxy_modes_tracing():  # this run is for the shapes only, and must not be recorded
            shapes = _run(given, _described(op, attributes, {}), is_exact=False)
        written = {**_fixed_attributes(op), **attributes, NAME_ATTRIBUTE: name}
        if parameters:
            written[PARAMETERS_ATTRIBUTE] = json.dumps(dict(parameters))
        results = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{op.name}",
            [_as_tensor(t) for t in given],
            {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()},
            dtypes=[s.dtype for s in shapes],
            shapes=[s.shape for s in shapes],
            version=DOMAIN_VERSION,
        )
        return tuple(results)


@cache
def register() -> torch.library.Library:
    """Define torch.ops.linger.call and how the tracing exporter writes it; once per process."""
    library = torch.library.Library("linger", "DEF")
    for name, output_count in ((_name(1), 1), (_name(2), 2), (_name(3), 3), (_KEPT, 1)):
        results = ", ".join(["Tensor"] * output_count)
        aliasing = "CONSERVATIVE" if name == _KEPT else ""
        library.define(f"{name}(Tensor[] tensors, str description) -> ({results})", alias_analysis=aliasing)
        library.impl(name, partial(_results, is_exact=True), "CompositeExplicitAutograd")
        torch.library.register_fake(f"linger::{name}", partial(_results, is_exact=False), lib=library)
        torch.onnx.utils.register_custom_op_symbolic(f"linger::{name}", _write_node, 9)
    return library


def _name(output_count: int) -> str:
    return "call" if output_count == 1 else f"call{output_count}"


def _results(tensors: Sequence[Tensor], description: str, *, is_exact: bool) -> Tensor | tuple[Tensor, ...]:
    """Run an op: with exact integers, or only for the shapes and types of its results."""
    results = _run(tensors, description, is_exact=is_exact)
    return results if len(results) > 1 else results[0]


def _run(tensors: Sequence[Tensor], description: str, *, is_exact: bool) -> tuple[Tensor, ...]:
    call = json.loads(description)
    op = find_op(call["op"], call["platform"])
    attributes = op.complete({k: tuple(v) if isinstance(v, list) else v for k, v in call["attributes"].items()})
    carriers = [_carried(tensor, is_exact=is_exact) for tensor in tensors]
    with torch.no_grad():
        result = op.body(TorchKernel(is_exact=is_exact, device=tensors[0].device), *op.arrange(carriers), **attributes)
    first, *others = result if len(op.outputs) > 1 else (result,)
    if not op.has_integer_output:
        return (first,)
    width = attributes[op.output_bits] if op.output_bits else _STORED_BITS[tensors[0].dtype]
    is_unsigned = attributes.get("o_unsigned", 0) if op.output_bits else tensors[0].dtype == torch.uint8
    # torch demands that the results of an op share no memory
    return (first.to(torch.uint8 if is_unsigned else integer_type(width)), *(t.clone() for t in others))


def _carried(tensor: Any, *, is_exact: bool) -> Any:
    """A tensor of integers as the floats that carry them; tensors of other types are indices, and stay as they are."""
    if not isinstance(tensor, Tensor):
        return tensor
    exact = tensor.to(carrier(_STORED_BITS[tensor.dtype])) if tensor.dtype in _STORED_BITS else tensor
    return exact if is_exact else exact.float()


def _as_tensor(value: Any) -> Any:
    """A tuple of places or counts as the int64 constant that the file holds."""
    return torch.tensor(value) if isinstance(value, tuple) else value


def _write_node(g: GraphContext, tensors: torch._C.Value, description: torch._C.Value) -> object:
    """Symbolic function of linger::call."""
    call = json.loads(symbolic_helper._maybe_get_const(description, "s"))  # noqa: SLF001 - torch offers no public reader
    op = find_op(call["op"], call["platform"])
    kinds = {a.name: a.kind for a in op.attributes}
    written = _fixed_attributes(op) | call["attributes"]
    attributes = {f"{name}_{_SUFFIX[kinds.get(name, 'float')]}": value for name, value in written.items()}
    attributes[f"{NAME_ATTRIBUTE}_s"] = call["name"]
    if call["parameters"]:
        attributes[f"{PARAMETERS_ATTRIBUTE}_s"] = json.dumps(call["parameters"])
    given = symbolic_helper._unpack_list(tensors)  # noqa: SLF001 - nor for lists
    values = g.op(f"{DOMAIN}::{op.name}", *given, outputs=len(op.outputs), **attributes)
    values = tuple(values) if len(op.outputs) > 1 else (values,)
    for value, original in zip(values, g.original_node.outputs(), strict=True):
        kind: Any = original.type()  # a tensor type: these ops return nothing else
        # torch would write a size that is fixed here into every Reshape that reads it
        value.setType(kind.with_sizes([None] * len(kind.sizes())) if call["is_dynamic"] else kind)
    return values if len(op.outputs) > 1 else values[0]


def _described(op: Op, attributes: Mapping[str, Any], more: Mapping[str, object]) -> str:
    """The op and its attributes as text, for a torch op that takes tensors and one text."""
    return json.dumps({"op": op.name, "platform": op.platform, "attributes": dict(attributes), **more})


def _fixed_attributes(op: Op) -> dict[str, Any]:
    """Attributes that every node carries with their default: the texts (platform_quant, castor_mode, mode).

    A node for a certain chip carries all attributes that have a default.
    """
    return {
        a.name: a.default for a in op.attributes if not a.is_required and (a.kind == "str" or op.platform is not None)
    }


_WIDEST_EXACT = 16
"""Integers of up to so many bits survive as real values in float32."""

_trace: Any = torch._C  # noqa: SLF001 - torch has no public way to name a tensor of a trace


class WrapperTrace:
    """Follows quantized tensors into a torch.autograd.Function, which a trace records as one node.

    Such a node may use nothing but its inputs, and its inputs are wrappers. So a wrapper gets a value of its own in the trace,
    its real values, and what needs integers quantizes these again. A Dequant and the Quant behind it cancel each other when the
    file is assembled.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def announce(self, wrapper: QTensor, content: Tensor, scale: float | None) -> None:
        """Give a wrapper its value in the trace: a Dequant of its content."""
        if not _is_tracing():
            return
        real = content
        if scale is not None and not content.is_floating_point():
            name = self._runtime.unique_name(self._runtime.path, "Dequant")
            real = self._runtime.emit(find_op("Dequant"), [content], {"scale_o": scale}, name)
        _give(wrapper, _value(real))

    def real(self, wrapper: QTensor) -> Tensor:
        """An ordinary tensor that has the wrapper's value."""
        assert wrapper.scale is not None  # callers check that there is one
        with _untraced():
            real: Tensor = wrapper.stored / wrapper.scale
        if _is_tracing():
            _give(real, _value(wrapper))
        return real

    def integers(self, wrapper: QTensor) -> Tensor:
        """A Quant of the wrapper's value."""
        if not _is_tracing():
            return wrapper.stored
        if wrapper.bits > _WIDEST_EXACT:
            raise UnsupportedError(
                f"{self._runtime.path or 'model'}: a torch.autograd.Function is exported beside a quantized tensor of "
                f"{wrapper.bits} bits, whose integers do not survive as real values. Give the layer an output of 8 or 16 "
                "bits (linger.quant_module), or write the function as torch functions."
            )
        attributes: dict[str, Any] = {"data_bits": wrapper.bits, "scale_x": wrapper.scale}
        attributes |= {"o_unsigned": 1} if wrapper.is_unsigned else {}
        name = self._runtime.unique_name(self._runtime.path, "FunctionQuant")
        return self._runtime.emit(find_op("Quant"), [self.real(wrapper)], attributes, name)


def _depends_on_values(tensor: Tensor) -> bool:
    """Whether a trace has computed a tensor from an input or a parameter."""
    waiting, visited = [_value(tensor).node()], set[int]()
    for node in waiting:  # the list grows while it is walked
        if node.kind() in ("prim::Param", "prim::GetAttr"):
            return True
        waiting += [value.node() for value in node.inputs() if value.unique() not in visited]
        visited |= {value.unique() for value in node.inputs()}
    return False


def _pass_lifts(tensors: Iterable[Tensor]) -> None:
    """Let a trace take what `lift_fresh` returns, as torch.from_numpy calls it, for its input: torch has no node for it."""
    for tensor in tensors:
        node = _value(tensor).node()
        if node.kind() == "aten::lift_fresh":
            _give(tensor, next(iter(node.inputs())))


def _is_tracing() -> bool:
    return bool(_trace._is_tracing())  # noqa: SLF001 - torch has no public way to ask


def _value(tensor: Tensor) -> torch._C.Value:
    with _trace.DisableTorchFunctionSubclass():
        value: torch._C.Value = _trace._get_value_trace(tensor)  # noqa: SLF001
    return value


def _give(tensor: Tensor, value: torch._C.Value) -> None:
    with _trace.DisableTorchFunctionSubclass():
        _trace._set_value_trace(tensor, value)  # noqa: SLF001


@contextmanager
def _untraced() -> Iterator[None]:
    """Compute without recording in the trace."""
    state = _trace._get_tracing_state()  # noqa: SLF001
    _trace._set_tracing_state(None)  # noqa: SLF001
    try:
        yield
    finally:
        _trace._set_tracing_state(state)  # noqa: SLF001


_PARAMETER_NAMES = {"w": "weight", "b": "bias", "running_mean": "running_mean", "running_var": "running_var"}


def name_nodes(model: ir.Model) -> None:
    """Give dialect nodes and the tensors they make the names that the simulation uses."""
    ends = {id(value) for value in model.graph.outputs}
    for node in all_nodes(model):
        parameters = node.attributes.pop(PARAMETERS_ATTRIBUTE, None)
        if parameters is not None:
            node.meta[PARAMETERS_ATTRIBUTE] = json.loads(parameters.as_string())
        attribute = node.attributes.pop(NAME_ATTRIBUTE, None)
        if attribute is not None:
            node.name = attribute.as_string()
            for output, suffix in zip(node.outputs, ("", ".h_n", ".c_n"), strict=False):
                if id(output) not in ends:
                    output.name = node.name + suffix


def store_parameters(model: ir.Model) -> None:
    """Store weights, biases and thresholds as initializers named by their state_dict keys; other constants stay nodes."""
    for node in filter(is_dialect, list(all_nodes(model))):
        op = find_op(node.op_type)
        scope = (node.name or "").rpartition(".")[0]
        constants = dict(zip(op.inputs[1:], op.constant_names, strict=False)) if op.constant_names else {}
        names = _PARAMETER_NAMES | constants | node.meta.get(PARAMETERS_ATTRIBUTE, {})
        for index, role, value in _operands(node, () if op.is_variadic else op.form(len(node.inputs))):
            tensor = constant_tensor(value)
            if tensor is None:
                continue
            if role in names:
                stored = _initializer(model, f"{scope}.{names[role]}".lstrip("."), tensor)
            else:
                stored = _constant_node(node, f"{node.name}.{role}", tensor)
            node.replace_input_with(index, stored)
            drop_unused([value], constants_only=True, upstream=False)


def keep_scalars_as_nodes(model: ir.Model) -> None:
    """Turn scalar operands that a tool made initializers back into Constant nodes, as device packers want them."""
    for node in filter(is_dialect, list(all_nodes(model))):
        op = find_op(node.op_type)
        for index, role, value in _operands(node, () if op.is_variadic or op.constant_names or op.forms else op.inputs):
            tensor = constant_tensor(value) if value.producer() is None else None
            if role not in _PARAMETER_NAMES and tensor is not None and len(tensor.shape) == 0:
                node.replace_input_with(index, _constant_node(node, f"{node.name}.{role}", tensor))
                drop_unused([value], constants_only=True, upstream=False)


def _operands(node: ir.Node, roles: Iterable[str]) -> list[tuple[int, str, ir.Value]]:
    """Index, role and value of every input that is given."""
    pairs = enumerate(zip(roles, node.inputs, strict=False))
    return [(index, role, value) for index, (role, value) in pairs if value is not None]


def _constant_node(consumer: ir.Node, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Make a Constant node for a scalar operand, as device packers want it; one per consumer, each with its own scale."""
    value = ir.Value(name=name)
    node = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", tensor)], outputs=[value], name=name)
    graph_of(consumer).insert_before(consumer, node)
    return value


def _initializer(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Find or make the initializer of this name and content; if the name has other content, a number is appended."""
    stem, number = name, 0
    ends = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    while name in model.graph.initializers or name in ends:
        present = None if name in ends else model.graph.initializers[name].const_value
        if present is not None and present.dtype == tensor.dtype and present.tobytes() == tensor.tobytes():
            return model.graph.initializers[name]
        number += 1
        name = f"{stem}_{number}"
    stored = ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(stored.numpy().shape)
    value = ir.Value(name=name, type=kind, shape=shape, const_value=stored)
    model.graph.register_initializer(value)
    return value


def unwrap_names(model: ir.Model) -> None:
    """Remove the wrapper's name from the names of initializers, nodes and tensors."""
    prefix, path = f"{WRAPPED}.", f"/{WRAPPED}/"
    for value in list(model.graph.initializers.values()):
        if value.name is not None and value.name.startswith(prefix):
            value.name = value.name.removeprefix(prefix)
    for node in all_nodes(model):
        named: list[ir.Node | ir.Value] = [node, *node.outputs]
        for one in named:
            if one.name and path in one.name:
                one.name = one.name.replace(path, "/", 1)


def name_by_modules(model: ir.Model) -> None:
    """Name nodes after module paths (`block.relu.Relu`), also those that are not of the dialect."""
    taken = {node.name for node in all_nodes(model)}
    for node in all_nodes(model):
        if node.name and node.name.startswith("/"):
            taken.discard(node.name)
            node.name = free_name(node.name.strip("/").replace("/", "."), taken)
            taken.add(node.name)


def free_name(name: str, taken: Collection[str | None]) -> str:
    """The name, with a number behind it if it is taken."""
    candidates = chain([name], (f"{name}_{number}" for number in count(1)))
    return next(candidate for candidate in candidates if candidate not in taken)
