"""The arithmetic of the accuracy benchmark: its figures, its bars, its page, and that nothing judged is tuned on."""

import json
import math
from dataclasses import replace

import accuracy
import pytest
import qat_section
import qat_tasks
import torch
from accuracy_columns import COLUMNS, calibrated
from accuracy_outliers import with_outlier
from accuracy_page import spread, write_page
from accuracy_verdicts import verdicts
from networks import ENTRIES, Bar, Entry, Network, Unobtainable, shared_samples
from networks.figures import EXACT_DB, class_agreement, join_outputs, label_accuracy, sqnr_db
from networks.runtime import streamed
from torch import nn

import linger
from tests.support.real_models import require


def small_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    data = torch.randn(12, 1, 4, 4)
    labels = torch.tensor([0, 1, 2, 0])
    return Network(
        model.eval(),
        [(part,) for part in data[:8].split(4)],
        [(data[8:],)],
        lambda expected, found: label_accuracy(expected[0], found[0], labels),
        ["x"],
        [(data[8:10],)],
        {"x": {0: "batch"}},
    )


def test_signal_to_noise_of_hand_worked_outputs():
    signal = torch.tensor([3.0, 4.0])  # energy 25
    assert sqnr_db([signal], [signal]) == EXACT_DB
    assert sqnr_db([signal], [torch.tensor([3.0, 3.5])]) == pytest.approx(20.0)  # 0.25 of 25
    both = sqnr_db([signal, 1000 * signal], [torch.tensor([3.0, 3.5]), torch.tensor([3000.0, 3500.0])])
    assert both == pytest.approx(20.0), "outputs count alike, whatever their size"
    assert sqnr_db([torch.zeros(2)], [torch.ones(2)]) == 0


def test_agreement_of_all_pictures_and_of_those_that_are_sure():
    sure = math.log(98.0)  # a probability of 0.98 among three classes
    expected = torch.tensor([[sure, 0, 0], [0, sure, 0], [0.1, 0, 0], [0, 0.1, 0]])
    found = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0]])
    figures = class_agreement(expected, found)
    assert figures["of which float is sure"] == 2
    assert figures["same class %"] == 50
    assert figures["same class where float is sure %"] == 50
    assert class_agreement(expected[2:], found[2:])["same class where float is sure %"] == 100, "nothing to miss"


def test_accuracy_lost_is_float_minus_own():
    labels = torch.tensor([0, 1, 1, 0])
    expected = torch.eye(2)[[0, 1, 1, 1]]  # 75 %
    found = torch.eye(2)[[0, 1, 0, 1]]  # 50 %
    figures = label_accuracy(expected, found, labels)
    assert figures == {"accuracy %": 50, "accuracy lost, points": 25, "same class %": 75}


def test_outputs_are_joined_by_output():
    joined = join_outputs([(torch.ones(1, 2), torch.zeros(1)), (torch.ones(2, 2), torch.zeros(2))])
    assert [tuple(part.shape) for part in joined] == [(3, 2), (3,)]


def test_bars_hold_at_their_limit():
    assert Bar("tune", "dB", 9.5).is_met(9.5)
    assert not Bar("tune", "dB", 9.5).is_met(9.49)
    assert Bar("tune", "lost", 0.3, is_least=False).is_met(0.3)
    assert not Bar("tune", "lost", 0.3, is_least=False).is_met(0.31)


def test_every_bar_is_about_a_column_and_a_figure_that_exist():
    known = (*class_agreement(torch.eye(2), torch.eye(2)), *label_accuracy(torch.eye(2), torch.eye(2), torch.arange(2)))
    known += ("output SQNR dB", "layers with 16-bit weights", "same decision %", "dB lost", "dB lost, worst picture")
    for entry in ENTRIES.values():
        for bar in entry.bars:
            assert bar.column in COLUMNS
            assert bar.figure in known


def test_a_judged_sample_that_is_tuned_on_is_seen(tmp_path, monkeypatch):
    network = small_network()
    assert shared_samples(network) == 0
    leaked = replace(network, tuning=[*network.tuning, (network.judged[0][0][1:3],)])
    assert shared_samples(leaked) == 2
    monkeypatch.setattr("networks.importlib.import_module", lambda name: Loader(leaked))
    with pytest.raises(ValueError, match="2 judged samples are also tuned on"):
        Entry("leaky", "leaky", "").load("leaky", tmp_path, 0, is_quick=True)


class Loader:
    def __init__(self, network):
        self.network = network

    def load(self, name, cache, seed, *, is_quick):
        if self.network is None:
            raise FileNotFoundError("the package xyz is not installed")
        return self.network


def test_what_cannot_be_had_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("networks.importlib.import_module", lambda name: Loader(None))
    with pytest.raises(Unobtainable, match="xyz is not installed"):
        ENTRIES["crepe"].load("crepe", tmp_path, 0, is_quick=True)


def test_no_photograph_is_both_tuned_on_and_judged():
    require("skimage", "sklearn", "facenet_pytorch", "waifu2x", "efficientnet_lite_pytorch")
    from networks import enlarger, faces, pictures

    for module in (enlarger, pictures):
        assert not set(module.TUNED_ON) & set(module.JUDGED_ON)
    assert "astronaut" not in faces.TUNED_ON
    first, again, other = (pictures.random_crops("cat", 2, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_enlarger_is_judged_on_other_data(tmp_path):
    require("skimage", "sklearn", "waifu2x")
    network = ENTRIES["upconv7"].load("upconv7", tmp_path, 0, is_quick=True)
    assert len(network.judged) == 3
    expected = accuracy.outputs_of(network.model, network)
    assert network.figures(expected, expected)["dB lost"] == 0
    noisy = (expected[0] + 0.1,)
    assert network.figures(expected, noisy)["dB lost, worst picture"] > 0


def test_an_outlier_is_one_value():
    network = small_network()
    wild = with_outlier(network)
    before, after = network.tuning[0][0], wild.tuning[0][0]
    assert int((before != after).sum()) == 1
    assert float(after.abs().max()) == pytest.approx(100 * float(before.abs().max()))
    assert wild.judged is network.judged


def test_a_stream_of_single_steps_carries_each_state():
    def step(x, h, c):
        h = h + x.sum()
        return x.sum().reshape(1, 1) + h.sum(), h, c

    x = torch.arange(6.0).reshape(2, 3, 1, 1)
    y, h, _ = streamed(step)(x, torch.zeros(1, 2, 1), torch.zeros(1, 2, 1))
    assert y.tolist() == [[0, 2, 5], [6, 11, 17]]
    assert h.flatten().tolist() == [3, 12]


def test_a_cell_holds_figures_widths_and_proof():
    network = small_network()
    figures = accuracy.measure(network, "max", 0, accuracy.outputs_of(network.model, network))
    assert figures["output SQNR dB"] > 15
    assert figures["16-bit tensors %"] == 0
    assert figures["differing integers"] == 0
    assert figures["compared integers"] > 0
    assert figures["CPU seconds"] > 0


def test_widths_count_tensors_and_layers():
    model = calibrated(small_network())
    ranges = list(accuracy.ranges_of(model).values())
    weights = next(r for r in ranges if r.kind is accuracy.Kind.WEIGHT)
    linger.quant_module(weights.layer, parameter_bits=16)
    assert accuracy.widths(model) == {"16-bit tensors %": 100 / len(ranges), "layers with 16-bit weights": 1}


def test_page_says_what_was_measured_and_what_was_not(tmp_path):
    cells = accuracy.Cells(tmp_path / "cells")
    for seed, lost in enumerate((0.0, 0.2, 0.4)):
        cells.write(
            "digits",
            "tune",
            seed,
            {"figures": {"accuracy %": 99 - lost, "accuracy lost, points": lost, "CPU seconds": 1.0}},
        )
    cells.write("digits", "mse", 0, {"reason": "UsageError: a | b"})
    write_page(tmp_path / "page.md", cells, verdicts(cells))
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| digits CNN, tune: accuracy lost, points ≤ 0.3 | 0.20 | met |" in page
    assert "| digits CNN, tune mixed: accuracy lost, points ≤ 0.3 | not measured | — |" in page
    assert "| tune | 98.80 ± 0.20 | 0.20 ± 0.20 | — |" in page
    assert "| mse | does not run: UsageError: a / b |" in page
    assert "| max | not measured |" in page
    assert json.loads((tmp_path / "cells" / "digits.mse.0.json").read_text())["reason"]


def test_bars_of_all_networks_take_the_worst(tmp_path):
    cells = accuracy.Cells(tmp_path)
    assert {verdict for _, _, verdict in verdicts(cells)} == {"—"}
    facts = {"accuracy lost, points": 0.0, "CPU seconds": 20.0, "differing integers": 0.0, "errors for venus": 0.0}
    cells.write("digits", "max", 0, {"figures": facts})
    cells.write("digits", "tune", 0, {"figures": facts})
    cells.write("silero", "tune", 0, {"figures": facts | {"same decision %": 97.0, "errors for venus": 3.0}})
    cells.write("outliers-digits", "max", 0, {"figures": {"cost dB": 20.0}})
    cells.write("outliers-digits", "mse", 0, {"figures": {"cost dB": 1.5}})
    found = {text: (value, verdict) for text, value, verdict in verdicts(cells)}
    assert found["digits CNN, one outlier: cost in dB by the best method ≤ 1"] == ("1.50", "MISSED")
    assert found["silero-vad, tune: same decision % ≥ 98"] == ("97.00", "MISSED")
    assert found["every tuned network: CPU seconds ≤ 300"] == ("20.00", "met")
    assert found["every tuned network: integers of its file that differ = 0"] == ("0.00", "met")
    fits = "tuned networks whose untuned file fits venus: errors for venus = 0"
    assert found[fits] == ("0.00", "met"), "the untuned file of silero was not found to fit"
    cells.write("silero", "tune", 1, {"reason": "UsageError: no"})
    assert ("silero-vad, tune: same decision % ≥ 98", "does not run", "MISSED") in verdicts(cells), "no seed may fail"
    assert ("every tuned network: can be exported", "not silero, tune", "MISSED") in verdicts(cells)
    cells.write("digits", "tune mixed", 0, {"figures": facts | {"CPU seconds": 301.0, "errors for venus": 1.0}})
    found = {text: (value, verdict) for text, value, verdict in verdicts(cells)}
    assert found["every tuned network: CPU seconds ≤ 300"] == ("301.00", "MISSED")
    assert found[fits] == ("1.00", "MISSED")


def test_spread_of_one_and_of_several():
    assert spread([12.345]) == "12.35"
    assert spread([1.0, 2.0, 4.5]) == "2.50 ± 1.75"
    assert spread([-0.0]) == "0.00"


# training as integers
def test_the_section_on_training_says_who_wins_and_what_is_lost(tmp_path):
    cells = qat_section.Cells.read(tmp_path / "none.json")
    cells.put("net", "accuracy %", "float", "", [98.0, 99.0])
    for widths, method, found in (
        ("W8A8", "running", [98.3, 98.5]),
        ("W4A8", "calibrated", [98.4, 98.4]),
        ("W8A8", "running, mse", [98.1, 98.3]),
        ("W4A8", "running", [90.0, 91.0]),
        ("W4A8", "running, mse", [97.0, 97.2]),
        ("W4A8", "tqt", [97.0, 97.2]),
        ("W4A8", "lsq", [90.5, 95.0]),
    ):
        cells.put("net", "accuracy %", widths, method, found, cost=1.25, differing=0)
    cells.write(tmp_path / "kept.json")
    assert qat_section.Cells.read(tmp_path / "kept.json").content == cells.content

    text = qat_section.section(cells, ["W8A8", "W4A8"], ["calibrated", "running", "tqt", "lsq"])
    assert "net, W4A8, tqt: 97.10 ± 0.10 against 90.50 ± 0.50 |" in text  # lsq does not win in every seed
    assert "| net: +1.40 (MISSED) |" in text
    assert "| 0, in 7 files |" in text
    assert "| running | 98.40 ± 0.10 | 1.25 × | 90.50 ± 0.50 | 1.25 × |" in text
    assert "| tqt | — | — | 97.10 ± 0.10 | 1.25 × |" in text

    page = tmp_path / "accuracy.md"
    page.write_text("# Accuracy\n\nkept\n", encoding="utf-8")
    for _ in range(2):
        qat_section.write_section(text, page)
    assert page.read_text(encoding="utf-8") == f"# Accuracy\n\nkept\n\n{text.rstrip()}\n"


def test_choices_are_made_on_data_that_nothing_trains_on_and_that_are_no_test_data():
    x, test = torch.arange(23), torch.arange(100, 105)
    seen, _, judged, labels = qat_tasks.split(x, 2 * x, (test, 2 * test), is_choice=True)
    assert sorted([*seen.tolist(), *judged.tolist()]) == x.tolist()
    assert torch.equal(labels, 2 * judged)
    assert len(judged) == 5
    assert torch.equal(qat_tasks.split(x, 2 * x, (test, 2 * test), is_choice=False)[2], test)
