"""The text of C: constant arrays in lines that people can read."""

from linger.numeric.c.text import Tables


def test_the_numbers_of_a_table_fill_lines():
    # a number takes three letters here, and one more begins while 110 are not used up: 37 of them
    tables = Tables()
    name = tables.name([7] * 40)
    assert tables.lines(frozenset([name])) == [
        f"static const int8_t {name}[40] = {{",
        "   " + " 7," * 37,
        "   " + " 7," * 3,
        "};",
    ]
