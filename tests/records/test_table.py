"""Rows as JSON, CSV, text and a rich table."""

import csv
import io
import json
import math
from dataclasses import dataclass

import pytest
from rich.console import Console

from linger.errors import UsageError
from linger.records.table import Column, to_csv, to_json, to_rich, to_text, written


@dataclass(frozen=True)
class Row:
    name: str
    db: float
    lsb: float | None = None


ROWS = [Row("conv,1", 31.25, 2.0), Row("[red]fc", math.inf)]
COLUMNS = (Column("name", "layer"), Column("db", "dB", "{:.1f}"), Column("lsb", "LSB", "{:.0f}"))


def test_json_reads_back_with_infinity_as_text():
    text = to_json({"best": -math.inf, "names": ("a",), "none": None}, ROWS, None)
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found == {
        "best": "-inf",
        "names": ["a"],
        "none": None,
        "rows": [{"name": "conv,1", "db": 31.25, "lsb": 2.0}, {"name": "[red]fc", "db": "inf", "lsb": None}],
    }
    assert float(found["rows"][1]["db"]) == math.inf


def test_csv_has_every_field_and_leaves_none_empty():
    found = list(csv.reader(io.StringIO(to_csv(Row, ROWS, None))))
    assert found == [["name", "db", "lsb"], ["conv,1", "31.25", "2.0"], ["[red]fc", "inf", ""]]
    assert to_csv(Row, [], None) == "name,db,lsb\n"


def test_text_is_aligned():
    assert to_text(COLUMNS, ROWS).splitlines() == [
        "layer      dB  LSB",
        "conv,1   31.2    2",
        "[red]fc   inf    -",
    ]


def test_rich_table_shows_names_as_they_are():
    console = Console(width=60, file=io.StringIO())
    console.print(to_rich("title [bold]", COLUMNS, ROWS))
    shown = console.file.getvalue()
    assert "title [bold]" in shown
    assert "[red]fc" in shown
    assert "31.2" in shown


@pytest.mark.parametrize("write", [lambda p: to_json({}, ROWS, p), lambda p: to_csv(Row, ROWS, p)], ids=["json", "csv"])
def test_a_file_holds_the_text_that_is_returned(tmp_path, write):
    path = tmp_path / "result"
    assert write(str(path)) == path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        written("text", tmp_path / "nowhere" / "file")
