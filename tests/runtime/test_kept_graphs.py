"""The graph that a session keeps beside its file: loaded where nothing has changed, made anew where anything has."""

import shutil

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger.runtime import session as module
from tests.support.comparison import assert_same

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    model = linger.init(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()).eval()
    with linger.calibration():
        model(torch.from_numpy(X))
    path = tmp_path_factory.mktemp("kept") / "net.onnx"
    linger.onnx.export(model, (torch.from_numpy(X),), path)
    return path


@pytest.fixture
def kept(exported, tmp_path):
    path = tmp_path / "net.onnx"
    shutil.copy(exported, path)
    place = linger.Session(path).keep()
    assert place == tmp_path / "net.onnx.session"
    return path, place


@pytest.fixture
def made(monkeypatch):
    """How often a graph is made."""
    found = []
    real = module.fastest
    monkeypatch.setattr(module, "fastest", lambda network: found.append(network) or real(network))
    return found


def outputs(path):
    session = linger.Session(path)
    name = session.get_inputs()[0].name
    return session, session.run(None, {name: X})[0]


def test_a_kept_graph_is_loaded_and_gives_the_same(exported, kept, made):
    path, _ = kept
    session, found = outputs(path)
    assert made == []
    assert_same(found, outputs(exported)[1])
    assert len(made) == 1  # of the file without one
    feeds = {session.get_inputs()[0].name: X}
    expected = linger.Session(exported)
    assert session.kernels == expected.kernels
    for name in ("intermediates", "fastest_intermediates"):
        here, there = getattr(session, name)(feeds), getattr(expected, name)(feeds)
        assert here.keys() == there.keys()
        for key, value in here.items():
            assert_same(value, there[key])
    assert session.integer_tensors() == expected.integer_tensors()


def edit_file(path, place, monkeypatch):
    proto = onnx.load(path)
    proto.doc_string = "edited"
    onnx.save(proto, path)


def edit_graph(path, place, monkeypatch):
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    place.write_bytes(content)


def cut_graph(path, place, monkeypatch):
    place.write_bytes(place.read_bytes()[:10])


def change_release(path, place, monkeypatch):
    monkeypatch.setattr(module, "__version__", "0.0.1")


def change_processor(path, place, monkeypatch):
    monkeypatch.setattr(module, "has_saturating_products", lambda: "other")


@pytest.mark.parametrize("change", [edit_file, edit_graph, cut_graph, change_release, change_processor])
def test_a_graph_of_anything_else_is_made_anew(kept, made, monkeypatch, change):
    path, place = kept
    _, before = outputs(path)
    change(path, place, monkeypatch)
    _, after = outputs(path)
    assert len(made) == 1
    assert_same(after, before)


def test_what_runs_as_written_or_elsewhere_asks_for_none(kept, made):
    path, place = kept
    place.write_bytes(b"")
    assert linger.Session(path, as_written=True).kernels == "the file as it is written"
    assert made == []


def test_a_proof_looks_at_no_kept_graph(kept, made):
    path, _ = kept
    assert linger.verify(None, path, batches=1).ok
    assert len(made) == 1


def test_what_cannot_be_kept_is_refused(exported, tmp_path):
    with pytest.raises(linger.UsageError, match="no file with its weights inside"):
        linger.Session(onnx.load(exported)).keep()
    with pytest.raises(linger.UsageError, match="runs as it is written"):
        linger.Session(exported, as_written=True).keep()
    path = tmp_path / "net.onnx"
    shutil.copy(exported, path)
    session = linger.Session(path)
    edit_file(path, None, None)
    with pytest.raises(linger.UsageError, match="has changed since it was loaded"):
        session.keep()
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
