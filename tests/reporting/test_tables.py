"""Tables on a terminal."""

import io

from rich.console import Console

from linger.reporting.tables import table, verification_table
from tests.verification.proof.test_result import verification


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


def test_verification_names_its_tensors():
    text = shown(verification_table(verification()))
    assert "0 of 40 integers differ" in text
    assert "conv" in text
