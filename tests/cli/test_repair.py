"""linger repair."""

import json

import onnx
import onnx_ir as ir
import pytest

from tests.support.command import run
from tests.support.dialect_text import quantising


@pytest.fixture
def wrong(folder):
    onnx.save(ir.to_proto(quantising("q = Q16(x) d = DQ4(q) y = Exp(q)")), folder / "wrong.onnx")
    onnx.save(ir.to_proto(quantising("q = Q32(x) a = ADD16(q, q) y = Exp(a)")), folder / "hopeless.onnx")
    return folder


def test_changes_are_listed_and_the_file_is_written(wrong):
    done = run("repair", "wrong.onnx", "--check", cwd=wrong)
    assert done.returncode == 0, done.stderr
    assert "insert_dequant" in done.stdout
    assert "written to wrong_fix.onnx. 0 of" in done.stdout
    assert (wrong / "wrong_fix.onnx").exists()


def test_as_json(wrong):
    done = run("repair", "wrong.onnx", "--json", cwd=wrong)
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["path"] == "wrong_fix.onnx"
    assert {c["rule"] for c in found["changes"]} >= {"remove_dequant", "insert_dequant"}


def test_what_is_left_is_listed_and_the_exit_code_says_so(wrong):
    done = run("repair", "hopeless.onnx", cwd=wrong)
    assert done.returncode == 1
    assert "scale_x is 16, and 'q' has the scale 32" in done.stdout
    assert "not everything could be repaired" in done.stderr
    assert "written to hopeless_fix.onnx. 2 left to repair by hand" in done.stdout
    assert (wrong / "hopeless_fix.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "no such file"),
        (["broken.onnx"], 1, "not a complete ONNX model"),
        (["m.onnx", "--rule", "x"], 2, "no such rule"),
    ],
)
def test_wrong_calls(fails, arguments, code, message):
    fails("repair", *arguments, code=code, message=message)


def test_the_inherited_name_does_the_same_and_is_not_listed(wrong):
    done = run("fix", "wrong.onnx", cwd=wrong)
    assert done.returncode == 0, done.stderr
    assert (wrong / "wrong_fix.onnx").exists()
    assert "repair" in (listed := run("--help", cwd=wrong).stdout)
    assert " fix " not in listed
