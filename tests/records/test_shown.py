"""A result says what its columns, rows and facts are; the base shows it in every form."""

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from linger.records.table import Column, Result, Shown, Summed, picked


@dataclass(frozen=True)
class Row:
    name: str
    db: float


@dataclass(frozen=True, repr=False)
class Losses(Result):
    rows: tuple[Row, ...]
    goal: float
    path: Path | None = None

    _columns, _row_type = (Column("name", "layer"), Column("db", "dB", "{:.1f}")), Row

    def summary(self):
        return f"{len(self.rows)} layers"

    def _notes(self):
        return ["so it is"]

    def _image(self):
        return "<svg/>"


@dataclass(frozen=True, repr=False)
class Bytes(Summed):
    rows: tuple[Row, ...]

    _columns = (Column("name", "layer"),)

    def summary(self):
        return "5 bytes"

    def _title(self):
        return "memory"


LOSSES = Losses((Row("conv", 31.25), Row("fc", math.inf)), 30.0, Path("a/b"))


def drawn(result):
    console = Console(width=80, file=io.StringIO())
    console.print(result)
    return console.file.getvalue()


def test_text_has_the_summary_the_rows_and_the_notes():
    assert str(LOSSES) == "2 layers\nlayer    dB\nconv   31.2\nfc      inf\nso it is"
    assert repr(LOSSES) == "Losses(2 layers)"


def test_json_has_every_field_and_csv_every_row(tmp_path):
    text = LOSSES.to_json(tmp_path / "r.json")
    assert json.loads(text) == {
        "goal": 30.0,
        "path": "a/b",
        "rows": [{"name": "conv", "db": 31.25}, {"name": "fc", "db": "inf"}],
    }
    assert (tmp_path / "r.json").read_text() == text
    assert list(csv.reader(io.StringIO(LOSSES.to_csv()))) == [["name", "db"], ["conv", "31.25"], ["fc", "inf"]]


def test_json_of_nothing_has_every_key():
    @dataclass(frozen=True, repr=False)
    class Nothing(Losses):
        notes: tuple[str, ...] = ()

    assert json.loads(Nothing((), 1.0).to_json()) == {"goal": 1.0, "path": None, "notes": [], "rows": []}
    assert Nothing((), 1.0).to_csv() == "name,db\n"


def test_html_has_the_image_and_rich_the_rows():
    page = LOSSES._repr_html_()
    assert page.index("2 layers") < page.index("<svg/>") < page.index("conv") < page.index("so it is")
    assert "31.2" in drawn(LOSSES)


def test_a_summary_may_stand_below():
    result = Bytes((Row("conv", 1.0),))
    assert str(result) == "layer\nconv\n5 bytes"
    shown = drawn(result)
    assert shown.index("memory") < shown.index("conv") < shown.index("5 bytes")
    assert result._repr_html_().index("memory") < result._repr_html_().index("5 bytes")


def test_a_result_without_a_summary_cannot_be_made():
    with pytest.raises(TypeError, match="summary"):
        Shown()


def test_attributes_are_picked_by_name():
    assert picked(LOSSES, "goal summary", "path") == {"goal": 30.0, "summary": "2 layers", "path": Path("a/b")}


def test_a_field_that_could_be_called_is_not():
    def must_not_run():
        pytest.fail("it was called")

    assert picked(Losses((), must_not_run), "goal") == {"goal": must_not_run}
