"""Random dialect graphs that are right: every float op has floats, every integer op integers of the scale it states.

The builder works on plain protobuf and knows of each tensor what it holds, so it shares nothing with the code under test.
`tests/support/graph_families.py` holds the kinds of ops it may choose from.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
INTEGER = {8: TensorProto.INT8, 16: TensorProto.INT16, 32: TensorProto.INT32}
NUMPY = {8: np.int8, 16: np.int16, 32: np.int32}
FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
IR_VERSION = 8
OPSETS = range(11, 19)


@dataclass(frozen=True)
class Tensor:
    """What the builder knows of a tensor.

    `scale` and `bits` are those of quantized tensors. `root` names an integer graph input whose scale only its Dequants
    tell, and `origins` the Dequants that a float tensor comes from by moving and selecting alone.
    """

    name: str
    element: int
    shape: Shape
    scale: float | None = None
    bits: int | None = None
    root: str | None = None
    origins: frozenset[str] = frozenset()

    @property
    def is_quantized(self) -> bool:
        return self.scale is not None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def format(self) -> tuple[float | None, int | None]:
        return self.scale, self.bits


@dataclass
class World:
    """What all graphs of one model share."""

    dice: random.Random
    opset: int
    is_exact: bool = False
    initializers: list[TensorProto] = field(default_factory=list)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    families: Counter = field(default_factory=Counter)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    dequants: dict[str, tuple[str | None, float]] = field(default_factory=dict)
    exposed: set[str] = field(default_factory=set)
    stated: set[str] = field(default_factory=set)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, array: np.ndarray, stem: str = "k") -> str:
        """A new initializer of the main graph."""
        name = self.name(stem)
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name


class Scope:
    """One graph under construction; inner ones see the tensors of those around them."""

    def __init__(self, world: World, outer: "Scope | None" = None) -> None:
        self.world, self.outer = world, outer
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.dequantized: dict[str, Tensor] = {}
        self.is_busy: set[str] = set()

    @property
    def dice(self) -> random.Random:
        return self.world.dice

    @property
    def depth(self) -> int:
        return 0 if self.outer is None else self.outer.depth + 1

    def visible(self) -> list[Tensor]:
        return [*(self.outer.visible() if self.outer else ()), *self.tensors]

    def input(self, tensor: Tensor) -> Tensor:
        self.inputs.append(tensor)
        self._keep(tensor)
        return tensor

    def node(
        self, op_type: str, inputs: Sequence[Tensor | str], outputs: Sequence[Tensor], domain: str = "", **attributes
    ) -> Tensor:
        """Append a node; the first output is returned."""
        names = [i if isinstance(i, str) else i.name for i in inputs]
        made = helper.make_node(
            op_type, names, [o.name for o in outputs], name=self.world.name("node"), domain=domain, **attributes
        )
        self.nodes.append(made)
        self._keep(*outputs)
        return outputs[0]

    def _keep(self, *tensors: Tensor) -> None:
        self.tensors.extend(tensors)
        self.world.tensors.update({t.name: t for t in tensors})

    def reals(self, shape: Shape, origins: frozenset[str] = frozenset()) -> Tensor:
        return Tensor(self.world.name("t"), FLOAT, shape, origins=origins)

    def quantized(self, shape: Shape, scale: float, bits: int) -> Tensor:
        return Tensor(self.world.name("q"), INTEGER[bits], shape, scale, bits)

    def like(self, tensor: Tensor, shape: Shape) -> Tensor:
        """A new tensor with the content of another one."""
        return replace(tensor, name=self.world.name("m"), shape=shape)

    def dialect(self, op_type: str, inputs: Sequence[Tensor | str], output: Tensor, **attributes) -> Tensor:
        if any(name.startswith(("scale_x", "scale_y")) for name in attributes):
            self.world.stated |= {i.root for i in inputs if isinstance(i, Tensor) and i.root}
        return self.node(op_type, inputs, [output], domain="thinker", **attributes)

    # choosing operands

    def pick(self, wanted: Callable[[Tensor], bool]) -> Tensor | None:
        """One of the tensors in sight, recent ones more often."""
        found = [t for t in self.visible() if wanted(t)]
        if not found:
            return None
        return self.dice.choice(found[-4:] if self.dice.random() < 0.7 else found)

    def real_of(self, tensor: Tensor) -> Tensor:
        """A float tensor as it is, a quantized one through its one Dequant."""
        if not tensor.is_quantized:
            return tensor
        scope: Scope | None = self
        while scope is not None:
            if tensor.name in scope.dequantized:
                return scope.dequantized[tensor.name]
            scope = scope.outer
        tag = self.world.name("dequant")
        self.world.dequants[tag] = (tensor.root, tensor.scale)
        output = self.reals(tensor.shape, frozenset({tag}))
        self.dialect("Dequant", [tensor], output, scale_o=tensor.scale)
        self.nodes[-1].doc_string = tag
        self.dequantized[tensor.name] = output
        scope = self.outer
        while scope is not None:  # no second Dequant of it further out
            scope.is_busy.add(tensor.name)
            scope = scope.outer
        return output

    def _has_reals(self, tensor: Tensor) -> bool:
        return tensor.element == FLOAT or (tensor.is_quantized and tensor.name not in self.is_busy)

    def a_float(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        around = {} if self.outer is None else self.outer.dequantized
        if around and self.dice.random() < 0.4:  # real numbers that the graph around has already
            found = self.pick(lambda t: t in around.values() and wanted(t))
            if found is not None:
                return found
        found = self.pick(lambda t: self._has_reals(t) and wanted(t))
        return None if found is None else self.real_of(found)

    def a_quantized(self, *, most_bits: int = 32, wanted: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        """A quantized tensor; a float one gets a Quant."""
        found = self.pick(lambda t: t.is_quantized and t.bits <= most_bits and wanted(t))
        if found is not None and self.dice.random() < 0.9:
            return found
        source = self.pick(lambda t: t.element == FLOAT and wanted(t))
        return found if source is None else self.quantize(source, self.dice.choice([8, 8, min(16, most_bits)]))

    def quantize(self, source: Tensor, bits: int, scale: float | None = None) -> Tensor:
        output = self.quantized(source.shape, scale or self.scale(bits), bits)
        return self.dialect(
            "Quant", [source], output, data_bits=bits, scale_x=output.scale, platform_quant="luna_quant"
        )

    def scale(self, bits: int) -> float:
        """A power of two that suits a width; now and then below one."""
        return 2.0 ** self.dice.randint(-1 if bits == 8 else 2, bits - 2 if bits < 32 else 16)

    def requant(self, source: Tensor, scale: float, bits: int) -> Tensor:
        """The tensor in another format, as it is where it has that format already."""
        if source.format == (scale, bits):
            return source
        output = self.quantized(source.shape, scale, bits)
        return self.dialect(
            "Requant", [source], output, data_bits=source.bits, o_bits=bits, scale_x=source.scale, scale_o=scale
        )

    def reshaped(self, source: Tensor, shape: Shape) -> Tensor:
        if source.shape == shape:
            return source
        target = self.world.constant(np.array(shape, np.int64), "shape")
        return self.node("Reshape", [source, target], [self.like(source, shape)])

    def graph(self, name: str, outputs: Sequence[Tensor]) -> onnx.GraphProto:
        """What was built, as a graph; types of tensors in between are stated now and then."""
        ends = {t.name for t in (*self.inputs, *outputs)}
        stated = [t for t in self.tensors if t.name not in ends] if self.dice.random() < 0.3 else []
        initializers = self.world.initializers if self.outer is None else []
        return helper.make_graph(
            self.nodes,
            name,
            [declared(t) for t in self.inputs],
            [declared(t) for t in outputs],
            initializers,
            value_info=[declared(t) for t in stated],
        )


def declared(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.element, tensor.shape)


@dataclass(frozen=True)
class Made:
    """A model and what the builder knows of it.

    `dequants` gives the root (None where the producers state the scale) and the scale of every Dequant by its tag, which
    is the node's doc_string. `exposed` are Dequants behind which a Cast takes whatever it gets; `stated` are roots whose
    scale another consumer states too.
    """

    model: onnx.ModelProto
    families: Counter
    tensors: dict[str, Tensor]
    dequants: dict[str, tuple[str | None, float]]
    exposed: frozenset[str]
    stated: frozenset[str]


def finish(world: World, scope: Scope) -> Made:
    """The model whose outputs are all tensors that nothing takes, and perhaps some more."""
    for node in scope.nodes:
        for graph in graphs_of(node):
            _prune(graph)
    used = {name for node in scope.nodes for name in names_taken(node)}
    outputs = [t for t in scope.tensors if t.name not in used]
    if world.dice.random() < 0.3:  # a tensor with consumers, perhaps an input passed through
        outputs.append(world.dice.choice(scope.tensors))
        world.families["output with consumers"] += 1
    unique = list({t.name: t for t in outputs}.values())
    world.initializers = [i for i in world.initializers if i.name in used]
    opsets = [helper.make_opsetid("", world.opset), helper.make_opsetid("thinker", 1)]
    called = [f for f in world.functions.values() if f.name in _op_types(scope.nodes)]
    if called:
        opsets.append(helper.make_opsetid("user", 1))
    model = helper.make_model(
        scope.graph("main", unique),
        opset_imports=opsets,
        ir_version=IR_VERSION,
        functions=called,
    )
    return Made(model, world.families, world.tensors, world.dequants, frozenset(world.exposed), frozenset(world.stated))


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs inside a node."""
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _op_types(nodes) -> set[str]:
    inner = {t for node in nodes for graph in graphs_of(node) for t in _op_types(graph.node)}
    return inner | {node.op_type for node in nodes}


def names_taken(node: onnx.NodeProto) -> set[str]:
    """What a node takes, the graphs inside it included."""
    inner = graphs_of(node)
    taken = {n for g in inner for other in g.node for n in names_taken(other)} | {
        o.name for g in inner for o in g.output
    }
    return taken | set(node.input)


def _prune(graph: onnx.GraphProto) -> None:
    """Leave out what nothing takes, the innermost graphs first."""
    for node in graph.node:
        for inner in graphs_of(node):
            _prune(inner)
    needed = {o.name for o in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= names_taken(node)
            kept.append(node)
    kept.reverse()
    del graph.node[:]
    graph.node.extend(kept)
    made = {name for node in kept for name in node.output}
    stated = [v for v in graph.value_info if v.name in made]
    del graph.value_info[:]
    graph.value_info.extend(stated)


def feeds(model: onnx.ModelProto, seed: int) -> list[dict[str, np.ndarray]]:
    """Inputs: ordinary numbers, both ends of every range, zeros and single steps."""
    draw = np.random.default_rng(seed)
    shapes = {
        i.name: (i.type.tensor_type.elem_type, [d.dim_value for d in i.type.tensor_type.shape.dim])
        for i in model.graph.input
    }

    def one(kind: str, element: int, shape: list[int]) -> np.ndarray:
        if element == FLOAT:
            spread = {"plain": 2.0, "ends": 1e4, "small": 0.02}[kind]
            return (draw.normal(size=shape) * spread).astype(np.float32)
        if element == BOOL:
            return draw.integers(0, 2, shape).astype(bool)
        ends = np.iinfo(helper.tensor_dtype_to_np_dtype(element))
        if kind == "ends":
            return draw.choice([ends.min, ends.min + 1, -1, 0, ends.max], shape).astype(ends.dtype)
        return draw.integers(*((-3, 4) if kind == "small" else (ends.min, ends.max + 1)), shape).astype(ends.dtype)

    return [{n: one(kind, *s) for n, s in shapes.items()} for kind in ("plain", "ends", "small")]
