"""Models in and out of files."""

import onnx
import onnx_ir as ir
import pytest

from linger.errors import GraphError, UsageError
from linger.graph.model_io import load, save, write_atomically

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
