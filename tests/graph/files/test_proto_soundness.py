"""Whether the content of a file can become a graph."""

import numpy as np
import onnx
import pytest

from linger.errors import GraphError
from linger.graph import load
from linger.graph.files.model_io import read_proto
from linger.graph.files.soundness import proto_flaws
from tests.support.hostile import dialect, nested, plain
from tests.support.onnx_text import BRANCH


def reasons(proto):
    return [flaw.reason for flaw in proto_flaws(proto)]


def sub_graph(proto):
    return proto.graph.node[2].attribute[0].g


@pytest.fixture
def branch():
    return plain(BRANCH)


def test_sound_files_have_no_flaws(branch):
    assert reasons(dialect()) == reasons(branch) == reasons(nested(31)) == []


def test_a_long_weight_is_measured():
    proto = plain("y = Add(x, w)", extra="<float[1] w = {1}>")
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros(2**20, np.float32), "w"))
    assert reasons(proto) == []
    proto.graph.initializer[0].dims[0] += 1
    assert reasons(proto) == ["w: its shape [1048577] needs 4194308 bytes, 4194304 are there"]


def test_tensors_in_branches_and_functions_are_measured(branch):
    sub_graph(branch).node[0].attribute.append(
        onnx.helper.make_attribute("t", onnx.numpy_helper.from_array(np.zeros(3)))
    )
    sub_graph(branch).node[0].attribute[0].t.dims[0] = 2**40
    assert reasons(branch) == [
        "attribute 't' of k (Neg): its shape [1099511627776] needs 8796093022208 bytes, 24 are there"
    ]
    function = branch.functions.add(domain="my", name="f", input=["a"], output=["b"])
    function.node.add(op_type="Neg", input=["a"], output=["b"]).attribute.add().CopyFrom(
        sub_graph(branch).node[0].attribute[0]
    )
    assert len(reasons(branch)) == 2


def test_an_attribute_that_a_function_passes_on_has_no_content():
    proto = plain("y = Neg(x)")
    function = proto.functions.add(domain="my", name="f", input=[], output=["b"], attribute=["value"])
    function.node.add(op_type="Constant", output=["b"]).attribute.add(
        name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR
    )
    assert reasons(proto) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.opset_import.add(domain="", version=3), "domain '' has two versions, 17 and 3"),
        (lambda p: p.opset_import.add(domain="ai.onnx", version=3), "domain '' has two versions, 17 and 3"),
        (lambda p: p.opset_import.add(domain="z", version=-1), "the opset version -1 of domain 'z' does not exist"),
        (lambda p: p.graph.node.add(), "there are nodes without an op type"),
        (lambda p: p.graph.node[0].attribute.add(name="k"), "attribute 'k' of q (Quant) has no type"),
        (
            lambda p: p.graph.node[0].attribute.add(name="k", type=onnx.AttributeProto.SPARSE_TENSOR),
            "attribute 'k' of q (Quant) is a sparse tensor, which linger does not read",
        ),
        (lambda p: p.graph.sparse_initializer.add(), "it has sparse initializers, which linger does not read"),
        (lambda p: p.graph.initializer.add().CopyFrom(p.graph.initializer[0]), "there are two initializers 'w'"),
        (lambda p: p.graph.initializer.add(data_type=1, dims=[0]), "an initializer has no name"),
        (lambda p: p.graph.node[1].input.append("gone"), "no node makes 'gone', which h (LinearInt) uses"),
        (lambda p: p.graph.output.add(name="gone"), "no node makes the output 'gone'"),
        (lambda p: p.graph.output.add(), "no node makes the output ''"),
        (
            lambda p: p.graph.value_info.add(name="v").type.tensor_type.shape.dim.extend(
                [onnx.TensorShapeProto.Dimension(dim_value=1)] * 65
            ),
            "v: it has 65 axes; at most 64 are possible",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_each_flaw_has_its_sentence(change, reason):
    proto = dialect()
    change(proto)
    assert reasons(proto) == [reason]


def test_the_same_opset_twice_says_nothing_new():
    proto = dialect()
    proto.opset_import.add(domain="ai.onnx", version=17)
    assert reasons(proto) == []


def test_two_functions_of_one_name_are_a_flaw():
    proto = plain("y = Neg(x)")
    for _ in range(2):
        proto.functions.add(domain="my", name="f")
    assert reasons(proto) == ["there are two functions my::f"]


def test_branches_see_the_graphs_around_them_and_not_each_other(branch):
    sub_graph(branch).node[1].input[0] = "x"
    assert reasons(branch) == []
    branch.graph.node[2].attribute[1].g.node[0].input[0] = "k"
    assert reasons(branch) == ["no node makes 'k', which q (Neg) uses"]
    branch.functions.add(domain="my", name="f", output=["x"])
    assert "no node makes the output 'x'" in reasons(branch)


def test_names_that_are_no_text_are_refused_and_not_shown(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(dialect().SerializeToString().replace(b"LinearInt", b"Linear\xff\xfet"))
    for read in (load, read_proto):
        with pytest.raises(GraphError, match=r"the names of the node h \(Linear\\xff\\xfet\) are no UTF-8 text"):
            read(path)
    with pytest.raises(GraphError, match=r"the node h \(Linear\\n\\xfft\) are no UTF-8 text"):
        load(dialect().SerializeToString().replace(b"LinearInt", b"Linear\n\xfft"))


@pytest.mark.parametrize("text", [b"producer", b"sizename", b"infoname", b"metavalue"])
def test_texts_anywhere_must_be_text(text):
    proto = dialect()
    proto.producer_name = "producer"
    proto.metadata_props.add(key="k", value="metavalue")
    proto.graph.value_info.add(name="infoname").type.tensor_type.elem_type = 1
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "sizename"
    assert reasons(proto) == []
    broken = proto.SerializeToString().replace(text, b"\xff" * len(text))
    with pytest.raises(GraphError, match="no UTF-8 text"):
        load(broken)


def test_a_file_of_nothing_but_flaws_is_not_read_to_its_end():
    proto = dialect()
    for index in range(3000):
        proto.graph.node.add(op_type="Neg", input=["x"], output=[f"o{index}"]).attribute.add(name="k")
    assert len(reasons(proto)) == 1000


def test_a_proto_in_memory_that_is_bottomless_is_refused():
    with pytest.raises(GraphError, match="more than 32 levels deep inside each other"):
        load(nested(300))


def test_the_domains_that_a_function_imports_must_be_text():
    proto = dialect()
    function = proto.functions.add(domain="my", name="f")
    function.opset_import.add(domain="other", version=1)
    broken = proto.SerializeToString().replace(b"other", b"oth\xffr")
    with pytest.raises(GraphError, match="the function 'f' or a domain that it imports is no UTF-8 text"):
        load(broken)


def test_two_attributes_of_one_name_are_refused():
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[n,2] x) => (float[n,2] y) { y = Softmax<axis = 1>(x) }'
    )
    proto.graph.node[0].attribute.add(name="axis", type=onnx.AttributeProto.INT, i=0)
    with pytest.raises(GraphError, match=r"y \(Softmax\) has several attributes 'axis'"):
        load(proto)
