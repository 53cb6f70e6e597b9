"""linger doctor."""

import json

import pytest

from linger.workflow import installation
from linger.workflow.installation import Package, SelfTest, Tool
from tests.cli.schemas.test_schemas import schema_of, strict
from tests.support.command import run


@pytest.fixture
def found(monkeypatch):
    """What the command is told; changed by a test."""
    told = {
        "packages": [Package("numpy", "2.0.0", "1.26.0", "", "ok")],
        "tools": [Tool("host", "gcc", "", is_ready=True)],
        "self_test": SelfTest(ok=True, integers=2560, differing=0, u8s8_saturates=True),
    }
    for name in told:
        monkeypatch.setattr(installation, name, lambda name=name: told[name])
    return told


def test_a_machine_on_which_all_is_well(found, tmp_path):
    done = run("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 of 2560 integers differ between numpy and ONNX Runtime." in done.stdout
    assert "products u8×s8 saturate: files of linger avoid them" in done.stdout


@pytest.mark.parametrize(
    ("package", "message"),
    [
        (Package("numpy", "1.0", "1.26.0", "", "too old", "pip install 'numpy>=1.26.0'"), "numpy 1.0 is too old (pip"),
        (Package("numpy", "", "1.26.0", "", "missing", "pip install 'numpy>=1.26.0'"), "numpy is missing (pip"),
        (Package("torch", "2.0", "2.8", "torch", "too old", "pip install 'torch>=2.8'"), "torch 2.0 is too old (pip"),
        (Package("onnx", "1.23", "1.23", "", "broken", "pip install", "no such file"), "onnx 1.23 is broken"),
    ],
    ids=["old", "missing", "old-extra", "broken"],
)
def test_what_is_wrong_is_one_line_and_exit_code_1(found, tmp_path, package, message):
    found["packages"].append(package)
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_optional_may_be_missing(found, tmp_path):
    found["packages"].append(Package("netron", "", "9.0", "view", "missing", "pip install 'linger-nn[view]'"))
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "pip install 'linger-nn[view]'" in done.stdout


def test_integers_that_differ_are_an_error(found, tmp_path):
    found["self_test"] = SelfTest(ok=False, integers=2560, differing=3)
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert "3 of 2560 integers differ" in done.stdout
    assert "the self-test fails" in done.stderr


def test_this_machine_as_json(tmp_path):
    import jsonschema

    done = run("doctor", "--json", cwd=tmp_path)
    content = json.loads(done.stdout)
    jsonschema.validate(content, strict(schema_of("doctor", tmp_path)))
    assert content["self_test"]["integers"] > 0
    assert content["self_test"]["differing"] == 0
