"""tools/exported_files.py: the same bytes from every process, and what it says of sets that are not equal."""

import importlib.util
import os
import re
import subprocess
import sys

import onnx
import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.needs_torch
TOOL = REPOSITORY / "tools" / "exported_files.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("exported_files", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments, **environment):
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The set, written by a process of its own."""
    path = tmp_path_factory.mktemp("exported") / "a"
    done = run("write", path, PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.slow
def test_two_processes_write_equal_bytes(folder, tmp_path):
    other = tmp_path / "b"
    assert run("write", other, PYTHONHASHSEED="2", ATEN_CPU_CAPABILITY="default").returncode == 0
    done = run("compare", folder, other)
    lines = done.stdout.splitlines()
    assert lines[-1] == "20 of 20 files are equal, byte for byte"
    assert [line.partition(": ")[2] for line in lines[:-1]] == ["equal"] * 20
    assert done.returncode == 0


def changed(change):
    """A function that rewrites a file with one thing changed in its model."""

    def rewrite(path):
        model = onnx.load(path)
        change(model)
        onnx.save(model, path)

    return rewrite


def _raise_first_bits(model):
    (node,) = [node for node in model.graph.node if node.op_type == "Conv2dInt"]
    (bits,) = [attribute for attribute in node.attribute if attribute.name == "o_bits"]
    bits.i = 16


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        pytest.param(
            changed(lambda model: setattr(model, "producer_version", "later")),
            r"bytes; the only difference: model\.producer_version: '.*' against 'later'$",
            id="version",
        ),
        pytest.param(
            changed(_raise_first_bits),
            r"model\.graph\.node\[1 '0\.Conv2dInt'\]\.attribute\[\d+ 'o_bits'\]\.i: 8 against 16$",
            id="attribute",
        ),
        pytest.param(
            changed(lambda model: model.graph.node.pop()), r"model\.graph\.node: 6 entries against 5$", id="node"
        ),
        pytest.param(
            lambda path: path.write_bytes(path.read_bytes() + b"\x08\x08"),
            r"in another way from byte \d+ on$",
            id="order",
        ),
        pytest.param(lambda path: path.write_bytes(b"no model"), r"not both are ONNX files", id="damaged"),
        pytest.param(lambda path: path.unlink(), r"^missing: .*b.01_conv_bn_relu\.onnx$", id="missing"),
    ],
)
def test_a_file_that_differs_is_named_with_the_place(tool, folder, tmp_path, capsys, rewrite, said):
    other = tmp_path / "b"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    rewrite(other / "01_conv_bn_relu.onnx")
    assert tool.main(["compare", str(folder), str(other)]) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert last == "19 of 20 files are equal, byte for byte"
    name, _, verdict = first.partition(": ")
    assert name == "01_conv_bn_relu"
    assert re.search(said, verdict), verdict


def test_a_file_that_only_one_folder_has_is_a_difference(tool, folder, tmp_path, capsys):
    (tmp_path / "21_more.onnx").write_bytes(b"")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert tool.main(["compare", str(folder), str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "20 of 21 files are equal, byte for byte"


def test_the_set_has_every_form_and_every_op_it_is_there_for(tool, folder):
    models = {name: onnx.load(folder / f"{name}.onnx") for name in tool.WRITERS}
    assert len(models) == 20
    domains = {name: {o.domain.partition(".")[0] for o in model.opset_import} for name, model in models.items()}
    assert domains["03_linear_standard"] == domains["16_qdq"] == {""}
    assert domains["18_converted"] == {"", "linger"}
    assert domains["20_float_with_custom_operator"] == {"", "custom"}
    assert not models["02_depthwise_bare"].functions
    assert models["01_conv_bn_relu"].functions
    ops = {node.op_type for model in models.values() for node in model.graph.node}
    assert ops >= {
        *("Conv2dInt", "ConvTranspose2dInt", "LinearInt", "LSTMInt", "Gather", "BmmInt", "SoftmaxInt", "LayerNormInt"),
        *(
            "GroupNormInt",
            "iqAdd",
            "iqSub",
            "iqCat",
            "iqMul",
            "iqDiv",
            "iqMean",
            "iqWhere",
            "iqSum",
            "iqPad",
            "iqInterpolate",
        ),
        *("AvgPool2dInt", "MaxPool", "iqAdaptiveAvgPool", "Requant", "QuantizeLinear", "QConv2d", "soft"),
    }
