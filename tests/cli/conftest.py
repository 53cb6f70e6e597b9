"""A folder with a model and an input, and Ctrl-C as in a terminal."""

import signal

import numpy as np
import onnx
import pytest

from tests.runtime.test_session import TEXT


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Ctrl-C comes, also where the tests run in the background; a command that was interrupted does not give it back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.array([[1.0, -1.0, 9.0]], np.float32))
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08garbage")
    return tmp_path


@pytest.fixture
def fails(folder):
    """Runs a command that must fail in one line, without a traceback, changing nothing."""
    from tests.support.command import run

    def check(*arguments, code, message):
        before = sorted(p.name for p in folder.iterdir())
        done = run(*arguments, cwd=folder)
        assert done.returncode == code
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(p.name for p in folder.iterdir()) == before

    return check
