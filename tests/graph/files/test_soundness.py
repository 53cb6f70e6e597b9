"""Which models are refused: by the content of the file, the graph, its nodes, and what they would make."""

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Session
from linger.errors import GraphError
from linger.graph import load
from linger.graph.files import soundness
from linger.graph.files.model_io import read_proto
from linger.graph.files.soundness import (
    CYCLE,
    REPORTABLE,
    UNDEFINED,
    Flaw,
    flaws,
    is_bounded,
    node_flaws,
    proto_flaws,
    refuse,
    require_bounded,
    shape_problem,
    tensor_problem,
)
from linger.runtime.reference import Reference
from tests.support.hostile import chain, dialect, nested, plain
from tests.support.onnx_text import BRANCH, parse


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


TYPES = [t for t in ir.DataType if t not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_whatever_onnx_ir_writes_is_right_and_a_byte_more_is_not(kind):
    array = np.zeros((3, 3), kind.numpy())
    tensor = ir.to_proto(ir.Tensor(array, dtype=kind))
    assert tensor.HasField("raw_data")
    assert tensor_problem(tensor) is None
    tensor.raw_data += b"\0"
    assert "bytes" in tensor_problem(tensor)


@pytest.mark.parametrize(
    "kind", ["FLOAT", "DOUBLE", "INT64", "UINT64", "INT8", "FLOAT16", "BOOL", "COMPLEX64", "INT4", "UINT4"]
)
def test_whatever_onnx_writes_as_items_is_right_and_an_item_more_is_not(kind):
    number = onnx.TensorProto.DataType.Value(kind)
    tensor = onnx.helper.make_tensor("t", number, [3], [0, 0, 0])
    assert not tensor.HasField("raw_data")
    assert tensor_problem(tensor) is None
    field = next(f.name for f, _ in tensor.ListFields() if f.name.endswith("_data"))
    getattr(tensor, field).extend([0, 0])
    assert "items" in tensor_problem(tensor)


def test_strings_are_counted():
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.STRING, [2], [b"a", b"bcd"])
    assert tensor_problem(tensor) is None
    tensor.dims[0] = 3
    assert tensor_problem(tensor) == "its shape [3] needs 3 items, 2 are there"


def test_empty_tensors_and_scalars_are_right():
    assert tensor_problem(onnx.TensorProto(data_type=1, dims=[0, 5])) is None
    assert tensor_problem(onnx.TensorProto(data_type=1, float_data=[1])) is None
    assert tensor_problem(onnx.TensorProto(data_type=1)) == "its shape [] needs 1 items, 0 are there"


def test_data_in_another_file_is_not_looked_at_but_its_shape_is():
    tensor = onnx.TensorProto(data_type=1, dims=[2**40], data_location=onnx.TensorProto.EXTERNAL)
    assert tensor_problem(tensor) is None
    tensor.dims[0] = -1
    assert tensor_problem(tensor) == "its shape [-1] has negative sizes"


def test_shapes_have_a_limit():
    assert shape_problem([1] * 64) is None
    assert shape_problem([1] * 65) == "it has 65 axes; at most 64 are possible"


@pytest.mark.parametrize("number", [0, 999, -1])
def test_element_types_that_do_not_exist_are_named(number):
    assert tensor_problem(onnx.TensorProto(data_type=number)) == f"there is no element type {number}"


def test_texts_are_counted_as_texts_even_beside_raw_data():
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.STRING, dims=[3], raw_data=b"")
    assert tensor_problem(tensor) == "its shape [3] needs 3 items, 0 are there"
    tensor.string_data.extend([b"a", b"b", b"c"])
    assert tensor_problem(tensor) is None


def categories(model):
    return [flaw.category for flaw in flaws(model)]


def with_functions(*texts, calls="y = my.f0(x)"):
    bodies = "".join(f'<domain: "my", opset_import: ["": 17, "my": 1]> {text}' for text in texts)
    text = f'<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) {{ {calls} }} {bodies}'
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    "model",
    [parse(BRANCH), parse("b = Neg(a) a = Exp(x) y = Abs(b)"), ir.from_proto(nested(31)), ir.from_proto(chain(5000))],
    ids=["branch", "unsorted", "31 levels", "5000 nodes"],
)
def test_sound_models_have_no_flaws(model):
    assert flaws(model) == []


def test_nodes_on_a_cycle_are_named_and_those_behind_it_are_not():
    model = parse("[p] a = Add(x, c) [q] b = Neg(a) [r] c = Abs(b) [after] y = Exp(c) [before] z = Exp(x)")
    (flaw,) = flaws(model)
    assert flaw.category == CYCLE
    assert flaw.reason in {
        "p (Add), q (Neg), r (Abs) wait for each other",
        "q (Neg), r (Abs), p (Add) wait for each other",
        "r (Abs), p (Add), q (Neg) wait for each other",
    }


def test_a_node_that_feeds_itself_is_a_cycle():
    assert flaws(parse("[p] a = Add(x, a) y = Exp(a)")) == [Flaw(CYCLE, "p (Add) waits for itself")]


def test_a_cycle_may_go_through_a_branch():
    body = """[i] y = If(c)<then_branch = t () => (float[n] p) { p = Neg(z) }, else_branch = e () => (float[n] q) { q = Neg(x) }>
    [n] z = Abs(y)"""
    (flaw,) = flaws(parse(body, inputs="float[n] x, bool c"))
    assert flaw.reason in {"n (Abs), i (If) wait for each other", "i (If), n (Abs) wait for each other"}


def test_a_cycle_inside_a_branch_and_inside_a_function_is_found():
    body = "y = If(c)<then_branch = t () => (float[n] p) { p = Neg(r) r = Abs(p) }, else_branch = e () => (float[n] q) { q = Neg(x) }>"
    assert categories(parse(body, inputs="float[n] x, bool c")) == [CYCLE]
    assert categories(with_functions("f0 (a) => (b) { b = Neg(c) c = Abs(b) }")) == [CYCLE]


def test_a_branch_that_uses_what_a_later_node_makes_is_no_cycle():
    body = """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(z) }, else_branch = e () => (float[n] q) { q = Neg(x) }>
    z = Abs(x)"""
    assert flaws(parse(body, inputs="float[n] x, bool c")) == []


def test_tensors_from_nowhere_are_all_named():
    model = parse("[p] a = Add(x, gone) y = Abs(lost)", outputs="float[n] y, float[n] never")
    assert flaws(model) == [
        Flaw(UNDEFINED, "no node makes 'gone', which p (Add) uses"),
        Flaw(UNDEFINED, "no node makes 'lost', which y (Abs) uses"),
        Flaw(UNDEFINED, "no node makes the output 'never'"),
    ]


def test_outputs_may_be_inputs_and_initializers():
    assert flaws(parse("y = Neg(x)", outputs="float[n] y, float[n] x, float[1] w", extra="<float[1] w = {1}>")) == []


def test_functions_that_never_end_are_named():
    assert [f.reason for f in flaws(with_functions("f0 (a) => (b) { b = my.f0(a) }"))] == [
        "the function calls itself: my::f0"
    ]
    (flaw,) = flaws(with_functions("f0 (a) => (b) { b = my.f1(a) }", "f1 (a) => (b) { b = my.f0(a) }"))
    assert flaw.category == "recursion"
    assert flaw.reason == "the functions call each other: my::f0, my::f1"


def doubling(levels):
    texts = [f"f{i} (a) => (b) {{ c = my.f{i + 1}(a) b = my.f{i + 1}(c) }}" for i in range(levels)]
    return with_functions(*texts, f"f{levels} (a) => (b) {{ b = Neg(a) }}")


def test_calls_are_counted_as_they_unfold():
    # f0 is called once, and inside it 2 + 4 + … + 2^n calls are made
    assert flaws(doubling(13)) == []  # 2^14 − 2 = 16382
    (flaw,) = flaws(doubling(14))  # 2^15 − 2 = 32766; 1 + 2·14 + 1 nodes
    assert (flaw.category, flaw.reason) == (
        "unfolding",
        "its functions unfold into 32766 calls; at most 20030 are supported",
    )


def test_many_calls_of_the_main_graph_are_no_flaw(monkeypatch):
    monkeypatch.setattr(soundness, "MOST_NESTED_CALLS", 0)
    calls = "a = my.f0(x) b = my.f0(a) c = my.f0(b) y = my.f0(c)"
    assert flaws(with_functions("f0 (a) => (b) { c = Neg(a) b = Neg(c) }", calls=calls)) == []


@pytest.mark.parametrize(("levels", "found"), [(98, []), (99, ["depth"])])
def test_functions_call_each_other_so_deep_and_no_deeper(levels, found):
    texts = [f"f{i} (a) => (b) {{ b = my.f{i + 1}(a) }}" for i in range(levels)]
    assert categories(with_functions(*texts, f"f{levels} (a) => (b) {{ b = Neg(a) }}")) == found


@pytest.mark.parametrize("op_type", ["If", "Loop"])
def test_graphs_inside_each_other_have_a_limit(op_type):
    model = ir.from_proto(nested(32, op_type))
    (flaw,) = flaws(model)
    assert flaw.category == "depth"
    assert "more than 32 levels deep" in flaw.reason


def test_a_model_in_memory_that_is_bottomless_is_refused_without_recursion():
    inner = ir.Graph([], [], nodes=[ir.Node("", "Abs", [ir.Value(name="x")])], name="g")
    for level in range(5000):
        inner = ir.Graph([], [], nodes=[ir.Node("", "If", [], [ir.AttrGraph("then_branch", inner)])], name=f"g{level}")
    with pytest.raises(GraphError, match=r"the given model: the model cannot be used: .* levels deep"):
        load(ir.Model(inner, ir_version=8))


def test_what_is_refused_can_be_chosen():
    found = [Flaw(CYCLE, "round"), Flaw("depth", "deep")]
    with pytest.raises(GraphError, match=r"^m: the model cannot be used: round, deep\. Export it again\.$"):
        refuse(found, "m")
    with pytest.raises(GraphError, match="used: deep"):
        refuse(found, "m", allowed=REPORTABLE)
    refuse(found[:1], "m", allowed=REPORTABLE)


def test_a_model_with_a_cycle_can_be_loaded_by_those_who_report_it():
    proto = plain("a = Add(x, a) y = Exp(a)")
    with pytest.raises(GraphError, match="waits for itself"):
        load(proto)
    assert load(proto, allowed=REPORTABLE).graph[0].op_type == "Add"


def node_reasons(model):
    return [flaw.reason for flaw in node_flaws(model)]


def test_sound_nodes_have_no_flaws():
    assert node_reasons(parse(BRANCH)) == []
    assert (
        node_reasons(
            parse(
                "a = Clip <min: float = 0.0> (x) b = Clip(a, , w) y = Cast <to: int = 1> (b)", extra="<float w = {1}>"
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Cast(x)", "y (Cast) lacks to"),
        ('y = Cast <to: string = "float"> (x)', "y (Cast): to is a string, not a int"),
        ("y = Softmax <axis: float = 1.0> (x)", "y (Softmax): axis is a float, not a int"),
        ("y = Relu()", "y (Relu) lacks inputs; it needs 1"),
        ("y = Where(x)", "y (Where) lacks inputs; it needs 3"),
        ('y = Add("", x)', "y (Add) lacks inputs; it needs 2"),
    ],
)
def test_each_flaw_of_a_node_has_its_sentence(body, reason):
    assert node_reasons(parse(body)) == [reason]


def test_nodes_without_outputs_in_branches_and_functions_are_found():
    model = parse(BRANCH)
    branch = model.graph[2].attributes["then_branch"].as_graph()
    branch.append(ir.Node("", "Neg", [branch[0].inputs[0]], num_outputs=0, name="idle"))
    assert node_reasons(model) == ["idle (Neg) has no output"]
    text = '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) { y = my.f(x) } '
    text += '<domain: "my", opset_import: ["": 17]> f (a) => (b) { b = Cast(a) }'
    assert node_reasons(ir.from_proto(onnx.parser.parse_model(text))) == ["b (Cast) lacks to"]


def test_other_domains_and_unknown_names_are_not_judged():
    assert node_reasons(parse("a = my.Cast(x) y = Nothing(a)", domains=', "my": 1')) == []


def test_a_function_of_the_same_name_has_its_own_rules():
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Cast(x) } '
    text += '<domain: "", opset_import: ["": 17]> Cast (a) => (b) { b = Neg(a) }'
    assert node_reasons(ir.from_proto(onnx.parser.parse_model(text))) == []


def test_load_refuses_them_unless_they_are_reported():
    proto = plain("y = Cast(x)")
    with pytest.raises(GraphError, match=r"the model cannot be used: y \(Cast\) lacks to"):
        load(proto)
    assert load(proto, allowed=REPORTABLE).graph[0].op_type == "Cast"


CASES = {
    "ConstantOfShape": "s = Constant <value = int64[2] {3, 5}> () y = ConstantOfShape(s)",
    "Expand": "s = Constant <value = int64[2] {3, 5}> () y = Expand(x, s)",
    "Tile": "s = Constant <value = int64[1] {5}> () y = Tile(x, s)",
    "Range": "a = Constant <value = int64 {2}> () b = Constant <value = int64 {32}> () d = Constant <value = int64 {2}> () y = Range(a, b, d)",
    "Pad": "s = Constant <value = int64[2] {5, 7}> () y = Pad(x, s)",
    "Resize": "e = Constant <value = float[0] {}> () s = Constant <value = int64[1] {15}> () y = Resize(x, e, e, s)",
    "Resize by a factor": "e = Constant <value = float[0] {}> () s = Constant <value = float[1] {5.0}> () y = Resize(x, e, s)",
    "OneHot": "d = Constant <value = int64[1] {15}> () v = Constant <value = float[2] {0, 1}> () y = OneHot(x, d, v)",
    "RandomNormal": "y = RandomNormal <shape: ints = [3, 5]> ()",
    "Pad of old": "y = Pad <pads: ints = [5, 7]> (x)",
    "in a branch": "c = Constant <value = bool {1}> () s = Constant <value = int64[2] {3, 5}> () y = If(c)<then_branch = t () "
    "=> (float[n] p) { p = Expand(x, s) }, else_branch = e () => (float[n] q) { q = Neg(x) }>",
}


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_fifteen_elements_are_counted(body, monkeypatch):
    """Each case makes 15 elements, of an input of three."""
    model = parse(body, inputs="float[3] x")
    monkeypatch.setattr(soundness, "MOST_ELEMENTS", 15)
    require_bounded(model)
    assert is_bounded(model)
    monkeypatch.setattr(soundness, "MOST_ELEMENTS", 14)
    assert not is_bounded(model)
    with pytest.raises(
        GraphError, match=r"the model is not run: \w \(\w+\) makes 15 elements, and at most 14 are supported"
    ):
        require_bounded(model)


@pytest.mark.parametrize(
    "body",
    [
        "y = Expand(x, s)",
        "s2 = Neg(s) y = ConstantOfShape(s2)",
        "a = Constant <value = float {0}> () b = Constant <value = float {1}> () d = Constant <value = float {0}> () y = Range(a, b, d)",
        'a = Constant <value_string: string = "a"> () y = Expand(x, a)',
    ],
    ids=["input", "computed", "no step", "strings"],
)
def test_what_is_not_known_is_not_judged(body, monkeypatch):
    monkeypatch.setattr(soundness, "MOST_ELEMENTS", 2)
    require_bounded(parse(body, inputs="float[3] x, int64[2] s"))


def test_infinite_factors_and_steps_are_enormous():
    body = "e = Constant <value = float[0] {}> () s = Constant <value = float[2] {3e38, 3e38}> () y = Resize(x, e, s)"
    with pytest.raises(GraphError, match="elements"):
        require_bounded(parse(body, inputs="float[3,3] x"))


@pytest.mark.parametrize("run", [Session, Reference])
def test_neither_runtime_begins(run):
    model = parse("s = Constant <value = int64[2] {65536, 65536}> () y = ConstantOfShape(s)")
    with pytest.raises(GraphError, match=re.escape("y (ConstantOfShape) makes 4294967296 elements")):
        run(model)
