"""Two files, tensor by tensor."""

from functools import partial

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import pytest

import linger
from linger import compare as compare_tensors
from linger.errors import GraphError, UsageError
from tests.support.lowering import attach_functions, expand_dialect
from tests.support.onnx_text import BRANCH, content, parse
from tests.support.small_dialect import X, model

compare = partial(compare_tensors, engine="numpy")
"""The engine without sessions: ten times as quick. The tests that say linger.compare take the other."""


def expanded(proto):
    made = ir.from_proto(proto)
    expand_dialect(made)
    return made


def with_functions(proto):
    made = ir.from_proto(proto)
    attach_functions(made)
    return made


def test_a_file_equals_itself_in_every_form(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    for other in (str(path), path.read_bytes(), model(), ir.from_proto(model())):
        result = compare(path, other, X)
        assert result.ok
        assert [row.name for row in result.rows] == ["q", "r", "s", "y"]
        assert (result.values, result.batches, result.only_a, result.only_b) == (24, 1, (), ())


def test_the_usual_engine_is_onnx_runtime():
    result = linger.compare(model(), model(), X)
    assert (result.ok, result.values) == (True, 24)


def test_another_scale_is_found_where_it_begins():
    result = compare(model(), model(("scale_o=8.0>(q", "scale_o=4.0>(q"), ("scale_o=8.0>(s", "scale_o=4.0>(s")), X)
    assert not result.ok
    first = result.first
    assert (first.tensor, first.row.op_type) == ("s", "iqAdd")
    # a: ⌊−4/2 + ½⌋ + 0 = −2 at scale 8; b: ⌊−4/4 + ½⌋ + 0 = −1 at scale 4: the same real number. Only 127 differs:
    # a saturates at 127, 15.875; b has ⌊127/4 + ½⌋·2 = 64 at scale 4, which is 16
    assert (first.row.differing, first.row.first.index) == (1, (0, 1, 0, 1))
    assert (first.row.first.a, first.row.first.b, first.row.largest) == (127, 64, 1.0)
    assert "scale 8 against 4" in first.row.notes
    assert (result.rows[3].first.a, result.rows[3].first.b) == (15.875, 16.0)


def test_another_op_is_found_with_index_and_values():
    changed = model(("r = thinker.Relu(q)", "r = thinker.iqAbs<data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(q)"))
    result = compare(model(), changed, X)
    assert result.first.tensor == "r"
    place = result.first.row.first
    assert (place.index, place.a, place.b) == ((0, 0, 0, 1), 0, 16)
    assert (result.first.row.differing, result.first.row.largest, result.first.row.mean) == (2, 16.0, 20 / 6)
    assert result.first.row.largest_real == 1.0


@pytest.mark.parametrize("form", [expanded, with_functions], ids=["standard", "functions"])
@pytest.mark.parametrize("engine", ["onnxruntime", "numpy"])
def test_forms_of_the_same_file_are_equal(form, engine):
    result = compare_tensors(model(), form(model()), X, engine=engine)
    assert result.ok
    assert {row.name: row.matched for row in result.rows} == dict.fromkeys("qrsy", "name")
    assert all(row.scale for row in result.rows)  # of a, where b gives none
    if form is expanded:
        assert result.only_b  # what stands inside the nodes of a is listed


def test_renamed_tensors():
    changed = model(("q = ", "first = "), ("Relu(q)", "Relu(first)"), ("(q, r)", "(first, r)"))
    result = compare(model(), changed, X)
    assert result.ok
    assert next((row.name, row.other, row.matched) for row in result.rows) == ("q", "first", "structure")


def test_renamed_inputs_and_outputs():
    changed = model(
        ("[n,2,1,3] x", "[n,2,1,3] image"), ("(x)", "(image)"), ("[n,2,1,3] y", "[n,2,1,3] z"), ("y = ", "z = ")
    )
    result = compare(model(), changed, X)
    assert result.ok
    assert result.rows[-1].other == "z"


def test_int16_storage_of_the_same_numbers_is_equal_and_noted():
    body = "y = Cast<to = {}>(x)"
    a = parse(body.replace("{}", "3"), inputs="float[n] x", outputs="int8[n] y")
    b = parse(body.replace("{}", "5"), inputs="float[n] x", outputs="int16[n] y")
    result = compare(a, b, np.float32([1, -2]))
    assert result.ok
    assert list(result.rows[0].notes) == ["int8 against int16"]


INTEGER_OUTPUT = (("float[n,2,1,3] y", "int8[n,2,1,3] s"), ("y = thinker.Dequant<scale_o=8.0>(s)", ""))


@pytest.mark.parametrize("is_swapped", [False, True], ids=["floats first", "integers first"])
def test_an_integer_output_meets_the_float_of_a_dequant(is_swapped):
    files = [model(), model(*INTEGER_OUTPUT)]
    result = compare(*(files[::-1] if is_swapped else files), X)
    assert result.ok
    rows = {(row.name, row.other): row for row in result.rows}
    row = rows["s", "y"] if is_swapped else rows["y", "s"]
    assert (row.matched, row.scale, row.values) == ("output position", 8.0, 6)
    assert {row.dtype_a, row.dtype_b} == {"int8", "float32"}
    assert ("s", "s") in rows
    assert (result.only_a, result.only_b, result.missing_outputs) == ((), (), ())


def test_an_output_that_only_one_file_has_is_not_ok():
    more = model(("=> (float[n,2,1,3] y)", "=> (float[n,2,1,3] y, float[n,2,1,3] z)"), ("y = th", "z = Neg(y) y = th"))
    result = compare(model(), more, X)
    assert result.missing_outputs == ("z",)
    assert not result.ok


def test_inputs_are_made_up_from_the_seed():
    changed = model(("r = thinker.Relu(q)", "r = thinker.iqAbs<data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(q)"))
    counts = [compare(model(), changed, seed=seed, batches=2).differing for seed in (0, 0, 1)]
    assert counts[0] == counts[1] != counts[2]
    assert compare(model(), model(), batches=3).batches == 3


def test_batches_are_named():
    changed = model(("r = thinker.Relu(q)", "r = thinker.iqAbs<data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(q)"))
    result = compare(model(), changed, [np.abs(X), X])
    assert result.first.row.first.batch == 1


def test_different_weights_are_named():
    a, b = (parse("y = Add(x, w)", extra=f"<float[1] w = {{{n}}}>") for n in (1.0, 2.0))
    result = compare(a, b, np.float32([1]))
    assert not result.ok
    assert result.notes == ("Initializers of the same name that differ: w.",)


def test_float_tolerance():
    a, b = (parse("y = Mul(x, w)", extra=f"<float[1] w = {{{n}}}>") for n in (1.0, 1.0001))
    assert not compare(a, b, np.float32([1])).ok
    assert compare(a, b, np.float32([1]), float_tolerance=1e-3).ok


def test_branches_are_mentioned():
    result = compare(parse(BRANCH), parse(BRANCH), np.float32([1, 2]))
    assert result.ok
    assert "3 tensors inside branches and loops" in result.summary()


def test_functions_against_the_same_inlined():
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[n] x) => (float[n] y) { a = local.f(x) y = Neg(a) }
    <domain: "local", opset_import: ["": 17]> f (p) => (q) { t = Exp(p) q = Abs(t) }"""
    whole = onnx.parser.parse_model(text)
    result = compare(whole, onnx.inliner.inline_local_functions(whole), np.float32([1, 2]))
    assert result.ok
    assert [row.name for row in result.rows] == ["a", "y"]
    assert len(result.only_b) == 1  # what the function keeps to itself


def test_given_models_stay_as_they_are():
    a, b = ir.from_proto(model()), ir.from_proto(model())
    before = content(a), content(b)
    compare(a, b, X)
    assert (content(a), content(b)) == before


def test_wrong_calls(tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    (tmp_path / "raw.bin").write_bytes(b"123")
    for arguments, settings, message in (
        ((tmp_path, model()), {}, "these are dumps. Give the ONNX file first"),
        ((model(), model()), {"batches": 0}, "at least one"),
        ((model(), model()), {"float_tolerance": -1.0}, "negative"),
        ((model(), model()), {"float_tolerance": float("nan")}, "negative"),
        ((model(), model()), {"engine": "tpu"}, "none of onnxruntime, numpy"),
        ((tmp_path / "none.onnx", model()), {}, "no such file"),
        ((model(), tmp_path / "none.onnx"), {}, "no such file"),
        ((model(), tmp_path / "none"), {}, "no such file"),
        ((model(), tmp_path / "raw.bin"), {}, "raw bytes need a manifest"),
        ((model(), parse("y = Add(x, z)", inputs="float[n] x, float[n] z")), {}, "a has x, b has x, z"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(*arguments, **settings)
    with pytest.raises(GraphError, match="not a complete ONNX model"):
        compare(model(), b"\x08\x08garbage")


def test_float_ops_of_another_library_may_round_otherwise(tmp_path):
    curve = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (float[n] x) => (float[n] y) {
        q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x) d = thinker.Dequant <scale_o: float = 16.0> (q)
        y = Sigmoid(d) }"""
    )
    x = np.float32([0.5, -1.25, 2.0])
    true = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)
    np.savez(tmp_path / "near.npz", x=x, y=np.nextafter(true, np.float32(2)))
    assert compare(curve, tmp_path / "near.npz").ok
    assert not compare(curve, tmp_path / "near.npz", float_tolerance=0.0).ok
    np.savez(tmp_path / "far.npz", x=x, y=true + np.float32(0.01))
    assert not compare(curve, tmp_path / "far.npz").ok
    np.savez(tmp_path / "lsb.npz", x=x, q=np.int8([8, -20, 33]))
    assert not compare(curve, tmp_path / "lsb.npz").ok, "integers have no tolerance"
