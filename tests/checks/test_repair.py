"""linger.repair and linger.parser_dequant as documented: files, memory, names, checks."""

import inspect

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger import parser_dequant, repair
from tests.support.check_cases import text_model
from tests.support.dialect_text import lines, quantizing
from tests.support.onnx_text import content

BROKEN = "q = Q16(x) d = DQ4(q) a = ADD16(d, q) e = Neg(a) y = Relu(a)"
REPAIRED = ["q=Q16(x)", "a=ADD16(q,q)", "a_dequant=DQ16(a)", "e=Neg(a_dequant)", "y_quant=Relu(a)", "y=DQ16(y_quant)"]
OUTPUTS = "float[n] e, float[n] y"


def broken():
    return quantizing(BROKEN, outputs=OUTPUTS)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(ir.to_proto(broken()), path)
    return path


def listed(folder):
    return sorted(p.name for p in folder.iterdir())


def test_the_documented_call(file, tmp_path):
    before = file.read_bytes()
    result = linger.repair(str(file), False)
    assert result.path == tmp_path / "net_fix.onnx"
    assert listed(tmp_path) == ["net.onnx", "net_fix.onnx"]
    assert file.read_bytes() == before
    assert lines(linger.graph.load(result.path)) == REPAIRED
    # 1.0 → 16, 16 + 16 = 32 → 2.0; −1.0 → −2.0, which Relu makes 0
    e, y = linger.Session(result.path).run(None, {"x": np.array([1.0, -1.0], np.float32)})
    assert y.tolist() == [2.0, 0.0]
    assert e.tolist() == [-2.0, 2.0]


def test_twice_is_once(file, tmp_path):
    first = repair(file)
    second = repair(first.path)
    assert second.changes == ()
    assert second.path.name == "net_fix_fix.onnx"
    assert second.path.read_bytes() == first.path.read_bytes()
    again = repair(file)
    assert again.path.read_bytes() == first.path.read_bytes()
    assert [str(c) for c in again.changes] == [str(c) for c in first.changes]


def test_a_path_may_have_any_ending(file, tmp_path):
    other = file.rename(tmp_path / "net.model.v2")
    assert repair(other).path.name == "net.model.v2_fix.onnx"


@pytest.mark.parametrize("kind", [lambda m: m, ir.to_proto, lambda m: ir.to_proto(m).SerializeToString()])
def test_in_memory_nothing_is_written_and_the_given_model_stays(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = kind(broken())
    before = content(linger.graph.load(given))
    result = repair(given)
    assert result.path is None
    assert lines(result.model) == REPAIRED
    assert content(linger.graph.load(given)) == before
    assert listed(tmp_path) == []


def test_every_change_is_named_with_its_rule():
    result = repair(broken())
    assert {c.rule for c in result.changes} >= {"remove_dequant", "insert_dequant"}
    assert result.ok
    assert result.summary() == f"{len(result.changes)} changes."
    assert "Repair(" in repr(result)


def test_what_cannot_be_repaired_is_said_and_left():
    result = repair(quantizing("q = Q32(x) a = ADD16(q, q) y = Exp(a)"))
    assert not result.ok
    assert [f.node for f in result.findings] == ["iqAdd_a (iqAdd)"] * 2
    assert "2 left to repair by hand: iqAdd_a (iqAdd): scale_x is 16, and 'q' has the scale 32" in result.summary()
    assert "y=Exp(a_dequant)" in lines(result.model), "the rest is repaired"


def test_check_runs_the_result(file):
    result = repair(file, True)
    assert result.check.ok
    assert "0 of 12 integers differ" in result.summary()


def test_a_result_that_cannot_run_writes_nothing(tmp_path):
    model = quantizing("q = Q16(x) y = other.Op(q)", domains=', "thinker": 1, "other": 1')
    onnx.save(ir.to_proto(model), tmp_path / "net.onnx")
    with pytest.raises(linger.GraphError, match="ONNX Runtime cannot load the model"):
        repair(tmp_path / "net.onnx", True)
    assert listed(tmp_path) == ["net.onnx"]


@pytest.mark.parametrize("name", ["none.onnx", "folder", "text.onnx"])
def test_unusable_files_change_nothing(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.onnx").write_text("no model")
    before = listed(tmp_path)
    with pytest.raises(linger.LingerError):
        repair(tmp_path / name)
    assert listed(tmp_path) == before


def test_rules_can_be_chosen():
    result = repair(broken(), rules=["rescale_dequant"])
    assert {c.rule for c in result.changes} == {"rescale_dequant"}
    with pytest.raises(linger.UsageError, match=r"'insert_quant': there is no such rule .is insert_dequant meant"):
        repair(broken(), rules=["insert_quant"])


def test_functions_are_kept_complete():
    whole = linger.graph.load(ir.to_proto(quantizing("q = Q16(x) y = Relu(q)", outputs="float[n] y")))
    from linger.graph.lowering.bodies import attach_functions

    attach_functions(whole)
    result = repair(whole)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    assert {name for _, name, _ in result.model.functions} == {"Quant", "Relu", "Dequant"}


@pytest.mark.parametrize(("is_change", "kind"), [(False, 1), (True, 3)])
def test_parser_dequant_decides_the_outputs(is_change, kind):
    given = ir.to_proto(quantizing("q = Q16(x) y = Relu(q)", outputs="y"))
    before = given.SerializeToString()
    made = parser_dequant(given, is_change)
    assert isinstance(made, onnx.ModelProto)
    assert made.graph.output[0].type.tensor_type.elem_type == kind
    assert [n.op_type for n in made.graph.node] == ["Quant", "Relu", "Dequant"][: 2 if is_change else 3]
    assert given.SerializeToString() == before


def test_parser_dequant_names_the_producer_once():
    given = ir.to_proto(quantizing("q = Q16(x) y = Relu(q)"))
    given.producer_name = "pytorch"
    once = parser_dequant(given, False)
    assert once.producer_name == f"linger_{linger.__version__}_pytorch"
    assert parser_dequant(once, False).SerializeToString(deterministic=True) == once.SerializeToString(
        deterministic=True
    )


def test_parser_dequant_refuses_contradictions_all_at_once():
    with pytest.raises(linger.GraphError, match=r"scale_x is 16.*scale_y is 16"):
        parser_dequant(quantizing("q = Q32(x) a = ADD16(q, q) y = Exp(a)"), False)


def test_arguments_have_their_documented_names(tmp_path):
    for call in (linger.repair, linger.fix_dequant):
        assert list(inspect.signature(call).parameters)[:2] == ["model_name", "is_check"]
    path = tmp_path / "m.onnx"
    onnx.save(text_model("[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [n] y = Relu(q)"), path)
    assert linger.repair(model_name=str(path), is_check=True).path == tmp_path / "m_fix.onnx"


@pytest.mark.parametrize(
    ("call", "options", "inputs", "expected"),
    [
        pytest.param(repair, {}, "float[2] x", ir.DataType.INT8, id="repair believes the file"),
        pytest.param(linger.fix_dequant, {}, "float[2] x", ir.DataType.FLOAT, id="the inherited call makes them real"),
        pytest.param(linger.fix_dequant, {"outputs": "declared"}, "float[2] x", ir.DataType.INT8, id="on request not"),
        pytest.param(linger.fix_dequant, {}, "float[2] x, int8[2] s", ir.DataType.INT8, id="integers at both ends"),
        pytest.param(linger.fix_dequant, {}, "float[2] x, int64[2] s", ir.DataType.FLOAT, id="indices are no integers"),
    ],
)
def test_declared_integer_outputs(call, options, inputs, expected):
    model = quantizing("y = Q16(x)", inputs=inputs, outputs="int8[2] y")
    assert call(model, **options).model.graph.outputs[0].dtype == expected
