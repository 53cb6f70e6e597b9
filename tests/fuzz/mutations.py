"""Changes of a model that leave it a protobuf: what a broken tool, or somebody with bad intentions, might do to a file."""

from collections.abc import Callable
from random import Random

import onnx

from linger.dialect import ops

Mutation = Callable[[onnx.ModelProto, Random], object]
FLOATS = (0.0, -1.0, 0.5, 1.0, 8.0, 16.0, 32.0, 3.0, 1e-42, 3e38, float("inf"), float("nan"))
INTS = (-1, 0, 1, 2, 4, 5, 7, 8, 16, 17, 32, 64, 999, 2**31, 2**40, -(2**62))
DOMAINS = ("", "thinker", "linger", "ai.onnx", "thinker.arcs", "my", "com.microsoft")
STANDARD = (
    "Add", "Relu", "Identity", "Transpose", "Reshape", "Concat", "Split", "If", "Loop", "Scan", "Cast", "Constant",
    "ConstantOfShape", "Clip", "MaxPool", "Where", "Gather", "QuantizeLinear", "DequantizeLinear", "Softmax", "Shape",
    "Slice", "Squeeze", "Unsqueeze", "Flatten", "Pad", "Expand", "Dropout", "MatMul", "Mul", "Sub", "Neg", "Max",
    "SequenceConstruct", "SequenceAt", "Optional", "TopK", "LSTM", "Resize",
)  # fmt: skip
NEWER = ("Quant", "Dequant", "QLinear", "QConv2d", "QAdd", "QCat", "QLSTM", "QSigmoid")


def graphs(proto: onnx.ModelProto) -> list:
    """The main graph, function bodies and every graph inside them."""
    found, waiting = [], [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        found.append(graph)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting += attribute.graphs
    return found


def _graph(proto, random):
    return random.choice(graphs(proto))


def _node(proto, random):
    graph = _graph(proto, random)
    return random.choice(graph.node) if graph.node else graph.node.add(op_type="Identity", input=["x"], output=["n"])


def _names(proto, random):
    names = ["", "x", "y"]
    for graph in graphs(proto):
        for node in graph.node:
            names += [*node.input, *node.output]
        if isinstance(graph, onnx.GraphProto):
            names += [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
    return names


def _name(proto, random):
    return random.choice(_names(proto, random)) if random.random() < 0.9 else f"fresh{random.randrange(9)}"


def _cut(items, random):
    if items:
        del items[random.randrange(len(items))]


def _double(items, random):
    if items:
        items.add().CopyFrom(random.choice(items))


def drop_node(proto, random):
    _cut(_graph(proto, random).node, random)


def repeat_node(proto, random):
    """A node again, with outputs of its own more often than not."""
    nodes = _graph(proto, random).node
    if nodes:
        made = nodes.add()
        made.CopyFrom(random.choice(nodes))
        if random.random() < 0.8:
            renamed = [f"{name}_{random.randrange(99)}" for name in made.output]
            del made.output[:]
            made.output.extend(renamed)


def shuffle_nodes(proto, random):
    graph = _graph(proto, random)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    random.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def rewire_input(proto, random):
    node = _node(proto, random)
    if node.input:
        node.input[random.randrange(len(node.input))] = _name(proto, random)


def add_input(proto, random):
    _node(proto, random).input.append(_name(proto, random))


def drop_input(proto, random):
    _cut(_node(proto, random).input, random)


def rename_output(proto, random):
    node = _node(proto, random)
    if node.output:
        node.output[random.randrange(len(node.output))] = _name(proto, random)


def add_output(proto, random):
    _node(proto, random).output.append(f"fresh{random.randrange(9)}")


def drop_output(proto, random):
    _cut(_node(proto, random).output, random)


def change_op(proto, random):
    _node(proto, random).op_type = random.choice([*STANDARD, *ops(), *NEWER])


def change_domain(proto, random):
    _node(proto, random).domain = random.choice(DOMAINS)


def insert_node(proto, random):
    """A Quant, Dequant, Identity or anything else on an edge."""
    graph = _graph(proto, random)
    if not graph.node:
        return
    index = random.randrange(len(graph.node))
    if not graph.node[index].input:
        return
    place = random.randrange(len(graph.node[index].input))
    name = f"edge{random.randrange(999)}"
    kind = random.choice(["Identity", "Dequant", "Quant", "Requant", "Relu", "Cast", "QuantizeLinear"])
    made = onnx.NodeProto(op_type=kind, input=[graph.node[index].input[place]], output=[name])
    if kind in ("Dequant", "Quant", "Requant"):
        made.domain = random.choice(["thinker", "linger"])
        scale = random.choice(FLOATS[1:8])
        made.attribute.append(onnx.helper.make_attribute("scale_o" if kind == "Dequant" else "scale_x", scale))
        made.attribute.append(onnx.helper.make_attribute("data_bits", random.choice([8, 16, 4])))
    if kind == "Cast":
        made.attribute.append(onnx.helper.make_attribute("to", random.choice([1, 3, 5, 6, 7])))
    graph.node[index].input[place] = name
    graph.node.append(made)


def _attribute(proto, random):
    found = [a for graph in graphs(proto) for node in graph.node for a in node.attribute]
    return random.choice(found) if found else _node(proto, random).attribute.add(name="k", type=onnx.AttributeProto.INT)


def change_number(proto, random):
    attribute = _attribute(proto, random)
    attribute.f = random.choice(FLOATS)
    attribute.i = random.choice(INTS)
    for index in range(len(attribute.ints)):
        if random.random() < 0.3:
            attribute.ints[index] = random.choice(INTS)


def change_kind(proto, random):
    _attribute(proto, random).type = random.choice(list(onnx.AttributeProto.AttributeType.values()))


def rename_attribute(proto, random):
    _attribute(proto, random).name = random.choice(
        [_attribute(proto, random).name, "axis", "to", "scale_o", "platform", ""]
    )


def drop_attribute(proto, random):
    _cut(_node(proto, random).attribute, random)


def copy_attribute(proto, random):
    copied = _attribute(proto, random).SerializeToString()  # it may hold the very node that gets it
    _node(proto, random).attribute.add().ParseFromString(copied)


def refer_attribute(proto, random):
    _attribute(proto, random).ref_attr_name = random.choice(["a", "scale_o", ""])


def lengthen_attribute(proto, random):
    attribute = _attribute(proto, random)
    (attribute.ints.append if random.random() < 0.5 else lambda _: _cut(attribute.ints, random))(random.choice(INTS))


def set_text(proto, random):
    _attribute(proto, random).s = random.choice([b"", b"constant", b"venus", b"arcs", b"\xff\xfe", b"reverse", b"8"])


def _weights(proto):
    return [t for graph in graphs(proto) if isinstance(graph, onnx.GraphProto) for t in graph.initializer]


def change_weight(proto, random):
    weights = _weights(proto)
    if not weights:
        return
    weight = random.choice(weights)
    kind = random.randrange(4)
    if kind == 0 and weight.dims:
        weight.dims[random.randrange(len(weight.dims))] = random.choice(INTS)
    elif kind == 1:
        weight.data_type = random.choice([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 16, 21, 22, 999])
    elif kind == 2:
        weight.raw_data = weight.raw_data[: random.randrange(9)]
    else:
        weight.name = _name(proto, random)


def drop_weight(proto, random):
    _cut(proto.graph.initializer, random)


def weight_as_input(proto, random):
    if proto.graph.initializer:
        weight = random.choice(proto.graph.initializer)
        made = proto.graph.input.add(name=weight.name)
        made.type.tensor_type.elem_type = weight.data_type


def _value(proto, random):
    found = [v for g in graphs(proto) if isinstance(g, onnx.GraphProto) for v in (*g.input, *g.output, *g.value_info)]
    return random.choice(found) if found else proto.graph.input.add(name="x")


def change_type(proto, random):
    _value(proto, random).type.tensor_type.elem_type = random.choice([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 999])


def change_shape(proto, random):
    shape = _value(proto, random).type.tensor_type.shape
    if shape.dim and random.random() < 0.5:
        shape.dim[random.randrange(len(shape.dim))].dim_value = random.choice(INTS)
    else:
        shape.dim.add(dim_param="n")


def other_type(proto, random):
    value = _value(proto, random)
    kind = random.randrange(3)
    if kind == 0:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == 1:
        value.type.optional_type.elem_type.tensor_type.elem_type = 3
    else:
        value.ClearField("type")


def rename_value(proto, random):
    _value(proto, random).name = _name(proto, random)


def edit_boundary(proto, random):
    graph = random.choice([g for g in graphs(proto) if isinstance(g, onnx.GraphProto)])
    values = random.choice([graph.input, graph.output, graph.value_info])
    if random.random() < 0.3:
        values.add(name=_name(proto, random)).type.tensor_type.elem_type = random.choice([1, 3, 7])
    else:
        random.choice([_cut, _double])(values, random)


def into_branch(proto, random):
    """A node moves into both branches of an If."""
    graph = _graph(proto, random)
    if not graph.node:
        return
    index = random.randrange(len(graph.node))
    node = onnx.NodeProto.FromString(graph.node[index].SerializeToString())
    moved = graph.node[index]
    moved.Clear()
    moved.op_type = "If"
    moved.input.append(_name(proto, random))
    moved.output.extend(node.output)
    for branch in ("then_branch", "else_branch"):
        inner = moved.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g
        inner.name = branch
        copy = inner.node.add()
        copy.CopyFrom(node)
        names = [f"{name}_{branch}" if name else "" for name in node.output]
        del copy.output[:]
        copy.output.extend(names)
        for name in names:
            inner.output.add(name=name)


def into_function(proto, random):
    """A node becomes a function, and is called."""
    node = _node(proto, random)
    name = f"f{random.randrange(4)}"
    function = proto.functions.add(domain="my", name=name)
    function.opset_import.extend(proto.opset_import)
    body = function.node.add()
    body.CopyFrom(node)
    function.input.extend(dict.fromkeys(n for n in node.input if n))
    function.output.extend(node.output)
    inputs = list(function.input)
    del node.input[:]
    node.input.extend(inputs)
    del node.attribute[:]
    node.op_type, node.domain = name, "my"
    if not any(entry.domain == "my" for entry in proto.opset_import):
        proto.opset_import.add(domain="my", version=1)


def call_function(proto, random):
    if proto.functions:
        function = random.choice(proto.functions)
        node = _node(proto, random)
        node.op_type, node.domain = function.name, function.domain


def edit_functions(proto, random):
    random.choice([_cut, _double])(proto.functions, random)


def change_opset(proto, random):
    if proto.opset_import and random.random() < 0.7:
        random.choice(proto.opset_import).version = random.choice([1, 7, 9, 11, 12, 13, 17, 18, 21, 99, 0])
    else:
        proto.opset_import.add(domain=random.choice(DOMAINS), version=random.choice([1, 12, 17]))


def change_ir_version(proto, random):
    proto.ir_version = random.choice([0, 3, 4, 7, 8, 9, 10, 11, 99])


def edit_metadata(proto, random):
    proto.metadata_props.add(key=random.choice(["a", "linger", ""]), value="b")
    proto.graph.name = random.choice(["", "g", "main"])


MUTATIONS: tuple[Mutation, ...] = (
    drop_node, repeat_node, shuffle_nodes, rewire_input, rewire_input, add_input, drop_input, rename_output, add_output,
    drop_output, change_op, change_domain, insert_node, insert_node, change_number, change_number, change_kind,
    rename_attribute, drop_attribute, copy_attribute, refer_attribute, lengthen_attribute, set_text, change_weight,
    drop_weight, weight_as_input, change_type, change_shape, other_type, rename_value, edit_boundary, into_branch,
    into_function, call_function, edit_functions, change_opset, change_ir_version, edit_metadata,
)  # fmt: skip


def mutated(data: bytes, random: Random, *, most: int = 2) -> bytes:
    """A model with one to a few changes; what is no model, or cannot be changed, comes back as it was."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # noqa: BLE001 - bytes that are no model are a case too
        return data
    try:
        for _ in range(random.randint(1, most)):
            if len(graphs(proto)) < 40 and proto.ByteSize() < 60_000:
                random.choice(MUTATIONS)(proto, random)
        return proto.SerializeToString(deterministic=True)
    except UnicodeError:  # its names are no text
        return data
