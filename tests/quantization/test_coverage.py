"""What a model computes as integers and what it does not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from linger.quantization.coverage import Coverage, coverage
from linger.quantization.initialize import init
from linger.quantization.runtime import OpRecord
from tests.support.wired import Wired, picture, quantise


def mixed(m, x):
    h = torch.sin(m.conv(x))
    return m.conv2(h) + 1.0


def test_ops_are_listed_in_order_with_where_and_why():
    model = quantise(Wired(mixed), picture())
    assert coverage(model).rows() == [
        ("conv", "Quant", "integer", ""),
        ("conv", "Conv2dInt", "integer", ""),
        ("", "sin", "float", "linger has no integer form for this function"),
        ("conv2", "Quant", "integer", ""),
        ("conv2", "Conv2dInt", "integer", ""),
        ("", "iqAdd", "integer", ""),
    ]


def test_summary_counts_and_names():
    text = str(coverage(quantise(Wired(mixed), picture())))
    assert text.splitlines() == [
        "5 ops as integers, 1 in float",
        "  model: sin stays float: linger has no integer form for this function",
    ]


def test_multiplications_are_counted():
    (conv,) = [op for op in coverage(quantise(Wired(lambda m, x: m.conv(x)), picture())).ops if op.op == "Conv2dInt"]
    assert conv.macs == 2 * 4 * 6 * 6 * 27  # outputs times products each


def test_integers_and_floats_are_parted():
    found = Coverage((OpRecord("a", "x", is_integer=True), OpRecord("b", "y", is_integer=False, reason="why")))
    assert [op.where for op in found.integer_ops] == ["a"]
    assert [op.where for op in found.float_ops] == ["b"]


def test_every_forward_pass_counts_where_there_was_no_calibration():
    model = init(Wired(lambda m, x: F.celu(m.conv(x)) if m.training else m.conv(x))).train()
    model(picture())
    assert [op.op for op in coverage(model).float_ops] == ["celu"]
    model.eval()(picture())
    assert coverage(model).float_ops == ()


def test_calibration_sees_float_ops_that_no_quantised_tensor_reaches():
    model = Wired(lambda m, x: m.conv(torch.exp(x) - 1.0))
    assert [op.op for op in coverage(quantise(model, picture())).float_ops] == ["exp", "sub"]


def test_a_layer_kept_float_by_wish_says_so():
    model = nn.Sequential(nn.Linear(3, 4), linger.disable_quant(nn.Linear(4, 4)))
    (record,) = coverage(quantise(model, torch.randn(5, 3))).float_ops
    assert (record.where, record.op) == ("1", "linear")
    assert record.reason == "kept float by linger.disable_quant"


def test_a_float_model_has_no_coverage():
    with pytest.raises(UsageError, match=r"not quantised\. Call linger\.init"):
        coverage(nn.Linear(2, 2))


def test_a_model_that_never_ran_has_no_coverage():
    with pytest.raises(UsageError, match="has not run yet"):
        coverage(init(nn.Sequential(nn.Linear(2, 2))))
