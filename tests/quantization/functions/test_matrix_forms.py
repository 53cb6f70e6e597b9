"""einsum, addmm and baddbmm: the integers of matmul, in the file too."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor
from tests.support.wired import quantize


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(6, 6), nn.Linear(6, 6)
        self.w, self.b = nn.Parameter(noise(6, 4)), nn.Parameter(noise(4))
        self.run = run

    def forward(self, x):
        return self.run(self, self.q(x), self.k(x))


PRODUCTS = {
    "bij,bjk->bik": (
        lambda m, q, k: torch.einsum("bij,bjk->bik", q, k.transpose(1, 2)),
        lambda m, q, k: q @ k.transpose(1, 2),
    ),
    "bqd,bkd->bqk": (lambda m, q, k: torch.einsum("bqd,bkd->bqk", q, k), lambda m, q, k: q @ k.transpose(1, 2)),
    "result transposed": (
        lambda m, q, k: torch.einsum("bqd, bkd -> bkq", q, k),
        lambda m, q, k: (q @ k.transpose(1, 2)).transpose(1, 2),
    ),
    "heads": (
        lambda m, q, k: torch.einsum("bqhd,bkhd->bhqk", q.reshape(3, 5, 2, 3), k.reshape(3, 5, 2, 3)),
        lambda m, q, k: q.reshape(3, 5, 2, 3).transpose(1, 2) @ k.reshape(3, 5, 2, 3).transpose(1, 2).transpose(2, 3),
    ),
    "a list of operands": (
        lambda m, q, k: torch.einsum("bqd,bkd->bqk", [q, k]),
        lambda m, q, k: q @ k.transpose(1, 2),
    ),
    "with a parameter": (lambda m, q, k: torch.einsum("bld,do->blo", q, m.w), lambda m, q, k: F.linear(q, m.w.t())),
    "addmm": (lambda m, q, k: torch.addmm(m.b, q[0], m.w), lambda m, q, k: F.linear(q[0], m.w.t(), m.b)),
    "baddbmm": (
        lambda m, q, k: torch.baddbmm(q[:, :, :5], q, k.transpose(1, 2)),
        lambda m, q, k: q @ k.transpose(1, 2) + q[:, :, :5],
    ),
}


@pytest.mark.parametrize(("form", "plain"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_integers_are_those_of_matmul(form, plain, tmp_path):
    x = noise(3, 5, 6)
    found, expected = (quantize(Net(run), x) for run in (form, plain))
    assert isinstance(found(x), QTensor)
    assert torch.equal(found(x).integers(), expected(x).integers())
    assert linger.coverage(found).float_ops == ()
    real = form(found, found.q(x).dequantize(), found.k(x).dequantize())
    assert float((found(x).dequantize() - real).detach().norm() / real.detach().norm()) < 0.05
    path = tmp_path / "model.onnx"
    linger.onnx.export(found, (x,), path)
    assert linger.verify(found, path, [x]).differing == 0  # not every form uses k, which a file then lacks


FLOATS = {
    "two sums": lambda m, q, k: torch.einsum("bij,bij->b", q, k),
    "a trace": lambda m, q, k: torch.einsum("bii->b", q[:, :, :5]),
    "outer": lambda m, q, k: torch.einsum("bi,bj->bij", q[:, 0], k[:, 0]),
    "one operand": lambda m, q, k: torch.einsum("bij->bji", q),
    "elementwise": lambda m, q, k: torch.einsum("bij,bij->bij", q, k),
    "alpha": lambda m, q, k: torch.addmm(m.b, q[0], m.w, alpha=2),
}


@pytest.mark.parametrize("form", FLOATS.values(), ids=FLOATS.keys())
def test_other_forms_are_computed_in_float_and_said(form):
    model = quantize(Net(form), noise(3, 5, 6))
    expected = form(model, model.q(noise(3, 5, 6)).dequantize(), model.k(noise(3, 5, 6)).dequantize())
    assert torch.allclose(model(noise(3, 5, 6)), expected)
    assert len(linger.coverage(model).float_ops) == 1


BROADCAST = {
    "one matrix for every batch": lambda q, k: q @ k[0].transpose(0, 1),
    "heads for every batch": lambda q, k: q[:, None] @ k[None, :, :].transpose(2, 3),
    "a vector": lambda q, k: (q @ k[0, 0].unsqueeze(1)).squeeze(2),
}


@pytest.mark.parametrize("run", BROADCAST.values(), ids=BROADCAST.keys())
def test_matmul_broadcasts(run, tmp_path):
    x = noise(3, 5, 6)
    model = quantize(Net(lambda m, q, k: run(q, k)), x)
    assert linger.coverage(model).float_ops == ()
    real = run(model.q(x).dequantize(), model.k(x).dequantize())
    assert model(x).shape == real.shape
    assert float((model(x).dequantize() - real).detach().abs().max()) <= 0.5 / model(x).scale
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (x,), path)
    assert linger.verify(model, path, [x]).ok
