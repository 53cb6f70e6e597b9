"""linger repair."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.graph import load
from linger.runtime.reference import Reference
from tests.support.chip import WIDTHS, model_of, node
from tests.support.command import run
from tests.support.dialect_text import quantizing


@pytest.fixture
def wrong(folder):
    onnx.save(ir.to_proto(quantizing("q = Q16(x) d = DQ4(q) y = Exp(q)")), folder / "wrong.onnx")
    onnx.save(ir.to_proto(quantizing("q = Q32(x) a = ADD16(q, q) y = Exp(a)")), folder / "hopeless.onnx")
    return folder


def test_changes_are_listed_and_the_file_is_written(wrong):
    done = run("repair", "wrong.onnx", "--check", cwd=wrong)
    assert done.returncode == 0, done.stderr
    assert "insert_dequant" in done.stdout
    assert "written to wrong_fix.onnx. 0 of" in done.stdout
    assert (wrong / "wrong_fix.onnx").exists()


def test_as_json(wrong):
    done = run("repair", "wrong.onnx", "--json", cwd=wrong)
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["path"] == "wrong_fix.onnx"
    assert {c["rule"] for c in found["changes"]} >= {"remove_dequant", "insert_dequant"}


def test_what_is_left_is_listed_and_the_exit_code_says_so(wrong):
    done = run("repair", "hopeless.onnx", cwd=wrong)
    assert done.returncode == 1
    assert "scale_x is 16, and 'q' has the scale 32" in done.stdout
    assert "not everything could be repaired" in done.stderr
    assert "written to hopeless_fix.onnx. 2 left to repair by hand" in done.stdout
    assert (wrong / "hopeless_fix.onnx").exists()


@pytest.fixture
def shared(folder):
    """shared.onnx: two layers with one weight and a bias each."""
    layer = node("LinearInt", "{}, w, {}", **WIDTHS)
    body = f"""[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [one] {layer.format("q", "b").replace("y =", "a =", 1)}
        [two] {layer.format("a", "c").replace("y =", "t =", 1)} [d] y = thinker.Dequant<scale_o=16.0>(t)"""
    constants = {"w": np.arange(16, dtype=np.int8).reshape(4, 4) * 4} | {n: np.arange(4, dtype=np.int32) for n in "bc"}
    model = model_of(body, inputs="float[1,4] x", **constants)
    model.graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs[0].shape = ir.Shape([1, 4])
    onnx.save(ir.to_proto(model), folder / "shared.onnx")
    return folder


def parameters(path):
    """The parameters of every fully connected layer of a file, and all initializers in their order."""
    graph = onnx.load(path).graph
    return [list(n.input[1:]) for n in graph.node if n.op_type == "LinearInt"], [i.name for i in graph.initializer]


def test_for_a_chip_every_node_gets_its_own_parameters(shared):
    assert linger.check(shared / "shared.onnx", "venus").errors[0].rule == "LGR955"
    done = run("repair", "shared.onnx", "--target", "venus", "--check", cwd=shared)
    assert done.returncode == 0, done.stderr
    assert "own_parameters" in done.stdout
    assert "got a copy of w, because nodes must not share parameters" in done.stdout
    one, two = parameters(shared / "shared_fix.onnx")[0]
    assert (one, two[1:]) == (["w", "b"], ["c"])
    assert parameters(shared / "shared_fix.onnx")[1] == [*one, *two]
    assert [f.rule for f in linger.check(shared / "shared_fix.onnx", "venus").errors] == []


def test_what_is_repaired_for_a_chip_computes_the_same(shared):
    run("repair", "shared.onnx", "--target", "venus", cwd=shared)
    x = {"x": np.linspace(-8, 7, 4, dtype=np.float32).reshape(1, 4)}
    before, after = (Reference(load(shared / name)).run(x) for name in ("shared.onnx", "shared_fix.onnx"))
    np.testing.assert_array_equal(after["y"], before["y"])


def test_without_a_chip_parameters_stay_shared(shared):
    done = run("repair", "shared.onnx", cwd=shared)
    assert done.returncode == 0, done.stderr
    assert parameters(shared / "shared_fix.onnx") == ([["w", "b"], ["w", "c"]], ["w", "b", "c"])


def test_chosen_rules_are_the_only_ones_for_a_chip_too(shared):
    done = run("repair", "shared.onnx", "--target", "venus", "--rule", "sort_nodes", cwd=shared)
    assert done.returncode == 0, done.stderr
    assert parameters(shared / "shared_fix.onnx")[0] == [["w", "b"], ["w", "c"]]


def test_a_chip_that_does_not_exist_is_one_sentence(shared):
    done = run("repair", "shared.onnx", "--target", "nonsense", cwd=shared)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("linger: target: there is no chip 'nonsense'. Choose one of venus, arcs, venusA")
    assert done.stderr.count("\n") == 1
    assert not (shared / "shared_fix.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "no such file"),
        (["none.onnx", "--target", "nonsense"], 2, "there is no chip 'nonsense'"),
        (["broken.onnx"], 1, "not a complete ONNX model"),
        (["m.onnx", "--rule", "x"], 2, "no such rule"),
    ],
)
def test_wrong_calls(fails, arguments, code, message):
    fails("repair", *arguments, code=code, message=message)


def test_the_inherited_name_does_the_same_and_is_not_listed(wrong):
    done = run("fix", "wrong.onnx", cwd=wrong)
    assert done.returncode == 0, done.stderr
    assert (wrong / "wrong_fix.onnx").exists()
    assert "repair" in (listed := run("--help", cwd=wrong).stdout)
    assert " fix " not in listed
