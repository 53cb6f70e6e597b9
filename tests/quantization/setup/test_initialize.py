"""init: which layers are replaced, which are not, and that everything else stays."""

import logging

import pytest
import torch
from torch import nn

import linger
from linger import QuantMode, trace_layers
from linger.errors import UsageError
from tests.support.models import SmallNet, settle
from tests.support.quantization import ConvBN, QuantLayer, Widths, init, quantized_layers, runtime_of
from tests.support.wired import Wired, image, quantize


def replaced(model):
    return set(quantized_layers(model))


def net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Sequential(nn.Linear(4, 4), nn.AvgPool2d(2)), nn.LocalResponseNorm(4)
    )


def test_every_supported_layer_is_replaced_and_the_model_returned():
    model = net()
    assert init(model) is model
    assert replaced(model) == {"0", "1", "2.0", "2.1"}
    assert isinstance(model[3], nn.LocalResponseNorm)
    assert {layer.path for layer in quantized_layers(model).values()} == replaced(model)


def test_every_parameter_object_stays_under_its_name():
    model = net()
    before = dict(model.named_parameters())
    init(model)
    after = dict(model.named_parameters())
    assert list(before) == list(after)
    assert all(after[name] is before[name] for name in before)


def test_an_optimizer_made_before_still_trains_the_model():
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    init(model).train()(torch.randn(4, 3)).sum().backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


class Renamed(nn.Conv2d):
    """The same computation under another name."""


class Scaled(nn.Linear):
    """Another computation under the same base."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_subclasses_are_matched():
    model = init(nn.Sequential(Renamed(3, 4, 3), nn.Sequential(Renamed(4, 4, 1))))
    assert replaced(model) == {"0", "1.0"}


def test_a_subclass_with_a_forward_of_its_own_keeps_it_and_computes_integers(caplog):
    with caplog.at_level(logging.WARNING):
        model = quantize(nn.Sequential(Scaled(3, 4), nn.Linear(4, 2)), torch.randn(5, 3))
    assert replaced(model) == {"1"}
    assert isinstance(model[0], Scaled)
    assert caplog.text == ""
    assert [o.op for o in linger.coverage(model).ops] == ["Quant", "LinearInt", "iqMul", "LinearInt"]
    assert all(o.is_integer for o in linger.coverage(model).ops)


class Doubled(nn.AvgPool2d):
    """A layer without weights whose forward is its own."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_subclass_without_a_product_stays_float_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        init(nn.Sequential(Doubled(2)))
    assert "0 (Doubled) stays float: it overrides forward" in caplog.text


def test_a_layer_without_an_integer_form_stays_float_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        layer = nn.ConvTranspose2d(3, 4, 3)
        layer.padding_mode = "reflect"
        model = init(nn.Sequential(layer))
    assert replaced(model) == set()
    assert "0 (ConvTranspose2d) stays float: padding_mode='reflect' has no integer form" in caplog.text


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([nn.Linear], {"2.0"}),
        ((nn.Conv2d, nn.AvgPool2d), {"0", "2.1"}),
        (nn.Conv2d, {"0"}),
        ([], set()),
        (None, {"0", "1", "2.0", "2.1"}),
    ],
    ids=["list", "tuple", "one type", "empty", "default"],
)
def test_types_to_quantize_can_be_chosen(kinds, expected):
    assert replaced(init(net(), quant_modules=kinds)) == expected


def test_a_subclass_alone_can_be_chosen():
    model = init(nn.Sequential(nn.Conv2d(3, 4, 3), Renamed(4, 4, 3)), quant_modules=[Renamed])
    assert replaced(model) == {"1"}


def test_unsupported_types_are_all_named_at_once():
    model = net()
    with pytest.raises(UsageError, match=r"LocalResponseNorm, Softmax, 'text' has no integer form") as caught:
        init(model, quant_modules=[nn.LocalResponseNorm, nn.Conv2d, nn.Softmax, "text"])
    assert all(kind in str(caught.value) for kind in ("Conv2d,", "ConvTranspose2d,", "Embedding,", "Linear"))
    assert replaced(model) == set()
    assert runtime_of(model) is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"parameter_bits": 7}, "parameter_bits=7: no such width"),
        ({"parameter_bits": 32}, "parameter_bits=32: no such width"),
        ({"mode": "QValue"}, "unknown mode 'QValue'"),
        ({"config_file": "linger.yaml"}, "linger.yaml cannot be read"),
        ({"disable_submodel": ["nowhere", "0", "2.7"]}, "names nowhere, 2.7, which the model does not have"),
        ({"config_file": [nn.Linear]}, "config_file: the path of a file is expected"),
        ({"disable_module": ["Linear"], "disable_submodel": [nn.ReLU]}, r"types of layers are expected.*dotted names"),
        ({"disable_module": "Linear"}, r"disable_module='Linear' \(types of layers"),
        ({"disable_submodel": "nowhere"}, "names nowhere, which"),
        ({"disable_submodel": ["0.*"]}, r"names 0\.\*, which the model does not have"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_a_wrong_argument_is_refused_and_changes_nothing(options, match):
    model = net()
    with pytest.raises(UsageError, match=match):
        init(model, **options)
    assert replaced(model) == set()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_one_type_or_name_is_as_good_as_a_list():
    assert replaced(init(net(), disable_module=nn.Conv2d)) == replaced(init(net(), disable_module=[nn.Conv2d]))
    assert replaced(init(net(), disable_submodel="2")) == replaced(init(net(), disable_submodel=["2"]))


def test_a_synchronized_batch_norm_stays_float_with_a_warning():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SyncBatchNorm(2))
    with pytest.warns(UserWarning, match=r"init: 1: a SyncBatchNorm stays float"):
        assert replaced(init(model)) == {"0"}


def test_documented_arguments_are_taken():
    assert replaced(init(net(), None, None, None, quant_modules=None, parameter_bits=4, mode=QuantMode.QValue))


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_width_of_the_weights(bits):
    model = init(nn.Sequential(nn.Linear(6, 9)), parameter_bits=bits).eval()
    with linger.calibration():
        model(torch.randn(4, 6))
    integers = model[0].freeze(model[0].read("scale_x")).weight_integers
    assert 2 ** (bits - 2) <= integers.long().abs().max() < 2 ** (bits - 1)
    assert model[0].widths == Widths(8, bits, 8)


def test_a_second_init_is_refused():
    model = init(net())
    before = str(model)
    with pytest.raises(UsageError, match="quantized already"):
        init(model)
    assert str(model) == before


def test_a_model_that_is_one_layer_is_replaced_and_returned():
    layer = nn.Linear(4, 2)
    model = quantize(layer, torch.randn(5, 4))
    assert isinstance(model, QuantLayer)
    assert model.weight is layer.weight
    assert model.path == ""
    assert (model(torch.randn(3, 4)).scale, model.op_name) == (model.read("scale_o"), "LinearInt")
    with pytest.raises(UsageError, match="quantized already"):
        init(model)


def test_shared_modules_stay_shared():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Sequential(shared))
    init(model)
    assert model[0] is model[2] is model[3][0]
    assert isinstance(model[0], QuantLayer)
    assert len(list(model.parameters())) == 2


def test_shared_parameters_stay_shared():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    init(model)
    assert model[0].weight is model[1].weight


def test_types_can_be_excluded():
    assert replaced(init(net(), disable_module=[nn.Conv2d, nn.ReLU6])) == {"2.0", "2.1"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["0"], {"1", "2.0", "2.1"}),
        (["2"], {"0", "1"}),
        (["2.*"], {"0", "1"}),
        (["2*"], {"0", "1"}),
        (["2.1", "0"], {"1", "2.0"}),
        ([], {"0", "1", "2.0", "2.1"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),
)
def test_parts_can_be_excluded_by_name(names, expected):
    assert replaced(init(net(), disable_submodel=names)) == expected


@pytest.mark.parametrize(("name", "expected"), [("conv", {"conv2", "fc"}), ("conv*", {"fc"}), ("*", set())])
def test_a_name_is_a_prefix_only_with_a_star(name, expected):
    model = nn.ModuleDict({"conv": nn.Linear(2, 2), "conv2": nn.Linear(2, 2), "fc": nn.Linear(2, 2)})
    assert replaced(init(model, disable_submodel=[name])) == expected


def test_disabled_parts_stay_float():
    model = net()
    linger.disable_quant(model[2])
    assert replaced(init(model)) == {"0", "1"}


def traced(*marks):
    model = settle(Wired(lambda m, x: m.bn2(m.conv2(m.bn(m.conv(x))))))
    for mark in marks:
        mark(model)
    trace_layers(model.eval(), image())
    return model


def test_a_mark_on_a_convolution_holds_after_it_was_fused():
    model = traced(lambda m: linger.disable_quant(m.conv), lambda m: linger.quant_module(m.conv2, parameter_bits=4))
    float_result = model.conv(image())
    quantize(model, image())
    assert isinstance(model.conv, ConvBN)
    assert torch.equal(model.conv(image()), float_result)
    assert model.conv2.widths == Widths(8, 4, 8)


def test_a_mark_on_a_fused_pair_holds():
    model = traced()
    linger.disable_quant(model.conv)
    linger.quant_module(model.conv2, data_bits=16)
    init(model)
    assert isinstance(model.conv, ConvBN)
    assert model.conv2.widths == Widths(16, 8, 8)


@pytest.mark.parametrize(
    "options",
    [{"disable_module": [nn.Conv2d]}, {"quant_modules": [nn.Linear]}, {"disable_submodel": ["conv", "conv2"]}],
)
def test_a_fused_pair_counts_as_a_convolution(options):
    model = init(traced(), **options)
    assert replaced(model) == {"fc"}
    assert isinstance(model.conv, ConvBN)
    model.eval()(image())  # float layers only: nothing needs a scale
    model.train()(image())


def test_modes_are_kept_layer_by_layer():
    model = traced().train()
    model.conv.bn.eval()
    model.fc.eval()
    init(model)
    assert (model.conv.training, model.conv.bn.training) == (True, False)
    assert (model.conv2.training, model.conv2.bn.training) == (True, True)
    assert not model.fc.training


def test_runtime_belongs_to_one_model():
    first, second = init(net()), init(net())
    assert runtime_of(first) is not runtime_of(second)
    assert runtime_of(net()) is None
    assert all(layer.runtime is runtime_of(first) for layer in quantized_layers(first).values())


def test_whole_network_runs_after_init():
    x = torch.randn(4, 1, 8, 8)
    model = settle(SmallNet()).eval()
    reference = model(x).detach()
    trace_layers(model, x)
    quantize(model, x)
    assert replaced(model) == {"stem", "block.conv1", "block.conv2", "relu6", "avg", "gap", "fc"}
    with torch.no_grad():
        found = model(x).dequantize()
    # eighteen roundings of a 256th of a range each, amplified by at most a few
    assert float((found - reference).abs().max()) < 0.25 * float(reference.abs().max())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_modules_of_torch_jit_are_refused_by_name():
    traced_whole = torch.jit.trace(nn.Sequential(nn.Linear(4, 4)), torch.ones(1, 4))
    with pytest.raises(UsageError, match=r"^init: .*torch\.jit.* Pass the nn\.Module that it was made from"):
        init(traced_whole)
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)))
    with pytest.raises(UsageError, match=r"^init: 1: a module of torch\.jit"):
        init(model)
    assert type(model[0]) is nn.Linear
