"""What a failing export leaves on the terminal, as the operating system sees it."""

import os

import pytest
import torch
from torch import nn

import linger


class Airy(nn.Module):
    """A function that ONNX does not have."""

    def forward(self, x):
        return torch.special.airy_ai(x)


def test_failing_export_prints_nothing(tmp_path, capfd):
    os.write(1, b"before\n")
    with pytest.raises(linger.LingerError, match="airy_ai"):
        linger.onnx.export(Airy(), (torch.zeros(2),), tmp_path / "net.onnx")
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "before\nafter\n"


class Talking(nn.Module):
    """Writes to standard output while it is traced, and fails."""

    def forward(self, x):
        if torch.jit.is_tracing():
            os.write(1, b"somebody's\n")
            os.write(1, b"Torch IR graph at exception: graph(%0)\n")
            raise ZeroDivisionError
        return x * 2


def test_output_of_others_comes_out_in_the_end(tmp_path, capfd):
    with pytest.raises(ZeroDivisionError):
        linger.onnx.export(Talking(), (torch.zeros(2),), tmp_path / "net.onnx")
    assert capfd.readouterr().out == "somebody's\n"


def test_closed_standard_output_is_no_obstacle(tmp_path, capfd):
    del capfd  # restores the descriptor
    kept = os.dup(1)
    os.close(1)
    try:
        linger.onnx.export(nn.Linear(2, 2), (torch.zeros(1, 2),), tmp_path / "net.onnx")
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert (tmp_path / "net.onnx").exists()
