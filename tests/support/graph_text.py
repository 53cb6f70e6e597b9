"""Two graphs as text: the same but for the names of nodes and of tensors inside, and for the order of the nodes.

A tensor is written as what computes it, so that a node that is there twice counts twice.
"""

import onnx
import onnx_ir as ir

from tests.support.dialect_text import short

HEADER = '<ir_version: 8, opset_import: ["": {opset}, "thinker": 1, "my": 1]>'


def parsed(text: str, opset: int = 13) -> onnx.ModelProto:
    """A model from `g (inputs) => (outputs) { nodes }` and the functions behind it; `Q16`, `DQ16`, `ADD16` are short."""
    return onnx.parser.parse_model(f"{HEADER.format(opset=opset)} {short(text)}")


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
