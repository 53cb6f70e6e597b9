"""linger quantize, as a user runs it."""

import json
import re
import signal
from unittest import mock

import jsonschema
import numpy as np
import pytest

from tests.support.c_compiler import compiler, require_compiler
from tests.support.command import run

pytestmark = pytest.mark.needs_torch

CODE = """
import torch
from torch import nn

class Answers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return {"scores": self.fc(x), "twice": 2 * x}

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
class Tailed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return torch.erf(self.fc(x))
class Floating(nn.Module):
    def forward(self, x):
        return torch.erf(x)
def floating():
    return Floating()
def tailed():
    torch.manual_seed(0)
    return Tailed()
def answers():
    torch.manual_seed(0)
    return Answers()
def pair():
    return net(), torch.zeros(1, 4)
def needs(size):
    return net()
def data():
    return torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
def strange():
    return [([1, 2],)]
def closeness(model):
    return 1 - float((model(data()) - net().eval()(data())).abs().mean())
def two(model, images):
    return 1.0
def word(model):
    return "good"
def uninstalled(model):
    import absent_package_xyz
number = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "user_net.py").write_text(CODE)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((10, 5), np.float32))
    np.save(tmp_path / "nan.npy", np.full((10, 4), np.nan, np.float32))
    np.save(tmp_path / "labels.npy", np.arange(9))
    np.save(tmp_path / "real.npy", np.linspace(0, 1, 10))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "tailed-quantized").mkdir()
    (tmp_path / "tailed-quantized" / "mine.txt").write_text("mine")
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    (tmp_path / "by_hand.yaml").write_text("complete: false\n")
    return tmp_path


def listed(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in p.parts)


NET = ("user_net.py:net",)
DATA = (*NET, "--data", "x.npz")

WRONG = {
    "nothing": ((), "the model, --data is missing. For example: linger quantize my_net.py:make_net --data"),
    "no-data": (NET, "--data is missing"),
    "no-model-named": (("user_net.py", "--data", "x.npz"), "this names no model"),
    "no-such-file": (("nosuch.py:net", "--data", "x.npz"), "there is no such file"),
    "no-such-name": (("user_net.py:nett", "--data", "x.npz"), "there is no 'nett' in it"),
    "no-model": (("user_net.py:number", "--data", "x.npz"), "this is a int, not a torch module"),
    "model-and-example": (("user_net.py:pair", "--data", "x.npz"), "this is a tuple, not a torch module"),
    "needs-arguments": (("user_net.py:needs", "--data", "x.npz"), "it needs arguments (size)"),
    "broken-checkpoint": ((*DATA, "--checkpoint", "broken.pth"), "broken.pth"),
    "no-checkpoint": ((*DATA, "--checkpoint", "nosuch.pth"), "there is no such file"),
    "no-such-data": ((*NET, "--data", "nosuch.npz"), "there is no such file"),
    "data-that-do-not-fit": ((*NET, "--data", "wide.npy"), "the forward pass fails on the input"),
    "nan": ((*NET, "--data", "nan.npy"), "sample 0, 1, 2, 3, 4, 5, 6, 7 and 2 more holds NaN or infinity"),
    "strange-batches": ((*NET, "--data", "user_net.py:strange"), "among the arguments is list"),
    "too-few-labels": ((*DATA, "--labels", "labels.npy"), "9 labels for 10 samples"),
    "real-labels": ((*DATA, "--labels", "real.npy"), "labels: labels are of type float"),
    "bits": ((*DATA, "--bits", "7"), "bits '7': no such widths. Use 8, 16, mixed"),
    "target": ((*DATA, "--target", "mars"), "mars"),
    "budget": ((*DATA, "--budget", "soon"), "budget='soon' is no budget"),
    "scale": ((*DATA, "--scale", "loud"), "--scale loud: no such range"),
    "size": ((*DATA, "--size", "1x2x3"), "--size 1x2x3: an image has a height and a width"),
    "shape": ((*DATA, "--shape", "tall"), "--shape tall: expected sizes above 0"),
    "mean": ((*DATA, "--mean", "grey"), "--mean grey: expected one number"),
    "size-of-arrays": (
        (*DATA, "--size", "8", "--rate", "8000"),
        "--size (for images), --rate (for sounds) means nothing for",
    ),
    "shape-of-a-callable": (
        (*NET, "--data", "user_net.py:data", "--shape", "1x4"),
        "--shape (for images, sounds) means nothing",
    ),
    "rate-of-images": ((*NET, "--data", "full", "--rate", "8000"), "--rate (for sounds) means nothing for full"),
    "c-of-a-standard-file": (
        (*DATA, "--c", "in_c", "--form", "standard"),
        "written from quantized ops, which files of the form 'standard' do not have. Leave out --form, or --c.",
    ),
    "nothing-to-quantize": (("user_net.py:floating", "--data", "x.npz"), "nothing of Floating becomes integers"),
    "cut-of-nothing": ((*DATA, "--cut"), "cut is about the program in C, and none is asked for"),
    "goal": ((*DATA, "--goal", "much"), "goal='much' is no goal"),
    "metric-unnamed": ((*DATA, "--metric", "mean"), "mean: this names no metric. Name it as package.module:name"),
    "metric-file": ((*DATA, "--metric", "nosuch.py:f"), "nosuch.py: there is no such file"),
    "metric-name": ((*DATA, "--metric", "user_net.py:closenes"), "there is no 'closenes' in it"),
    "metric-number": ((*DATA, "--metric", "user_net.py:number"), "metric=3 cannot be called"),
    "metric-arguments": (
        (*DATA, "--metric", "user_net.py:two"),
        "two(model, images) cannot be called with a model alone",
    ),
    "metric-text": ((*DATA, "--metric", "user_net.py:word"), "word(model) returned a str, which is no number"),
    "metric-module": (
        (*DATA, "--metric", "user_net.py:uninstalled"),
        "in uninstalled, imports 'absent_package_xyz', which is not installed. Install it (pip install absent_package_xyz)",
    ),
    "metric-goal": ((*DATA, "--metric", "user_net.py:closeness", "--goal", "30 dB"), "is no value of the metric"),
    "full-folder-of-a-name": (("user_net:tailed", "--data", "x.npz"), "tailed-quantized: the folder exists"),
    "full-folder": ((*DATA, "--out", "full"), "its content is not ours to replace"),
    "full-folder-by-force": ((*DATA, "--out", "full", "--overwrite"), "its content is not ours to replace"),
    "no-parent": ((*DATA, "--out", "no/such"), "does not exist"),
    "file-as-folder": ((*DATA, "--out", "x.npz"), "this is a file"),
    "c-inside": ((*DATA, "--out", "o", "--c", "o/c"), "C goes into a folder of its own"),
    "c-full": ((*DATA, "--out", "o", "--c", "full"), "its content is not ours to replace"),
    "no-config": (("--config", "nosuch.yaml"), "nosuch.yaml: there is no such file"),
    "config-by-hand": (("--config", "by_hand.yaml"), "it does not say which run wrote it"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_use_is_one_sentence_and_leaves_nothing(folder, arguments, message):
    before = listed(folder)
    done = run("quantize", *arguments, "--quiet", cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("linger: ")
    assert done.stdout == ""
    assert listed(folder) == before


def test_a_model_that_returns_a_dict_is_exported_by_its_keys_order(folder):
    done = run("quantize", "user_net.py:answers", "--data", "x.npz", "--budget", "1 trials", "--json", cwd=folder)
    content = json.loads(done.stdout)
    assert done.returncode == 0
    assert content["differing"] == 0
    assert [figure["output"] for figure in content["quality"]] == ["", "output", "output_1"]
    assert "the worst of 2 outputs" in content["verdict"]


def test_a_float_op_leaves_everything_but_the_program_in_c(folder):
    arguments = ("user_net.py:tailed", "--data", "x.npz", "--budget", "1 trials", "--json", "--c", "in_c")
    done = run("quantize", *arguments, "--out", "whole", cwd=folder)
    content = json.loads(done.stdout)
    assert done.returncode == 1
    assert not content["ok"]
    assert content["c"] is None
    assert "Erf" in content["c_missing"]
    assert "linger c whole/net.onnx in_c --cut --prove" in content["c_missing"]
    assert {"net.onnx", "net.yaml", "report.html", "certificate.json"} <= set(content["files"])
    assert content["differing"] == 0
    assert (folder / "whole" / "net.onnx").is_file()
    assert not (folder / "in_c").exists()
    if compiler() is None:
        return
    cut = run("c", "whole/net.onnx", "in_c", "--cut", "--prove", cwd=folder)
    assert cut.returncode == 0, cut.stderr
    assert "This is a part of the file: it takes " in cut.stdout
    assert "(int8[1, 3], scale " in cut.stdout
    assert "0 differ" in cut.stdout


def test_cut_writes_and_proves_the_integer_part(folder):
    require_compiler()
    arguments = ("user_net.py:tailed", "--data", "x.npz", "--budget", "1 trials", "--c", "in_c", "--cut", "--quiet")
    done = run("quantize", *arguments, "--json", cwd=folder)
    content = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert content["c_missing"] == ""
    assert content["c"]["differing"] == 0
    assert content["c"]["elements"] > 0
    assert any("Erf" in node for node in content["c_cut"]["outside"])
    jsonschema.validate(content, json.loads(run("schema", "quantize", cwd=folder).stdout))
    assert json.loads((folder / "in_c" / "manifest.json").read_text())["cut"] == content["c_cut"]


SAME = ("--budget", "1 trials", "--seed", "0", "--bits", "8", "--batch", "32", "--scale", "unit")
"""What the run was told, and what options are that nobody gives."""


def test_one_sample_is_not_called_unseen(folder):
    np.save(folder / "one.npy", np.ones((1, 4), np.float32))
    done = run("quantize", *NET, "--data", "one.npy", "--budget", "1 trials", "--quiet", cwd=folder)
    assert "Quality is that on data that tuning has seen (1 sample); plain is calibration" in done.stdout
    assert "no step has seen" not in done.stdout


def test_on_a_terminal_the_first_line_comes_before_the_imports(folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    with mock.patch.dict("sys.modules", {"linger.cli.arguments.data": None}):  # it cannot be imported
        done = run("quantize", "user_net.py:net", "--data", "x.npz", cwd=folder)
    assert "load user_net.py:net" in done.stderr.splitlines()[0]
    assert done.returncode != 0


def test_mixed_widths_need_no_goal(folder):
    words = ("--data", "user_net.py:data", "--bits", "mixed", "--budget", "40 trials", "--json")
    done = run("quantize", "user_net.py:net", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "user_net-quantized" / "report.json").read_text())
    steps = [step for step in report["tuning"]["steps"] if step["name"].startswith("find_bits(goal=")]
    assert any(step["is_kept"] and step["after_db"] > step["before_db"] + 5 for step in steps)
    assert "/16" in (folder / "user_net-quantized" / "net.yaml").read_text()


def test_from_model_to_verdict_and_again(folder):
    done = run("quantize", "user_net.py:net", "--data", "user_net.py:data", "--budget", "1 trials", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search("Needs attention: Bit-exact, .*, judged by 2 samples only", done.stdout)
    assert "  good enough: doubtful. " in done.stdout
    assert "Quality is that on held-out data (2 samples), which no step has seen" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("user_net-quantized: net.onnx, net.yaml")
    assert "tune: 10 samples to tune on, 2 held out" in done.stderr
    config = "user_net-quantized/net.yaml"
    other = run("quantize", "--config", config, "--out", "other", "--bits", "16", cwd=folder)
    assert other.returncode == 2
    assert f"--bits 16 is not what {config} says" in other.stderr
    taken = run("quantize", "--config", config, cwd=folder)
    assert taken.returncode == 2
    assert "a former run wrote this folder" in taken.stderr
    again = run("quantize", "--config", config, "--out", "again", "--json", *SAME, cwd=folder)
    content = json.loads(again.stdout)
    assert again.returncode == 0
    assert again.stderr == ""
    jsonschema.validate(content, json.loads(run("schema", "quantize", cwd=folder).stdout))
    assert content["is_repeated"]
    assert [part["level"] for part in content["decision"]["parts"]] == ["ready", "attention", "not asked"]
    assert content["name"] == "again"
    assert (folder / "again" / "net.onnx").read_bytes() == (folder / config).with_name("net.onnx").read_bytes()


def test_a_metric_of_the_user_is_shown_and_kept_in_the_run(folder):
    metric = ("--metric", "user_net.py:closeness", "--goal", "0.5")
    done = run("quantize", *DATA, *metric, "--budget", "1 trials", "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "closeness" in line and "│" in line)
    assert [cell.strip() for cell in row.split("│")[1:3]] == ["closeness", "1.0"]
    assert len(row.split("│")[3].strip()) > 3  # plain calibration
    assert "Quality is that on the metric's own data, by which tuning has chosen; plain is" in done.stdout
    assert "no step has seen" not in done.stdout
    other = run("quantize", "--config", "out/net.yaml", "--metric", "user_net.py:two", cwd=folder)
    assert "--metric user_net.py:two is not what out/net.yaml says" in other.stderr


@pytest.mark.parametrize("step", ["tuning.autotune.search.Search.run", "workflow.quantize.delivered"])
def test_ctrl_c_is_one_line_and_leaves_nothing(folder, step):
    before = listed(folder)
    with mock.patch(f"linger.{step}", side_effect=lambda *_, **__: signal.raise_signal(signal.SIGINT)):
        done = run("quantize", *DATA, "--quiet", cwd=folder)
    assert done.returncode == 130
    assert done.stderr == "linger: interrupted; nothing was written.\n"
    assert listed(folder) == before


SIGNS = """
import torch
from torch import nn

def net():
    made = nn.Sequential(nn.Linear(16, 1))
    with torch.no_grad():  # rounding makes all weights zero but the first, which shifts every output by the sign of the inputs
        made[0].weight.fill_(0.0018)
        made[0].weight[:, 0] = 1.0
        made[0].bias.zero_()
    return made
def drawn(seed, sign):
    x = torch.rand(64, 16, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.cat([x[:, :1], sign + 0.05 * x[:, 1:]], 1).clamp(-1, 1)
def data():
    return drawn(1, 0.9)
def others():
    return drawn(2, -0.9)
"""


def test_a_gain_that_others_do_not_have_is_told_and_ends_with_its_own_code(tmp_path):
    (tmp_path / "signs.py").write_text(SIGNS)
    how = ("quantize", "signs.py:net", "--data", "signs.py:data", "--budget", "9 trials")
    done = run(*how, "--test-data", "signs.py:others", "--input-range", "-1", "1", "--out", "out", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert re.search(r"tuning gains [\d.]+ dB on samples that chose its steps and -[\d.]+ dB on the others", said)
    assert "→ Give more, and more varied, --data" in said
    facts = json.loads((tmp_path / "out/report.json").read_text())
    assert facts["decision"]["level"] == "attention"
    assert any(text.startswith("tuning gains") for text in facts["cautions"])
    assert "--input-range -1.0 1.0" in " ".join(facts["notes"])
    again = run("quantize", "--config", "out/net.yaml", "--out", "again", cwd=tmp_path)
    assert again.returncode == 3  # the figures are those of the run
    fair = run(*how, "--test-data", "signs.py:data", "--out", "fair", cwd=tmp_path)
    assert fair.returncode == 0, fair.stdout + fair.stderr
