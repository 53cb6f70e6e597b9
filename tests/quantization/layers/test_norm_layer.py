"""Norms as quantized layers: the device's integers in training too, the float layer's gradient, limits, keys, files."""

import copy
import logging
from functools import partial

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger import NormalizeLayerNorm, QTensor
from linger.errors import UsageError
from tests.support.integer_norm import group_norm, layer_norm
from tests.support.quantization import Widths, init, quantized_layers, unwrap

KINDS = {
    "last axis": (partial(nn.LayerNorm, 6), (4, 5, 6)),
    "two axes": (partial(nn.LayerNorm, (5, 6)), (4, 5, 6)),
    "no weights": (partial(nn.LayerNorm, (5, 6), elementwise_affine=False), (4, 5, 6)),
    "no bias, another eps": (partial(nn.LayerNorm, 6, eps=0.1, bias=False), (4, 6)),
    "groups": (partial(nn.GroupNorm, 2, 6), (4, 6, 5, 3)),
    "groups of vectors, no weights, another eps": (partial(nn.GroupNorm, 2, 6, eps=0.1, affine=False), (4, 6)),
    "instances": (partial(nn.InstanceNorm2d, 6, affine=True), (4, 6, 5, 3)),
    "instances of sequences, no weights": (partial(nn.InstanceNorm1d, 6), (4, 6, 7)),
}
each_kind = pytest.mark.parametrize(("make", "shape"), KINDS.values(), ids=KINDS.keys())


def batch(shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def settled(make):
    torch.manual_seed(2)
    norm = make()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def calibrated(norm, x, **options):
    model = init(nn.Sequential(norm).eval(), **options)
    with linger.calibration():
        model(x)
    return model


def integers_by_hand(layer, x, bits=8):
    """The parameters rounded to 16 and 32 bits, the rest in Python's integers."""
    sx, sw, so = (layer.read(f"scale_{n}") for n in "xwo")
    w = np.ones(layer.count) if layer.weight is None else layer.weight.detach().double().numpy().reshape(-1)
    b = np.zeros(layer.count) if layer.bias is None else layer.bias.detach().double().numpy().reshape(-1)
    w, b = np.floor(w * sw + 0.5).astype(np.int64), np.floor(b * sw * 1024 + 0.5).astype(np.int64)
    top = 2 ** (bits - 1)
    q = np.clip(np.floor(x.numpy() * sx + 0.5), -top, top - 1).astype(np.int64)
    compute = group_norm if "groups" in layer.geometry else layer_norm
    return compute(q, w, b, scale_x=sx, scale_w=sw, scale_o=so, o_bits=bits, **layer.geometry)


@each_kind
@pytest.mark.parametrize("is_training", [False, True], ids=["evaluation", "training"])
def test_integers_are_the_devices(make, shape, is_training):
    x, source = batch(shape), settled(make)
    model = calibrated(copy.deepcopy(source), x).train(is_training)
    found = model(x)
    assert isinstance(found, QTensor)
    assert found.content.shape == x.shape
    np.testing.assert_array_equal(found.integers().numpy(), integers_by_hand(model[0], x))
    real = source(x)
    assert (unwrap(found) - real).norm() < 0.03 * real.norm()


@each_kind
def test_gradient_is_that_of_the_float_layer(make, shape):
    x, upstream = batch(shape), batch(shape, 5)
    source = settled(make)
    model = init(nn.Sequential(copy.deepcopy(source))).train()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    (unwrap(model(inputs[0])) * upstream).sum().backward()
    (source(inputs[1]) * upstream).sum().backward()
    pairs = [(i.grad for i in inputs)] + [
        (getattr(model[0], name).grad, parameter.grad) for name, parameter in source.named_parameters()
    ]
    for mine, real in pairs:
        assert (mine - real).norm() < 0.04 * real.norm()  # the input is rounded to 8 bits


def test_they_are_quantized_by_default():
    model = init(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2)).eval())
    with linger.calibration():
        model(batch((4, 6)))
    assert [op.op for op in linger.coverage(model).ops] == ["Quant", "LinearInt", "LayerNormInt", "LinearInt"]
    assert model[2].read("scale_x") == model[1].read("scale_o")


def test_groups_are_quantized_by_default():
    model = init(nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(3, 6), nn.InstanceNorm2d(6)).eval())
    with linger.calibration():
        model(batch((2, 3, 5, 5)))
    assert [op.op for op in linger.coverage(model).ops] == ["Quant", "Conv2dInt", "GroupNormInt", "GroupNormInt"]


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.InstanceNorm1d, (6, 7)), (nn.InstanceNorm2d, (6, 7, 2)), (nn.InstanceNorm3d, (6, 3, 2, 2))]
)
def test_one_image_without_a_batch(kind, shape, tmp_path):
    x, path = batch(shape), tmp_path / "net.onnx"
    model = calibrated(settled(partial(kind, 6, affine=True)), x)
    with torch.no_grad():
        found = model(x)
        assert torch.equal(found.integers(), model(x[None]).integers()[0])
    linger.onnx.export(model, (x,), path)
    assert linger.verify(model, path, [x]).ok


def test_instance_norms_with_statistics_stay_float_visibly(caplog):
    with caplog.at_level(logging.WARNING):
        assert quantized_layers(init(nn.Sequential(nn.InstanceNorm2d(6, track_running_stats=True)))) == {}
    assert "0 (InstanceNorm2d) stays float: track_running_stats=True" in caplog.text


def test_weights_have_sixteen_bits_whatever_is_asked_for():
    norm = linger.quant_module(nn.LayerNorm(6), data_bits=16, parameter_bits=4, out_bits=16)
    model = init(nn.Sequential(norm), parameter_bits=8)
    assert model[0].widths == Widths(16, 16, 16)
    linger.quant_module(model, parameter_bits=8)
    assert model[0].widths == Widths(8, 16, 8)


@pytest.mark.parametrize("bits", [4, 16])
def test_other_widths(bits, tmp_path):
    x, path = batch((4, 5, 6)), tmp_path / "net.onnx"
    norm = linger.quant_module(settled(partial(nn.LayerNorm, 6)), data_bits=bits, out_bits=bits)
    model = calibrated(norm, x)
    np.testing.assert_array_equal(model(x).integers().numpy(), integers_by_hand(model[0], x, bits))
    linger.onnx.export(model, (x,), path)
    assert linger.verify(model, path, [x]).differing == 0


def test_sums_that_would_not_be_exact_are_refused(caplog):
    model = init(nn.Sequential(linger.quant_module(nn.LayerNorm(2897), data_bits=16))).train()
    with pytest.raises(UsageError, match=r"0\.LayerNormInt: the sums over 2897 numbers of 16 bits"):
        model(batch((1, 2897)))
    with caplog.at_level(logging.WARNING):
        assert quantized_layers(init(nn.Sequential(nn.LayerNorm(1 << 20, elementwise_affine=False)))) == {}
    assert "stays float: the sums over 1048576 numbers" in caplog.text


def test_limits_hold_after_init():
    norm = settled(partial(NormalizeLayerNorm, 6, normalize_weight=0.5, normalize_bias=0.25, normalize_data=1.0))
    x = batch((4, 5, 6))
    model = calibrated(norm, x)
    frozen = model[0].freeze(1024.0)
    assert frozen.weight.abs().max() <= 0.5
    assert frozen.bias.abs().max() <= 0.25
    assert unwrap(model(x)).abs().max() <= 1.0


def test_keys_are_those_of_the_float_layer_and_the_ranges():
    model = init(nn.Sequential(nn.LayerNorm(6)))
    ranges = {f"0.{kind}_{name}" for kind in ("running", "scale") for name in ("x", "w", "o", "normal")}
    assert set(model.state_dict()) == {"0.weight", "0.bias"} | ranges
    assert model[0].read("scale_normal") == 1024.0


@each_kind
def test_float_and_quantized_checkpoints_load(make, shape):
    x, other = batch(shape), nn.Sequential(settled(make))
    expected = calibrated(copy.deepcopy(other[0]), x)
    for checkpoint in (other.state_dict(), expected.state_dict()):
        model = init(nn.Sequential(make()).eval())
        model.load_state_dict(checkpoint, strict=True)
        with linger.calibration():
            model(x)
        with torch.no_grad():
            assert torch.equal(model(x).integers(), expected(x).integers())


def test_a_changed_weight_is_noticed():
    x = batch((4, 5, 6))
    model = calibrated(settled(partial(nn.LayerNorm, 6)), x)
    with torch.no_grad():
        before = model(x).integers()
        model[0].weight.mul_(0.5)
        assert not torch.equal(before, model(x).integers())


FORMS = [("dialect", 11), ("dialect", 12), ("dialect", 20), ("bare", 12), ("standard", 11), ("standard", 18)]


@each_kind
@pytest.mark.parametrize(("form", "opset"), FORMS, ids=str)
@pytest.mark.thin(every=7)
def test_the_file_computes_every_integer_of_the_model(make, shape, form, opset, tmp_path):
    x, path = batch(shape), tmp_path / "net.onnx"
    model = calibrated(settled(make), x)
    linger.onnx.export(model, (x,), path, form=form, opset_version=opset)
    result = linger.verify(model, path, [x, 3 * x])
    assert result.ok
    assert result.differing == 0
    if form == "standard":
        return
    file = onnx.load(path)
    (node,) = [node for node in file.graph.node if node.op_type == model[0].op_name]
    assert list(node.input)[1:] == ["0.weight", "0.bias"]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in file.graph.initializer}
    assert (stored["0.weight"].dtype, stored["0.weight"].shape) == (np.int16, (model[0].count,))
    assert (stored["0.bias"].dtype, stored["0.bias"].shape) == (np.int32, (model[0].count,))
    if form == "bare" and "eps" not in model[0].geometry:
        assert "eps" not in {a.name for a in node.attribute}


@each_kind
@pytest.mark.parametrize("options", [{"dynamo": True, "opset_version": 18}, {"opset_version": 12}], ids=str)
@pytest.mark.thin(every=2)
def test_an_open_batch_size_stays_open(make, shape, options, tmp_path):
    x, path = batch(shape), tmp_path / "net.onnx"
    model = calibrated(settled(make), x)
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes={"x": {0: "n"}}, **options)
    assert linger.verify(model, path, [x, x[:3]]).ok


def test_torch_export_runs():
    x = batch((4, 5, 6))
    model = calibrated(settled(partial(nn.LayerNorm, 6)), x).eval()
    with torch.no_grad():
        expected = unwrap(model(x))
        program = torch.export.export(model, (x,))
        assert torch.equal(program.module()(x), expected)
