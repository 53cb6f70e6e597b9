"""linger.quantize: the job of the command in Python, with nothing written until it is asked for."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.c_compiler import require_compiler
from tests.support.command import run

pytestmark = pytest.mark.needs_torch

CODE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""
X = np.sin(np.arange(160.0)).reshape(40, 4).astype(np.float32)
LABELS = np.arange(40) % 3
BUDGET = "1 trials"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def made():
    return linger.quantize(net(), (X, LABELS), budget=BUDGET)


def test_the_file_is_that_of_the_command(made, tmp_path):
    (tmp_path / "user_net.py").write_text(CODE)
    np.savez(tmp_path / "x.npz", x=X, labels=LABELS)
    done = run("quantize", "user_net.py:net", "--data", "x.npz", "--budget", BUDGET, "--out", "out", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    written = (tmp_path / "out/net.onnx").read_bytes()
    assert hashlib.sha256(written).hexdigest() == made.made.sha256
    assert made.verdict.sentence in done.stdout.replace("\n", " ")
    assert made.quality[0].name in ("accuracy", "agreement with the float model")


def test_nothing_is_written_until_it_is_asked_for(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = net().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    again = linger.quantize(model, torch.from_numpy(X), budget=BUDGET)
    assert list(tmp_path.iterdir()) == []
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert again.export("a.onnx").read_bytes() == again.files["net.onnx"]
    assert again.report("page.html").path.read_text("utf-8").startswith("<!doctype html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "page.html"]
    assert made.made.sha256 == again.made.sha256  # labels only measure


def test_the_model_is_the_one_of_the_file(made, tmp_path):
    proof = made.verify()
    assert proof.ok
    assert proof.integers > 0
    assert made.verify(X[:3]).ok
    assert linger.verify(made.model, made.export(tmp_path / "net.onnx"), X).ok
    with torch.no_grad():
        next(made.model.parameters()).neg_()
        assert not made.verify().ok
        next(made.model.parameters()).neg_()


def test_the_result_says_its_verdict(made):
    assert made.verdict.headline in str(made)
    assert {part.name for part in made.verdict.parts} == {"exact", "good enough", "fits"}
    assert made.verdict.sentence in repr(made)
    assert made.ok == made.verdict.ok


def test_c_is_written_and_proven(made, tmp_path):
    require_compiler()
    assert made.c(tmp_path / "c").ok
    assert (tmp_path / "c").is_dir()


FORMS = {
    "dict": ({"input": X, "labels": LABELS}, "w4a8", {4}),
    "list": ([X[:8], X[8:16], X[16:]], "mixed", {8, 16}),
}


@pytest.mark.parametrize("form", FORMS)
def test_data_and_widths_come_in_the_forms_of_everything_else(form):
    data, bits, widths = FORMS[form]
    made = linger.quantize(net(), data, bits=bits, budget=BUDGET, limit=16)
    assert made.verify().ok
    assert any(figure.name == "accuracy" for figure in made.quality) == (form == "dict")
    assert {layer.widths.parameter for layer in made.model.modules() if isinstance(layer, nn.Linear)} <= widths


WRONG = {
    "class": (lambda: linger.quantize(nn.Linear, X), "quantize: Linear is a class"),
    "path": (lambda: linger.quantize(net(), "x.npz"), "data is a path. Load the arrays"),
    "number": (lambda: linger.quantize(net(), 3), "data: int is no data"),
    "bits": (lambda: linger.quantize(net(), X, bits=7), "bits 7: no such widths"),
    "target": (lambda: linger.quantize(net(), X, target="mars"), "mars"),
    "NaN": (lambda: linger.quantize(net(), X * np.nan), "holds NaN"),
    "test data": (lambda: linger.quantize(net(), X, test_data="y.npz"), "test_data is a path"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_is_one_sentence(case):
    call, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        call()
