"""The documented weaknesses of the original's Identity removal and of its fix_dequant: text in, text out; files beside files."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from tests.support.graph_text import edits, parsed, shown
from tests.support.repairs import SPARING

WHOLE = "g (float[2] x) => (float[2] y) { q = Q16(x) y = Neg(q) }"
REPAIRED = "g (float[2] x) => (float[2] y) { q = Q16(x) r = DQ16(q) y = Neg(r) }"


def repairs(given: str, expected: str, **options):
    """The repair turns one text into another, and has nothing to do the second time."""
    result = linger.repair(parsed(given), **options)
    assert shown(result.model) == shown(parsed(expected))
    onnx.checker.check_model(ir.to_proto(result.model))
    assert linger.repair(result.model, rules=SPARING, **options).changes == ()
    return result


def outputs(result, **inputs):
    return [a.tolist() for a in linger.Session(result.model).run(None, {n: np.array(v) for n, v in inputs.items()})]


# Identities


def test_an_identity_from_an_input_to_an_output_stays():
    given = "g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x) q = Q16(x) r = DQ16(q) z = Neg(r) }"
    result = repairs(given, given)
    assert outputs(result, x=np.float32([1.5, 2.0])) == [[1.5, 2.0], [-1.5, -2.0]]


def test_an_identity_from_an_initializer_to_an_output_stays():
    given = "g (float[1] x) => (float[1] y, int8[1] z) <float[1] w = {2.5}> { y = Identity(w) z = Q16(x) }"
    result = repairs(given, given)
    assert outputs(result, x=np.float32([1.0])) == [[2.5], [16]]


def test_two_identities_of_one_tensor_are_two_outputs():
    result = repairs(
        "g (float[1] x) => (float[1] y, float[1] z) { q = Q16(x) r = DQ16(q) y = Identity(r) z = Identity(r) }",
        "g (float[1] x) => (float[1] y, float[1] z) { q = Q16(x) y = DQ16(q) z = Identity(y) }",
    )
    assert outputs(result, x=np.float32([1.5])) == [[1.5], [1.5]]


def test_two_identities_of_integers_are_two_real_outputs():
    result = linger.repair(
        parsed(
            "g (float[1] x) => (float[1] y, float[1] z, int8[1] n) { q = Q16(x) y = Identity(q) z = Identity(q) n = Relu(q) }"
        )
    )
    assert outputs(result, x=np.float32([1.5])) == [[1.5], [1.5], [24]]
    assert [o.dtype for o in result.model.graph.outputs] == [ir.DataType.FLOAT, ir.DataType.FLOAT, ir.DataType.INT8]


def test_an_identity_before_the_output_of_a_branch_goes_and_the_output_follows():
    result = repairs(
        """g (float[1] x, bool c) => (float[1] y) { y = If(c)<
        then_branch = t () => (float[1] a) { m = Neg(x) a = Identity(m) },
        else_branch = f () => (float[1] b) { k = Abs(x) i = Identity(k) b = Identity(i) }> }""",
        """g (float[1] x, bool c) => (float[1] y) { y = If(c)<
        then_branch = t () => (float[1] a) { a = Neg(x) }, else_branch = f () => (float[1] b) { b = Abs(x) }> }""",
    )
    assert outputs(result, x=np.float32([-1.5]), c=True) == outputs(result, x=np.float32([-1.5]), c=False) == [[1.5]]


def test_identities_of_captured_tensors_go_in_branches_of_branches():
    result = repairs(
        """g (float[1] x, bool c) => (float[1] y) { e = Neg(x) i = Identity(e) j = Identity(i) y = If(c)<
        then_branch = t () => (float[1] a) { a = If(c)<
            then_branch = t2 () => (float[1] a2) { k = Identity(j) a2 = Neg(k) },
            else_branch = f2 () => (float[1] b2) { b2 = Abs(j) }> },
        else_branch = f () => (float[1] b) { b = Abs(i) }> }""",
        """g (float[1] x, bool c) => (float[1] y) { e = Neg(x) y = If(c)<
        then_branch = t () => (float[1] a) { a = If(c)<
            then_branch = t2 () => (float[1] a2) { a2 = Neg(e) },
            else_branch = f2 () => (float[1] b2) { b2 = Abs(e) }> },
        else_branch = f () => (float[1] b) { b = Abs(e) }> }""",
    )
    assert outputs(result, x=np.float32([1.5]), c=True) == [[1.5]]


def test_a_branch_that_hands_on_a_captured_tensor_keeps_its_identity():
    given = """g (float[1] x, bool c) => (float[1] y) { e = Neg(x) y = If(c)<
        then_branch = t () => (float[1] a) { a = Identity(e) }, else_branch = f () => (float[1] b) { b = Abs(e) }> }"""
    result = repairs(given, given)
    assert outputs(result, x=np.float32([1.5]), c=True) == [[-1.5]]


# Dequants that were taken for Identities


def test_a_dequant_at_two_outputs_is_no_identity():
    given = "g (float[1] x) => (float[1] y, float[1] z) { q = Q16(x) y = DQ16(q) z = DQ16(q) }"
    result = linger.repair(parsed(given))
    assert outputs(result, x=np.float32([1.5])) == [[1.5], [1.5]]
    assert [o.name for o in result.model.graph.outputs] == ["y", "z"]


def test_the_scale_of_a_dequant_that_goes_is_not_lost():
    # only the misplaced Dequant says that the input has the scale 16
    result = repairs(
        """g (int8[2] n) => (float[2] y, int8[2] z) { d = DQ16(n) t = Transpose<perm = [0]>(d)
        z = thinker.Requant<data_bits = 8, o_bits = 8, scale_x = 16.0, scale_o = 8.0>(t) y = Neg(t) }""",
        """g (int8[2] n) => (float[2] y, int8[2] z) { t = Transpose<perm = [0]>(n)
        z = thinker.Requant<data_bits = 8, o_bits = 8, scale_x = 16.0, scale_o = 8.0>(t) r = DQ16(t) y = Neg(r) }""",
    )
    assert outputs(result, n=np.int8([32, -8])) == [[-2.0, 0.5], [16, -4]]


def test_dequants_around_integer_ops_go_and_the_one_that_is_needed_stays():
    result = repairs(
        "g (float[1] x) => (float[1] y) { q = Q16(x) a = DQ16(q) b = DQ4(q) s = ADD16(a, b) d = DQ16(s) e = DQ16(d) y = Neg(e) }",
        "g (float[1] x) => (float[1] y) { q = Q16(x) s = ADD16(q, q) d = DQ16(s) y = Neg(d) }",
    )
    assert outputs(result, x=np.float32([1.5])) == [[-3.0]]


def test_what_takes_whatever_it_gets_keeps_its_real_numbers():
    result = repairs(
        """g (float[1] x) => (double[1] y, float[1] z, int8[1] s) { q = Q16(x) d = DQ16(q) t = Relu(d) s = ADD16(t, t)
        y = Cast<to = 11>(t) z = Neg(t) }""",
        """g (float[1] x) => (double[1] y, float[1] z, int8[1] s) { q = Q16(x) t = Relu(q) s = ADD16(t, t)
        r = DQ16(t) y = Cast<to = 11>(r) z = Neg(r) }""",
    )
    assert outputs(result, x=np.float32([1.5])) == [[1.5], [-1.5], [48]]
    assert list(result.findings) == []
    repairs(
        "g (float[1] x) => (float[1] y, int8[1] s) { q = Q16(x) d = DQ16(q) t = Relu(d) s = ADD16(t, t) y = my.Warp(t) }",
        "g (float[1] x) => (float[1] y, int8[1] s) { q = Q16(x) t = Relu(q) s = ADD16(t, t) r = DQ16(t) y = my.Warp(r) }",
    )


# files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(parsed(WHOLE), path)
    return path


def listed(folder):
    return sorted(p.name for p in folder.iterdir())


def test_nothing_is_left_beside_the_repaired_file(file):
    result = linger.repair(str(file))  # the second argument has a default
    assert listed(file.parent) == ["net.onnx", "net_fix.onnx"]
    assert shown(linger.graph.load(result.path)) == shown(parsed(REPAIRED))


@pytest.mark.parametrize("name", ["net", "net.model", "net.onnx.bak", "n.x"])
def test_any_name_will_do(file, name):
    given = file.rename(file.parent / name)
    result = linger.repair(given)
    assert listed(file.parent) == sorted([name, f"{name}_fix.onnx"])
    assert result.path == file.parent / f"{name}_fix.onnx"


def test_names_do_not_grow(file):
    once = linger.repair(file)
    twice = linger.repair(once.path)
    first, second = (onnx.load(p) for p in (once.path, twice.path))
    assert first == second
    assert [n.name for n in first.graph.node][::2] == ["node_0", "node_1"]
    assert first.producer_name == onnx.load(file).producer_name


def test_every_change_is_told(file):
    result = linger.repair(file)
    told = edits(result)
    assert any("Dequant of 'q' at scale 16 inserted" in line for line in told)
    assert any("takes the real numbers of 'q'" in line for line in told)
    assert linger.repair(parsed(REPAIRED)).path is None
    assert edits(linger.repair(parsed(REPAIRED))) == []


def test_the_check_runs_what_comes_out(file):
    result = linger.repair(file, True)
    assert result.check is not None
    assert result.check.ok


def test_several_outputs_keep_their_order_and_names():
    result = repairs(
        "g (float[1] x) => (float[1] a, int8[1] b, float[1] c) { b = Q16(x) c = Neg(b) k = Relu(b) a = Transpose<perm = [0]>(k) }",
        """g (float[1] x) => (float[1] a, int8[1] b, float[1] c) { b = Q16(x) r = DQ16(b) c = Neg(r) k = Relu(b)
        m = Transpose<perm = [0]>(k) a = DQ16(m) }""",
    )
    assert outputs(result, x=np.float32([1.5])) == [[1.5], [24], [-1.5]]
