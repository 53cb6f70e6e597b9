"""Cells as torch prints them, tables as the documents print them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.analysis import ALARM, cell, table_text
from tests.support.seed_blocks import read_blocks


def single(pattern):
    return float(np.array(pattern, np.uint32).view(np.float32))


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.floats(width=32),
        st.integers(0, 2**32 - 1).map(single),
        st.floats(2.0**-16, 2.0**30, width=32),
        st.integers(-(2**30), 2**30).map(np.float32).map(float),
    )
)
def test_float_is_printed_as_torch_prints_it(value):
    assert cell(value) == str(torch.tensor(value))


BORDERS = (
    *(0.0, -0.0, 1.0, 0.1, -0.5, 2.5, 0.99995, 9999.99995, 12345678.0, 16777216.0, 99999992.0, 1e8, 1.00000008e8),
    *(1e-4, 1.0000001e-4, 9.9999e-5, 1.4e-45, 3.4028234663852886e38, float("inf"), float("-inf"), float("nan")),
)


@pytest.mark.parametrize("value", BORDERS)
def test_float_at_a_border_is_printed_as_torch_prints_it(value):
    assert cell(float(np.float32(value))) == str(torch.tensor(value, dtype=torch.float32))


@settings(max_examples=100, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_integer_is_printed_as_torch_prints_it(value):
    assert cell(value) == str(torch.tensor(value))


def test_integer_beyond_int64_is_printed_whole():
    assert cell(2**63) == "tensor(9223372036854775808)"


@pytest.fixture
def _other_print_options():
    torch.set_printoptions(precision=1, sci_mode=True, linewidth=10)
    yield
    torch.set_printoptions(profile="default")  # which also takes sci_mode back


@pytest.mark.usefixtures("_other_print_options")
def test_print_options_of_the_process_do_not_matter():
    assert str(torch.tensor(0.80931)) == "tensor(8.1e-01)"
    assert cell(0.80931) == "tensor(0.8093)"
    assert [cell(v) for v in (1.0, 6185962, 1.5e-5)] == ["tensor(1.)", "tensor(6185962)", "tensor(1.5000e-05)"]


def test_alarm_is_fourteen_marks():
    assert ALARM == "!!!!!!!!!!!!!!"


def test_table_is_bordered_and_centerd():
    assert table_text(("ab", "c"), [("1", "22"), ("4444", "333")]).splitlines() == [
        "+------+-----+",
        "|  ab  |  c  |",
        "+------+-----+",
        "|  1   |  22 |",
        "| 4444 | 333 |",
        "+------+-----+",
    ]


def test_table_without_rows_is_its_header():
    assert table_text(("a", "b"), []) == "+---+---+\n| a | b |\n+---+---+\n+---+---+\n"


def documented_tables(page):
    """The lines of every table that a page prints."""
    texts = [block.text for block in read_blocks(page) if block.is_python and "+---" in block.text]
    return [[line for line in text.splitlines() if line[:1] in ("+", "|")] for text in texts]


@pytest.mark.parametrize("table", [0, 1], ids=["weights", "outputs"])
@pytest.mark.parametrize("document", ["000", "001"])
def test_documented_table_comes_out_byte_for_byte(shared, document, table):
    """A last row as wide as the printed columns stands for what the documents leave out."""
    (page,) = (shared / "seeds").glob(f"{document}_*.txt")
    border, header, _, *rows, _ = documented_tables(page)[table]
    cells = [[text.strip() for text in line.split("|")[1:-1]] for line in (header, *rows)]
    assert len(rows) == (5, 8)[table]
    widest = ["x" * (len(dashes) - 2) for dashes in border.split("+")[1:-1]]
    lines = table_text(cells[0], [*cells[1:], widest]).splitlines()
    assert lines == [border, header, border, *rows, f"| {' | '.join(widest)} |", border]
