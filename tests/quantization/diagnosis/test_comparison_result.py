"""The result of a layer comparison, as people and programs read it."""

import csv
import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from linger import LayerComparison
from tests.support.diagnosis import LayerRow


def row(name, sqnr, born, verdict, **rest):
    return LayerRow(name, 0, "LinearInt", math.inf, sqnr, born, 40.0, verdict, 0.99, **{"max_lsb": 2.5, **rest})


RESULT = LayerComparison(
    (row("a", 30.0, 31.0, "born"), row("b", 20.0, 50.0, "passed", max_lsb=None), row("c", 25.0, 21.0, "both")),
    ("d", "e (call 1)"),
    22.25,
)


def test_the_worst_rows_come_first():
    assert [r.name for r in RESULT.worst(2)] == ["b", "c"]
    assert len(RESULT.worst()) == 3


def test_errors_that_are_born_come_largest_first():
    assert [r.name for r in RESULT.born()] == ["c", "a"]


def test_summary_and_text():
    assert RESULT.summary() == (
        "22.2 dB at the output, 3 calls of layers; most error is born in c (21.0 dB); 2 without a counterpart"
    )
    assert str(RESULT).splitlines() == [
        RESULT.summary(),
        "layer  call  op         input dB  SQNR dB  born dB  passed dB  error     cosine  max LSB",
        "a         0  LinearInt       inf     30.0     31.0       40.0  born    0.990000      2.5",
        "b         0  LinearInt       inf     20.0     50.0       40.0  passed  0.990000        -",
        "c         0  LinearInt       inf     25.0     21.0       40.0  both    0.990000      2.5",
        "without a counterpart: d",
        "without a counterpart: e (call 1)",
    ]


def test_without_errors_the_summary_is_short():
    clean = LayerComparison((row("a", math.inf, math.inf, "none"),), (), math.inf)
    assert clean.summary() == "inf dB at the output, 1 calls of layers"
    assert clean.born() == ()


def test_json_and_csv(tmp_path):
    found = json.loads(RESULT.to_json(tmp_path / "a.json"))
    assert (found["output_db"], found["unmatched"]) == (22.25, ["d", "e (call 1)"])
    assert found["rows"][1]["max_lsb"] is None
    assert found["rows"][0]["input_db"] == "inf"
    assert (tmp_path / "a.json").read_text() == RESULT.to_json()
    rows = list(csv.DictReader(io.StringIO(RESULT.to_csv(tmp_path / "a.csv"))))
    assert [r["verdict"] for r in rows] == ["born", "passed", "both"]
    assert (tmp_path / "a.csv").read_text() == RESULT.to_csv()


def test_a_table_can_be_printed():
    console = Console(width=140, file=io.StringIO())
    console.print(RESULT)
    assert "22.2 dB at the output" in console.file.getvalue()


def test_results_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RESULT.output_db = 0.0


def test_repr_is_one_short_line():
    assert repr(RESULT) == "LayerComparison(3 calls of layers, 22.2 dB at the output)"
