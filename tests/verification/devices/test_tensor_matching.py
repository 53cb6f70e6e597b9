"""Tensors of two files find each other."""

import numpy as np

from linger.verification.devices.compare import Side, match_tensors
from tests.support.onnx_text import parse

SHAPE = (1, 3)


def side(body, values=None, *, offset=0, **more):
    """A file and made-up contents: each tensor has its own, unless given. Names such as n5 become mere numbers."""
    model = parse(body, inputs="float[1,3] x", **more)
    made = {}
    for i, output in enumerate(output for node in model.graph for output in node.outputs):
        output.name = output.name[1:] if output.name[1:].isdigit() and output.name[0] == "n" else output.name
        made[output.name] = np.float32([[i, i + 0.5, i + 0.25]]) + offset
    return Side(model, made | (values or {}))


def other(*arguments, **more):
    """A second file, whose contents are different ones."""
    return side(*arguments, offset=100, **more)


def pairs(a, b):
    return match_tensors(a, b).pairs


def test_names():
    found = pairs(side("a = Exp(x) y = Neg(a)"), other("a = Abs(x) y = Neg(a)"))
    assert found == {"a": ("a", "name"), "y": ("y", "name")}


def test_renamed_tensors_are_found_by_structure():
    a = side("a = Exp(x) b = Neg(x) c = Add(a, b) y = Neg(c)")
    b = other("m = Neg(x) n = Exp(x) o = Add(n, m) y = Neg(o)")
    assert pairs(a, b) == {
        "a": ("n", "structure"),
        "b": ("m", "structure"),
        "c": ("o", "structure"),
        "y": ("y", "name"),
    }


def test_attributes_and_weights_may_differ():
    a = side("a = Clip(x, l) y = Neg(a)", extra="<float l = {1.0}>")
    b = other("m = Clip(x, k) y = Neg(m)", extra="<float k = {2.0}>")
    assert pairs(a, b)["a"] == ("m", "structure")


def test_a_named_tensor_anchors_what_follows_it():
    a = side("keep = Exp(x) a = Neg(keep) y = Abs(a)")
    b = other("p = Abs(x) keep = Sqrt(p) m = Neg(keep) y = Abs(m)")
    found = match_tensors(a, b)
    assert found.pairs["a"] == ("m", "structure")
    assert (found.rest_a(), found.rest_b()) == ([], ["p"])


def test_identities_do_not_break_the_structure():
    a = side("a = Exp(x) b = Neg(a) y = Abs(b)")
    b = other("m = Exp(x) i = Identity(m) n = Neg(i) y = Abs(n)")
    found = match_tensors(a, b)
    assert (found.pairs["a"], found.pairs["b"]) == (("m", "structure"), ("n", "structure"))
    assert found.rest_b() == ["i"]


def test_numbers_as_names_come_after_the_structure():
    a = side("n1 = Exp(x) n2 = Neg(n1) y = Abs(n2)")
    assert pairs(a, other("n1 = Exp(x) n2 = Neg(n1) y = Abs(n2)")) == {n: (n, "name") for n in ("1", "2", "y")}
    shifted = pairs(a, other("n5 = Exp(x) n1 = Neg(n5) y = Abs(n1)"))
    assert (shifted["1"], shifted["2"]) == (("5", "structure"), ("1", "structure"))


def test_numbers_as_names_count_where_the_structure_says_nothing():
    found = pairs(side("n1 = Exp(x) n2 = Neg(n1) y = Abs(n2)"), other("n1 = Abs(x) n2 = Sqrt(n1) y = Abs(n2)"))
    assert (found["1"], found["2"]) == (("1", "name"), ("2", "name"))
    wider = {"1": np.zeros((1, 4), np.float32)}
    found = match_tensors(side("n1 = Exp(x) y = Abs(n1)"), other("n1 = Sqrt(x) y = Abs(n1)", wider))
    assert (found.rest_a(), found.rest_b()) == (["1"], ["1"])  # a number and other sizes: not the same tensor


def test_twins_are_paired_in_order():
    a = side("a = Exp(x) b = Exp(x) y = Add(a, b)")
    b = other("m = Exp(x) n = Exp(x) y = Add(m, n)")
    assert {name: partner for name, (partner, _) in pairs(a, b).items()} == {"a": "m", "b": "n", "y": "y"}


def test_outputs_in_the_same_place():
    a = side("y = Exp(x)")
    b = other("p = Neg(x) z = Abs(p)", outputs="float[1,3] z")
    found = match_tensors(a, b)
    assert found.pairs == {"y": ("z", "output position")}
    assert found.rest_b() == ["p"]


def test_equal_content():
    content = np.float32([[7, 8, 9]])
    a = side("a = Exp(x) y = Neg(a)", {"a": content})
    b = other("p = Abs(x) m = Sqrt(p) y = Neg(m)", {"m": content})
    assert pairs(a, b)["a"] == ("m", "content")


def test_content_of_another_type_is_the_same_content():
    a = side("a = Exp(x) y = Neg(a)", {"a": np.int8([[7, 8, 9]])})
    b = other("p = Abs(x) m = Sqrt(p) y = Neg(m)", {"m": np.int16([[7, 8, 9]])})
    assert pairs(a, b)["a"] == ("m", "content")


def test_a_constant_content_says_nothing():
    zeros = np.zeros(SHAPE, np.float32)
    a = side("a = Exp(x) y = Neg(a)", {"a": zeros, "y": zeros})
    b = other("p = Abs(x) m = Sqrt(p) y = Neg(m)", {"m": zeros, "p": zeros, "y": zeros})
    found = match_tensors(a, b)
    assert found.rest_a() == ["a"]
    assert found.rest_b() == ["p", "m"]


def test_position_between_paired_tensors():
    a = side("k = Exp(x) a = Neg(k) y = Abs(a)", {"a": np.int8([[1, 2, 3]])})
    b = other("k = Exp(x) p = Sqrt(k) m = Floor(p) y = Abs(m)", {"m": np.int8([[1, 2, 4]])})
    found = match_tensors(a, b)
    assert found.pairs["a"] == ("m", "position")  # the only other int8 of these sizes between k and y
    assert found.rest_b() == ["p"]


def test_no_position_where_it_is_not_plain():
    a = side("k = Exp(x) a = Neg(k) y = Abs(a)")
    b = other("k = Exp(x) p = Sqrt(k) m = Floor(p) y = Abs(m)")
    found = match_tensors(a, b)
    assert "a" not in found.pairs


def test_time_grows_linearly():
    count = 3000
    body = " ".join(f"t{i} = Neg({'x' if not i else f't{i - 1}'})" for i in range(count))
    other = body.replace("t", "u")
    a, b = (side(text, outputs=f"float[1,3] {last}{count - 1}") for text, last in ((body, "t"), (other, "u")))
    assert len(pairs(a, b)) == count
