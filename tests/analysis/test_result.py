"""Rows of an analysis in every form: the log, JSON, CSV, a terminal."""

import csv
import io
import json
import math
import os

import pytest
from rich.console import Console

from linger import Analysis
from linger.errors import UsageError
from tests.support.analysis import LONG_HEADER, SHORT_HEADER, Magnitudes, Row

NAN = math.nan


def row(name="conv.weight", shape="4×3", dtype="float32", **values):
    found = {"count": 12, "mean": 0.25, "maximum": 1.5, "dynamic": 1.25} | values
    note = found.pop("note", "")
    return Row.of(name, Magnitudes(**found), shape=shape, dtype=dtype, note=note)


def sample():
    """One normal tensor, an outlier, an integer, all zeros, no values at all, and one with NaN."""
    return Analysis(
        (
            row(),
            row("spike.weight", maximum=25.0, dynamic=0.5),
            row("steps", "scalar", "int64", count=1, mean=6185962.0, maximum=6185962, dynamic=6185962),
            row("zero", mean=0.0, maximum=0.0, dynamic=0.0),
            row("empty", "0", count=0, mean=NAN, maximum=NAN, dynamic=NAN),
            row("holes", nans=2, infinities=1),
        )
    )


def test_log_is_the_documented_table_with_notes_below():
    lines = sample().to_log().splitlines()
    bar = "+----------------+-----------------+-----------------+----------------+-----------------+----------------+"
    assert lines == [
        bar,
        "|   Layer_name   |       Mean      |       Max       |    Multiple    |   Dynamic 0.99  |     Versu      |",
        bar,
        "|  conv.weight   |  tensor(0.2500) |  tensor(1.5000) |   tensor(6.)   |  tensor(1.2500) | tensor(1.2000) |",
        "|  spike.weight  |  tensor(0.2500) |   tensor(25.)   |  tensor(100.)  |  tensor(0.5000) |  tensor(50.)   |",
        "| !!!!!!!!!!!!!! |  !!!!!!!!!!!!!! |  !!!!!!!!!!!!!! | !!!!!!!!!!!!!! |  !!!!!!!!!!!!!! | !!!!!!!!!!!!!! |",
        "|     steps      | tensor(6185962) | tensor(6185962) |   tensor(1.)   | tensor(6185962) |   tensor(1.)   |",
        "|      zero      |    tensor(0.)   |    tensor(0.)   |  tensor(nan)   |    tensor(0.)   |  tensor(nan)   |",
        "|     empty      |        -        |        -        |       -        |        -        |       -        |",
        "|     holes      |  tensor(0.2500) |  tensor(1.5000) |   tensor(6.)   |  tensor(1.2500) | tensor(1.2000) |",
        "| !!!!!!!!!!!!!! |  !!!!!!!!!!!!!! |  !!!!!!!!!!!!!! | !!!!!!!!!!!!!! |  !!!!!!!!!!!!!! | !!!!!!!!!!!!!! |",
        bar,
        "zero: all zero",
        "empty: empty",
        "holes: 2 NaN and 1 infinite, left out of the statistics",
    ]


def test_text_of_an_analysis_is_its_log(tmp_path):
    made = sample()
    made.save_log(tmp_path / "a.log")
    assert str(made) == made.to_log() == (tmp_path / "a.log").read_text()


def test_long_header_is_for_outputs():
    assert SHORT_HEADER != LONG_HEADER
    log = Analysis((row(),), header=LONG_HEADER).to_log()
    assert "| Multiple(Max/Mean) |" in log
    assert "| Versu(Max/Dynamic) |" in log


@pytest.mark.parametrize(
    ("values", "is_abnormal"),
    [
        pytest.param({"maximum": 10.0, "dynamic": 1.0}, False, id="ten times"),
        pytest.param({"maximum": 10.000001, "dynamic": 1.0}, True, id="a hair more"),
        pytest.param({"maximum": 1.0, "dynamic": 0.0}, True, id="over zero"),
        pytest.param({"maximum": 0.0, "dynamic": 0.0, "mean": 0.0}, False, id="all zero"),
        pytest.param({"nans": 1}, True, id="NaN"),
        pytest.param({"infinities": 1}, True, id="infinite"),
        pytest.param({"count": 0, "mean": NAN, "maximum": NAN, "dynamic": NAN}, False, id="empty"),
        pytest.param({"count": 0, "mean": NAN, "maximum": NAN, "dynamic": NAN, "nans": 3}, True, id="only NaN"),
    ],
)
def test_abnormal_is_more_than_ten_times_or_not_finite(values, is_abnormal):
    made = row(**values)
    assert made.is_abnormal is is_abnormal
    assert Analysis((made,)).abnormal == ((made,) if is_abnormal else ())


def test_notes_say_what_the_numbers_do_not():
    nothing = {"count": 0, "mean": NAN, "maximum": NAN, "dynamic": NAN}
    rows = (
        row("a"),
        row("b", nans=3),
        row("c", infinities=2),
        row("d", **nothing, nans=1),
        row("e", **nothing, note="a meta tensor has no values"),
        row("f", maximum=0.0, note="sparse"),
    )
    assert Analysis(rows).notes == (
        "b: 3 NaN, left out of the statistics",
        "c: 2 infinite, left out of the statistics",
        "d: 1 NaN, left out of the statistics; no finite values",
        "e: a meta tensor has no values",
        "f: sparse; all zero",
    )


def test_one_value_is_its_own_mean_also_where_float32_has_no_room():
    """16777219 is between two float32 numbers."""
    made = row(count=1, mean=16777220.0, maximum=16777219, dynamic=16777219)
    assert (made.mean, made.multiple, made.versu) == (16777219, 1, 1)
    assert made.cells()[1:4] == ["tensor(16777219)", "tensor(16777219)", "tensor(1.)"]


def refuse_constants(text):
    raise AssertionError(f"{text} is not JSON")


def test_json_has_null_where_a_number_is_not_finite():
    rows = json.loads(sample().to_json(), parse_constant=refuse_constants)
    assert [r["name"] for r in rows] == ["conv.weight", "spike.weight", "steps", "zero", "empty", "holes"]
    numbers = {"mean": 0.25, "max": 1.5, "multiple": 6.0, "dynamic": 1.25, "versu": row().versu, "count": 12}
    words = {"name": "conv.weight", "shape": "4×3", "dtype": "float32", "call": 0, "note": "", "is_abnormal": False}
    assert rows[0] == numbers | words
    assert rows[2]["max"] == 6185962
    assert rows[3]["multiple"] is rows[3]["versu"] is None
    assert rows[4]["mean"] is rows[4]["max"] is None
    assert rows[5]["is_abnormal"] is True
    infinite = Analysis((row(dynamic=0.0),))
    assert json.loads(infinite.to_json(), parse_constant=refuse_constants)[0]["versu"] is None


def test_csv_parses_back():
    made = Analysis((*sample().rows, row('a, "quoted"\nname')))
    parsed = list(csv.DictReader(io.StringIO(made.to_csv())))
    assert list(parsed[0]) == list(Row.__dataclass_fields__)
    for found, expected in zip(parsed, made.to_dicts(), strict=True):
        assert found == {key: "" if value is None else str(value) for key, value in expected.items()}
        assert found["versu"] == "" or float(found["versu"]) == expected["versu"]


def write_json(made, path):
    return made.to_json(path)


def write_csv(made, path):
    return made.to_csv(path)


def write_log(made, path):
    made.save_log(path)
    return made.to_log()


WRITERS = pytest.mark.parametrize("write", [write_json, write_csv, write_log])


@WRITERS
@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
def test_file_holds_the_text(tmp_path, write, kind):
    text = write(sample(), kind(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == text.encode()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@WRITERS
def test_failed_write_leaves_the_old_file(tmp_path, write, monkeypatch):
    (tmp_path / "out").write_text("before")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write(sample(), tmp_path / "out")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out", "before")]


@WRITERS
def test_missing_folder_is_named(tmp_path, write):
    with pytest.raises(UsageError, match=r"nowhere.*does not exist"):
        write(sample(), tmp_path / "nowhere" / "out")
    assert not list(tmp_path.iterdir())


def test_terminal_shows_every_row_and_marks_the_abnormal_ones():
    made = sample()
    assert [r.style for r in made.__rich__().rows] == ["", "bold red", "", "", "", "bold red"]
    console = Console(record=True, width=140, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(made)
    lines = console.export_text(styles=True).splitlines()
    by_name = {r.name: next(line for line in lines if r.name in line) for r in made.rows}
    assert {name for name, line in by_name.items() if "\x1b[1;31m" in line} == {"spike.weight", "holes"}
    assert "2 NaN and 1 infinite" in by_name["holes"]
    assert "6185962" in by_name["steps"]
    assert "25" in by_name["spike.weight"]


def test_terminal_shows_names_as_they_are():
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(Analysis((row("a[bold]b"),), title="[red]t"))
    text = console.export_text()
    assert "a[bold]b" in text
    assert "[red]t" in text


def test_rows_are_frozen_and_carry_no_table_between_analyses():
    first, second = Analysis((row("a"),)), Analysis((row("b"),))
    assert "a" not in [r.name for r in second.rows]
    assert first.to_log() == Analysis((row("a"),)).to_log()
    with pytest.raises(AttributeError):
        first.rows[0].mean = 1


def test_repr_is_one_short_line():
    assert repr(sample()) == "Analysis(6 tensors, 2 abnormal)"
