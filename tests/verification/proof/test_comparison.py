"""Batch by batch: every level, every computation, the first difference in the order of computation."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Recording
from linger.errors import GraphError, UsageError
from linger.verification.proof.comparison import RecordingComparison, Way
from tests.support.lowering import attach_functions
from tests.support.recorded import TEXT, Q, R, X, Y


def compared(recording, text=TEXT, **way):
    made = RecordingComparison(ir.from_proto(onnx.parser.parse_model(text)), Way(**way))
    made.add(recording)
    return made


def partial(**integers):
    return Recording(inputs=[X], integers=integers, is_complete=False)


def test_the_first_difference_is_the_first_in_the_order_of_computation():
    # recorded in another order than that of the file
    wrong = Recording(inputs=[X], integers={"r": R + np.int8(1), "q": Q + np.int8(1)})
    first = compared(wrong).first
    assert (first.tensor, first.node, first.op_type, first.index) == ("q", "q (Quant)", "Quant", (0, 0))
    assert (first.expected_by, first.expected, first.found_by, first.found) == ("recording", 17, "numpy", 16)
    assert first.inputs_agree


def test_inputs_that_agree_are_told_from_those_that_were_not_recorded():
    assert compared(partial(q=Q, r=R + np.int8(1))).first.inputs == {"q": True}
    assert compared(partial(r=R + np.int8(1))).first.inputs == {"q": None}


def test_a_damaged_body_is_found_between_numpy_and_the_runtime():
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    attach_functions(model)
    quant = next(f for f in model.functions.values() if f.name == "Quant")
    for node in quant:
        if node.op_type == "Floor":
            node.op_type = "Ceil"
    made = RecordingComparison(model, Way())
    made.add(Recording(inputs=[X]))
    # ⌈16 + ½⌉ instead of ⌊16 + ½⌋
    first = made.first
    assert (first.tensor, first.expected_by, first.expected, first.found_by, first.found) == (
        "q",
        "numpy",
        16,
        "ONNX Runtime",
        17,
    )
    assert made.rows["q"].differing == 3


@pytest.mark.parametrize("levels", [("all",), ("disable", "basic", "extended", "all")], ids=["one", "four"])
def test_every_level_runs_and_agrees(levels):
    made = compared(Recording(inputs=[X], outputs=[Y], integers={"q": Q, "r": R}), levels=levels)
    assert len(made.sessions) == len(levels)
    assert made.first is None
    assert [(r.values, r.differing) for r in made.rows.values()] == [(3, 0), (3, 0)]  # counted once, not per level


def test_the_level_that_differs_is_named(monkeypatch):
    made = RecordingComparison(ir.from_proto(onnx.parser.parse_model(TEXT)), Way(levels=("disable", "basic")))
    wrong = made.sessions["ONNX Runtime at basic"]
    original = wrong.intermediates
    monkeypatch.setattr(wrong, "intermediates", lambda feeds: {**original(feeds), "r": R + np.int8(2)})
    made.add(Recording(inputs=[X]))
    assert made.first.found_by == "ONNX Runtime at basic"
    assert (made.first.tensor, made.first.inputs) == ("r", {"q": True})


def test_a_plain_run_that_differs_is_found_though_watching_agrees(monkeypatch):
    made = RecordingComparison(ir.from_proto(onnx.parser.parse_model(TEXT)), Way(levels=("disable", "basic")))
    monkeypatch.setattr(made.sessions["ONNX Runtime at basic"], "run", lambda names, feeds: [Y + np.float32(0.0625)])
    made.add(Recording(inputs=[X]))
    assert made.first.found_by == "ONNX Runtime at basic, run plainly"
    assert made.first.inputs_agree is None  # a plain run shows no inputs
    assert made.output_rows["y"].differing == 3


def test_options_reach_the_sessions():
    made = compared(Recording(inputs=[X]), options={"intra_op_num_threads": 1})
    assert made.sessions["ONNX Runtime"].get_session_options().intra_op_num_threads == 1


def test_types_and_shapes_that_differ_are_differences():
    first = compared(partial(r=R.astype(np.int16))).first
    assert (first.index, first.expected, first.found) == ((), "int16[1, 3]", "int8[1, 3]")
    first = compared(partial(r=R[0])).first
    assert (first.expected, first.found) == ("int8[3]", "int8[1, 3]")


def test_tensors_of_one_side_are_missing():
    made = compared(Recording(inputs=[X], integers={"q": Q, "other": R}))
    assert list(made.missing) == ["other", "r"]
    assert list(compared(partial(other=R)).missing) == ["other"]  # some tensors may be left out, none made up


def test_a_recorded_tensor_of_floats_is_compared_within_rounding():
    text = TEXT.replace("y = thinker.Dequant<scale_o=16.0>(r)", "f = thinker.Dequant<scale_o=16.0>(r) y = Exp(f)")
    near = compared(partial(f=Y + np.float32(1e-6)), text)
    assert (near.first, near.output_rows["f"].differing, near.output_rows["f"].is_output) == (None, 0, False)
    far = compared(partial(f=Y + np.float32(0.1)), text)
    assert (far.first.tensor, far.output_rows["f"].differing) == ("f", 3)


def test_outputs_by_name_and_wrong_ones():
    assert compared(Recording(inputs=[X], outputs=[Y], output_names=("y",))).first is None
    with pytest.raises(UsageError, match=r"the recording has z; the file's outputs are y"):
        compared(Recording(inputs=[X], outputs=[Y], output_names=("z",)))
    with pytest.raises(UsageError, match=r"the recording has 2 outputs; the file's outputs are y"):
        compared(Recording(inputs=[X], outputs=[Y, Y]))


def test_inputs_by_name_and_wrong_ones():
    assert compared(Recording(inputs=[X], input_names=("x",))).first is None
    with pytest.raises(UsageError, match="lacks x and has unknown z"):
        compared(Recording(inputs=[X], input_names=("z",)))
    assert compared(Recording(inputs=[X.astype(np.float64)])).first is None  # numpy's own type, read as the file's
    with pytest.raises(UsageError, match="the model cannot run on x int64"):
        compared(Recording(inputs=[X.astype(np.int64)]))


def test_outputs_of_truth_values_and_wide_integers():
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[n] x) => (bool[n] b, int64[n] i, uint8[n] u) <float s = {1.0}> {
      b = Not(c) c = IsNaN(x) i = Cast<to = 7>(x) u = QuantizeLinear(x, s)
    }"""
    x = np.array([1.0, 200.0], np.float32)
    outputs = [np.array([True, True]), np.array([1, 200]), np.array([1, 200], np.uint8)]
    assert compared(Recording(inputs=[x], outputs=outputs), text).first is None
    outputs[0] = np.array([True, False])
    made = compared(Recording(inputs=[x], outputs=outputs), text)
    assert (made.first.tensor, made.first.expected, made.first.found) == ("b", False, True)


def test_an_op_that_the_reference_lacks_is_one_sentence():
    text = """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]> g (float[n] x) => (float[n] y) {
      y = com.microsoft.QuickGelu(x)
    }"""
    with pytest.raises(GraphError, match=r"the numpy reference cannot take the model.*QuickGelu"):
        compared(Recording(inputs=[np.ones(2, np.float32)]), text)
