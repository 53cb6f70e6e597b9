# SPDX-License-Identifier: Apache-2.0
"""The types of tensors, in one place.

`output_types` is the one rule: it gives the element types of a node's outputs from those of its inputs. `infer_element_types`
applies it to a whole graph, and `linger.graph.formats` asks it for nodes that do not touch quantized numbers.
`infer_outputs` adds shapes, which onnx itself infers.

Types as text are in the notation of ONNX text: `float[n,3]`, `int8[]` (any rank), `bool` (a scalar).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.errors import UsageError, listing
from linger.graph.core.nodes import attributes_of, inner_graphs, inputs_within, is_dialect, op_of
from linger.numeric.onnx.writer import integer_type

OLDEST_OPSET = 7
"""The opset that is assumed for a model that names none."""

_STANDARD_DOMAINS = frozenset({"", "ai.onnx.ml"})

_KINDS = {
    OpSchema.AttrType.FLOAT: ir.AttributeType.FLOAT,
    OpSchema.AttrType.FLOATS: ir.AttributeType.FLOATS,
    OpSchema.AttrType.INTS: ir.AttributeType.INTS,
    OpSchema.AttrType.STRINGS: ir.AttributeType.STRINGS,
}
"""Attribute kinds that a Python value alone may not tell: 1 for a float, an empty list."""


def find_schema(op_type: str, domain: str, opset: int | None) -> OpSchema | None:
    """The schema of an op; None where the domain is not ONNX's own. Refuses an op that the opset does not have."""
    if opset is None or domain not in _STANDARD_DOMAINS:
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError as error:
        names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == domain})
        near = get_close_matches(op_type, names, n=3)
        hint = f"Is {' or '.join(near)} meant?" if near else "Give the domain of an op that is not standard."
        raise UsageError(f"{op_type}: standard ONNX has no such op in opset {opset}. {hint}") from error


@cache
def is_standard(op_type: str) -> bool:
    """Whether any opset of standard ONNX has such an op: files use ops that came after their opset."""
    return onnx.defs.has(op_type, "")


@cache
def standard_schema(op_type: str, opset: int) -> OpSchema | None:
    """The schema of a standard op at an opset, or the newest of an op that came later; None for an op that ONNX never had."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return onnx.defs.get_schema(op_type, "") if is_standard(op_type) else None


def formal_input(schema: OpSchema | None, index: int) -> OpSchema.FormalParameter | None:
    """What the schema says about an input; the last one holds for all that follow. None if the op takes no inputs."""
    return None if schema is None or not schema.inputs else schema.inputs[min(index, len(schema.inputs) - 1)]


def element_named(kind: str) -> ir.DataType | None:
    """The element type in a schema's text such as `tensor(int8)`; None for a type variable, and for what is no tensor."""
    return ir.DataType[kind[len("tensor(") : -1].upper()] if kind.startswith("tensor(") else None


@cache
def takes(op_type: str, index: int, element: ir.DataType, opset: int) -> bool:
    """Whether standard ONNX lets an input have an element type.

    >>> takes("Add", 0, ir.DataType.INT8, 11), takes("Add", 0, ir.DataType.INT8, 14)
    (False, True)
    """
    formal = formal_input(standard_schema(op_type, opset), index)
    return formal is not None and f"tensor({element.name.lower()})" in formal.types


@cache
def type_variable(op_type: str, index: int, opset: int) -> str | None:
    """The name of an input's type where several tensors of a node have the same one; None where it is fixed.

    >>> type_variable("Clip", 0, 17) == type_variable("Clip", 1, 17), type_variable("Reshape", 1, 17)
    (True, None)
    """
    schema = standard_schema(op_type, opset)
    formal = formal_input(schema, index)
    if schema is None or formal is None:
        return None
    is_free = not formal.is_homogeneous and index >= len(schema.inputs) - 1
    return None if is_free or element_named(formal.type_str) is not None else str(formal.type_str)


def make_attributes(op_type: str, given: Mapping[str, Any], schema: OpSchema | None) -> list[ir.Attr]:
    """Python values as attributes, of the kinds that the schema asks for; refuses and names all that do not fit."""
    attributes, wrong = [], []
    for name, value in given.items():
        if value is None:
            continue
        if schema is not None and name not in schema.attributes:
            wrong.append(f"there is no attribute {name!r} (it has {listing(sorted(schema.attributes)) or 'none'})")
            continue
        kind = None if schema is None else _KINDS.get(schema.attributes[name].type)
        is_made = isinstance(value, ir.Attr)
        try:
            attributes.append(value if is_made else ir.convenience.convert_attribute(name, _plain(value, kind), kind))
        except (TypeError, ValueError):
            wrong.append(f"the attribute {name!r} cannot be {value!r}")
    if wrong:
        raise UsageError(f"{op_type}: {'; '.join(wrong)}.")
    return attributes


def _plain(value: Any, kind: ir.AttributeType | None) -> Any:
    """Convert numpy scalars and lists to Python's own, and integers to floats where the schema has floats."""
    if isinstance(value, np.ndarray):
        return value.tolist() if kind is not None else ir.tensor(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        items = [_plain(item, None) for item in value]
        return [float(i) for i in items] if kind is ir.AttributeType.FLOATS else items
    if isinstance(value, (bool, int)):
        return float(value) if kind is ir.AttributeType.FLOAT else int(value)
    return value


def default_of(schema: OpSchema | None, name: str) -> Any:
    """The value an attribute has when it is left out; None where there is none."""
    known = None if schema is None else schema.attributes.get(name)
    if known is None or not known.default_value.name:
        return None
    return ir.serde.deserialize_attribute(known.default_value).value


def number_type(number: Any, index: int, operands: Sequence[Any], schema: OpSchema | None) -> ir.DataType:
    """Choose the element type of a Python number or list given as an input: that of the other operands."""
    formal = formal_input(schema, index)
    if formal is not None:
        fixed = element_named(formal.type_str)
        if fixed is not None:
            return fixed
        for other, value in enumerate(operands):
            same = formal_input(schema, other)
            is_typed = isinstance(value, ir.Value) and value.dtype is not None
            if is_typed and same is not None and same.type_str == formal.type_str:
                return ir.DataType(value.dtype)
    return ir.DataType.INT64 if np.asarray(number).dtype.kind in "iu" else ir.DataType.FLOAT


def check_node(node: ir.Node, schema: OpSchema) -> None:
    """Refuse a node whose inputs, outputs or attributes do not fit the schema; the message lists all problems."""
    wrong = []
    for verb, side, low, count, high in (
        ("takes", "inputs", schema.min_input, len(node.inputs), schema.max_input),
        ("has", "outputs", schema.min_output, len(node.outputs), schema.max_output),
    ):
        if not low <= count <= high:
            expected = str(low) if low == high else f"{low} or more" if high > 2**30 else f"{low} to {high}"
            wrong.append(f"it {verb} {expected} {side}, not {count}")
    missing = [n for n, a in schema.attributes.items() if a.required and n not in node.attributes]
    if missing:
        wrong.append(f"it needs the attributes {listing(missing)}")
    wrong += _mixed_types(node, schema)
    if wrong:
        raise UsageError(f"{node.op_type}: {'; '.join(wrong)}.")


def _mixed_types(node: ir.Node, schema: OpSchema) -> list[str]:
    """Describe inputs of different types that must have one type according to the schema."""
    types: dict[str, dict[str, str]] = {}
    for index, value in enumerate(node.inputs):
        formal = formal_input(schema, index)
        if value is not None and value.dtype is not None and formal is not None and formal.is_homogeneous:
            types.setdefault(str(formal.type_str), {})[value.name or "?"] = value.dtype.name.lower()
    mixed = [used for used in types.values() if len(set(used.values())) > 1]
    return [f"its inputs must have one type, but {listing(map(' is '.join, used.items()))}" for used in mixed]


INTEGERS = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32})
"""Types that quantized tensors have in every file."""

QUANTIZED = INTEGERS | {ir.DataType.UINT8}
"""The same, with the unsigned bytes that nodes with `o_unsigned` make; other files have bytes that stand for other things."""

REALS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_STANDARD = ("", "ai.onnx")
_USUAL = {"QuantizeLinear": ir.DataType.UINT8, "DequantizeLinear": ir.DataType.FLOAT}
"""The type of a result that neither the inputs nor the schema tell."""

_ALL_TYPED = frozenset({"Split", "BatchNormalization", "LSTM", "GRU", "RNN"})
"""Standard ops of which the walk types every result; of others it types the first, and leaves indices and masks as declared."""

_LARGEST_KNOWN = 1024
"""Constants up to this size are shown to shape inference; larger ones never decide a shape."""


def integer_bits(element: ir.DataType | None) -> int | None:
    """The width of a type that quantized tensors have; None for other types.

    >>> integer_bits(ir.DataType.INT16), integer_bits(ir.DataType.UINT8), integer_bits(ir.DataType.INT64)
    (16, 8, None)
    """
    return int(element.itemsize * 8) if element is not None and element in QUANTIZED else None


def output_types(node: ir.Node, given: Sequence[ir.DataType | None], opset: int) -> list[ir.DataType | None]:
    """The element types of a node's outputs, from its op, attributes and the types given to it; None where they do not follow.

    The node is of the older dialect or of standard ONNX; refused is an unknown op of the dialect, or one without a meaning.
    """
    if is_dialect(node):
        return [_dialect_type(node, given), *[ir.DataType.FLOAT] * (len(node.outputs) - 1)]
    if node.op_type in _TYPED_BY_ATTRIBUTE:
        return [_TYPED_BY_ATTRIBUTE[node.op_type](node)]
    return [_standard_type(node.op_type, index, given, opset) for index in range(len(node.outputs))]


def _dialect_type(node: ir.Node, given: Sequence[ir.DataType | None]) -> ir.DataType | None:
    op = op_of(node)
    if not op.has_integer_output:
        return ir.DataType.FLOAT
    if op.output_bits is None:
        return given[0] if given else None
    attributes = attributes_of(node, op)
    return integer_type(attributes[op.output_bits], is_unsigned=bool(attributes.get("o_unsigned")))


def _standard_type(op_type: str, index: int, given: Sequence[ir.DataType | None], opset: int) -> ir.DataType | None:
    source = type_source(op_type, index, opset)
    if source is None or isinstance(source, ir.DataType):
        return source
    return given[source] if source < len(given) else None


@cache
def type_source(op_type: str, index: int, opset: int) -> ir.DataType | int | None:
    """The element type that ONNX fixes for an output, or the index of the input whose type it has; None for neither.

    >>> type_source("Where", 0, 17), type_source("ArgMax", 0, 17).name, type_source("RandomNormalLike", 0, 17)
    (1, 'INT64', None)
    """
    schema = standard_schema(op_type, opset)
    if schema is None or not schema.outputs:
        return None
    output = schema.outputs[min(index, len(schema.outputs) - 1)]
    if len(output.types) == 1:
        (kind,) = output.types
        return element_named(kind)
    return next((i for i, formal in enumerate(schema.inputs) if formal.type_str == output.type_str), None)


def constant_type(node: ir.Node) -> ir.DataType | None:
    """The element type of a Constant or a ConstantOfShape; None where the caller of a function gives the tensor."""
    for name, attribute in node.attributes.items():
        if name == "value" and attribute.type == ir.AttributeType.TENSOR:
            return None if attribute.is_ref() else attribute.as_tensor().dtype
        if name.startswith("value_int"):
            return ir.DataType.INT64
        if name.startswith("value_string"):
            return ir.DataType.STRING
    return ir.DataType.FLOAT


def cast_type(node: ir.Node) -> ir.DataType | None:
    """The element type that a Cast makes; None where its attribute is missing or names no type."""
    target = node.attributes.get("to")
    if target is None or target.type != ir.AttributeType.INT or target.is_ref():
        return None
    try:
        return ir.DataType(target.as_int())
    except ValueError:
        return None


_TYPED_BY_ATTRIBUTE = {"Cast": cast_type, "Constant": constant_type, "ConstantOfShape": constant_type}


def infer_element_types(graph: ir.Graph, *, guess: bool = True, opset: int | None = None) -> None:
    """Give every tensor of a sorted graph, and of the graphs inside it, its element type where it can be known.

    With `guess`, an unknown op is assumed to return the type of its input. `opset` is None for the one that the graph imports.
    """
    opset = graph.opset_imports.get("", OLDEST_OPSET) if opset is None else opset
    for node in graph:
        for subgraph in inner_graphs(node):
            infer_element_types(subgraph, guess=guess, opset=opset)
        if guess or is_dialect(node) or (node.domain in _STANDARD and _makes_tensors(node.op_type)):
            _type_outputs(node, opset)


def _type_outputs(node: ir.Node, opset: int) -> None:
    """Write the types of a node's outputs; a declared type stays, except of a dialect node, which states its types."""
    is_binding = is_dialect(node)
    types = output_types(node, _declared(node.inputs), opset) if is_binding else _standard_types(node, opset)
    for output, element in zip(node.outputs, types, strict=False):
        if element is not None and (output.dtype is None or is_binding):
            output.dtype = element


def _standard_types(node: ir.Node, opset: int) -> list[ir.DataType | None]:
    """The types of a standard node's outputs; an op of open type is assumed to return the type of its input."""
    inner = inner_graphs(node)
    if inner and node.domain in _STANDARD and node.op_type in ("If", "Loop", "Scan"):
        ends = _declared(inner[0].outputs)
        return ends[1:] if node.op_type == "Loop" else ends  # the first result of a Loop's body is its condition
    given = _declared(node.inputs)
    types = output_types(node, given, opset) or [None]
    if types[0] is None and node.op_type in _USUAL:
        types[0] = _USUAL[node.op_type]
    elif node.op_type not in _TYPED_BY_ATTRIBUTE and type_source(node.op_type, 0, opset) is None:
        types[0] = next(iter(given), None)
    return types if node.op_type in _ALL_TYPED else types[:1]


def _declared(values: Sequence[ir.Value | None]) -> list[ir.DataType | None]:
    return [None if value is None else value.dtype for value in values]


@cache
def _makes_tensors(op_type: str) -> bool:
    """Whether the result of a standard op may be a tensor: not that of an op that makes sequences."""
    results = onnx.defs.get_schema(op_type, "").outputs if is_standard(op_type) else ()
    return any(kind.startswith("tensor") for result in results[:1] for kind in result.types)


def infer_outputs(node: ir.Node, schema: OpSchema, opsets: Mapping[str, int]) -> None:
    """Give outputs the types and shapes that follow from the inputs; refuses inputs that the op does not take."""
    inputs = [v for v in node.inputs if v is not None]
    if any(v.type is None for v in inputs):
        return
    imports = [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in opsets.items()]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), _known_types(node), _known_contents(inputs), opset_imports=imports
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        described = listing(f"{v.name} {type_of(v)}" for v in inputs)
        raise UsageError(f"{node.op_type}: it does not take the inputs {described}: {error}") from error
    for output in node.outputs:
        _write_type(output, inferred.get(output.name or ""))


def _write_type(value: ir.Value, found: onnx.TypeProto | None) -> None:
    if found is not None and found.WhichOneof("value") is not None:
        value.type = ir.serde.deserialize_type_proto_for_type(found)
        value.shape = ir.serde.deserialize_type_proto_for_shape(found)


def _known_types(node: ir.Node) -> dict[str, onnx.TypeProto]:
    """By name, the types of the tensors that a node reads, in its branches and bodies too."""
    return {v.name or "": ir.serde.serialize_value(v).type for v in inputs_within(node) if v.type is not None}


def _known_contents(inputs: Sequence[ir.Value]) -> dict[str, onnx.TensorProto]:
    """By name, the contents of small constants."""
    constants = {v.name or "": v.const_value for v in inputs if v.const_value is not None}
    return {n: ir.serde.serialize_tensor(tensor) for n, tensor in constants.items() if tensor.size <= _LARGEST_KNOWN}


Dims = Sequence[int | str | None]

_ELEMENTS = {t.name.lower(): t for t in ir.DataType if t is not ir.DataType.UNDEFINED}
_TYPE = re.compile(r"(?P<element>[a-z][a-z0-9_]*)\s*(?:\[(?P<dims>[^\[\]]*)\])?")
_SIZE = re.compile(r"\?|[0-9]+|[A-Za-z_][^\s,]*")
_OPEN = "?"


def format_type(element: str, dims: Dims | None) -> str:
    """An element type and a shape as text; None for a shape means that even the rank is open.

    >>> format_type("float", ["n", 3, None]), format_type("int8", []), format_type("bool", None)
    ('float[n,3,?]', 'int8', 'bool[]')
    """
    if dims is None:
        return f"{element}[]"
    if not dims:
        return element
    return f"{element}[{','.join(_OPEN if d is None else str(d) for d in dims)}]"


def parse_types(texts: Mapping[str, str]) -> dict[str, tuple[ir.TensorType, ir.Shape | None]]:
    """The element types and shapes that texts name, by the name of the tensor.

    >>> parse_types({"x": "float[n,3]"})
    {'x': (Tensor(FLOAT), Shape([SymbolicDim('n'), 3]))}

    Raises:
        UsageError: Some texts are no tensor types; all of them are named.
    """
    types, wrong = {}, []
    for name, text in texts.items():
        try:
            types[name] = _parse(text)
        except UsageError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        raise UsageError(" ".join(wrong))
    return types


def _parse(text: str) -> tuple[ir.TensorType, ir.Shape | None]:
    parts = _TYPE.fullmatch(text.strip())
    if parts is None:
        raise UsageError(f"{text!r} is no tensor type. Write an element type and the sizes, as in 'float[n,3]'.")
    element = _ELEMENTS.get(parts["element"])
    if element is None:
        known = listing(_ELEMENTS, limit=99)
        raise UsageError(f"{text!r}: there is no element type {parts['element']!r}. Known are {known}.")
    if parts["dims"] is not None and not parts["dims"].strip():
        return ir.TensorType(element), None
    sizes = [] if parts["dims"] is None else [size.strip() for size in parts["dims"].split(",")]
    wrong = [repr(size) for size in sizes if not _SIZE.fullmatch(size)]
    if wrong:
        raise UsageError(f"{text!r}: {listing(wrong)} is no size. Write a number, a name, or '?' for any size.")
    return ir.TensorType(element), ir.Shape(map(_size, sizes))


def _size(text: str) -> int | str | None:
    if text == _OPEN:
        return None
    return int(text) if text.isdecimal() else text


def type_of(value: ir.Value) -> str:
    """The type of a value as text; `?` where the element type is not known."""
    element = "?" if value.dtype is None else value.dtype.name.lower()
    if value.shape is None:
        return format_type(element, None)
    return format_type(element, [d if isinstance(d, int) else d.value for d in value.shape])


_COMPARED_WHOLE = 256
"""Bytes up to which the key is the content itself; beyond it is a hash."""


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The content of a tensor that never changes: an initializer, or the result of a Constant node."""
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        return value.const_value
    content = producer.attributes.get("value") if producer.op_type == "Constant" and not producer.domain else None
    is_tensor = content is not None and content.type == ir.AttributeType.TENSOR and not content.is_ref()
    return content.as_tensor() if content is not None and is_tensor else None


def tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    """A key of type, shape and content. Reads the content."""
    shape = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return tensor.dtype, shape, tuple(tensor.numpy().reshape(-1).tolist())
    content = tensor.tobytes()
    is_small = len(content) <= _COMPARED_WHOLE
    return tensor.dtype, shape, content if is_small else hashlib.sha256(content).digest()


def attributes_key(node: ir.Node) -> Hashable | None:
    """A key of all attributes of a node; None where one cannot be compared: a graph, a type, weights in another file."""
    parts = []
    for name, attribute in sorted(node.attributes.items()):
        key = _attribute_key(attribute)
        if key is None:
            return None
        parts.append((name, attribute.type, key))
    return tuple(parts)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    if attribute.is_ref():
        return "ref", attribute.ref_attr_name
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return None if isinstance(tensor, ir.ExternalTensor) else tensor_key(tensor)
    return _plain_key(attribute.value)


def _plain_key(value: Any) -> Hashable | None:
    if isinstance(value, (list, tuple)):
        keys = tuple(map(_plain_key, value))
        return None if None in keys else keys
    # repr distinguishes 0.0 from -0.0 and is the same for every NaN
    return repr(value) if isinstance(value, (int, float, str, bytes)) else None
