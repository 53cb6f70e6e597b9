"""normalize_layers, normalize_module, disable_normalize: which layers get which limits, and what stays as it was."""

import copy
import inspect
import logging
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from linger import (
    NormalizeBatchNorm2d,
    NormalizeConv1d,
    NormalizeConv2d,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTranspose2d,
    NormalizeConvTransposeBN2d,
    NormalizeEmbedding,
    NormalizeFastGRU,
    NormalizeFastLSTM,
    NormalizeLayerNorm,
    NormalizeLinear,
    disable_normalize,
    init,
    normalize_layers,
    normalize_module,
    trace_layers,
)
from linger.errors import UsageError
from tests.support.constraint import DEFAULT_TYPES, LIMITS, NormalizeBatchNorm1d
from tests.support.models import SmallNet, settle
from tests.support.quantization import ConvBN, Limits, NormalizeBatchNorm3d, Normalized, limits_of
from tests.support.wired import Wired, image

DEFAULT = Limits(weight=8.0, output=8.0)


class Zoo(nn.Module):
    """One layer of every kind."""

    def __init__(self):
        super().__init__()
        self.conv1d = nn.Conv1d(2, 2, 1)
        self.conv2d = nn.Conv2d(2, 2, 1)
        self.transposed = nn.ConvTranspose2d(2, 2, 1)
        self.linear = nn.Linear(2, 2)
        self.bn1d = nn.BatchNorm1d(2)
        self.bn2d = nn.BatchNorm2d(2)
        self.bn3d = nn.BatchNorm3d(2)
        self.lstm = nn.LSTM(2, 2)
        self.gru = nn.GRU(2, 2)
        self.pair = NormalizeConvBN2d(2, 2, 1)
        self.embedding = nn.Embedding(2, 2)
        self.layer_norm = nn.LayerNorm(2)
        self.group_norm = nn.GroupNorm(1, 2)
        self.conv3d = nn.Conv3d(2, 2, 1)
        self.rnn = nn.RNN(2, 2)


MADE = {
    "conv1d": NormalizeConv1d,
    "conv2d": NormalizeConv2d,
    "transposed": NormalizeConvTranspose2d,
    "linear": NormalizeLinear,
    "bn2d": NormalizeBatchNorm2d,
    "lstm": NormalizeFastLSTM,
    "gru": NormalizeFastGRU,
    "pair": NormalizeConvBN2d,
}
ON_REQUEST = {
    "bn1d": NormalizeBatchNorm1d,
    "bn3d": NormalizeBatchNorm3d,
    "embedding": NormalizeEmbedding,
    "layer_norm": NormalizeLayerNorm,
}


def limited(model):
    return {path: limits_of(m) for path, m in model.named_modules() if limits_of(m).is_any}


# -- normalize_layers ---------------------------------------------------------------------------------------------------


def test_default_types_and_values():
    model = Zoo()
    assert normalize_layers(model) is model
    assert limited(model) == dict.fromkeys(MADE, DEFAULT)
    assert {name: type(getattr(model, name)) for name in MADE} == MADE
    assert not isinstance(model.layer_norm, Normalized)


def test_documented_signatures():
    def defaults(function):
        return {n: p.default for n, p in inspect.signature(function).parameters.items() if p.default is not p.empty}

    values = ["normalize_weight_value", "normalize_bias_value", "normalize_output_value"]
    assert defaults(normalize_layers) == {"normalize_modules": DEFAULT_TYPES} | dict(
        zip(values, (8, None, 8), strict=True)
    )
    assert defaults(normalize_module) == {"type_modules": DEFAULT_TYPES} | dict(zip(values, (8, 8, None), strict=True))
    pairs = {NormalizeConvBN1d, NormalizeConvBN2d, NormalizeConvTransposeBN2d}
    torchs = {nn.Conv2d, nn.Linear, nn.ConvTranspose2d, nn.Conv1d, nn.BatchNorm2d, nn.GRU, nn.LSTM}
    assert set(DEFAULT_TYPES) == torchs | pairs


@pytest.mark.parametrize("name", [*MADE, *ON_REQUEST])
def test_a_single_type_can_be_chosen(name):
    model = Zoo()
    kind = type(getattr(model, name))
    normalize_layers(model, normalize_modules=[kind], normalize_weight_value=3, normalize_output_value=None)
    expected = {"pair"} if name == "conv2d" else set()  # a pair counts as its convolution
    assert limited(model) == dict.fromkeys({name} | expected, Limits(weight=3.0))
    assert isinstance(getattr(model, name), (MADE | ON_REQUEST)[name])


def test_one_type_need_not_be_in_a_list_and_none_means_the_default():
    assert set(limited(normalize_layers(Zoo(), normalize_modules=nn.GRU))) == {"gru"}
    assert set(limited(normalize_layers(Zoo(), normalize_modules=None))) == set(MADE)
    assert limited(normalize_layers(Zoo(), normalize_modules=[])) == {}


def test_no_value_limits_nothing_and_replaces_nothing():
    model = normalize_layers(Zoo(), normalize_weight_value=None, normalize_output_value=None)
    assert limited(model) == {}
    assert type(model.linear) is nn.Linear


def test_names_parameters_and_an_optimizer_made_before_stay():
    model = Zoo()
    before, keys = dict(model.named_parameters()), list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    normalize_layers(model, normalize_modules=[*DEFAULT_TYPES, nn.Embedding, nn.LayerNorm])
    assert list(model.state_dict()) == keys
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    model.linear(torch.ones(1, 2)).sum().backward()
    weight = model.linear.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.linear.weight, weight)


def test_modes_gradients_devices_hooks_and_attributes_stay():
    model = nn.Sequential(nn.Conv2d(2, 2, 1, device="meta"), nn.Linear(2, 2).eval(), nn.BatchNorm2d(2))
    model[1].weight.requires_grad_(requires_grad=False)
    model[1].note = "mine"
    seen = []
    model[1].register_forward_pre_hook(lambda module, args: seen.append(type(module)))
    normalize_layers(model)
    assert [m.training for m in model] == [True, False, True]
    assert model[0].weight.is_meta
    assert not model[1].weight.requires_grad
    assert model[1].note == "mine"
    model[1](torch.ones(1, 2))
    assert seen == [NormalizeLinear]


def test_shared_modules_and_shared_parameters_stay_shared():
    shared = nn.Linear(3, 3)
    tied = nn.Linear(3, 3)
    tied.weight = shared.weight
    model = normalize_layers(nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared), tied))
    assert isinstance(model[0], NormalizeLinear)
    assert model[0] is model[2][0]
    assert model[3].weight is model[0].weight
    assert len(list(model.parameters())) == 3


def test_a_model_that_is_one_layer_is_replaced_and_returned():
    layer = nn.Linear(2, 2)
    made = normalize_layers(layer)
    assert isinstance(made, NormalizeLinear)
    assert made.weight is layer.weight


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_keep_limits_and_marks(clone):
    model = Zoo()
    normalize_module(model.linear, normalize_weight_value=2)
    again = clone(normalize_layers(model))
    assert limited(again) == limited(model)
    assert LIMITS.of(again.linear) == LIMITS.of(model.linear)


class Renamed(nn.Conv2d):
    """The same computation under another name."""


class Doubled(nn.Conv2d):
    """Computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_subclasses_count_unless_they_compute_something_else(caplog):
    model = nn.Sequential(Renamed(2, 2, 1), Doubled(2, 2, 1))
    with caplog.at_level(logging.WARNING):
        normalize_layers(model)
    assert isinstance(model[0], NormalizeConv2d)
    assert type(model[1]) is Doubled
    assert caplog.messages == ["1 (Doubled) stays without limits: it overrides forward"]


def test_layers_whose_weight_is_not_their_own_stay(caplog):
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(2, 2)), nn.LazyLinear(2), nn.MultiheadAttention(2, 1), nn.Linear(2, 2)
    )
    with caplog.at_level(logging.WARNING):
        normalize_layers(model)
    assert set(limited(model)) == {"3"}
    assert [m.partition(" stays without limits: ")[2] for m in caplog.messages] == [
        "its weight is computed by a parametrization",
        "its parameters have no shape yet; run the model once first",
        "MultiheadAttention reads its weights itself",
    ]


def test_evaluation_of_a_transformer_layer_has_the_limits_of_training():
    # in evaluation torch computes such a layer from its children's weights, without calling them
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    x = 10 * torch.randn(2, 3, 4)
    normalize_layers(layer, normalize_weight_value=0.1)
    with torch.no_grad():
        # float32: some hundred roundings of 2^-24 of numbers below 20
        torch.testing.assert_close(layer.eval()(x), layer.train()(x), rtol=0, atol=1e-4)


def test_a_second_call_reaches_only_what_has_no_limits_yet():
    model = Zoo()
    normalize_layers(model, normalize_modules=[nn.Linear], normalize_weight_value=1)
    linear = model.linear
    normalize_layers(model, normalize_weight_value=2)
    assert model.linear is linear
    assert limited(model)["linear"] == Limits(weight=1.0, output=8.0)
    assert limited(model)["conv2d"] == Limits(weight=2.0, output=8.0)
    before = limited(model)
    normalize_layers(model, normalize_weight_value=3, normalize_bias_value=3)
    assert limited(model) == before


def test_a_normalize_layer_without_limits_gets_them_and_one_with_limits_keeps_them():
    model = nn.Sequential(NormalizeLinear(2, 2), NormalizeLinear(2, 2, normalize_bias=1))
    first = model[0]
    normalize_layers(model)
    assert model[0] is first
    assert limited(model) == {"0": DEFAULT, "1": Limits(bias=1.0)}


# -- fused pairs -----------------------------------------------------------------------------------------------------------


def pair_of(*, first, **options):
    """conv and bn after trace_layers and normalize_layers, in either order."""
    model = settle(Wired(lambda m, x: m.bn(m.conv(x)))).eval()
    for prepare in options.pop("marks", ()):
        prepare(model)
    steps = [lambda: trace_layers(model, image()), lambda: normalize_layers(model, **options)]
    for step in steps if first == "trace" else reversed(steps):
        step()
    assert isinstance(model.conv, NormalizeConvBN2d)
    assert not limits_of(model.conv.conv).is_any
    assert not limits_of(model.conv.bn).is_any
    return limits_of(model.conv)


CASES = {
    "defaults": ({}, DEFAULT),
    "convolutions only": ({"normalize_modules": [nn.Conv2d]}, DEFAULT),
    "batch norms only": ({"normalize_modules": [nn.BatchNorm2d]}, Limits(output=8.0)),
    "linear only": ({"normalize_modules": [nn.Linear]}, Limits()),
    "a mark for the convolution": (
        {"marks": [lambda m: normalize_module(m.conv, None, 1, 2, 3)]},
        Limits(1.0, 2.0, 8.0),
    ),
    "a mark for the batch norm": (
        {"marks": [lambda m: normalize_module(m.bn, None, 1, 2, 3)]},
        Limits(8.0, None, 3.0),
    ),
    "no output limit for the batch norm": (
        {"marks": [lambda m: normalize_module(m.conv, None, 1, 2, 3), lambda m: disable_normalize(m.bn)]},
        Limits(1.0, 2.0, 3.0),
    ),
    "no limits for the convolution": ({"marks": [lambda m: disable_normalize(m.conv)]}, Limits(output=8.0)),
    "no limits at all": ({"marks": [disable_normalize]}, Limits()),
}


@pytest.mark.parametrize(("options", "expected"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("first", ["trace", "normalize"])
def test_a_pair_has_the_same_limits_in_either_order(options, expected, first):
    assert pair_of(first=first, **copy.copy(options)) == expected


def test_a_pair_can_be_chosen_by_its_own_type():
    model = trace_layers(Wired(lambda m, x: m.fc(m.bn(m.conv(x)).flatten(1)[:, :4])), image())
    normalize_layers(model, normalize_modules=[NormalizeConvBN2d])
    assert limited(model) == {"conv": DEFAULT}


def test_a_mark_for_a_pair_beats_those_for_its_parts():
    model = Wired(lambda m, x: m.bn(m.conv(x)))
    normalize_module(model, normalize_weight_value=1)
    trace_layers(model, image())
    normalize_module(model.conv, normalize_weight_value=2, normalize_bias_value=None)
    normalize_layers(model)
    assert limits_of(model.conv) == Limits(weight=2.0)


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_both_orders_compute_the_same(is_training):
    x = torch.randn(4, 1, 8, 8)
    results = []
    for order in ("trace", "normalize"):
        torch.manual_seed(1)
        model = settle(SmallNet())
        options = {"normalize_weight_value": 0.2, "normalize_bias_value": 0.5, "normalize_output_value": 1.5}
        if order == "trace":
            normalize_layers(trace_layers(model, x), **options)
        else:
            trace_layers(normalize_layers(model, **options), x)
        torch.manual_seed(2)  # dropout
        results.append(model.train(is_training)(x))
    assert torch.equal(*results)


# -- normalize_module ------------------------------------------------------------------------------------------------------


def test_a_mark_is_for_the_module_and_what_is_inside():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    assert normalize_module(model[1], normalize_weight_value=2) is model[1]
    assert limited(model) == {}
    assert LIMITS.of(model[1][1]) is None  # not one of the default types
    normalize_layers(model)
    assert limited(model) == {"0": DEFAULT, "1.0": Limits(2.0, 8.0, None)}


def test_a_mark_counts_whatever_types_are_normalized():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2))
    normalize_module(model[0], [nn.Embedding], 2, None, 4)
    normalize_layers(model, normalize_modules=[nn.Conv2d])
    assert limited(model) == {"0": Limits(2.0, None, 4.0)}


def test_a_mark_can_be_written_inline():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = disable_normalize(nn.Linear(2, 2))
            self.chosen = normalize_module(nn.Linear(2, 2), None, 1, None, 2)
            self.other = nn.Linear(2, 2)

    assert limited(normalize_layers(Net())) == {"chosen": Limits(1.0, None, 2.0), "other": DEFAULT}


def test_layers_with_limits_get_new_ones_at_once():
    model = normalize_layers(Zoo())
    normalize_module(model, [nn.Linear, NormalizeConvBN2d], 1, 2, 3)
    assert limited(model) == dict.fromkeys(MADE, DEFAULT) | dict.fromkeys(["linear", "pair"], Limits(1.0, 2.0, 3.0))


def test_later_marks_replace_earlier_ones():
    model = nn.Sequential(nn.Linear(2, 2))
    disable_normalize(model)
    normalize_module(model, normalize_weight_value=3)
    normalize_layers(model)
    assert limited(model) == {"0": Limits(3.0, 8.0, None)}


# -- disable_normalize -------------------------------------------------------------------------------------------------------


def test_disabled_parts_have_no_limits_before_and_after():
    model = Zoo()
    assert disable_normalize(model.lstm) is model.lstm
    normalize_layers(model)
    assert "lstm" not in limited(model)
    assert type(model.lstm) is nn.LSTM
    disable_normalize(model)
    assert limited(model) == {}
    assert limited(normalize_layers(model)) == {}
    x = torch.randn(2, 2, 1, 1)
    plain = nn.Conv2d(2, 2, 1)
    plain.load_state_dict(model.conv2d.state_dict())
    assert torch.equal(model.conv2d(1e9 * x), plain(1e9 * x))


# -- wrong calls -------------------------------------------------------------------------------------------------------------

VALUES = {
    "normalize_layers": normalize_layers,
    "normalize_module": normalize_module,
}


@pytest.mark.parametrize("name", VALUES)
def test_every_wrong_value_is_named_and_nothing_changes(name):
    model = Zoo()
    before = str(model)
    with pytest.raises(UsageError) as caught:
        VALUES[name](model, normalize_weight_value=0, normalize_bias_value=math.inf, normalize_output_value=-8)
    assert str(caught.value).startswith(
        f"{name}: normalize_weight_value=0, normalize_bias_value=inf, normalize_output_value=-8 cannot be a limit."
    )
    assert str(model) == before
    assert all(LIMITS.of(m) is None for m in model.modules())


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda m, t: normalize_layers(m, normalize_modules=t), "normalize_layers: normalize_modules"),
        (normalize_module, "normalize_module: type_modules"),
    ],
    ids=["layers", "module"],
)
def test_every_unsupported_type_is_named_with_the_supported_ones(call, start):
    model = Zoo()
    with pytest.raises(UsageError) as caught:
        call(model, [nn.Linear, nn.Conv3d, "Linear", nn.RNN])
    message = str(caught.value)
    assert message.startswith(f"{start}: Conv3d, 'Linear', RNN cannot be normalized. Supported types: Conv1d, Conv2d, ")
    assert all(name in message for name in ("LSTM", "Embedding", "NormalizeConvTransposeBN2d"))
    assert limited(model) == {}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(normalize_layers, id="normalize_layers"),
        pytest.param(normalize_module, id="normalize_module"),
        pytest.param(disable_normalize, id="disable_normalize"),
        pytest.param(lambda m: trace_layers(m, torch.randn(1, 1, 8, 8)), id="trace_layers"),
    ],
)
def test_after_init_the_right_order_is_named(call, request):
    model = init(SmallNet())
    name = request.node.callspec.id
    before = str(model)
    with pytest.raises(
        UsageError, match=f"^{name}: SmallNet is quantized.* trace_layers, then normalize_layers, then init"
    ):
        call(model)
    assert str(model) == before


def test_default_types_are_layers_or_pairs():
    assert all(issubclass(kind, (nn.Module, ConvBN)) for kind in DEFAULT_TYPES)
