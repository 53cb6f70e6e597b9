"""What a certificate holds, and that it is written whole or not at all."""

import json
import platform

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import linger
from linger import Recording, verify
from linger.errors import UsageError
from linger.graph import save
from linger.verification.proof import causes, comparison
from linger.verification.proof.certificate import file_sha256, sealed
from linger.verification.proof.comparison import fingerprint
from tests.support.recorded import TEXT, X


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def written(model, recordings=None, **options):
    given = [Recording(inputs=[X])] if recordings is None else recordings
    place = model.with_name("c.json")
    assert verify(given, model, **options).save_certificate(place) == place
    return json.loads(place.read_text())


def test_it_says_what_was_proved(model):
    content = written(model, levels=("basic", "all"), session_options={"intra_op_num_threads": 1})
    assert (content["schema"], content["schema_version"], content["verdict"]) == ("linger-certificate", 1, "equal")
    assert content["model"] == {"name": "m.onnx", "sha256": file_sha256(model), "external": []}
    assert (content["levels"], content["session_options"]) == (["basic", "all"], {"intra_op_num_threads": 1})
    assert content["counts"] == {
        "batches": 1,
        "tensors": 2,
        "integers": 6,
        "differing": 0,
        "output_differences": 0,
    }
    q = content["tensors"][0]
    assert {k: q[k] for k in ("name", "dtype", "values", "distinct", "saturated", "differing")} == {
        "name": "q",
        "dtype": "int8",
        "values": 3,
        "distinct": 3,
        "saturated": 0,
        "differing": 0,
    }
    assert [t["name"] for t in content["tensors"]] == ["q", "r"]
    assert [o["name"] for o in content["outputs"]] == ["y"]
    assert content["expected_by"] == "numpy"


def test_fingerprints_are_of_the_integers_and_inputs(model):
    content = written(model)
    row = content["tensors"][1]
    # Relu of 16, −16, 8
    assert row["sha256"] == fingerprint(np.array([[16, 0, 8]], np.int8))
    assert content["outputs"][0]["sha256"] == fingerprint(np.array([[1.0, 0.0, 0.5]], np.float32))
    assert content["inputs"]["batches"] == [{"x": fingerprint(X)}]


def test_it_says_by_what(model):
    content = written(model)
    assert content["versions"]["onnxruntime"] == ort.__version__
    assert content["versions"]["linger"] == linger.__version__
    assert set(content["versions"]) == {"linger", "onnx", "onnx_ir", "onnxruntime", "numpy", "python"}
    assert content["cpu"]["machine"] == platform.machine()
    assert isinstance(content["cpu"]["u8s8_saturates"], bool)
    assert content["date"].endswith("+00:00")


def test_the_seal_covers_everything(model):
    content = written(model)
    assert sealed(content)["seal"] == content["seal"]
    content["date"] = "2020"
    assert sealed(content)["seal"] != content["seal"]


def test_floats_that_may_differ_have_no_fingerprint(model):
    onnx.save(
        onnx.parser.parse_model(
            TEXT.replace("y = thinker.Dequant<scale_o=16.0>(r)", "f = thinker.Dequant<scale_o=16.0>(r) y = Exp(f)")
        ),
        model,
    )
    assert written(model)["outputs"][0]["sha256"] is None


def test_a_difference_is_certified_as_one(model):
    wrong = Recording(inputs=[X], integers={"q": np.zeros((1, 3), np.int8)}, is_complete=False)
    content = written(model, [wrong])
    assert (content["verdict"], content["counts"]["differing"]) == ("different", 3)
    assert content["first"]["tensor"] == "q"
    assert content["expected_by"] == "recording"
    assert "numpy has 16" in content["first"]["text"]


def test_small_inputs_are_embedded_large_ones_stored_beside_and_seeds_named(model):
    assert written(model)["inputs"]["kind"] == "embedded"
    assert not model.with_name("c.inputs.npz").exists()
    many = [Recording(inputs=[np.ones((5000, 3), np.float32)])]
    content = written(model, many)
    assert (content["inputs"]["kind"], content["inputs"]["file"]) == ("stored", "c.inputs.npz")
    assert content["inputs"]["sha256"] == file_sha256(model.with_name("c.inputs.npz"))
    assert "npz" not in content["inputs"]
    verify(None, model, seed=7, batches=1, certificate=model.with_name("s.json"))
    assert json.loads(model.with_name("s.json").read_text())["inputs"]["seeds"] == [7]
    result = comparison.verify_file(model, [Recording(inputs=[X])], seeds=(5, 7), explainer=causes)
    result.save_certificate(model.with_name("t.json"))
    stated = json.loads(model.with_name("t.json").read_text())["inputs"]
    assert stated["seeds"] == [5, 7]
    assert not {"npz", "file"} & stated.keys()


def test_data_files_have_fingerprints_too(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[600] x) => (uint8[600] y) <float s = {1.0}>
    { a = Add(x, w) y = QuantizeLinear(a, s) }"""
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(600, np.float32), "w"))
    save(ir.from_proto(made), tmp_path / "m.onnx", external_data=True)
    content = written(tmp_path / "m.onnx", [Recording(inputs=[np.ones(600, np.float32)])])
    assert content["model"]["external"] == [{"name": "m.onnx.data", "sha256": file_sha256(tmp_path / "m.onnx.data")}]


def test_a_model_in_memory_has_no_certificate(model, tmp_path):
    result = verify([Recording(inputs=[X])], onnx.load(model))
    with pytest.raises(UsageError, match=r"c\.json: a certificate is about a file"):
        result.save_certificate(tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


def test_a_file_that_changed_meanwhile_has_none(model, tmp_path):
    result = verify([Recording(inputs=[X])], model)
    onnx.save(onnx.parser.parse_model(TEXT.replace("16.0", "8.0")), model)
    with pytest.raises(UsageError, match="has changed since it was verified"):
        result.save_certificate(tmp_path / "c.json")


def test_inputs_that_were_not_kept_are_said(model, tmp_path):
    result = comparison.verify_file(model, [Recording(inputs=[X])], kept_bytes=10, explainer=causes)
    assert result.ok
    with pytest.raises(UsageError, match="too many to be kept"):
        result.save_certificate(tmp_path / "c.json")


def test_nothing_is_left_where_it_cannot_be_written(model, tmp_path):
    result = verify([Recording(inputs=[np.ones((5000, 3), np.float32)])], model)
    (tmp_path / "c.json").mkdir()
    with pytest.raises(UsageError, match="this is a folder"):
        result.save_certificate(tmp_path / "c.json")
    with pytest.raises(UsageError, match="does not exist"):
        result.save_certificate(tmp_path / "none" / "c.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "m.onnx"]
