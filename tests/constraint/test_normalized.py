"""Layers within limits against formulas written out here: values, gradients, state, and everything torch allows."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linger import (
    NormalizeConv1d,
    NormalizeConv2d,
    NormalizeConvTranspose2d,
    NormalizeEmbedding,
    NormalizeLayerNorm,
    NormalizeLinear,
)
from linger.errors import UsageError
from tests.support.constraint import AHEAD_RELU, convolve
from tests.support.quantization import NORMALIZED, Limits, limits_of


def within(t, limit):
    """Limiting without torch.clamp."""
    if t is None or limit is None:
        return t
    t = torch.where(t > limit, torch.full_like(t, limit), t)
    return torch.where(t < -limit, torch.full_like(t, -limit), t)


def draw(*shape, spread=1.0, seed=0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- worked by hand ------------------------------------------------------------------------------------------------


def test_linear_worked_by_hand():
    layer = NormalizeLinear(2, 2, normalize_weight=1, normalize_bias=0.25, normalize_data=2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 0.5], [-0.5, -4.0]]))
        layer.bias.copy_(torch.tensor([-1.0, 0.125]))
    # weights [[1, ½], [−½, −1]], biases [−¼, ⅛]; for x = (2, 1): 2 + ½ − ¼ = 2¼ → 2; −1 − 1 + ⅛ = −1⅞
    x = torch.tensor([[2.0, 1.0]], requires_grad=True)
    y = layer(x)
    assert y.tolist() == [[2.0, -1.875]]
    y.sum().backward()
    # the first output is beyond its limit: no gradient; the second gives x to its weights, but −4 is beyond ±1
    assert layer.weight.grad.tolist() == [[0.0, 0.0], [2.0, 0.0]]
    assert layer.bias.grad.tolist() == [0.0, 1.0]
    assert x.grad.tolist() == [[-0.5, -1.0]]  # the limited weights


def test_convolution_worked_by_hand():
    layer = NormalizeConv1d(1, 1, 2, normalize_weight=0.5, normalize_bias=1, normalize_data=2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[2.0, -0.25]]]))
        layer.bias.copy_(torch.tensor([7.0]))
    # ½·x0 − ¼·x1 + 1: (4, −8) → 2 + 2 + 1 = 5 → 2; (−8, 1) → −4 − ¼ + 1 = −3¼ → −2; (1, 2) → ½ − ½ + 1 = 1
    assert layer(torch.tensor([[[4.0, -8.0]]])).tolist() == [[[2.0]]]
    assert layer(torch.tensor([[[-8.0, 1.0, 2.0]]])).tolist() == [[[-2.0, 1.0]]]


def test_embedding_worked_by_hand():
    layer = NormalizeEmbedding(3, 2, normalize_weight=1, normalize_data=0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.25, -3.0], [9.0, 0.5], [0.75, -0.75]]))
    assert layer(torch.tensor([1, 0])).tolist() == [[0.5, 0.5], [0.25, -0.5]]


# -- against the formulas ------------------------------------------------------------------------------------------

CONVOLUTIONS = {
    "1d": (NormalizeConv1d, F.conv1d, (4, 6, 3), {"stride": 2, "padding": 1}, (2, 4, 9)),
    "1d, groups": (NormalizeConv1d, F.conv1d, (4, 6, 3), {"groups": 2, "dilation": 2}, (2, 4, 9)),
    "2d": (NormalizeConv2d, F.conv2d, (4, 6, 3), {"padding": 1}, (2, 4, 7, 6)),
    "2d, same": (NormalizeConv2d, F.conv2d, (4, 6, 3), {"padding": "same", "dilation": 2}, (2, 4, 7, 6)),
    "2d, depthwise, no bias": (NormalizeConv2d, F.conv2d, (4, 4, 3), {"groups": 4, "bias": False}, (2, 4, 7, 6)),
    "transposed": (NormalizeConvTranspose2d, F.conv_transpose2d, (4, 6, 3), {"stride": 2, "padding": 1}, (2, 4, 5, 4)),
    "transposed, all options": (
        NormalizeConvTranspose2d,
        F.conv_transpose2d,
        (4, 6, 3),
        {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "dilation": 2, "bias": False},
        (2, 4, 5, 4),
    ),
}
LIMITS = {
    "none": {},
    "weight": {"normalize_weight": 0.1},
    "bias": {"normalize_bias": 0.05},
    "output": {"normalize_data": 0.5},
    "all": {"normalize_weight": 0.1, "normalize_bias": 0.05, "normalize_data": 0.3},
    "far away": {"normalize_weight": 1e6, "normalize_bias": 1e6, "normalize_data": 1e6},
}


def gradients(y, layer, x, upstream):
    wanted = [x, *layer.parameters()]
    return torch.autograd.grad(y, wanted, upstream)


def assert_same(layer, x, expected):
    """Equal outputs and gradients; both sides do the same float64 operations, so to the last bit."""
    y = layer(x)
    assert torch.equal(y, expected)
    upstream = draw(*y.shape, seed=9)
    for found, wanted in zip(gradients(y, layer, x, upstream), gradients(expected, layer, x, upstream), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize(("kind", "function", "sizes", "options", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_convolutions(kind, function, sizes, options, shape, limits, is_training):
    layer = kind(*sizes, **options, **limits, dtype=torch.float64).train(is_training)
    x = draw(*shape, spread=2).requires_grad_()
    arguments = {k: v for k, v in options.items() if k != "bias"}
    weight = within(layer.weight, limits.get("normalize_weight"))
    bias = within(layer.bias, limits.get("normalize_bias"))
    assert_same(layer, x, within(function(x, weight, bias, **arguments), limits.get("normalize_data")))


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_linear(limits, bias):
    layer = NormalizeLinear(6, 4, bias=bias, **limits, dtype=torch.float64)
    x = draw(3, 5, 6, spread=2).requires_grad_()
    weight = within(layer.weight, limits.get("normalize_weight"))
    product = F.linear(x, weight, within(layer.bias, limits.get("normalize_bias")))
    assert_same(layer, x, within(product, limits.get("normalize_data")))


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}], ids=str)
def test_layer_norm(limits, options):
    layer = NormalizeLayerNorm([3, 4], **options, **limits, dtype=torch.float64)
    for seed, parameter in enumerate(layer.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
    x = draw(5, 3, 4, spread=2).requires_grad_()
    mean, var = x.mean((1, 2), keepdim=True), x.var((1, 2), keepdim=True, unbiased=False)
    expected = (x - mean) / torch.sqrt(var + 1e-5)
    if layer.weight is not None:
        expected = expected * within(layer.weight, limits.get("normalize_weight"))
    if layer.bias is not None:
        expected = expected + within(layer.bias, limits.get("normalize_bias"))
    # float64: some ten roundings of 2^-53 of numbers below 10
    torch.testing.assert_close(layer(x), within(expected, limits.get("normalize_data")), rtol=0, atol=1e-13)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding_is_a_look_up_in_the_limited_table(options):
    layer = NormalizeEmbedding(7, 5, **options, normalize_weight=0.3, normalize_data=0.2, dtype=torch.float64)
    indices = torch.tensor([[1, 6, 1], [0, 2, 6]])
    y = layer(indices)
    table = within(within(layer.weight, 0.3), 0.2)  # max_norm has changed the rows by now
    assert torch.equal(y, table[indices])
    upstream = draw(*y.shape)
    expected = nn.Embedding(7, 5, **options, dtype=torch.float64, _weight=table.detach().clone())
    (wanted,) = torch.autograd.grad(expected(indices), expected.weight, upstream)
    (found,) = torch.autograd.grad(y, layer.weight, upstream)
    assert torch.equal(found, torch.where(layer.weight.abs() <= 0.2, wanted, 0.0))


def test_a_sparse_embedding_keeps_its_sparse_gradient():
    layer = NormalizeEmbedding(100, 3, sparse=True, normalize_weight=0.5)
    layer(torch.tensor([7, 9])).sum().backward()
    assert layer.weight.grad.is_sparse
    assert layer.weight.grad.coalesce().indices().tolist() == [[7, 9]]


def test_an_embedding_has_no_limit_for_a_bias():
    layer = NormalizeEmbedding(3, 2)
    layer.limit_to(Limits(1.0, 2.0, 3.0))
    assert limits_of(layer) == Limits(weight=1.0, output=3.0)
    with pytest.raises(UsageError, match="an embedding has no bias"):
        NormalizeEmbedding(3, 2, normalize_bias=1)


def test_a_transposed_convolution_takes_an_output_size():
    layer = NormalizeConvTranspose2d(2, 3, 3, stride=2, normalize_weight=0.05)
    plain = nn.ConvTranspose2d(2, 3, 3, stride=2)
    plain.load_state_dict({"weight": within(layer.weight.detach(), 0.05), "bias": layer.bias.detach()})
    x = torch.randn(1, 2, 4, 4)
    assert layer(x, [10, 9]).shape == (1, 3, 10, 9)
    assert torch.equal(layer(x, output_size=[10, 9]), plain(x, output_size=[10, 9]))


def test_convolving_with_other_parameters():
    x = draw(2, 4, 5, 5)
    for conv in (nn.Conv2d(4, 6, 3, padding=1), nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1)):
        conv.double()
        other = copy.deepcopy(conv)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(2)
        assert torch.equal(convolve(conv, x, other.weight, other.bias), other(x))


# -- what callers rely on ------------------------------------------------------------------------------------------

MADE = {
    "conv1d": (lambda **o: NormalizeConv1d(3, 4, 3, **o), torch.ones(1, 3, 5)),
    "conv2d": (lambda **o: NormalizeConv2d(3, 4, 3, **o), torch.ones(1, 3, 5, 5)),
    "transposed": (lambda **o: NormalizeConvTranspose2d(3, 4, 3, **o), torch.ones(1, 3, 5, 5)),
    "linear": (lambda **o: NormalizeLinear(3, 4, **o), torch.ones(2, 3)),
    "layer norm": (lambda **o: NormalizeLayerNorm(3, **o), torch.ones(2, 3)),
    "embedding": (lambda **o: NormalizeEmbedding(3, 4, **o), torch.tensor([0, 2])),
}
each = pytest.mark.parametrize(("make", "x"), MADE.values(), ids=MADE.keys())


@each
def test_input_may_be_given_by_name(make, x):
    layer = make(normalize_weight=0.1)
    assert torch.equal(layer(input=x), layer(x))


@each
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_compute_the_same(make, x, clone):
    layer = make(normalize_weight=0.1, normalize_data=0.2)
    assert torch.equal(clone(layer)(x), layer(x))


@each
def test_state_is_that_of_the_torch_layer(make, x):
    layer = make(normalize_weight=0.1)
    (plain,) = [kind for kind in type(layer).__mro__ if kind in NORMALIZED]
    assert isinstance(layer, NORMALIZED[plain])
    assert {"weight"} <= set(layer.state_dict()) <= {"weight", "bias"}


@each
def test_marks_are_taken(make, x):
    assert getattr(make(ahead_relu=True, ahead_sigmoid=True), AHEAD_RELU) is True
