"""Models and inputs named on the command line."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from linger.cli.arguments.model import load_inputs, load_model, random_input
from linger.errors import UsageError

pytestmark = pytest.mark.needs_torch

CODE = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2))
model = net()
number = 5
def wants_more(size): ...
def leaves(): raise SystemExit(3)
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "my_net_file.py").write_text(CODE)
    return str(tmp_path / "my_net_file.py")


def test_a_file_with_a_callable_or_a_model(code):
    for name in ("net", "model"):
        assert isinstance(load_model(f"{code}:{name}"), nn.Sequential)
    assert not load_model(f"{code}:net").training


def test_an_installed_module():
    assert isinstance(load_model("torch.nn:Identity"), nn.Identity)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_with_weights(code, tmp_path, suffix):
    state = {"0.weight": torch.full((2, 3), 7.0), "0.bias": torch.ones(2)}
    path = tmp_path / f"w{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save({"state_dict": state}, path)
    assert load_model(f"{code}:net", path)[0].weight[0, 0].item() == 7.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "this names no model"),
        ("absent_package_xyz:net", "absent_package_xyz: there is no such module here"),
        ("nowhere.py:net", "no such file"),
        ("CODE:absent", "there is no 'absent' in it. It has net"),
        ("CODE:number", "is a int, not a torch module"),
        ("CODE:wants_more", r"it needs arguments \(size\).*a function that returns wants_more\(…\)"),
        ("CODE:leaves", r"my_net_file\.py, line 9, in leaves, ends the program \(SystemExit: 3\)"),
    ],
)
def test_what_cannot_be_meant(code, name, message):
    with pytest.raises(UsageError, match=message):
        load_model(name.replace("CODE", code))


def test_a_file_that_ends_the_program(tmp_path):
    (tmp_path / "leaving_net_file.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(UsageError, match=r"leaving_net_file\.py, line 1, ends the program \(SystemExit: 3\)"):
        load_model(f"{tmp_path / 'leaving_net_file.py'}:net")


WRONG_CODE = {
    "missing-package": (
        "import torch\nimport absent_package_xyz.layers",
        r"net_0\.py, line 2, imports 'absent_package_xyz', which is not installed. Install it \(pip install absent_package_xyz\)",
    ),
    "missing-in-the-call": (
        "def make():\n    import cv2_absent as cv\n",
        r"net_1\.py, line 2, in make, imports 'cv2_absent', which is not installed",
    ),
    "missing-in-a-file-beside": ("import beside_net\n", r"beside_net\.py, line 3, imports 'absent_package_xyz'"),
    "no-python": ("def make(:\n    pass", r"net_3\.py, line 1: this is no valid Python \("),
    "unknown-name": ("def make():\n    return nett()\n", r"net_4\.py, line 2, in make, fails \(NameError: name 'nett'"),
    "unknown-on-import": ("\n\nmodel = nett()\n", r"net_5\.py, line 3, fails \(NameError: name 'nett'"),
    "no-such-name": (
        "from torch.nn import Konv2d\n",
        r"net_6\.py, line 1, fails \(ImportError: cannot import name 'Konv2d'",
    ),
    "wrong-layer": (
        "import torch\ndef make():\n    return torch.nn.Linear(3, 2, 1, 1, 1, 1)\n",
        r"net_7\.py, line 3, in make, fails \(TypeError: .*mend it there",
    ),
}


@pytest.mark.parametrize("number", range(len(WRONG_CODE)), ids=list(WRONG_CODE))
def test_an_error_in_the_users_code_is_told_with_its_place(tmp_path, monkeypatch, number):
    source, message = list(WRONG_CODE.values())[number]
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "beside_net.py").write_text("\n\nimport absent_package_xyz\n")
    (tmp_path / f"net_{number}.py").write_text(source)
    with pytest.raises(UsageError, match=message) as told:
        load_model(f"{tmp_path / f'net_{number}.py'}:make")
    assert "Name a callable that needs none" not in str(told.value)
    assert "\n" not in str(told.value)


def test_weights_that_do_not_fit(code, tmp_path):
    torch.save({"other.weight": torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"does not fit the model\..*Missing key"):
        load_model(f"{code}:net", tmp_path / "w.pt")


def test_inputs(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3)), lengths=np.array([1, 2]))
    x, lengths = load_inputs(tmp_path / "x.npz")
    assert (x.dtype, lengths.dtype) == (torch.float32, torch.int64)
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    assert load_inputs(tmp_path / "x.npy")[0].shape == (2, 3)
    assert random_input("1x3x4")[0].shape == (1, 3, 4)
    assert torch.equal(random_input("2,2")[0], random_input("2×2")[0])


def test_wrong_inputs(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04nothing")
    (tmp_path / "y.npy").write_bytes(b"nothing")
    np.save(tmp_path / "code.npy", np.array([{"a": 1}], object), allow_pickle=True)
    for name in ("x.npz", "y.npy", "code.npy"):
        with pytest.raises(UsageError, match="not a readable"):
            load_inputs(tmp_path / name)
    with pytest.raises(UsageError, match="no such file"):
        load_inputs(tmp_path / "absent.npz")
    with pytest.raises(UsageError, match="1x3x224x224"):
        random_input("1xyz")


def test_letters_are_no_input(tmp_path):
    np.savez(tmp_path / "letters.npz", x=np.array(["a", "b"]))
    with pytest.raises(UsageError, match=r"letters\.npz: a model takes numbers, and this holds <U1"):
        load_inputs(tmp_path / "letters.npz")


def test_sizes_beyond_every_integer():
    with pytest.raises(UsageError, match="sizes look like 1x3x224x224"):
        random_input("99999999999999999999x3")


def test_a_file_without_arrays_is_told(tmp_path):
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(UsageError, match="there is no array in it"):
        load_inputs(tmp_path / "empty.npz")
