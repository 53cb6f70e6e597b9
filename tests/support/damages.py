"""Ways to damage a dialect model: Dequants lost, doubled, moved and rescaled, nodes shuffled and renamed, Identities.

All of it on plain protobuf, where every tensor of the model still has a name of its own.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx
from onnx import helper

from tests.support.dialect_graphs import FLOAT, Made, Tensor, graphs_of

Graph, Node = onnx.GraphProto, onnx.NodeProto
_STATE_FIRST = {"Loop": 1, "If": 0, "Scan": 0}
"""Which output of a body is the first of the node's own outputs."""


@dataclass(frozen=True)
class Edge:
    """A tensor as one input of one node of one graph."""

    graph: Graph
    node: Node
    index: int

    @property
    def name(self) -> str:
        return self.node.input[self.index]

    def connect(self, name: str) -> None:
        self.node.input[self.index] = name


@dataclass
class Patient:
    """A model being damaged; `touched` are the tags of Dequants that are gone or elsewhere."""

    made: Made
    dice: random.Random
    model: onnx.ModelProto = field(init=False)
    domain: str = field(init=False)
    touched: set[str] = field(default_factory=set)
    rescaled: set[str] = field(default_factory=set)
    count: int = 0

    def __post_init__(self) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(self.made.model)
        used = {node.domain for _, node in self.nodes()}
        self.domain = "linger" if "linger" in used and "thinker" not in used else "thinker"

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def graphs(self, graph: Graph | None = None) -> Iterator[Graph]:
        graph = graph if graph is not None else self.model.graph
        yield graph
        for node in graph.node:
            for inner in graphs_of(node):
                yield from self.graphs(inner)

    def nodes(self) -> Iterator[tuple[Graph, Node]]:
        return ((graph, node) for graph in self.graphs() for node in graph.node)

    def edges(self, name: str | None = None) -> list[Edge]:
        return [
            Edge(graph, node, index)
            for graph, node in self.nodes()
            for index, taken in enumerate(node.input)
            if taken and (name is None or taken == name)
        ]

    def dequants(self) -> list[tuple[Graph, Node]]:
        return [(g, n) for g, n in self.nodes() if n.op_type == "Dequant"]

    def producer(self, name: str) -> tuple[Graph, Node] | None:
        return next(((g, n) for g, n in self.nodes() if name in n.output), None)

    def ends(self, name: str) -> list[tuple[Graph, onnx.ValueInfoProto]]:
        """The graphs that give a tensor back."""
        return [(g, o) for g in self.graphs() for o in g.output if o.name == name]

    def add_before(self, graph: Graph, node: Node, new: Node) -> None:
        graph.node.insert(list(graph.node).index(node), new)

    def add_behind(self, graph: Graph, node: Node, new: Node) -> None:
        graph.node.insert(list(graph.node).index(node) + 1, new)

    def dequant(self, source: str, output: str, scale: float, tag: str) -> Node:
        made = helper.make_node("Dequant", [source], [output], self.name("extra"), domain=self.domain, scale_o=scale)
        made.doc_string = tag
        return made

    def rewire(self, old: str, new: str) -> None:
        for edge in self.edges(old):
            edge.connect(new)

    def is_stable(self, tag: str) -> bool:
        """Whether a Dequant may go, move or change so that the file does not become another right file.

        The scale of an integer input is told by its Dequants alone: of those not all may be changed.
        """
        root = self.made.dequants.get(tag, (None,))[0]
        if root is None:
            return True
        siblings = {t for t, (r, _) in self.made.dequants.items() if r == root}
        return not siblings & (self.touched | self.rescaled | self.made.exposed)


Damage = Callable[[Patient], bool]
"""Does its work on a patient; False where nothing suits it."""

DAMAGES: dict[str, Damage] = {}
LAST: dict[str, Damage] = {}
"""Those that make names ambiguous come last."""


def damage(table: dict[str, Damage]):
    def keep(function: Damage) -> Damage:
        table[function.__name__.replace("_", " ")] = function
        return function

    return keep


def _scale(node: Node) -> float:
    return next(a.f for a in node.attribute if a.name == "scale_o")


def _a_dequant(p: Patient) -> tuple[Graph, Node] | None:
    found = [(g, n) for g, n in p.dequants() if p.is_stable(n.doc_string)]
    return p.dice.choice(found) if found else None


def take_out(p: Patient, graph: Graph, node: Node) -> None:
    """Take a node of one input and one output away; a graph's output keeps its name."""
    source, gone = node.input[0], node.output[0]
    graph.node.remove(node)
    ends = p.ends(gone)
    producer = p.producer(source)
    if not ends:
        p.rewire(gone, source)
    elif producer is not None and producer[0] is graph and not p.ends(source):
        outputs = producer[1].output
        outputs[list(outputs).index(source)] = gone
        p.rewire(source, gone)
    else:
        graph.node.append(helper.make_node("Identity", [source], [gone], p.name("bridge")))


@damage(DAMAGES)
def drop(p: Patient) -> bool:
    found = _a_dequant(p)
    if found is None:
        return False
    p.touched.add(found[1].doc_string)
    take_out(p, *found)
    return True


@damage(DAMAGES)
def drop_all(p: Patient) -> bool:
    found = [(g, n) for g, n in p.dequants() if p.is_stable(n.doc_string)]
    for graph, node in found:
        take_out(p, graph, node)
    p.touched |= {n.doc_string for _, n in found}
    return bool(found)


def _edge_behind(p: Patient) -> tuple[Node, Edge] | None:
    """A Dequant and one of those who take what it gives."""
    found = [(n, e) for _, n in p.dequants() if p.is_stable(n.doc_string) for e in p.edges(n.output[0])]
    return p.dice.choice(found) if found else None


@damage(DAMAGES)
def drop_for_one(p: Patient) -> bool:
    """One consumer takes the integers, the others do not."""
    found = _edge_behind(p)
    if found is None:
        return False
    node, edge = found
    p.touched.add(node.doc_string)
    edge.connect(node.input[0])
    _forget_if_unused(p, node)
    return True


def _forget_if_unused(p: Patient, node: Node) -> None:
    if not p.edges(node.output[0]) and not p.ends(node.output[0]):
        next(g for g, n in p.nodes() if n is node or n == node).node.remove(node)


@damage(DAMAGES)
def duplicate(p: Patient) -> bool:
    """Consumers with a Dequant each, inside a branch too."""
    found = _edge_behind(p)
    if found is None:
        return False
    node, edge = found
    copy = p.dequant(node.input[0], p.name("twice"), _scale(node), node.doc_string)
    p.add_before(edge.graph, edge.node, copy)
    edge.connect(copy.output[0])
    _forget_if_unused(p, node)
    return True


@damage(DAMAGES)
def chain(p: Patient) -> bool:
    """A Dequant of what is real already."""
    found = [e for e in p.edges() if _is_real(p, e.name)]
    found = [e for e in found if not any(_is_rooted(p, tag) for tag in p.made.tensors[e.name].origins)]
    if not found:
        return False
    edge = p.dice.choice(found)
    new = p.dequant(edge.name, p.name("again"), p.dice.choice([16.0, 1.0, 4.0]), "extra")
    p.add_before(edge.graph, edge.node, new)
    edge.connect(new.output[0])
    return True


def _is_rooted(p: Patient, tag: str) -> bool:
    """Whether a Dequant is a word on an integer input's scale."""
    return p.made.dequants.get(tag, (None,))[0] is not None


def _is_real(p: Patient, name: str) -> bool:
    tensor = p.made.tensors.get(name)
    return tensor is not None and tensor.element == FLOAT


@damage(DAMAGES)
def move_up(p: Patient) -> bool:
    """One to three nodes toward the input, whatever they are."""
    moved = False
    found = _a_dequant(p)
    for _ in range(p.dice.randint(1, 3)):
        if found is None:
            break
        found = _one_up(p, *found)
        moved = moved or found is not None
    return moved


def _one_up(p: Patient, graph: Graph, node: Node) -> tuple[Graph, Node] | None:
    source, gone, tag, scale = node.input[0], node.output[0], node.doc_string, _scale(node)
    producer = p.producer(source)
    if producer is None or p.ends(gone):
        return None
    where, over = producer
    choices = [Edge(where, over, i) for i, n in enumerate(over.input) if _is_data(p, n)]
    inner = graphs_of(over)
    if not choices and not inner:
        return None
    graph.node.remove(node)
    p.rewire(gone, source)
    p.touched.add(tag)
    if inner:
        _into_bodies(p, over, source, scale, tag)
        return None
    edge = p.dice.choice(choices)
    new = p.dequant(edge.name, p.name("up"), scale, tag)
    p.add_before(where, over, new)
    edge.connect(new.output[0])
    return where, new


def _is_data(p: Patient, name: str) -> bool:
    tensor = p.made.tensors.get(name)
    return tensor is not None and (tensor.element == FLOAT or tensor.is_quantized)


def _into_bodies(p: Patient, node: Node, output: str, scale: float, tag: str) -> None:
    """The Dequant of a branch's or a loop's result goes inside."""
    index = list(node.output).index(output) + _STATE_FIRST[node.op_type]
    for graph in graphs_of(node):
        end = graph.output[index]
        new = p.dequant(end.name, p.name("inside"), scale, tag)
        graph.node.append(new)
        end.name = new.output[0]


@damage(DAMAGES)
def move_down(p: Patient) -> bool:
    """Over a consumer, which then has integers and gives what is divided too late."""
    found = _edge_behind(p)
    if found is None or _is_rooted(p, found[0].doc_string):
        return False
    node, edge = found
    over, output = edge.node, edge.node.output[0]
    if graphs_of(over) or not _is_data(p, output) or _is_without_kernel(p, over, node.input[0]):
        return False
    p.touched.add(node.doc_string)
    edge.connect(node.input[0])
    raw = p.name("raw")
    new = p.dequant(raw, output, _scale(node), node.doc_string)
    p.add_behind(edge.graph, over, new)
    over.output[0] = raw
    _forget_if_unused(p, node)
    return True


def _is_without_kernel(p: Patient, node: Node, name: str) -> bool:
    """Whether a node would move 16 bits, rightly, and ONNX Runtime has no kernel for that."""
    tensor = p.made.tensors.get(name)
    bits = None if tensor is None else tensor.bits
    return bits in (None, 16) and node.op_type in ("Pad", "Where", "Max", "Min", "Resize")


@damage(DAMAGES)
def rescale(p: Patient) -> bool:
    found = [n for _, n in p.dequants() if p.is_stable(n.doc_string) and _has_evidence(p, n.doc_string)]
    if not found:
        return False
    node = p.dice.choice(found)
    p.rescaled.add(node.doc_string)
    attribute = next(a for a in node.attribute if a.name == "scale_o")
    attribute.f = p.dice.choice([attribute.f * 2, attribute.f / 4, attribute.f * 3, attribute.f + 1])
    return True


def _has_evidence(p: Patient, tag: str) -> bool:
    """Whether anything else in the file tells the scale: a producer, a consumer, another Dequant."""
    root = p.made.dequants.get(tag, (None,))[0]
    others = [n for _, n in p.dequants() if p.made.dequants.get(n.doc_string, (None,))[0] == root]
    return root is None or root in p.made.stated or len(others) > 1


@damage(DAMAGES)
def misplace(p: Patient) -> bool:
    """A Dequant, with a scale right or wrong, where integers are wanted."""
    found = [e for e in p.edges() if _is_known(p.made.tensors.get(e.name)) and e.node.op_type != "Dequant"]
    if not found:
        return False
    edge = p.dice.choice(found)
    scale = p.made.tensors[edge.name].scale * p.dice.choice([1.0, 1.0, 2.0, 0.5])
    new = p.dequant(edge.name, p.name("misplaced"), scale, "extra")
    p.add_before(edge.graph, edge.node, new)
    edge.connect(new.output[0])
    return True


def _is_known(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_quantized and tensor.root is None


@damage(DAMAGES)
def into_branch(p: Patient) -> bool:
    """A graph in a graph that took the real numbers takes the integers and has a Dequant of its own."""
    found = [
        (n, g)
        for outside, n in p.dequants()
        if p.is_stable(n.doc_string)
        for g in p.graphs()
        if g is not outside and any(e.graph is g for e in p.edges(n.output[0]))
    ]
    if not found:
        return False
    node, graph = p.dice.choice(found)
    copy = p.dequant(node.input[0], p.name("inner"), _scale(node), node.doc_string)
    for edge in p.edges(node.output[0]):
        if edge.graph is graph:
            edge.connect(copy.output[0])
    graph.node.insert(0, copy)
    _forget_if_unused(p, node)
    return True


@damage(DAMAGES)
def out_of_branch(p: Patient) -> bool:
    """The Dequant of a captured tensor goes to the graph that the tensor is from."""
    found = [
        (g, n, producer)
        for g, n in p.dequants()
        if (producer := p.producer(n.input[0])) is not None and producer[0] is not g and not p.ends(n.output[0])
    ]
    if not found:
        return False
    graph, node, (outside, over) = p.dice.choice(found)
    copy = Node()
    copy.CopyFrom(node)
    graph.node.remove(node)
    p.add_behind(outside, over, copy)
    return True


@damage(DAMAGES)
def identities(p: Patient) -> bool:
    """One to three in a row before a consumer, a branch included."""
    edge = p.dice.choice(p.edges())
    for _ in range(p.dice.randint(1, 3)):
        new = helper.make_node("Identity", [edge.name], [p.name("same")], p.name("identity"))
        p.add_before(edge.graph, edge.node, new)
        edge.connect(new.output[0])
    return True


@damage(DAMAGES)
def identities_behind(p: Patient) -> bool:
    """Behind a node: the tensor keeps its name, be it the output of a graph."""
    graph, node = p.dice.choice(list(p.nodes()))
    index = p.dice.randrange(len(node.output))
    kept, raw = node.output[index], p.name("before")
    node.output[index] = raw
    p.add_behind(graph, node, helper.make_node("Identity", [raw], [kept], p.name("identity")))
    return True


@damage(DAMAGES)
def forget_types(p: Patient) -> bool:
    """Of tensors inside and of what branches give nothing is said; ONNX Runtime wants it of loops."""
    branches = [g for _, node in p.nodes() if node.op_type == "If" for g in graphs_of(node)]
    stated = [g for g in p.graphs() if g.value_info]
    for graph in stated:
        del graph.value_info[:]
    for graph in branches:
        for tensor in graph.output:
            tensor.ClearField("type")
    return bool(stated or branches)


@damage(LAST)
def shuffle(p: Patient) -> bool:
    for graph in p.graphs():
        nodes = list(graph.node)
        p.dice.shuffle(nodes)
        copies = [Node.FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return True


@damage(LAST)
def rename_nodes(p: Patient) -> bool:
    """No names at all, the same name everywhere, or every name twice."""
    style = p.dice.choice(["none", "same", "twice"])
    for index, (_, node) in enumerate(list(p.nodes())):
        node.name = {"none": "", "same": "node", "twice": f"node{index // 2}"}[style]
    return True


@damage(LAST)
def rename_tensors(p: Patient) -> bool:
    """Short names; graphs side by side have the same ones."""
    fixed = {t.name for t in (*p.model.graph.input, *p.model.graph.output)}
    _rename(p.model.graph, {}, 0, fixed, p.dice.choice(["{1}", "Scale_{0}_{1}", "tensor:{0}/{1}"]))
    return True


def _rename(graph: Graph, around: dict[str, str], depth: int, fixed: set[str], style: str) -> None:
    own = [t.name for t in (*graph.input, *graph.initializer)] + [o for n in graph.node for o in n.output if o]
    own = list(dict.fromkeys(o for o in own if o not in fixed))
    # one name per depth and number: graphs side by side share them, graphs inside do not
    local = {name: style.format(depth, f"{depth}{index:03d}") for index, name in enumerate(own)}
    names = around | local
    for tensor in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
        for inner in graphs_of(node):
            _rename(inner, names, depth + 1, fixed, style)


KINDS = (*DAMAGES, *LAST)


def _real_ends(p: Patient) -> frozenset[str]:
    """Outputs declared as integers whose integers now come through a Dequant, moved and selected only.

    The original toolkit wrote such files, and meant real numbers; so these may become real numbers.
    """
    ends = {t.name for t in p.model.graph.output if _is_known(p.made.tensors[t.name]) or p.made.tensors[t.name].root}
    return frozenset(name for name in ends if _comes_from_dequant(p, name, set()))


def _comes_from_dequant(p: Patient, name: str, seen: set[str]) -> bool:
    found = p.producer(name)
    if found is None or name in seen:
        return False
    seen.add(name)
    node = found[1]
    if node.domain == p.domain:
        return node.op_type == "Dequant" or (
            node.op_type == "ShuffleChannel" and _comes_from_dequant(p, node.input[0], seen)
        )
    sources = list(node.input)
    if inner := graphs_of(node):
        index = list(node.output).index(name) + _STATE_FIRST[node.op_type]
        sources += [g.output[index].name for g in inner]
    # a tensor that was real from the start is a mask or a condition, not what is selected
    return any(_comes_from_dequant(p, s, seen) for s in sources if not _is_real(p, s) or "Dequant" in _op_type(p, s))


def _op_type(p: Patient, name: str) -> str:
    found = p.producer(name)
    return "" if found is None else found[1].op_type


@dataclass(frozen=True)
class Damaged:
    """A damaged model: what was done, whether the file still tells what it was, and which integer outputs may be real."""

    model: onnx.ModelProto
    kinds: tuple[str, ...]
    can_be_restored: bool
    real_ends: frozenset[str]


def injure(made: Made, kinds: list[str], seed: int) -> Damaged:
    """Damage a copy in the ways asked for, as far as they apply.

    The file no longer tells what it was where a Cast may now take integers as they are, and where the only word on an
    integer input's scale is gone or contradicted.
    """
    patient = Patient(made, random.Random(seed))
    done = [kind for kind in kinds if kind in DAMAGES and DAMAGES[kind](patient)]
    real_ends = _real_ends(patient)
    done += [kind for kind in kinds if kind in LAST and LAST[kind](patient)]
    for _, node in patient.nodes():
        node.ClearField("doc_string")
    rooted = {tag for tag, (root, _) in made.dequants.items() if root is not None}
    is_lost = patient.touched & (made.exposed | rooted) or patient.rescaled & rooted
    return Damaged(patient.model, tuple(done), not is_lost, real_ends)
