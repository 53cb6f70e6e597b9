"""What linger refuses to compute."""

from tests.support.check_cases import text_model
from tests.support.findings import findings_of

POOL = "strides=[2, 2], pads=[0, 0, 0, 0], data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0"


def found(body, **settings):
    proto = text_model(body, **({"inputs": "int8[1,1,4,4] x", "outputs": "int8[1,1,1,1] y"} | settings))
    return [(f.rule, f.node, f.reason) for f in findings_of("settings", proto)]


def pool(name, out, into, extra):
    return f"[{name}] {out} = thinker.AvgPool2dInt<{extra}, {POOL}>({into})"


def test_all_nodes_are_named_in_the_order_of_the_file():
    first = pool("a", "h", "x", "kernel_shape=[2, 2], ceil_mode=1")
    second = pool("b", "y", "h", "kernel_shape=[2, 2, 2], ceil_mode=0")
    refused = [
        ("LGR109", "a (AvgPool2dInt)", "ceil_mode=1 has no agreed divisor. Export with ceil_mode=0 and explicit pads"),
        ("LGR109", "b (AvgPool2dInt)", "a window of 3 axes; this op has 2. Add or remove an axis of size 1"),
    ]
    assert found(f"{first} {second}") == refused
    assert found(f"{second} {first}") == refused[::-1]  # sorting is not the user's concern


def test_nodes_of_branches_have_their_path():
    inner = pool("p", "p", "x", "kernel_shape=[2, 2], ceil_mode=1")
    other = pool("r", "r", "x", "kernel_shape=[2, 2], ceil_mode=0")
    body = f"""[c] c = Constant<value = bool {{1}}>()
      [i] y = If(c)<then_branch = t () => (int8[1,1,1,1] p) {{ {inner} }}, else_branch = e () => (int8[1,1,1,1] r) {{ {other} }}>"""
    assert [node for _, node, _ in found(body)] == ["i/then_branch/p (AvgPool2dInt)"]


def test_what_is_nobodys_fault_is_the_models():
    body = "[m] y = MaxPool<kernel_shape=[2, 2], storage_order=1>(x) [d] z = thinker.Dequant<scale_o=1.0>(x)"
    ((rule, node, reason),) = found(body)
    assert (rule, node) == ("LGR109", "")
    assert reason.startswith("m (MaxPool): on integers, {'storage_order': 1} has no meaning")


def test_what_runs_is_no_finding():
    assert found(pool("a", "y", "x", "kernel_shape=[2, 2], ceil_mode=0")) == []


def test_a_node_that_cannot_be_typed_is_named_beside_the_others():
    quant = "[q] q = thinker.Quant<data_bits=8, scale_x=0.0>(x)"
    other = pool("p", "y", "q", "kernel_shape=[2, 2], ceil_mode=1")
    assert [(node, reason[:20]) for _, node, reason in found(f"{quant} {other}", inputs="float[1,1,4,4] x")] == [
        ("q (Quant)", "scale_x = 0 is no sc"),
        ("p (AvgPool2dInt)", "ceil_mode=1 has no a"),
    ]
