"""The whole job on a tiny network: files, figures, repetition, interruption."""

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import linger
from linger.reporting.facts import read_run
from linger.workflow import quantize as job
from linger.workflow.quantizing import delivery
from linger.workflow.quantizing.judging import is_enough
from linger.workflow.quantizing.open_axes import edges_of
from linger.workflow.quantizing.quantized import QuantizeSettings
from linger.workflow.quantizing.run_file import RunFile, sha256
from linger.workflow.quantizing.samples import of_arrays, of_user

pytestmark = pytest.mark.needs_torch

QUICK = QuantizeSettings(budget="1 trials", batch=8)
FILES = [
    "certificate.json",
    "net.inputs.npz",
    "net.onnx",
    "net.weights.safetensors",
    "net.yaml",
    "report.html",
    "report.json",
]


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()


def make_data(count=20):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 6, 6, generator=generator)
    return of_arrays([x], make_net()(x).argmax(1), "data")


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One run, which several tests look at."""
    out = tmp_path_factory.mktemp("run") / "out"
    return job.quantize(make_net(), make_data(), out, QUICK, run=RunFile("my.py:make_net", {"bits": "8"}), name="tiny")


def test_a_run_writes_its_files_and_is_proven(made):
    assert names(made.folder) == FILES == sorted(made.files)
    assert made.ok
    assert made.proof.differing == 0
    assert made.proof.expected_by == "torch"
    assert made.verdict.startswith("Ready: Bit-exact, ")
    assert made.sha256 == sha256((made.folder / "net.onnx").read_bytes())
    assert linger.verify(None, made.folder / "net.onnx").ok
    assert not [p for p in made.folder.parent.iterdir() if p != made.folder]


def test_quality_is_that_of_held_out_samples(made):
    accuracy, agreement, noise = made.quality
    assert (accuracy.name, accuracy.before, accuracy.samples, accuracy.data) == ("accuracy", 100.0, 4, "held-out data")
    assert agreement.after == accuracy.after  # the labels are the float model's decisions
    assert agreement.before is None
    assert agreement.plain is not None
    assert noise.after > 20


def test_the_report_has_the_run(made):
    run = read_run((made.folder / "report.json").read_text(), "report.json")
    assert run.quality == made.quality
    assert run.name == "tiny"
    assert run.command == "linger quantize my.py:make_net --bits 8"
    assert run.proof.certificate == "certificate.json"
    assert run.proof.digests["net.onnx"] == made.sha256
    assert run.tuning is not None
    assert run.float_weight_bytes == made.float_bytes
    assert (made.folder / "net.yaml").read_text() == run.config
    assert any(layer.sqnr_db is not None for layer in run.layers)
    assert str(Path.home()) not in (made.folder / "report.json").read_text()


def test_the_settings_file_quantises_the_model_in_python_too(made):
    again = linger.init(make_net(), config_file=made.folder / "net.yaml").eval()
    x = torch.from_numpy(np.load(made.folder / "net.inputs.npz")["input"])
    recorded = linger.Session(made.folder / "net.onnx").run(None, {"input": x.numpy()})[0]
    assert torch.equal(again(x).dequantize(), torch.from_numpy(recorded))


def test_a_repeated_run_gives_the_same_file_bit_for_bit(made, tmp_path):
    again = job.repeat(make_net(), made.folder / "net.yaml", tmp_path / "again", name="tiny")
    assert again.ok
    assert again.is_repeated
    for name in ("net.onnx", "net.weights.safetensors", "net.inputs.npz", "net.yaml"):
        assert (tmp_path / "again" / name).read_bytes() == (made.folder / name).read_bytes()
    former, latter = (read_run((f / "report.json").read_text(), "r") for f in (made.folder, tmp_path / "again"))
    assert latter.quality == former.quality
    assert latter.tuning == former.tuning
    content = (tmp_path / "again" / "certificate.json").read_bytes()
    assert latter.proof.digests["certificate.json"] == sha256(content)


def test_the_same_seed_gives_the_same_file(made, tmp_path):
    again = job.quantize(make_net(), make_data(), tmp_path / "again", QUICK)
    assert again.sha256 == made.sha256


def copied(made, folder):
    folder.mkdir()
    for file in made.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder / "net.yaml"


def edited(old, new):
    return lambda config: config.write_text(config.read_text().replace(old, new))


def damaged_weights(config):
    path = config.with_name("net.weights.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited("has_rows", "has_row"), "'has_row' is unknown (is has_rows meant?)"),
        (edited("has_rows: true", "has_rows: 3"), "run.has_rows: 3 is no bool"),
        (edited("complete: true", "compleat: true"), "'compleat' is unknown (is complete meant?)"),
        (edited("  weights: net.weights.safetensors\n", ""), "run: weights is missing"),
        (edited("weights: net.weights", "weights: ../net.weights"), "does not lie beside it"),
        (damaged_weights, "net.weights.safetensors has changed since it was written"),
        (lambda config: config.with_name("net.inputs.npz").unlink(), "net.inputs.npz, which it names, does not lie beside it"),
        (edited("\nrun:", "\nfunctions: {}\n#"), "is no YAML"),
        (lambda config: config.write_text("complete: false\n"), "it does not say which run wrote it"),
        (edited("shape: [3, 64]", "shape: [3, 65]"), "does not fit Sequential"),
    ],
    ids=["key", "kind", "other-key", "missing", "elsewhere", "weights", "no-inputs", "no-yaml", "no-run", "other-network"],
)  # fmt: skip
def test_a_settings_file_that_does_not_fit_is_told(made, tmp_path, change, message):
    config = copied(made, tmp_path / "run")
    change(config)
    with pytest.raises(linger.UsageError) as told:
        job.repeat(make_net(), config, tmp_path / "again")
    assert message in str(told.value)
    assert names(tmp_path) == ["run"]


def test_another_file_than_that_of_the_run_is_not_written(made, tmp_path):
    config = copied(made, tmp_path / "run")
    edited(f"onnx_sha256: {made.sha256}", f"onnx_sha256: {'f' * 64}")(config)
    with pytest.raises(linger.VerificationError, match="the file is not the one of that run"):
        job.repeat(make_net(), config, tmp_path / "again")
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("step", ["_tuned", "_judged", pytest.param("reported", marks=pytest.mark.slow)])
def test_an_interrupted_run_leaves_nothing(tmp_path, step):
    with mock.patch.object(job, step, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        job.quantize(make_net(), make_data(5), tmp_path / "out", QUICK)
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["_exported", "_verified", "_kept"])
def test_a_repetition_that_is_interrupted_leaves_nothing(made, tmp_path, step):
    with mock.patch.object(delivery, step, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        job.repeat(make_net(), made.folder / "net.yaml", tmp_path / "out")
    assert names(tmp_path) == []


@pytest.mark.slow
def test_an_interruption_while_files_are_moved_leaves_nothing(made, tmp_path):
    with mock.patch("shutil.copy", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        job.repeat(make_net(), made.folder / "net.yaml", tmp_path / "out")
    assert names(tmp_path) == []


def test_tuning_that_was_interrupted_ends_the_run(tmp_path):
    from linger.tuning.one_call.session import Session

    with mock.patch.object(Session, "run", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        job.quantize(make_net(), make_data(5), tmp_path / "out", QUICK)
    assert names(tmp_path) == []


def test_a_folder_in_the_way_stays(made, tmp_path):
    config = copied(made, tmp_path / "run")
    with pytest.raises(linger.UsageError, match=r"a former run wrote this folder\. Replace it with --overwrite"):
        job.repeat(make_net(), config, tmp_path / "run")
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(linger.UsageError, match="its content is not ours to replace"):
        job.repeat(make_net(), config, tmp_path / "run", replace(QUICK, force=True))
    assert names(tmp_path / "run") == sorted([*FILES, "mine.txt"])
    (tmp_path / "run" / "mine.txt").unlink()
    assert job.repeat(make_net(), config, tmp_path / "run", replace(QUICK, force=True)).sha256 == made.sha256


def test_c_is_written_beside_and_proven(made, tmp_path):
    again = job.repeat(
        make_net(), made.folder / "net.yaml", tmp_path / "out", replace(QUICK, c=tmp_path / "as_c"), name="tiny"
    )
    assert again.c_proof.ok
    assert again.c_proof.differing == 0
    assert {"tiny.c", "tiny.h", "manifest.json"} <= set(names(tmp_path / "as_c"))
    manifest = json.loads((tmp_path / "as_c" / "manifest.json").read_text())
    assert manifest["model"]["sha256"] == made.sha256


def test_findings_of_a_chip_are_in_the_report_and_make_it_not_ready(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 13), nn.ReLU()).eval()  # no chip has windows of 13
    x = torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = job.quantize(model, of_arrays([x], None, "x"), tmp_path / "out", replace(QUICK, target="venus"))
    assert not found.ok
    assert found.proof.ok
    assert found.check.errors
    assert found.verdict.startswith("Not ready: Bit-exact, ")
    run = read_run((tmp_path / "out" / "report.json").read_text(), "r")
    assert run.target == "venus"
    assert any(finding.severity == "error" for finding in run.findings)


def test_enough_is_what_a_goal_says_or_what_the_report_does_not_call_low(made):
    accuracy, agreement, noise = made.quality
    assert agreement.after == 100.0
    assert is_enough("99 %", made.quality)
    assert is_enough("10 dB", made.quality)
    assert not is_enough("90dB", made.quality)
    assert is_enough(None, made.quality)
    assert is_enough(None, [replace(accuracy, before=90.0, after=89.5)])
    assert not is_enough(None, [replace(accuracy, before=90.0, after=88.5)])
    assert not is_enough(None, [replace(agreement, after=98.0)])
    assert is_enough("97 %", [replace(agreement, after=98.0)])
    assert not is_enough(None, [replace(noise, after=19.0)])
    worse = replace(made, is_enough=False)
    assert not worse.ok
    assert worse.verdict.startswith("Not ready: Bit-exact")
    assert worse.verdict.endswith("the quality is not enough.")


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "widths"), [("16", "16/16/16"), ("w4a8", "8/4/8")])
def test_widths_are_those_asked_for(tmp_path, bits, widths):
    job.quantize(make_net(), make_data(6), tmp_path / "out", replace(QUICK, bits=bits))
    text = (tmp_path / "out" / "net.yaml").read_text()
    assert text.count(f"bits: {widths}") == text.count("bits: ") - text.count("bits: {")


class Recurrent(nn.Module):
    """Scores, and the state for the next call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, frames):
        out, state = self.rnn(frames)
        return self.head(out[:, -1]), state


def test_batches_of_several_lengths_leave_the_length_open(tmp_path):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, frames, 4, generator=generator) for frames in (5, 7, 5, 6, 9)]
    model = Recurrent().eval()
    data = of_user(batches, model, "d", batch=8, limit=None)
    found = job.quantize(model, data, tmp_path / "out", QUICK)
    assert found.proof.differing == 0
    session = linger.Session(tmp_path / "out" / "net.onnx")
    assert [output.shape for output in session.run(None, {"frames": batches[1][:1].numpy()})] == [(1, 3), (1, 1, 8)]
    again = job.repeat(Recurrent().eval(), tmp_path / "out" / "net.yaml", tmp_path / "again")
    assert again.sha256 == found.sha256


def test_batch_axes_are_found_where_they_are():
    edges = edges_of(Recurrent().eval(), [(torch.zeros(2, 5, 4),)])
    assert edges.axes == {"frames": {0: "batch"}, "output": {0: "batch"}, "output_1": {1: "batch"}}
    assert edges.is_batch_open
    assert edges_of(Recurrent().eval(), [(torch.zeros(2, 5, 4),)], can_open=False).axes == {}


def test_labels_that_cannot_be_decisions_are_refused_before_the_work(tmp_path):
    x = torch.zeros(4, 5, 4)
    with pytest.raises(linger.UsageError, match=r"labels: .*Leave them out with --labels none"):
        job.quantize(Recurrent().eval(), of_arrays([x], torch.zeros(4, dtype=torch.long), "x"), tmp_path / "out", QUICK)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": "7"}, "bits '7': no such widths"),
        ({"budget": "soon"}, "budget='soon' is no budget"),
        ({"target": "mars"}, "mars"),
        ({"goal": "much"}, "goal='much'"),
        ({"form": "other"}, "there is no form 'other'"),
        ({"opset": 3}, "opset 3 is not available"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_do_not_exist_are_told(tmp_path, settings, message):
    with pytest.raises(linger.UsageError) as told:
        job.quantize(make_net(), make_data(5), tmp_path / "out", replace(QUICK, **settings))
    assert message in str(told.value)
    assert names(tmp_path) == []
