"""What models add to a report: rows at the right nodes, quality, advice; wrong models and data."""

import json
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import Sensitivity, TuneResult
from linger.errors import UsageError
from linger.quantization.diagnosis.call_watch import CoverageRow
from linger.quantization.diagnosis.sensitivity import SensitivityRow
from linger.workflow import model_facts
from linger.workflow.model_facts import _covered, _LayerMatcher, with_results
from tests.support.jobs import LayerFacts, QualityPass
from tests.support.tuning import TuneStep
from tests.support.wired import quantize

pytestmark = pytest.mark.needs_torch


def shown(result):
    """What a notebook shows of a result: its texts and the number of rectangles in its image."""
    page = ET.fromstring(result._repr_html_())
    return [text for text in page.itertext() if text.strip()], len(list(page.iter("rect")))


class Mixed(nn.Module):
    """Convolution, batch norm and ReLU; a module that is called twice; functions; an LSTM; attention; a float layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.again = nn.Conv2d(8, 8, 1)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.soft = nn.Softplus()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.relu(self.bn(self.stem(x)))
        x = self.again(self.again(x) * 0.5) + x
        x = x.flatten(2).transpose(1, 2)
        x, _ = self.lstm(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.fc(F.relu(self.soft(x).mean(1)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A float model, its quantized one, data, and the report of the file."""
    torch.manual_seed(3)
    reference = Mixed().eval()
    model = Mixed().eval()
    model.load_state_dict(reference.state_dict())
    data = [torch.randn(2, 1, 3, 3) for _ in range(3)]
    linger.trace_layers(model, data[0])
    model = linger.init(model)
    with linger.calibration():
        for batch in data:
            model(batch)
    model.eval()
    path = tmp_path_factory.mktemp("mixed") / "mixed.onnx"
    linger.onnx.export(model, (data[0],), path)
    labels = [reference(batch).argmax(-1) for batch in data]
    made = linger.report(path, None, model=model, reference=reference, data=iter(data), labels=labels)
    return reference, model, data, path, made.runs[0]


def layer(run, name):
    return next(layer for layer in run.layers if layer.name == name)


def test_every_row_of_the_comparison_is_at_its_node(made):
    reference, model, data, _, run = made
    rows = {(row.name, row.call): row for row in linger.compare_layers(reference, model, data).rows}
    names = {
        ("bn", 0): "stem.Conv2dInt",
        ("relu", 0): "relu.Relu",
        ("again", 0): "again.Conv2dInt",
        ("again", 1): "again.Conv2dInt_1",
        ("lstm", 0): "lstm.LSTMInt",
        ("fc", 0): "fc.LinearInt",
    }
    found = {key: layer(run, name) for key, name in names.items()}
    assert {key: (f.sqnr_db, f.born_db, f.passed_db, f.verdict) for key, f in found.items()} == {
        key: (rows[key].sqnr_db, rows[key].born_db, rows[key].passed_db, rows[key].verdict) for key in names
    }
    assert found["fc", 0].born_db != found["fc", 0].passed_db
    measured = sum(f.sqnr_db is not None for f in run.layers)
    assert measured == len(rows), "each row has one node"


def test_results_show_themselves_in_notebooks(made):
    reference, model, data, _, _ = made
    compared = linger.compare_layers(reference, model, data[:1])
    texts, bars = shown(compared)
    assert compared.summary() in texts
    assert 2 <= bars <= len(compared.rows)
    assert "softplus" in shown(linger.coverage(model))[0]
    advice = linger.advise(reference)
    assert advice.items[0].advice in shown(advice)[0]
    assert "stem.weight" in shown(linger.wb_analyse(reference, None))[0]


def test_attention_and_the_float_layer_have_their_rows(made):
    run = made[-1]
    attention = [f for f in run.layers if f.path.startswith("attention") and f.sqnr_db is not None]
    assert len(attention) == 1
    soft = next(f for f in run.layers if f.path == "soft" and f.op == "Softplus")
    assert (soft.runs_as, soft.float_reason) == ("float", "linger has no integer form for this function")
    assert soft.sqnr_db is not None


def test_functions_belong_to_the_module_that_calls_them(made):
    sums = [f for f in made[-1].layers if f.op == "iqAdd"]
    assert [f.path for f in sums] == ["", ""]
    rows = {row.name: row for row in linger.compare_layers(made[0], made[1], made[2][:1]).rows if row.is_function}
    assert all(f.verdict and f.sqnr_db == pytest.approx(rows[f.name].sqnr_db, abs=3) for f in sums)
    tensors = {t.name: t for t in made[-1].tensors}
    assert all(tensors[f.outputs[0]].sqnr_db == f.sqnr_db for f in sums)


def test_float_tensors_in_the_same_bins(made):
    reference, _, data, _, run = made
    tensor = next(t for t in run.tensors if t.name == "again.Conv2dInt_1")
    assert sum(tensor.reference.counts) == sum(tensor.values.counts) == 3 * 2 * 8 * 9
    assert tensor.reference.width == tensor.values.width
    offset = (tensor.reference.low - tensor.values.low) / tensor.values.width
    assert offset == round(offset)
    floats = []
    hook = reference.again.register_forward_hook(lambda _module, _inputs, output: floats.append(output.detach()))
    for batch in data:
        reference(batch)
    hook.remove()
    seconds = torch.cat([x.flatten() for x in floats[1::2]]).double().numpy()
    places = np.floor((seconds - tensor.reference.low) / tensor.reference.width).astype(int)
    assert np.array_equal(np.bincount(places, minlength=len(tensor.reference.counts)), tensor.reference.counts)


@pytest.mark.parametrize(("bits", "is_advised"), [(8, True), (16, False)], ids=["8 bits", "16 bits"])
def test_weights_that_lose_much_are_advised_about_unless_they_are_wide(bits, is_advised, tmp_path):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(16, 16)).eval()
    with torch.no_grad():
        reference[0].weight *= 0.01
        reference[0].weight[0, 0] = 8.0  # the steps of 8 bits are as large as all others
    x = torch.randn(4, 16)
    model = nn.Sequential(nn.Linear(16, 16)).eval()
    model.load_state_dict(reference.state_dict())
    model = quantize(linger.quant_module(model, data_bits=bits, parameter_bits=bits, out_bits=bits), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    (run,) = linger.report(tmp_path / "net.onnx", None, model=model, reference=reference).runs
    said = [sentence for f in run.layers for sentence in f.advice if sentence.startswith("its weights: ")]
    assert bool(said) == is_advised


def test_a_report_without_advice_says_why(made, monkeypatch):
    def advise(*_):
        raise UsageError("the weights are nowhere.")

    monkeypatch.setattr(model_facts, "advise", advise)
    reference, model, _, path, _ = made
    (run,) = linger.report(path, None, model=model, reference=reference).runs
    assert "No advice could be given: the weights are nowhere." in run.notes


def test_the_proof_is_against_the_model(made):
    run = made[-1]
    assert (run.proof.is_exact, run.proof.compared[0], run.proof.batches) == (True, "torch", 3)
    assert "torch" in run.proof.versions


def test_quality_on_all_of_the_data(made):
    reference, model, data, _, run = made
    accuracy, agreement, noise = run.quality
    same = [reference(x).argmax(-1) == model(x).dequantize().argmax(-1) for x in data]
    share = 100.0 * float(torch.cat(same).double().mean())
    assert (accuracy.name, accuracy.before, accuracy.samples, accuracy.unit) == ("accuracy", 100.0, 6, "%")
    assert accuracy.after == agreement.after == pytest.approx(share)
    assert noise.after == pytest.approx(linger.compare_layers(reference, model, data).output_db)
    assert {q.data for q in run.quality} == {"the data given"}


def test_the_models_stay_as_they_were(made):
    reference, model, data, _, _ = made
    assert not reference.training
    assert not any(module._forward_hooks for module in reference.modules())
    assert torch.equal(model(data[0]).dequantize(), model(data[0]).dequantize())


def test_tuning_and_sensitivity(made):
    run = made[-1]
    step = TuneStep("equalize", {}, "all", "", 20.0, 24.0, None, None, 1.5, 1, True, True, "better")
    tuning = TuneResult(20.0, 24.0, (step,), notes=("a note",))
    ranking = Sensitivity(
        (
            SensitivityRow("again", "Conv2dInt", "8/8/8", 30.0, 0.75, 72, 10),
            SensitivityRow("iqAdd", "iqAdd", "8", 40.0, 0.25, 0, 0),
        ),
        8,
        29.0,
    )
    told = with_results(run, tuning, ranking)
    assert "20.00" in shown(tuning)[0]
    assert shown(ranking)[1] == 2
    assert (told.tuning.steps[0].name, told.tuning.steps[0].is_kept) == ("equalize()", True)
    assert told.tuning.notes == ("a note",)
    assert [(s.name, s.noise_share) for s in told.sensitivity] == [("again", 0.75), ("iqAdd", 0.25)]
    assert layer(told, "again.Conv2dInt").noise_share == 0.75
    assert sum(f.noise_share or 0 for f in told.layers) == 1.0
    assert with_results(run, None, None) == run


@pytest.mark.parametrize(
    ("shape", "is_scored"), [((4, 3), True), ((4, 1), False), ((2, 3, 5, 5), False)], ids=["scores", "one", "image"]
)
def test_what_looks_like_scores(shape, is_scored):
    class Give(nn.Module):
        def forward(self, x):
            return x

    measured = QualityPass(Give(), Give(), 1)
    measured.run(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    names = [figure.name for figure in measured.figures()]
    assert ("agreement with the float model" in names) == is_scored


def test_probabilities_of_many_places_are_scores():
    measured = QualityPass(nn.Softmax(1), nn.Softmax(1), 1)
    measured.run([torch.randn(2, 3, 4, 4)])
    assert next((f.after, f.samples) for f in measured.figures()) == (100.0, 32)


def test_agreement_is_between_the_two_models():
    class Given(nn.Module):
        def __init__(self, *classes):
            super().__init__()
            self.scores = F.one_hot(torch.tensor(classes), 3).double()

        def forward(self, x):
            return self.scores[x[:, 0].long()]

    measured = QualityPass(Given(0, 1, 2, 0), Given(0, 1, 1, 1), 1)
    measured.run(torch.arange(4.0).reshape(4, 1))
    accuracy, agreement, noise = measured.figures([0, 1, 2, 2])
    assert agreement.after == 50.0
    assert (accuracy.after, accuracy.before) == (75.0, 50.0)
    assert noise.after == pytest.approx(0.0), "4 of signal, 4 of noise"


def call(made, **changes):
    reference, model, data, path, _ = made
    given = {"model": model, "reference": reference, "data": data, **changes}
    return linger.report(path, None, **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "model"}, "model is a str"),
        ({"model": Mixed()}, "the model is not quantized"),
        ({"reference": 3}, "reference is a int"),
        ({"data": []}, "the data are empty"),
        ({"data": [torch.randn(2, 5)]}, "the forward pass fails"),
        ({"data": "photos"}, "str is no batch"),
        ({"model": None}, "reference, data needs the quantized model"),
        ({"reference": nn.Linear(3, 3)}, r"shapes \[\(2, 1, 3, 3\)\] in the float model"),
        ({"labels": [1, 2]}, "2 labels for 6 decisions"),
        ({"labels": [0.5] * 6}, "labels are of type float64"),
        ({"labels": "six", "data": None}, "labels need the data"),
        ({"metric": 0.9}, "cannot be called"),
        ({"metric": lambda _: 1 / 0}, "ZeroDivisionError"),
        ({"tuning": 30.0}, "tuning is a float"),
        ({"sensitivity": {}}, "sensitivity is a dict"),
        ({"verification": True}, "verification is a bool"),
        ({"name": 3}, "name is a int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_wrong_uses(changes, message, made):
    with pytest.raises(UsageError, match=message):
        call(made, **changes)


def test_a_quantized_reference_is_refused(made):
    with pytest.raises(UsageError, match="the reference is quantized"):
        call(made, reference=made[1])


class Unused(nn.Module):
    """Layers that run, and whose results nobody uses: the file does not have them."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3, self.aux, self.odd = (nn.Conv2d(2, 2, 1) for _ in range(5))
        self.b1, self.b2, self.unused = (nn.BatchNorm2d(2) for _ in range(3))

    def forward(self, x):
        x = self.b1(self.c1(x))
        self.aux(x)
        self.unused(self.odd(x))
        return self.c3(self.b2(self.c2(x)))


@pytest.fixture(scope="module")
def unused():
    """A float model, its quantized one, data."""
    torch.manual_seed(0)
    reference, model, data = Unused().eval(), Unused().eval(), torch.randn(2, 2, 4, 4)
    model.load_state_dict(reference.state_dict())
    linger.trace_layers(model, data)
    model = linger.init(model)
    with linger.calibration():
        model(data)
    return reference, model.eval(), data


@pytest.mark.parametrize(("form", "has_scales"), [("dialect", True), ("standard", False), ("qdq", True)],
                         ids=["dialect", "standard", "qdq"])  # fmt: skip
def test_figures_of_layers_that_the_file_does_not_have(form, has_scales, unused, tmp_path):
    reference, model, data = unused
    linger.onnx.export(model, (data,), tmp_path / "m.onnx", form=form)
    told = linger.report(tmp_path / "m.onnx", None, model=model, reference=reference, data=[data]).runs[0]
    rows = {row.name: row.sqnr_db for row in linger.compare_layers(reference, model, data).rows}
    assert set(rows) == {"b1", "aux", "unused", "b2", "c3"}
    found = {f.path: (f.sqnr_db, f.outputs[0]) for f in told.layers if f.sqnr_db is not None}
    assert {path: db for path, (db, _) in found.items()} == {"c1": rows["b1"], "c2": rows["b2"], "c3": rows["c3"]}
    assert any("not found in the file: aux, unused." in note for note in told.notes)
    assert told.form == form
    assert any("state no scales" in note for note in told.notes) != has_scales
    tensors = [t for t in told.tensors if t.name in {name for _, name in found.values()}]
    assert [(t.scale is not None, t.reference is not None) for t in tensors] == [(has_scales, has_scales)] * 3
    for t in tensors if has_scales else []:
        assert abs(t.reference.low - t.low) < 0.2 * (t.high - t.low), "in the same units"


def test_calls_are_found_by_path_and_number():
    names = ("a.Conv2dInt", "b.Conv2dInt", "a.Conv2dInt_1", "c.d.LinearInt")
    layers = [LayerFacts(name, name.rpartition(".")[0], name.rpartition(".")[2].partition("_")[0]) for name in names]
    matcher = _LayerMatcher(layers)
    rows = [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    assert [matcher.of_call(path, number, "Conv2dInt") for path, number in rows] == [0, 2, 1, 3]
    assert matcher.of_call("a", 2, "Conv2dInt") is None
    assert matcher.of_call("nowhere", 0, "Conv2dInt") is None


def test_the_integer_share_is_that_of_the_model(made):
    found = SimpleNamespace(table=list, macs=8, integer_share=0.25)
    assert _covered(made[-1], found).integer_share == 0.25
    assert _covered(replace(made[-1], integer_share=0.5), SimpleNamespace(table=list, macs=0)).integer_share == 0.5


def test_a_float_op_without_a_layer_is_told(made):
    lost = CoverageRow("elsewhere", "sum", "float", "no integer form", 0, 0.0)
    known = replace(lost, where="soft", op="softplus")
    found = _covered(made[-1], SimpleNamespace(table=lambda: [lost, known], macs=0))
    assert found.float_ops == ("elsewhere: sum (no integer form)",)
    assert found.notes[-1].endswith("without a layer of its own in the file: elsewhere: sum (no integer form).")


def test_a_doubt_about_an_integer_op_is_told_at_its_layers_and_nowhere_else(made):
    run = made[-1]
    doubted = CoverageRow("again", "Conv2dInt", "integer", "its input is too wide", 0, 0.0)
    found = _covered(run, SimpleNamespace(table=lambda: [doubted, replace(doubted, where="fc", reason="")], macs=0))
    changed = {f.name: f.advice[-1] for f, before in zip(found.layers, run.layers, strict=True) if f != before}
    assert changed == dict.fromkeys(("again.Conv2dInt", "again.Conv2dInt_1"), "its input is too wide")
    assert (found.float_ops, found.notes) == ((), run.notes)


def test_standard_nodes_are_grouped_by_their_op():
    names = ("a.Conv2dInt/Cast_0", "a.Conv2dInt/Conv_1", "a.Conv2dInt/Cast_2", "a.Conv2dInt_1/Conv_0")
    matcher = _LayerMatcher([LayerFacts(name, "a", "Conv") for name in names])
    assert [matcher.of_call("a", number, "Conv2dInt") for number in (0, 1)] == [2, 3]
    assert np.array_equal(matcher.of_name("a"), [2, 3])


def test_layers_of_a_tuned_model_are_compared_with_their_own_float_layers(tmp_path):
    """Equalization rescales channels: against the user's model such a layer would seem to be full of errors."""
    torch.manual_seed(5)
    reference = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 4)).eval()
    with torch.no_grad():
        reference[0].weight[:4] *= 40
        reference[2].weight[:, :4] /= 40
    data = list(torch.randn(8, 4, 1, 6, 6))
    model, tuning = linger.tune(reference, data, budget="12 trials")
    assert "equalize" in [step.name for step in tuning.kept]
    assert "reference" not in json.loads(tuning.to_json())
    linger.onnx.export(model, (data[0],), tmp_path / "m.onnx")
    told = linger.report(tmp_path / "m.onnx", None, model=model, reference=reference, data=data, tuning=tuning).runs[0]
    expected = {row.name: row.sqnr_db for row in linger.compare_layers(tuning.reference, model, data).rows}
    found = {layer.path: layer.sqnr_db for layer in told.layers if layer.path in expected and layer.sqnr_db is not None}
    assert found["0"] == expected["0"] > linger.compare_layers(reference, model, data).rows[0].sqnr_db + 10
    assert [quality.name for quality in told.quality].count("signal to noise at the output") == 1


class Recurrent(nn.Module):
    """Two layers in both directions, and a linear one for every step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Attending(nn.Module):
    """Attention of four heads with a residual."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.attention(x, x, x)[0] + x)


class Convolving(nn.Module):
    """Convolutions with groups, transposed and over one axis."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3)
        self.back, self.last = nn.ConvTranspose2d(6, 4, 4, stride=2, padding=1), nn.Conv1d(4, 4, 3)

    def forward(self, x):
        return self.last(F.avg_pool2d(F.relu(self.back(self.first(x))), 2).flatten(2))


WORK = {
    "recurrent": (Recurrent, (7, 8), 2 * 7 * 64 * (8 + 16) + 2 * 7 * 64 * (32 + 16) + 7 * 32 * 3),
    "attending": (Attending, (5, 16), 5 * 16 * 48 + 5 * 16 * 16 + 2 * 4 * 5 * 5 * 4),
    "convolving": (Convolving, (3, 16, 16), 6 * 8 * 8 * 9 + 6 * 8 * 8 * 4 * 16 + 4 * 62 * 4 * 3),
}


@pytest.mark.parametrize(("kind", "sizes", "macs"), WORK.values(), ids=WORK)
def test_work_is_counted_alike_for_the_file_the_report_the_model_and_the_program_in_c(kind, sizes, macs, tmp_path):
    x = torch.randn(1, *sizes, generator=torch.Generator().manual_seed(0))
    model = linger.init(kind()).eval()
    with linger.calibration():
        model(x)
    file = tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), file, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    use, run = linger.memory(file), linger.report(file, None).runs[0]
    assert (use.macs, use.has_all_macs, run.macs, run.is_lower_bound) == (macs, True, macs, False)
    assert (linger.coverage(model).macs, linger.c.memory(file).macs) == (macs, macs)
