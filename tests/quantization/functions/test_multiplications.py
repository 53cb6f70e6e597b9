"""Multiply-accumulates of torch functions, counted from shapes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.functions import count_macs
from tests.support.wired import quantize

DICE = torch.Generator().manual_seed(0)
A, B = (torch.randn(shape, generator=DICE) for shape in ((5, 3), (3, 4)))
STACK, OTHER = (torch.randn(shape, generator=DICE) for shape in ((2, 5, 3), (2, 3, 4)))
IMAGE, SIGNAL = (torch.randn(shape, generator=DICE) for shape in ((2, 6, 8, 8), (2, 6, 9)))


def case(name, function, *args, macs, **kwargs):
    return pytest.param(name, function, args, kwargs, macs, id=name)


@pytest.mark.parametrize(
    ("name", "function", "args", "kwargs", "macs"),
    [
        case("linear", F.linear, A, torch.randn(7, 3), macs=5 * 7 * 3),
        case("matmul", torch.matmul, STACK, B, macs=2 * 5 * 4 * 3),
        case("__matmul__", torch.Tensor.__matmul__, A, B, macs=5 * 4 * 3),
        case("__rmatmul__", torch.Tensor.__rmatmul__, B, A, macs=5 * 4 * 3),
        case("mm", torch.mm, A, mat2=B, macs=5 * 4 * 3),
        case("bmm", torch.bmm, STACK, OTHER, macs=2 * 5 * 4 * 3),
        case("mv", torch.mv, A, torch.randn(3), macs=15),
        case("dot", torch.dot, torch.randn(9), torch.randn(9), macs=9),
        case("addmm", torch.addmm, torch.randn(4), A, B, macs=5 * 4 * 3),
        case("baddbmm", torch.baddbmm, torch.randn(4), STACK, OTHER, macs=2 * 5 * 4 * 3),
        case("addbmm", torch.addbmm, torch.randn(5, 4), STACK, OTHER, macs=2 * 5 * 4 * 3),
        case("addbmm", torch.addbmm, torch.randn(5, 4), batch1=STACK, batch2=OTHER, macs=2 * 5 * 4 * 3),
        case("addmv", torch.addmv, torch.randn(5), A, torch.randn(3), macs=15),
        case("conv1d", F.conv1d, SIGNAL, torch.randn(4, 6, 3), macs=2 * 4 * 7 * 6 * 3),
        case("conv2d", F.conv2d, IMAGE, weight=torch.randn(4, 3, 3, 3), groups=2, macs=2 * 4 * 36 * 3 * 9),
        case("conv_transpose2d", F.conv_transpose2d, IMAGE, torch.randn(6, 4, 2, 2), macs=2 * 6 * 64 * 4 * 4),
        case("bilinear", F.bilinear, A, torch.randn(5, 2), torch.randn(4, 3, 2), macs=5 * 4 * (3 * 2 + 2)),
        case("einsum", torch.einsum, "bik,bkj->bij", STACK, OTHER, macs=2 * 5 * 4 * 3),
        case("einsum", torch.einsum, "...k,kj->...j", STACK, B, macs=2 * 5 * 4 * 3),
        case("einsum", torch.einsum, "ik,kj", A, B, macs=5 * 4 * 3),
        case("einsum", torch.einsum, "ij->j", A, macs=0),
        case("tensordot", torch.tensordot, STACK, OTHER, dims=([0, 2], [0, 1]), macs=5 * 4 * 6),
        case(
            "scaled_dot_product_attention",
            F.scaled_dot_product_attention,
            torch.randn(2, 5, 3),
            torch.randn(2, 7, 3),
            torch.randn(2, 7, 4),
            macs=2 * 5 * 7 * 3 + 2 * 5 * 7 * 4,
        ),
        case("relu", torch.relu, A, macs=0),
        case("mul", torch.mul, A, 2.0, macs=0),
    ],
)
def test_counted_by_hand(name, function, args, kwargs, macs):
    assert count_macs(name, args, kwargs, function(*args, **kwargs)) == macs


class First(nn.Module):
    """A recurrent or attention layer, called as these are called; the first of its results."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = linger.disable_quant(layer), call

    def forward(self, x):
        return self.call(self.layer, x)[0]


def packed(layer, x):
    result, state = layer(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True))
    return result.data, state


@pytest.mark.parametrize(
    ("layer", "call", "op", "macs"),
    [
        # x [2, 4, 6], hidden 5: four gates of [5, 6] and [5, 5] per step, for 8 steps
        pytest.param(nn.LSTM(6, 5, batch_first=True), lambda m, x: m(x), "lstm", 8 * 4 * 5 * 11, id="lstm"),
        pytest.param(
            nn.GRU(6, 5, batch_first=True, bidirectional=True),
            lambda m, x: m(x),
            "gru",
            2 * 8 * 3 * 5 * 11,
            id="gru, both directions",
        ),
        # sequences of 4 and 2 steps are 6 rows
        pytest.param(nn.LSTM(6, 5, batch_first=True), packed, "lstm", 6 * 4 * 5 * 11, id="lstm, packed"),
        pytest.param(nn.RNN(6, 5, 2), lambda m, x: m(x), "rnn_tanh", 8 * (5 * 11 + 5 * 10), id="rnn, two layers"),
        pytest.param(nn.LSTMCell(6, 5), lambda m, x: m(x[:, 0]), "lstm_cell", 2 * 4 * 5 * 11, id="lstm cell"),
        # two sequences of 4: four projections of 6×6 for 8 rows, q·kᵀ and ·v of 4×4×6 for each sequence
        pytest.param(
            nn.MultiheadAttention(6, 2, batch_first=True),
            lambda m, x: m(x, x, x, need_weights=False),
            "multi_head_attention_forward",
            4 * 8 * 36 + 2 * 2 * 4 * 4 * 6,
            id="attention",
        ),
    ],
)
def test_float_layers_are_counted_in_the_coverage(layer, call, op, macs):
    model = quantize(nn.Sequential(nn.Linear(6, 6), First(layer, call)), torch.randn(2, 4, 6))
    assert [(r.op, r.macs) for r in linger.coverage(model).float_ops if r.macs] == [(op, macs)]


def test_count_does_not_disturb_an_export(tmp_path):
    model = quantize(nn.Sequential(nn.Linear(3, 4), linger.disable_quant(nn.Linear(4, 2))), torch.randn(5, 3))
    before = linger.coverage(model)
    axes = {"x": {0: "n"}}
    linger.onnx.export(
        model, torch.randn(5, 3), tmp_path / "a.onnx", input_names=["x"], output_names=["y"], dynamic_axes=axes
    )
    assert linger.coverage(model) == before


@pytest.mark.parametrize(
    ("x", "y", "macs"),
    [
        pytest.param((5, 3), (3, 4), 5 * 4 * 3, id="matrices"),
        pytest.param((2, 1, 5, 3), (7, 3, 4), 2 * 7 * 5 * 4 * 3, id="broadcast"),
        pytest.param((0, 5, 3), (1, 3, 4), 0, id="empty batch"),
        pytest.param((2, 5, 3), (3,), 2 * 5 * 3, id="matrix and vector"),
        pytest.param((3,), (2, 3, 4), 2 * 4 * 3, id="vector and matrix"),
    ],
)
def test_products_of_matrices_of_any_axes_are_counted(x, y, macs):
    x, y = torch.zeros(x), torch.zeros(y)
    assert count_macs("bmm", [x, y], {}, x @ y) == macs
