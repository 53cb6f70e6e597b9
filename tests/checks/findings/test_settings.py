"""What linger refuses to compute."""

import pytest

import linger
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


CONV = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0, kernel_shape=[1, 1]"
CONV += ", strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1]"
LAYERS = {
    "convolution": (f"thinker.Conv2dInt<{CONV}, group=2, {{}}>(x, w)", "int8[1,4,4,4] x, int8[6,2,1,1] w", 6),
    "transposed": (
        f"thinker.ConvTranspose2dInt<{CONV}, group=2, output_padding=[0, 0], {{}}>(x, w)", "int8[1,4,4,4] x, int8[4,3,1,1] w", 6,
    ),
    "linear": (
        "thinker.LinearInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0, {}>(x, w)",
        "int8[1,4] x, int8[6,4] w", 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("layer", "inputs", "channels"), LAYERS.values(), ids=LAYERS)
def test_there_is_an_exponent_for_each_output_channel(layer, inputs, channels):
    def said(exponents):
        body = f"[l] y = {layer.format(f'exponents_w={exponents}')}"
        return found(body, inputs=inputs, outputs="int8[] y")

    assert said([0, 31, *[1] * (channels - 2)]) == []
    for count in (1, 2, 3, 4, channels + 1):  # the numbers of inputs and of the outputs of a group among them
        reason = f"exponents_w has {count} numbers for {channels} output channels. Give one to each, in their order"
        assert said([1] * count) == [("LGR109", said([1] * count)[0][1], reason)]
    for wrong in (-1, 32, 2**40):
        reason = f"exponents_w holds {wrong}, which is no exponent of a channel, a whole number from 0 to 31"
        assert [r for _, _, r in said([1, wrong, *[0] * (channels - 2)])] == [
            f"{reason}. Export the layer again, or set it by hand"
        ]


@pytest.mark.parametrize("name", ["exponents_iw", "exponents_hw"])
def test_there_is_an_exponent_for_each_row_of_gates(name):
    scales = "scale_i=32.0, scale_iw=128.0, scale_h=128.0, scale_hw=128.0, scale_o=128.0"
    gru = f"thinker.GRUInt<input_size=2, hidden_size=3, batch_first=1, go_forward=1, {scales}, data_bits=8, parameter_bits=8, o_bits=8"
    inputs = "int8[1,5,2] x, int8[9,2] wi, int8[9,3] wh, int32[9] bi, int32[9] bh"
    body = f"[g] y, h = {gru}, {name}={{}}>(x, wi, wh, bi, bh)"
    assert found(body.format([1] * 9), inputs=inputs, outputs="int8[1,5,3] y, float[1,1,3] h") == []
    ((_, _, reason),) = found(body.format([1] * 3), inputs=inputs, outputs="int8[1,5,3] y, float[1,1,3] h")
    assert reason == f"{name} has 3 numbers for 9 output channels. Give one to each, in their order"


def test_unsigned_numbers_have_8_bits():
    body = "[r] y = thinker.Requant<data_bits=8, o_bits={}, scale_x=16.0, scale_o=16.0, o_unsigned={}>(x)"
    of = {"inputs": "int8[4] x", "outputs": "y"}
    assert found(body.format(8, 1), **of) == found(body.format(16, 0), **of) == []
    ((_, _, reason),) = found(body.format(16, 1), **of)
    assert reason == "o_unsigned is for 8 bits, and o_bits = 16. Remove it, or give 8 bits"
    ((_, _, reason),) = found(body.format(8, 2), **of)
    assert reason.startswith("o_unsigned = 2 is neither 0 nor 1")


HOSTILE = ["exponents_w=[-1]", f"exponents_w=[{2**62}]", "exponents_w=[1, 1, 1]", "exponents_w=1", "exponents_w=[1.5, 1.0]", 'exponents_w="a"',
           "o_unsigned=2", "o_unsigned=1.0", "o_unsigned=[1]", "o_unsigned=-1", "o_unsigned=1, o_bits=16"]  # fmt: skip


@pytest.mark.parametrize("target", [None, "venus", "arcs", "c"])
@pytest.mark.parametrize("extension", HOSTILE)
def test_hostile_extensions_are_findings_and_nothing_fails(extension, target):
    widths = "data_bits=8, parameter_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0" + (
        "" if "o_bits" in extension else ", o_bits=8"
    )
    proto = text_model(f"[l] y = thinker.LinearInt<{widths}, {extension}>(x, w)", inputs="int8[1,2] x", outputs="y",
                       extra="<int8[2,2] w = {64, 1, 1, 64}>")  # fmt: skip
    result = linger.check(proto, target)
    assert not result.ok
    wrong = [f for f in result.errors if extension.split("=")[0] in f.reason]
    assert wrong
    assert all(f.node == "l (LinearInt)" for f in wrong)
    with pytest.raises(linger.LingerError):
        linger.Session(proto)
