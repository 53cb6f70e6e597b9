"""Findings as tables."""

from rich.console import Console

from linger import CheckResult
from linger.graph.core.nodes import Finding
from linger.reporting.printed import finding_tables


def shown(*findings, **options):
    console = Console(width=200)
    with console.capture() as capture:
        for table in finding_tables(CheckResult(findings), **options):
            console.print(table)
    return capture.get()


def dead(number):
    return Finding("warning", f"n{number} (Abs)", "no output of the graph depends on it", "Remove it.", "LGR205")


ERROR = Finding("error", "q (Quant)", "scale_x = [bold]3: no power of two", "Choose another.", "LGR402")
UNUSED = Finding("note", "", "the input 'x' has open sizes (n)", "Fix them.", "LGR211", "x")


def test_one_table_for_each_severity_the_worst_first():
    text = shown(ERROR, dead(1), UNUSED)
    assert text.index("1 error") < text.index("1 warning") < text.index("1 note")
    assert "LGR402 odd-scale" in text
    assert "│ x " in text  # a tensor, where there is no node


def test_text_is_shown_as_it_is():
    assert "scale_x = [bold]3" in shown(ERROR)


def test_many_findings_of_a_rule_are_folded():
    text = shown(*map(dead, range(9)), ERROR)
    assert "9 warnings" in text
    assert all(f"n{i} (Abs)" in text for i in range(3))
    assert "n3 (Abs)" not in text
    assert "… 6 more" in text
    assert "1 error" in text


def test_one_more_is_shown_rather_than_counted():
    text = shown(*map(dead, range(4)))
    assert "n3 (Abs)" in text
    assert "more" not in text


def test_all_on_request():
    text = shown(*map(dead, range(9)), shown=None)
    assert "n8 (Abs)" in text
    assert "more" not in text


def test_nothing_found_is_no_table():
    assert shown() == ""
