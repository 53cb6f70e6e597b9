"""The benchmarks as a whole: what a row says, the page that joins them, and that a script that fails is a row."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import file_networks
import growth
import pytest
import run
import runtimes
from results_page import draw, page
from rows import QAT_STEP, Row, measured, not_measured, ratio_of
from run import FOLDER, RIVALS, SCRIPTS, Store, run_script

import linger

MACHINE = {"CPU": "a CPU", "features": "avx2", "cores": "2", "system": "an OS", "versions": "torch 9", "linger": "1.0"}
BESIDE = {script.name: script.rivals for script in SCRIPTS}


def entry(*rows, lower=(), machine=MACHINE):
    plain = {"rows": [dataclasses.asdict(row) for row in rows], "lower": [dataclasses.asdict(row) for row in lower]}
    return {**plain, "machine": machine, "date": "2026-01-01", "command": "python x.py"}


@pytest.mark.parametrize("name", [*(script.name for script in SCRIPTS), *(f"rivals/{rival}" for rival in RIVALS)])
def test_script_gives_rows(name):
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert "\ndef rows(options: argparse.Namespace) -> list[Row]:" in text
    assert "    report(rows, " in text


def test_every_script_that_gives_rows_is_run():
    named = {script.name for script in SCRIPTS}
    found = {f.stem for f in FOLDER.glob("*.py") if "\ndef rows(options" in f.read_text(encoding="utf-8")}
    assert found <= named


def test_figures_say_on_what_machine_and_commit_they_were_measured():
    found = run.machine()
    assert found.keys() == MACHINE.keys()
    assert found["linger"].startswith(f"{linger.__version__}, commit ")


def test_ratio_is_that_of_rounds_with_quartiles():
    # round by round 1, 2, 3, 4, 5: the median of the ratios, not the ratio of the medians (2·1.5 of 1)
    times = {"float": [1.0, 1.0, 1.0, 2.0, 2.0], "integers": [1.0, 2.0, 3.0, 8.0, 10.0]}
    row = ratio_of("c", times, "integers", base="float", bar=2.5)
    assert (row.low, row.figure, row.high) == (2, 3, 4)
    assert row.is_within is False
    assert row.detail == "float 1.00 s, integers 3.00 s"


def test_measured_runs_both_variants_in_turn(capsys):
    order = []
    row = measured(
        "c", {n: lambda n=n: order.append(n) or sum(range(9999)) for n in "ab"}, base="a", rounds=3, warm_up=1
    )
    assert order == list("abbaabba")
    assert row.figure > 0
    assert capsys.readouterr().out.startswith("c: ")


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("c", 1.1, 1.1), "within"),
        (Row("c", 1.11, 1.1), "ABOVE"),
        (Row("c", 1.11), ""),
        (not_measured("c", "why", bar=1.1), "not measured"),
    ],
    ids=["at the bar", "above it", "without one", "not measured"],
)
def test_verdict(row, verdict):
    assert row.verdict == verdict


def test_reasons_are_one_line_without_folders():
    row = not_measured("c", "\n/usr/lib/x/net.onnx: and/or it needs 1/2\nmore")
    assert row.detail == "net.onnx: and/or it needs 1/2"


def test_page_marks_what_is_above_its_bar_and_shows_rivals_beside_their_claim():
    step, other = Row(QAT_STEP, 1.2, 1.1, 1.15, 1.25, "some ms"), Row("evaluation", 1.0, 1.05)
    entries = {
        "qat_step": entry(step, other, lower=[Row(QAT_STEP, 1.08, 1.1)]),
        "torchao": entry(Row(QAT_STEP, 1.4)),
        "aimet": entry(not_measured("aimet, all claims", "cannot be installed")),
    }
    text = page(entries, BESIDE)
    line = f"| {QAT_STEP} | 1.20 × | 1.15–1.25 | 1.1 | **ABOVE** | 1.08 × | torchao 1.40 ×; aimet not measured: cannot be installed | some ms |"
    assert line in text.splitlines()
    assert "| evaluation | 1.00 × |  | 1.05 | within |  |  |  |" in text.splitlines()
    assert "1 of 2 bars are kept" in text
    assert f"Above their bars:\n\n- {QAT_STEP}: 1.20 ×, bar 1.1\n" in text
    assert "Not measured" not in text


def test_page_lists_what_was_not_measured():
    text = page({"qat_step": entry(not_measured("qat_step", "no such thing"))}, BESIDE)
    assert "0 of 0 bars are kept.\n\nNot measured:\n\n- qat_step: no such thing\n" in text
    assert "| qat_step | not measured: no such thing |  |  | not measured |" in text


def test_networks_and_ways_of_running_them_are_one_table():
    rows = [
        Row("net A: time of x", 0.25, None, 0.2, 0.3, "some ms"),
        Row("net A: time of y", 1.5, 1.2, 1.4, 1.6, "some more ms"),
        not_measured("net A: time of z", "no such package"),
        Row("net A: x / y", 0.2, 1.1),
        Row("net A: SNR of x", 31.4, unit="dB"),
        Row("net A: load of x", 2.0, None, 1.0, 3.0, unit="ms"),
        Row("net B: time of x", 0.5, None, 0.4, 0.6),
    ]
    lines = page({"runtimes": entry(*rows)}, BESIDE).splitlines()
    assert lines[lines.index("|  | net A | net B |") :][2:5] == [
        "| x | 0.25 × (0.20–0.30) · 31.4 dB · 2.00 ms | 0.50 × (0.40–0.60) |",
        "| y | **ABOVE** 1.50 × (1.40–1.60) |  |",
        "| z | not measured |  |",
    ]
    claims = [line.split(" | ")[0] for line in lines if line.startswith("| net A")]
    assert claims == ["| net A: time of y", "| net A: x / y"], "what has no bar has been shown"
    assert "- net A: time of z: no such package" in lines


def test_ways_are_judged_by_the_bars_of_their_network():
    assert runtimes.BARS.keys() == file_networks.ALL_CASES.keys()
    assert set(runtimes.LINGERS) < set(runtimes.WAYS)
    assert all((bars.session is None) != (bars.session_to_static is None) for bars in runtimes.BARS.values())


def test_runtime_that_is_missing_is_a_row():
    elsewhere = [way for way in runtimes.WAYS if way.startswith(("OpenVINO", "LiteRT"))]
    times = {way: [0.5, 0.5] for way in runtimes.WAYS if way not in elsewhere} | {runtimes.FLOAT: [1.0, 1.0]}
    reasons = dict.fromkeys(elsewhere, "No module named 'litert_torch'")
    rows = {row.claim: row for row in runtimes.time_rows(file_networks.SMALL_CNN, times, reasons)}
    missing = rows[f"{file_networks.SMALL_CNN}: time of LiteRT int8"]
    assert (missing.figure, missing.detail) == (None, "No module named 'litert_torch'")
    assert rows[f"{file_networks.SMALL_CNN}: time of linger.Session"].figure == 0.5
    assert rows[f"{file_networks.SMALL_CNN}: linger.Session / ONNX Runtime static int8"].bar == 1.1


def test_outputs_that_differ_from_the_simulation_are_counted(tmp_path):
    network = file_networks.prepared(file_networks.Case(file_networks.RecurrentNet, (2, 64)), tmp_path, ("dialect",))
    right = {way: network.integers[numbers].simulation[:, None] for way, numbers in runtimes.LINGERS.items()}
    same = runtimes.exactness_row("net", network, right)
    wrong = right[runtimes.C_AVX2].copy()
    wrong.flat[5] += 1 / 128
    other = runtimes.exactness_row("net", network, right | {runtimes.C_AVX2: wrong})
    assert (same.figure, same.is_within, other.figure, other.is_within) == (0, True, 1, False)
    assert "linger's C, -mavx2: 1;" in other.detail
    right.pop(runtimes.SESSION)
    assert runtimes.exactness_row("net", network, right).verdict == "not measured"


def test_sizes_that_grow_are_each_twice_the_one_before():
    for family in growth.FAMILIES:
        sizes = list(family.cases)
        assert [size / sizes[0] for size in sizes] == [1, 2, 4, 8], family.title
    assert {n: height * width / 16 for n, (height, width) in growth.TOKENS.items()} == {n: n for n in growth.TOKENS}


def test_script_beside_other_runtimes_has_their_environment_and_runs_without(monkeypatch):
    script = next(script for script in SCRIPTS if script.name == "runtimes")
    monkeypatch.setattr(run, "environment", lambda name: Path(f"there/{name}"))
    assert run.interpreter(script, has_rivals=True)[-1] == "there/runtimes"
    assert run.interpreter(script, has_rivals=False) == [sys.executable]

    def fail(name):
        raise subprocess.CalledProcessError(1, "pip", stderr="ERROR: No matching distribution\n")

    monkeypatch.setattr(run, "environment", fail)
    assert run.interpreter(script, has_rivals=True) == [sys.executable]


def test_page_tells_machines_apart():
    entries = {"qat_step": entry(Row("a", 1.0)), "repair": entry(Row("b", 1.0), machine=MACHINE | {"CPU": "another"})}
    text = page(entries, BESIDE)
    assert "Machine B: another (avx2)" in text
    assert "linger 1.0, Machine B." in text


def test_image_has_every_ratio_with_a_bar(tmp_path):
    entries = {"qat_step": entry(Row("a", 1.2, 1.1), Row("b", 3.0)), "repair": entry(not_measured("c", "why", bar=2))}
    draw(tmp_path / "image.svg", entries, BESIDE)
    draw(tmp_path / "again.svg", entries, BESIDE)
    text = (tmp_path / "image.svg").read_text(encoding="utf-8")
    labels = re.findall(r"<!-- (.*?) -->", text)
    assert [label for label in labels if label in ("a", "b", "c")] == ["a"]
    assert text == (tmp_path / "again.svg").read_text(encoding="utf-8")


def test_script_that_fails_is_a_row():
    (row,) = run_script([sys.executable, "-c", "raise SystemExit('first\\nno such thing')"], "a claim")
    assert row == Row("a claim", None, detail="no such thing")


def test_rival_that_cannot_be_installed_is_a_row(monkeypatch):
    def fail(rival):
        raise subprocess.CalledProcessError(1, "pip", stderr="WARNING: slow\nERROR: No matching distribution\n")

    monkeypatch.setattr(run, "environment", fail)
    (row,) = run.run_rival("torchao", [])
    assert row.detail == "cannot be installed: ERROR: No matching distribution"


def test_script_gives_its_rows(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nfrom rows import Row, parser, report\n"
        "report(lambda options: [Row('c', options.rounds, 2.0)], parser(None, rounds=40))\n",
        encoding="utf-8",
    )
    assert run_script([sys.executable, str(script), "--quick"], "a claim") == [Row("c", 10, 2.0)]


def test_store_keeps_what_was_not_measured_again(tmp_path):
    Store(tmp_path / "r.json").keep("repair", rows=[Row("a", 1.0)], date="1")
    Store(tmp_path / "r.json").keep("growth", rows=[Row("b", 2.0)], date="2")
    entries = Store(tmp_path / "r.json").entries
    assert [Row(**entries[name]["rows"][0]).claim for name in ("repair", "growth")] == ["a", "b"]


def test_page_of_the_repository_is_what_was_measured():
    entries = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == page(entries, BESIDE), "run.py --page-only"
    assert not re.search(r"(?<![\w.])/(tmp|home|work|root|usr)/", json.dumps(entries)), "a path of one machine"


@pytest.mark.parametrize("path", sorted((FOLDER / "rivals").glob("requirements-*.txt")), ids=lambda p: Path(p).stem)
def test_rivals_are_pinned_and_bring_no_torch(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert not any(line.startswith("torch==") for line in lines)
    assert path.stem.removeprefix("requirements-") in (*RIVALS, *(s.name for s in SCRIPTS if s.has_environment))
