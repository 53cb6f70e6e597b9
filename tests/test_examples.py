"""Every example runs from an empty folder, warns of nothing, and prints what its docstring promises."""

import ast
import re
import runpy
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.support.c_targets import require_target

EXAMPLES = sorted(path.name for path in (REPOSITORY / "examples").glob("[0-9][0-9]_*.py"))
SLOW = ("01_digits.py", "11_super_resolution.py", "14_real_models.py", "18_voice_activity.py")
TARGETS = {"17_microcontroller.py": "cortex-m4", "18_voice_activity.py": "cortex-m4"}
"""Examples that run on an emulated core."""
ARGUMENTS = {
    "01_digits.py": ["--seeds", "1", "--epochs", "2", "--folder", "digits"],
    "15_transformer.py": ["--seeds", "1", "--epochs", "2", "--folder", "transformer"],
    "17_microcontroller.py": ["--epochs", "2", "--images", "24", "--budget", "2 trials"],
    "18_voice_activity.py": ["--seconds", "12"],
    "14_real_models.py": ["--quick", "--only", "enlarger", "pnet", "rnet"],  # tests/models runs the others
}
LINES = {
    "16_mend_and_prove.py": [
        r"broken.onnx: 5 errors, 0 warnings, 1 note.$",
        r"^11 changes, written to .*broken_fix.onnx. 0 of 16 integers differ",
        r"^scores \[\[0.0, 4.5\]\]",
        r"^the certificate holds: True$",
        r"^vectors for the board: Equal: 5 tensors",
    ],
    "17_microcontroller.py": [
        r"^on cortex-m4: [\d.]+ % of 24$",
        r"^flash: 3\d,\d{3} bytes, 28,728 of them weights; RAM: 2,048 bytes and \d{3} of stack$",
        r"^[\d,]{7,9} instructions for one picture$",
        r"emulated\): 2\d tensors, [\d,]+ numbers of 24 samples compared with the numpy reference, 0 differ\.$",
    ],
    "18_voice_activity.py": [
        r"^on cortex-m4: speech in \d+ of 375 chunks; (9\d|100)\.\d % of the decisions",
        r"numbers of 100 samples compared with the numpy reference, 0 differ\.$",
    ],
    "01_digits.py": [r"seed 0: 0 of \d+ integers differ"],
    "02_linear.py": [
        r"^float      Gemm .*torch \[-7.0, 12.0, -14.5\]  ONNX Runtime \[-7.0, 12.0, -14.5\]$",
        r"^quantised  Quant LinearInt Dequant ",
        r"^0 of 12 integers differ",
    ],
    "03_two_heads.py": [
        r"^float: 2 outputs on 1 input, all within tolerance$",
        r"^quantised: 2 outputs on 1 input, all within tolerance$",
        r"^one head alone: where \(1, 4\)$",
    ],
    "04_dynamic_shapes.py": [rf"^{kind} .* 3 of 3" for kind in ("list", "names", "mixed", "shapes", "quantised")],
    "05_conv_bn_activation.py": [
        r"^model      Conv2d BatchNorm2d ReLU$",
        r"^float      Conv Relu$",
        r"^quantised  Quant Conv2dInt Relu Dequant$",
        r" 0 of \d+ integers differ",
    ],
    "06_flatten_and_simplify.py": [
        r"^float      simplified   Conv Reshape$",
        r"^float      the same numbers$",
        r"^quantised  simplified   Quant Conv2dInt Reshape Dequant$",
        r"^quantised  the same numbers$",
    ],
    "09_trace_and_script.py": [
        r"^traced with 3  Conv Conv Conv +asked for 2: repeats 3   asked for 5: repeats 3$",
        r"^scripted       Loop\(Conv\) +asked for 2: repeats 2   asked for 5: repeats 5$",
    ],
    "10_read_the_protobuf.py": [
        r"^model  .*opsets: ai.onnx 12, thinker 1",
        r"^  inputs   picture: float\[batch, 1, 6, 6\]$",
        r"^tensor 0.weight: int8\[2, 1, 3, 3\], ",
        r"^node   thinker::Conv2dInt  0.Quant, 0.weight, 0.bias -> ",
        r"^  strides = \[1, 1\]$",
        r"^function thinker::LinearInt: ",
    ],
    "11_super_resolution.py": [r"^3x: bicubic ", r"^5x: bicubic "],
    "12_tame_outliers.py": [
        r"^second\.weight \(weight\): the 1 % beyond .* limit it to ±",
        r"^third \(output\): 1 of 32 channels reaches .* limit it to ±",
        r'^linger\.normalize_module\(model\.get_submodule\("second"\), normalize_weight_value=',
    ],
    "15_transformer.py": [
        r"^\d+ ops as integers, 0 in float; 100 % of the multiplications as integers$",
        r"^seed 0: 0 of \d+ integers differ",
    ],
    "13_ten_worst.py": [
        r"^efficientnet-lite0, weights and outputs: \d+ tensors$",
        r"^silero-vad, weights: \d+ tensors$",
        r"^│ _model\.encoder\.3\.reparam_conv\.weight +│ weight .* stretch the range to 54\.9",
        r'^linger\.normalize_module\(model\.get_submodule\("_model\.encoder\.3\.reparam_conv"\), ',
    ],
    "14_real_models.py": [
        r"^waifu2x upconv7: 0 of \d+ integers differ",
        r"^MTCNN pnet: 0 of \d+ integers differ",
        r"^MTCNN rnet: 0 of \d+ integers differ",
        r"^│ waifu2x upconv7 .* │ 0 of [\d,]+ ",
    ],
}


def marked(example):
    return pytest.param(example, marks=[pytest.mark.slow] if example in SLOW else [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries, which Python does not show either
@pytest.mark.parametrize("example", [marked(example) for example in EXAMPLES])
def test_example_runs_and_prints_what_it_says(example, tmp_path, monkeypatch, capsys):
    """In this process, where other warnings are errors: importing torch takes longer than most examples."""
    if example in TARGETS:
        require_target(TARGETS[example])
    path = str(REPOSITORY / "examples" / example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path, *ARGUMENTS.get(example, [])])
    code = None
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code
    printed = capsys.readouterr().out
    assert missing_lines(example, printed) == [], printed
    if example == "12_tame_outliers.py":
        advice_saves_the_accuracy(printed)
    if example == "13_ten_worst.py":
        assert len(re.findall(r"^│ \S", printed, re.MULTILINE)) == 2 * 10
    if example == "15_transformer.py":
        assert re.findall(r": (\w+) stays float", printed) == []
    if example == "11_super_resolution.py":
        beats_bicubic(printed)
        assert (tmp_path / "enlarged.png").read_bytes().startswith(b"\x89PNG")


def test_an_example_runs_as_a_script_without_the_tests(tmp_path):
    example = "06_flatten_and_simplify.py"
    command = [sys.executable, "-W", "error::UserWarning", REPOSITORY / "examples" / example]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    assert missing_lines(example, done.stdout) == [], done.stdout


def missing_lines(example, printed):
    return [line for line in LINES.get(example, []) if not re.search(line, printed, re.MULTILINE)]


def advice_saves_the_accuracy(text):
    """Within 0.6 points of float with the pasted lines; several points worse without them."""
    lost = re.search(r"lost: ([\d.]+) points without the advice, ([\d.]+) with it", text)
    without, with_it = (float(number) for number in lost.groups())
    assert with_it <= 0.6
    assert without > with_it + 2


def beats_bicubic(text):
    """On a photograph it has not seen, at both factors, by more than the last digit printed."""
    figures = re.findall(r"bicubic ([\d.]+), network ([\d.]+)", text)
    assert len(figures) == 2
    assert [pair for pair in figures if float(pair[1]) < float(pair[0]) + 0.05] == []


def test_every_expected_line_belongs_to_an_example():
    assert [name for name in (*LINES, *ARGUMENTS, *SLOW) if name not in EXAMPLES] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_says_what_it_shows(example):
    text = (REPOSITORY / "examples" / example).read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert len(ast.get_docstring(ast.parse(text)).splitlines()) > 2
