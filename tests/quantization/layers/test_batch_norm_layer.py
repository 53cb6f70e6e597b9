"""A batch norm that no convolution takes in: statistics, gradients, limits, keys, and the file."""

import copy
import logging

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger import NormalizeBatchNorm2d, QTensor
from linger.errors import UsageError
from tests.support.quantization import init, quantized_layers, unwrap

KINDS = {
    "images": (nn.BatchNorm2d, (6, 4, 5, 3)),
    "vectors": (nn.BatchNorm1d, (12, 4)),
    "sequences": (nn.BatchNorm1d, (6, 4, 7)),
}
each_kind = pytest.mark.parametrize(("kind", "shape"), KINDS.values(), ids=KINDS.keys())


def batch(shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def settled(bn):
    torch.manual_seed(2)
    if bn.affine:
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        nn.init.normal_(bn.bias)
    nn.init.normal_(bn.running_mean)
    nn.init.uniform_(bn.running_var, 0.5, 2.0)
    return bn


def calibrated(bn, x, **options):
    model = init(nn.Sequential(bn).eval(), **options)
    with linger.calibration():
        model(x)
    return model


def integers_by_hand(layer, x):
    """⌊(q·⌊alpha·sw + ½⌋ + ⌊offset·sx·sw + ½⌋)·so/(sx·sw) + ½⌋ in Python's integers."""
    sx, sw, so = (layer.read(f"scale_{n}") for n in "xwo")
    gamma = np.ones(4) if layer.weight is None else layer.weight.detach().double().numpy()
    beta = np.zeros(4) if layer.bias is None else layer.bias.detach().double().numpy()
    alpha = gamma / np.sqrt(layer.running_var.double().numpy() + layer.eps)
    offset = beta - layer.running_mean.double().numpy() * alpha
    q = np.clip(np.floor(x.numpy() * sx + 0.5), -128, 127).astype(np.int64)
    w, b = np.floor(alpha * sw + 0.5).astype(np.int64), np.floor(offset * sx * sw + 0.5).astype(np.int64)
    shape = (-1, *[1] * (x.dim() - 2))
    total, shift = q * w.reshape(shape) + b.reshape(shape), int(np.log2(sx * sw / so))
    return np.clip((total + (1 << (shift - 1))) >> shift, -128, 127)


@each_kind
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_evaluation_gives_the_integers_of_the_running_statistics(kind, shape, affine):
    x = batch(shape)
    source = settled(kind(4, affine=affine)).eval()
    model = calibrated(copy.deepcopy(source), x)
    with torch.no_grad():
        found, real = model(x), source(x)
    assert isinstance(found, QTensor)
    assert (found.bits, found.content.shape) == (8, x.shape)
    np.testing.assert_array_equal(found.integers().numpy(), integers_by_hand(model[0], x))
    assert (unwrap(found) - real).norm() < 0.03 * real.norm()
    (quant, norm) = linger.coverage(model).ops
    assert (quant.op, norm.op, norm.macs) == ("Quant", "BatchNorm2dInt", x.numel())


def test_it_is_quantized_by_default_behind_a_convolution_that_does_not_take_it_in():
    x = batch((2, 3, 6, 6))
    model = init(nn.Sequential(nn.Conv2d(3, 4, 3), settled(nn.BatchNorm2d(4)), nn.ReLU()).eval())
    with linger.calibration():
        model(x)
    assert [op.op for op in linger.coverage(model).ops] == ["Quant", "Conv2dInt", "BatchNorm2dInt", "Relu"]
    assert model[1].read("scale_x") == model[0].read("scale_o")


def test_without_statistics_it_stays_float_visibly(caplog):
    with caplog.at_level(logging.WARNING):
        model = init(nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)))
    assert quantized_layers(model) == {}
    assert caplog.messages[0].startswith("0 (BatchNorm2d) stays float: track_running_stats=False")


# -- training -----------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("momentum", [0.1, None], ids=str)
def test_running_statistics_learn_as_torchs_do(kind, shape, momentum):
    source = settled(kind(4, momentum=momentum))
    model = init(nn.Sequential(copy.deepcopy(source))).train()
    grid = 2.0**-5  # numbers on the grid, so that both see the same input
    for seed in range(3):
        x = (batch(shape, seed).clamp(-3, 3) / grid).round() * grid
        model(x)
        source(x)
    assert int(model[0].num_batches_tracked) == 3
    # float32: a few roundings of numbers below 4
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(model[0], name), getattr(source, name), rtol=1e-5, atol=1e-6)


@each_kind
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_gradient_goes_through_the_statistics(kind, shape, affine):
    x, upstream = batch(shape), batch(shape, 5)
    source = settled(kind(4, affine=affine))
    model = init(nn.Sequential(copy.deepcopy(source))).train()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    (unwrap(model(inputs[0])) * upstream).sum().backward()
    (source(inputs[1]) * upstream).sum().backward()
    mine, real = (i.grad for i in inputs)
    assert (mine - real).norm() < 0.05 * real.norm()
    # a constant added to a channel changes nothing behind a batch norm
    channels = mine.transpose(0, 1).reshape(4, -1)
    assert channels.sum(1).abs().max() < 0.02 * channels.abs().sum(1).max()
    for name, parameter in source.named_parameters():
        found = getattr(model[0], name).grad
        assert (found - parameter.grad).norm() < 0.05 * parameter.grad.norm()


def test_one_value_per_channel_cannot_be_trained_on():
    model = init(nn.Sequential(nn.BatchNorm1d(4))).train()
    with pytest.raises(UsageError, match="0: one value per channel has no variance"):
        model(torch.randn(1, 4))


def test_an_empty_batch_changes_nothing():
    model = init(nn.Sequential(settled(nn.BatchNorm2d(4)))).train()
    model(batch((6, 4, 5, 3)))
    before = copy.deepcopy(model.state_dict())
    assert model(torch.zeros(0, 4, 5, 3)).shape == (0, 4, 5, 3)
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert torch.equal(before[name], model.state_dict()[name])


def test_a_changed_statistic_is_noticed():
    x = batch((6, 4, 5, 3))
    model = calibrated(settled(nn.BatchNorm2d(4)), x)
    with torch.no_grad():
        before = model(x).integers()
        model[0].running_mean += 1.0
        after = model(x).integers()
    assert not torch.equal(before, after)


# -- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_limits_hold_after_init(is_training):
    bn = settled(NormalizeBatchNorm2d(4, normalize_weight=0.5, normalize_bias=0.25, normalize_data=1.0))
    x = batch((6, 4, 5, 3))
    model = init(nn.Sequential(bn).train(is_training))
    with linger.calibration():
        y = unwrap(model(x))
    frozen = model[0].eval().freeze(model[0].read("scale_x"))
    assert frozen.weight.abs().max() <= 0.5
    assert frozen.bias.abs().max() <= 0.25
    assert y.abs().max() <= 1.0
    assert model[0].read("scale_o") >= 128  # 127/128 fits


def test_a_limit_that_is_not_reached_changes_nothing():
    x, source = batch((6, 4, 5, 3)), settled(nn.BatchNorm2d(4))
    limited = NormalizeBatchNorm2d(4, normalize_weight=100.0, normalize_bias=100.0)
    limited.load_state_dict(source.state_dict())
    found = [calibrated(bn, x)(x).integers() for bn in (source, limited)]
    assert torch.equal(*found)


# -- checkpoints and files ------------------------------------------------------------------------------------------


def test_keys_are_those_of_the_float_layer_and_the_ranges():
    model = init(nn.Sequential(nn.BatchNorm2d(4)))
    ranges = {f"0.{kind}_{name}" for kind in ("running", "scale") for name in "xwo"}
    assert set(model.state_dict()) == set(nn.Sequential(nn.BatchNorm2d(4)).state_dict()) | ranges


def test_float_and_quantized_checkpoints_load():
    x, other = batch((6, 4, 5, 3)), nn.Sequential(settled(nn.BatchNorm2d(4)))
    for checkpoint in (other.state_dict(), calibrated(copy.deepcopy(other[0]), x).state_dict()):
        model = init(nn.Sequential(nn.BatchNorm2d(4)).eval())
        model.load_state_dict(checkpoint, strict=True)
        assert torch.equal(model[0].running_mean, other[0].running_mean)
        with linger.calibration():
            model(x)
        with torch.no_grad():
            assert torch.equal(model(x).integers(), calibrated(copy.deepcopy(other[0]), x)(x).integers())


def test_missing_statistics_are_reported():
    checkpoint = {k: v for k, v in nn.Sequential(nn.BatchNorm2d(4)).state_dict().items() if "running_mean" not in k}
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.running_mean"):
        init(nn.Sequential(nn.BatchNorm2d(4))).load_state_dict(checkpoint)


FORMS = [("dialect", 11), ("dialect", 12), ("dialect", 20), ("bare", 12), ("standard", 11), ("standard", 18)]


@each_kind
@pytest.mark.parametrize(("form", "opset"), FORMS, ids=str)
@pytest.mark.thin(every=12)
def test_the_file_computes_every_integer_of_the_model(kind, shape, form, opset, tmp_path):
    x, path = batch(shape), tmp_path / "net.onnx"
    model = calibrated(settled(kind(4)), x)
    linger.onnx.export(model, (x,), path, form=form, opset_version=opset)
    result = linger.verify(model, path, [x, 3 * x])
    assert result.ok
    assert result.differing == 0
    if form == "standard":
        return
    file = onnx.load(path)
    (node,) = [node for node in file.graph.node if node.op_type == "BatchNorm2dInt"]
    assert list(node.input)[1:] == [f"0.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in file.graph.initializer}
    assert (stored["0.weight"].dtype, stored["0.weight"].shape) == (np.int8, (4,))
    assert (stored["0.bias"].dtype, stored["0.running_var"].dtype) == (np.int32, np.float32)


@each_kind
@pytest.mark.parametrize("options", [{"dynamo": True, "opset_version": 18}, {"opset_version": 12}], ids=str)
def test_an_open_batch_size_stays_open(kind, shape, options, tmp_path):
    x, path = batch(shape), tmp_path / "net.onnx"
    model = calibrated(settled(kind(4)), x)
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes={"x": {0: "n"}}, **options)
    assert linger.verify(model, path, [x, x[:3]]).ok


@pytest.mark.parametrize("bits", [4, 16])
def test_other_widths(bits, tmp_path):
    x, path = batch((6, 4, 5, 3)), tmp_path / "net.onnx"
    bn = linger.quant_module(settled(nn.BatchNorm2d(4)), data_bits=bits, parameter_bits=bits, out_bits=bits)
    model = calibrated(bn, x)
    assert model(x).bits == bits
    linger.onnx.export(model, (x,), path)
    assert linger.verify(model, path, [x]).differing == 0
