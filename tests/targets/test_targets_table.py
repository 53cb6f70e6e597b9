"""The tables of docs/targets.md are those of the chips' files."""

from linger.dialect import ops
from linger.targets import CHIPS, TARGETS, Status
from tests.support.tools import load_tool

TABLE = load_tool("targets_table")


def test_the_page_is_not_older_than_the_files():
    text = TABLE.PAGE.read_text(encoding="utf-8")
    assert TABLE.page(text) == text, "run tools/targets_table.py"


def test_every_op_and_every_chip_has_a_cell():
    rows = {row[0].strip("`"): dict(zip(CHIPS, row[1:], strict=True)) for row in TABLE.op_rows()}
    assert set(ops()) <= set(rows)
    seen = {
        op: [rows[op][chip] for chip in ("venus", "arcs", "venusA")]
        for op in ("iqSub", "LinearInt", "Clip", "float Sigmoid")
    }
    assert seen == {
        "iqSub": ["differs", "differs", "not tried"],
        "LinearInt": ["**exact**", "**exact**", "**exact**"],
        "Clip": ["refused"] * 3,
        "float Sigmoid": ["refused", "refused", "not tried"],
    }


def test_what_is_unknown_is_said():
    for op in ("Expand", "iqSub", "Squeeze", "Gather"):
        assert TARGETS["venusA"].status_of(op) is Status.UNTRIED


def test_every_value_of_every_chip_has_a_row():
    rows = {row[0].strip("`") for row in TABLE.limit_rows()}
    given = {f"{name}.{key}" for target in TARGETS.values() for name, values in target.limits.items() for key in values}
    assert given == rows & given
    assert all(row[1] for row in TABLE.limit_rows())
