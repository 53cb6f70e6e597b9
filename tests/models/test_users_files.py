"""Twelve networks, each in a file as its user wrote it, trained and with data in the user's own form (tests/models/nets).

The command and the calls of README.md are tried as they stand there, at the first try: nothing is wrapped, named or left out.
"""

import importlib.util
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import linger
from tests.support.c_compiler import require_compiler
from tests.support.command import run

pytestmark = pytest.mark.needs_torch

NETS = Path(__file__).parent / "nets"
WITHOUT_C = {
    "autoencoder": "Elu",
    "convnext": "Sqrt",
    "decoder": "Gather",
    "siamese": "ReduceSum",
    "upscaler": "Resize",
}
"""What is computed in float, so that only the integer part is written as C, and the op that is named."""

NAMES = sorted(file.stem for file in NETS.glob("*.py"))


def networks(*cheap):
    """All of them; those that are not cheap are slow."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name in cheap else pytest.mark.slow) for name in NAMES]
    )


def network(name):
    """The user's float network and data."""
    spec = importlib.util.spec_from_file_location(f"users_{name}", NETS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make(), module.data()


def passes(data):
    """(args, kwargs) of each forward pass, as the loop of a user's own program gives them."""
    if isinstance(data, dict):
        return [((), data)]
    if isinstance(data, (np.ndarray, torch.Tensor)):
        return [((torch.as_tensor(data),), {})]
    if isinstance(data, tuple):
        return [(tuple(part for part in data if part.is_floating_point() or part is data[0]), {})]
    if isinstance(data, list):
        return [(batch if isinstance(batch, tuple) else (batch,), {}) for batch in data]
    return [((batch[0],), {}) for batch in data]


def test_there_are_twelve():
    assert len(NAMES) == 12


@networks("autoencoder")
def test_the_command(name, tmp_path):
    require_compiler()
    shutil.copy(NETS / f"{name}.py", tmp_path)
    command = f'quantize {name}.py:make --data {name}.py:data --c as_c --budget "2 trials" --json'
    done = run(*shlex.split(command), cwd=tmp_path)
    content = json.loads(done.stdout)
    folder = tmp_path / f"{name}-quantized"
    assert content["differing"] == 0
    assert {"net.onnx", "report.html", "certificate.json"} <= {file.name for file in folder.iterdir()}
    if name in WITHOUT_C:
        assert done.returncode == 1
        assert WITHOUT_C[name] in content["c_missing"]
        assert not (tmp_path / "as_c").exists()
    else:
        # two trials of few samples may gain by chance what other samples do not have; then that is said
        assert done.returncode == (3 if "tuning gains" in content["verdict"] else 0), done.stderr
        assert content["c"]["differing"] == 0
    again = run("quantize", "--config", folder / "net.yaml", "--out", "again", "--c", "cut_c", "--cut", cwd=tmp_path)
    assert again.returncode == (done.returncode if name not in WITHOUT_C else 0), again.stderr
    assert (tmp_path / "again" / "net.onnx").read_bytes() == (folder / "net.onnx").read_bytes()
    assert list((tmp_path / "cut_c").glob("*.c"))


@networks("siamese")
def test_the_call(name, tmp_path):
    require_compiler()
    net, data = network(name)
    result = linger.quantize(net, data, budget="2 trials")
    assert result.ok
    result.export(tmp_path / "net.onnx")
    result.report(tmp_path / "net.html")
    proof = result.verify()
    assert proof.integers > 0
    assert (proof.differing, proof.ok) == (0, True)
    if name in WITHOUT_C:
        with pytest.raises(linger.UnsupportedError, match=WITHOUT_C[name]):
            result.c(tmp_path / "as_c")
    assert result.c(tmp_path / "as_c", cut=name in WITHOUT_C).differing == 0


@networks("autoencoder", "enhancer", "keywords", "multitask", "siamese")
def test_step_by_step(name, tmp_path):
    """The same data go to every function; the model's own calls are those of any torch model."""
    net, data = network(name)
    model = linger.init(linger.trace_layers(net, data)).eval()
    with linger.calibration():
        for args, kwargs in passes(data):
            model(*args, **kwargs)
    linger.onnx.export(model, data, tmp_path / "net.onnx")
    proof = linger.verify(model, tmp_path / "net.onnx", data)
    assert proof.integers > 0
    assert (proof.differing, proof.ok) == (0, True)
