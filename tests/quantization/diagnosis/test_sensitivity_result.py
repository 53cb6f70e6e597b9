"""The result of a sensitivity run, as people and programs read it."""

import csv
import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from linger import Sensitivity
from tests.support.diagnosis import SensitivityRow

ROWS = (
    SensitivityRow("block.conv", "Conv2dInt", "8/8/8", 21.04, 0.75, 1234, 5_000_000, "weights", 21.26, 33.0),
    SensitivityRow("fc", "LinearInt", "8/4/8", math.inf, 0.25, 10, 0),
)
PLAIN = Sensitivity(ROWS, 8, 20.5)
LINE = 'linger.quant_module(model.get_submodule("fc"), data_bits=16, parameter_bits=16, out_bits=16)'
WIDE = Sensitivity(ROWS, 8, 20.5, 30.0, ("fc",), 33.3, (LINE,))


def test_summary_says_what_was_asked():
    assert PLAIN.summary() == (
        "2 layers, 20.5 dB with all at 8 bits; most damaging: block.conv (75% of the noise, weights)"
    )
    assert WIDE.summary().endswith("; 30.0 dB reached with 1 of them raised to 16 bits: 33.3 dB")


def test_the_prediction_stands_beside_the_measurement():
    assert "20.5 dB with all at 8 bits (21.0 dB predicted by their sum)" in (
        dataclasses.replace(PLAIN, predicted_db=21.0).summary()
    )


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("weights", ["equalize", "correct_biases", "round_weights", "find_bits"]),
        ("activations", ["equalize", "calibration(method='mse')", "choose_exponents", "find_bits"]),
        ("both", ["equalize", "correct_biases", "choose_exponents", "find_bits"]),
    ],
)
def test_the_remedy_names_what_needs_no_labels(what, expected):
    remedy = dataclasses.replace(PLAIN, rows=(dataclasses.replace(ROWS[0], what=what),)).remedy
    assert remedy.startswith("block.conv: linger.tune(model, data) tries every remedy")
    places = [remedy.index(f"linger.{name}") for name in expected]
    assert places == sorted(places)


def test_an_unreachable_target_is_said():
    missed = dataclasses.replace(WIDE, reached_db=29.9)
    assert not missed.is_reached
    assert missed.summary().endswith("30.0 dB cannot be reached: 29.9 dB with 1 of them raised to 16 bits is the best")


@pytest.mark.parametrize(("result", "expected"), [(PLAIN, True), (WIDE, True)])
def test_reached(result, expected):
    assert result.is_reached is expected


def test_text_holds_the_rows_and_the_lines():
    assert str(WIDE).splitlines() == [
        WIDE.summary(),
        "layer       op         bits   noise of  SQNR dB  weights dB  activations dB  noise  parameters       MACs",
        "block.conv  Conv2dInt  8/8/8  weights      21.0        21.3            33.0  75.0%       1,234  5,000,000",
        "fc          LinearInt  8/4/8  both          inf           -               -  25.0%          10          0",
        WIDE.remedy,
        LINE,
    ]


def test_json_holds_everything():
    found = json.loads(WIDE.to_json())
    assert found.pop("rows")[1] == {
        "name": "fc",
        "op": "LinearInt",
        "widths": "8/4/8",
        "sqnr_db": "inf",
        "noise_share": 0.25,
        "parameters": 10,
        "macs": 0,
        "what": "both",
        "weights_db": None,
        "activations_db": None,
    }
    assert found == {
        "bits": 8,
        "quantised_db": 20.5,
        "predicted_db": None,
        "remedy": WIDE.remedy,
        "target_db": 30.0,
        "is_reached": True,
        "reached_db": 33.3,
        "wide_layers": ["fc"],
        "lines": [LINE],
    }


def test_files_hold_what_is_returned(tmp_path):
    assert WIDE.to_json(tmp_path / "a.json") == (tmp_path / "a.json").read_text()
    assert WIDE.to_csv(tmp_path / "a.csv") == (tmp_path / "a.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(WIDE.to_csv())))
    assert [row["name"] for row in rows] == ["block.conv", "fc"]
    assert float(rows[0]["sqnr_db"]) == 21.04


def test_a_table_can_be_printed():
    console = Console(width=120, file=io.StringIO())
    console.print(WIDE)
    assert "block.conv" in console.file.getvalue()
    assert "33.3 dB" in console.file.getvalue()


def test_results_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WIDE.bits = 4


def test_repr_is_one_short_line():
    assert repr(PLAIN) == "Sensitivity(2 layers, 20.5 dB)"
    assert repr(WIDE) == "Sensitivity(2 layers, 1 need 16 bits)"
