"""Weights in a file beside the model."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.errors import GraphError
from linger.graph import load, save
from linger.graph.files.model_io import (
    embedded_bytes,
    exchange,
    exchanged,
    external_tensors,
    file_problem,
    in_memory,
    load_own,
    plan_data_file,
    resolve_external_data,
)
from linger.runtime.reference import Reference
from tests.support.onnx_text import BRANCH, parse


def weights(model):
    return [v.const_value for v in model.graph.initializers.values()]


def with_weights(*arrays):
    """A model with these arrays as initializers w0, w1, …"""
    model = parse("y = Neg(x)")
    for index, array in enumerate(arrays):
        tensor = ir.tensor(array, name=f"w{index}")
        kind = ir.TensorType(tensor.dtype)
        value = ir.Value(name=f"w{index}", type=kind, shape=ir.Shape(array.shape), const_value=tensor)
        model.graph.register_initializer(value)
    return model


def proto_with_location(location, *, offset=0, length=8):
    """A model with one external float[2] that claims to be at a location."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) <float[2] w = {1, 2}> { y = Add(x, w) }'
    )
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return proto


def saved(folder, **options):
    (folder / "w.bin").write_bytes(np.float32([1, 2, 3, 4]).tobytes())
    onnx.save(proto_with_location(**options), folder / "m.onnx")
    return folder / "m.onnx"


def test_data_beside_the_model_is_read(tmp_path):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "w.bin").write_bytes(np.float32([5, 6]).tobytes())
    assert weights(load(saved(tmp_path, location="w.bin", offset=8)))[0].numpy().tolist() == [3, 4]
    assert weights(load(saved(tmp_path, location="deeper/w.bin", offset=None, length=None)))[0].numpy().tolist() == [
        5,
        6,
    ]


@pytest.mark.parametrize(
    "location",
    [
        "/etc/hostname",
        "../w.bin",
        "a/../../w.bin",
        "..",
        "",
        "C:\\w.bin",
        "..\\w.bin",
        "\\\\server\\share\\w.bin",
        "C:w.bin",
    ],
)
def test_locations_outside_the_folder_are_refused(tmp_path, location):
    (tmp_path.parent / "w.bin").write_bytes(bytes(16))
    with pytest.raises(
        GraphError, match=r"m\.onnx: external data cannot be used \(w: the location .* outside the model's folder"
    ):
        load(saved(tmp_path, location=location))
    for source in (proto_with_location(location), proto_with_location(location).SerializeToString()):
        with pytest.raises(GraphError, match="outside the model's folder"):
            load(source)


def test_a_model_that_onnx_ir_read_from_the_working_directory_keeps_its_data(tmp_path, monkeypatch):
    saved(tmp_path, location="w.bin")
    monkeypatch.chdir(tmp_path)
    assert weights(load_own(ir.load("m.onnx")))[0].numpy().tolist() == [1, 2]


def test_a_model_in_memory_reads_no_file_of_the_working_directory(tmp_path, monkeypatch):
    saved(tmp_path, location="w.bin")
    monkeypatch.chdir(tmp_path)
    proto = proto_with_location("w.bin")
    for source in (proto, proto.SerializeToString()):
        for use in (load, linger.Session, Reference, linger.check, linger.fix_dequant):
            with pytest.raises(
                GraphError, match=r"the given .*w: a model in memory has no folder in which 'w\.bin'.* give its path\."
            ):
                use(source)
    y = linger.Session("m.onnx").run(None, {"x": np.float32([0, 0])})[0]
    assert y.tolist() == [1, 2]


def test_links_that_lead_outside_are_refused(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphError, match="leads outside the model's folder"):
        load(saved(folder, location="link"))
    (folder / "hard").hardlink_to(tmp_path / "secret")
    with pytest.raises(GraphError, match="several hard links"):
        load(saved(folder, location="hard"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"location": "gone.bin"}, "there is no file .*gone.bin"),
        ({"location": "w.bin", "offset": 12}, r"it ends at byte 20, but .*w\.bin' has 16"),
        ({"location": "w.bin", "offset": -4}, r"m\.onnx: .*-4"),
        ({"location": "w.bin", "length": 4}, "offset 0 and length 4 do not fit its 8 bytes"),
    ],
    ids=["missing", "short", "negative", "length"],
)
def test_files_that_do_not_hold_the_tensor_are_named(tmp_path, options, message):
    with pytest.raises(GraphError, match=message):
        load(saved(tmp_path, **options))


def test_all_offenders_are_named_also_in_constants_and_functions():
    model = parse("c = Constant<value = float[2] {1, 2}>() y = Add(x, c)", extra="<float[2] w = {1, 2}>")
    bad = [ir.ExternalTensor(f"../{n}", 0, 8, ir.DataType.FLOAT, shape=ir.Shape([2]), name=n) for n in ("p", "q")]
    exchange(model, {id(weights(model)[0]): bad[0], id(model.graph[0].attributes["value"].as_tensor()): bad[1]})
    with pytest.raises(GraphError, match=r"p: the location.*q: the location"):
        resolve_external_data(model, None, "here")
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) { y = my.f(x) }
    <domain: "my", opset_import: ["": 17]> f (x) => (y) { c = Constant<value = float[2] {1, 2}>() y = Add(x, c) }"""
    model = ir.from_onnx_text(text)
    [function] = model.functions.values()
    function[0].attributes["value"] = ir.AttrTensor("value", bad[1])
    assert external_tensors(model) == [bad[1]]
    with pytest.raises(GraphError, match="q: the location"):
        resolve_external_data(model, None, "here")


def test_the_layout_is_dense_and_large_tensors_are_aligned(tmp_path):
    small, medium, large = np.arange(8, dtype=np.int8), np.arange(600, dtype=np.float32), np.ones(1 << 18, np.float32)
    model = with_weights(medium, small, large, medium[::-1].copy())
    placed = plan_data_file(model, tmp_path / "m.onnx.data")
    places = [placed.get(id(t)) for t in weights(model)]
    assert [p and (p.offset, p.length) for p in places] == [
        (0, 2400),
        None,
        (65536, 1 << 20),
        (65536 + (1 << 20), 2400),
    ]
    save(model, tmp_path / "m.onnx", external_data=True)
    for tensor, place in zip(weights(model), places, strict=True):
        if place is not None:
            assert file_problem(place) is None
            assert np.array_equal(place.numpy(), tensor.numpy())


def test_a_tensor_shared_by_two_initializers_is_written_once(tmp_path):
    model = with_weights(np.ones(1000, np.float32), np.ones(1000, np.float32))
    first, second = model.graph.initializers.values()
    second.const_value = first.const_value
    assert len(plan_data_file(model, tmp_path / "d")) == 1


def test_sizes_count_every_tensor_once_and_strings_by_letters():
    model = parse(BRANCH.replace("k = Neg(a)", "s = Constant<value = float[3] {1,2,3}>() k = Neg(a)"))
    before = embedded_bytes(model)
    assert before >= 12
    model = with_weights(np.ones(10, np.float32), np.array(["ab", "cde"]))
    assert embedded_bytes(model) == 45
    assert plan_data_file(model, Path("d")) == {}


def test_exchanged_tensors_come_back_also_after_an_error():
    model = parse("c = Constant<value = float[2] {1, 2}>() y = Add(x, c)", extra="<float[2] w = {1, 2}>")
    w, c = weights(model)[0], model.graph[0].attributes["value"].as_tensor()
    other = {id(w): ir.tensor(np.zeros(2)), id(c): ir.tensor(np.zeros(2))}
    with pytest.raises(KeyError), exchanged(model, other):  # noqa: PT012
        assert weights(model)[0] is other[id(w)]
        assert model.graph[0].attributes["value"].as_tensor() is other[id(c)]
        raise KeyError
    assert weights(model)[0] is w
    assert model.graph[0].attributes["value"].as_tensor() is c


def test_data_that_is_gone_is_named(tmp_path):
    model = load(saved(tmp_path, location="w.bin"))
    (tmp_path / "w.bin").unlink()
    with pytest.raises(GraphError, match=r"external data cannot be read \(w: there is no file"):
        in_memory(model)
