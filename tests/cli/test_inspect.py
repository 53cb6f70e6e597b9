"""linger inspect."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from linger.cli import load_commands
from linger.graph import save
from tests.graph.files.test_external_data import with_weights
from tests.support.command import run


@pytest.fixture
def shown(folder, monkeypatch):
    """What the command prints, in this process."""
    monkeypatch.chdir(folder)

    def show(*arguments):
        result = CliRunner().invoke(load_commands(), ["inspect", *arguments])
        assert result.exit_code == 0
        return result.stdout

    return show


def test_the_tree_is_printed(folder):
    done = run("inspect", "m.onnx", cwd=folder)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "opsets ai.onnx 11, thinker 1" in done.stdout
    assert "x  float[n,3]  dynamic: n" in done.stdout
    assert "thinker::Quant" in done.stdout
    assert "scale_x float = 16" in done.stdout


def test_json_is_the_same_for_programs(shown):
    read = json.loads(shown("m.onnx", "--json"))
    assert [n["op_type"] for n in read["graph"]["nodes"]] == ["Quant", "Relu", "Dequant"]
    assert read["opsets"] == {"": 11, "thinker": 1}
    short = json.loads(shown("m.onnx", "--json", "--nodes", "1"))
    assert len(short["graph"]["nodes"]) == 1
    assert short["graph"]["counts"]["nodes"] == 3


def test_limits(shown):
    assert "… 2 more" in shown("m.onnx", "--nodes", "1")
    counts = shown("m.onnx", "--depth", "0")
    assert "nodes (3) Relu ×1, thinker::Dequant ×1, thinker::Quant ×1" in counts
    assert "scale_x" not in counts


def test_many_nodes_are_cut_unless_asked_for_and_lines_are_not_broken(folder, shown):
    name = "a_very_long_name_" * 30
    body = "".join(f"t{i + 1} = Neg(t{i}) " for i in range(60)) + f"y = Abs(t60) {name} = Exp(y)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[n] t0) => (float[n] y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "long.onnx")
    assert "… 12 more" in shown("long.onnx")
    whole = shown("long.onnx", "--nodes", "99")
    assert "more" not in whole
    assert f"y → {name}" in whole


def test_weights_elsewhere_are_neither_read_nor_needed(folder, shown):
    save(with_weights(np.ones(5000, np.float32)), folder / "big.onnx", external_data=True)
    assert "big.onnx.data  20.0 kB" in shown("big.onnx")
    (folder / "big.onnx.data").unlink()
    without = shown("big.onnx")
    assert "big.onnx.data  missing" in without
    assert "w0  float[5000]  20.0 kB in big.onnx.data" in without


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "none.onnx: there is no such file"),
        (["broken.onnx"], 1, "not a complete ONNX model"),
        (["."], 2, "this is a folder"),
        (["m.onnx", "--nodes", "-1"], 2, "--nodes"),
    ],
    ids=["missing", "broken", "folder", "negative"],
)
def test_what_cannot_be_shown_is_one_line(fails, arguments, code, message):
    fails("inspect", *arguments, code=code, message=message)


def test_torch_is_not_imported():
    code = "import sys, linger.cli.inspect, linger.graph as g; [getattr(g, n) for n in g.__all__]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
