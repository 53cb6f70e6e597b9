"""Every sample of every op: there and back it is the same node, and the newer file computes the same integers."""

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("torch", reason="the samples are also those of the torch kernel")

import linger
from linger import Session, convert_dialect
from linger.graph import load
from linger.graph.core.nodes import attributes_of, is_dialect, op_of
from linger.runtime.reference import Reference
from tests.support.models import small_net
from tests.support.samples import arrays, every_op, run_numpy, single_node_model, title

CONVERTED = [op for op in every_op() if op.standard_name or any(not newer.unlike for newer in op.newer)]
QUICK = 2
"""Samples of each op that are tried every time; all of them by make test-slow."""

PAIRS = [
    pytest.param(op, sample, id=f"{title(op)}: {sample.name}", marks=[pytest.mark.slow] if index >= QUICK else [])
    for op in CONVERTED
    for index, sample in enumerate(op.samples)
]


def prepared(op, sample, opset=17):
    inputs = arrays(sample)
    return inputs, single_node_model(op, inputs, sample.attributes, opset=opset)


def converted(op, sample, model):
    """The newer model; None where real lengths keep it from being one."""
    done = convert_dialect(model, "linger", partial=True)
    if not done.ok:
        assert "lengths" in sample.name or sample.name == "state", [str(f) for f in done.findings]
        return None
    return done.model


def said(node):
    op = op_of(node)
    return node.op_type, [v.name if v is not None else None for v in node.inputs], attributes_of(node, op)


def feeds_of(model, inputs):
    return {value.name: inputs[int(value.name[2:])] for value in model.graph.inputs}


@pytest.mark.parametrize(("op", "sample"), PAIRS)
def test_there_and_back_is_the_same_node(op, sample):
    _, model = prepared(op, sample)
    newer = converted(op, sample, model)
    if newer is None:
        return
    assert {node.domain for node in newer.graph} == {"" if op.standard_name else "linger"}
    back = convert_dialect(newer, "thinker").model
    if op.standard_name:
        assert [node.op_type for node in back.graph] == [op.standard_name]
        return
    *before, node = back.graph
    name, names, attributes = said(node)
    first, expected, wanted = said(model.graph[0])
    if before:  # the older dialect wants 16 bits, which a sample need not have
        assert [n.op_type for n in before] == ["Requant"]
        assert (op.name, op.platform) in {("iqSigmoid", None), ("iqTanh", None)}
        assert before[0].attributes["scale_x"].value == wanted.pop("scale_x")
        assert before[0].attributes["scale_o"].value == attributes.pop("scale_x")
        names[0] = "in0"
    if op.name == "BatchNorm2dInt":
        names, expected = names[:3], expected[:3]
    assert (name, names, attributes) == (first, expected, wanted)


@pytest.mark.parametrize(("op", "sample"), PAIRS)
def test_the_newer_file_computes_the_same_integers(op, sample):
    inputs, model = prepared(op, sample, opset=11)
    newer = converted(op, sample, model)
    if newer is None:
        return
    if op.standard_name:  # not a file of a dialect any more: somebody else's business
        return
    found = list(Reference(newer).run(feeds_of(newer, inputs)).values())
    expected = run_numpy(op, inputs, sample.attributes)
    flat = found[0] if len(found) == 1 else np.concatenate([a.astype(np.float64).reshape(-1) for a in found])
    assert flat.tolist() == expected.tolist()


@pytest.mark.parametrize("op", [op for op in CONVERTED if not op.standard_name], ids=title)
@pytest.mark.parametrize("opset", [pytest.param(11, marks=pytest.mark.slow), 17])
def test_the_newer_file_runs_in_onnx_runtime(op, opset):
    inputs, model = prepared(op, op.samples[0], opset)
    newer = converted(op, op.samples[0], model)
    feeds = feeds_of(newer, inputs)
    found = Session(newer).run(None, feeds)
    expected = list(Reference(model).run(feeds).values())
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]
    assert isinstance(newer, ir.Model)


@pytest.mark.parametrize("form", [pytest.param("bare", marks=pytest.mark.slow), "dialect"])
def test_an_exported_network_there_and_back(tmp_path, form):
    """As a device's packer gets it, and with bodies, which go on the way."""
    model, x = small_net()
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, form=form)
    done = convert_dialect(path, "linger")
    assert done.findings == ()
    assert {node.domain for node in done.model.graph} == {"", "linger"}
    assert not done.model.functions
    back = convert_dialect(done.model, "thinker").model
    original = load(path)
    assert [nodes_said(n) for n in back.graph] == [nodes_said(n) for n in original.graph]
    feeds = {original.graph.inputs[0].name: x.numpy()}
    expected = Session(path).intermediates(feeds)
    found = Session(done.model).intermediates(feeds)
    assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in expected.items()}
    assert {n: a.tolist() for n, a in Reference(done.model).run(feeds).items()} == {
        value.name: expected[value.name].tolist() for value in original.graph.outputs
    }


def nodes_said(node):
    """What a node says, whether it stands in the dialect with a body or not."""
    names = [v.name if v is not None else None for v in (*node.inputs, *node.outputs)]
    if not is_dialect(node):
        return node.op_type, names, {n: a.value for n, a in node.attributes.items() if n not in ("value", "dilations")}
    op = op_of(node)
    attributes = {n: v for n, v in attributes_of(node, op).items() if n != "dilations" or op.standard_name is None}
    return op.name, names, attributes
