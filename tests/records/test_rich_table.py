"""Names in full on any terminal."""

import io

import pytest
from rich.console import Console

from linger.records.rich_table import NarrowTable, table

NAME = "encoder.layers.11.self_attention.output_projection.weight"
HEADINGS = ("tensor", "max", "mean", "advice")


def drawn(width, rows=((NAME, "2.35", "0.7", "8 bits suffice (38 dB), as for nearly all of the others."),)):
    page = io.StringIO()
    made = NarrowTable("title [bold]", HEADINGS, rows, (True, False, False, True), ["bold"] * len(rows))
    Console(file=page, width=width).print(made)
    return page.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_is_cut_off(width):
    text = drawn(width)
    assert NAME in text
    assert "…" not in text
    assert "title [bold]" in text
    assert all(word in text for word in ("2.35", "0.7", "suffice", "others."))
    assert all(len(line) <= width for line in text.splitlines())
    assert ("┃" in text) == (width >= 120)


def test_a_name_beyond_the_terminal_is_folded_not_cut():
    assert NAME in drawn(30).replace("\n", "")


def test_an_empty_table_is_drawn():
    assert "tensor" in drawn(60, ())


def shown(what):
    out = io.StringIO()
    Console(file=out, width=120).print(what)
    return out.getvalue()


def test_cells_are_shown_as_they_are():
    text = shown(table("title", ("name", "value"), [("w is [out, in]", 3)]))
    assert "w is [out, in]" in text
    assert "title" in text


def test_numbers_are_right_aligned():
    made = table("t", ("a", "b"), [("x", 1)])
    assert [c.justify for c in made.columns] == ["left", "right"]
