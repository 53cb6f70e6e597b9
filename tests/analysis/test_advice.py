"""Sentences, order of concern, and lines that can be pasted."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from linger import Advice
from tests.support.analysis import Subject, TensorValues, limit_line, make_item, measure, measure_loss, width_line


def item(values, role="weight", name="a.weight", channels=None, **subject):
    read = TensorValues(values)
    found = measure(read)
    return make_item(
        Subject(name, name.rpartition(".")[0], role, **subject), found, measure_loss(read, found, channels)
    )


def bell(size=4000, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def with_outlier(size=100.0):
    x = bell()
    x[0] = size
    return x


def test_a_healthy_tensor_needs_nothing():
    found = item(bell())
    assert found.advice.startswith("8 bits suffice (")
    assert (found.line, found.limit, found.needs_width) == ("", None, False)


def test_outliers_get_a_limit_that_leaves_the_bell_alone():
    found = item(with_outlier())
    # Dynamic of a bell is 2.58: 1.5 times that is below 4
    assert found.limit == 4.0
    assert found.line == (
        'linger.normalize_module(model.get_submodule("a"), normalize_weight_value=4, '
        "normalize_bias_value=None, normalize_output_value=None)"
    )
    assert found.alternative == 'linger.quant_module(model.get_submodule("a"), parameter_bits=16)'
    assert "limit it to ±4 and train on" in found.advice
    assert f"costs {math.log2(100 / found.dynamic):.1f} of 8 bits" in found.advice


@pytest.mark.parametrize(
    ("role", "remedies"),
    [
        ("weight", ["equalize", "calibration(weights='mse')", "correct_biases", "round_weights"]),
        ("output", ["equalize", "calibration(method='mse')", "choose_exponents"]),
    ],
)
def test_what_needs_no_labels_comes_before_a_limit_and_before_wider_numbers(role, remedies):
    text = item(with_outlier(), role=role).advice
    places = [text.index(f"linger.{name}") for name in ("tune", *remedies)]
    assert places == sorted(places)
    assert max(places) < text.index("limit it to") < text.index("16 bits keep")


def test_an_output_is_limited_as_an_output():
    found = item(with_outlier(), role="output", name="a.relu")
    assert "normalize_output_value=4" in found.line
    assert "normalize_weight_value=None" in found.line
    assert found.alternative.endswith("out_bits=16)")


def test_what_cannot_be_limited_gets_no_line():
    found = item(with_outlier(), can_limit=False, can_widen=False)
    assert (found.line, found.alternative) == ("", "")
    assert "limit the layer that produces it" in found.advice


def test_channels_of_different_size_get_16_bits():
    weight = bell(6400).reshape(64, 100) * 0.01
    weight[:16] *= 100  # a quarter of the channels: no outliers
    found = item(weight, channels=64)
    assert found.needs_width
    assert "its channels differ by" in found.advice
    assert found.line == 'linger.quant_module(model.get_submodule("a"), parameter_bits=16)'


def test_a_few_large_channels_are_outliers_though_they_hold_more_than_1_percent_of_the_values():
    values = bell(6400).reshape(64, 100)
    values[:2] += 500
    found = item(values, role="output", name="a.x", channels=64)
    assert found.versu < 2, "Dynamic 0.99 does not see them"
    reach = float(values[2:].abs().max())
    assert found.limit == 2.0 ** math.ceil(math.log2(1.5 * reach))
    assert found.advice.startswith(f"2 of 64 channels reach {found.max:.3g}, the others {reach:.3g}, which costs")
    assert "data_bits=16" in found.advice, "a wide output needs a reader"
    assert "normalize_output_value=8" in found.line


def test_order_of_concern():
    broken = item(torch.tensor([1.0, float("nan")]), name="broken.weight")
    zero = item(torch.zeros(3), name="zero.weight")
    bias = item(with_outlier(), role="other", name="b.bias")
    good, bad = item(bell(), name="good.weight"), item(with_outlier(), name="bad.weight")
    worse = item(with_outlier(1000.0), name="worse.weight")
    advice = Advice.of([zero, good, bias, bad, worse, broken])
    assert [i.name for i in advice.items] == [
        "broken.weight", "worse.weight", "bad.weight", "good.weight", "b.bias", "zero.weight",
    ]  # fmt: skip
    assert "1 NaN" in broken.advice
    assert "all zero" in zero.advice
    assert "nothing to do" in bias.advice
    assert [i.name for i in advice.worst(2).items] == ["broken.weight", "worse.weight"]


def test_one_line_per_module():
    weight = item(with_outlier(), name="a.weight")
    output = item(with_outlier(30.0), role="output", name="a.x")
    advice = Advice.of([weight, output])
    assert advice.lines == (limit_line("a", {"weight": 4.0, "output": 4.0}),)


def test_a_shared_limit_does_not_cut_a_healthy_weight():
    # an LSTM has one limit for all its weights: the healthy one reaches 12.x, so ±4 would cut it
    sick, healthy = item(with_outlier(), name="a.weight_ih"), item(bell() * 3, name="a.weight_hh")
    assert healthy.limit is None
    assert Advice.of([sick, healthy]).lines == (limit_line("a", {"weight": 16.0}),)


def test_the_limit_of_a_folded_weight_holds_where_it_comes_last_among_the_roles():
    kinds = [("a.weight", "weight", 1.0), ("a.weight with bn", "folded", 2.0), ("a.weight_g", "weight", 4.0)]
    items = [item(with_outlier() * size, role, name) for name, role, size in kinds]
    limits = [i.limit for i in items]
    assert limits == [4.0, 8.0, 16.0]
    assert Advice(tuple(items)).lines == (limit_line("a", {"weight": 8.0}),)


def test_root_and_named_types():
    assert limit_line("", {"output": 0.5}, "torch.nn.Embedding") == (
        "linger.normalize_module(model, type_modules=(torch.nn.Embedding,), normalize_weight_value=None, "
        "normalize_bias_value=None, normalize_output_value=0.5)"
    )
    assert width_line("a", {"weight", "output"}).endswith("parameter_bits=16, out_bits=16)")


def test_mostly_zero_is_said():
    sparse = torch.zeros(1000)
    sparse[3] = 5.0
    assert "more than 99 % of it is zero" in item(sparse).advice


def test_reports(tmp_path):
    advice = Advice.of([item(with_outlier()), item(torch.zeros(2), name="z.weight")])
    content = json.loads(advice.to_json(tmp_path / "a.json"))
    assert content["lines"] == list(advice.lines)
    assert [row["name"] for row in content["rows"]] == ["a.weight", "z.weight"]
    assert (tmp_path / "a.json").read_text() == advice.to_json()
    assert advice.to_csv().splitlines()[0].startswith("name,module,role,max")
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(advice)
    text = console.export_text()
    assert "a.weight" in text
    assert "train on" in text
    assert str(advice).endswith(advice.lines[-1])


@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e20])
def test_advice_does_not_depend_on_the_unit(factor):
    found = item(with_outlier() * factor)
    assert "limit it to" in found.advice or found.sqnr_8 is not None
    assert found.limit == 2.0 ** math.ceil(math.log2(found.dynamic * 1.5))


def test_repr_is_one_short_line():
    wide = bell(6400).reshape(64, 100) * 0.01
    wide[:16] *= 100
    found = Advice.of([item(bell()), item(with_outlier()), item(wide, channels=64)])
    assert repr(found) == "Advice(3 tensors, 1 to limit, 1 need 16 bits)"
