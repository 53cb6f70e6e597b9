"""Autocast is put aside where integers are computed, and taken up again."""

import pytest
import torch

from linger.quantization.precision import full_precision, put_autocast_aside, take_autocast_up


def test_without_autocast_nothing_happens():
    assert put_autocast_aside() == ()
    take_autocast_up(())
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_is_off_inside_and_on_afterwards():
    with torch.autocast("cpu", torch.bfloat16):
        with full_precision():
            assert not torch.is_autocast_enabled("cpu")
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_autocast_is_on_again_after_an_error():
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ZeroDivisionError), full_precision():
            raise ZeroDivisionError
        assert torch.is_autocast_enabled("cpu")
