"""The text of C: constant arrays in lines that people can read."""

import itertools

import numpy as np
import pytest

from tests.support.c_units import nodes


def test_the_numbers_of_a_table_fill_lines():
    # a number takes three letters here, and one more begins while 110 are not used up: 37 of them
    tables = nodes.Tables()
    name = tables.name([7] * 40)
    assert tables.lines(frozenset([name])) == [
        f"static const int8_t {name}[40] = {{",
        "   " + " 7," * 37,
        "   " + " 7," * 3,
        "};",
    ]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 3, 4), (6, 4), (3, 8), (24,)])
@pytest.mark.parametrize("order", [None, (2, 0, 1), (0, 2, 1)])
def test_an_array_is_read_in_any_shape(order, shape):
    numbers = np.arange(24).reshape(2, 3, 4)
    memory = (numbers if order is None else numbers.transpose(order)).ravel()
    buffer = nodes.Buffer("memory", "int8_t", (2, 3, 4), order)
    for index in itertools.product(*map(range, shape)):
        element = buffer.element(shape, tuple(map(str, index))).replace("/", "//")
        assert eval(element, {"memory": memory}) == numbers.reshape(shape)[index]
