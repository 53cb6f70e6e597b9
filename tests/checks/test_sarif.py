"""SARIF 2.1.0: what the standard demands of the parts that are written, and what makes alerts stable."""

import json
import re
from pathlib import Path

import pytest

import linger
from linger import CheckResult
from linger.checks.check import RULES, sarif_report
from linger.graph.core.nodes import Finding
from tests.support.check_cases import CHIPS, GENERAL

TEXT = {"required": {"text"}, "optional": {"markdown", "id", "arguments"}}
OBJECTS = {
    "log": {"required": {"version", "runs"}, "optional": {"$schema", "inlineExternalProperties", "properties"}},
    "run": {"required": {"tool"}, "optional": {"invocations", "artifacts", "results", "columnKind", "properties"}},
    "tool": {"required": {"driver"}, "optional": {"extensions"}},
    "driver": {"required": {"name"}, "optional": {"version", "semanticVersion", "rules", "informationUri", "organization"}},
    "rule": {"required": {"id"}, "optional": {"name", "shortDescription", "fullDescription", "help", "helpUri",
                                              "defaultConfiguration", "properties"}},
    "configuration": {"required": set(), "optional": {"level", "enabled", "rank"}},
    "invocation": {"required": {"executionSuccessful"}, "optional": {"exitCode", "commandLine"}},
    "artifact": {"required": set(), "optional": {"location", "mimeType"}},
    "artifactLocation": {"required": set(), "optional": {"uri", "uriBaseId", "index"}},
    "result": {"required": {"message"}, "optional": {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints",
                                                     "fingerprints", "kind"}},
    "location": {"required": set(), "optional": {"physicalLocation", "logicalLocations", "id", "message"}},
    "physicalLocation": {"required": set(), "optional": {"artifactLocation", "region"}},
    "logicalLocation": {"required": set(), "optional": {"name", "fullyQualifiedName", "kind", "index", "parentIndex"}},
    "text": TEXT,
}  # fmt: skip
"""The properties of the objects that occur here, from section 3 of the standard."""

RELATIVE_REFERENCE = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-F]{2})+")
"""RFC 3986: a path without a scheme."""


def require(kind, value):
    """The object, after its properties were compared with the standard's."""
    allowed = OBJECTS[kind]
    assert isinstance(value, dict), kind
    assert allowed["required"] <= value.keys() <= allowed["required"] | allowed["optional"], (kind, value.keys())
    return value


def require_text(value):
    assert isinstance(require("text", value)["text"], str)
    assert value["text"]


def require_location(location):
    require("location", location)
    if "physicalLocation" in location:
        place = require("physicalLocation", location["physicalLocation"])
        uri = require("artifactLocation", place["artifactLocation"])["uri"]
        assert RELATIVE_REFERENCE.fullmatch(uri), uri
        assert not uri.startswith("/")
    for place in location.get("logicalLocations", ()):
        assert all(isinstance(text, str) and text for text in require("logicalLocation", place).values())


def require_valid(text):
    """What the schema of SARIF 2.1.0 demands of a log, as far as it concerns what linger writes."""
    log = require("log", json.loads(text))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = require("driver", require("tool", require("run", run)["tool"])["driver"])
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", driver["semanticVersion"])
    for rule in driver["rules"]:
        require("rule", rule)
        for key in ("shortDescription", "fullDescription", "help"):
            require_text(rule[key])
        assert require("configuration", rule["defaultConfiguration"])["level"] in ("error", "warning", "note", "none")
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for invocation in run["invocations"]:
        assert require("invocation", invocation)["executionSuccessful"] is True
    for artifact in run["artifacts"]:
        require("artifactLocation", require("artifact", artifact)["location"])
    assert len({json.dumps(a) for a in run["artifacts"]}) == len(run["artifacts"])  # the schema: uniqueItems
    for result in run["results"]:
        require("result", result)
        require_text(result["message"])
        assert result["level"] in ("error", "warning", "note")
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for location in result["locations"]:
            require_location(location)
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())
    return run


FINDINGS = (
    Finding("error", "if_1/then_branch/conv (Conv)", "wrong", "Repair it.", "LGR402", "t"),
    Finding("warning", "", "dead", "Remove it.", "LGR206", "w"),
    Finding("note", "", "open", "Close it.", "LGR112"),
)


def test_the_log_is_valid_and_names_rule_level_and_place():
    run = require_valid(CheckResult(FINDINGS, Path("models/a b.onnx"), "venus").to_sarif())
    first, second, third = run["results"]
    assert (first["ruleId"], first["level"]) == ("LGR402", "error")
    assert first["message"]["text"] == "if_1/then_branch/conv (Conv): wrong. Repair it."
    assert first["locations"] == [
        {
            "physicalLocation": {"artifactLocation": {"uri": "models/a%20b.onnx"}},
            "logicalLocations": [
                {"name": "conv", "fullyQualifiedName": "if_1/then_branch/conv", "kind": "member"},
                {"name": "t", "fullyQualifiedName": "t", "kind": "variable"},
            ],
        }
    ]
    assert [place["fullyQualifiedName"] for place in second["locations"][0]["logicalLocations"]] == ["w"]
    assert "logicalLocations" not in third["locations"][0]
    assert run["artifacts"] == [{"location": {"uri": "models/a%20b.onnx"}}]


def test_every_rule_is_described():
    run = require_valid(CheckResult(()).to_sarif())
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    assert run["results"] == []


@pytest.mark.parametrize(
    ("name", "uri"),
    [("ünïcode.onnx", "%C3%BCn%C3%AFcode.onnx"), ("c:model.onnx", "c%3Amodel.onnx"), ("100%.onnx", "100%25.onnx"),
     ("a#b?.onnx", "a%23b%3F.onnx"), ("/home/someone/m.onnx", "m.onnx"), ("../up/m.onnx", "m.onnx")],
)  # fmt: skip
def test_uris_are_relative_and_encoded(name, uri):
    run = require_valid(CheckResult(FINDINGS, Path(name)).to_sarif())
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_fingerprints_stay_when_numbers_change_and_differ_between_findings():
    def prints(*findings):
        run = json.loads(CheckResult(findings).to_sarif())["runs"][0]
        return [result["partialFingerprints"]["lingerFinding/v1"] for result in run["results"]]

    before, after = FINDINGS[0], Finding("error", FINDINGS[0].node, "wrong by 3", "Repair it.", "LGR402", "t")
    assert prints(before) == prints(after)
    assert len(set(prints(*FINDINGS, before))) == 4  # the same place twice is two alerts
    # sha256 of rule, node, tensor and how many equal ones came before, with zero bytes between
    assert prints(*FINDINGS)[0] == "dd8a4fc01089f6beaa4afa3b9966931ea867506fd2df1323d72a7010601cb78c"


def test_several_files_are_one_run():
    results = [CheckResult(FINDINGS[:1], Path("a.onnx")), CheckResult(FINDINGS[1:], Path("b.onnx"))]
    run = require_valid(sarif_report(results))
    require_valid(sarif_report(results * 2))  # the same file twice
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]]
    assert uris == ["a.onnx", "b.onnx", "b.onnx"]


def test_a_model_in_memory_has_no_file():
    run = require_valid(CheckResult(FINDINGS).to_sarif())
    assert run["artifacts"] == []
    assert "physicalLocation" not in run["results"][0]["locations"][0]


def test_the_text_is_the_same_every_time():
    first, second = (linger.check(GENERAL[5].bad).to_sarif() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("case", [GENERAL[0], GENERAL[19], CHIPS[5]], ids=lambda case: case.rule)
def test_logs_of_real_findings_are_valid(case):
    run = require_valid(linger.check(case.bad, case.target).to_sarif())
    assert case.rule in {result["ruleId"] for result in run["results"]}
