"""What a verification says."""

import numpy as np

from linger import Verification
from linger.verification.proof.comparison import count, count_integers
from linger.verification.proof.result import Cause, Divergence, FloatRow, TensorRow


def verification(**changes):
    row = TensorRow("conv")
    count_integers(row, np.arange(-20, 20, dtype=np.int8))
    values = {"rows": [row], "batches": 1, "first": None, "missing": (), "output_differences": 0, "float_error": 0.0}
    return Verification(**(values | changes))


def test_agreement_is_ok_and_counted():
    result = verification()
    assert result.ok
    assert result.summary() == "0 of 40 integers differ (1 tensor, 1 batch)."
    assert result.narrow == []


def test_each_kind_of_disagreement_is_not_ok():
    assert not verification(missing=("fc",)).ok
    assert not verification(output_differences=1).ok
    assert not verification(rows=[]).ok
    bad = TensorRow("fc", differing=1)
    assert not verification(rows=[bad]).ok


def test_nothing_compared_is_said():
    assert "Nothing is proved: the file has no integer tensors." in verification(rows=[]).summary()
    assert "Nothing is proved: there was no input." in verification(rows=[], batches=0).summary()


def test_first_divergence_is_in_the_summary():
    first = Divergence("conv", 2, (0, 3), "torch", 5, "ONNX Runtime", 6)
    assert "conv[0, 3] of batch 2: torch has 5, ONNX Runtime has 6" in verification(first=first).summary()


def divergence(**changes):
    values = {
        "tensor": "y",
        "batch": 0,
        "index": (1,),
        "expected_by": "numpy",
        "expected": 5,
        "found_by": "ONNX Runtime",
        "found": 6,
        "node": "fc (LinearInt)",
        "op_type": "LinearInt",
    }
    return Divergence(**(values | changes))


def test_a_node_whose_inputs_agree_is_the_one():
    found = divergence(inputs={"a": True, "b": True})
    assert found.inputs_agree is True
    assert str(found).endswith("; made by fc (LinearInt), its inputs agree, so it is this node")
    assert divergence(inputs={}).inputs_agree is True  # it works on the file's inputs and weights alone


def test_inputs_that_differ_or_are_not_known_are_named():
    found = divergence(inputs={"a": True, "b": False, "c": None})
    assert found.inputs_agree is False
    assert str(found).endswith("; made by fc (LinearInt), its input b differs already")
    unknown = divergence(inputs={"a": True, "c": None})
    assert unknown.inputs_agree is None
    assert str(unknown).endswith("its input c is not known")


def test_types_that_differ_have_no_index():
    found = divergence(index=(), expected="int8[3]", found="int16[3]", node="")
    assert str(found) == "y of batch 0: numpy has int8[3], ONNX Runtime has int16[3]"


def test_the_place_inside_a_body_is_said():
    inner = divergence(tensor="z", unit="iteration", batch=3)
    assert "so it is this node; inside it, z[1] of iteration 3: numpy has 5" in str(divergence(inside=inner))


def test_a_cause_says_what_to_do_or_that_it_is_none():
    found = Cause(("a (MatMul)", "b (Conv)", "c (Conv)", "d (Conv)", "e (Conv)"), "session.qdqisint8allowed")
    text = verification(output_differences=1, cause=found).summary()
    assert "a (MatMul), b (Conv), c (Conv) and 2 more may run in them" in text
    assert (
        "with session.qdqisint8allowed=1 the differences vanish, so that is the cause. Set this session option" in text
    )
    assert "so look elsewhere" in str(Cause(("a (MatMul)",), ""))


def test_row_counts_distinct_and_saturated_values():
    row = TensorRow("x")
    count_integers(row, np.array([127, 127, -128, 0], np.int8))
    count_integers(row, np.array([1, 0], np.int8))
    assert (row.values, row.distinct, row.saturated) == (6, 4, 3)
    assert verification(rows=[row]).narrow == [row]


def test_the_zero_of_unsigned_numbers_is_not_saturated():
    row = TensorRow("x")
    count_integers(row, np.array([0, 0, 255, 7], np.uint8))
    assert (row.distinct, row.saturated) == (3, 1)


def test_rows_have_fingerprints_of_all_batches():
    one, two, three = TensorRow("x"), TensorRow("x"), TensorRow("x")
    for row, arrays in ((one, [[1], [2]]), (two, [[1], [2]]), (three, [[1], [3]])):
        for array in arrays:
            count_integers(row, np.array(array, np.int8))
    assert one.sha256 == two.sha256 != three.sha256
    output = FloatRow("y", is_exact=True)
    count(output, np.array([1.0, 2.0], np.float32))
    assert (output.dtype, output.values, len(output.as_dict()["sha256"])) == ("float32", 2, 64)


def test_a_verification_is_shown_in_one_line():
    row = TensorRow("x")
    count_integers(row, np.array([1, 2], np.int8))
    assert repr(verification(rows=[row])) == "Verification(ok, 1 tensor, 0 of 2 integers differ)"
    row.differing = 1
    assert repr(verification(rows=[row, row])) == "Verification(not ok, 2 tensors, 2 of 4 integers differ)"
