"""Trainers of others: a quantized model is an ordinary module there, and a schedule a callback. Each example is 20 lines."""

import ast
import os
import re
import subprocess
import sys

import pytest
from real_models.packages import is_installed

from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "examples" / "trainers"
PACKAGES = {"lightning_digits": "lightning", "accelerate_digits": "accelerate", "trainer_digits": "transformers"}
LONGEST = 20
ACCURACY = 95.0
"""Percent; eight epochs give 97 to 99."""

all_examples = pytest.mark.parametrize("example", PACKAGES)


def test_every_example_is_listed():
    assert {path.stem for path in FOLDER.glob("*_digits.py")} == set(PACKAGES)
    page = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in PACKAGES if f"python examples/trainers/{name}.py" not in page] == []


@all_examples
def test_example_is_at_most_20_lines_of_code(example):
    text = (FOLDER / f"{example}.py").read_text(encoding="utf-8")
    tree, lines = ast.parse(text), dict(enumerate(text.splitlines(), start=1))
    assert f"python examples/trainers/{example}.py" in ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            lines = {n: line for n, line in lines.items() if not node.lineno <= n <= node.end_lineno}
    assert len([line for line in lines.values() if line and not line.lstrip().startswith("#")]) <= LONGEST


@pytest.mark.slow
@all_examples
def test_example_trains_integers_and_proves_them(example, tmp_path):
    if not is_installed(PACKAGES[example]):
        pytest.skip(
            f"{PACKAGES[example]} is missing: make trainers, or pip install --no-deps -r requirements-trainers.txt"
        )
    one_thread = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, FOLDER / f"{example}.py"],
        cwd=tmp_path,
        env=os.environ | one_thread,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracies = re.search(r"^([\d.]+) % of 540 test images; the file in ONNX Runtime: ([\d.]+) %$", done.stdout, re.M)
    assert accuracies is not None, done.stdout
    in_torch, in_file = map(float, accuracies.groups())
    assert in_torch == in_file >= ACCURACY
    assert re.search(r"^0 of \d+ integers differ", done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / f"{example}.onnx").exists()
