"""What standard nodes do with quantized tensors."""

import pytest

from linger.graph.formats.propagation import propagate
from tests.support.dialect_text import quantizing

EXTRA = "<int64[1] s = {-1}, float lo = {0.0}, float hi = {6.0}, int8 ilo = {0}, int8 ihi = {96}, float[1] f = {1.0}, int8[1] i = {1}, bool[1] m = {1}, int64[2] p = {1, 1}>"


def missing(body, **arguments):
    found = propagate(quantizing(body, extra=EXTRA, **arguments))
    return sorted((str(use).split(" ")[0], use.index) for use in found.missing), found


@pytest.mark.parametrize(
    "op",
    [
        "Reshape(q, s)", "Transpose(q)", "Relu(q)", "MaxPool<kernel_shape = [1]>(q)", "Clip(q, ilo, ihi)", "Concat<axis = 0>(q, q)",
        "Concat<axis = 0>(q, i)", "Where(m, q, q)", "Max(q, i)", "Pad(q, p)", "Pad(q, p, ilo)", "Gather(q, s)", "ReduceMax(q)",
    ],
)  # fmt: skip
def test_numbers_that_are_moved_or_selected_stay_integers(op):
    needed, found = missing(f"q = Q16(x) r = {op} y = DQ16(r)")
    assert needed == []
    assert found.findings == []
    assert {v.name: str(f) for v, f in found.facts.items()}["r"] == "int8 at scale 16"


@pytest.mark.parametrize(
    ("op", "indices"),
    [
        ("Exp(q)", [0]), ("Add(q, q)", [0, 1]), ("Add(x, q)", [1]), ("MatMul(q, x)", [0]), ("Neg(q)", [0]), ("HardSwish(q)", [0]),
        ("Clip(q, lo, hi)", [0]), ("Concat<axis = 0>(q, x)", [0]), ("Concat<axis = 0>(q, b)", [0, 1]), ("Pad(q, p, lo)", [0]),
        ("Max(q, f)", [0]), ("Where(m, q, x)", [1]), ("Max(q, w)", [0, 1]), ("Q8(q)", [0]), ("AveragePool<kernel_shape = [1]>(q)", [0]),
        ('Resize<mode = "linear">(q, , f)', [0]), ("Softmax(q)", [0]), ("ReduceMean(q)", [0]),
    ],
)  # fmt: skip
def test_ops_that_compute_need_real_numbers(op, indices):
    wide = "thinker.Quant <data_bits: int = 16, scale_x: float = 16.0> (x)"
    needed, found = missing(f"q = Q16(x) b = Q32(x) w = {wide} r = {op}", outputs="float[n] x2")
    assert [index for name, index in needed if name == "r"] == indices
    assert found.findings == []


@pytest.mark.parametrize("width", [16, 32])
def test_ops_that_the_runtime_lacks_for_a_width_get_real_numbers(width):
    body = f"q = thinker.Quant <data_bits: int = {width}, scale_x: float = 16.0> (x) r = DepthToSpace<blocksize = 2>(q) y = Exp(r)"
    assert missing(body)[0] == [("r", 0)]
    eight = body.replace(f"= {width}", "= 8")
    assert missing(eight)[0] == [("y", 0)]


def test_unless_integers_are_wanted_behind_them():
    body = "q = thinker.Quant <data_bits: int = 16, scale_x: float = 16.0> (x) r = Pad(q, p) y = thinker.Requant <data_bits: int = 16, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 16.0> (r)"
    assert missing(body, outputs="int8[n] y")[0] == []


def test_integers_are_compared_where_floats_would_say_the_same():
    assert missing("q = Q16(x) b = Equal(q, q) a = ArgMax(q) y = DQ16(q)")[0] == []
    assert missing("q = Q16(x) r = Q32(x) b = Less(q, r) y = DQ16(q)")[0] == [("b", 0), ("b", 1)]
    wide = "q = thinker.Quant <data_bits: int = 32, scale_x: float = 16.0> (x) b = ArgMax(q) y = DQ16(q)"
    assert missing(wide)[0] == [("b", 0)]


def test_a_cast_takes_integers_and_is_doubted():
    needed, found = missing("q = Q16(x) y = Cast<to = 1>(q)")
    assert needed == []
    assert [(f.severity, f.node) for f in found.findings] == [("warning", "y (Cast)")]
    needed, found = missing("q = Q16(x) w = Cast<to = 5>(q) y = Exp(w)")
    assert needed == [("y", 0)], "wider integers keep their scale"
    assert found.findings == []


def test_an_index_cannot_be_quantized_numbers():
    found = missing("q = Q16(x) y = Gather(x, q)")[1]
    assert [f.reason for f in found.findings] == ["input 1 cannot be quantized numbers, and 'q' is int8 at scale 16"]


def test_an_unknown_op_is_left_and_said():
    needed, found = missing("q = Q16(x) y = other.Op(q)", domains=', "thinker": 1, "other": 1')
    assert needed == []
    assert [(f.severity, f.node) for f in found.findings] == [("warning", "y (Op)")]
    behind_dequant = missing("q = Q16(x) d = DQ16(q) y = other.Op(d)", domains=', "thinker": 1, "other": 1')[1]
    assert behind_dequant.findings == []


def test_an_empty_optional_input_is_no_tensor():
    assert missing('q = Q16(x) r = Resize<mode = "nearest">(q, , f) y = DQ16(r)')[0] == []


def test_types_that_do_not_come_from_the_first_input():
    found = missing("q = Q16(x) d = DQ16(q) y = Where(m, d, x) o = OneHot(s, s, f)")[1]
    named = {v.name: str(f) for v, f in found.facts.items()}
    assert (named["y"], named["o"]) == ("float32", "float32")


def test_what_meets_a_tensor_of_an_unknown_type_is_left_and_said():
    body = "q = Q16(x) u = other.Op(x) y = Concat<axis = 0>(q, u)"
    needed, found = missing(body, domains=', "thinker": 1, "other": 1')
    assert needed == []
    assert [(f.severity, f.node) for f in found.findings] == [("warning", "y (Concat)")]


@pytest.mark.parametrize(
    "body",
    [
        "w = Cast<to = 7>(q) c = Concat<axis = 0>(w, w) r = Cast<to = 3>(c) y = DQ16(r)",
        "w = Cast<to = 7>(q) t = Transpose(w) g = Gather(t, s) r = Cast<to = 3>(g) y = DQ16(r)",
        "v = Cast<to = 6>(q) w = Cast<to = 7>(v) m2 = Greater(w, s) r = Where(m2, q, q) y = DQ16(r)",
    ],
    ids=["joined", "moved", "compared"],
)
def test_integers_that_are_wider_for_a_while_are_no_finding(body):
    assert missing(f"q = Q16(x) {body}")[1].findings == []


@pytest.mark.parametrize(
    "body",
    [
        "w = Cast<to = 7>(q) c = Mul(w, w) r = Cast<to = 3>(c) y = DQ16(r)",
        "w = Cast<to = 7>(q) c = Concat<axis = 0>(w, w) y = Cast<to = 1>(c)",
        "y = Cast<to = 1>(q)",
        "w = Cast<to = 7>(q) y = Gather(x, w)",
    ],
    ids=["computed", "real", "real at once", "indices"],
)
def test_integers_that_are_used_without_their_scale_are_a_finding(body):
    (finding,) = missing(f"q = Q16(x) {body}")[1].findings
    assert "as they are, without their scale" in str(finding)
