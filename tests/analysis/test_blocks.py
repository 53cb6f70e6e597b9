"""The protocol of readable numbers is met by every source."""

import numpy as np
import torch
from safetensors.torch import save_file

from tests.support.analysis import TensorValues, is_floating, stored_tensors


def test_floats_are_told_from_integers_and_bools():
    assert [is_floating(np.zeros(1, kind)) for kind in (np.float32, np.float64, np.float16)] == [True] * 3
    assert [is_floating(np.zeros(1, kind)) for kind in (np.int8, np.uint64, np.bool_)] == [False] * 3


def test_a_tensor_and_its_file_read_alike(tmp_path):
    tensor = torch.arange(100, dtype=torch.float32).reshape(4, 25) - 50
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    (stored,) = stored_tensors(tmp_path / "w.safetensors")
    for values in (TensorValues(tensor), stored.open()):
        assert (values.size, values.implicit_zeros) == (100, 0)
        assert values.read(10, 13).tolist() == [-40.0, -39.0, -38.0]
        values.release(0, 100)
        assert values.read(99, 100).tolist() == [49.0]
