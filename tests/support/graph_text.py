"""Two graphs as text: the same but for the names of nodes and of tensors inside, and for the order of the nodes.

A tensor is written as what computes it, so that a node that is there twice counts twice.
"""

import hashlib

import onnx
import onnx_ir as ir

from tests.support.dialect_text import short

HARMLESS = frozenset({"complete_types", "cancel_dq_q"})
"""Rules that a right file may need: they declare types that it leaves out, and take away what is undone exactly."""


def parsed(text: str, opset: int = 13) -> onnx.ModelProto:
    """A model from `g (inputs) => (outputs) { nodes }` and the functions behind it; `Q16`, `DQ16`, `ADD16` are short."""
    mine = ', "my": 1' if "my." in text else ""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "thinker": 1{mine}]> {short(text)}')
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        _name(nodes, "node")
    return model


def _name(nodes, stem: str) -> None:
    """Give every node a name of its own, as files have them."""
    for index, node in enumerate(nodes):
        node.name = f"{stem}_{index}"
        for attribute in node.attribute:
            _name(attribute.g.node, f"{node.name}_{attribute.name}")


def edits(result) -> list[str]:
    """What a repair changed, but for what a right file may need."""
    return [str(c) for c in result.changes if c.rule not in HARMLESS]


def shown(model: onnx.ModelProto | ir.Model) -> list[str]:
    """Inputs, outputs and every node of a model."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    lines = _graph_lines(proto.graph, {})
    for function in sorted(proto.functions, key=lambda f: (f.domain, f.name)):
        known = {name: name for name in function.input}
        lines += [f"function {function.domain}.{function.name}", *_node_lines(function.node, known)]
        lines += [f"gives {known[name]}" for name in function.output]
    return lines


def _graph_lines(graph: onnx.GraphProto, around: dict[str, str], depth: int = 0) -> list[str]:
    formals = {t.name: t.name if depth == 0 else f"%{depth}.{i}" for i, t in enumerate(graph.input)}
    known = around | formals | {t.name: t.name for t in graph.initializer}
    nodes = _node_lines(graph.node, known, depth)
    ends = [f"{'' if depth else t.name + ' = '}{_type(t)} {known[t.name]}" for t in graph.output]
    return [*(f"input {formals[t.name]} {_type(t)}" for t in graph.input), *nodes, *(f"output {end}" for end in ends)]


def _node_lines(nodes, known: dict[str, str], depth: int = 0) -> list[str]:
    lines = []
    for node in nodes:
        operands = ", ".join(known[name] if name else "-" for name in node.input)
        settings = ", ".join(sorted(_attribute(a, known, depth) for a in node.attribute))
        line = f"{node.domain or 'onnx'}.{node.op_type}<{settings}>({operands})"
        lines.append(line)
        for index, name in enumerate(node.output):
            known[name] = line if len(node.output) == 1 else f"{line}#{index}"
    return sorted(lines)


def _attribute(attribute: onnx.AttributeProto, known: dict[str, str], depth: int) -> str:
    if attribute.type == onnx.AttributeProto.GRAPH:
        return f"{attribute.name} = {{ {' ; '.join(_graph_lines(attribute.g, known, depth + 1))} }}"
    value = onnx.helper.get_attribute_value(attribute)
    return f"{attribute.name} = {onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value}"


def _type(tensor: onnx.ValueInfoProto) -> str:
    return onnx.TensorProto.DataType.Name(tensor.type.tensor_type.elem_type)


def fingerprint(model: onnx.ModelProto | ir.Model) -> list[str]:
    """The nodes and outputs of a large sorted model without sub-graphs, as digests; weights by their content."""
    graph = (ir.to_proto(model) if isinstance(model, ir.Model) else model).graph
    known = {t.name: t.name for t in graph.input} | {"": "-"}
    known |= {
        t.name: _digest(f"{t.dims}".encode() + onnx.numpy_helper.to_array(t).tobytes()) for t in graph.initializer
    }
    nodes = []
    for node in graph.node:
        settings = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        nodes.append(
            _digest(repr((node.domain, node.op_type, settings, [known[name] for name in node.input])).encode())
        )
        known |= {name: f"{nodes[-1]}#{index}" for index, name in enumerate(node.output)}
    return [*sorted(nodes), *(f"{t.name} {_type(t)} {known[t.name]}" for t in graph.output)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
