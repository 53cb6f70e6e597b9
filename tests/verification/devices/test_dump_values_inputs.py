"""The inputs that a device had."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.verification.devices.dump_values import DumpTensor, find_inputs
from tests.support.onnx_text import parse
from tests.support.small_dialect import Q, X, model

NET = ir.from_proto(model())


def matched(**arrays):
    return {0: {name: (DumpTensor(name, np.asarray(a), "f"), "name") for name, a in arrays.items()}}


def feed(found):
    ((only,),) = found.feeds.values()
    return only["x"]


def test_a_dumped_input():
    found = find_inputs(NET, matched(x=X, q=Q))
    assert np.array_equal(feed(found), X)
    assert (found.used, found.problems, found.notes) == ({"x"}, [], {})


def test_given_inputs_use_no_dump():
    found = find_inputs(NET, matched(x=X), X + 1)
    assert np.array_equal(feed(found), X + 1)
    assert found.used == set()


def test_an_input_that_the_device_took_as_integers():
    found = find_inputs(NET, matched(x=Q))
    assert np.array_equal(feed(found) * 16, Q)
    assert feed(found).dtype == np.float32
    assert list(found.notes) == ["The input x was dumped as int8: divided by its scale 16."]


def test_the_integers_behind_the_quant_are_enough():
    found = find_inputs(NET, matched(q=Q))
    assert np.array_equal(feed(found) * 16, Q)
    assert found.used == {"q"}
    assert list(found.notes) == ["The input x is made from the dumped integers q."]


def test_not_where_the_real_input_is_needed_elsewhere():
    net = ir.from_proto(model(("(s)", "(s) z = Neg(x)")))
    found = find_inputs(net, matched(q=Q))
    assert found.problems == ["The inputs x are not among the dumps. Give inputs."]
    assert np.array_equal(feed(find_inputs(net, matched(x=Q))), Q)  # whole numbers are real ones here


def test_whole_numbers_of_a_text_are_real_ones():
    dumps = {0: {"x": (DumpTensor("x", np.int64(Q), "f", is_text=True), "name")}}
    assert np.array_equal(feed(find_inputs(NET, dumps)), Q)


def test_what_the_dumper_kept():
    dumps = {0: {"q": (DumpTensor("q", Q, "f", op_input=X), "name")}}
    assert np.array_equal(feed(find_inputs(NET, dumps)), X)


@pytest.mark.parametrize(
    ("declared", "array", "shape"),
    [
        ("float[2,3]", np.zeros(6), (2, 3)),
        ("float[n,3]", np.zeros(6), (2, 3)),
        ("float[n,3]", np.zeros((1, 2, 3)), (2, 3)),
        ("float", np.zeros(1), ()),
    ],
    ids=["fixed", "open", "an axis too many", "a single number"],
)
def test_flat_numbers_take_the_sizes(declared, array, shape):
    net = parse("y = Exp(x)", inputs=f"{declared} x", outputs=f"{declared} y")
    assert feed(find_inputs(net, matched(x=array))).shape == shape


def test_flat_numbers_of_several_batches():
    net = parse("y = Exp(x)", inputs="float[1,3] x", outputs="float[1,3] y")
    assert len(find_inputs(net, matched(x=np.zeros(6))).feeds[0]) == 2


def test_numbers_that_do_not_fit_are_a_problem():
    net = parse("y = Exp(x)", inputs="float[2,3] x", outputs="float[2,3] y")
    (problem,) = find_inputs(net, matched(x=np.zeros(7))).problems
    assert problem == "batch 0: x is float64[7], expected float[2, 3]."


def test_no_dump_at_all_is_not_a_second_problem():
    assert find_inputs(NET, {}, X).problems == []
