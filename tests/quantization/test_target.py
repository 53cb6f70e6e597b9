"""A model quantized for a chip: it simulates the chip's arithmetic, and its file says so."""

import copy
import pickle

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import init
from linger.errors import UnsupportedError, UsageError
from tests.support.quantization import find_op, runtime_of
from tests.support.samples import run_numpy
from tests.support.wired import Wired, image

CURVES = {"iqSigmoid": torch.sigmoid, "iqTanh": torch.tanh, "SoftmaxInt": lambda h: F.softmax(h, dim=1)}
every_curve = pytest.mark.parametrize(("op", "function"), CURVES.items(), ids=CURVES.keys())
every_chip = pytest.mark.parametrize("target", ["arcs", "venusA"])


def bent(function, target, *, out_bits=None):
    """A convolution and a curve, calibrated for a chip."""
    torch.manual_seed(3)
    model = Wired(lambda m, x: function(m.conv(x)))
    if out_bits is not None:
        linger.quant_module(model.conv, out_bits=out_bits)
    model = init(model, target=target).eval()
    with linger.calibration():
        model(image(spread=4.0))
    return model


def export(model, path, **options):
    linger.onnx.export(model, (image(1),), path, input_names=["x"], output_names=["y"], **options)
    return onnx.load(path)


def attributes(node):
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@every_chip
@every_curve
def test_simulation_is_the_chips_arithmetic(target, op, function):
    model = bent(function, target)
    conv = {}

    def keep(module, args, output):
        conv["y"] = output

    model.conv.register_forward_hook(keep)
    with torch.no_grad():
        found = model(image(seed=9))
    variant = find_op(op, target)
    settings = {"scale_x": conv["y"].scale, "scale_o": found.scale}
    if op == "SoftmaxInt":
        settings |= {"data_bits": 8, "o_bits": 8, "axis": 1, "dim": 1}
    expected = run_numpy(variant, [conv["y"].integers().numpy()], settings)
    np.testing.assert_array_equal(found.integers().numpy(), expected)


PACKED = [(target, op) for target in ("arcs", "venusA") for op in CURVES if (target, op) != ("arcs", "iqTanh")]
"""arcs's packer stops at iqTanh, so no file is written."""


@pytest.mark.parametrize(("target", "op"), PACKED)
@pytest.mark.parametrize("form", ["dialect", "bare"])
@pytest.mark.thin
def test_file_computes_the_same_and_names_the_chip(tmp_path, target, op, form):
    function = CURVES[op]
    model = bent(function, target)
    path = tmp_path / "net.onnx"
    # venusA's engine was seen to compute curves otherwise than its documents say, so a file is written on request only
    made = export(model, path, form=form, verify=True, allow_findings=target == "venusA")
    nodes = {node.op_type: attributes(node) for node in made.graph.node if node.domain.startswith("thinker")}
    assert "Requant" not in nodes
    for name in ("Quant", "Conv2dInt", op):
        assert (nodes[name]["platform"], nodes[name]["quant_mode"]) == (target, "floor_add")
    assert "platform" not in nodes["Dequant"]
    if op == "SoftmaxInt":
        assert (nodes[op]["axis"], nodes[op]["dim"]) == (-1, -1)
    assert linger.verify(model, path, (image(1, seed=5),)).ok


@pytest.mark.parametrize("op", ["iqSigmoid", "SoftmaxInt"])
def test_newer_exporter_writes_the_same_node(tmp_path, op):
    model = bent(CURVES[op], "arcs")
    first = export(model, tmp_path / "a.onnx", opset_version=18)
    second = export(model, tmp_path / "b.onnx", dynamo=True, verify=True)
    wanted = [{n.op_type: attributes(n) for n in made.graph.node}[op] for made in (first, second)]
    assert wanted[0] == wanted[1]


def test_other_forms_need_no_chip_but_keep_its_numbers(tmp_path):
    model = bent(torch.sigmoid, "arcs")
    made = export(model, tmp_path / "net.onnx", form="standard", verify=True)
    assert all(node.domain == "" for node in made.graph.node)


def test_wide_tensors_are_narrowed_for_arcs(tmp_path):
    model = bent(torch.sigmoid, "arcs", out_bits=16)
    with pytest.raises(UnsupportedError, match="an output of 16 bits"):
        export(model, tmp_path / "net.onnx")
    made = export(model, tmp_path / "net.onnx", form="standard", verify=True)
    assert made.graph.node
    assert [op.op for op in linger.coverage(model).ops].count("Requant") == 1


@pytest.mark.parametrize("op", ["iqSigmoid", "iqTanh"])
@pytest.mark.parametrize("scale_x", [2.0**n for n in range(12)])
def test_8_bits_in_and_out_show_no_difference_between_the_chips(op, scale_x):
    every = np.arange(-128, 128).astype(np.int8)
    settings = {"scale_x": scale_x, "scale_o": 128.0}
    venus, *others = (run_numpy(find_op(op, chip), [every], settings) for chip in (None, "arcs", "venusA"))
    for found in others:
        np.testing.assert_array_equal(found, venus)


def test_venus_is_the_default_arithmetic():
    with torch.no_grad():
        plain, venus = (bent(torch.sigmoid, target)(image()).integers() for target in (None, "venus"))
    assert torch.equal(plain, venus)


@every_chip
@every_curve
def test_training_sees_the_real_gradient(target, op, function):
    model = init(Wired(lambda m, x: function(m.conv(x))), target=target).train()
    x = image().requires_grad_()
    model(x).dequantize().square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert (x.grad != 0).any()


def test_the_models_chip_sets_the_limits_of_an_export(tmp_path):
    model = init(nn.Sequential(nn.Conv2d(3, 4, 7, padding=3)), target="venus").eval()
    with linger.calibration():
        model(image())
    with pytest.raises(UnsupportedError, match="a kernel of 7×7; venus has 1 to 5"):
        export(model, tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()


def test_a_model_of_one_chip_is_not_exported_for_another(tmp_path):
    with pytest.raises(UsageError, match=r"computes as arcs does \(linger\.init\), not as venus"):
        export(bent(torch.sigmoid, "arcs"), tmp_path / "net.onnx", target="venus")


def test_arithmetic_of_venus_is_not_written_for_another_chip(tmp_path):
    with pytest.raises(
        UnsupportedError, match=r"computes as venus does, not as arcs.*linger\.init\(model, target='arcs'\)"
    ):
        export(bent(torch.sigmoid, None), tmp_path / "net.onnx", target="arcs")


def test_a_model_without_curves_goes_to_any_chip(tmp_path):
    model = bent(torch.relu, None)
    made = export(model, tmp_path / "net.onnx", target="arcs", verify=True)
    nodes = {node.op_type: attributes(node) for node in made.graph.node}
    assert nodes["Conv2dInt"]["platform"] == nodes["Relu"]["platform"] == "arcs"


def test_an_unknown_chip_is_refused():
    with pytest.raises(UsageError, match="no chip 'mars'"):
        init(nn.Sequential(nn.Linear(2, 2)), target="mars")


def test_the_chip_survives_copies_and_checkpoints():
    model = bent(torch.sigmoid, "arcs")
    assert runtime_of(copy.deepcopy(model)).target == "arcs"
    layers = pickle.loads(pickle.dumps(model.conv))
    assert layers.runtime.target == "arcs"
    again = init(Wired(lambda m, x: torch.sigmoid(m.conv(x))), target="arcs").eval()
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again(image()).integers(), model(image()).integers())


PROGRAMS = ("c", "onnxruntime")


def of_everything(target):
    """A network with what chips want otherwise: a limit, a difference, an average of an uneven area, a curve."""
    torch.manual_seed(5)
    model = Wired(lambda m, x: F.softmax(F.avg_pool2d(F.relu6(m.conv(x)) - torch.sigmoid(m.conv(x)), 3), dim=1))
    model = init(model, target=target, per_channel=False, unsigned=False).eval()
    with linger.calibration():
        model(image(spread=4.0))
    return model


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_no_chip_computes_as_without_a_target(tmp_path, name):
    plain, model = of_everything(None), of_everything(name)
    assert runtime_of(model).target == name
    assert torch.equal(plain(image(4)), model(image(4)))
    for form in ("dialect", "bare", "standard", "qdq"):
        export(plain, tmp_path / "plain.onnx", form=form)
        export(model, tmp_path / "own.onnx", form=form, target=name)
        assert (tmp_path / "own.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()
    export(plain, tmp_path / "plain.onnx", target=name, verify=True)
    assert linger.check(tmp_path / "plain.onnx", name).ok


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_target_that_is_no_chip_is_of_the_usual_exports(tmp_path, name):
    with pytest.raises(UsageError, match=f"the model computes as venus does .*, not as {name}"):
        export(bent(torch.sigmoid, "venus"), tmp_path / "net.onnx", target=name)
    with pytest.raises(UsageError, match="is for quantized models"):
        linger.onnx.export(nn.ReLU(), (image(1),), tmp_path / "net.onnx", target=name)
    several = of_everything(name)
    linger.onnx.export(
        several, (image(1).repeat(2, 1, 1, 1),), tmp_path / "net.onnx", dynamic_axes={"x": {0: "n"}}, input_names=["x"]
    )
    assert onnx.load(tmp_path / "net.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
