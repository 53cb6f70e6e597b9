"""Whole files between the dialects."""

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger import Session, convert_dialect
from linger.dialect import find_op
from linger.errors import GraphError, UnsupportedError, UsageError
from linger.runtime.reference import Reference
from tests.support.lowering import attach_functions, expand_dialect
from tests.support.newer_text import VENUS, by_numpy, computed, described, parse, types
from tests.support.onnx_text import content

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
CASES = [
    pytest.param(case["case"], marks=[] if index % 3 == 0 else [pytest.mark.slow])
    for index, case in enumerate(json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))["cases"])
]
NO_EQUIVALENT = {"LayerNormInt", "LogSoftmaxInt", "Requant", "ShuffleChannel", "iqDiv", "iqPad"}

PAIR = f"{VENUS}, x_bits=8, y_bits=8, o_bits=8, scale_x=16.0, scale_y=16.0, scale_o=16.0"
ENDS = f"""q = DOMAIN.Quant<data_bits=8, scale_x=16.0>(x)
  s = linger.QAdd<{PAIR}>(q, q)  y = DOMAIN.Dequant<scale_o=16.0>(s)"""
REFUSED = f"""a = linger.QGLU<{VENUS}>(x)  b = linger.QAdd<{PAIR}>(x, x)
  c = linger.QMul<{PAIR.replace("floor_add", "ceil")}>(b, a)"""


@pytest.mark.parametrize("case", CASES)
def test_recorded_vectors_of_an_engine_come_out_of_the_newer_file(case):
    model = onnx.load(GOLDEN / f"{case}.onnx")
    with np.load(GOLDEN / f"{case}.npz") as file:
        recorded = {name: file[name] for name in file.files}
    done = convert_dialect(model, "linger", partial=True)
    missing = {finding.node.split("(")[-1].rstrip(")") for finding in done.findings if finding.severity == "error"}
    assert missing <= NO_EQUIVALENT
    feeds = {value.name: recorded[value.name] for value in model.graph.input}
    for name, found in Reference(done.model).run(feeds).items():
        assert found.tolist() == recorded[name].tolist()
    back = convert_dialect(done.model, "thinker").model
    if "Requant" not in {node.op_type for node in model.graph.node}:  # it goes, and comes back under another name
        assert comparable(back) == comparable(model)


def comparable(model):
    """All that a file says, with the customary values that it leaves out.

    What the running statistics of a batch norm were is the one thing that gets lost on the way.
    """
    nodes, *rest, weights, domains = described(model)
    for domain, name, _, inputs, _, attributes in nodes:
        if domain != "thinker":
            continue
        for attribute in find_op(name).attributes:
            if attribute.kind == "str":
                attributes.setdefault(attribute.name, attribute.default.encode())
        if name == "BatchNorm2dInt":
            for lost in inputs[3:]:
                weights.pop(lost, None)
            del inputs[3:]
    return nodes, rest, weights, domains


def test_a_network_of_the_original_toolkit_there_and_back(shared):
    path = shared / "golden" / "resnet18-12-regular.onnx"
    done = convert_dialect(path, "linger")
    assert done.ok
    assert done.findings == ()
    assert {node.domain for node in done.model.graph} == {"", "linger"}
    assert described(convert_dialect(done.model, "thinker").model) == described(onnx.load(path))


@pytest.mark.slow
def test_a_network_of_the_original_toolkit_computes_the_same_in_both(shared, draw):
    path = shared / "golden" / "resnet18-12-regular.onnx"
    x = draw.normal(size=(1, 3, 32, 32)).astype(np.float32)
    newer = convert_dialect(path, "linger").model
    found, expected = (Session(model).run(None, {"input": x})[0] for model in (newer, path))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("opset", [11, 12, 17])
@pytest.mark.parametrize("domain", ["thinker", "linger"])
def test_a_file_of_one_or_both_domains_runs(domain, opset):
    model = parse(ENDS.replace("DOMAIN", domain), "float[2] x", "float[2] y", opset=opset)
    # 16·1.03 + ½ = 16.98, so 16; twice that is 2; −5 − 5 saturates at −8
    assert computed(model, x=np.array([1.03, -5.0], np.float32))["y"] == [2.0, -8.0]


@pytest.mark.parametrize("to", ["thinker", "linger"])
def test_both_domains_become_one(to):
    done = convert_dialect(parse(ENDS.replace("DOMAIN", "thinker"), "float[2] x", "float[2] y"), to)
    assert {domain for domain, _ in types(done.model)} == {to}
    assert done.model.graph.opset_imports == {"": 17, to: 1}
    assert len(convert_dialect(done.model, to).changes) == 0


def test_in_every_form_a_source_can_have(tmp_path):
    model = parse(ENDS.replace("DOMAIN", "linger"), "float[2] x", "float[2] y")
    before, loaded = model.SerializeToString(), ir.from_proto(model)
    known = content(loaded)
    onnx.save(model, tmp_path / "m.onnx")
    results = [
        convert_dialect(source, "thinker")
        for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), before, model, loaded)
    ]
    assert len({content(result.model) for result in results}) == 1
    assert (model.SerializeToString(), content(loaded)) == (before, known)
    assert all(result.path is None for result in results)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_what_is_done_to_the_result_does_not_reach_the_source():
    loaded = ir.from_proto(parse(ENDS.replace("DOMAIN", "linger"), "float[2] x", "float[2] y"))
    sum_ = loaded.graph[1].outputs[0]
    sum_.type, sum_.shape = ir.TensorType(ir.DataType.INT32), ir.Shape([2])  # wrong, which the bodies will show
    done = convert_dialect(loaded, "thinker").model
    attach_functions(done)
    assert done.graph[1].outputs[0].dtype == ir.DataType.INT8
    assert sum_.dtype == ir.DataType.INT32


def test_a_model_whose_nodes_are_not_in_order_is_converted():
    loaded = ir.from_proto(parse(ENDS.replace("DOMAIN", "linger"), "float[2] x", "float[2] y"))
    loaded.graph.append(loaded.graph[0])
    before = content(loaded)
    assert len(convert_dialect(loaded, "thinker").changes) == 3
    assert content(loaded) == before
    assert by_numpy(loaded, x=np.ones(2, np.float32))["y"] == [2.0, 2.0]


def test_the_result_is_written_where_wanted(tmp_path):
    model = parse(ENDS.replace("DOMAIN", "linger"), "float[2] x", "float[2] y")
    done = linger.convert_dialect(model, to="thinker", path=tmp_path / "out.onnx")
    assert done.path == tmp_path / "out.onnx"
    assert types(done.path) == [("thinker", "Quant"), ("thinker", "iqAdd"), ("thinker", "Dequant")]
    assert done.summary() == "3 nodes converted, 0 left as they are."
    onnx.checker.check_model(onnx.load(done.path))


def test_all_obstacles_come_at_once_and_nothing_is_written(tmp_path):
    model = ir.from_proto(parse(REFUSED, "int8[2] x", "int8[2] c"))
    before = content(model)
    with pytest.raises(UnsupportedError) as error:
        convert_dialect(model, "thinker", path=tmp_path / "out.onnx")
    assert "2 of 3 nodes" in str(error.value)
    assert "a (QGLU)" in str(error.value)
    assert "c (QMul)" in str(error.value)
    assert list(tmp_path.iterdir()) == []
    for change in (attach_functions, expand_dialect):
        with pytest.raises(UnsupportedError, match="2 of 3 nodes"):
            change(model)
        assert content(model) == before


def test_in_part_the_rest_stays():
    done = convert_dialect(parse(REFUSED, "int8[2] x", "int8[2] c"), "thinker", partial=True)
    assert types(done.model) == [("linger", "QGLU"), ("thinker", "iqAdd"), ("linger", "QMul")]
    assert done.model.graph.opset_imports == {"": 17, "linger": 1, "thinker": 1}
    assert not done.ok
    assert done.summary() == "1 nodes converted, 2 left as they are."
    assert [(f.severity, f.node) for f in done.findings] == [("error", "a (QGLU)"), ("error", "c (QMul)")]


def test_errors_come_before_warnings():
    body = f"a = linger.QGelu<{VENUS}, x_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(x) b = linger.QGLU(a)"
    done = convert_dialect(parse(body, "int8[2] x", "int8[2] b"), "thinker", partial=True)
    assert [f.severity for f in done.findings] == ["error", "warning"]


BRANCH = f"""c = Constant<value = bool {{1}}>()
  y = If(c)<then_branch = t () => (int8[2] p) {{ p = linger.QSigmoid<{VENUS}, x_bits=8, o_bits=8, scale_x=16.0, scale_o=128.0>(x) }},
            else_branch = e () => (int8[2] r) {{ r = linger.QAdd<{PAIR}>(x, x) }}>"""


@pytest.mark.parametrize("opset", [11, 17])
def test_nodes_of_branches_are_converted(opset):
    model = parse(BRANCH, "int8[2] x", "int8[2] y", opset=opset)
    assert computed(model, x=np.array([0, 127], np.int8))["y"] == [64, 127]
    done = convert_dialect(model, "thinker").model
    inner = [n.op_type for g in done.graph.subgraphs() for n in g if g is not done.graph]
    assert sorted(inner) == ["Requant", "iqAdd", "iqSigmoid"]
    assert convert_dialect(done, "linger").model.graph.opset_imports == {"": opset, "linger": 1}


FUNCTION = f"""<ir_version: 8, opset_import: ["": 17, "mine": 1]>
g (int8[1,1,4] x) => (int8[1,1,n] y) {{ y = mine.block(x) }}
<domain: "mine", opset_import: ["linger": 1]>
block (a) => (b) {{
  c = linger.QAvgPool1d<{VENUS}, kernel_shape=[2], strides=[2], pads=[0,0], x_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(a)
  b = linger.QAdd<{PAIR}>(c, c)
}}"""  # fmt: skip


def test_nodes_of_functions_are_converted():
    done = convert_dialect(onnx.parser.parse_model(FUNCTION), "thinker").model
    (function,) = done.functions.values()
    assert [n.op_type for n in function] == ["Constant", "Unsqueeze", "Constant", "AvgPool2dInt", "Squeeze", "iqAdd"]
    assert function.opset_imports == {"thinker": 1, "": 17}
    onnx.checker.check_model(ir.to_proto(done))


def test_a_parameter_of_a_function_stays_one_or_is_refused():
    text = """<ir_version: 8, opset_import: ["": 17, "mine": 1]>
    g (int8[2] x) => (int8[2] y) { y = mine.block<scale: float = 4.0>(x) }
    <domain: "mine", opset_import: ["linger": 1]>
    block <scale> (a) => (b) { b = linger.QMul<o_bits=8, scale_x: float = @scale, scale_y=1.0, scale_o=1.0>(a, a) }"""
    done = convert_dialect(onnx.parser.parse_model(text), "thinker").model
    (function,) = done.functions.values()
    assert function[0].attributes["scale_x"].ref_attr_name == "scale"
    curve = text.replace("QMul<", "QTanh<x_bits=8, ").replace("scale_y=1.0, ", "").replace("(a, a)", "(a)")
    with pytest.raises(UnsupportedError, match="'scale_x' is a parameter of the function"):
        convert_dialect(onnx.parser.parse_model(curve), "thinker")


def test_a_function_of_ones_own_in_the_same_domain_is_left_alone():
    text = """<ir_version: 8, opset_import: ["": 17, "linger": 1]>
    g (float[2] x) => (float[2] y) { y = linger.Twice(x) }
    <domain: "linger", opset_import: ["": 17]> Twice (a) => (b) { b = Add(a, a) }"""
    model = onnx.parser.parse_model(text)
    assert len(convert_dialect(model, "thinker").changes) == 0
    assert Session(model).run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [2.0, 2.0]


def test_bodies_of_the_older_ops_go_when_nothing_calls_them():
    model = ir.from_proto(
        parse(ENDS.replace("DOMAIN", "thinker").replace("linger.QAdd", "thinker.iqAdd"), "float[2] x", "float[2] y")
    )
    bare = described(convert_dialect(model, "linger").model)
    attach_functions(model)
    done = convert_dialect(model, "linger").model
    assert done.functions == {}
    assert described(done) == bare


def test_new_names_do_not_meet_old_ones():
    node = f"linger.QSigmoid<{VENUS}, x_bits=8, o_bits=8, scale_x=16.0, scale_o=128.0>(x)"
    done = convert_dialect(
        parse(f"y_requant = Relu(x) y = {node}", "int8[2] x", "int8[2] y, int8[2] y_requant"), "thinker"
    )
    assert done.model.graph[1].outputs[0].name == "y_requant_1"


def test_wrong_calls(tmp_path):
    model = parse(ENDS.replace("DOMAIN", "linger"), "float[2] x", "float[2] y")
    with pytest.raises(UsageError, match=r"there is no dialect 'onnx'\. Choose 'thinker' or 'linger'"):
        convert_dialect(model, "onnx")
    with pytest.raises(UsageError, match="there is no such file"):
        convert_dialect(tmp_path / "no.onnx", "thinker")
    with pytest.raises(UsageError, match="this is a folder"):
        convert_dialect(tmp_path, "thinker")
    with pytest.raises(GraphError, match=r"no ONNX model"):
        convert_dialect(b"", "thinker")
    with pytest.raises(UsageError, match="does not exist"):
        convert_dialect(model, "thinker", path=tmp_path / "no" / "m.onnx")


def test_weights_in_a_file_of_their_own_come_along(tmp_path):
    up = "dilations=[1], group=1, kernel_shape=[2], pads=[0,0], strides=[2], output_padding=[0]"
    node = f"{VENUS}, {up}, x_bits=8, w_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=256.0"
    model = parse(
        f"y = linger.QConvTranspose1d<{node}>(x, w)", "int8[1,1,2] x", "int8[1,1,4] y", extra="<int8[1,1,2] w={3,-5}>"
    )
    source = tmp_path / "m.onnx"
    onnx.save(model, source, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "far").mkdir()
    x = np.array([[[6, -2]]], np.int8)
    written = convert_dialect(source, "thinker", path=tmp_path / "far" / "m.onnx").path
    assert by_numpy(written, x=x) == by_numpy(source, x=x) == {"y": [[[5, -7, -1, 3]]]}
    convert_dialect(source, "thinker", path=source)
    assert by_numpy(source, x=x) == {"y": [[[5, -7, -1, 3]]]}


def test_a_newer_file_is_repaired_in_its_own_words():
    """The scale comes through an op of the newer dialect that only moves numbers."""
    body = f"""q = linger.Quant<data_bits=8, scale_x=16.0, zero_point=0>(x)  t = linger.QAdd<{PAIR}>(q, q)
      s = linger.Squeeze<axes=[0]>(t)  y = Exp(s)"""
    done = linger.fix_dequant(parse(body, "float[1,2] x", "float[2] y"))
    assert done.ok
    inserted = next(node for node in done.model.graph if node.op_type == "Dequant")
    assert (inserted.domain, inserted.attributes["scale_o"].value) == ("linger", 16.0)
    x = np.array([[0.5, -0.25]], np.float32)
    np.testing.assert_allclose(
        Session(done.model).run(None, {"x": x})[0], np.exp([1.0, -0.5]), rtol=1e-6
    )  # float32 exp


def test_time_grows_with_the_number_of_nodes():
    """A step that looks at all nodes for each of them would take a minute."""
    curve = f"{VENUS}, x_bits=8, o_bits=8, scale_x=16.0, scale_o=128.0"
    body = "".join(f"t{i + 1} = linger.QSigmoid<{curve}>(t{i})" for i in range(1500))
    model = ir.from_proto(parse(body, "int8[2] t0", "int8[2] t1500"))
    begin = time.process_time()
    done = convert_dialect(model, "thinker")
    assert len(done.model.graph) == 3000
    assert time.process_time() - begin < 3  # measured: 0.3 s
