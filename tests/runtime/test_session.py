"""A dialect file in stock ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import linger
from linger import Session
from linger.errors import GraphError, UnsupportedError, UsageError

TEXT = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (float[n,3] x) => (float[n,3] y) {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  r = Relu(q)
  y = thinker.Dequant<scale_o=16.0>(r)
}"""


@pytest.fixture
def proto():
    return onnx.parser.parse_model(TEXT)


def test_bare_file_gets_its_functions_on_load_and_stays_unchanged(tmp_path, proto):
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    before = path.read_bytes()
    y = Session(path).run(None, {"x": np.array([[1.0, -1.0, 0.03]], np.float32)})[0]
    assert y.tolist() == [[1.0, 0.0, 0.0]]
    assert path.read_bytes() == before


def test_given_models_are_not_edited(proto):
    import onnx_ir as ir

    model = ir.from_proto(proto)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    Session(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_it_offers_the_calls_of_an_inference_session(proto):
    session = Session(proto)
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [o.name for o in session.get_outputs()] == ["y"]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert isinstance(session.get_modelmeta(), ort.ModelMetadata)
    feeds = {"x": np.ones((2, 3), np.float32)}
    assert len(session.run(["y"], feeds)) == 1


def test_intermediates_are_every_tensor(proto):
    found = Session(proto).intermediates({"x": np.full((1, 3), -0.5, np.float32)})
    assert {n: (a.dtype.name, a.tolist()) for n, a in found.items()} == {
        "q": ("int8", [[-8, -8, -8]]),
        "r": ("int8", [[0, 0, 0]]),
        "y": ("float32", [[0.0, 0.0, 0.0]]),
    }


@pytest.mark.needs_torch
def test_all_three_forms_load(tmp_path):
    from tests.support.models import small_net

    model, x = small_net()
    results = []
    for form in ("dialect", "bare", "standard"):
        linger.onnx.export(model, (x,), tmp_path / f"{form}.onnx", form=form, input_names=["x"])
        results.append(Session(tmp_path / f"{form}.onnx").run(None, {"x": x.numpy()})[0])
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_wrong_feed_names_what_is_missing_and_what_is_known(proto):
    with pytest.raises(UsageError, match=r"lacks x and has unknown z\. The model's inputs are x"):
        Session(proto).run(None, {"z": np.ones((1, 3), np.float32)})


def test_unknown_op_is_one_sentence(proto):
    proto.graph.node[1].domain = "thinker"
    proto.graph.node[1].op_type = "iqWarp"
    with pytest.raises(UnsupportedError, match="no op for iqWarp"):
        Session(proto)


def test_missing_and_truncated_files_are_one_sentence(tmp_path, proto):
    with pytest.raises(UsageError, match="no such file"):
        Session(tmp_path / "none.onnx")
    (tmp_path / "cut.onnx").write_bytes(proto.SerializeToString()[:60])
    with pytest.raises(GraphError, match=r"cut\.onnx"):
        Session(tmp_path / "cut.onnx")


def test_graph_that_onnx_runtime_refuses_is_a_graph_error(proto):
    proto.graph.node[2].input[0] = "nowhere"
    with pytest.raises(GraphError):
        Session(proto)


@pytest.mark.needs_torch
def test_model_with_a_data_file_runs(tmp_path):
    import torch

    from tests.support.models import SmallNet, quantized, settle

    x = torch.randn(2, 1, 8, 8)
    model = quantized(settle(SmallNet(32)), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", external_data=True, input_names=["x"])
    linger.onnx.export(model, (x,), tmp_path / "whole.onnx", input_names=["x"])
    assert (tmp_path / "net.onnx.data").exists()
    feeds = {"x": x.numpy()}
    session = Session(tmp_path / "net.onnx")
    np.testing.assert_array_equal(session.run(None, feeds)[0], Session(tmp_path / "whole.onnx").run(None, feeds)[0])
    assert "stem.Conv2dInt" in session.intermediates(feeds)


def test_weights_out_of_several_folders_are_told_apart_and_nothing_is_printed(tmp_path, capfd):
    for name, value in (("a", 1.0), ("b", 10.0)):
        made = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) '
            "<float[2] v = {0, 0}, float[2] w = {0, 0}> { h = Add(x, v) y = Add(h, w) }"
        )
        for tensor in made.graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(2, value, np.float32), tensor.name))
        (tmp_path / name).mkdir()
        onnx.save(made, tmp_path / name / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    feeds = {"x": np.zeros(2, np.float32)}
    options = ort.SessionOptions()
    one = Session(tmp_path / "a" / "m.onnx", options)
    assert one.intermediates(feeds)["y"].tolist() == [2, 2]
    assert capfd.readouterr().err == ""
    joined, other = linger.graph.load(tmp_path / "a" / "m.onnx"), linger.graph.load(tmp_path / "b" / "m.onnx")
    joined.graph.initializers["w"].const_value = other.graph.initializers["w"].const_value
    assert Session(joined).run(None, feeds)[0].tolist() == [11, 11]


def test_a_link_out_of_the_folder_is_not_followed_for_a_model_in_memory(tmp_path):
    import onnx_ir as ir

    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float[2] w = {0, 0}> { y = Add(x, w) }'
    )
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    (tmp_path / "in").mkdir()
    onnx.save(made, tmp_path / "in" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "in" / "w.bin").rename(tmp_path / "secret")
    (tmp_path / "in" / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphError, match=r"the given model: .*'w.bin' leads outside the model's folder"):
        Session(ir.load(tmp_path / "in" / "m.onnx"))


def test_a_model_can_be_run_up_to_a_tensor(proto):
    session = Session(proto)
    feeds = {"x": np.array([[1.0, -0.5, 0.03]], np.float32)}
    assert session.run_up_to("q", feeds).tolist() == [[16, -8, 0]]
    assert session.run_up_to("r", feeds).dtype == np.int8
    assert session.run_up_to("y", feeds).tolist() == [[1.0, 0.0, 0.0]]
    assert [o.name for o in session.get_outputs()] == ["y"]


def test_a_file_that_onnx_runtime_refuses_is_named_with_a_way_out(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "fine.onnx")
    wrong = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[n] x) => (int8[n] y) { y = Neg(x) }'
    )
    onnx.save(wrong, tmp_path / "wrong.onnx")
    Session(tmp_path / "fine.onnx")
    with pytest.raises(
        GraphError, match=r"wrong\.onnx: ONNX Runtime cannot load the model: .*linger repair may repair it"
    ):
        Session(tmp_path / "wrong.onnx")
