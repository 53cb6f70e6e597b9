"""Measurements that outlive a run."""

import json
import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from linger.errors import UsageError
from tests.support.diagnosis import LayerFacts, Measurements, SignalNoise, Trial, fingerprint, open_measurements
from tests.support.odd_targets import Pipe
from tests.support.quantization import Widths

LAYERS = {"0": LayerFacts("0", "LinearInt", Widths(), Widths(), 20)}


def filled(path):
    found = Measurements("same", path)
    found.add("alone", "a", SignalNoise(1 / 3, 1e-17))
    found.add("weights", "b", SignalNoise(1 / 3, math.inf))
    found.add_together(("b", "a"), Trial(SignalNoise(2.0, 0.0), {"a": 5, "b": 0}))
    return found


def test_what_was_written_is_read_back_exactly(tmp_path):
    path = tmp_path / "run.json"
    written = filled(path)
    found = open_measurements(str(path), "same", ["a", "b"])
    assert found == written
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled(None)
    assert open_measurements(None, "same", []).alone == {}
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_is_made_before_the_work_begins(tmp_path):
    assert open_measurements(tmp_path / "run.json", "same", ["a"]).alone == {}
    assert (tmp_path / "run.json").exists()
    with pytest.raises(UsageError, match="does not exist"):
        open_measurements(tmp_path / "nowhere" / "run.json", "same", ["a"])


def refused(path, match, names=("a", "b"), key="same"):
    before = path.read_bytes()
    with pytest.raises(UsageError, match=match):
        open_measurements(path, key, names)
    assert path.read_bytes() == before


def test_a_pipe_is_not_waited_for(tmp_path):
    with Pipe(tmp_path / "p"), pytest.raises(UsageError, match="p: measurements are read again, and this is no file"):
        open_measurements(tmp_path / "p", "same", ["a"])


def test_a_file_of_something_else_is_refused_and_untouched(tmp_path):
    filled(tmp_path / "run.json")
    refused(tmp_path / "run.json", "belongs to another model, other inputs, other bits", key="other")


def edited(change):
    def make(path):
        filled(path)
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return make


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text("[1, 2]"),
        lambda path: path.write_text("null"),
        lambda path: (filled(path), path.write_text(path.read_text()[:-40]))[0],
        edited(lambda c: c.pop("alone")),
        edited(lambda c: c.pop("kind")),
        edited(lambda c: c.update(kind="something else")),
        edited(lambda c: c["alone"].update(a=["0x1p+0"])),
        edited(lambda c: c["alone"].update(a=["nan", "0x1p+0"])),
        edited(lambda c: c["alone"].update(a=["-0x1p+0", "0x1p+0"])),
        edited(lambda c: c["alone"].update(a=[1, 2])),
        edited(lambda c: c["alone"].update(stranger=["0x1p+0", "0x1p+0"])),
        edited(lambda c: c["together"][0].pop("macs")),
        edited(lambda c: c["together"][0].update(wide=["stranger"])),
    ],
    ids=["empty", "bytes", "list", "null", "cut", "no layers", "no kind", "other kind", "one power", "nan", "negative",
         "no text", "unknown layer", "no macs", "unknown wide layer"],
)  # fmt: skip
def test_a_damaged_file_is_refused_and_untouched(tmp_path, damage):
    path = tmp_path / "run.json"
    damage(path)
    refused(path, "no file of an earlier sensitivity run, or it is damaged")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="this is no file"):
        open_measurements(tmp_path, "same", [])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


X = torch.arange(8.0).reshape(2, 4)


def test_the_same_model_and_inputs_have_the_same_fingerprint():
    assert fingerprint(net(), [(X,)], 8, LAYERS) == fingerprint(net(), [(X.clone(),)], 8, LAYERS)


def changed_buffer(model):
    model[1].running_mean[2] += 1e-6
    return model


def changed_parameter(model):
    with torch.no_grad():
        model[0].weight[1, 1] += 1e-6
    return model


PACKED = pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])


@pytest.mark.parametrize(
    "other",
    [
        (changed_parameter(net()), [(X,)], 8, LAYERS),
        (changed_buffer(net()), [(X,)], 8, LAYERS),
        (net().half(), [(X,)], 8, LAYERS),
        (net(), [(X + 1,)], 8, LAYERS),
        (net(), [(X.reshape(4, 2),)], 8, LAYERS),
        (net(), [(X[:1],), (X[1:],)], 8, LAYERS),
        (net(), [(X.T.contiguous().T,), (X,)], 8, LAYERS),
        (net(), [(X, 3)], 8, LAYERS),
        (net(), [(X, {"mask": torch.tensor([True])})], 8, LAYERS),
        (net(), [(X, PACKED)], 8, LAYERS),
        (net(), [(X,)], 4, LAYERS),
        (net(), [(X,)], 8, {"0": LayerFacts("0", "LinearInt", Widths(8, 4, 8), Widths(), 20)}),
    ],
    ids=["parameter", "buffer", "type", "input", "shape", "batches", "more batches", "number", "nest", "packed", "bits",
         "widths"],
)  # fmt: skip
def test_anything_else_has_another_fingerprint(other):
    assert fingerprint(*other) != fingerprint(net(), [(X,)], 8, LAYERS)


def test_another_linger_has_another_fingerprint(monkeypatch):
    before = fingerprint(net(), [(X,)], 8, LAYERS)
    monkeypatch.setattr("linger.quantization.diagnosis.noise_bench.__version__", "9")
    assert fingerprint(net(), [(X,)], 8, LAYERS) != before


@pytest.mark.parametrize(
    "value",
    [torch.tensor(3.0), torch.zeros(0), torch.tensor([1 + 2j]).conj(), torch.eye(3).to_sparse(), torch.ones(2).bfloat16(), object()],
    ids=["scalar", "empty", "complex", "sparse", "bfloat16", "object"],
)  # fmt: skip
def test_every_kind_of_input_has_a_fingerprint(value):
    assert fingerprint(net(), [(value,)], 8, LAYERS) == fingerprint(net(), [(value,)], 8, LAYERS)
