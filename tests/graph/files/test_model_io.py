"""Models in and out of files."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import linger
from linger.errors import GraphError, UsageError
from linger.files import write_atomically
from linger.graph import load, save
from linger.graph.files import model_io
from linger.graph.files.model_io import external_tensors, load_own, read_proto
from linger.runtime.reference import Reference
from tests.graph.files.test_external_data import with_weights
from tests.support.onnx_text import content, parse

TEXT = """<ir_version: 8, opset_import: ["": 12]>
g (float[n] x) => (float[n] y) { y = Relu(x) }"""


@pytest.fixture
def proto():
    return onnx.parser.parse_model(TEXT)


def test_every_kind_of_source_loads(tmp_path, proto):
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for source in (path, str(path), proto, proto.SerializeToString()):
        assert [n.op_type for n in load(source).graph] == ["Relu"]
    model = load(proto)
    assert load(model) is model


def test_missing_file_and_folder_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        load(tmp_path / "no.onnx")
    with pytest.raises(UsageError, match="this is a folder"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 10, 40])
def test_truncated_file_is_one_sentence(tmp_path, proto, keep):
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString()[:keep])
    with pytest.raises(GraphError, match=str(path)):
        load(path)


def test_save_and_load_round_trip(tmp_path, proto):
    save(load(proto), tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx").graph.node[0].op_type == "Relu"
    assert isinstance(load(tmp_path / "m.onnx"), ir.Model)


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")

    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(UsageError, match="No space left"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_missing_folder_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        write_atomically(tmp_path / "a" / "m.onnx", b"")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = Exp(x) a = Neg(x) y = Abs(a)", "Output 'a' is redeclared"),
        ("a = Exp(x) x = Neg(a) y = Abs(a)", "'x' is redeclared"),
    ],
    ids=["two nodes", "an input"],
)
def test_two_tensors_of_one_name_are_one_sentence(body, message):
    text = f'<ir_version: 8, opset_import: ["": 12]> g (float[n] x) => (float[n] y) {{ {body} }}'
    with pytest.raises(GraphError, match=f"the graph cannot be read: .*{message}"):
        load(onnx.parser.parse_model(text))


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(UsageError, match=r"cannot be read \(Permission denied\)"):
        read_proto(path)


# --- external data

W = np.arange(3000, dtype=np.float32)
SMALL = np.array([1, -1], np.int64)


def weight(model, name="w0"):
    return model.graph.initializers[name].const_value.numpy()


def test_weights_go_into_a_data_file_of_their_own(tmp_path):
    model = with_weights(W, SMALL)
    before = content(model)
    save(model, tmp_path / "m.onnx", external_data=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx.data").read_bytes() == W.tobytes()
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    assert content(model) == before
    loaded = load(tmp_path / "m.onnx")
    assert weight(loaded).tolist() == W.tolist()
    assert not isinstance(loaded.graph.initializers["w1"].const_value, ir.ExternalTensor), "shape inference needs it"
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.float32([2])})[0].tolist() == [-2]
    assert np.array_equal(onnx.numpy_helper.to_array(onnx.load(tmp_path / "m.onnx").graph.initializer[0]), W)


def test_a_model_of_one_file_does_not_depend_on_the_data_it_was_read_from(tmp_path):
    save(with_weights(W), tmp_path / "big.onnx", external_data=True)
    (tmp_path / "elsewhere").mkdir()
    save(load(tmp_path / "big.onnx"), tmp_path / "elsewhere" / "m.onnx")
    (tmp_path / "big.onnx.data").unlink()
    assert weight(load(tmp_path / "elsewhere" / "m.onnx")).tolist() == W.tolist()
    assert [p.name for p in (tmp_path / "elsewhere").iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("external", [True, False])
def test_a_model_can_be_saved_over_the_files_it_reads_from(tmp_path, external):
    path = tmp_path / "m.onnx"
    save(with_weights(W, W + 1, SMALL), path, external_data=True)
    model = load(path)
    model.graph.initializers.pop("w0")
    save(model, path, external_data=external)
    assert weight(model, "w1").tolist() == (W + 1).tolist(), "the model still has its weights"
    assert weight(load(path), "w1").tolist() == (W + 1).tolist()
    save(model, path, external_data=True)
    assert weight(load(path), "w1").tolist() == (W + 1).tolist()


def test_small_weights_of_an_overwritten_data_file_come_into_memory(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    monkeypatch.setattr("linger.graph.files.model_io.INLINE_BYTES", 0)
    save(with_weights(SMALL, W), path, external_data=True)
    model = load(path)
    monkeypatch.undo()
    save(model, path, external_data=True)
    assert weight(model).tolist() == weight(load(path)).tolist() == SMALL.tolist()
    assert weight(model, "w1").tolist() == W.tolist()


def test_what_does_not_fit_into_one_file_gets_a_data_file(tmp_path, monkeypatch):
    monkeypatch.setattr(model_io, "_LARGEST_TENSORS", 12000)
    save(with_weights(W[:2999]), tmp_path / "one.onnx")
    save(with_weights(W, SMALL), tmp_path / "two.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.onnx", "two.onnx", "two.onnx.data"]


def test_one_file_for_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(model_io, "_LARGEST_FILE", 1000)
    with pytest.raises(UsageError, match=r"12000 bytes, and one file can hold 1000. Save with external_data=True"):
        save(with_weights(W), tmp_path / "m.onnx", external_data=False)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_move_out_means_no_data_file(tmp_path):
    save(with_weights(SMALL), tmp_path / "m.onnx", external_data=True)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("call", [1, 2], ids=["data", "model"])
def test_a_full_disk_leaves_both_files_as_they_were(tmp_path, monkeypatch, call):
    path = tmp_path / "m.onnx"
    save(with_weights(W), path, external_data=True)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    calls = []

    def refuse(descriptor):
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    model = with_weights(W + 1)
    kept = content(model)
    with pytest.raises(UsageError, match="No space left"):
        save(model, path, external_data=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert content(model) == kept


def test_weights_that_are_gone_are_named_and_nothing_is_written(tmp_path):
    save(with_weights(W), tmp_path / "m.onnx", external_data=True)
    model = load(tmp_path / "m.onnx")
    (tmp_path / "m.onnx.data").unlink()
    for external in (True, False):
        with pytest.raises(GraphError, match="w0: there is no file"):
            save(model, tmp_path / "copy.onnx", external_data=external)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_copy_of_unordered_nodes_reads_the_data_beside_the_model(tmp_path, monkeypatch):
    text = "c = Constant<value = float[2] {1, 2}>() a = Add(x, c) y = Add(a, w)"
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{ {text} }}'
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([3, 4]), "w"))
    made.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.float32([1, 2]), "c"))
    made.graph.node.reverse()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    onnx.save(
        made,
        "there/m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    (tmp_path / "w.bin").write_bytes(bytes(16))
    model = load("there/m.onnx")
    own = load_own(model)
    assert len(external_tensors(own)) == 2
    assert linger.Session(model).run(None, {"x": np.float32([0, 0])})[0].tolist() == [4, 6]
    assert Reference(model).run({"x": np.float32([0, 0])})["y"].tolist() == [4, 6]
    own.graph[-1].attributes.clear()
    assert "value" in model.graph[-1].attributes


def test_a_model_that_cannot_be_written_is_one_sentence(tmp_path):
    model = parse("y = Neg(x)")
    model.graph[0].op_type = 5
    with pytest.raises(GraphError, match="the model cannot be written"):
        save(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_four_bit_weights_stay_packed(tmp_path):
    packed = ir.tensor((np.arange(4096) % 16 - 8).astype(np.int8), dtype=ir.DataType.INT4, name="w")
    model = parse("y = Neg(x)")
    shape = ir.Shape([4096])
    model.graph.register_initializer(
        ir.Value(name="w", type=ir.TensorType(packed.dtype), shape=shape, const_value=packed)
    )
    save(model, tmp_path / "m.onnx", external_data=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == 2048
    assert weight(load(tmp_path / "m.onnx"), "w").astype(int).tolist() == (np.arange(4096) % 16 - 8).tolist()


@pytest.mark.slow
def test_a_model_beyond_2_gb_is_saved_and_loaded(tmp_path):
    half = np.zeros(300_000_000, np.float32)  # 1.2 GB
    half[-1] = 7
    model = with_weights(half, half[::-1])
    save(model, tmp_path / "big.onnx")
    assert (tmp_path / "big.onnx.data").stat().st_size >= 2_400_000_000
    loaded = load(tmp_path / "big.onnx")
    assert weight(loaded)[-1] == weight(loaded, "w1")[0] == 7
    with pytest.raises(UsageError, match="Save with external_data=True"):
        save(loaded, tmp_path / "one.onnx", external_data=False)
    session = ort.InferenceSession(str(tmp_path / "big.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.float32([2])})[0].tolist() == [-2]
    save(loaded, tmp_path / "big.onnx")
    assert weight(loaded)[-1] == weight(load(tmp_path / "big.onnx"))[-1] == 7


def test_what_cannot_be_read_is_told_on_one_line():
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    proto.graph.value_info.add(name="y").type.optional_type.SetInParent()
    with pytest.raises(GraphError, match=r"the graph cannot be read: .*optional_type \{ \}. Export it again.") as error:
        load(proto)
    assert len(str(error.value).splitlines()) == 1


def test_a_model_of_ones_own_shares_nothing_that_is_edited():
    given = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { h = f.Twice(x) y = Relu(h) } '
        '<domain: "f", opset_import: ["": 17]> Twice (a) => (b) { b = Add(a, a) }'
    )
    before = content(given)
    own = load_own(given)
    assert content(own) == before
    own.graph.inputs[0].dtype = ir.DataType.INT8
    own.graph.inputs[0].shape = ir.Shape([7])
    own.graph[0].name = "renamed"
    for function in own.functions.values():
        function[0].op_type = "Mul"
    assert content(given) == before


def test_a_given_model_with_nodes_that_lack_operands_is_refused():
    given = parse("y = Relu(x)")
    given.graph[0].resize_inputs(0)
    with pytest.raises(GraphError, match="lacks inputs"):
        load_own(given)
