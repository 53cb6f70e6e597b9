"""A comparison on a terminal and as an image."""

import re

import numpy as np
import pytest
from rich.console import Console

from linger import FileComparison
from linger.errors import UsageError
from linger.reporting.printed import SHOWN_ROWS, comparison_table, draw_comparison, unmatched_table
from linger.verification.devices.comparison_result import TensorDifference


def row(name, a, b, *, other=None, matched="name", **settings):
    made = TensorDifference(name, other or name, matched, "Relu")
    made.add(0, np.int8(a), np.int8(b), **settings)
    return made


def comparison(*rows, **more):
    return FileComparison("a.onnx", "b.onnx", tuple(rows), 1, **more)


def printed(table):
    console = Console(width=400)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def lines(table, names):
    """The rows in order, by the tensors in them."""
    found = (line.split("│")[1].strip() for line in printed(table).splitlines() if line.startswith("│"))
    return [name for name in found if name in names]


def test_everything_of_a_row_is_shown():
    text = printed(comparison_table(comparison(row("conv", [127, 2, 3, 4], [126, 2, 3, 2], scale_a=16.0))))
    for cell in ("conv", "Relu", "int8", "4", "2 LSB", "0.75", "0: [0]", "127", "126", "0.125", "16", "25% / 0%"):
        assert f" {cell} " in text


def test_first_divergence_on_top_then_the_worst_then_the_equal():
    rows = [row("p", [1], [1]), row("q", [1], [2]), row("r", [1], [4]), row("s", [1], [9])]
    assert lines(comparison_table(comparison(*rows)), "pqrs") == ["q", "s", "r", "p"]
    assert lines(comparison_table(comparison(*rows), is_whole=True), "pqrs") == ["p", "q", "r", "s"]


def test_long_tables_are_cut_with_a_count():
    rows = [row(f"t{i}", [1], [1]) for i in range(SHOWN_ROWS + 5)]
    names = [r.name for r in rows]
    assert len(lines(comparison_table(comparison(*rows)), names)) == SHOWN_ROWS
    assert "… 5 more tensors; --all shows them" in printed(comparison_table(comparison(*rows)))
    assert len(lines(comparison_table(comparison(*rows), is_whole=True), names)) == SHOWN_ROWS + 5


def test_other_names_and_how_they_were_found():
    text = printed(comparison_table(comparison(row("conv", [1], [1], other="003_conv", matched="normalized name"))))
    assert "conv / 003_conv" in text
    assert "normalized name" in text


def test_columns_without_content_are_left_out():
    text = printed(comparison_table(comparison(row("conv", [1], [1]))))
    for column in ("matched by", "notes", "saturated", "first at", "scale"):
        assert column not in text


def test_names_are_not_markup():
    assert "[red]x[/red]" in printed(comparison_table(comparison(row("[red]x[/red]", [1], [1]))))


def test_tensors_without_a_partner_are_listed():
    assert unmatched_table(comparison(row("p", [1], [1]))) is None
    many = comparison(row("p", [1], [1]), only_a=("t",), only_b=tuple(f"u{i}" for i in range(SHOWN_ROWS + 2)))
    text = printed(unmatched_table(many))
    assert "… 3 more; --all" in text
    assert f"u{SHOWN_ROWS + 1}" not in text
    assert f"u{SHOWN_ROWS + 1}" in printed(unmatched_table(many, is_whole=True))


def test_the_image_names_the_first_divergence(tmp_path):
    rows = [row("p", [1], [1]), row("q", [1], [3]), row("r", [1], [90])]
    draw_comparison(comparison(*rows), tmp_path / "d.svg")
    text = (tmp_path / "d.svg").read_text()
    assert "first: q" in text
    assert "largest difference, LSB" in text
    draw_comparison(comparison(*rows), tmp_path / "d.png")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


def boxes(svg, color):
    """The bottom and the height of each box filled so, in points."""
    box = rf'<path d="M [\d.]+ ([\d.]+) \nL [\d.]+ \1 \nL [\d.]+ ([\d.]+) [^"]*"[^>]*fill: {color}"'
    return [(float(low), float(low) - float(high)) for low, high in re.findall(box, svg.read_text())]


def test_bars_are_as_high_as_the_differences(tmp_path):
    draw_comparison(comparison(row("p", [0], [1]), row("q", [0], [3])), tmp_path / "d.svg")
    _, (bottom, _) = boxes(tmp_path / "d.svg", "#ffffff")  # the image, and the axes in it
    one, three = boxes(tmp_path / "d.svg", "#33658a")
    assert [one[0], three[0]] == [bottom] * 2
    assert three[1] == pytest.approx(3 * one[1])


def test_shapes_that_differ_are_drawn_too(tmp_path):
    draw_comparison(comparison(row("p", [1, 2], [1])), tmp_path / "d.svg")
    assert "first: p" in (tmp_path / "d.svg").read_text()


def test_pictures_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="no tensor to draw"):
        draw_comparison(comparison(), tmp_path / "d.svg")
    with pytest.raises(UsageError, match="Choose one of these endings"):
        draw_comparison(comparison(row("p", [1], [1])), tmp_path / "d.bmp")
    assert list(tmp_path.iterdir()) == []
