"""How users write widths, budgets and goals."""

import math
import subprocess
import sys

import pytest

import linger
from linger.notation import Widths, _Allowance, read_allowance, read_bits, value_and_unit


@pytest.mark.parametrize(
    ("bits", "widths", "text"),
    [
        (8, Widths(8, 8), "8"),
        ("8", Widths(8, 8), "8"),
        (16, Widths(16, 16), "16"),
        ("w4a8", Widths(4, 8), "w4a8"),
        (" W16A8 ", Widths(16, 8), "w16a8"),
        ("w8a8", Widths(8, 8), "8"),
        ("mixed", Widths(is_mixed=True), "mixed"),
        (Widths(4, 16), Widths(4, 16), "w4a16"),
    ],
)
def test_widths_are_read_from_numbers_and_texts(bits, widths, text):
    assert read_bits(bits, "tune") == widths
    assert str(widths) == text


@pytest.mark.parametrize("bits", [7, "7", 4, "w8", "w2a8", "w8a4", "a8", "", None, True, 8.0, [8]], ids=repr)
def test_widths_that_nobody_has(bits):
    with pytest.raises(linger.UsageError, match=r"^tune: bits .*: no such widths\. Use 8, 16, mixed, or .* w4a8"):
        read_bits(bits, "tune")


def test_budgets_are_time_or_trials():
    assert read_allowance("2 min", "tune") == _Allowance("120 s", seconds=120.0)
    assert read_allowance("20 trials", "tune") == _Allowance("20 trials", trials=20.0)
    with pytest.raises(linger.UsageError, match=r"^quantize: budget='soon' is no budget"):
        read_allowance("soon", "quantize")


def test_goals_are_decibels_or_a_share():
    assert value_and_unit("tune", 30) == value_and_unit("tune", "30 dB") == (30.0, "dB")
    assert value_and_unit("tune", "99 %") == (99.0, "%")
    for goal, message in (("120 %", "no share of decisions"), ("much", "is no goal"), (math.nan, "is no goal")):
        with pytest.raises(linger.UsageError, match=message):
            value_and_unit("tune", goal)


def test_all_wrong_settings_are_named_at_once_and_without_torch():
    child = """
import sys
from linger.errors import UsageError
from linger.workflow.quantized import QuantizeSettings
try:
    QuantizeSettings(bits="7", budget="soon", goal="much", form="odd", opset=3, target="mars").check()
except UsageError as error:
    print(error)
assert not {"torch", "onnx", "numpy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said in ("bits '7'", "budget='soon'", "goal='much'", "no form 'odd'", "opset 3", "no chip 'mars'"):
        assert said in done.stdout


@pytest.mark.needs_torch
def test_every_function_takes_widths_as_numbers_and_as_texts():
    import copy

    import torch
    from torch import nn

    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.linspace(-1, 1, 32).reshape(8, 4)
    made = linger.init(copy.deepcopy(net))
    with linger.calibration():
        made(x)
    calls = {
        "init": lambda bits: linger.init(copy.deepcopy(net), bits=bits),
        "parameter_bits": lambda bits: linger.init(copy.deepcopy(net), parameter_bits=bits),
        "sensitivity": lambda bits: linger.sensitivity(net, x, bits=bits),
        "find_bits": lambda bits: linger.find_bits(copy.deepcopy(made), net, x, goal=1, bits=bits, max_trials=1),
        "quant_module": lambda bits: linger.quant_module(net, data_bits=bits, parameter_bits=bits, out_bits=bits),
        "Schedule": lambda bits: linger.Schedule(copy.deepcopy(made), widths={0: bits}),
        "quant": lambda bits: linger.quant(x, bits)[0].sum(),
    }
    for name, call in calls.items():
        for bits in (8, "8", "16"):
            assert call(bits) is not None, name
        for bits in (7, "7", None if name not in ("init", "parameter_bits") else 0.5, "wide", [5]):
            with pytest.raises(linger.UsageError, match=r"4, 8|8, 16|as 8"):
                call(bits)


@pytest.mark.needs_torch
def test_sensitivity_measures_weights_and_activations_of_other_widths():
    import torch
    from torch import nn

    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.linspace(-1, 1, 32).reshape(8, 4)
    narrow, usual = linger.sensitivity(net, x, bits="w4a8"), linger.sensitivity(net, x, bits="8")
    assert {row.widths for row in narrow.rows if row.parameters} == {"8/4/8"}
    assert (narrow.bits, usual.bits) == ("w4a8", 8)
    assert narrow.quantised_db < usual.quantised_db - 6
    assert "with all at w4a8;" in narrow.summary() or "with all at w4a8 (" in narrow.summary()
    with pytest.raises(linger.UsageError, match=r'linger.tune\(model, data, bits="mixed"\)'):
        linger.sensitivity(net, x, bits="mixed")
