"""Files with a scale for each output channel and unsigned bytes, through everything that reads files."""

import json
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import linger
from tests.support.jobs import FileFacts
from tests.support.lowering import known_tensors

pytestmark = pytest.mark.needs_torch
SHAPES = {
    "0.Conv2dInt": (1, 8, 8, 8),
    "2.ConvTranspose2dInt": (1, 6, 8, 8),
    "5.LinearInt": (1, 10),
}
FORMS = ("dialect", "bare")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One network in two forms, its channels of different sizes."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(384, 10),
    )  # fmt: skip
    with torch.no_grad():
        for layer, sizes in ((net[0], (8, 1, 1, 1)), (net[5], (10, 1))):
            layer.weight.mul_(0.5 ** torch.arange(sizes[0]).reshape(sizes))
        net[2].weight.mul_(0.5 ** torch.arange(3).reshape(1, 3, 1, 1))
    net = linger.init(net, target="c").eval()
    images = torch.randn(8, 1, 8, 8)
    with linger.calibration():
        net(images)
    folder = tmp_path_factory.mktemp("extended")
    for form in FORMS:
        linger.onnx.export(net, (images[:1],), folder / f"{form}.onnx", form=form)
    return folder


@pytest.fixture(params=FORMS)
def file(request, files):
    return files / f"{request.param}.onnx"


def said_of(file):
    return {
        node.op_type: {
            a.name: onnx.helper.get_attribute_value(a)
            for a in node.attribute
            if a.name in ("exponents_w", "o_unsigned")
        }
        for node in onnx.load(file).graph.node
        if node.op_type.endswith("Int")
    }


def test_the_network_uses_both(file):
    said = said_of(file)
    assert {op: len(set(found["exponents_w"])) > 2 for op, found in said.items()} == dict.fromkeys(said, True)
    assert [found.get("o_unsigned") for found in said.values()] == [1, 1, None]


def test_types_and_shapes_are_known(file):
    tensors = known_tensors(linger.graph.load(file))
    assert {name: tensors.shapes[name] for name in SHAPES} == SHAPES
    assert tensors.types["1.Relu"].name == "UINT8"
    if file.stem == "dialect":  # what inference of other tools sees
        declared = {
            v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.load(file).graph.value_info
        }
        assert declared["3.Relu"] == [1, 6, 8, 8]


def test_a_check_finds_nothing_wrong_but_on_chips(file):
    assert linger.check(file).ok
    assert linger.check(file, "c").ok
    assert linger.check(file, "onnxruntime").ok
    for chip in ("venus", "arcs", "venusA"):
        found = [f for f in linger.check(file, chip).errors if f.rule == "LGR956"]
        assert {f.node.split(" ")[0] for f in found} >= {"0.Conv2dInt", "2.ConvTranspose2dInt", "5.LinearInt"}


def test_memory_counts_bytes(file):
    layers = {layer.node.split(" ")[0]: layer for layer in linger.memory(file).layers}
    assert layers["0.Conv2dInt"].output_bytes == 512
    assert (
        layers["2.ConvTranspose2dInt"].macs == 8 * 8 * 8 * 3 * 9
    )  # pixels of the input, its channels, taps of three outputs
    assert linger.memory(file, "c") == linger.memory(file)


def test_a_report_shows_widths_and_formats(file):
    layers = {layer.op: layer for layer in FileFacts.of(file, None).layers.layers()}
    conv, product = layers["Conv2dInt"], layers["LinearInt"]
    assert (conv.bits, product.bits, layers["Relu"].bits) == ("8/8/u8", "u8/8/8", "u8")
    assert conv.o_format.startswith("UQ")
    low, high = conv.w_format.split(" … ")
    own = said_of(file)["Conv2dInt"]["exponents_w"]
    assert int(high.split(".")[1]) - int(low.split(".")[1]) == max(own) - min(own)


def test_vectors_and_dumps_hold_unsigned_bytes(file, tmp_path):
    loud = 8 * np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype(np.float32)
    written = linger.write_vectors(file, tmp_path / "v", loud)
    assert not written.left_out
    entries = {t["name"]: t for t in json.loads((tmp_path / "v" / "manifest.json").read_text())["tensors"]}
    relu = entries["1.Relu"]
    assert (relu["dtype"], relu["kind"], relu["bits"]) == ("uint8", "intermediate", 8)
    assert relu["q_format"].startswith("UQ")
    with np.load(tmp_path / "v" / "batch_000.npz") as content:
        assert content["1.Relu"].max() > 127
        arrays = dict(content)
    assert linger.compare(file, tmp_path / "v").ok
    arrays["1.Relu"] = arrays["1.Relu"].astype(np.int8)  # a device that takes the bytes for signed ones
    np.savez(tmp_path / "signed.npz", **arrays)
    assert not linger.compare(file, tmp_path / "signed.npz").ok


def test_nothing_is_to_be_repaired(file):
    done = linger.repair(linger.graph.load(file), is_check=True)
    assert done.ok
    assert not [
        change for change in done.changes if change.rule in ("insert_dequant", "remove_dequant", "correct_types")
    ]


def test_a_lost_dequant_and_a_wrong_type_come_back(file):
    model = linger.graph.load(file)
    dequant = next(node for node in model.graph if node.op_type == "Dequant")
    relu = next(node for node in model.graph if node.op_type == "Relu")
    for node, _ in [*relu.outputs[0].uses()]:
        assert node.op_type == "ConvTranspose2dInt"
    relu.outputs[0].dtype = dequant.inputs[0].dtype  # signed
    dequant.outputs[0].replace_all_uses_with(dequant.inputs[0], replace_graph_outputs=True)
    model.graph.remove(dequant, safe=True)
    done = linger.repair(model, is_check=True, outputs="float")
    assert Counter(change.rule for change in done.changes)["insert_dequant"]
    assert linger.check(done.model).ok
    x = {"input": np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype(np.float32)}
    assert np.array_equal(*[linger.Session(m).run(None, x)[0] for m in (linger.graph.load(file), done.model)])


def test_there_and_back_through_the_newer_dialect(file):
    model = linger.graph.load(file)
    newer = linger.convert_dialect(model, "linger").model
    own = [
        n.attributes["exponents_w"].as_ints()
        for n in newer.graph
        if n.op_type in ("QConv2d", "QConvTranspose2d", "QLinear")
    ]
    assert [list(each) for each in own] == [found["exponents_w"] for found in said_of(file).values()]
    assert linger.check(newer).ok
    back = linger.convert_dialect(newer, "thinker").model
    for changed in (newer, back):
        assert linger.compare(model, changed, engine="numpy").ok


@pytest.mark.parametrize("fault", ["turned", "next", "groups"])
def test_the_shift_of_another_channel_is_seen(file, fault):
    model = linger.graph.load(file)
    node = next(node for node in model.graph if node.op_type == "ConvTranspose2dInt")
    own = [int(e) for e in node.attributes["exponents_w"].as_ints()]
    if fault == "groups":  # [in, out/group]: as if the channels of the groups came in turns
        wrong = [own[group * 3 + place] for place in range(3) for group in range(2)]
    else:
        wrong = own[::-1] if fault == "turned" else own[1:] + own[:1]
    assert wrong != own
    node.attributes["exponents_w"] = ir.AttrInt64s("exponents_w", wrong)
    assert not linger.compare(linger.graph.load(file), model, engine="numpy").ok
