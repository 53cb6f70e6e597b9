"""Quants before moves, Dequants behind them, Casts gone: programs that take and give integers, proven against the file."""

import numpy as np
import pytest

from linger import verify
from linger.c import build, export
from linger.c.network import load_network
from linger.c.steps import make_plan
from linger.runtime.reference import Reference
from tests.support.c_compiler import require_compiler
from tests.support.dialect_text import quantizing

PADDED = """
    wide = Pad (x, pads, border)
    a = Q16(wide)
    b = Q16(wide)
    s = ADD16(a, b)
    r = DQ16(s)
    t = Transpose <perm = [1, 0]> (r)
    y = Reshape (t, shape)
"""
PADS = "<int64[4] pads = {0, 1, 0, 2}, float border = {1.5}, int64[2] shape = {1, 14}>"
CAST = """
    q = Q16(x)
    w = Cast <to = 7> (q)
    first = Slice (w, zero, one, one)
    joined = Concat <axis = 1> (w, first)
    n = Cast <to = 3> (joined)
    r = thinker.Relu(n)
    y = DQ16(r)
"""
BOUNDS = "<int64[1] zero = {0}, int64[1] one = {1}>"
FILES = {
    "padded": (PADDED, "float[2,4] x", "float[1,14] y", PADS),
    "cast": (CAST, "float[2,4] x", "float[2,5] y", BOUNDS),
}


def file_of(name):
    body, inputs, outputs, extra = FILES[name]
    return quantizing(body, inputs=inputs, outputs=outputs, extra=extra)


@pytest.mark.parametrize("name", FILES)
def test_programs_take_and_give_integers_and_show_every_tensor_of_the_file(name, tmp_path):
    require_compiler()
    model = file_of(name)
    plan = make_plan(load_network(model))
    assert [edge.node is not None for edge in (*plan.inputs, *plan.outputs)] == [True, True]
    with build(export(model, tmp_path / "c")) as program:
        proof = verify(None, model, witness=program)
    assert proof.ok, proof.summary()


@pytest.mark.parametrize("name", FILES)
def test_what_stays_keeps_its_content(name):
    model, network = file_of(name), load_network(file_of(name))
    feed = {"x": np.array([[0.3, -1.1, 7.0, 99.0], [0.0, 2.5, -3.2, 1.03]], np.float32)}
    before, after = Reference(model).intermediates(feed), network.reference.intermediates(feed)
    shared = before.keys() & after.keys()
    assert {"y", "s" if name == "padded" else "n"} <= shared
    assert [key for key in shared if not np.array_equal(before[key], after[key])] == []


def test_states_that_nobody_reads_are_not_computed():
    body = """
        q = Q16(x)
        h, last, cell = thinker.LSTMInt <input_size = 3, hidden_size = 2, batch_first = 0, go_forward = 1, data_bits = 8,
          parameter_bits = 8, o_bits = 8, scale_i: float = 16.0, scale_iw: float = 64.0, scale_h: float = 128.0,
          scale_hw: float = 64.0, scale_o: float = 128.0> (q, w, v, b, c)
        y = DQ128(h)
    """
    w, v, b, c = (", ".join(str(i % 9 - 4) for i in range(n)) for n in (24, 16, 8, 8))
    extra = f"<int8[8,3] w = {{{w}}}, int8[8,2] v = {{{v}}}, int32[8] b = {{{b}}}, int32[8] c = {{{c}}}>"
    (step,) = make_plan(
        load_network(quantizing(body, inputs="float[5,1,3] x", outputs="float[5,1,2] y", extra=extra))
    ).steps
    assert step.outputs == ("h",)
