"""What a model computes as integers and what it does not."""

import io
import json

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import linger
from linger import coverage, init
from linger.errors import UsageError
from tests.support.diagnosis import Coverage
from tests.support.quantization import OpRecord
from tests.support.wired import Wired, image, quantize


def mixed(m, x):
    h = torch.sin(m.conv(x))
    return m.conv2(h) + 1.0


def test_ops_are_listed_in_order_with_where_and_why():
    model = quantize(Wired(mixed), image())
    first, second = 2 * 4 * 6 * 6 * 3 * 9, 2 * 4 * 6 * 6 * 4 * 9  # outputs times input channels times taps
    assert coverage(model).rows() == [
        ("conv", "Quant", "integer", "", 0, 0.0),
        ("conv", "Conv2dInt", "integer", "", first, first / (first + second)),
        ("", "sin", "float", "linger has no integer form for this function", 0, 0.0),
        ("conv2", "Quant", "integer", "", 0, 0.0),
        ("conv2", "Conv2dInt", "integer", "", second, second / (first + second)),
        ("", "iqAdd", "integer", "", 0, 0.0),
    ]


def test_summary_counts_and_names():
    text = str(coverage(quantize(Wired(mixed), image())))
    assert text.splitlines() == [
        "5 ops as integers, 1 in float; 100 % of the multiplications as integers",
        "  model: sin stays float: linger has no integer form for this function",
    ]


def test_a_row_shows_all_that_it_holds():
    row = coverage(quantize(Wired(mixed), image())).table()[0]
    assert str(row) == repr(row)
    assert repr(row).startswith("CoverageRow(where='conv', op='Quant', runs_as='integer'")


def test_multiplications_are_counted():
    (conv,) = [op for op in coverage(quantize(Wired(lambda m, x: m.conv(x)), image())).ops if op.op == "Conv2dInt"]
    assert conv.macs == 2 * 4 * 6 * 6 * 27  # outputs times products each


def test_a_float_island_has_its_share_of_the_work():
    net = nn.Sequential(nn.Linear(3, 4), linger.disable_quant(nn.Linear(4, 8)), nn.Linear(8, 2))
    found = coverage(quantize(net, torch.randn(5, 3)))
    inside, outside = 5 * 4 * 8, 5 * (3 * 4 + 8 * 2)  # rows times inputs times outputs of each layer
    assert [(op.op, op.macs) for op in found.float_ops] == [("linear", inside)]
    assert (found.macs, found.integer_share) == (inside + outside, outside / (inside + outside))
    assert str(found).splitlines() == [
        "4 ops as integers, 1 in float; 46.6 % of the multiplications as integers",
        "  1: linear stays float (53.3 % of the multiplications): kept float by linger.disable_quant",
    ]


def test_products_of_quantized_tensors_are_counted():
    def forward(m, x):
        h = m.conv(x)  # [2, 4, 6, 6]
        return torch.matmul(h, h.transpose(-1, -2)[..., :3])

    (product,) = [op for op in coverage(quantize(Wired(forward), image())).ops if op.op == "BmmInt"]
    assert product.macs == 2 * 4 * 6 * 3 * 6  # matrices times rows times columns times terms


def test_float_products_of_quantized_tensors_are_counted():
    weight = torch.randn(5, 4, 1, 1)
    (record,) = coverage(quantize(Wired(lambda m, x: F.conv2d(m.conv(x), weight)), image())).float_ops
    assert (record.op, record.macs) == ("conv2d", 2 * 5 * 6 * 6 * 4)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 % of the multiplications"),
        (0.99999, "99.9 % of the multiplications"),
        (0.9925, "99.2 % of the multiplications"),
        (0.0005, "less than 0.1 % of the multiplications"),
        (0.0, "0.0 % of the multiplications"),
    ],
)
def test_shares_are_rounded_down_and_never_to_nothing(share, text):
    integers = round(share * 1_000_000)
    records = (
        OpRecord("a", "LinearInt", is_integer=True, macs=integers),
        OpRecord("b", "linear", is_integer=False, macs=1_000_000 - integers),
    )
    assert Coverage(records).summary() == f"1 ops as integers, 1 in float; {text} as integers"


def test_without_multiplications_nothing_is_said_of_them():
    found = Coverage((OpRecord("a", "iqAdd", is_integer=True),))
    assert str(found) == "1 ops as integers, 0 in float"
    assert found.integer_share == 1.0


def test_report_goes_into_files_and_tables(tmp_path):
    found = coverage(quantize(Wired(mixed), image()))
    content = json.loads(found.to_json(tmp_path / "coverage.json"))
    assert json.loads((tmp_path / "coverage.json").read_text()) == content
    assert (content["macs"], content["integer_share"]) == (found.macs, 1.0)
    assert [tuple(row.values()) for row in content["rows"]] == found.rows()
    assert found.to_csv().splitlines()[0] == "where,op,runs_as,reason,macs,share"
    assert len(found.to_csv().splitlines()) == 1 + len(found.ops)
    console = Console(file=io.StringIO(), width=140)
    console.print(found)
    assert "Conv2dInt" in console.file.getvalue()
    assert "share %" in console.file.getvalue()


def test_integers_and_floats_are_parted():
    found = Coverage((OpRecord("a", "x", is_integer=True), OpRecord("b", "y", is_integer=False, reason="why")))
    assert [op.where for op in found.integer_ops] == ["a"]
    assert [op.where for op in found.float_ops] == ["b"]


def test_every_forward_pass_counts_where_there_was_no_calibration():
    model = init(Wired(lambda m, x: F.celu(m.conv(x)) if m.training else m.conv(x))).train()
    model(image())
    assert [op.op for op in coverage(model).float_ops] == ["celu"]
    model.eval()(image())
    assert coverage(model).float_ops == ()


def test_calibration_sees_float_ops_that_no_quantized_tensor_reaches():
    model = Wired(lambda m, x: m.conv(torch.exp(x) - 1.0))
    assert [op.op for op in coverage(quantize(model, image())).float_ops] == ["exp", "sub"]


def test_whole_numbers_that_become_real_ones_are_no_computation():
    model = Wired(lambda m, x: m.conv(x) + torch.arange(2).float().mean() + torch.arange(4).to(torch.float32)[2])
    assert [op.op for op in coverage(quantize(model, image())).float_ops] == ["mean"]
    model = Wired(lambda m, x: m.conv((x * 8).int() / 8))
    assert "div" in " ".join(op.op for op in coverage(quantize(model, image())).float_ops)


def test_calibration_in_training_mode_notes_nothing_of_its_own():
    model = init(Wired(lambda m, x: m.conv(x))).train()
    with linger.calibration():
        model(image())
    assert not coverage(model).float_ops


def test_a_layer_kept_float_by_a_mark_says_so():
    model = nn.Sequential(nn.Linear(3, 4), linger.disable_quant(nn.Linear(4, 4)))
    (record,) = coverage(quantize(model, torch.randn(5, 3))).float_ops
    assert (record.where, record.op) == ("1", "linear")
    assert record.reason == "kept float by linger.disable_quant"


def test_a_float_model_has_no_coverage():
    with pytest.raises(UsageError, match=r"not quantized\. Call linger\.init"):
        coverage(nn.Linear(2, 2))


def test_a_model_that_never_ran_has_no_coverage():
    with pytest.raises(UsageError, match="has not run yet"):
        coverage(init(nn.Sequential(nn.Linear(2, 2))))


def test_reasons_are_the_true_ones():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.volume = nn.Embedding(9, 4), nn.Conv3d(1, 1, 1)
            self.reflect, self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, index, volume):
            rows = torch.special.erf(self.embed(index))
            return self.head(self.fc(self.reflect(torch.tanh(rows)))), self.volume(volume)

    model = linger.init(Net(), disable_submodel=["head"]).eval()
    with linger.calibration():
        model(torch.arange(6).reshape(2, 3), torch.randn(1, 1, 2, 2, 2))
    reasons = {(op.where, op.op): op.reason for op in linger.coverage(model).float_ops}
    assert reasons == {
        ("embed", "embedding"): "it is quantized only where quant_modules or linger.quant_module names its type",
        ("", "special_erf"): "linger has no integer form for this function",
        ("", "tanh"): "its inputs are float tensors; linger.quant_tensor quantizes them",
        ("head", "linear"): "kept float by disable_module or disable_submodel",
        ("volume", "conv3d"): "linger has no integer form for this function",
    }
    chosen = linger.init(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), quant_modules=[nn.Linear]).eval()
    with linger.calibration():
        chosen(torch.randn(2, 2))
    assert [op.reason for op in linger.coverage(chosen).float_ops] == ["quant_modules does not name its type"]


def test_repr_is_one_short_line():
    found = Coverage((OpRecord("a", "Quant", is_integer=True), OpRecord("", "sin", is_integer=False, reason="why")))
    assert repr(found) == "Coverage(1 ops as integers, 1 in float)"
