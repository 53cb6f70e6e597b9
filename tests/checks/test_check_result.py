"""What a check says, for people and for programs."""

import json
from pathlib import Path

import pytest

from linger import CheckResult
from linger.checks.check import json_report, relative_location, worst
from linger.graph.core.nodes import Finding

ERROR = Finding("error", "a (Relu)", "it is wrong", "Repair it.", "LGR402", "t")
WARNING = Finding("warning", "", "it is dead", "Remove it.", "LGR206", "w")
NOTE = Finding("note", "b (Abs)", "it is open", "Close it.", "LGR209")


def test_findings_are_counted_and_summed_up():
    result = CheckResult((ERROR, WARNING, WARNING, NOTE), Path("m.onnx"), "venus")
    assert result.counts() == {"error": 1, "warning": 2, "note": 1}
    assert result.summary() == "m.onnx for venus: 1 error, 2 warnings, 1 note."
    assert (result.errors, result.warnings, result.notes) == ((ERROR,), (WARNING, WARNING), (NOTE,))
    assert not result.ok
    assert result.rows()[1] == ("warning", "LGR206", "w", "it is dead", "Remove it.")


def test_no_error_is_ok():
    assert CheckResult((WARNING, NOTE)).ok
    assert CheckResult((NOTE,)).summary() == "the model: 0 errors, 0 warnings, 1 note."
    assert CheckResult(()).summary() == "the model: nothing found."


def test_the_worst_of_several():
    assert worst([CheckResult((NOTE,)), CheckResult((WARNING, NOTE))]) == "warning"
    assert worst([CheckResult(()), CheckResult((NOTE, ERROR))]) == "error"
    assert worst([CheckResult(())]) is None


def test_json_has_the_documented_keys_and_no_others():
    read = json.loads(json_report([CheckResult((ERROR,), Path("a/m.onnx"), "arcs"), CheckResult((NOTE,))]))
    version = read.pop("linger")
    assert isinstance(version, str)
    assert read == {
        "format": "linger-check",
        "version": 1,
        "ok": False,
        "files": [
            {
                "path": "a/m.onnx",
                "target": "arcs",
                "ok": False,
                "counts": {"error": 1, "warning": 0, "note": 0},
                "findings": [
                    {
                        "rule": "LGR402",
                        "name": "odd-scale",
                        "severity": "error",
                        "node": "a (Relu)",
                        "tensor": "t",
                        "reason": "it is wrong",
                        "remedy": "Repair it.",
                    }
                ],
            },
            {
                "path": None,
                "target": None,
                "ok": True,
                "counts": {"error": 0, "warning": 0, "note": 1},
                "findings": [
                    {
                        "rule": "LGR209",
                        "name": "empty-name",
                        "severity": "note",
                        "node": "b (Abs)",
                        "tensor": "",
                        "reason": "it is open",
                        "remedy": "Close it.",
                    }
                ],
            },
        ],
    }


def test_one_result_is_a_report_of_one():
    result = CheckResult((ERROR,), Path("m.onnx"))
    assert result.to_json() == json_report([result])


@pytest.mark.parametrize(
    ("given", "expected"),
    [("m.onnx", "m.onnx"), ("a/b/m.onnx", "a/b/m.onnx"), ("./m.onnx", "m.onnx"), ("../m.onnx", "m.onnx"),
     ("a/../../m.onnx", "m.onnx"), ("/somewhere/else/m.onnx", "m.onnx")],
)  # fmt: skip
def test_paths_tell_nothing_of_the_machine(given, expected):
    assert relative_location(Path(given)) == expected


def test_absolute_paths_inside_this_folder_become_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative_location(tmp_path / "sub" / "m.onnx") == "sub/m.onnx"
