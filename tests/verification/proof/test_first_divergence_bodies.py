"""Differences inside the bodies of If, Loop and Scan."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Recording, verify
from linger.errors import GraphError
from linger.graph import load, save
from linger.graph.core.nodes import all_nodes
from tests.support.lowering import attach_functions

ADD = "thinker.iqAdd<scale_x = 16.0, scale_y = 16.0, scale_o = 8.0>"
QUANT = "q = thinker.Quant<data_bits = 8, scale_x = 16.0>(x)"


def damage(model):
    attach_functions(model)
    for function in model.functions.values():
        for node in all_nodes(function):
            if function.name == "iqAdd" and node.op_type == "Floor":
                node.op_type = "Ceil"


def proof(text, *feeds, is_damaged=True):
    """The file with a body of iqAdd that makes ⌈v + ½⌉ of ⌊v + ½⌋, which numpy knows nothing of: only ties stay right."""
    model = ir.from_proto(onnx.parser.parse_model(text))
    if is_damaged:
        damage(model)
    return verify([Recording(inputs=list(feeds))], model)


def header(inputs, outputs):
    return f'<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g ({inputs}) => ({outputs})'


IF = (
    header("float[2] x, bool c", "int8[2] y")
    + f"""{{
  {QUANT}
  [choice] y = If(c)<
    then_branch = t () => (int8[2] a) {{ a = Identity(q) }},
    else_branch = e () => (int8[2] b) {{ r = thinker.Relu(q) [sum] s = {ADD}(r, q) b = Identity(s) }}
  >
}}"""
)
X = np.array([0.0625, 1.0], np.float32)
# q = 1, 16: the halves of 1 are ties and make 1 + 1; those of 16 make 8 + 8, and 9 + 9 where they are wrong


def test_the_branch_that_ran_is_entered():
    result = proof(IF, X, np.array(False))
    first = result.first
    assert (first.tensor, first.node, first.op_type) == ("y", "choice (If)", "If")
    assert first.inputs_agree
    inside = first.inside
    assert (inside.tensor, inside.node, inside.index, inside.unit) == ("s", "sum (iqAdd)", (1,), "branch")
    assert (inside.expected, inside.found) == (16, 18)
    assert inside.inputs == {"r": True}  # q comes from outside
    assert "made by choice (If), its inputs agree, so it is this node; inside it, s[1] of branch 0" in str(first)


def test_a_branch_with_weights_beside_the_model_is_entered(tmp_path, monkeypatch):
    weights = "<int8[2] w = {1, 16}>"
    text = IF.replace("(int8[2] b) {", f"(int8[2] b) {weights} {{").replace(f"{ADD}(r, q)", f"{ADD}(r, w)")
    model = ir.from_proto(onnx.parser.parse_model(text))
    damage(model)
    monkeypatch.setattr("linger.graph.files.model_io.INLINE_BYTES", 0)
    save(model, tmp_path / "m.onnx", external_data=True)
    result = verify([Recording(inputs=[X, np.array(False)])], load(tmp_path / "m.onnx"))
    assert (result.first.inside.tensor, result.first.inside.index) == ("s", (1,))


def test_the_branch_that_did_not_run_does_not_matter():
    assert proof(IF, X, np.array(True)).ok
    assert proof(IF, X, np.array(False), is_damaged=False).ok


LOOP = (
    header("float[2] x, int64 n", "int8[2] y, int8[k, 2] all")
    + f"""{{
  {QUANT}
  c = Constant<value = bool {{1}}>()
  [turns] y, all = Loop(n, c, q)<body = b (int64 i, bool going, int8[2] state) => (bool still, int8[2] next, int8[2] each) {{
    still = Identity(going)
    [sum] next = {ADD}(state, q)
    each = Identity(next)
  }}>
}}"""
)


def test_a_loop_is_followed_to_the_iteration_where_it_begins():
    ones = np.array([0.0625, 0.0625], np.float32)
    # q = 1 and a state of 1 are ties: 1 + 1 = 2; the next state, 2, makes 1 + 1, or 2 + 1 where it is wrong
    assert proof(LOOP, ones, np.array(1)).ok
    first = proof(LOOP, ones, np.array(3)).first
    assert (first.node, first.inside.node) == ("turns (Loop)", "sum (iqAdd)")
    assert (first.inside.unit, first.inside.batch, first.inside.index) == ("iteration", 1, (0,))
    assert (first.inside.expected, first.inside.found) == (2, 3)


def test_a_body_is_given_the_number_of_its_iteration():
    text = LOOP.replace(
        f"[sum] next = {ADD}(state, q)",
        f"""
      one = Constant<value = int64 {{1}}>()
      two = Constant<value = int64[1] {{2}}>()
      sum = Add(i, one)
      small = Cast<to = 3>(sum)
      k = Expand(small, two)
      [sum] next = {ADD}(k, q)""",
    )
    # k is 1 at first, a tie; then 2, which makes 1 + 1, or 2 + 1
    first = proof(text, np.array([0.0625, 0.0625], np.float32), np.array(3)).first
    assert (first.inside.batch, first.inside.expected, first.inside.found) == (1, 2, 3)


def test_a_loop_that_ends_itself_is_followed_no_further():
    text = LOOP.replace("still = Identity(going)", "one = Constant<value = int64 {1}>() still = Less(i, one)")
    first = proof(text, np.array([0.0625, 0.5], np.float32), np.array(9)).first
    assert (first.inside.batch, first.inside.index) == (0, (1,))
    ends = LOOP.replace("still = Identity(going)", "still = Not(going)")
    assert proof(ends, np.array([0.0625, 0.0625], np.float32), np.array(9)).ok


SCAN = (
    header("float[3, 2] x", "int8[2] y, int8[3, 2] all")
    + f"""{{
  {QUANT}
  z = Constant<value = int8[2] {{1, 1}}>()
  [sweep] y, all = Scan<num_scan_inputs = 1, body = b (int8[2] state, int8[2] row) => (int8[2] next, int8[2] each) {{
    [sum] next = {ADD}(state, row)
    each = Identity(next)
  }}>(z, q)
}}"""
)


def test_a_scan_is_followed_row_by_row():
    # ties in the first row, 1 + 1 = 2; in the second 2 makes 1 + 1, or 2 + 1
    x = np.full((3, 2), 1 / 16, np.float32)
    first = proof(SCAN, x).first
    assert (first.node, first.inside.node, first.inside.batch) == ("sweep (Scan)", "sum (iqAdd)", 1)
    assert (first.inside.expected, first.inside.found) == (2, 3)


def test_a_scan_is_followed_to_its_last_row():
    # odd numbers are ties, so states are right: 1 + 2 = 3, 2 + 1 = 3; then 2 makes 2 + 1, or 2 + 2
    x = np.array([[3, 3], [1, 1], [2, 2]], np.float32) / 16
    first = proof(SCAN, x).first
    assert (first.inside.node, first.inside.batch) == ("sum (iqAdd)", 2)
    assert (first.inside.expected, first.inside.found) == (3, 4)


def test_bodies_in_bodies():
    text = (
        header("float[2] x, int64 n, bool c", "int8[2] y")
        + f"""{{
      {QUANT}
      t = Constant<value = bool {{1}}>()
      [turns] y = Loop(n, t, q)<body = b (int64 i, bool going, int8[2] state) => (bool still, int8[2] next) {{
        still = Identity(going)
        [choice] next = If(c)<
          then_branch = p () => (int8[2] v) {{ [sum] v = {ADD}(state, q) }},
          else_branch = e () => (int8[2] w) {{ w = Identity(state) }}
        >
      }}>
    }}"""
    )
    first = proof(text, np.array([0.5, 0.3125], np.float32), np.array(2), np.array(True)).first
    assert first.node == "turns (Loop)"
    assert first.inside.node == "choice (If)"
    assert first.inside.inside.node == "sum (iqAdd)"


def test_a_scan_that_the_reference_lacks_is_refused_in_a_sentence():
    text = SCAN.replace("num_scan_inputs = 1", "num_scan_inputs = 1, scan_input_directions = [1]")
    with pytest.raises(GraphError, match=r"the numpy reference cannot take the model.*Scan is not implemented"):
        proof(text, np.zeros((3, 2), np.float32))


def test_a_difference_with_a_recording_stays_outside():
    model = onnx.parser.parse_model(IF)
    wrong = Recording([X, np.array(False)], integers={"y": np.zeros(2, np.int8)}, is_complete=False)
    first = verify([wrong], model).first
    assert (first.node, first.found_by, first.inside) == ("choice (If)", "numpy", None)
