# SPDX-License-Identifier: Apache-2.0
"""The body of an op as standard nodes: a function that dialect nodes call, or nodes in the place of one; shapes through bodies.

A function leaves the attributes open; in place, attributes and weights are known.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN, DOMAIN_VERSION, EXTENSIONS, Op, extensions_of, is_known, ops
from linger.errors import GraphError, LingerError, UnsupportedError, UsageError, listing
from linger.graph.conversion.convert import convert_nodes
from linger.graph.conversion.node_rewriter import content_of
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of, stands_for, unknown_arithmetic
from linger.graph.core.nodes import (
    Changes,
    Names,
    all_nodes,
    attributes_of,
    describe,
    graph_of,
    is_dialect,
    is_dialect_domain,
    op_of,
    opset_of,
)
from linger.graph.core.rewiring import drop_unused
from linger.graph.core.tensor_types import QUANTIZED, infer_element_types, integer_bits
from linger.graph.files.model_io import copied
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES, AttributeRef, Derived, OnnxValue, integer_type, make_attribute

_NEUTRAL = {"auto_pad": "NOTSET", "storage_order": 0}
_PLACES = "pads"
"""The input that counts elements, whose width is not that of numbers."""


def dialect_nodes(model: ir.Model, *op_types: str) -> list[ir.Node]:
    """The nodes of the dialect, in the graph and inside it; only those of some types, where types are named."""
    return [node for node in all_nodes(model) if is_dialect(node, *op_types)]


def bring_to_normal_form(model: ir.Model) -> Changes:
    """Adopt nodes of the domain `linger` and integer Relu, MaxPool and Clip of the standard one, sort, type, complete.

    Raises:
        UnsupportedError: Nodes without an op, or with settings that have no agreed meaning.
    """
    changes = convert_nodes(model, OLDER)[0] if has_nodes_of(model, NEWER) else Changes()
    unknown = [n for n in dialect_nodes(model) if not is_known(n.op_type)]
    if unknown:
        raise UnsupportedError(
            f"linger has no op for {listing(sorted({n.op_type for n in unknown}))} "
            f"(nodes {listing(describe(n) for n in unknown)}). Known ops: {listing(ops(), limit=99)}. "
            "Update linger, or keep these layers in float."
        )
    model.graph.sort()
    infer_element_types(model.graph)
    _adopt_standard_integer_ops(model, changes)
    for node in dialect_nodes(model):
        op = op_of(node)
        node.op_type = op.name  # not one of its aliases
        require_settings(node, op)
        _complete_inputs(model, node, op, changes)
    return changes


def require_settings(node: ir.Node, op: Op) -> None:
    """Refuse a dialect node with other inputs or attributes than its op takes (GraphError), or that cannot be computed exactly.

    The latter, settings without an agreed meaning and sums that would not be exact, is an UnsupportedError.
    """
    count, most = len(node.inputs), len(op.inputs)
    try:
        op.form(count)
    except UsageError as error:
        raise GraphError(f"{describe(node)}: {error}") from error
    if not op.is_variadic and not op.forms and count > most:
        excess = f"it has {count} inputs; the op takes at most {most}. Remove what is too many."
        raise GraphError(f"{describe(node)}: {excess}")
    wrong = unknown_arithmetic(node)
    if wrong:
        raise UnsupportedError(f"{describe(node)}: {listing(wrong)}. Export the layer again, or set it by hand.")
    reason = _refusal(node, op)
    if reason is not None:
        raise UnsupportedError(f"{describe(node)}: {reason}")


def element_bits_of(node: ir.Node) -> int:
    """Widest integer among data and weights, the first two inputs or any number; the bias (int32) and places do not count."""
    op = op_of(node)
    data = node.inputs if op.is_variadic else node.inputs[:2]
    return max((_width(v) or 8 for i, v in enumerate(data) if op.inputs[i : i + 1] != (_PLACES,)), default=8)


def _width(value: ir.Value | None) -> int | None:
    """The width in which a tensor stores integers; None where it holds none, or its type is not known."""
    is_unsigned = value is not None and value.dtype == ir.DataType.UINT8
    return None if value is None else _PLAIN_ELEMENT_BITS if is_unsigned else integer_bits(value.dtype)


def is_narrow_exact(node: ir.Node, op: Op) -> bool:
    """Whether float32 holds every narrow number of a node; not where its weights are not known."""
    if op.is_narrow_exact is None:
        return True
    names = op.form(len(node.inputs))
    contents = {n: v.const_value.numpy() for n, v in zip(names, node.inputs, strict=True) if v and v.const_value}
    if not set(names[1:]) - op.optional_inputs <= contents.keys():
        return False
    try:
        return op.is_narrow_exact(contents, attributes_of(node, op))
    except (ValueError, IndexError) as error:
        misfit = f"{describe(node)}: the shapes of its weights do not fit ({error}). Export it again."
        raise GraphError(misfit) from error


def _adopt_standard_integer_ops(model: ir.Model, changes: Changes) -> None:
    """No runtime has integer Relu, MaxPool and Clip for every opset and width, so they become dialect nodes.

    A file without any dialect node, now or before it was converted, is not a linger file and stays as it is.
    """
    if not changes and not dialect_nodes(model):
        return
    standard = {op.standard_name: op for op in ops().values()}
    for node in [n for n in all_nodes(model) if not n.domain and n.op_type in standard and n.inputs]:
        if _holds_integers(node):
            _adopt(node, standard[node.op_type])
            changes.note(describe(node), "moved into the dialect")


def _holds_integers(node: ir.Node) -> bool:
    """Whether a node reads integers, and is no carrier of a file that is being written."""
    name = str(node.outputs[0].name)
    return _width(node.inputs[0]) is not None and stands_for(name) == name


def _adopt(node: ir.Node, op: Op) -> None:
    """Make a standard node one of the dialect; attributes with a neutral value are removed."""
    others = {name: a.value for name, a in node.attributes.items() if not op.has_attribute(name)}
    strange = {name: value for name, value in others.items() if value != _NEUTRAL.get(name)}
    if strange or len(node.outputs) > 1:
        meaning = f"on integers, {strange or 'a second output'} has no meaning in the dialect. Remove it."
        raise UnsupportedError(f"{describe(node)}: {meaning}")
    for name in others:
        del node.attributes[name]
    node.domain = DOMAIN


@dataclass(frozen=True)
class _NodeFacts:
    """The facts of a node that its op is asked about (`linger.dialect.NodeFacts`)."""

    attributes: Mapping[str, Any]
    inputs: Mapping[str, ir.Value | None]

    def size(self, name: str, axis: int) -> int | None:
        return _size(self.inputs.get(name), axis)

    def bits(self, name: str) -> int:
        return _width(self.inputs.get(name)) or 8

    def is_real(self, name: str) -> bool:
        return getattr(self.inputs.get(name), "dtype", None) == ir.DataType.FLOAT

    def content(self, name: str) -> Any:
        return content_of(self.inputs.get(name))


def _refusal(node: ir.Node, op: Op) -> str | None:
    """Why a node cannot be computed exactly, or has settings without an agreed meaning."""
    attributes = attributes_of(node, op)
    window = attributes.get("kernel_shape")
    if window is not None and len(window) != op.window_axes:
        return f"a window of {len(window)} axes; this op has {op.window_axes}. Add or remove an axis of size 1."
    if element_bits_of(node) > op.widest_data:
        return f"its input has 32 bits; at most {op.widest_data} are supported. Add a Requant before it."
    has_none = EXTENSIONS.keys().isdisjoint(node.attributes.data)
    misfit = None if has_none else next(_extension_misfits(node, op, attributes), None)
    if misfit is not None or op.refusal is None:
        return misfit
    return op.refusal(_NodeFacts(attributes, dict(zip(op.inputs, node.inputs, strict=False))))


def _leave_out_exponents(model: ir.Model) -> None:
    """No shape depends on exponents, and a body that reshapes them by a computed size hides its own."""
    for node in [node for node in dialect_nodes(model) if not _SCALED.keys().isdisjoint(node.attributes)]:
        node.domain = DOMAIN
        for name in _SCALED.keys() & node.attributes.keys():
            del node.attributes[name]


_SCALED = {"exponents_w": "w", "exponents_iw": "w_ih", "exponents_hw": "w_hh"}
"""The weights whose output channels an attribute gives exponents."""


def _extension_misfits(node: ir.Node, op: Op, attributes: Mapping[str, Any]) -> Iterator[str]:
    """Why the extensions of a node do not fit the rest of it: unsigned numbers of other widths, too few or many exponents."""
    if attributes.get("o_unsigned") and attributes[str(op.output_bits)] != _PLAIN_ELEMENT_BITS:
        yield f"o_unsigned is for 8 bits, and {op.output_bits} = {attributes[str(op.output_bits)]}. Remove it, or give 8 bits."
    given = dict(zip(op.form(len(node.inputs)), node.inputs, strict=False))
    for name, weight in _SCALED.items():
        exponents, sizes = attributes.get(name), [_size(given.get(weight), axis) for axis in (0, 1)]
        channels = None if None in sizes else op.output_channels([n or 0 for n in sizes], attributes.get("group", 1))
        if exponents and channels not in (None, len(exponents)):
            yield f"{name} has {len(exponents)} numbers for {channels} output channels. Give one to each, in their order."


def _size(value: ir.Value | None, axis: int) -> int | None:
    """The size of an axis; None where it is not known."""
    size = None if value is None or value.shape is None or axis >= len(value.shape) else value.shape[axis]
    return size if isinstance(size, int) else None


def _complete_inputs(model: ir.Model, node: ir.Node, op: Op, changes: Changes) -> None:
    """Add inputs that were left out: a zero bias, the open end of a Clip."""
    present = [*node.inputs, *[None] * (len(op.inputs) - len(node.inputs))]
    if op.is_variadic or op.forms or None not in present:
        return
    node.resize_inputs(len(op.inputs))
    for index, (name, value) in enumerate(zip(op.inputs, present, strict=True)):
        if value is None:
            node.replace_input_with(index, _neutral_input(model, node, op, name))
            changes.note(describe(node), f"input {name!r} completed")


def _neutral_input(model: ir.Model, node: ir.Node, op: Op, name: str) -> ir.Value:
    first = node.inputs[0]
    if name == "b":
        sizes = [_size(node.inputs[1], axis) for axis in (0, 1)]
        if sizes[op.is_transposed] is None:
            missing = "the weight's shape is not known, so no zero bias can be added. Give the node a bias."
            raise UnsupportedError(f"{describe(node)}: {missing}")
        group = node.attributes["group"].as_int() if op.is_transposed else 1
        channels = op.output_channels([size or 0 for size in sizes], group)
        return _initializer(model, f"linger.zero_bias_{channels}", np.zeros(channels, np.int32))
    if name in ("low", "high") and first is not None and first.dtype in QUANTIZED:
        ends = np.iinfo(first.dtype.numpy())
        title = f"linger.{name}_{'u' * (ends.min == 0)}{ends.bits}"
        return _initializer(model, title, np.asarray({"low": ends.min, "high": ends.max}[name], ends.dtype))
    raise UnsupportedError(f"{describe(node)}: input {name!r} is missing. Connect it.")


def _initializer(model: ir.Model, name: str, content: NDArray[Any]) -> ir.Value:
    if name not in model.graph.initializers:
        model.graph.register_initializer(constant_value(name, content))
    return model.graph.initializers[name]


def constant_value(name: str, content: NDArray[Any]) -> ir.Value:
    """A tensor with a content, to be registered as an initializer."""
    tensor = ir.tensor(content, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(content.shape), const_value=tensor)


@dataclass
class FormWriter:
    """Collects the nodes and initializers that stand for one node."""

    node: ir.Node
    attributes: Mapping[str, Any]
    names: Names | None = field(default=None, kw_only=True)
    """The names of the model, where new ones must differ from them."""
    nodes: list[ir.Node] = field(default_factory=list, init=False)
    initializers: list[ir.Value] = field(default_factory=list, init=False)

    def input(self, index: int) -> ir.Value:
        """An input of the dialect node; in normal form none is missing."""
        value = self.node.inputs[index]
        assert value is not None
        return value

    def known(self, index: int) -> NDArray[Any] | None:
        """The content of an input that cannot change: an initializer or a Constant."""
        value = self.input(index)
        tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()

    def emit(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """Add one standard node and return its output; it is named after that of the node, which may have no name of its own."""
        name = self._free(f"{self.node.outputs[0].name}/{op_type}_{len(self.nodes)}")
        output = ir.Value(name=name)
        attrs = [make_attribute(key, value) for key, value in attributes.items()]
        self.nodes.append(ir.Node("", op_type, inputs, attributes=attrs, outputs=[output], name=name))
        return output

    def initializer(self, content: Any, dtype: type[np.generic], role: str) -> ir.Value:
        """A constant of this node's own: runtimes edit the scale and zero point of a Q or DQ node in place."""
        name = self._free(f"{self.node.outputs[0].name}/{role}_{len(self.initializers)}")
        self.initializers.append(constant_value(name, np.asarray(content, dtype)))
        return self.initializers[-1]

    def _free(self, name: str) -> str:
        return name if self.names is None else self.names.choose(name)

    def put(self, model: ir.Model) -> None:
        """Insert what was written in front of the node."""
        for value in self.initializers:
            model.graph.register_initializer(value)
        graph_of(self.node).insert_before(self.node, self.nodes)


FUNCTION_IR_VERSION = 8
"""The IR version that introduced model-local functions; older runtimes refuse newer ones."""

_PLAIN_ARITY = 2
_PLAIN_ELEMENT_BITS = 8
_BIASES = ("b", "b_ih", "b_hh")


def attach_functions(model: ir.Model, *, is_for_shapes: bool = False, is_normal: bool = False) -> Changes:
    """Attach one function per op type and signature used.

    Args:
        model: Edited in place.
        is_for_shapes: Whether only shapes are inferred through the bodies; then they are short, and slow to run.
        is_normal: Whether the model is in normal form already.

    Leaves: every dialect node (integer Relu, MaxPool and Clip of the standard domain included) in a domain for which
    the model has a function, with every optional input and attribute present.

    Raises:
        UnsupportedError: Nodes whose op linger does not know, all of them named.
    """
    changes = Changes() if is_normal else bring_to_normal_form(model)
    if is_for_shapes:
        _leave_out_exponents(model)
    library: dict[tuple[Hashable, ...], tuple[ir.Function, Mapping[str, Derived]]] = {}
    for node in [n for n in dialect_nodes(model) if n.op_identifier() not in model.functions]:
        op = op_of(node)
        arity, bits, is_narrow = len(node.inputs), element_bits_of(node), is_narrow_exact(node, op)
        extensions, unsigned = _numbers_of(node, op, is_for_shapes=is_for_shapes)
        key = (op.name, op.platform, arity, bits, is_narrow, extensions, unsigned)
        if key not in library:
            build = partial(build_function, op, opset=opset_of(model), is_for_shapes=is_for_shapes)
            library[key] = build(
                arity=arity, element_bits=bits, is_narrow_exact=is_narrow, extensions=extensions, unsigned=unsigned
            )
        function, derived = library[key]
        _call(node, op, function, derived)
        changes.note(describe(node), f"runs as {function.domain}::{op.name}")
    for function, _ in library.values():
        model.functions.setdefault(function.identifier(), function)
        model.graph.opset_imports.setdefault(function.domain, DOMAIN_VERSION)
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
    return changes


def _numbers_of(node: ir.Node, op: Op, *, is_for_shapes: bool) -> tuple[frozenset[str], tuple[int, ...]]:
    """The extensions that a node uses, but exponents where only shapes count, and the places of its unsigned inputs."""
    has_none = EXTENSIONS.keys().isdisjoint(node.attributes.data)
    extensions = frozenset[str]() if has_none else extensions_of(attributes_of(node, op))
    unsigned = tuple(i for i, x in enumerate(node.inputs) if x is not None and x.dtype == ir.DataType.UINT8)
    return extensions & {"o_unsigned"} if is_for_shapes else extensions, unsigned


def _call(node: ir.Node, op: Op, function: ir.Function, derived: Mapping[str, Derived]) -> None:
    """Let a node call a function: its domain, and every attribute that the function reads."""
    attributes = attributes_of(node, op)
    node.domain = function.domain
    for name, value in attributes.items():
        if name not in node.attributes and name not in EXTENSIONS:
            node.attributes[name] = make_attribute(name, value)
    for name, each in derived.items():
        node.attributes[name] = make_attribute(
            name, each.compute(*(attributes[source.name] for source in each.sources))
        )


def build_function(
    op: Op,
    *,
    opset: int,
    arity: int,
    element_bits: int,
    is_narrow_exact: bool = True,
    is_for_shapes: bool = False,
    extensions: frozenset[str] = frozenset(),
    unsigned: tuple[int, ...] = (),
) -> tuple[ir.Function, Mapping[str, Derived]]:
    """Interpret an op's body into a model-local function; with it, the attributes to be added to each node that calls it.

    One function has one signature, so variants (another chip's arithmetic, another number of inputs, wider integers where
    the body cares) live in sub-domains: `thinker.arcs::iqSigmoid`, `thinker.n3::iqCat`, `thinker.i16::Relu`, and
    `thinker.f64::LSTMInt` where float32 would round. Nodes with an attribute of ours (`extensions`) have functions of
    their own, too: `thinker.channels::Conv2dInt`. In the others the attribute has its default. So have nodes whose inputs
    at the places `unsigned` are unsigned bytes: `thinker.u0::Conv2dInt`.
    """
    kernel = _ElementAwareKernel(opset=opset, element_bits=element_bits)
    kernel.is_narrow_exact, kernel.is_deferring = is_narrow_exact, not is_for_shapes
    names, references, defaults = _signature(op, arity, extensions)
    inputs = [ir.Value(name=name) for name in names]
    types = {i: _input_type(op, name, element_bits) for i, name in enumerate(names)}
    types |= dict.fromkeys(unsigned, ir.DataType.UINT8)
    arguments = [OnnxValue(types[i], x) for i, x in enumerate(inputs)]
    results = op.body(kernel, *op.arrange(arguments), **references, **defaults)
    outputs = _materialized(kernel, op, results)
    graph = ir.Graph(inputs, outputs, nodes=kernel.nodes, opset_imports={"": opset})
    drop_unused(value for node in kernel.nodes for value in node.outputs)  # steps that this form of the op does without
    parameters = [ir.Attr(n, ATTRIBUTE_TYPES[each.kind], None) for n, each in (references | kernel.derived).items()]
    domain = _domain(op, arity, extensions, unsigned, is_narrow_exact=is_narrow_exact)
    if kernel.depends_on_element and element_bits != _PLAIN_ELEMENT_BITS:
        domain += f".i{element_bits}"
    return ir.Function(domain, op.name, graph=graph, attributes=parameters), kernel.derived


def _signature(
    op: Op, arity: int, extensions: frozenset[str]
) -> tuple[tuple[str, ...], dict[str, AttributeRef], dict[str, Any]]:
    """The names of the inputs, and the attributes, of an op with so many inputs; and extensions that nodes leave out."""
    defaults = {a.name: a.default for a in op.attributes if a.name in EXTENSIONS and a.name not in extensions}
    references = {a.name: AttributeRef(a.name, a.kind) for a in op.attributes if a.name not in defaults}
    if not op.is_variadic:
        return op.form(arity), references, defaults
    scales = {f"scale_x_{i}": AttributeRef(f"scale_x_{i}", "float") for i in range(arity)}
    return tuple(f"x{i}" for i in range(arity)), references | scales, defaults


def _materialized(kernel: OnnxKernel, op: Op, results: Any) -> list[ir.Value]:
    return [kernel.materialize(result) for result in (results if len(op.outputs) > 1 else [results])]


def _domain(op: Op, arity: int, extensions: frozenset[str], unsigned: tuple[int, ...], *, is_narrow_exact: bool) -> str:
    """The domain of an op's function: a sub-domain for a chip, an unusual number of inputs, float64, extensions, unsigned inputs."""
    usual = _PLAIN_ARITY if op.is_variadic else len(op.forms[0]) if op.forms else arity
    parts = [DOMAIN, op.platform, None if arity == usual else f"n{arity}", None if is_narrow_exact else "f64"]
    parts += [part for name, (part, _) in EXTENSIONS.items() if name in extensions]
    return ".".join(filter(None, [*parts, *(f"u{i}" for i in unsigned)]))


def _input_type(op: Op, name: str, element_bits: int) -> ir.DataType:
    """Types inside a function are open; these steer only where the kernel inserts casts."""
    if name in op.real_inputs:
        return ir.DataType.FLOAT
    if name == "lengths":
        return ir.DataType.INT64
    return integer_type(32) if name in _BIASES else integer_type(element_bits)


class _ElementAwareKernel(OnnxKernel):
    """An OnnxKernel that remembers whether the body asked for the width of its elements."""

    def __init__(self, **arguments: Any) -> None:
        self.depends_on_element = False
        super().__init__(**arguments)

    @property
    def element_bits(self) -> int:
        """Storage width of the op's integer inputs."""
        self.depends_on_element = True
        return self._element_bits

    @element_bits.setter
    def element_bits(self, bits: int) -> None:
        self._element_bits = bits


def expand_dialect(model: ir.Model, *, is_normal: bool = False) -> Changes:
    """Interpret each dialect node's body in place, with its attributes and weights known.

    Leaves: only standard nodes, no functions, and no `If` where the weights are initializers. Names of tensors
    that dialect nodes produced are kept. A model that is in normal form already is not brought to it again.
    """
    changes = Changes() if is_normal else bring_to_normal_form(model)
    for node in dialect_nodes(model):
        expand_node(node, opset_of(model))
        changes.note(describe(node), "expanded into standard nodes")
    drop_bodies(model)
    return changes


def drop_bodies(model: ir.Model) -> None:
    """Remove the functions of dialect nodes, and the imports of their domains."""
    for identifier in [i for i in model.functions if is_dialect_domain(i[0])]:
        del model.functions[identifier]
    for domain in [d for d in model.graph.opset_imports if is_dialect_domain(d)]:
        del model.graph.opset_imports[domain]


def expand_node(node: ir.Node, opset: int) -> None:
    """Interpret the body of one node in place, in a model in its normal form."""
    op, output = op_of(node), node.outputs[0]
    kernel = OnnxKernel(opset=opset, element_bits=element_bits_of(node), prefix=f"{output.name}/")
    kernel.is_narrow_exact = is_narrow_exact(node, op)
    results = op.body(kernel, *op.arrange([_argument(value) for value in node.inputs]), **attributes_of(node, op))
    values = _materialized(kernel, op, results)[: len(node.outputs)]
    for index, new in enumerate(kernel.nodes):
        new.name = f"{node.name or output.name}/{new.op_type}_{index}"
    for value, old in zip(values, node.outputs, strict=False):
        value.shape = old.shape
    ir.convenience.replace_nodes_and_values(graph_of(node), node, [node], kernel.nodes, node.outputs, values)


def _argument(value: ir.Value | None) -> OnnxValue | None:
    known = None if value is None or value.const_value is None else value.const_value.numpy()
    return None if value is None else OnnxValue(value.dtype or ir.DataType.FLOAT, value, known)


Shape = tuple[int | None, ...]

_LARGEST_SIZE = 1 << 20


@dataclass(frozen=True)
class Tensors:
    """What is known of the tensors of a model.

    Attributes:
        shapes: Shapes by name; None stands for an open size.
    """

    shapes: dict[str, Shape]
    types: dict[str, ir.DataType]


def known_tensors(model: ir.Model) -> Tensors:
    """Shapes and types by name, as far as inference gets; only those that the file declares where linger lacks an op."""
    return declared_tensors(_inferred(model))


def state_recurrent_shapes(model: ir.Model) -> None:
    """Give the inputs of recurrent nodes their shapes: with a known batch they become fewer standard nodes."""
    state_shapes(model, [node.inputs[0] for node in dialect_nodes(model) if op_of(node).is_recurrent])


def state_shapes(model: ir.Model, inputs: Sequence[ir.Value | None]) -> None:
    """Give tensors of a model their shapes, as far as inference gets."""
    unknown = [x for x in inputs if x is not None and x.shape is None]
    shapes = known_tensors(model).shapes if unknown else {}
    for x in unknown:
        if x.name in shapes:
            x.shape = ir.Shape(shapes[x.name])


def declared_tensors(model: ir.Model) -> Tensors:
    """Shapes and types that a model states itself."""
    tensors = Tensors({}, {})
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in all_nodes(model) for value in node.outputs]
    for value in values:
        if value.name is not None and value.shape is not None:
            tensors.shapes[value.name] = tuple(n if isinstance(n, int) else None for n in value.shape)
        if value.name is not None and value.dtype is not None:
            tensors.types[value.name] = value.dtype
    return tensors


def shape_of(value: ir.Value | None, shapes: Mapping[str, Shape]) -> Shape | None:
    """The shape of a tensor; None where not even the number of axes is known."""
    return None if value is None else shapes.get(value.name or "")


def _inferred(model: ir.Model) -> ir.Model:
    """A copy with inferred types and shapes, as far as inference gets."""
    copy = copied(model)
    try:
        bring_to_normal_form(copy)
        sized = [n for n in dialect_nodes(copy) if op_of(n).is_sized_by_values]
        for node in sized:
            expand_node(node, opset_of(copy))  # in a function, inference does not see the values of an input
        attach_functions(copy, is_for_shapes=True, is_normal=not sized)
        _put_stand_ins(copy)
        proto = ir.to_proto(copy)
        del proto.graph.value_info[:]  # half-known ones would stop the inference
        # where contents are followed, a vector of n elements is written out as n sizes
        sizes = [size.dim_value for value in proto.graph.input for size in value.type.tensor_type.shape.dim]
        has_small_sizes = max(sizes, default=0) <= _LARGEST_SIZE
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=has_small_sizes))
    except (LingerError, onnx.shape_inference.InferenceError, MemoryError, ValueError):  # ValueError: absurd sizes
        return copy


def _put_stand_ins(model: ir.Model) -> None:
    """Give the readers of some nodes a tensor of the same shape instead: bodies that reshape by computed sizes stop the inference."""
    for node in dialect_nodes(model):
        op, x, y = op_of(node), next(iter(node.inputs), None), node.outputs[0]
        if x is None or y.name is None or y.dtype is None or not (op.keeps_shape or op.is_recurrent):
            continue
        nodes = _of_states(node, x) if op.is_recurrent else []
        nodes.append(ir.node("Cast", [nodes[-1].outputs[0] if nodes else x], {"to": int(y.dtype)}))
        graph_of(node).insert_before(node, nodes)
        stand_in = nodes[-1].outputs[0]
        y.replace_all_uses_with(stand_in, replace_graph_outputs=True)
        y.name, stand_in.name = f"{y.name}/replaced", y.name


def _of_states(node: ir.Node, x: ir.Value) -> list[ir.Node]:
    """The first number of each step, as often as the state has numbers."""
    shape = [1, 1, node.attributes["hidden_size"].as_int()]
    places = [ir.node("Constant", [], {"value": ir.tensor(np.array(content, np.int64))}) for content in ([0], shape)]
    first = ir.node("Gather", [x, places[0].outputs[0]], {"axis": 2})
    return [*places, first, ir.node("Expand", [first.outputs[0], places[1].outputs[0]])]
