"""A convolution and its batch norm: folding, and learning through one folded convolution.

Where no tolerance is given, the tensors are float64 and torch's default (1e-7 relative) is far above their rounding.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm, fold, learning_factor, normalize_folded

BATCH = (8, 3, 6, 5)
KERNEL = (5, 3, 3, 3)


def tensor(*shape, low=-1.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low


def batch_norm(gamma=None, *, eps=1e-12, **options):
    """Float64 and, by default, an eps too small to matter, so that only real mistakes show."""
    bn = nn.BatchNorm2d(5, eps=eps, **options).double()
    with torch.no_grad():
        bn.running_mean.copy_(tensor(5, seed=3))
        bn.running_var.copy_(tensor(5, low=0.5, high=2.0, seed=4))
        if bn.affine:
            bn.bias.copy_(tensor(5, seed=5))
            bn.weight.copy_(tensor(5, low=0.5, high=1.5, seed=6) if gamma is None else torch.tensor(gamma))
    return bn


def unfused(bn, x, weight, bias):
    return bn(F.conv2d(x, weight, bias, padding=1))


def folded(bn, x, weight, bias, gain=1.0):
    factor = learning_factor(bn)
    z = F.conv2d(x, weight * factor.reshape(-1, 1, 1, 1) * gain, None, padding=1)
    return normalize_folded(z, bias, bn, factor, gain=gain)


GAMMAS = {
    "positive": None,
    "negative": [-1.0, -0.5, -2.0, -1.5, -0.7],
    "mixed signs": [1.0, -1.0, 0.5, -0.25, 2.0],
    "some zero": [1.0, 0.0, -0.5, 0.0, 2.0],
    "all zero": [0.0, 0.0, 0.0, 0.0, 0.0],
    "some negligible": [1.0, 1e-12, -1e-12, -0.5, 2.0],
}


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("gain", [1.0, 64.0])
@pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS.keys())
def test_one_folded_convolution_learns_like_convolution_and_batch_norm(gamma, gain, has_bias):
    bn, x, upstream = batch_norm(gamma), tensor(*BATCH), tensor(8, 5, 6, 5, seed=2)
    reference = copy.deepcopy(bn)
    bias = tensor(5, seed=7) if has_bias else None
    weight, expected_weight = (tensor(*KERNEL, seed=1).requires_grad_() for _ in range(2))
    y = folded(bn, x, weight, bias, gain)
    expected = unfused(reference, x, expected_weight, bias)
    y.backward(upstream)
    expected.backward(upstream)
    # float64 with eps 1e-12: what is left is rounding, some 10^-13 through the variance of 240 values
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(y, expected, **close)
    torch.testing.assert_close(weight.grad, expected_weight.grad, **close)
    torch.testing.assert_close(bn.weight.grad, reference.weight.grad, **close)
    torch.testing.assert_close(bn.bias.grad, reference.bias.grad, **close)
    torch.testing.assert_close(bn.running_mean, reference.running_mean, **close)
    torch.testing.assert_close(bn.running_var, reference.running_var, **close)
    assert bn.num_batches_tracked == reference.num_batches_tracked == 1


@pytest.mark.parametrize("momentum", [None, 0.1, 0.5, 1.0, 0.0])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "not affine"])
def test_statistics_follow_torch_over_several_batches(affine, momentum):
    bn = batch_norm(momentum=momentum, affine=affine)
    reference = copy.deepcopy(bn)
    weight = tensor(*KERNEL, seed=1)
    for seed in range(4):
        x = tensor(*BATCH, seed=seed) * (seed + 1)
        torch.testing.assert_close(folded(bn, x, weight, None), unfused(reference, x, weight, None))
    torch.testing.assert_close(bn.running_mean, reference.running_mean)
    torch.testing.assert_close(bn.running_var, reference.running_var)
    assert bn.num_batches_tracked == reference.num_batches_tracked == 4


@pytest.mark.parametrize("gain", [1.0, 64.0])
def test_eps_acts_on_the_folded_variance(gain):
    # BN(u) has eps/factor² where torch has eps: y/y_torch = √((v + eps)/(v + eps/factor²)), v the variance of u
    bn = batch_norm([1.0, 0.5, 0.1, 0.05, 2.0], eps=1e-3)
    with torch.no_grad():
        bn.bias.zero_()
    reference = copy.deepcopy(bn)
    x, weight = tensor(*BATCH), tensor(*KERNEL, seed=1)
    factor = learning_factor(bn)
    variance = F.conv2d(x, weight, padding=1).var((0, 2, 3), unbiased=False)
    ratio = torch.sqrt((variance + 1e-3) / (variance + 1e-3 / factor**2)).reshape(1, -1, 1, 1)
    torch.testing.assert_close(folded(bn, x, weight, None, gain), unfused(reference, x, weight, None) * ratio)


def test_factor_of_a_vanished_channel_is_the_largest_of_the_others():
    bn = batch_norm([1.0, 0.0, -4.0, 0.0, 2.0])
    factor = learning_factor(bn)
    visible = [0, 2, 4]
    torch.testing.assert_close(factor[visible], (bn.weight / torch.sqrt(bn.running_var + bn.eps)).detach()[visible])
    assert factor[1] == factor[3] == factor.abs().max()
    assert not factor.requires_grad


def test_factor_is_one_where_every_channel_has_vanished():
    assert learning_factor(batch_norm([0.0] * 5)).tolist() == [1.0] * 5


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "not affine"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_folded_parameters_compute_batch_norm_of_the_product(rank, affine, has_bias):
    bn = batch_norm(affine=affine, eps=1e-3).eval()
    weight = tensor(5, 3, *([1] * (rank - 2)))
    bias = tensor(5, seed=7) if has_bias else None
    x = tensor(7, 3, seed=2)
    w, b = fold(weight, bias, bn)
    expected = bn(F.linear(x, weight.reshape(5, 3), bias)[:, :, None, None])[:, :, 0, 0]
    torch.testing.assert_close(F.linear(x, w.reshape(5, 3), b), expected)
    assert w.shape == weight.shape


def joined(**options):
    torch.manual_seed(3)
    conv = nn.Conv2d(3, 5, 3, **options)
    return ConvBN(conv, batch_norm(eps=1e-5).float())


@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"bias": False},
        {"padding": "same", "dilation": 2},
        {"stride": 2},
        {"kernel_size": 1},
    ],
    ids=str,
)
def test_evaluation_is_one_convolution_with_the_same_result(options):
    torch.manual_seed(3)
    conv = nn.Conv2d(3, 5, **({"kernel_size": 3} | options))
    layer = ConvBN(conv, batch_norm(eps=1e-5).float()).eval()
    x = tensor(*BATCH).float()
    found, expected = layer(x), layer.bn(layer.conv(x))
    # Both ways make K products and sums, and about eight more operations for the fold; each rounds by at most 2^-24
    # of a magnitude that never exceeds Σ|w·γ/σ·x| + |b·γ/σ| + |μ·γ/σ| + |β|.
    with torch.no_grad():
        weight, _ = fold(conv.weight, conv.bias, layer.bn)
        factor = (layer.bn.weight / torch.sqrt(layer.bn.running_var + layer.bn.eps)).abs()
        offsets = factor * layer.bn.running_mean.abs() + layer.bn.bias.abs()
        offsets = offsets if conv.bias is None else offsets + factor * conv.bias.abs()
        reach = conv._conv_forward(x.abs(), weight.abs(), offsets)
    steps = 2 * (conv.weight[0].numel() + 8)
    assert bool(((found - expected).abs() <= steps * 2**-24 * reach).all())
    assert not torch.equal(found, expected)  # the fold did happen


def test_training_is_batch_norm_of_the_convolution_to_the_last_bit():
    layer = joined().train()
    reference = copy.deepcopy(layer)
    x = tensor(*BATCH).float()
    assert torch.equal(layer(x), reference.bn(reference.conv(x)))
    for name, buffer in layer.bn.named_buffers():
        assert torch.equal(buffer, getattr(reference.bn, name))
    assert layer.bn.num_batches_tracked == 1


def test_frozen_batch_norm_keeps_its_statistics_in_training():
    layer = joined().train()
    layer.bn.eval()
    before = layer.bn.running_mean.clone()
    x = tensor(*BATCH).float()
    assert torch.equal(layer(x), layer.bn(layer.conv(x)))
    assert torch.equal(layer.bn.running_mean, before)


def test_evaluation_has_gradients_for_every_parameter():
    layer = joined().eval()
    layer(tensor(*BATCH).float()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


def test_what_stays_of_a_batch_norm_passes_its_input_on():
    empty, x = EmptyBatchNorm(), tensor(2, 3)
    assert empty(x) is x
    assert list(empty.state_dict()) == ["_linger_ignore_parameter"]
    assert not empty._linger_ignore_parameter.requires_grad
    assert tuple(empty._linger_ignore_parameter.shape) == (1,)
    empty.load_state_dict({})
    empty.load_state_dict({"_linger_ignore_parameter": torch.ones(1)})
    with pytest.raises(RuntimeError, match="other"):
        empty.load_state_dict({"other": torch.ones(1)})
