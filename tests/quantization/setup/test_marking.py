"""Marks of single modules: widths, and staying float."""

import pytest
import torch
from torch import nn

import linger
from linger import QuantMode, disable_quant, init, quant_module
from linger.errors import UsageError
from tests.support.quantization import QUANTIZATION, QuantChoice, Widths, checked_types, checked_widths, supported_types


def part():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Linear(4, 4), nn.LocalResponseNorm(4)))


def test_disabling_marks_the_module_and_all_inside_and_returns_it():
    model = part()
    assert disable_quant(model) is model
    assert all(QUANTIZATION.of(m) == QuantChoice(is_disabled=True) for m in model.modules())


def test_a_float_module_has_no_mark():
    assert QUANTIZATION.of(nn.Linear(2, 2)) is None


def test_widths_are_marked_on_supported_layers_only():
    model = part()
    assert quant_module(model, data_bits=16, parameter_bits=4, out_bits=32) is model
    widths = QuantChoice(widths=Widths(16, 4, 32))
    assert [QUANTIZATION.of(m) for m in model.modules()] == [None, widths, None, widths, None]


def test_older_positional_signature():
    model = part()
    quant_module(model, [nn.Linear], QuantMode.QValue, 8, 4, 16)
    assert QUANTIZATION.of(model[0]) is None
    assert QUANTIZATION.of(model[1][0]) == QuantChoice(widths=Widths(8, 4, 16))


def test_newer_keywords():
    model = quant_module(nn.Linear(2, 2), weight_bits=4, bias_bits=32)
    assert QUANTIZATION.of(model) == QuantChoice(widths=Widths(8, 4, 8))


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("out_bits", [4, 8, 16, 32, None])
def test_every_documented_width_runs(bits, out_bits):
    layer = quant_module(nn.Linear(6, 5), data_bits=bits, parameter_bits=bits, out_bits=out_bits)
    model = init(nn.Sequential(layer)).eval()
    x = torch.randn(4, 6)
    with linger.calibration():
        model(x)
    result = model(x)
    assert result.bits == (out_bits or 8)
    kind = {4: torch.int8, 8: torch.int8, 16: torch.int16, 32: torch.int32}[out_bits or 8]
    assert result.integers().dtype == kind
    # rounding x and w to `bits` bits each: six products, off by 2^-(bits−2) of their range at most
    error = (result.dequantize() - nn.functional.linear(x, model[0].weight, model[0].bias)).abs().max()
    reach = x.abs().max() * model[0].weight.abs().max() * 6
    assert error <= reach * (2.0 ** (2 - bits) + 2.0 ** (2 - (out_bits or 8)))


def test_later_marks_replace_earlier_ones():
    layer = quant_module(quant_module(nn.Linear(2, 2), parameter_bits=4), parameter_bits=16)
    assert QUANTIZATION.of(layer) == QuantChoice(widths=Widths(8, 16, 8))
    assert QUANTIZATION.of(disable_quant(layer)) == QuantChoice(is_disabled=True)


def test_a_quantized_layer_changes_at_once():
    model = init(nn.Sequential(nn.Linear(2, 2)))
    quant_module(model, parameter_bits=16)
    assert model[0].widths == Widths(8, 16, 8)


def test_marks_survive_a_copy():
    import copy

    assert QUANTIZATION.of(copy.deepcopy(disable_quant(nn.Linear(2, 2)))) == QuantChoice(is_disabled=True)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        pytest.param(lambda m: quant_module(m, data_bits=32), "data_bits=32: no such width", id="data"),
        pytest.param(
            lambda m: quant_module(m, data_bits=5, parameter_bits=1, out_bits=64),
            "data_bits=5, parameter_bits=1, out_bits=64: no such width",
            id="all at once",
        ),
        pytest.param(lambda m: quant_module(m, bias_bits=16), "a bias always has 32 bits", id="bias"),
        pytest.param(lambda m: quant_module(m, color=3), "unknown argument color", id="unknown"),
        pytest.param(lambda m: quant_module(m, mode=2), "unknown mode 2", id="mode"),
        pytest.param(lambda m: quant_module(m, [nn.CELU]), "CELU has no integer form", id="type"),
    ],
)
def test_a_wrong_request_is_refused_and_marks_nothing(call, match):
    model = part()
    with pytest.raises(UsageError, match=match):
        call(model)
    assert all(QUANTIZATION.of(m) is None for m in model.modules())


def test_default_types_are_the_supported_ones():
    assert set(checked_types(None)) == set(supported_types()) - {nn.Embedding}  # which must be named
    assert checked_types([nn.Embedding]) == (nn.Embedding,)
    assert checked_types(nn.Conv2d) == (nn.Conv2d,)


def test_widths_are_checked():
    assert checked_widths(4, 8, 32) == Widths(4, 8, 32)
    with pytest.raises(UsageError, match="Use 4, 8 or 16 bits"):
        checked_widths(4, 8, 12)


def test_a_mark_after_init_is_refused():
    model = init(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2))))
    with pytest.raises(UsageError, match=r"^disable_quant: Sequential, 0 is quantized already.*before linger\.init"):
        disable_quant(model[1])
    assert QUANTIZATION.of(model[1]) is None


def test_the_newer_keywords_work_after_init_and_limits_say_that_they_have_no_effect():
    model = linger.init(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    linger.restore()
    with pytest.warns(UserWarning, match=r"quant_module: c_activation_val, c_weight_val has no effect"):
        quant_module(model[0], c_activation_val=8.0, c_weight_val=8.0, data_bits=16, weight_bits=4, out_bits=16)
    linger.quant_module_by_type(model[1], (nn.Linear,), parameter_bits=16, out_bits=32)
    assert [str(layer.widths) for layer in model] == ["16/4/16", "8/16/32"]
    with pytest.raises(UsageError, match="unknown argument weight_bit"):
        quant_module(model, weight_bit=4)
