"""The C of recurrent layers: what of a step is computed once."""

import pytest

from tests.support.c_units import Input, Unit
from tests.support.ops import find_op
from tests.support.samples import arrays


def scratch(op, *, is_tiled):
    """The shapes of the arrays that the first sample of an op needs: five steps of two rows, with four numbers of state."""
    sample = op.samples[0]
    inputs = [None if x is None else Input(x.shape, str(x.dtype)) for x in arrays(sample)]
    unit = Unit(is_tiled=is_tiled)
    function = unit.add("f", op.body, op.arrange(inputs), op.complete(sample.attributes), title="f")
    return [buffer.shape for buffer in function.scratch]


@pytest.mark.parametrize(("name", "gates"), [("LSTMInt", 4), ("GRUInt", 3)], ids=["LSTM", "GRU"])
def test_tiles_compute_the_products_of_all_gates_and_steps_at_once(name, gates):
    op = find_op(name)
    assert scratch(op, is_tiled=True) == [*scratch(op, is_tiled=False), (5, 2, 4 * gates)]
