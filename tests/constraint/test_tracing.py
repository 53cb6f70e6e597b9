"""trace_layers: what is fused, what is marked, and what stays as it was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from linger import (
    EmptyBatchNorm,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTransposeBN2d,
    init,
    normalize_layers,
    trace_layers,
)
from linger.errors import UsageError
from tests.support.constraint import AHEAD_RELU, replace_everywhere
from tests.support.models import SmallNet, settle
from tests.support.quantization import ConvBN, limits_of
from tests.support.wired import Wired, image

pytestmark = pytest.mark.filterwarnings("ignore:trace_layers")  # test_fusion has what it says


def fused(model):
    return {path for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, ConvBN)}


def ahead_of_relu(model):
    """Marked layers; the parts of a fused pair are not counted."""
    marked = {path for path, module in model.named_modules() if getattr(module, AHEAD_RELU, False)}
    return {path for path in marked if path.rpartition(".")[0] not in marked}


class Doubled(nn.Conv2d):
    """A convolution that folding would get wrong."""

    def forward(self, x):
        return 2 * super().forward(x)


def with_conv(layer, forward):
    model = Wired(forward)
    model.conv = layer
    return model


def chain(m, x):
    return m.bn(m.conv(x))


FUSED = {
    "chain": (Wired(chain), {"conv"}),
    "two chains": (Wired(lambda m, x: m.bn2(m.conv2(m.bn(m.conv(x))))), {"conv", "conv2"}),
    "relu between the chains": (Wired(lambda m, x: m.bn2(m.conv2(F.relu(m.bn(m.conv(x)))))), {"conv", "conv2"}),
    "shared by two calls of both": (Wired(lambda m, x: m.bn(m.conv(x)) + m.bn(m.conv(2 * x))), {"conv"}),
    "two consumers": (Wired(lambda m, x: (lambda h: m.bn(h) + h)(m.conv(x))), set()),
    "two batch norms": (Wired(lambda m, x: (lambda h: m.bn(h) + m.bn2(h))(m.conv(x))), set()),
    "convolution returned": (Wired(lambda m, x: (lambda h: (m.bn(h), h))(m.conv(x))), set()),
    "convolution returned in a dict": (Wired(lambda m, x: (lambda h: {"y": m.bn(h), "h": h})(m.conv(x))), set()),
    "shared convolution": (Wired(lambda m, x: m.bn(m.conv(x)) + m.bn2(m.conv(x))), set()),
    "shared convolution, once alone": (Wired(lambda m, x: m.bn(m.conv(x)) + m.conv(x)), set()),
    "shared batch norm": (Wired(lambda m, x: m.bn(m.conv2(m.bn(m.conv(x))))), set()),
    "relu between": (Wired(lambda m, x: m.bn(F.relu(m.conv(x)))), set()),
    "slice between": (Wired(lambda m, x: m.bn(m.conv(x)[:, :, 1:])), set()),
    "batch norm by keyword": (Wired(lambda m, x: m.bn(input=m.conv(x))), set()),
    "subclass": (with_conv(type("Renamed", (nn.Conv2d,), {})(3, 4, 3), chain), {"conv"}),
    "subclass with a forward of its own": (with_conv(Doubled(3, 4, 3), chain), set()),
    "reflecting padding": (with_conv(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), chain), set()),
}


@pytest.mark.parametrize(("model", "expected"), FUSED.values(), ids=FUSED.keys())
def test_a_pair_is_fused_only_when_nothing_else_sees_the_convolution(model, expected):
    model, x = settle(copy.deepcopy(model)).double().eval(), image().double()
    before = tree_leaves(model(x))
    trace_layers(model, model, x)
    assert fused(model) == expected
    assert len([m for m in model.modules() if isinstance(m, EmptyBatchNorm)]) == len(expected)
    # float64: folding moves the last bits only, some 150 roundings of 2^-53 of numbers below 100
    for old, new in zip(before, tree_leaves(model(x)), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=1e-11)


def test_batch_norm_without_statistics_is_not_fused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    assert fused(trace_layers(model, model, image())) == set()


def test_one_dimensional_pair_is_fused():
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)).double()
    model(torch.randn(20, 3, 9).double() + 1)  # statistics that matter
    x = torch.randn(2, 3, 9).double()
    before = model.eval()(x)
    assert fused(trace_layers(model, model, x)) == {"0"}
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-11)  # as above


TRANSPOSED = {
    "plain": {},
    "two groups": {"groups": 2},
    "padded and dilated": {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2, "groups": 2, "bias": False},
}


@pytest.mark.parametrize("options", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_a_transposed_pair_is_fused(options):
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, **options), settle(nn.BatchNorm2d(6))).double().eval()
    x = torch.randn(2, 4, 5, 6).double()
    before = model(x)
    trace_layers(model, x)
    assert type(model[0]) is NormalizeConvTransposeBN2d
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-11)  # as above


def test_a_transposed_pair_that_is_given_an_output_size():
    model = Wired(lambda m, x: m.bn(m.conv(x, output_size=[14, 13])))
    model.conv = nn.ConvTranspose2d(3, 4, 3, stride=2)
    settle(model).double().eval()
    x = image().double()
    before = model(x)
    assert fused(trace_layers(model, x)) == {"conv"}
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-11)  # as above
    assert model.train()(x).shape == before.shape == (2, 4, 14, 13)


def test_kinds_of_pairs():
    one = trace_layers(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), torch.randn(2, 3, 9))
    two = trace_layers(Wired(chain), image())
    assert type(one[0]) is NormalizeConvBN1d
    assert type(two.conv) is NormalizeConvBN2d


NORMALIZED = {
    "1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), torch.randn(2, 3, 9)),
    "2d": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), image()),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), image()),
}


@pytest.mark.parametrize(("make", "x"), NORMALIZED.values(), ids=NORMALIZED.keys())
@pytest.mark.parametrize("kinds", [None, [nn.BatchNorm1d, nn.BatchNorm2d]], ids=["both", "batch norm only"])
def test_layers_within_limits_are_fused_and_marked_too(make, x, kinds):
    model = normalize_layers(make(), normalize_modules=kinds, normalize_weight_value=0.5, normalize_output_value=0.25)
    assert any(limits_of(m).is_any for m in model)
    trace_layers(model, x)
    assert fused(model) == {"0"}
    assert isinstance(model[1], EmptyBatchNorm)
    assert limits_of(model[0]).output == 0.25
    assert ahead_of_relu(model) == {"0"}
    assert model(x).max() <= 0.25


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (lambda m, x: F.relu(m.conv(x)), {"conv"}),
        (lambda m, x: F.relu(m.fc(x[:, :1, :4, :4])), {"fc"}),
        (lambda m, x: F.relu(m.bn(F.relu6(m.conv(x)))), {"bn"}),
    ],
    ids=["convolution", "linear", "batch norm"],
)
def test_relu_after_layers_within_limits_is_seen(forward, expected):
    model = normalize_layers(Wired(forward))
    trace_layers(model, image())
    assert ahead_of_relu(model) == expected


class DoubledWithinLimits(Doubled):
    """A subclass of a subclass."""


@pytest.mark.parametrize("kind", [Doubled, DoubledWithinLimits])
def test_a_forward_of_its_own_is_not_fused_after_normalize_layers_either(kind):
    model = normalize_layers(with_conv(kind(3, 4, 3), chain))
    assert fused(trace_layers(model, image())) == set()


def test_relu_after_a_pair_made_by_hand_is_seen():
    model = nn.Sequential(NormalizeConvBN2d(3, 4, 3), nn.ReLU())
    assert ahead_of_relu(trace_layers(model, image())) == {"0"}
    assert fused(model) == {"0"}


def test_fusion_can_be_switched_off():
    model = Wired(lambda m, x: F.relu(m.bn(m.conv(x))))
    assert fused(trace_layers(model, model, image(), fuse_bn=False)) == set()
    assert ahead_of_relu(model) == {"bn"}


def test_training_afterwards_is_bit_for_bit_the_same():
    model = settle(SmallNet()).train()
    reference = copy.deepcopy(model)
    trace_layers(model, model, torch.randn(2, 1, 8, 8))
    assert fused(model) == {"stem", "block.conv1", "block.conv2"}
    for seed in range(3):
        x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)  # dropout
        found = model(x)
        torch.manual_seed(seed)
        assert torch.equal(found, reference(x))
    for name, buffer in reference.bn.named_buffers():
        assert torch.equal(buffer, getattr(model.stem.bn, name))
    assert model.stem.bn.num_batches_tracked == 3


def test_parameters_are_the_same_objects():
    model = Wired(chain)
    conv, bn = model.conv, model.bn
    trace_layers(model, model, image())
    assert model.conv.conv is conv
    assert model.conv.bn is bn


RELUS = {
    "F.relu": lambda m, h: F.relu(h),
    "F.relu in place": lambda m, h: F.relu(h, inplace=True),
    "F.relu in place, by position": lambda m, h: F.relu(h, True),
    "F.relu_": lambda m, h: F.relu_(h),
    "torch.relu": lambda m, h: torch.relu(h),
    "torch.relu_": lambda m, h: torch.relu_(h),
    "method": lambda m, h: h.relu(),
    "method in place": lambda m, h: h.relu_(),
    "layer": lambda m, h: m.relu(h),
    "layer in place": lambda m, h: m.relu_in_place(h),
}
PLACES = {
    "convolution": (lambda relu: lambda m, x: relu(m, m.conv(x)), {"conv"}),
    "convolution and batch norm": (lambda relu: lambda m, x: relu(m, m.bn(m.conv(x))), {"conv"}),
    "linear": (lambda relu: lambda m, x: relu(m, m.fc(x[:, :1, :4, :4])), {"fc"}),
}


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS.keys())
@pytest.mark.parametrize(("place", "expected"), PLACES.values(), ids=PLACES.keys())
def test_every_spelling_of_relu_is_seen(place, expected, relu):
    model = Wired(place(relu))
    trace_layers(model, model, image())
    assert ahead_of_relu(model) == expected
    marked = {path for path, layer in init(model).named_modules() if getattr(layer, "is_ahead_of_relu", False)}
    assert marked == expected


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda m, x: (lambda h: F.relu(h) + h)(m.conv(x)), id="two consumers"),
        pytest.param(lambda m, x: (lambda h: (F.relu(h), h))(m.conv(x)), id="returned too"),
        pytest.param(lambda m, x: F.relu(m.conv(x)) + torch.sigmoid(m.conv(2 * x)), id="another call without"),
        pytest.param(lambda m, x: F.relu6(m.conv(x)), id="relu6"),
        pytest.param(lambda m, x: F.leaky_relu(m.conv(x)), id="leaky relu"),
        pytest.param(lambda m, x: F.relu(m.conv(x) + 1), id="a sum between"),
        pytest.param(lambda m, x: F.relu(m.conv(x).flatten(1)), id="a view between"),
    ],
)
def test_a_layer_that_others_see_is_not_marked(forward):
    model = Wired(forward)
    assert ahead_of_relu(trace_layers(model, model, image())) == set()


@pytest.mark.parametrize(
    ("option", "forward", "expected"),
    [
        ("ahead_conv_relu", lambda m, x: F.relu(m.conv(x)), {"conv"}),
        ("ahead_linear_relu", lambda m, x: F.relu(m.fc(x[:, :1, :4, :4])), {"fc"}),
        ("ahead_bn_relu", lambda m, x: F.relu(m.bn(F.relu6(m.conv(x)))), {"bn"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("is_wanted", [True, False])
def test_marking_can_be_switched_off(option, forward, expected, is_wanted):
    model = Wired(forward)
    trace_layers(model, model, image(), **{option: is_wanted})
    assert ahead_of_relu(model) == (expected if is_wanted else set())


def test_options_for_sigmoid_are_accepted_and_change_nothing():
    model = Wired(lambda m, x: torch.sigmoid(m.conv(x)))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trace_layers(model, model, image(), ahead_conv_sigmoid=True, ahead_linear_sigmoid=False)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda m, x: trace_layers(m, m, x), id="root and target"),
        pytest.param(trace_layers, id="model alone"),
    ],
)
def test_both_call_forms_return_the_root(call):
    model = Wired(chain)
    assert call(model, image()) is model
    assert fused(model) == {"conv"}


def test_several_inputs():
    model = Wired(lambda m, x, y: m.bn(m.conv(x)) + m.bn2(m.conv2(m.conv(y))))
    trace_layers(model, image(), image(seed=2))
    assert fused(model) == {"conv2"}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Wired(chain)
        self.second = nn.ModuleList([nn.Identity(), Wired(chain)])

    def forward(self, x):
        return self.first(x) + self.second[1](x)


def test_a_part_as_target_leaves_the_rest():
    model = Outer()
    assert trace_layers(model, model.second[1], image()) is model
    assert fused(model) == {"second.1.conv"}
    trace_layers(model, model.first, image())
    assert fused(model) == {"first.conv", "second.1.conv"}


def test_a_second_call_changes_nothing():
    model = settle(SmallNet()).eval()
    x = torch.randn(2, 1, 8, 8)
    trace_layers(model, x)
    before, output = {k: v.clone() for k, v in model.state_dict().items()}, model(x)
    marked, joined = ahead_of_relu(model), fused(model)
    trace_layers(model, x)
    assert torch.equal(model(x), output)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert (ahead_of_relu(model), fused(model)) == (marked, joined)


def test_a_module_with_two_names_keeps_both():
    model = Wired(chain)
    model.alias, model.alias_bn = model.conv, model.bn
    trace_layers(model, image())
    assert fused(model) == {"conv", "alias"}
    assert model.alias is model.conv
    assert model.alias_bn is model.bn


def test_modes_are_kept_module_by_module():
    model = Wired(lambda m, x: m.bn2(m.conv2(m.bn(m.conv(x))))).train()
    model.bn.eval()  # frozen
    model.conv2.eval()
    trace_layers(model, image())
    assert (model.conv.training, model.conv.conv.training, model.conv.bn.training) == (True, True, False)
    assert (model.conv2.training, model.conv2.bn.training) == (False, True)
    assert model.training


def test_statistics_random_state_and_hooks_are_as_before():
    model = settle(SmallNet()).train()
    statistics = [b.clone() for _, b in model.named_buffers()]
    random_state = torch.get_rng_state()
    trace_layers(model, torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert sorted(map(str, statistics)) == sorted(str(b) for _, b in model.named_buffers())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("call", "match"),
    [
        pytest.param(
            lambda m: trace_layers(m, nn.Linear(2, 2), image()),
            r"the target \(Linear\) is no part of the root \(Wired\)",
            id="foreign target",
        ),
        pytest.param(lambda m: trace_layers(m, m), "an example input is missing", id="no input"),
        pytest.param(trace_layers, "an example input is missing", id="nothing at all"),
        pytest.param(lambda m: trace_layers(m, torch.zeros(1, 7, 6, 6)), r"\(1, 7, 6, 6\)", id="wrong input"),
        pytest.param(lambda m: trace_layers(m, "image"), "str is no batch", id="no tensor"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_changes_nothing(call, match):
    model = Wired(chain).train()
    before = str(model)
    with pytest.raises(UsageError, match=match) as caught:
        call(model)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert str(model) == before
    assert all(m.training for m in model.modules())


def test_traced_model_can_be_copied():
    model = settle(SmallNet()).eval()
    x = torch.randn(2, 1, 8, 8)
    trace_layers(model, x)
    clone = copy.deepcopy(model)
    assert torch.equal(clone(x), model(x))
    clone.load_state_dict(settle(SmallNet()).state_dict())  # the copy's hooks know float checkpoints too
    assert not torch.equal(clone(x), model(x))


def test_replacing_reaches_every_name():
    shared, other = nn.Linear(2, 2), nn.Identity()
    model = nn.Sequential(shared, nn.Sequential(shared), nn.ReLU())
    replace_everywhere(model, {shared: other})
    assert model[0] is model[1][0] is other
    assert isinstance(model[2], nn.ReLU)


def test_the_target_may_be_named():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    assert fused(trace_layers(model, image(), target_model=model[0])) == {"0.0"}
    assert fused(trace_layers(model, image(), target_model=model)) == {"0.0", "1"}
    with pytest.raises(UsageError, match=r"the target \(Conv2d\) is no part of the root"):
        trace_layers(model, image(), target_model=nn.Conv2d(3, 4, 3))
