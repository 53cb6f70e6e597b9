"""What a comparison says."""

import json

import numpy as np

from linger import FileComparison
from linger.verification.devices.comparison_result import TensorDifference


def row(name, a, b, **settings):
    made = TensorDifference(name, name, op_type="Relu")
    made.add(0, np.int8(a), np.int8(b), **settings)
    return made


def comparison(*rows, **more):
    return FileComparison("a.onnx", "b.onnx", tuple(rows), 1, **more)


def test_agreement():
    result = comparison(row("q", [1, 2], [1, 2]))
    assert result.ok
    assert result.first is None
    assert result.summary() == "Equal: 1 tensor, 2 values, 1 batch."


def test_the_first_in_the_order_of_execution_is_named_not_the_worst():
    result = comparison(row("p", [1], [1]), row("q", [1, 2], [1, 3]), row("r", [1], [9]))
    assert not result.ok
    assert result.first.tensor == "q"
    assert [r.name for r in result.worst] == ["r", "q"]
    assert result.summary() == (
        "2 of 3 tensors differ: 2 of 4 values, 1 batch. The largest difference is 8 LSB. "
        "First: q (Relu) at [1] of batch 0: a has 2, b has 3."
    )


def test_nothing_compared_is_not_ok():
    assert not comparison().ok
    assert comparison().summary() == "No tensor could be compared."
    assert not comparison(row("q", [], [])).ok


def test_an_output_without_a_partner_is_not_ok():
    result = comparison(row("q", [1], [1]), only_a=("y",), missing_outputs=("y",))
    assert not result.ok
    assert "Without a partner are the outputs y. Only in a: y." in result.summary()


def test_other_tensors_without_a_partner_are_listed_only():
    result = comparison(row("q", [1], [1]), only_a=("t",), only_b=tuple("uvwxyz"), notes=("Mind the gap.",))
    assert result.ok
    assert result.summary().endswith("Only in a: t. Only in b: u, v, w, x, y and 1 more. Mind the gap.")


def test_json():
    content = json.loads(json.dumps(comparison(row("q", [1, 2], [1, 3], scale_a=4.0)).as_dict(), allow_nan=False))
    assert (content["ok"], content["first"], content["differing"]) == (False, "q", 1)
    (found,) = content["rows"]
    assert found["first"] == {"batch": 0, "index": [1], "a": 2, "b": 3}
    assert (found["largest"], found["largest_real"], found["unit"], found["scale"]) == (1.0, 0.25, "LSB", 4.0)


def test_a_comparison_is_shown_in_one_line():
    assert repr(comparison(row("q", [1, 2], [1, 2]))) == "FileComparison(ok, 1 tensor, 0 of 2 values differ)"
    assert repr(comparison(row("p", [1], [1]), row("q", [1, 2], [1, 3]))) == (
        "FileComparison(not ok, 2 tensors, 1 of 3 values differ)"
    )
