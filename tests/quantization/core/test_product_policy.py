"""Which products of a user's own forward are wanted, and at which widths."""

import pytest
import torch
from torch import nn

from linger import disable_quant, quant_module
from tests.support.quantization import Frame, ProductPolicy, Widths, holds_matrices

POLICY = ProductPolicy(frozenset({"LinearInt"}), frozenset({"head"}), Widths(8, 8, 8))


@pytest.mark.parametrize(
    ("op", "path", "expected"),
    [("LinearInt", "body", True), ("LinearInt", "head", False), ("Conv2dInt", "body", False)],
)
def test_ops_and_places(op, path, expected):
    assert POLICY.allows(op, Frame(path, nn.Identity())) is expected


def test_a_marked_module_has_widths_of_its_own():
    layer = nn.Linear(2, 2)
    assert POLICY.widths_in(layer) == Widths(8, 8, 8)
    quant_module(layer, data_bits=16, parameter_bits=4, out_bits=32)
    assert POLICY.widths_in(layer) == Widths(16, 4, 32)
    assert POLICY.widths_in(disable_quant(nn.Linear(2, 2))) == Widths(8, 8, 8)
    assert Widths() == Widths(8, 8, 8)


class Own(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.w = nn.Parameter(torch.ones(shape))


@pytest.mark.parametrize(
    ("module", "expected"),
    [(Own((2, 2)), True), (Own((2,)), False), (nn.Linear(2, 2), False), (nn.MultiheadAttention(2, 1), False)],
    ids=["matrix", "vector", "torch's layer", "torch's attention"],
)
def test_matrices_of_modules_that_are_not_torchs(module, expected):
    assert holds_matrices([module]) is expected


def test_a_buffer_may_be_a_weight_but_no_integers():
    module = nn.Identity()
    assert not holds_matrices([module])
    own = Own((2,))
    own.register_buffer("table", torch.ones(2, 2))
    assert holds_matrices([own])
    own.register_buffer("table", torch.ones(2, 2, dtype=torch.int64))
    assert not holds_matrices([own])
