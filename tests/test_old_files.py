"""Files that version 0.1 wrote are read by this version, and give the same integers.

They lie in tests/data/0.1 and are never written again; `tools/make_old_files.py` says what each of them holds.
"""

import importlib
import json
import shutil
import sys

import numpy as np
import pytest

import linger
from linger.graph import load
from linger.graph.core.dialects import POSITIVE, stands_for
from tests.conftest import REPOSITORY
from tests.support.command import run

DATA = REPOSITORY / "tests" / "data" / "0.1"
MODELS = ("conv", "lstm")
FORMS = ("dialect", "bare", "standard", "qdq")
FILES = [(name, form) for name in MODELS for form in FORMS]
CERTIFICATES = [f"{name}_{inputs}" for name in MODELS for inputs in ("generated", "embedded", "stored")]
RECORDED = {"conv": 5 * (36 + 5 * 144 + 36 + 3), "lstm": 5 * (12 + 15 + 9)}
"""Integers in the recordings of a model: for each of 5 inputs those of the Quant, then op by op."""

SCALES = {"conv": 64.0, "lstm": 256.0}
"""Scales of the scores."""


def recordings(name):
    return list(linger.load_recordings(DATA / f"{name}_recordings"))


def all_files(folder):
    return {path.relative_to(folder).as_posix(): content(path) for path in folder.rglob("*") if path.is_file()}


def content(path):
    """The bytes of a file, or the arrays of an archive: how these are packed is up to Python's zipfile."""
    if path.suffix != ".npz":
        return path.read_bytes()
    with np.load(path) as archive:
        return [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in archive.items()]


def without(text, key):
    """A JSON object as a dictionary, but for the entry that names the version."""
    content = json.loads(text)
    assert content.pop(key)
    return content


@pytest.mark.parametrize("name", MODELS)
def test_recordings_hold_the_integers_that_they_are_known_to_hold(name):
    loaded = recordings(name)
    assert [len(recording.inputs[0]) for recording in loaded] == [3, 2]
    assert sum(array.size for recording in loaded for array in recording.integers.values()) == RECORDED[name]
    for recording in loaded:
        (scores,) = recording.outputs
        last = recording.integers["head.LinearInt"]
        assert last.dtype == np.int8
        assert np.array_equal(scores, last / np.float32(SCALES[name]))


@pytest.mark.parametrize(("name", "form"), FILES, ids=lambda part: part)
def test_a_file_holds_against_its_recordings(name, form):
    proof = linger.verify(DATA / f"{name}_recordings", DATA / f"{name}_{form}.onnx")
    assert proof.ok, proof.summary()
    assert proof.differing == 0
    assert proof.integers >= RECORDED[name]


@pytest.mark.parametrize(("name", "form"), [*FILES, ("conv", "newer")], ids=lambda part: part)
def test_a_file_computes_the_recorded_outputs(name, form):
    session = linger.Session(DATA / f"{name}_{form}.onnx")
    for recording in recordings(name):
        (scores,) = session.run(None, {"x": recording.inputs[0]})
        assert np.array_equal(scores, recording.outputs[0])


def test_a_file_of_the_newer_dialect_is_converted_to_the_older_one():
    converted = linger.convert_dialect(DATA / "conv_newer.onnx", to="thinker").model
    assert linger.compare(converted, DATA / "conv_bare.onnx", recordings("conv")[0].inputs[0]).ok


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_integer_of_an_old_recording_is_found(name):
    recording = recordings(name)[0]
    recording.integers["head.LinearInt"].flat[4] ^= 1
    proof = linger.verify(recording, DATA / f"{name}_dialect.onnx")
    assert (proof.ok, proof.differing, proof.first.tensor) == (False, 1, "head.LinearInt")


@pytest.mark.parametrize("certificate", CERTIFICATES)
def test_a_certificate_still_holds(certificate):
    said = json.loads((DATA / f"{certificate}.json").read_text(encoding="utf-8"))
    again = linger.check_certificate(DATA / f"{certificate}.json")
    assert again.ok
    assert again.integers == said["counts"]["integers"] > 0


def test_the_command_line_checks_certificates_and_recordings():
    assert run("verify", "--certificate", "lstm_stored.json", cwd=DATA).returncode == 0
    assert run("verify", "conv_qdq.onnx", "--recordings", "conv_recordings", cwd=DATA).returncode == 0
    assert run("compare", "lstm_bare.onnx", "lstm_vectors", cwd=DATA).returncode == 0


def compared(name, folder, *inputs):
    """The tensors of a model's file that a folder has and that are equal."""
    result = linger.compare(DATA / f"{name}_dialect.onnx", folder, *inputs)
    assert result.ok, result.summary()
    assert all(row.values > 0 for row in result.rows)
    return {row.name for row in result.rows}


@pytest.mark.parametrize(
    "removed", [(), ("bin", "text"), ("npz", "text"), ("npz", "bin")], ids=["all", "npz", "bin", "text"]
)
@pytest.mark.parametrize("name", MODELS)
def test_vectors_agree_with_the_file_in_each_format(name, removed, tmp_path):
    folder = tmp_path / "vectors"
    shutil.copytree(DATA / f"{name}_vectors", folder)
    for suffix in removed:
        for path in folder.rglob(f"*.{'txt' if suffix == 'text' else suffix}"):
            path.unlink()
    assert compared(name, folder) >= {*recordings(name)[1].integers, "scores"}


@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_written_again_with_the_same_content(name, tmp_path):
    inputs = recordings(name)[1].inputs[0]
    linger.write_vectors(DATA / f"{name}_dialect.onnx", tmp_path / "again", inputs, header_limit=64)
    old, new = all_files(DATA / f"{name}_vectors"), all_files(tmp_path / "again")
    assert without(new.pop("manifest.json"), "linger") == without(old.pop("manifest.json"), "linger")
    assert len(new) > 8
    version = linger.__version__.encode()
    assert new.pop("README.txt").replace(version, b"0.1.0") == old.pop("README.txt")
    assert new == old


def test_archives_are_compared_by_their_arrays(tmp_path):
    arrays = {"x": np.arange(3, dtype=np.int8), "y": np.ones((1, 2), np.float32)}
    for name, save, changed in (
        ("plain", np.savez, {}),
        ("packed", np.savez_compressed, {}),
        ("value", np.savez, {"x": np.array([0, 1, 3], np.int8)}),
        ("shape", np.savez, {"y": np.ones((2, 1), np.float32)}),
    ):
        save(tmp_path / f"{name}.npz", **(arrays | changed))
    plain, packed, value, shape = (content(tmp_path / f"{n}.npz") for n in ("plain", "packed", "value", "shape"))
    assert (tmp_path / "plain.npz").read_bytes() != (tmp_path / "packed.npz").read_bytes()
    assert plain == packed
    assert plain not in (value, shape)


@pytest.mark.parametrize("name", MODELS)
def test_dumps_agree_with_the_file(name, tmp_path):
    integers = set(recordings(name)[1].integers)
    assert compared(name, DATA / f"{name}_dump") == integers
    for path in (DATA / f"{name}_dump").glob("*.q_outputs"):
        shutil.copy(path, tmp_path)
    assert compared(name, tmp_path, recordings(name)[1].inputs[0][:1]) == integers


def test_a_check_says_the_same():
    again = linger.check(DATA / "conv_bare.onnx", target="venus").to_json()
    old = without((DATA / "check.json").read_bytes(), "linger")
    assert (old["format"], old["version"]) == ("linger-check", 1)
    (file,) = old["files"]
    found = without(again, "linger")
    file["path"] = found["files"][0]["path"]  # relative to where the tests run
    # what was learned of the chip since: the batch of this file is open, and it names no chip
    learned = [finding for finding in found["files"][0]["findings"] if finding["rule"] in ("LGR903", "LGR909")]
    assert len(learned) == 2
    found["files"][0]["findings"] = [f for f in found["files"][0]["findings"] if f not in learned]
    for part in (found["files"][0], file):
        del part["ok"], part["counts"]
    del found["ok"], old["ok"]
    assert found == old


@pytest.fixture(scope="module")
def tool():
    """The script that made the files; it builds the models that their checkpoints load into."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "tools"))
        yield importlib.import_module("make_old_files")
    for name in ("make_old_files", "exported_files"):
        del sys.modules[name]


def checkpoint(name, suffix):
    import torch
    from safetensors.torch import load_file

    path = DATA / f"{name}{suffix}"
    return load_file(path) if suffix == ".safetensors" else torch.load(path, weights_only=True)


def from_checkpoint(tool, name, suffix):
    """A new model with the numbers of an old checkpoint, and the inputs that belong to it."""
    import torch

    model = tool.prepared(name)
    model.load_state_dict(checkpoint(name, suffix), strict=True)
    return model.eval(), [torch.from_numpy(recording.inputs[0]) for recording in recordings(name)]


@pytest.mark.needs_torch
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_loads_and_gives_the_same_integers(tool, name, suffix):
    model, batches = from_checkpoint(tool, name, suffix)
    for recording, batch in zip(recordings(name), batches, strict=True):
        assert np.array_equal(model(batch).integers().numpy(), recording.integers["head.LinearInt"])


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_a_checkpoint_records_the_same(tool, name):
    model, batches = from_checkpoint(tool, name, ".pt")
    for old, new in zip(recordings(name), linger.record(model, batches), strict=True):
        assert list(new.integers) == list(old.integers)
        for tensor, array in old.integers.items():
            assert new.integers[tensor].dtype == array.dtype, tensor
            assert np.array_equal(new.integers[tensor], array), tensor
        assert np.array_equal(new.outputs[0], old.outputs[0])


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_the_keys_of_a_checkpoint_are_those_of_today(tool, name):
    saved, today = checkpoint(name, ".pt"), from_checkpoint(tool, name, ".pt")[0].state_dict()
    assert list(today) == list(saved)
    assert {key: (value.dtype, value.shape) for key, value in today.items()} == {
        key: (value.dtype, value.shape) for key, value in saved.items()
    }
    assert all((today[key] == value).all() for key, value in saved.items())


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_a_float_checkpoint_loads_into_a_quantized_model(tool, name):
    saved = checkpoint(name, "_float.pt")
    model = tool.prepared(name)
    model.load_state_dict(saved, strict=True)
    assert (model.head.weight == saved["head.weight"]).all()


@pytest.mark.needs_torch
@pytest.mark.parametrize(("name", "form"), FILES, ids=lambda part: part)
def test_a_file_holds_against_the_model_of_its_checkpoint(tool, name, form):
    model, batches = from_checkpoint(tool, name, ".safetensors")
    proof = linger.verify(model, DATA / f"{name}_{form}.onnx", batches)
    assert proof.ok, proof.summary()
    assert proof.integers >= RECORDED[name]


@pytest.mark.needs_torch
@pytest.mark.parametrize(("name", "form"), FILES, ids=lambda part: part)
@pytest.mark.thin
def test_an_export_today_computes_what_the_old_file_computes(tool, name, form, tmp_path):
    model, batches = from_checkpoint(tool, name, ".pt")
    axes = {"x": {0: "n"}, "scores": {0: "n"}}
    names = {"input_names": ["x"], "output_names": ["scores"], "dynamic_axes": axes}
    linger.onnx.export(model, (batches[0],), tmp_path / "again.onnx", form=form, **names)
    result = linger.compare(DATA / f"{name}_{form}.onnx", tmp_path / "again.onnx", batches[0].numpy())
    assert result.ok, result.summary()
    in_part = {
        stands_for(v.name) for n in load(tmp_path / "again.onnx").graph for v in n.outputs if v.name.endswith(POSITIVE)
    }
    assert bool(in_part) == (form == "standard" and name == "conv")  # what only a ReLU reads
    assert {row.name for row in result.rows} >= {*recordings(name)[0].integers, "scores"} - in_part


@pytest.mark.needs_torch
def test_measurements_of_a_sensitivity_run_are_refused_and_left(tool, tmp_path):
    """They rank whole layers only, calibrated in another way: numbers of both versions cannot stand in one table."""
    measurements = tmp_path / "measurements.json"
    shutil.copy(DATA / "measurements.json", measurements)
    model = tool.MODELS["conv"]()
    model.load_state_dict(checkpoint("conv", "_float.pt"))
    with pytest.raises(linger.UsageError, match="another version of linger"):
        linger.sensitivity(model.eval(), tool.batches_of("conv"), target_db=36, save_path=measurements)
    assert measurements.read_bytes() == (DATA / "measurements.json").read_bytes()


@pytest.mark.needs_torch
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_an_analysis_of_a_checkpoint_says_the_same(suffix, tmp_path):
    result = linger.wb_analyse(DATA / f"conv{suffix}", str(tmp_path / "wb_analyse.log"))
    rows = {row["name"]: row for row in json.loads(result.to_json())}
    assert rows == {row["name"]: row for row in json.loads((DATA / "wb_analyse.json").read_bytes())}
    lines = (tmp_path / "wb_analyse.log").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted((DATA / "wb_analyse.log").read_text(encoding="utf-8").splitlines())


def unresolved(tool, names):
    """The names that lead nowhere."""
    missing = []
    for name in names:
        try:
            tool.resolved(name)
        except AttributeError:
            missing.append(name)
    return missing


@pytest.mark.needs_torch
def test_every_public_name_of_version_0_1_is_there(tool):
    names = (DATA / "names.txt").read_text(encoding="utf-8").splitlines()
    assert len(names) == 100
    assert unresolved(tool, names) == []


@pytest.mark.needs_torch
def test_every_path_inside_the_package_that_was_ever_written_about_is_there_or_has_a_new_place(tool):
    """Where one moves, write `old -> new` into module_paths.txt, and a line into the changelog."""
    lines = (DATA / "module_paths.txt").read_text(encoding="utf-8").splitlines()
    places = dict((line.split(" -> ") * 2)[:2] for line in lines)
    assert len(places) == len(lines) == 56
    assert unresolved(tool, places.values()) == []
    kept = [old for old, new in places.items() if old != new and not unresolved(tool, [old])]
    assert kept == []  # a path that leads somewhere needs no new one


@pytest.mark.needs_torch
def test_the_files_are_not_written_again(tool):
    with pytest.raises(SystemExit, match="not written again"):
        tool.main([str(DATA)])
