"""Batch norm within limits: against the formula written out, against torch, in training and in evaluation."""

import copy
import pickle

import pytest
import torch
from torch import nn

from linger import NormalizeBatchNorm2d
from tests.support.constraint import NormalizeBatchNorm1d, batch_statistics
from tests.support.quantization import Limits, NormalizeBatchNorm3d

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
"""Float64: a few hundred roundings of 2^-53, amplified by at most 1/σ < 10²."""

LIMITS = {
    "weight": {"normalize_weight": 0.7},
    "bias": {"normalize_bias": 0.4},
    "both": {"normalize_weight": 0.7, "normalize_bias": 0.4},
    "all": {"normalize_weight": 0.7, "normalize_bias": 0.4, "normalize_data": 0.9},
    "output": {"normalize_data": 0.5},
    "tiny": {"normalize_weight": 0.01, "normalize_bias": 0.001},
    "far away": {"normalize_weight": 1e3, "normalize_bias": 1e3, "normalize_data": 1e3},
}
each_limit = pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())


def draw(*shape, seed=0, offset=0.0, spread=1.0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return spread * x + offset


def layer(kind=NormalizeBatchNorm2d, channels=4, **options):
    bn = kind(channels, dtype=torch.float64, **options)
    if bn.affine:
        with torch.no_grad():
            bn.weight.copy_(draw(channels, seed=1))
            bn.bias.copy_(draw(channels, seed=2))
    if bn.running_mean is not None:
        bn.running_mean.copy_(draw(channels, seed=3))
        bn.running_var.copy_(draw(channels, seed=4).abs() + 0.5)
    return bn


def plain_twin(bn):
    twin = nn.BatchNorm2d(
        bn.num_features, bn.eps, bn.momentum, bn.affine, bn.track_running_stats, dtype=torch.float64
    ).train(bn.training)
    twin.load_state_dict(copy.deepcopy(bn.state_dict()))
    return twin


def cut(v, limit):
    if limit is None:
        return v
    edge = torch.tensor(limit, dtype=torch.float64)
    return torch.minimum(torch.maximum(torch.as_tensor(v), -edge), edge)


def by_formula(x, mean, var, bn, *, normalize_weight=None, normalize_bias=None, normalize_data=None):
    """clamp(γ/√(var + eps))·x + clamp(β − μ·γ/√(var + eps)), then the output's limit; channel by channel."""
    channels = []
    for c in range(x.shape[1]):
        gamma = 1.0 if bn.weight is None else bn.weight[c]
        beta = 0.0 if bn.bias is None else bn.bias[c]
        alpha = gamma * (var[c] + bn.eps) ** -0.5
        offset = beta - mean[c] * alpha
        y = cut(alpha, normalize_weight) * x[:, c] + cut(offset, normalize_bias)
        channels.append(cut(y, normalize_data))
    return torch.stack(channels, 1)


def test_worked_by_hand():
    bn = NormalizeBatchNorm1d(1, eps=0.75, normalize_weight=2, normalize_bias=1).eval()
    with torch.no_grad():
        bn.running_mean.fill_(3.0)
        bn.running_var.fill_(0.25)  # √(0.25 + 0.75) = 1, so alpha = γ
        bn.weight.fill_(5.0)
        bn.bias.fill_(-4.0)
    # alpha = 5 → 2; offset = −4 − 3·5 = −19 → −1; 2·3 − 1 = 5
    assert bn(torch.tensor([[3.0]])).tolist() == [[5.0]]
    bn.weight.data.fill_(-1.0)
    # alpha = −1; offset = −4 + 3 = −1, on the edge; −3 − 1 = −4
    assert bn(torch.tensor([[3.0]])).tolist() == [[-4.0]]
    bn.limit_to(Limits(weight=2.0, bias=1.0, output=3.5))
    assert bn(torch.tensor([[3.0]])).tolist() == [[-3.5]]


def test_training_worked_by_hand():
    bn = NormalizeBatchNorm1d(1, eps=1e-12, momentum=0.5, normalize_weight=0.25, dtype=torch.float64)
    x = torch.tensor([[0.0], [2.0], [4.0], [6.0]], dtype=torch.float64)
    # μ = 3, biased var = (9 + 1 + 1 + 9)/4 = 5, alpha = 1/√5 = 0.447 → ¼; the offset −3/√5 has no limit
    expected = 0.25 * x - 3 / 5**0.5
    torch.testing.assert_close(bn(x), expected, **CLOSE)
    # running: ½·0 + ½·3 and ½·1 + ½·20/3 (unbiased)
    torch.testing.assert_close(bn.running_mean, torch.tensor([1.5], dtype=torch.float64))
    torch.testing.assert_close(bn.running_var, torch.tensor([0.5 + 10 / 3], dtype=torch.float64))


SHAPES = {
    "vectors": (NormalizeBatchNorm1d, (6, 4)),
    "sequences": (NormalizeBatchNorm1d, (6, 4, 3)),
    "images": (NormalizeBatchNorm2d, (3, 4, 5, 2)),
    "volumes": (NormalizeBatchNorm3d, (3, 4, 2, 3, 2)),
}


@each_limit
@pytest.mark.parametrize(("kind", "shape"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_values_and_gradients_follow_the_formula(kind, shape, limits, is_training):
    bn = layer(kind, **limits).train(is_training)
    x = draw(*shape, offset=0.5, spread=2.0).requires_grad_()
    axes = [a for a in range(len(shape)) if a != 1]
    mean, var = (x.mean(axes), x.var(axes, unbiased=False)) if is_training else (bn.running_mean, bn.running_var)
    expected = by_formula(x, mean.clone(), var.clone(), bn, **limits)
    y = bn(x)
    torch.testing.assert_close(y, expected, **CLOSE)
    upstream, wanted = draw(*shape, seed=8), [x, bn.weight, bn.bias]
    found = torch.autograd.grad(y, wanted, upstream)
    torch.testing.assert_close(found, torch.autograd.grad(expected, wanted, upstream), **CLOSE)


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_layers_without_parameters_or_statistics(options, is_training):
    bn = layer(normalize_weight=0.3, normalize_bias=0.2, **options).train(is_training)
    x = draw(5, 4, 3, 3, offset=1.0)
    is_by_batch = is_training or bn.running_mean is None
    mean, var = batch_statistics(x) if is_by_batch else (bn.running_mean.clone(), bn.running_var.clone())
    expected = by_formula(x, mean, var, bn, normalize_weight=0.3, normalize_bias=0.2)
    torch.testing.assert_close(bn(x), expected, **CLOSE)


@each_limit
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"momentum": 0.0}, {"momentum": 1.0}, {"affine": False}, {"track_running_stats": False}],
    ids=str,
)
def test_statistics_are_learned_as_torch_learns_them(options, limits):
    bn = layer(**options, **limits)
    twin = plain_twin(bn)
    for seed in range(3):
        x = draw(4, 4, 3, 3, seed=seed, spread=seed + 1.0)
        bn(x)
        twin(x)
    bn.eval()(draw(4, 4, 3, 3, seed=9))  # evaluation teaches nothing
    for (name, found), (_, expected) in zip(bn.named_buffers(), twin.named_buffers(), strict=True):
        assert torch.equal(found, expected), name
    assert not options.get("track_running_stats", True) or bn.num_batches_tracked == 3


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    "limits", [{}, {"normalize_weight": 1e3, "normalize_bias": 1e3}, {"normalize_data": 1e3}], ids=str
)
def test_limits_that_nothing_reaches_change_no_bit(limits, is_training):
    bn = layer(**limits).train(is_training)
    twin = plain_twin(bn)
    x = draw(4, 4, 3, 3)
    assert torch.equal(bn(x), twin(x))


def test_a_channel_inside_its_limits_does_not_change_by_a_bit():
    bn = layer(normalize_weight=0.7, normalize_bias=0.4).eval()
    x = draw(4, 4, 3, 3)
    sigma = torch.sqrt(bn.running_var + bn.eps)
    alpha = (bn.weight / sigma).detach()
    offset = (bn.bias - bn.running_mean * alpha).detach()
    is_inside = (alpha.abs() <= 0.7) & (offset.abs() <= 0.4)
    assert 0 < is_inside.sum() < 4
    expected = plain_twin(bn)(x)
    found = bn(x)
    assert torch.equal(found[:, is_inside], expected[:, is_inside])
    assert not torch.equal(found[:, ~is_inside], expected[:, ~is_inside])


def test_gamma_beyond_its_limit_gets_no_gradient():
    bn = layer(normalize_weight=0.01).eval()
    bn(draw(4, 4, 3, 3)).sum().backward()
    sigma = torch.sqrt(bn.running_var + bn.eps)
    # the offset β − μ·γ/σ has no limit: −μ/σ per element (36 of them) is all that γ gets
    torch.testing.assert_close(bn.weight.grad, -36 * bn.running_mean / sigma, **CLOSE)
    torch.testing.assert_close(bn.bias.grad, torch.full((4,), 36.0, dtype=torch.float64), **CLOSE)


def test_a_wrong_input_is_refused_as_by_torch():
    with pytest.raises(ValueError, match="expected 4D input"):
        layer(normalize_weight=1.0)(draw(3, 4, 5))


def test_batch_statistics_are_mean_and_biased_variance():
    x = torch.tensor([[[1.0, 3.0]], [[5.0, 7.0]]])
    mean, var = batch_statistics(x)
    assert mean.tolist() == [4.0]
    assert var.tolist() == [5.0]  # (9 + 1 + 1 + 9)/4


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_compute_the_same(clone):
    bn = layer(normalize_weight=0.3).eval()
    x = draw(2, 4, 3, 3)
    assert torch.equal(clone(bn)(x), bn(x))


def test_input_may_be_given_by_name():
    bn = layer(normalize_weight=0.3).eval()
    x = draw(2, 4, 3, 3)
    assert torch.equal(bn(input=x), bn(x))
