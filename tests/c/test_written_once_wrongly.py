"""Networks whose C was once wrong without a word, and proofs that did not see it: names, constants, rounding, states."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from linger.c import build, export
from linger.c import prove as prove_program
from linger.errors import UnsupportedError
from linger.runtime.reference import Reference
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import require_tool
from tests.support.c_networks import assert_proven, differing, prove
from tests.support.dialect_text import quantizing
from tests.support.streams import conv, network, numbers, recurrent

PAIR = {"inputs": "float[2,4] x", "outputs": "float[2,4] y"}
ARM = {"cortex-a7 in Arm state": ("-mcpu=cortex-a7", "-marm"), "a Raspberry Pi": ("-mcpu=arm1176jzf-s", "-marm")}


def test_a_tensor_that_is_called_like_an_array_of_weights(tmp_path):
    require_compiler()
    body = "q = Q16(x)\n c_w0 = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(q, w)\n"
    body += "s = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(c_w0, w)\n y = DQ16(s)"
    model = quantizing(body, **PAIR, extra="<int8[4] w = {1, 2, 3, 4}>")
    assert_proven(prove(model, tmp_path / "c"))  # a model in memory is called network_…
    folder = export(model, tmp_path / "named", name="c")
    feed = {"x": np.linspace(-4, 4, 8, dtype=np.float32).reshape(2, 4)}
    with build(folder) as program:
        assert differing(program(feed)["y"], Reference(model).run(feed)["y"]) == 0


def test_a_result_does_not_replace_an_operand_that_lies_in_another_order(tmp_path):
    """This was right, but no test would have noticed otherwise: a transposed tensor is the same memory read across."""
    require_compiler()
    body = "q = Q16(x)\n t = Transpose<perm = [1, 0]>(q)\n s = ADD16(t, t)\n y = DQ16(s)"
    assert_proven(prove(quantizing(body, inputs="float[3,5] x", outputs="float[5,3] y"), tmp_path / "c"))


@pytest.mark.parametrize("shape", ["[1]", "[1,1,1,1]"])
def test_a_constant_of_one_element_with_more_axes_in_a_table(shape, tmp_path):
    require_compiler()
    body = """
        q = Q16(x)
        s = thinker.iqSigmoid<scale_x=16.0, scale_o=128.0>(q)
        a = thinker.iqAdd<scale_x=128.0, scale_y=64.0, scale_o=32.0>(s, k)
        t = thinker.iqSigmoid<scale_x=32.0, scale_o=128.0>(a)
        y = DQ16(t)
    """
    sizes = {"inputs": "float[1,2,3,3] x", "outputs": "float[1,2,3,3] y"}
    assert_proven(prove(quantizing(body, **sizes, extra=f"<int8{shape} k = {{5}}>"), tmp_path / "c"))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_constant_that_c_cannot_write_is_refused(number, tmp_path):
    nodes = [
        helper.make_node("Quant", ["x"], ["q"], domain="thinker", data_bits=8, scale_x=16.0),
        helper.make_node("Dequant", ["q"], ["y"], domain="thinker", scale_o=16.0),
        helper.make_node("Concat", ["x", "c"], ["z"], axis=0),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [s]) for n, s in (("x", 4), ("y", 4), ("z", 5))]
    constant = onnx.numpy_helper.from_array(np.array([number], np.float32), "c")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [constant])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("thinker", 1)]
    with pytest.raises(UnsupportedError, match=r"\(Concat\) reads a constant with infinities or NaN"):
        export(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def ties(scale, count):
    """Real numbers near the middle between two integers, where rounding once and rounding twice differ."""
    draw = np.random.default_rng(0)
    middles = ((draw.integers(-100, 100, count) + 0.5) / np.float64(np.float32(scale))).astype(np.float32)
    return (middles.view(np.int32) + draw.integers(-2, 3, count)).astype(np.int32).view(np.float32)


def test_no_compiler_rounds_product_and_sum_at_once(tmp_path):
    """As gcc does without -std=c99 on processors that multiply and add with one instruction."""
    gcc = require_tool("gcc", "gcc")
    cpu = Path("/proc/cpuinfo")
    if not (cpu.exists() and " fma " in cpu.read_text(encoding="utf-8")):
        pytest.skip("this processor has no such instruction")
    body = "q = thinker.Quant<data_bits=8, scale_x=10.3>(x)\n y = DQ16(q)"
    model = quantizing(body, inputs="float[20000] x", outputs="float[20000] y")
    folder, x = export(model, tmp_path / "c", name="net"), ties(10.3, 20000)
    sources = ["net.c", "net_float.c", "net_weights.c"]
    subprocess.run([gcc, "-O2", "-mfma", "-shared", "-fPIC", "-o", "net.so", *sources], cwd=folder, check=True)
    y = np.zeros_like(x)
    ctypes.CDLL(str(folder / "net.so")).net_run(*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)))
    assert differing(y, Reference(model).run({"x": x})["y"]) == 0


def test_an_input_of_fewer_bits_says_its_limits(tmp_path):
    body = "q = thinker.Quant<data_bits=4, scale_x=2.0>(x)\n y = DQ16(q)"
    folder = export(quantizing(body, **PAIR), tmp_path / "c", name="net")
    assert "limited to -8 ... 7; NaN gives 0." in (folder / "net.h").read_text(encoding="utf-8")


@pytest.mark.parametrize("op", ["LSTMInt", "GRUInt"])
def test_a_stream_returns_last_states_that_are_outputs(op, draw, tmp_path):
    require_compiler()
    count = 3 if op == "LSTMInt" else 2
    outputs = "; ".join(["int8[6,1,5] y", "float[1,1,5] h", "float[1,1,5] c"][:count])
    model = network(lambda g, x: recurrent(g, x, draw, (3, 5), op=op), inputs="int8[6,1,3] x", outputs=outputs)
    whole = numbers(model, draw)["x"]
    wanted = Reference(model).run({"x": whole})
    with build(export(model, tmp_path / "c", stream=1)) as program:
        assert [output.name for output in program.get_outputs()] == ["y", "h", "c"][:count]
        steps = program.run_many([{"x": frame[None]} for frame in whole])
    found = {**steps[-1], "y": np.concatenate([step["y"] for step in steps])}
    assert {name: differing(found[name], wanted[name]) for name in wanted} == dict.fromkeys(wanted, 0)


def test_a_tensor_without_elements(tmp_path):
    require_compiler()
    model = quantizing("q = Q16(x)\n y = DQ16(q)", inputs="float[1,0] x", outputs="float[1,0] y")
    assert prove(model, tmp_path / "c").differing == ()


@pytest.mark.parametrize("options", ARM.values(), ids=ARM)
def test_larger_arm_processors_compile_the_headers(options, tmp_path):
    """Their instructions load other pairs of registers than a microcontroller's."""
    gcc = require_tool("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    folder = export(
        network(
            lambda g, x: recurrent(g, x, np.random.default_rng(0), (3, 5))[0],
            inputs="int8[6,1,3] x",
            outputs="int8[6,1,5] y",
        ),
        tmp_path / "c",
        name="net",
    )
    subprocess.run([gcc, "-std=c99", "-O2", *options, "-c", "net.c", "-o", "net.o"], cwd=folder, check=True)


def test_a_fault_that_no_proof_build_has_is_found_where_all_edges_are_integers(tmp_path):
    require_compiler()
    add = "y = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(x, x)"
    model = quantizing(add, inputs="int8[16] x", outputs="int8[16] y")
    folder = export(model, tmp_path / "c", name="net")
    with build(folder) as program:
        assert prove_program(program, model).ok
    source, call = folder / "net.c", "    net_core(memory);\n"
    text = source.read_text(encoding="utf-8")
    assert text.count(call) == 1
    fault = "#ifndef LINGER_PROOF\n    memory[3] ^= 1u;\n#endif\n"  # the result lies where the input lay, at 0
    source.write_text(text.replace(call, call + fault), encoding="utf-8")
    with build(folder, check_files=False) as program:
        proof = prove_program(program, model)
    assert [row.name for row in proof.rows if row.differing] == ["y (without proof)"]


def test_a_recurrent_layer_behind_one_that_looks_ahead_is_proven(draw, tmp_path):
    """Its state is cleared until the sequence begins, and converted on the way out."""
    require_compiler()

    def build_late(g, x):
        return recurrent(g, g.Transpose(conv(g, x, draw, (4, 4), pads=(1, 1)), perm=[2, 0, 1]), draw, (4, 5))[0]

    model = network(build_late, outputs="int8[24,1,5] y")
    with build(export(model, tmp_path / "c", stream=1)) as program:
        proof = prove_program(program, model)
    assert proof.ok, proof
    assert {row.name: row.elements for row in proof.rows}["y (whole sequence)"] == 23 * 5  # one frame is late
