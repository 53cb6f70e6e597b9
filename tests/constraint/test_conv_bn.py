"""A convolution and its batch norm: folding, and learning through one folded convolution.

Where no tolerance is given, the tensors are float64 and torch's default (1e-7 relative) is far above their rounding.
"""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linger import (
    EmptyBatchNorm,
    NormalizeBatchNorm2d,
    NormalizeConv2d,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTransposeBN2d,
)
from linger.errors import UsageError
from tests.support.constraint import AHEAD_RELU, joined_limits, learning_factor, normalize_folded, per_weight
from tests.support.quantization import ConvBN, Limits, fold, limits_of

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
    z = F.conv2d(x, weight * factor.values.reshape(-1, 1, 1, 1) * gain, None, padding=1)
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
    factor = learning_factor(bn).values
    variance = F.conv2d(x, weight, padding=1).var((0, 2, 3), unbiased=False)
    ratio = torch.sqrt((variance + 1e-3) / (variance + 1e-3 / factor**2)).reshape(1, -1, 1, 1)
    torch.testing.assert_close(folded(bn, x, weight, None, gain), unfused(reference, x, weight, None) * ratio)


def test_factor_of_a_vanished_channel_is_the_largest_of_the_others():
    bn = batch_norm([1.0, 0.0, -4.0, 0.0, 2.0])
    factor = learning_factor(bn).values
    visible = [0, 2, 4]
    torch.testing.assert_close(factor[visible], (bn.weight / torch.sqrt(bn.running_var + bn.eps)).detach()[visible])
    assert factor[1] == factor[3] == factor.abs().max()
    assert not factor.requires_grad


def test_factor_is_one_where_every_channel_has_vanished():
    assert learning_factor(batch_norm([0.0] * 5)).values.tolist() == [1.0] * 5


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


# -- transposed convolutions -----------------------------------------------------------------------------------------


def test_factor_of_a_transposed_weight_worked_by_hand():
    # 4 inputs, 6 outputs, 2 groups: weight [4, 3, 1, 1]; rows 0 and 1 feed outputs 0-2, rows 2 and 3 feed outputs 3-5
    factor = torch.tensor([1.0, 2, 3, 4, 5, 6])
    found = per_weight(factor, torch.zeros(4, 3, 1, 1), transposed_groups=2)
    assert found[:, :, 0, 0].tolist() == [[1, 2, 3], [1, 2, 3], [4, 5, 6], [4, 5, 6]]
    assert per_weight(factor, torch.zeros(6, 2, 1, 1))[:, 0, 0, 0].tolist() == factor.tolist()


TRANSPOSED = {
    "plain": {},
    "two groups": {"groups": 2},
    "depthwise": {"groups": 4, "out_channels": 8},
    "strided, padded": {"stride": 2, "padding": 1, "output_padding": 1},
    "dilated": {"dilation": 2, "groups": 2, "bias": False},
}


def statistics(bn, seed=3):
    with torch.no_grad():
        count = bn.num_features
        bn.running_mean.copy_(tensor(count, seed=seed))
        bn.running_var.copy_(tensor(count, low=0.5, high=2.0, seed=seed + 1))
        bn.bias.copy_(tensor(count, seed=seed + 2))
        bn.weight.copy_(tensor(count, low=-1.5, high=1.5, seed=seed + 3))
    return bn


@pytest.mark.parametrize("options", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_a_transposed_pair_in_evaluation_is_batch_norm_of_the_convolution(options):
    pair = NormalizeConvTransposeBN2d(**({"in_channels": 4, "out_channels": 6, "kernel_size": 3} | options)).double()
    statistics(pair.bn)
    x = tensor(2, 4, 5, 4)
    # float64: folding moves the last bits only, some 150 roundings of 2^-53 of numbers below 100
    torch.testing.assert_close(pair.eval()(x), pair.bn(pair.conv(x)), rtol=0, atol=1e-12)


def test_a_transposed_pair_takes_an_output_size():
    pair = NormalizeConvTransposeBN2d(2, 3, 3, stride=2, normalize_weight=0.05)
    x = torch.randn(2, 2, 4, 4)
    for mode in (True, False):
        assert pair.train(mode)(x, [10, 9]).shape == (2, 3, 10, 9)
        assert pair(x, output_size=[10, 9]).shape == (2, 3, 10, 9)


# -- limits ------------------------------------------------------------------------------------------------------------

PAIRS = {
    "1d": (NormalizeConvBN1d, F.conv1d, (4, 6, 3), {"padding": 1}, (5, 4, 7)),
    "2d": (NormalizeConvBN2d, F.conv2d, (4, 6, 3), {"padding": 1, "groups": 2}, (3, 4, 5, 4)),
    "2d, no bias": (NormalizeConvBN2d, F.conv2d, (4, 6, 3), {"stride": 2, "bias": False}, (3, 4, 7, 6)),
    "transposed": (
        NormalizeConvTransposeBN2d,
        F.conv_transpose2d,
        (4, 6, 3),
        {"stride": 2, "output_padding": 1, "groups": 2},
        (3, 4, 4, 3),
    ),
}
LIMITS = {
    "weight": {"normalize_weight": 0.15},
    "bias": {"normalize_bias": 0.4},
    "both": {"normalize_weight": 0.15, "normalize_bias": 0.4},
    "all": {"normalize_weight": 0.15, "normalize_bias": 0.4, "normalize_data": 0.5},
    "output": {"normalize_data": 0.5},
    "far away": {"normalize_weight": 1e6, "normalize_bias": 1e6, "normalize_data": 1e6},
}
each_pair = pytest.mark.parametrize(("kind", "function", "sizes", "options", "shape"), PAIRS.values(), ids=PAIRS.keys())
each_limit = pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())


def cut(t, limit):
    """Limiting without torch.clamp."""
    return t if limit is None else torch.where(t.abs() > limit, limit * t.sign(), t)


def by_formula(pair, function, x, limits, options, *, is_by_batch):
    """The convolution with clamp(w·γ/σ) and clamp((b − μ)·γ/σ + β), one output channel's factor at a time."""
    conv, bn = pair.conv, pair.bn
    geometry = {k: v for k, v in options.items() if k != "bias"}
    u = function(x, conv.weight, conv.bias, **geometry)
    axes = [a for a in range(u.dim()) if a != 1]
    mean = u.mean(axes) if is_by_batch else bn.running_mean.clone()
    var = u.var(axes, unbiased=False) if is_by_batch else bn.running_var.clone()
    alpha = bn.weight / torch.sqrt(var + bn.eps)
    groups, is_transposed = conv.groups, isinstance(conv, nn.ConvTranspose2d)
    weight = torch.zeros_like(conv.weight) + conv.weight
    rows = []
    for row in range(weight.shape[0]):
        if is_transposed:
            per_group = conv.out_channels // groups
            first = row // (conv.in_channels // groups) * per_group
            rows.append(torch.stack([weight[row, j] * alpha[first + j] for j in range(per_group)]))
        else:
            rows.append(weight[row] * alpha[row])
    bias = torch.zeros_like(mean) if conv.bias is None else conv.bias
    folded = (bias - mean) * alpha + bn.bias
    weight = cut(torch.stack(rows), limits.get("normalize_weight"))
    y = function(x, weight, cut(folded, limits.get("normalize_bias")), **geometry)
    return cut(y, limits.get("normalize_data"))


@each_pair
@each_limit
@pytest.mark.parametrize("mode", ["training", "frozen batch norm", "evaluation"])
def test_limits_act_on_the_folded_parameters(kind, function, sizes, options, shape, limits, mode):
    pair = kind(*sizes, **options, **limits).double()
    statistics(pair.bn)
    pair.train(mode != "evaluation")
    if mode == "frozen batch norm":
        pair.bn.eval()
    x = (2 * tensor(*shape)).requires_grad_()
    expected = by_formula(pair, function, x, limits, options, is_by_batch=mode == "training")
    y = pair(x)
    # float64: a few hundred roundings of 2^-53, amplified by at most 1/σ < 100
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(y, expected, **close)
    wanted, upstream = [x, *pair.parameters()], tensor(*y.shape, seed=8)
    found = torch.autograd.grad(y, wanted, upstream, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(expected, wanted, upstream, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, theirs, **close)


@each_pair
@each_limit
def test_statistics_are_those_of_the_unlimited_convolution(kind, function, sizes, options, shape, limits):
    pair = kind(*sizes, **options, **limits).double()
    statistics(pair.bn)
    conv, bn = copy.deepcopy(pair.conv), copy.deepcopy(pair.bn)
    for seed in range(2):
        x = tensor(*shape, seed=seed)
        pair(x)
        bn(conv(x))
    for (name, found), (_, expected) in zip(pair.bn.named_buffers(), bn.named_buffers(), strict=True):
        assert torch.equal(found, expected), name


@each_pair
def test_limits_that_nothing_reaches_change_no_bit_in_training(kind, function, sizes, options, shape):
    pair = kind(*sizes, **options, normalize_weight=1e3, normalize_bias=1e3, normalize_data=1e3)
    plain = kind(*sizes, **options)
    plain.load_state_dict(pair.state_dict())
    x = tensor(*shape).float()
    assert torch.equal(pair(x), plain.bn(plain.conv(x)))


def test_limits_worked_by_hand():
    pair = NormalizeConvBN1d(1, 1, 1, eps=0.75, normalize_weight=2, normalize_bias=1, normalize_data=4.5).eval()
    with torch.no_grad():
        pair.conv.weight.fill_(3.0)
        pair.conv.bias.fill_(0.5)
        pair.bn.running_mean.fill_(1.0)
        pair.bn.running_var.fill_(0.25)  # σ = √(0.25 + 0.75) = 1
        pair.bn.weight.fill_(2.0)
        pair.bn.bias.fill_(-3.0)
    # w' = 3·2 = 6 → 2; b' = (½ − 1)·2 − 3 = −4 → −1: 2·x − 1, then ±4½
    assert pair(torch.tensor([[[-1.0, 0.0, 2.0, 9.0]]])).tolist() == [[[-3.0, -1.0, 3.0, 4.5]]]


def test_a_pair_without_running_statistics_works_by_batch():
    pair = NormalizeConvBN2d(3, 4, 3, track_running_stats=False, normalize_weight=0.05).eval()
    assert pair.bn.running_mean is None
    x = torch.randn(4, 3, 6, 6)
    assert torch.equal(pair(x), pair.train()(x))


def test_limits_of_the_parts_become_those_of_the_pair():
    conv, bn = NormalizeConv2d(3, 4, 3, normalize_weight=1, normalize_bias=2, normalize_data=3), nn.BatchNorm2d(4)
    pair = NormalizeConvBN2d.join(conv, bn)
    assert (pair.conv, pair.bn) == (conv, bn)
    assert limits_of(pair) == Limits(1.0, 2.0, 3.0)
    assert not limits_of(conv).is_any
    limited = NormalizeBatchNorm2d(4, normalize_weight=5, normalize_bias=6, normalize_data=7)
    pair = NormalizeConvBN2d.join(NormalizeConv2d(3, 4, 3, normalize_weight=1, normalize_data=3), limited)
    assert limits_of(pair) == Limits(weight=1.0, output=7.0)
    assert not limits_of(limited).is_any
    assert limits_of(NormalizeConvBN2d.join(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))) == Limits()


def test_joined_limits():
    assert joined_limits(Limits(1, 2, 3), Limits(4, 5, 6)) == Limits(1, 2, 6)
    assert joined_limits(Limits(1, 2, 3), Limits(4, 5, None)) == Limits(1, 2, 3)
    assert joined_limits(Limits(), Limits(4, 5, 6)) == Limits(output=6)


# -- the documented constructors -----------------------------------------------------------------------------------------


def test_constructors_take_the_arguments_of_both_parts():
    pair = NormalizeConvBN2d(
        3, 8, 3, 2, 1, 1, 1, False, eps=1e-3, momentum=0.3, affine=False, normalize_data=4, ahead_relu=True,
        ahead_sigmoid=True, dtype=torch.float64,
    )  # fmt: skip
    assert (pair.conv.stride, pair.conv.padding, pair.conv.bias) == ((2, 2), (1, 1), None)
    assert (pair.bn.num_features, pair.bn.eps, pair.bn.momentum, pair.bn.affine) == (8, 1e-3, 0.3, False)
    assert pair.bn.running_mean.dtype == torch.float64
    assert limits_of(pair) == Limits(output=4.0)
    assert getattr(pair, AHEAD_RELU) is True
    assert isinstance(NormalizeConvBN1d(3, 4, 3).bn, nn.BatchNorm1d)
    assert isinstance(NormalizeConvTransposeBN2d(3, 4, 3).conv, nn.ConvTranspose2d)
    assert all(isinstance(p, ConvBN) for p in (pair, NormalizeConvBN1d(3, 4, 3), NormalizeConvTransposeBN2d(3, 4, 3)))


def test_a_wrong_limit_is_named():
    with pytest.raises(UsageError, match="NormalizeConvBN2d: normalize_bias=-2 cannot be a limit"):
        NormalizeConvBN2d(3, 4, 3, normalize_bias=-2)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_of_a_pair_compute_the_same(clone):
    pair = NormalizeConvTransposeBN2d(3, 4, 3, normalize_weight=0.05, normalize_data=0.3)
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(clone(pair)(x), pair(x))
    assert torch.equal(clone(pair.eval())(x), pair(x))


def test_a_pair_shows_its_limits():
    assert "normalize_weight=0.5" in repr(NormalizeConvBN2d(3, 4, 3, normalize_weight=0.5))


def test_input_may_be_given_by_name():
    pair, x = NormalizeConvBN2d(3, 4, 3).eval(), torch.randn(2, 3, 4, 4)
    assert torch.equal(pair(input=x), pair(x))
