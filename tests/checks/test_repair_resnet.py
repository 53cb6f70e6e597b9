"""A whole network of the original toolkit, damaged in ten ways: repaired, it gives what the engine recorded."""

import random

import numpy as np
import onnx
import pytest
from onnx import helper

import linger
from tests.support.comparison import assert_same
from tests.support.graph_text import fingerprint
from tests.support.repairs import SPARING

IMAGES = (0, 9)
"""Two of the sixteen in the fast suite."""


@pytest.fixture(scope="module")
def network(shared):
    return onnx.load(shared / "golden" / "resnet18-12-regular.onnx")


@pytest.fixture(scope="module")
def recorded(shared):
    """16 images and the 100 class values that the engine gave for each."""
    with np.load(shared / "golden" / "ops" / "resnet18-12-regular.npz") as content:
        return content["input"], content["output"]


def dequant_of(model):
    return next(node for node in model.graph.node if node.op_type == "Dequant")


def producers(model):
    return {name: node for node in model.graph.node for name in node.output}


def new_dequant(source, output, scale):
    return helper.make_node("Dequant", [source], [output], f"Dequant_{output}", domain="thinker", scale_o=scale)


def drop(model):
    """The last layer is the output, which is declared real."""
    gone = dequant_of(model)
    last = producers(model)[gone.input[0]]
    model.graph.node.remove(gone)
    last.output[0] = gone.output[0]


def strip(model):
    """The same, and all that says what the output is, but for its type, is gone too."""
    drop(model)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]


def move_up(model):
    """Three nodes toward the input: from behind the last layer to before the pooling."""
    gone = dequant_of(model)
    scale, made = gone.attribute[0].f, producers(model)
    nodes = [made[gone.input[0]]]
    while len(nodes) < 3:
        nodes.append(made[nodes[-1].input[0]])
    drop(model)
    up = new_dequant(nodes[-1].input[0], "moved", scale)
    nodes[-1].input[0] = "moved"
    model.graph.node.insert(list(model.graph.node).index(nodes[-1]), up)


def rescale(model):
    dequant_of(model).attribute[0].f *= 4


def duplicate(model):
    """Twice in a row, and once beside."""
    first = dequant_of(model)
    output = first.output[0]
    first.output[0] = "once"
    model.graph.node.extend([new_dequant(first.input[0], "beside", 1.0), new_dequant("once", output, 2.0)])


def wrap_sums(model):
    """Real numbers into every iqAdd, and out of it."""
    for node in list(model.graph.node):
        if node.op_type != "iqAdd":
            continue
        place = list(model.graph.node).index(node)
        output = node.output[0]
        scale = {a.name: a.f for a in node.attribute}
        before = [new_dequant(name, f"{name}_{output}_real", scale["scale_x"]) for name in node.input]
        node.input[:] = [new.output[0] for new in before]
        node.output[0] = f"{output}_integers"
        model.graph.node.insert(place + 1, new_dequant(f"{output}_integers", output, scale["scale_o"]))
        for new in reversed(before):
            model.graph.node.insert(place, new)


def shuffle(model):
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    random.Random(6).shuffle(copies)
    del model.graph.node[:]
    model.graph.node.extend(copies)


def add_identities(model):
    """Behind every node, and before the output."""
    for node in list(model.graph.node):
        place, output = list(model.graph.node).index(node), node.output[0]
        node.output[0] = f"{output}_before"
        model.graph.node.insert(place + 1, helper.make_node("Identity", [node.output[0]], [output], f"same_{output}"))


def rename(model):
    """Every tensor but the two of the interface, weights included; and all nodes have one name."""
    kept = {model.graph.input[0].name, model.graph.output[0].name}
    names = [t.name for t in model.graph.initializer] + [o for node in model.graph.node for o in node.output]
    new = {name: f"{index}" for index, name in enumerate(n for n in names if n not in kept)}
    for tensor in (*model.graph.initializer, *model.graph.value_info):
        tensor.name = new.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.name = "node"
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]


def everything(model):
    wrap_sums(model)
    rescale(model)
    move_up(model)
    add_identities(model)
    rename(model)
    shuffle(model)


WAYS = {
    "the Dequant is gone": drop,
    "the Dequant is three nodes further up": move_up,
    "the Dequant has another scale": rescale,
    "there are three Dequants": duplicate,
    "Dequants stand around every sum": wrap_sums,
    "nodes are shuffled": shuffle,
    "Identities stand behind every node": add_identities,
    "tensors and nodes are renamed": rename,
    "the output is real by its type alone": strip,
    "all of it": everything,
}


def damaged(network, way):
    model = onnx.ModelProto()
    model.CopyFrom(network)
    WAYS[way](model)
    assert model != network
    return model


def repaired(network, way, rules=SPARING):
    result = linger.repair(damaged(network, way), rules=rules)
    assert list(result.findings) == []
    assert result.changes
    assert linger.repair(result.model, rules=rules).changes == ()
    return result.model


def outputs(model, images):
    session = linger.Session(model)
    return np.concatenate([session.run(None, {"input": images[i : i + 1]})[0] for i in range(len(images))])


@pytest.mark.parametrize("way", WAYS)
def test_the_repaired_network_is_the_network(network, way):
    assert len(WAYS) == 10
    assert fingerprint(repaired(network, way)) == fingerprint(network)


def test_the_repaired_network_gives_what_the_engine_recorded(network, recorded):
    found = outputs(repaired(network, "all of it", rules=None), recorded[0][list(IMAGES)])
    assert_same(found, recorded[1][list(IMAGES)])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_repaired_network_gives_all_that_the_engine_recorded(network, recorded, way):
    assert_same(outputs(repaired(network, way, rules=None), recorded[0]), recorded[1])


@pytest.mark.parametrize("way", ["the Dequant has another scale", "Dequants stand around every sum"])
def test_the_damage_is_real(network, recorded, way):
    """Without the repair the file gives something else, or does not run."""
    try:
        found = outputs(damaged(network, way), recorded[0][:1])
    except linger.LingerError:
        return
    assert not np.array_equal(found, recorded[1][:1])


def test_the_network_itself_is_right(network):
    result = linger.repair(network, rules=SPARING)
    assert [c for c in result.changes if c.rule != "name_nodes"] == []
    assert list(result.findings) == []
