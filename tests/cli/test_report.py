"""linger report."""

import json

import pytest

from linger.cli import COMMANDS
from tests.support.command import run


def test_it_is_a_command():
    assert "report" in COMMANDS


def test_the_verdict_and_the_page(folder):
    done = run("report", "m.onnx", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    verdict, *parts, place = done.stdout.splitlines()
    assert verdict == "Needs attention: Bit-exact, quality not measured."  # a file alone is no reason to be ready
    assert [line.partition(".")[0] for line in parts if "→" not in line] == [
        "  exact: yes",
        "  good enough: not known",
        "  fits: not asked",
    ]
    assert place == "The page: report.html"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_json_alone_writes_no_page(folder):
    before = sorted(folder.iterdir())
    done = run("report", "m.onnx", "--json", "--inputs", "x.npz", cwd=folder)
    content = json.loads(done.stdout)
    assert (done.returncode, content["format"], content["file"], content["notes"]) == (0, "linger-report", "m.onnx", [])
    assert sorted(folder.iterdir()) == before


def test_data_are_kept_and_shown_beside_another_file(folder):
    assert run("report", "m.onnx", "--data-json", "a.json", "--out", "a.html", cwd=folder).returncode == 0
    done = run("report", "a.json", "m.onnx", "--out", "both.html", cwd=folder)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line.partition(":")[0] for line in lines] == ["m", "m (2)", "The page"]
    listed = json.loads(run("report", "a.json", "a.json", "--json", cwd=folder).stdout)
    assert [one["name"] for one in listed] == ["m", "m (2)"]


def test_what_is_not_ready_has_the_exit_code_1(folder):
    content = json.loads(run("report", "m.onnx", "--json", cwd=folder).stdout)
    content["proof"] |= {"is_exact": False, "differing": 2}
    (folder / "bad.json").write_text(json.dumps(content))
    done = run("report", "bad.json", cwd=folder)
    assert done.returncode == 1
    assert done.stdout.startswith("Not ready: 2 integers differ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch.onnx"], "nosuch.onnx (not there)"),
        (["m.onnx", "--out", "page.txt"], "ends in .html"),
        (["m.onnx", "--target", "moon"], "moon"),
        (["m.onnx", "--inputs", "nosuch.npz"], "there is no such file"),
        (["m.onnx", "--data-json", "data.txt"], "ends in .json"),
        (["m.onnx", "--data-json", "nodir/x.json", "--out", "p.html"], "there is no folder nodir"),
        (["m.onnx", "--data-json", f"{'n' * 300}.json", "--out", "p.html"], "too long"),
        (["m.onnx", "m.onnx", "--inputs", "x.npz"], "--inputs is about one ONNX file"),
        (["x.json", "--certificate", "c.json"], "--certificate is about one ONNX file"),
        ([], "missing argument"),
    ],
    ids=["missing", "ending", "chip", "inputs", "data", "folder", "too long", "two files", "certificate", "nothing"],
)
def test_wrong_use(arguments, message, fails):
    fails("report", *arguments, code=2, message=message)


def test_a_damaged_file(fails):
    fails("report", "broken.onnx", code=1, message="broken.onnx")
