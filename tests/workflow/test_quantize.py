"""The whole job on a tiny network: files, figures, repetition, interruption."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from tests.support.jobs import (
    Piece,
    Quality,
    QuantizeSettings,
    RunFile,
    Work,
    edges_of,
    exported,
    guessing_note,
    is_goal_met,
    job,
    judged,
    of_arrays,
    of_user,
    placed,
    read_run,
    reported,
    sha256,
    verdict_of,
)

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
    assert made.verdict.startswith("Needs attention: Bit-exact, ")
    assert made.decision.cautions == ("judged by 4 samples only",)
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
    assert run.command == "linger quantize --config net.yaml --out again"
    assert run.notes.count("Made by: linger quantize my.py:make_net --bits 8") == 1
    assert run.proof.certificate == "certificate.json"
    assert run.proof.digests["net.onnx"] == made.sha256
    assert run.tuning is not None
    assert run.float_weight_bytes == made.float_bytes
    assert (made.folder / "net.yaml").read_text() == run.config
    assert any(layer.sqnr_db is not None for layer in run.layers)
    assert str(Path.home()) not in (made.folder / "report.json").read_text()


def test_the_settings_file_quantizes_the_model_in_python_too(made):
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
    assert latter.notes == former.notes
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


CHANGES = {
    "key": (edited("has_rows", "has_row"), "run.has_row is not known (is has_rows meant?)"),
    "kind": (edited("has_rows: true", "has_rows: 3"), "run.has_rows is not true or false (3)"),
    "other-key": (edited("complete: true", "compleat: true"), "compleat is not known (is complete meant?)"),
    "missing": (edited("  weights: net.weights.safetensors\n", ""), "run.weights is missing"),
    "no-digest": (edited("  onnx_sha256", "  # "), "run.onnx_sha256 is missing"),
    "no-quality": (edited("  quality: ", "  quality: [] # "), "run.quality is missing"),
    "quality-of-other-kind": (edited("{name: accuracy, ", "{nam: accuracy, "), "run.quality[0].nam is not known"),
    "elsewhere": (
        edited("weights: net.weights", "weights: ../run/net.weights"),
        "../run/net.weights.safetensors, which it",
    ),
    "options": (edited("options: {bits: '8'}", "options: {bits: [8]}"), "run.options.bits is not an option ([8])"),
    "goal-of-options": (edited("options: {bits: '8'}", "options: {goal: 5}"), "run.options.goal: 5 is not the goal"),
    "goal": (edited("\n  has_rows", "\n  goal: much\n  has_rows"), "goal='much' is no goal"),
    "goal-of-other-kind": (edited("\n  has_rows", "\n  goal: 5\n  has_rows"), "run.goal is not a text (5)"),
    "axes": (edited("axes: {input: {0: batch}", "axes: {input: [0]"), "run.axes.input is not an object ([0])"),
    "axes-of-nothing": (edited("axes: {input: ", "axes: {inputt: "), "run.axes.inputt is no input or output"),
    "by-name": (edited("  has_rows", "  by_name: [gain]\n  has_rows"), "net.inputs.npz holds no input gain"),
    "input": (edited("input_names: [input]", "input_names: [input, zz]"), "net.inputs.npz holds no input zz"),
    "nested-input": (edited("input_names: [input]", "input_names: [[1]]"), "run.input_names[0] is not a text ([1])"),
    "weights": (damaged_weights, "net.weights.safetensors has changed since it was written"),
    "no-inputs": (
        lambda config: config.with_name("net.inputs.npz").unlink(),
        "net.inputs.npz, which it names, does not lie beside it",
    ),
    "no-yaml": (edited("\nrun:", "\nfunctions: {}\n#"), "is no YAML"),
    "no-run": (lambda config: config.write_text("complete: false\n"), "it does not say which run wrote it"),
    "other-network": (edited("shape: [3, 64]", "shape: [3, 65]"), "does not fit Sequential"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_settings_file_that_does_not_fit_is_told(made, tmp_path, change, message):
    config = copied(made, tmp_path / "run")
    before = config.read_text()
    change(config)
    assert config.read_text() != before or "safetensors" in message or "npz" in message
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


@pytest.mark.parametrize("step", ["exported", "verify", "_keep"])
def test_a_repetition_that_is_interrupted_leaves_nothing(made, tmp_path, step):
    with (
        mock.patch(f"linger.workflow.delivery.{step}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        job.repeat(make_net(), made.folder / "net.yaml", tmp_path / "out")
    assert names(tmp_path) == []


@pytest.mark.slow
def test_an_interruption_while_files_are_moved_leaves_nothing(made, tmp_path):
    with mock.patch("shutil.copy", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        job.repeat(make_net(), made.folder / "net.yaml", tmp_path / "out")
    assert names(tmp_path) == []


def test_tuning_that_was_interrupted_ends_the_run(tmp_path):
    with (
        mock.patch("linger.tuning.autotune.search.Search.run", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
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


def test_a_file_without_quantized_ops_is_told_to_be_cut_nowhere(tmp_path):
    settings = replace(QUICK, form="standard")
    first = job.quantize(make_net(), make_data(), tmp_path / "out", settings)
    again = job.repeat(make_net(), first.folder / "net.yaml", tmp_path / "again", QuantizeSettings(c=tmp_path / "c"))
    assert "it has no quantized op" in again.c_missing
    assert "--cut" not in again.c_missing


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


def test_a_goal_is_met_missed_or_not_known(made):
    _, agreement, noise = made.quality
    assert is_goal_met(None, made.quality) is None
    assert is_goal_met("10 dB", made.quality)
    assert is_goal_met("90dB", made.quality) is False
    assert is_goal_met("97 %", [replace(agreement, after=98.0), noise])
    assert is_goal_met("98.5 %", [replace(agreement, after=98.0), noise]) is False
    assert is_goal_met("99.99 %", [noise]) is None
    assert is_goal_met("99.99 %", []) is None


@pytest.fixture(scope="module")
def missed(tmp_path_factory):
    """A run that does not reach its goal."""
    out = tmp_path_factory.mktemp("missed") / "out"
    run = RunFile("my.py:make_net", {"goal": "100 dB"})
    return job.quantize(make_net(), make_data(), out, replace(QUICK, goal="100 dB"), run=run, name="tiny")


def test_the_report_judges_a_goal_as_the_command_does(missed):
    assert not missed.ok
    assert missed.verdict.startswith("Not ready: Bit-exact")
    assert missed.reasons[0].startswith("The quality is not enough: the goal of 100 dB is not reached, with ")
    run = read_run((missed.folder / "report.json").read_text(), "r")
    assert (run.goal, run.is_goal_met) == ("100 dB", False)
    assert verdict_of(run) == missed.decision
    page = (missed.folder / "report.html").read_text()
    assert '<p class="verdict-word">Not ready</p>' in page


def test_a_repeated_run_is_judged_by_the_figures_of_the_run_without_its_report(missed, tmp_path):
    config = copied(missed, tmp_path / "run")
    (tmp_path / "run" / "report.json").unlink()
    again = job.repeat(make_net(), config, tmp_path / "again", name="tiny")
    assert not again.ok
    assert again.quality == missed.quality
    assert again.reasons[0] == missed.reasons[0]
    assert (tmp_path / "again" / "net.yaml").read_bytes() == config.read_bytes()


def test_figures_of_a_report_that_was_edited_do_not_count(missed, tmp_path):
    config = copied(missed, tmp_path / "run")
    data = tmp_path / "run" / "report.json"
    run = read_run(data.read_text(), "r")
    data.write_text(replace(run, goal="", is_goal_met=None, quality=()).to_json())
    again = job.repeat(make_net(), config, tmp_path / "again", name="tiny")
    assert not again.ok
    assert again.quality == missed.quality


def test_a_program_in_c_that_differs_is_in_the_verdict_of_the_report(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "work")
    run = read_run((made.folder / "report.json").read_text(), "r")
    work = Work(None, tmp_path / "work", QUICK, "tiny", None, [], has_rows=True)
    differing = mock.Mock(ok=False, differing=2, elements=9)
    found = reported(work, replace(made, c_proof=differing), run)
    assert not found.ok
    assert found.verdict.startswith("Not ready: ")
    assert "c-differs" in found.reasons[0]
    assert reported(work, made, run).ok


class Pixels(nn.Module):
    """An image for an image: no scores."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x):
        return self.conv(x)


@pytest.fixture
def no_tuning():
    with mock.patch.object(job, "_tuned", side_effect=AssertionError("tuning has begun")):
        yield


@pytest.mark.usefixtures("no_tuning")
def test_a_goal_that_cannot_be_measured_is_told_before_tuning(tmp_path):
    x = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(linger.UsageError, match=r"goal '99.99 %': a share of equal decisions needs .* Give decibels"):
        job.quantize(Pixels().eval(), of_arrays([x], None, "x"), tmp_path / "out", replace(QUICK, goal="99.99 %"))
    assert names(tmp_path) == []


@pytest.mark.usefixtures("no_tuning")
@pytest.mark.parametrize("wrong", [3, -1], ids=["too-large", "negative"])
@pytest.mark.parametrize("place", range(6))
def test_labels_that_are_no_classes_of_the_model_are_told_before_tuning(tmp_path, wrong, place):
    labels = torch.zeros(6, dtype=torch.long)
    labels[place] = wrong
    x = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        linger.UsageError, match=rf"labels: 1 of 6 are not among the classes 0 to 2 .* such as {wrong}\."
    ):
        job.quantize(make_net(), of_arrays([x], labels, "x"), tmp_path / "out", QUICK)
    assert names(tmp_path) == []


class Unexportable(nn.Module):
    """An op that ONNX does not have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return torch.special.bessel_j0(self.head(x))


@pytest.mark.usefixtures("no_tuning")
def test_a_model_that_cannot_be_exported_is_told_before_tuning(tmp_path):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(linger.UnsupportedError, match="torch cannot export the model"):
        job.quantize(Unexportable().eval(), of_arrays([x], None, "x"), tmp_path / "out", QUICK)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("no_tuning")
def test_weights_that_are_no_numbers_are_told_before_anything(tmp_path):
    model = make_net()
    model[0].weight.data[0] = float("nan")
    with pytest.raises(linger.UsageError, match=r"Sequential: 0\.weight holds NaN"):
        job.quantize(model, make_data(), tmp_path / "out", QUICK)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("plain", "after", "samples", "notes"),
    [
        (
            30.0,
            29.5,
            60,
            ["Tuning did not help on held-out data: noise is 30.0 dB with plain calibration, 29.5 dB tuned."],
        ),
        (30.0, 31.0, 60, []),
        (30.0, 30.0, 49, ["A figure in percent is coarse here: one of 49 samples is 2.0 points."]),
        (30.0, 30.0, 50, []),
    ],
    ids=["worse", "better", "few", "enough"],
)
def test_figures_that_need_care_are_noted(plain, after, samples, notes):
    agreement = Quality("agreement", 98.0, plain=98.0, unit="%", samples=samples, data="held-out data")
    noise = Quality("noise", after, plain=plain, unit="dB", samples=samples, data="held-out data")
    work = Work(make_net(), Path(), QUICK, "tiny", None, [], has_rows=True)
    with mock.patch.object(job, "judged", return_value=(agreement, noise)):
        job._judged(work, None, None, None, "held-out data", None)
    assert work.notes == notes


@pytest.mark.parametrize(
    ("before", "classes", "samples", "is_guess"),
    [
        (10.0, 10, 100, True),
        (15.0, 10, 100, True),
        (17.0, 10, 100, False),
        (60.0, 2, 400, False),
        (54.0, 2, 400, True),
        (0.0, 10, 9, False),
        (0.0, None, 100, False),
    ],
    ids=["chance", "near", "better", "two-better", "two-near", "few", "no-classes"],
)
def test_an_accuracy_like_that_of_a_guess_is_noted(before, classes, samples, is_guess):
    figures = [Quality("accuracy", before, before, unit="%", samples=samples)]
    assert bool(guessing_note(figures, classes)) is is_guess


def test_labels_that_mean_nothing_do_not_decide_the_verdict():
    accuracy = Quality("accuracy", 30.0, 10.0, unit="%", samples=100)
    agreement = Quality("agreement with the float model", 60.0, unit="%", samples=100)
    work = Work(make_net(), Path(), QUICK, "tiny", None, [], has_rows=True)
    with mock.patch.object(job, "judged", return_value=(accuracy, agreement)):
        assert job._judged(work, None, None, None, "held-out data", 10) == (agreement, accuracy)
    assert "no better than a guess among 10 classes" in work.notes[0]


def rows_in(batches):
    return {tuple(row.flatten().tolist()) for (batch,) in batches for row in batch}


def test_tuning_never_gets_a_sample_that_is_held_out(tmp_path):
    data = make_data()
    _, kept = data.divided()
    with mock.patch.object(job, "tune", side_effect=KeyboardInterrupt) as tune, pytest.raises(KeyboardInterrupt):
        job.quantize(make_net(), data, tmp_path / "out", QUICK)
    given, held_out = tune.call_args.args[1], rows_in(piece.arguments for piece in kept.pieces)
    learned, choosing, reported = map(rows_in, (given.tuning, given.choosing, given.reported))
    assert (len(learned), len(choosing)) == (
        12,
        4,
    )  # of 16, as every one of eight batches gives one of its two where it is due
    assert reported == held_out
    assert not (learned | choosing) & held_out
    assert not learned & choosing


def test_pieces_of_one_recording_do_not_learn_and_choose(tmp_path):
    data = make_data(40)
    data = replace(data, pieces=tuple(replace(p, group=f"{i // 4}.wav") for i, p in enumerate(data.pieces)))
    groups = {tuple(p.arguments[0].flatten().tolist()): p.group for p in data.pieces}
    with mock.patch.object(job, "tune", side_effect=KeyboardInterrupt) as tune, pytest.raises(KeyboardInterrupt):
        job.quantize(make_net(), data, tmp_path / "out", QUICK)
    given = tune.call_args.args[1]
    parts = [{groups[row] for row in rows_in(part)} for part in (given.tuning, given.choosing, given.reported)]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts)) == 10


def test_settings_of_the_numbers_and_of_the_input_are_passed_on(tmp_path):
    settings = replace(QUICK, input_range=(-8, 8), per_channel=True, unsigned=True)
    with mock.patch.object(job, "tune", side_effect=KeyboardInterrupt) as tune, pytest.raises(KeyboardInterrupt):
        job.quantize(make_net(), make_data(), tmp_path / "out", settings)
    assert tune.call_args.args[1].intervals == ((-8.0, 8.0),)
    assert (tune.call_args.kwargs["per_channel"], tune.call_args.kwargs["unsigned"]) == (True, True)
    with pytest.raises(linger.UsageError, match="venus does not have per_channel=True"):
        replace(settings, target="venus").check()


def test_tuning_gets_several_batches_of_at_most_the_size_asked_for(tmp_path):
    sizes = []
    for count, batch in ((20, 1), (20, 8), (50, 3)):  # 16, 16 and 40 to tune on
        settings = QuantizeSettings(batch=batch)
        interrupted = mock.patch.object(job, "usual_budget", side_effect=KeyboardInterrupt)
        with interrupted as budget, pytest.raises(KeyboardInterrupt):
            job.quantize(make_net(), make_data(count), tmp_path / "out", settings)
        sizes.append([len(x) for (x,) in budget.call_args.args[1]])
    assert sizes == [[1] * 16, [2] * 8, [3] * 13 + [1]]


def scaled(factor):
    """A network whose signal to noise beside another is known."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False)
    model.weight.data *= factor
    return model.eval()


def test_plain_and_tuned_are_not_mixed_up():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    samples = of_arrays([x], None, "x")
    _, noise = judged(scaled(1.0), scaled(0.9), scaled(0.99), samples, batch=4, data="d")
    assert noise.plain == pytest.approx(20.0, abs=0.01)
    assert noise.after == pytest.approx(40.0, abs=0.01)


def test_the_plain_model_is_the_one_before_tuning(tmp_path):
    generator = torch.Generator().manual_seed(1)
    tuned, result = job.tune(make_net(), [(torch.randn(4, 1, 6, 6, generator=generator),)], budget="1 trials")
    with (
        mock.patch.object(job, "_tuned", return_value=(tuned, result)),
        mock.patch.object(job, "_judged", side_effect=KeyboardInterrupt) as judge,
        pytest.raises(KeyboardInterrupt),
    ):
        job.quantize(make_net(), make_data(5), tmp_path / "out", QUICK)
    _, plain, given, *_ = judge.call_args.args
    assert given is tuned
    assert plain is not tuned


def test_float_weights_take_four_bytes_each(made):
    assert made.float_bytes == 4 * (4 * 9 + 4 + 4 * 4 + 64 * 3 + 3)


def test_a_single_sample_is_said_to_have_been_seen(tmp_path):
    lines = []
    with mock.patch.object(job, "_judged", side_effect=KeyboardInterrupt) as judge, pytest.raises(KeyboardInterrupt):
        job.quantize(make_net(), make_data(1), tmp_path / "out", QUICK, tell=lines.append)
    assert lines[0] == "tune: 1 sample to tune on, and to judge by"
    assert judge.call_args.args[4] == "data that tuning has seen"


@pytest.mark.parametrize("failing", ["out", "as_c"])
def test_a_folder_that_cannot_be_moved_leaves_neither(made, tmp_path, failing):
    shutil.copytree(made.folder, tmp_path / "work")
    (tmp_path / "work" / "c").mkdir()
    (tmp_path / "work" / "c" / "net.c").write_text("/* */")
    settings = replace(QUICK, c=tmp_path / "as_c")
    work = Work(None, tmp_path / "work", settings, "tiny", None, [], has_rows=True)
    real = Path.replace

    def moved(path, target):
        if target == tmp_path / failing:
            raise OSError("the disk is full")
        return real(path, target)

    with mock.patch.object(Path, "replace", moved), pytest.raises(linger.UsageError, match="the disk is full"):
        placed(made, work, tmp_path / "out")
    assert names(tmp_path) == ["work"]
    placed(made, work, tmp_path / "out")
    assert names(tmp_path) == ["as_c", "out", "work"]


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


def test_a_batch_that_needs_a_branch_to_stay_open_is_closed(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    x = torch.randn(4, 2, 8)
    edges = edges_of(net, [(x,)])
    assert edges.is_batch_open
    model = linger.init(net)
    with linger.calibration():
        model(x)
    work = Work(net, tmp_path, QUICK, "net", edges, [Piece((x,))], has_rows=True)
    exported(work, model.eval())
    assert not {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node} & {"If", "Loop"}
    assert [len(piece.arguments[0]) for piece in work.proven] == [1, 1, 1, 1]
    assert work.notes[0].startswith("The file takes one sample at a time: ")


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


class Named(nn.Module):
    """Takes its second argument by name only, and can do without one before it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, bias=None, *, gain):
        y = self.fc(x) * gain
        return y if bias is None else y + bias


def test_arguments_by_name_are_inputs_of_the_file_and_of_a_repetition(tmp_path):
    torch.manual_seed(0)
    model, x, gain = Named().eval(), torch.randn(20, 4), torch.rand(20, 3) + 0.5
    data = of_user({"gain": gain, "x": x}, model, "d", batch=8, limit=None)
    assert data.are_rows
    found = job.quantize(model, data, tmp_path / "out", QUICK)
    assert (found.proof.differing, found.proof.ok) == (0, True)
    session = linger.Session(tmp_path / "out" / "net.onnx")
    assert [one.name for one in session.get_inputs()] == ["x", "gain"]
    (whole,) = session.run(None, {"x": x.numpy(), "gain": gain.numpy()})
    with torch.no_grad():
        assert np.array_equal(whole, found.model(x, gain=gain).dequantize().numpy())
    again = job.repeat(model, tmp_path / "out" / "net.yaml", tmp_path / "again")
    assert again.sha256 == found.sha256


@pytest.mark.parametrize("labels", [torch.zeros(20, 3, 6, 6).long(), torch.arange(20) % 3], ids=["mask", "class"])
def test_what_a_loader_gives_beside_its_inputs_may_be_no_decision(tmp_path, labels):
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 3, padding=1).eval()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(20, 1, 6, 6), labels), 4)
    found = job.quantize(model, of_user(loader, model, "d", batch=8, limit=None), tmp_path / "out", QUICK)
    assert found.quality[0].name == "signal to noise at the output"
    assert [note for note in found.notes if note.startswith("What stands beside the inputs was not used: ")]


def test_labels_of_a_loader_that_are_decisions_are_used(tmp_path):
    model, data = make_net(), make_data()
    batches = [(piece.arguments[0], piece.labels) for piece in data.batches(4)]
    found = job.quantize(model, of_user(batches, model, "d", batch=8, limit=None), tmp_path / "out", QUICK)
    assert found.quality[0].name == "accuracy"
    assert not [note for note in found.notes if "was not used" in note]


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
        ({"target": "venus", "form": "qdq"}, "target='venus' needs the form dialect or bare"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("no_tuning")
def test_settings_that_do_not_exist_are_told(tmp_path, settings, message):
    with pytest.raises(linger.UsageError) as told:
        job.quantize(make_net(), make_data(5), tmp_path / "out", replace(QUICK, **settings))
    assert message in str(told.value)
    assert names(tmp_path) == []
