"""The documented weaknesses of the original's Dequant pass, one by one: ONNX text in, ONNX text out.

Numbers in test names are those of the list. `Q16(x)` is a Quant at scale 16 (8 bits), `DQ16(x)` a Dequant, `ADD16(x, y)` an
iqAdd; what a graph computes is worked out by hand.
"""

import threading
import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.graph.core.nodes import ERROR, WARNING
from tests.support.graph_text import edits, parsed, shown
from tests.support.repairs import SPARING

WIDE = "thinker.Requant<data_bits = 8, o_bits = {0}, scale_x = 16.0, scale_o = {1}>(q)"
"""q, of 8 bits at scale 16, in another format."""


def mends(given: str, expected: str, *, opset: int = 13, functions: str = "", **options):
    """The repair turns one text into another, completely, and has nothing to do the second time."""
    result = linger.repair(parsed(given + functions, opset), **options)
    assert shown(result.model) == shown(parsed(expected + functions, opset))
    assert list(result.findings) == []
    onnx.checker.check_model(ir.to_proto(result.model))
    assert linger.repair(result.model, rules=SPARING, **options).changes == ()
    return result


def leaves(given: str, *, opset: int = 13, functions: str = "") -> None:
    """A right file is not touched."""
    result = linger.repair(parsed(given + functions, opset))
    assert shown(result.model) == shown(parsed(given + functions, opset))
    assert edits(result) == []
    assert list(result.findings) == []


def reports(given: str, severity: str, *words: str, opset: int = 13) -> None:
    """What the file does not tell is said, and nothing is guessed."""
    result = linger.repair(parsed(given, opset))
    assert shown(result.model) == shown(parsed(given, opset))
    assert [f.severity for f in result.findings] == [severity]
    assert all(word in str(result.findings[0]) for word in words)
    assert result.ok == (severity != ERROR)


def run(result, **inputs):
    """What ONNX Runtime computes, as lists."""
    arrays = {name: np.array(value, np.float32) for name, value in inputs.items()}
    return [a.tolist() for a in linger.Session(result.model).run(None, arrays)]


# 1: control flow by exception


def test_1_an_optional_input_that_is_left_empty_is_no_error():
    result = mends(
        """g (float[1,1,1,2] x) => (float[1,1,1,4] y) <float[4] k = {1, 1, 1, 2}>
        { q = Q16(x) y = Resize<mode = "linear">(q, "", k) }""",
        """g (float[1,1,1,2] x) => (float[1,1,1,4] y) <float[4] k = {1, 1, 1, 2}>
        { q = Q16(x) r = DQ16(q) y = Resize<mode = "linear">(r, "", k) }""",
    )
    # half pixels: 1, 1 + 1/4·2, 1 + 3/4·2, 3
    assert run(result, x=[[[[1.0, 3.0]]]]) == [[[[[1.0, 1.5, 2.5, 3.0]]]]]


def test_1_a_tensor_of_the_graph_around_is_no_error():
    leaves("""g (float[2] x, bool c) => (float[2] y) { e = Exp(x) q = Q16(x) r = Relu(q)
        y = If(c)<then_branch = t () => (float[2] a) { a = Add(e, x) }, else_branch = f () => (float[2] b) { b = DQ16(r) }> }""")


@pytest.mark.parametrize("node", ["Split<axis = 0>(q)", "Split<axis = 0, split = [1, 1]>(q)"])
def test_1_an_attribute_that_is_not_there_is_no_error(node):
    leaves(f"g (float[2] x) => (int8[1] a, int8[1] b) {{ q = Q16(x) a, b = {node} }}", opset=11)


# 2: only int8 was dequantized


@pytest.mark.parametrize(("bits", "scale"), [(16, 1024.0), (32, 65536.0)])
def test_2_wide_integers_get_a_dequant_too(bits, scale):
    wide = WIDE.format(bits, scale)
    result = mends(
        f"g (float[2] x) => (float[2] y) {{ q = Q16(x) w = {wide} y = Sigmoid(w) }}",
        f"g (float[2] x) => (float[2] y) {{ q = Q16(x) w = {wide} r = thinker.Dequant<scale_o = {scale}>(w) y = Sigmoid(r) }}",
    )
    assert run(result, x=[0.0, 0.0]) == [[0.5, 0.5]]


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
def test_2_quantized_int32_is_not_plain_int32(op):
    wide = WIDE.format(32, 256.0)
    result = mends(
        f"g (float[2] x) => (float[2] y) {{ q = Q16(x) w = {wide} y = {op}(w, w) }}",
        f"g (float[2] x) => (float[2] y) {{ q = Q16(x) w = {wide} r = thinker.Dequant<scale_o = 256.0>(w) y = {op}(r, r) }}",
    )
    expected = {"Add": [3.0, -1.0], "Mul": [2.25, 0.25], "Sub": [0.0, 0.0]}[op]
    assert run(result, x=[1.5, -0.5]) == [expected]


def test_2_a_product_of_quantized_int32_matrices_is_one_of_real_numbers():
    wide = WIDE.format(32, 256.0)
    result = mends(
        f"g (float[1,1] x) => (float[1,1] y) {{ q = Q16(x) w = {wide} y = MatMul(w, w) }}",
        f"g (float[1,1] x) => (float[1,1] y) {{ q = Q16(x) w = {wide} r = thinker.Dequant<scale_o = 256.0>(w) y = MatMul(r, r) }}",
    )
    assert run(result, x=[[1.5]]) == [[[2.25]]]


# 3: the scale of a Quant


def test_3_the_scale_of_a_quant_counts():
    given = "q = Q64(x) m = MaxPool<kernel_shape = [1, 2], strides = [1, 2]>(q)"
    result = mends(
        f"g (float[1,1,1,4] x) => (float[1,1,1,2] y) {{ {given} y = Softmax<axis = 3>(m) }}",
        f"g (float[1,1,1,4] x) => (float[1,1,1,2] y) {{ {given} r = DQ64(m) y = Softmax<axis = 3>(r) }}",
    )
    found = run(result, x=[[[[0.0, 0.5, 0.25, 0.5]]]])
    assert found == [[[[[0.5, 0.5]]]]]  # both pools give 0.5


# 4: where a scale comes from


def test_4_where_takes_the_scale_of_what_it_chooses_from():
    result = mends(
        "g (float[2] x, bool[2] c) => (float[2] y) { q = Q16(x) r = Relu(q) w = Where(c, q, r) y = Neg(w) }",
        "g (float[2] x, bool[2] c) => (float[2] y) { q = Q16(x) r = Relu(q) w = Where(c, q, r) d = DQ16(w) y = Neg(d) }",
    )
    inputs = {"x": np.array([-1.5, -1.5], np.float32), "c": np.array([True, False])}
    assert linger.Session(result.model).run(None, inputs)[0].tolist() == [1.5, 0.0]


def test_4_a_mask_that_is_computed_from_quantized_numbers_lends_no_scale():
    mends(
        """g (float[2] x) => (float[2] y) <int8 zero = {0}> { q = Q16(x) v = Q64(x) c = Greater(q, zero)
        w = Where(c, v, v) y = Neg(w) }""",
        """g (float[2] x) => (float[2] y) <int8 zero = {0}> { q = Q16(x) v = Q64(x) c = Greater(q, zero)
        w = Where(c, v, v) d = DQ64(w) y = Neg(d) }""",
    )


def test_4_rows_of_a_table_have_its_scale():
    rows = "thinker.Gather<scale_w = 32.0, scale_o = 32.0, parameter_bits = 8, o_bits = 8>(t, i)"
    given = f"g (int64[2] i) => (float[2,1] y) <int8[2,1] t = {{16, -64}}> {{ e = {rows} %s }}"
    result = mends(given % "y = Neg(e)", given % "d = DQ32(e) y = Neg(d)")
    assert linger.Session(result.model).run(None, {"i": np.array([1, 0])})[0].tolist() == [[2.0], [-0.5]]


def test_4_the_index_of_a_gather_lends_no_scale():
    mends(
        "g (float[2] x) => (float y) { q = Q16(x) v = Q64(x) i = ArgMax<axis = 0, keepdims = 0>(q) e = Gather(v, i) y = Neg(e) }",
        """g (float[2] x) => (float y) { q = Q16(x) v = Q64(x) i = ArgMax<axis = 0, keepdims = 0>(q) e = Gather(v, i)
        d = DQ64(e) y = Neg(d) }""",
    )


def test_4_the_result_of_a_branch_has_the_scale_of_both():
    branches = """r = If(c)<then_branch = t () => (int8[2] a) { a = Relu(q) }, else_branch = f () => (int8[2] b) {
        b = Transpose<perm = [0]>(q) }>"""
    mends(
        f"g (float[2] x, bool c) => (float[2] y) {{ q = Q16(x) {branches} y = Neg(r) }}",
        f"g (float[2] x, bool c) => (float[2] y) {{ q = Q16(x) {branches} d = DQ16(r) y = Neg(d) }}",
    )


def test_4_branches_of_different_scales_give_real_numbers():
    result = mends(
        """g (float[2] x, bool c) => (float[2] y) { q = Q16(x) v = Q64(x) r = If(c)<
        then_branch = t () => (int8[2] a) { a = Relu(q) }, else_branch = f () => (int8[2] b) { b = Relu(v) }> y = Neg(r) }""",
        """g (float[2] x, bool c) => (float[2] y) { q = Q16(x) v = Q64(x) r = If(c)<
        then_branch = t () => (float[2] a) { k = Relu(q) a = DQ16(k) },
        else_branch = f () => (float[2] b) { m = Relu(v) b = DQ64(m) }> y = Neg(r) }""",
    )
    for flag in (True, False):
        inputs = {"x": np.array([0.5, -1.0], np.float32), "c": np.array(flag)}
        assert linger.Session(result.model).run(None, inputs)[0].tolist() == [-0.5, 0.0]


def test_4_the_result_of_a_loop_has_the_scale_that_it_carries():
    loop = """r = Loop(n, c, q)<body = b (int64 i, bool go, int8[2] k) => (bool on, int8[2] m) {
        on = Not(go) m = ADD16(k, k) }>"""
    mends(
        f"g (float[2] x, int64 n, bool c) => (float[2] y) {{ q = Q16(x) {loop} y = Neg(r) }}",
        f"g (float[2] x, int64 n, bool c) => (float[2] y) {{ q = Q16(x) {loop} d = DQ16(r) y = Neg(d) }}",
    )


def test_4_a_concat_of_two_scales_joins_real_numbers():
    result = mends(
        "g (float[1] x) => (float[2] y) { q = Q16(x) v = Q64(x) y = Concat<axis = 0>(q, v) }",
        "g (float[1] x) => (float[2] y) { q = Q16(x) v = Q64(x) a = DQ16(q) b = DQ64(v) y = Concat<axis = 0>(a, b) }",
    )
    # 1.03 is 16 at scale 16 and 66 at scale 64
    assert run(result, x=[1.03]) == [[1.0, 1.03125]]


def test_4_there_is_no_default_scale():
    reports("g (int8[2] x) => (float[2] y) { y = Sigmoid(x) }", ERROR, "Sigmoid", "scale", "'x'")


def test_4_two_scales_that_meet_are_reported():
    reports(
        "g (float[2] x) => (float[2] y) { q = Q16(x) a = ADD8(q, q) y = DQ8(a) }".replace(
            "ADD8(q, q)", "thinker.Requant<data_bits = 8, o_bits = 8, scale_x = 32.0, scale_o = 8.0>(q)"
        ),
        ERROR,
        "scale_x is 32",
        "scale 16",
    )


# 5: "last seen" is not "comes from"


def test_5_each_branch_of_a_graph_has_its_own_scale():
    requant = "thinker.Requant<data_bits = 8, o_bits = 8, scale_x = 16.0, scale_o = {}>(q)"
    given = f"q = Q16(x) a = {requant.format(8.0)} b = {requant.format(32.0)}"
    result = mends(
        f"g (float[1] x) => (float[1] y, float[1] z) {{ {given} y = Neg(a) z = Neg(b) }}",
        f"g (float[1] x) => (float[1] y, float[1] z) {{ {given} c = DQ8(a) y = Neg(c) d = DQ32(b) z = Neg(d) }}",
    )
    # 1.1875 = 19/16; 9.5/8 rounds up to 10/8, 38/32 is exact
    assert run(result, x=[1.1875]) == [[-1.25], [-1.1875]]


# 6: one Dequant for all


def test_6_consumers_share_one_dequant():
    mends(
        "g (float[2] x) => (float[2] a, float[2] b, float[2] c) { q = Q16(x) a = Neg(q) b = Exp(q) c = Add(q, q) }",
        "g (float[2] x) => (float[2] a, float[2] b, float[2] c) { q = Q16(x) r = DQ16(q) a = Neg(r) b = Exp(r) c = Add(r, r) }",
    )


def test_6_equal_nodes_are_told_apart():
    mends(
        "g (float[2] x) => (float[2] y) { q = Q16(x) v = Q16(x) a = Neg(q) b = Neg(q) c = Neg(v) d = Add(a, b) y = Add(d, c) }",
        """g (float[2] x) => (float[2] y) { q = Q16(x) v = Q16(x) r = DQ16(q) s = DQ16(v) a = Neg(r) b = Neg(r) c = Neg(s)
        d = Add(a, b) y = Add(d, c) }""",
    )


def test_6_time_grows_with_the_number_of_nodes_not_with_its_square():
    def seconds(count: int) -> float:
        chain = " ".join(f"q{i} = Q16(t{i}) t{i + 1} = Neg(q{i})" for i in range(count))
        model = parsed(f"g (float[2] t0) => (float[2] t{count}) {{ {chain} }}")
        begin = time.process_time()
        assert len(linger.repair(model, rules=["insert_dequant"]).changes) >= count
        return time.process_time() - begin

    seconds(10)  # what is loaded once
    # four times as many nodes: four times the work, sixteen times if every insertion looked at all nodes; twice that is noise
    assert seconds(800) / seconds(200) < 8


# 7: sub-graphs


def test_7_dequants_are_inserted_inside_both_branches():
    result = mends(
        """g (float[2] x, bool c) => (float[2] y) { y = If(c)<
        then_branch = t () => (float[2] a) { q = Q16(x) a = Neg(q) },
        else_branch = f () => (float[2] b) { v = Q64(x) b = Exp(v) }> }""",
        """g (float[2] x, bool c) => (float[2] y) { y = If(c)<
        then_branch = t () => (float[2] a) { q = Q16(x) r = DQ16(q) a = Neg(r) },
        else_branch = f () => (float[2] b) { v = Q64(x) s = DQ64(v) b = Exp(s) }> }""",
    )
    inputs = {"x": np.array([0.03, 0.0], np.float32), "c": np.array(True)}
    assert linger.Session(result.model).run(None, inputs)[0].tolist() == [0.0, 0.0]  # 0.03·16 rounds to 0
    inputs["c"] = np.array(False)
    assert linger.Session(result.model).run(None, inputs)[0].tolist() == [np.exp(np.float32(2 / 64)).item(), 1.0]


def test_7_a_captured_tensor_gets_its_dequant():
    mends(
        """g (float[2] x, bool c) => (float[2] y) { q = Q16(x) y = If(c)<
        then_branch = t () => (float[2] a) { a = Neg(q) },
        else_branch = f () => (float[2] b) { b = If(c)<then_branch = t2 () => (float[2] d) { d = Exp(q) },
        else_branch = f2 () => (float[2] e) { e = Abs(x) }> }> }""",
        """g (float[2] x, bool c) => (float[2] y) { q = Q16(x) r = DQ16(q) y = If(c)<
        then_branch = t () => (float[2] a) { a = Neg(r) },
        else_branch = f () => (float[2] b) { b = If(c)<then_branch = t2 () => (float[2] d) { d = Exp(r) },
        else_branch = f2 () => (float[2] e) { e = Abs(x) }> }> }""",
    )


def test_7_one_branch_that_gives_integers_is_made_to_give_what_the_other_does():
    mends(
        """g (float[2] x, bool c) => (float[2] y) { y = If(c)<
        then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = f () => (float[2] b) { b = Q16(x) }> }""",
        """g (float[2] x, bool c) => (float[2] y) { y = If(c)<
        then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = f () => (float[2] b) { v = Q16(x) b = DQ16(v) }> }""",
    )


def test_7_loop_and_scan_bodies_get_theirs():
    result = mends(
        """g (float[2] x, int64 n, bool c) => (float[2] y, float z) { q = Q16(x)
        y = Loop(n, c, q)<body = b (int64 i, bool go, float[2] k) => (bool on, float[2] m) { on = Not(go) m = Sub(k, q) }>
        s = Constant<value = float {0.0}>()
        z = Scan<num_scan_inputs = 1, body = d (float v, int8 w) => (float u) { u = Add(v, w) }>(s, q) }""",
        """g (float[2] x, int64 n, bool c) => (float[2] y, float z) { q = Q16(x) r = DQ16(q)
        y = Loop(n, c, r)<body = b (int64 i, bool go, float[2] k) => (bool on, float[2] m) { on = Not(go) m = Sub(k, r) }>
        s = Constant<value = float {0.0}>()
        z = Scan<num_scan_inputs = 1, body = d (float v, int8 w) => (float u) { e = DQ16(w) u = Add(v, e) }>(s, q) }""",
    )
    inputs = {"x": np.array([1.5, -0.25], np.float32), "n": np.array(1), "c": np.array(True)}
    y, z = linger.Session(result.model).run(None, inputs)
    assert (y.tolist(), z.tolist()) == ([0.0, 0.0], 1.25)


# 8: order and outputs


def test_8_nodes_in_any_order_are_sorted():
    mends(
        "g (float[2] x) => (float[2] y) { y = Neg(r) r = Relu(q) q = Q16(x) }",
        "g (float[2] x) => (float[2] y) { q = Q16(x) r = Relu(q) d = DQ16(r) y = Neg(d) }",
    )


def test_8_an_output_may_be_listed_twice():
    result = linger.repair(parsed("g (float[2] x) => (float[2] y, float[2] y) { q = Q16(x) y = Relu(q) }"))
    assert [(o.name, o.dtype) for o in result.model.graph.outputs] == [("y", ir.DataType.FLOAT)] * 2
    assert [node.op_type for node in result.model.graph] == ["Quant", "Relu", "Dequant"]


def test_8_an_output_that_is_an_input_stays_one():
    leaves("g (float[2] x, int8[2] n) => (float[2] x, int8[2] n, float[2] y) { q = Q16(x) y = DQ16(q) }")


def test_8_a_tensor_may_be_an_output_and_have_consumers():
    mends(
        "g (float[2] x) => (int8[2] q, float[2] y, float[2] z) { q = Q16(x) y = Relu(q) z = Neg(q) }",
        "g (float[2] x) => (int8[2] q, float[2] y, float[2] z) { q = Q16(x) p = Relu(q) y = DQ16(p) r = DQ16(q) z = Neg(r) }",
    )


# 9: declared types


def test_9_an_output_that_becomes_real_is_declared_so():
    mends(
        "g (float[2] x) => (int8[2] y) { q = Q16(x) y = Relu(q) }",
        "g (float[2] x) => (float[2] y) { q = Q16(x) p = Relu(q) y = DQ16(p) }",
        outputs="float",
    )


def test_9_what_the_original_left_declared_as_integers_behind_a_dequant_is_real():
    result = mends(
        "g (float[2] x) => (int8[2] y) { q = Q16(x) y = DQ16(q) }",
        "g (float[2] x) => (float[2] y) { q = Q16(x) y = DQ16(q) }",
    )
    assert run(result, x=[1.5, 0.25]) == [[1.5, 0.25]]


def test_9_new_tensors_say_their_type():
    result = linger.repair(parsed("g (float[2] x) => (float[2] y) { q = Q16(x) y = Neg(q) }"))
    types = {o.name: o.dtype for node in result.model.graph for o in node.outputs if node.op_type == "Dequant"}
    assert set(types.values()) == {ir.DataType.FLOAT}


# 10: no state between calls


def test_10_repairs_in_several_threads_do_not_meet():
    texts = [
        f"g (float[2] x) => (float[2] y) {{ q = Q{2**i}(x) r = Relu(q) y = If(c)<then_branch = t () => (float[2] a) {{ a = Neg(r) }},"
        f" else_branch = f () => (float[2] b) {{ b = Exp(r) }}> }}".replace("(float[2] x)", "(float[2] x, bool c)")
        for i in range(8)
    ]
    alone = [shown(linger.repair(parsed(text)).model) for text in texts]
    together: dict[int, list[str]] = {}
    models = [parsed(text) for text in texts]

    def work(index: int) -> None:
        for _ in range(5):
            together[index] = shown(linger.repair(models[index]).model)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(len(texts))] == alone


# 11: inputs of the graph


def test_11_a_graph_input_beside_integers_keeps_its_type():
    result = mends(
        "g (float[1,2] x, float[2,1] z) => (float[1,1] y) { q = Q16(x) y = MatMul(q, z) }",
        "g (float[1,2] x, float[2,1] z) => (float[1,1] y) { q = Q16(x) r = DQ16(q) y = MatMul(r, z) }",
    )
    assert run(result, x=[[1.5, 2.0]], z=[[2.0], [0.25]]) == [[[3.5]]]


# 12: unknown ops


def test_12_an_op_that_is_newer_than_the_list_gets_real_numbers():
    result = mends(
        "g (float[3] x) => (float[3] y) { q = Q16(x) y = HardSwish(q) }",
        "g (float[3] x) => (float[3] y) { q = Q16(x) r = DQ16(q) y = HardSwish(r) }",
        opset=14,
    )
    # x·clip(x/6 + 1/2, 0, 1): −3 → 0, 0 → 0, 3 → 3
    assert run(result, x=[-3.0, 0.0, 3.0]) == [[0.0, 0.0, 3.0]]


def test_12_what_nobody_knows_is_said():
    reports("g (float[2] x) => (float[2] y) { q = Q16(x) y = my.Warp(q) }", WARNING, "Warp", "'q'", "Dequant before it")


def test_12_ops_of_the_dialect_are_known():
    pads = "<int64[2] p = {1, 0}, int8 v = {0}>"
    mends(
        f'g (float[2] x) => (float[3] y) {pads} {{ q = Q16(x) b = thinker.iqPad<mode = "constant">(q, p, v) y = Neg(b) }}',
        f'g (float[2] x) => (float[3] y) {pads} {{ q = Q16(x) b = thinker.iqPad<mode = "constant">(q, p, v) r = DQ16(b) y = Neg(r) }}',
    )


# 13: widths


def test_13_sixteen_bits_are_int16():
    given = "l = thinker.LinearInt<data_bits = 8, parameter_bits = 8, o_bits = 16, scale_x = 16.0, scale_w = 8.0, scale_o = 128.0>(q, w)"
    result = mends(
        f"g (float[1,1] x) => (int16[1,1] l, float[1,1] y) <int8[1,1] w = {{24}}> {{ q = Q16(x) {given} y = Neg(l) }}",
        f"g (float[1,1] x) => (int16[1,1] l, float[1,1] y) <int8[1,1] w = {{24}}> {{ q = Q16(x) {given} r = DQ128(l) y = Neg(r) }}",
    )
    # 7.9375·16 = 127, times 24 = 3048 at scale 16·8, and that is 128: more than 8 bits hold
    assert run(result, x=[[7.9375]]) == [[[3048]], [[-23.8125]]]


def test_13_int16_read_as_int8_is_reported():
    wide = WIDE.format(16, 1024.0)
    narrow = "thinker.Requant<data_bits = 8, o_bits = 8, scale_x = 1024.0, scale_o = 16.0>(w)"
    reports(f"g (float[2] x) => (int8[2] y) {{ q = Q16(x) w = {wide} y = {narrow} }}", ERROR, "8 bits", "int16")


# 14: no Dequant where none can help


def test_14_a_node_that_fails_on_int64_gets_no_dequant():
    reports("g (float[2] x) => (float[1] y) { q = Q16(x) s = Shape(q) y = Sigmoid(s) }", ERROR, "Sigmoid", "'s'")


# what random graphs found in ours


def test_a_dequant_with_another_scale_than_its_tensor_is_rescaled():
    result = mends(
        "g (float[1] x) => (float[1] y) { q = Q16(x) r = DQ4(q) y = Neg(r) }",
        "g (float[1] x) => (float[1] y) { q = Q16(x) r = DQ16(q) y = Neg(r) }",
    )
    assert run(result, x=[1.5]) == [[-1.5]]


def test_a_dequant_behind_a_dequant_takes_nothing_from_other_readers():
    result = mends(
        """g (float[2] x) => (double[2] y, float[2] z) { q = Q16(x) r = DQ16(q) t = Relu(r) y = Cast<to = 11>(t)
        s = DQ4(t) z = Neg(s) }""",
        "g (float[2] x) => (double[2] y, float[2] z) { q = Q16(x) r = DQ16(q) t = Relu(r) y = Cast<to = 11>(t) z = Neg(t) }",
    )
    assert run(result, x=[1.5, -1.0]) == [[1.5, 0.0], [-1.5, 0.0]]


def test_wide_integers_that_differ_may_be_equal_as_real_numbers():
    wide = "q = thinker.Quant<data_bits = 32, scale_x = 1.0>(x) w = thinker.iqAdd<scale_x = 1.0, scale_y = 1.0, scale_o = 1.0, o_bits = 32>(q, i)"
    given = f"g (float[2] x) => (int64[1] y) <int32[2] i = {{0, 1}}> {{ {wide} %s }}"
    result = mends(
        given % "y = ArgMax<axis = 0>(w)",
        given % "r = thinker.Dequant<scale_o = 1.0>(w) y = ArgMax<axis = 0>(r)",
    )
    # 2^24 and 2^24 + 1 are one float32, so the first is the largest
    assert run(result, x=[2.0**24, 2.0**24]) == [[0]]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_integers_beside_an_integer_constant_stay_integers(bits):
    leaves(
        f"g (float[2] x) => (bool[2] y) <int{bits} zero = {{0}}> "
        f"{{ q = thinker.Quant<data_bits = {bits}, scale_x = 4.0>(x) y = Equal(q, zero) }}"
    )


@pytest.mark.parametrize(
    "node",
    ["MatMulInteger(%s, w)", "Equal(%s, w)", "Where(c, %s, w)", "thinker.ShuffleChannel<groups = 1>(%s)"],
    ids=["a product of integers", "a comparison", "a choice", "an op of the dialect that moves"],
)
def test_a_dequant_before_what_is_about_integers_goes(node):
    inside = node % "d"
    tail = (
        "a = thinker.Requant<data_bits = 8, o_bits = 8, scale_x = 16.0, scale_o = 8.0>(s)" if "thinker" in node else ""
    )
    end = {"MatMulInteger": "int32[1,1] s", "Equal": "bool[1,1] s", "Where": "int8[1,1] s"}.get(
        node.split("(")[0], "int8[1,1] a"
    )
    frame = f"g (float[1,1] x, bool c) => ({end}) <int8[1,1] w = {{3}}> {{ q = Q16(x) %s s = %s {tail} }}"
    mends(frame % ("d = DQ16(q)", inside), frame % ("", node % "q"))


def test_a_function_may_move_integers_here_and_floats_there():
    turn = '<domain: "my", opset_import: ["": 13]> Turn (a) => (b) { b = Transpose<perm = [0]>(a) }'
    leaves("g (float[2] x) => (int8[2] y, float[2] z) { q = Q16(x) y = my.Turn(q) z = my.Turn(x) }", functions=turn)


def test_a_function_that_computes_gets_real_numbers():
    act = '<domain: "my", opset_import: ["": 13]> Act (a) => (b) { b = Neg(a) }'
    result = mends(
        "g (float[2] x) => (float[2] y, float[2] z) { q = Q16(x) y = my.Act(q) z = my.Act(x) }",
        "g (float[2] x) => (float[2] y, float[2] z) { q = Q16(x) r = DQ16(q) y = my.Act(r) z = my.Act(x) }",
        functions=act,
    )
    assert run(result, x=[1.5, 0.03]) == [[-1.5, 0.0], [-1.5, np.float32(-0.03).item()]]  # 0.03·16 rounds to 0


def test_integers_without_a_scale_beside_real_numbers_are_reported():
    reports("g (float[2] x, int8[2] n) => (float[2] y) { q = Q16(x) r = DQ16(q) y = Add(r, n) }", ERROR, "Add", "'n'")


def test_a_real_output_that_gets_integers_of_unknown_scale_is_reported_and_keeps_its_type():
    reports("g (int8[2] n) => (float[2] y) { y = Transpose<perm = [0]>(n) }", ERROR, "'y'", "scale")
