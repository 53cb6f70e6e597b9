"""Results in notebooks: escaped tables and images of every result."""

import re
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from linger.records.table import bars_html, blocks_html, table_html

EVIL = "<script>alert(\"1\")</script> & 'x'"


def parsed(html):
    """HTML that is also XML: every tag is closed and every text escaped."""
    return ET.fromstring(html)


def test_a_table_with_everything_escaped():
    made = parsed(table_html(EVIL, ["a", EVIL], [[EVIL, "1"]], is_text=[True, False], notes=[EVIL]))
    cells = [cell.text for cell in made.iter("td")]
    assert cells == [EVIL, "1"]
    assert [cell.text for cell in made.iter("th")] == ["a", EVIL]
    assert made.find("div/b").text == EVIL
    assert not list(made.iter("script"))
    sides = [re.search("text-align:(\\w+)", cell.get("style"))[1] for cell in made.iter("td")]
    assert sides == ["left", "right"]


def test_a_long_table_is_cut_and_counted():
    made = table_html("many", ["n"], [[str(i)] for i in range(1000)])
    assert made.count("<td") == 200
    assert "… and 800 more rows" in made


def test_no_rows_are_no_table():
    assert "<table" not in table_html("nothing", ["n"], [])


def test_bars_are_as_long_as_their_values():
    made = parsed(bars_html(["a", EVIL, "c", "d"], [10.0, 20.0, None, float("inf")], "dB"))
    widths = [float(bar.get("width")) for bar in made.iter("rect")]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.11)
    assert len({bar.get("fill") for bar in made.iter("rect")}) == 2, "the worst has a color of its own"
    assert [text.text for text in made.iter("text")] == ["a", "10 dB", EVIL, "20 dB"]


@pytest.mark.parametrize("values", [[], [1.0], [None, float("nan")]], ids=["none", "one", "nothing finite"])
def test_too_little_to_draw(values):
    assert bars_html(["x"] * len(values), values, "dB") == ""


def test_bars_of_both_signs_and_of_zeros_stay_inside():
    for values in ([-3.0, 5.0], [0.0, 0.0]):
        made = parsed(bars_html(["a", "b"], values, "dB"))
        assert all(0 <= float(b.get("x")) <= 640 for b in made.iter("rect"))


def block(name, kind, first, last, offset):
    return SimpleNamespace(name=name, kind=kind, first=first, last=last, offset=offset, bytes=50)


def test_blocks_lie_where_their_bytes_are():
    blocks = [block("low", "input", 0, 0, 0), block(EVIL, "tensor", 0, 1, 50)]
    low, high = parsed(blocks_html(sorted(blocks, key=lambda b: b.offset), 2, 100)).iter("rect")
    places = {rect[0].text: (float(rect.get("y")), float(rect.get("height"))) for rect in (low, high)}
    assert places == {"low: 50 bytes": (100.0, 100.0), f"{EVIL}: 50 bytes": (0.0, 100.0)}
    assert blocks_html([], 0, 0) == ""
