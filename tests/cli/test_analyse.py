"""linger analyse weights | layers, as a user runs it."""

import csv
import io
import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from linger.cli import main
from tests.support.command import run

pytestmark = pytest.mark.needs_torch

CODE = """
import torch
def net():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] = 100.0
    return model
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net_file.py").write_text(CODE)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    with torch.no_grad():
        model[1].weight[3, 3] = 50.0
    torch.save({"state_dict": model.state_dict()}, tmp_path / "w.pt")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32))
    return tmp_path


class Done:
    """What a command left behind."""

    def __init__(self, code, captured):
        self.returncode, self.stdout, self.stderr = code, captured.out, captured.err


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """`linger …` in this process: importing torch takes longer than all of these commands."""

    def run_here(*arguments):
        monkeypatch.setattr(sys, "argv", ["linger", *arguments])
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as stopped:
            main()
        return Done(stopped.value.code or 0, capsys.readouterr())

    return run_here


def test_weights_as_a_table_with_advice(folder):
    done = run("analyse", "weights", "w.pt", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Dynamic 0.99" in done.stdout
    assert "1.weight" in done.stdout
    assert 'linger.normalize_module(model.get_submodule("1"), normalize_weight_value=' in done.stdout
    assert sorted(p.name for p in folder.iterdir()) == ["net_file.py", "w.pt", "x.npy"], "nothing is written unasked"


def test_weights_as_json_and_csv(call):
    content = json.loads(call("analyse", "weights", "w.pt", "--json").stdout)
    assert [row["name"] for row in content["rows"]] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert content["advice"]["rows"][0]["name"] == "1.weight"
    rows = list(csv.DictReader(io.StringIO(call("analyse", "weights", "w.pt", "--csv").stdout)))
    assert float(rows[2]["max"]) == 50.0
    assert rows[2]["is_abnormal"] == "True"


def test_log_and_plots(folder, call):
    done = call("analyse", "weights", "w.pt", "--log", "a.log", "--plots", "images", "--worst", "1")
    assert done.returncode == 0, done.stderr
    assert "!!!!!!!!!!!!!!" in (folder / "a.log").read_text()
    assert [p.name for p in (folder / "images").iterdir()] == ["00_weight_1.weight.png"]
    assert "drawn: images" in done.stderr


@pytest.mark.parametrize("source", [["--inputs", "x.npy"], ["--shape", "1x3x16x16"]])
def test_layers(call, source):
    done = call("analyse", "layers", "net_file.py:net", *source, "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert [row["name"] for row in content["rows"]] == ["root.0", "root.1", "root.2"]
    worst = content["advice"]["rows"][0]
    assert (worst["name"], worst["role"]) == ("2.weight", "weight")


@pytest.mark.slow
def test_layers_matched_with_weights_log_and_plots(folder, call):
    torch.manual_seed(2)
    state = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).state_dict()
    torch.save(state, folder / "other.pt")
    options = ("--inputs", "x.npy", "--checkpoint", "other.pt", "--match", "root.0", "--log", "l.log", "--plots", "p")
    done = call("analyse", "layers", "net_file.py:net", *options)
    assert done.returncode == 0, done.stderr
    log = (folder / "l.log").read_text()
    assert "root.0" in log
    assert "root.2" not in log
    assert "Multiple(Max/Mean)" in log
    assert "normalize_module" not in done.stdout, "the healthy weights were loaded"
    assert list((folder / "p").glob("*output*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("weights", "absent.pt"), "there is no such file"),
        (("weights", "w.pt", "--json", "--csv"), "Choose one"),
        (("weights", "net_file.py"), "not a whole torch checkpoint"),
        (("layers", "net_file.py:net"), "give --inputs"),
        (("layers", "net_file.py:net", "--inputs", "x.npy", "--shape", "1"), "one of the two"),
        (("layers", "net_file.py:net", "--shape", "1x5"), "forward pass fails"),
        (("layers", "net_file.py:net", "--inputs", "x.npy", "--match", "nothing"), "nothing"),
    ],
)
def test_errors_are_one_sentence(folder, call, arguments, message):
    before = sorted(p.name for p in folder.iterdir())
    done = call("analyse", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == before
