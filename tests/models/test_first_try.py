"""Twelve networks as people write them, with data as they have them: quantized, proven and written as C at the first try."""

import json
import shutil
from pathlib import Path

import pytest

import linger
from tests.support import users_networks
from tests.support.command import run

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]

NAMES = [kind.__name__.lower() for kind in users_networks.NETS]
WITHOUT_C = {"words": "Gather", "autoencoder": "Elu", "next": "Sqrt"}
"""What cannot be written as C whole, and the op that is named."""
REFUSED = {"voice": "among the arguments is float"}
"""A keyword that is no tensor."""


def network(name):
    return getattr(users_networks, f"make_{name}")(), getattr(users_networks, f"data_{name}")()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_in_python(name, tmp_path):
    net, data = network(name)
    result = linger.quantize(net, data, budget="4 trials")
    result.export(tmp_path / "net.onnx")
    proof = result.verify()
    assert (proof.differing, proof.ok) == (0, True)
    assert proof.integers > 0
    assert result.verdict.word == "Needs attention"  # fewer than 50 samples are judged
    if name in WITHOUT_C:
        with pytest.raises(linger.UnsupportedError, match=WITHOUT_C[name]):
            result.c(tmp_path / "as_c")
        assert not (tmp_path / "as_c").exists()
    assert result.c(tmp_path / "as_c", cut=name in WITHOUT_C).differing == 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_in_a_sentence(name):
    net, data = network(name)
    with pytest.raises(linger.UsageError, match=REFUSED[name]):
        linger.quantize(net, data, budget="4 trials")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_by_command(name, tmp_path):
    shutil.copy(Path(users_networks.__file__), tmp_path / "nets.py")
    arguments = [f"nets.py:make_{name}", "--data", f"nets.py:data_{name}", "--budget", "4 trials", "--json"]
    done = run("quantize", *arguments, "--out", "out", "--c", "as_c", cwd=tmp_path)
    content = json.loads(done.stdout)
    assert content["differing"] == 0
    assert (tmp_path / "out" / "net.onnx").exists()
    assert (tmp_path / "out" / "report.html").exists()
    if name in WITHOUT_C:
        assert done.returncode == 1
        assert WITHOUT_C[name] in content["c_missing"]
        again = run("c", "out/net.onnx", "as_c", "--cut", "--prove", cwd=tmp_path)
        assert again.returncode == 0, again.stderr
    else:
        assert done.returncode == 0
        assert content["c"]["differing"] == 0
