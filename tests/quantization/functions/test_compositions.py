"""The table of functions that are more than one op: complete, and of functions that torch has."""

import torch
import torch.nn.functional as F

from tests.support.functions import ATTENTION, COMPOSITIONS, FORMS, MASKS


def test_no_function_has_two_handlers():
    assert len(COMPOSITIONS) == len(ATTENTION) + len(MASKS) + len(FORMS)


def test_functions_of_every_kind():
    for function in (
        torch.stack,
        torch.where,
        torch.Tensor.__gt__,
        torch.Tensor.masked_fill,
        F.scaled_dot_product_attention,
    ):
        assert callable(COMPOSITIONS[function])
