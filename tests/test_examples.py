"""Every example runs from an empty folder, warns of nothing, and prints what is stored of it (tools/expected_output.py)."""

import ast
import re
import subprocess
import sys
import textwrap

import pytest
from real_models import packages

from tests.conftest import REPOSITORY
from tests.support.c_targets import require_target
from tests.support.real_models import require
from tests.support.tools import load_tool

EXAMPLES = sorted(path.stem for path in (REPOSITORY / "examples").glob("[0-9][0-9]_*.py"))
SLOW = ("01_digits", "11_super_resolution", "14_real_models", "18_voice_activity")
TARGETS = {"17_microcontroller": "cortex-m4", "18_voice_activity": "cortex-m4"}
"""Examples that run on an emulated core."""
PACKAGES = {"18_voice_activity": ("silero_vad", "pyannote.audio"), "20_vowels": ("aeon",)}
IMAGES = {
    "11_super_resolution": "enlarged.png",
    "18_voice_activity": "voice-output/timeline.png",
    "20_vowels": "vowels-output/vowels.png",
}
LINES = {
    "13_ten_worst": [
        r"^│ _model\.encoder\.3\.reparam_conv\.weight +│ weight .* stretch the range to 54\.9",
    ],
    "17_microcontroller": [
        r"^│ flash +│ 3\d,\d{3} bytes",
        r"^│ of them weights +│ 29,064 bytes",
        r"^│ RAM +│ 3,072 bytes",
        r"^│ stack +│ \d{3} bytes",
        r"^│ instructions for one picture +│ [\d,]{7,9} ",
    ],
    "18_voice_activity": [r"^│ the same decision +│ (9\d|100)\.\d %"],
    "19_many_processes": [r"^│ 2 .*│ 2[0-5] of 25 +│$"],
}
"""What is masked in the stored output, and still has bounds."""

TOOL = load_tool("expected_output")


def marked(example):
    return pytest.param(example, marks=[pytest.mark.slow] if example in SLOW else [], id=f"{example}.py")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries, which Python does not show either
@pytest.mark.parametrize("example", [marked(example) for example in EXAMPLES])
def test_example_runs_and_prints_what_it_says(example, tmp_path):
    """In this process, where other warnings are errors."""
    require(*PACKAGES.get(example, ()))
    if example in TARGETS:
        require_target(TARGETS[example])
    printed = TOOL.run(REPOSITORY / "examples" / f"{example}.py", tmp_path)
    assert TOOL.masked(example, printed).splitlines() == TOOL.expected(example).splitlines(), printed
    assert [line for line in LINES.get(example, []) if not re.search(line, printed, re.MULTILINE)] == [], printed
    if example == "11_super_resolution":
        beats_bicubic(printed)
    if example == "12_tame_outliers":
        advice_saves_the_accuracy(printed)
    if example in IMAGES:
        assert (tmp_path / IMAGES[example]).read_bytes().startswith(b"\x89PNG")


def test_an_example_runs_as_a_script_without_the_tests(tmp_path):
    example = "06_flatten_and_simplify"
    command = [sys.executable, "-W", "error::UserWarning", REPOSITORY / "examples" / f"{example}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    assert done.stdout == TOOL.expected(example)


@pytest.mark.slow
def test_torchrun_starts_the_processes(tmp_path):
    example = "19_many_processes"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [REPOSITORY / "examples" / f"{example}.py", *TOOL.ARGUMENTS[example]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone = TOOL.expected(example).replace("yes │ # │ # of 25", "— │ # │ —")  # nothing to compare with
    rows = [line for line in alone.splitlines() if line.startswith("│ 2 │")]
    assert [line for line in TOOL.masked(example, done.stdout).splitlines() if line.startswith("│ 2 │")] == rows
    assert len(rows) == 2


def advice_saves_the_accuracy(text):
    """Within 0.6 points of float with the pasted lines; several points worse without them."""
    lost = re.search(r"lost: ([\d.]+) points without the advice, ([\d.]+) with it", text)
    without, with_it = (float(number) for number in lost.groups())
    assert with_it <= 0.6
    assert without > with_it + 2


def beats_bicubic(text):
    """On a photograph it has not seen, at both factors, by more than the last digit printed; integers lose less than that gains."""
    figures = re.findall(r"^│ \d× +│ ([\d.]+) +│ ([\d.]+) +│ ([\d.]+) +│ ([\d.]+)", text, re.MULTILINE)
    assert len(figures) == 2
    for small, bicubic, in_float, as_integers in (map(float, row) for row in figures):
        assert small < bicubic < in_float - 0.05
        assert bicubic < as_integers - 0.05


@pytest.mark.parametrize(
    ("example", "printed", "stored"),
    [
        pytest.param("02_linear", "x   7.25 \n", "x   7.25\n", id="compared as it is"),
        pytest.param("01_digits", "│ 9.8 │  0 of 12\n━━━━\n", "│ # │ 0 of 12\n─\n", id="decimals"),
        pytest.param("19_many_processes", "│ 0a1b2c3d │  yes │ 100.00\n", "│ # │ yes │ #\n", id="digests"),
        pytest.param("17_microcontroller", "33,432 bytes, 24 samples\n", "# bytes, 24 samples\n", id="with a unit"),
    ],
)
def test_what_depends_on_the_machine_is_masked(example, printed, stored):
    assert TOOL.masked(example, printed) == stored


def test_a_missing_package_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda package: package == "sklearn")
    packages.need("sklearn")
    with pytest.raises(SystemExit) as end:
        packages.need("sklearn", "matplotlib", "PIL", "aeon")
    assert end.value.code == (
        "This example needs matplotlib, PIL, aeon: pip install 'linger-nn[demo,report]' and pip install --no-deps aeon."
    )


def test_everything_listed_belongs_to_an_example():
    listed = (*LINES, *SLOW, *TARGETS, *PACKAGES, *IMAGES, *TOOL.ARGUMENTS, *TOOL.VARYING)
    assert [name for name in listed if name not in EXAMPLES] == []
    assert sorted(path.stem for path in TOOL.STORED.iterdir()) == EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_says_what_it_shows(example):
    text = (REPOSITORY / "examples" / f"{example}.py").read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    says = ast.get_docstring(ast.parse(text))
    assert f"python examples/{example}.py" in says
    assert re.search(r"\b(writes|saves|keeps|exports)\b", says, re.IGNORECASE), "it says which files it leaves"
    page = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    assert f"python examples/{example}.py" in page


@pytest.mark.parametrize("example", ["07_asinh", "08_deform_conv2d"])
def test_example_prints_what_its_docstring_shows(example):
    """By the rule for what depends on the machine; that it prints what is stored is shown above."""
    says = ast.get_docstring(ast.parse((REPOSITORY / "examples" / f"{example}.py").read_text(encoding="utf-8")))
    shown = textwrap.dedent(says.partition("prints:\n\n")[2])
    assert TOOL.masked(example, shown) == TOOL.expected(example)
