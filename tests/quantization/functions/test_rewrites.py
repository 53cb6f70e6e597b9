"""Functions in disguise: only what gives the same real numbers is rewritten."""

import onnx
import pytest
import torch
import torch.nn.functional as F

import linger
from tests.support.functions import REWRITES, rewritten
from tests.support.wired import after, image

X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
CASES = {
    "-x": (torch.neg, (X,), {}),
    "x²": (torch.square, (X,), {}),
    "x ** 2.0": (torch.Tensor.__pow__, (X, 2.0), {}),
    "x / 8": (torch.div, (X, 8), {}),
    "x / -0.25": (torch.Tensor.__truediv__, (X, -0.25), {}),
    "mean": (torch.mean, (X, (2, 3)), {}),
    "mean, negative, kept": (torch.Tensor.mean, (X,), {"dim": (-1, -2), "keepdim": True}),
    "pixel shuffle": (F.pixel_shuffle, (torch.randn(2, 12, 3, 5), 2), {}),
    "pixel unshuffle": (F.pixel_unshuffle, (torch.randn(2, 3, 4, 6), 2), {}),
    "nearest": (F.interpolate, (X,), {"scale_factor": 2}),
    "nearest, two factors": (F.interpolate, (X,), {"scale_factor": (3, 2), "mode": "nearest"}),
    "nearest, to a size": (F.interpolate, (X, (8, 15)), {"mode": "nearest-exact"}),
    "nearest, a broken factor": (F.interpolate, (X,), {"scale_factor": 1.7}),
    "nearest, smaller": (F.interpolate, (X,), {"scale_factor": (0.6, 1.3), "mode": "nearest-exact"}),
    "nearest, to any size": (F.interpolate, (X, (5, 3)), {}),
    "nearest, one size for both": (F.interpolate, (X, 7), {"mode": "nearest-exact"}),
    "nearest, of signals": (F.interpolate, (X[0],), {"scale_factor": 2}),
    "nearest, of volumes": (F.interpolate, (X[None], (5, 7, 2)), {}),
    "nearest, recomputed": (F.interpolate, (X,), {"scale_factor": 1.7, "recompute_scale_factor": True}),
    "mean, axis": (torch.mean, (X,), {"axis": [3, 2]}),
    "mean of all": (torch.mean, (X,), {}),
    "mean of one axis": (torch.mean, (X, 1), {}),
    "mean of one axis, kept, negative": (torch.mean, (X, -1, True), {}),
    "mean of three axes": (torch.mean, (X[0], (1, 2)), {}),
    "sum of all": (torch.Tensor.sum, (X,), {}),
    "sum of all, kept": (torch.sum, (X, None, True), {}),
    "sum of axes apart": (torch.sum, (X, (0, 2)), {}),
    "sum of axes apart, kept": (torch.sum, (X,), {"dim": (3, 1), "keepdims": True}),
    "sum of a tuple of one": (torch.sum, (X, (2,), True), {}),
    "sum of no axis is that of all": (torch.sum, (X, ()), {}),
    "variance": (torch.var, (X,), {}),
    "variance of the batch": (torch.var, (X, False), {}),
    "variance along axes": (torch.var, (X, (0, -1), False, True), {}),
    "variance, correction": (torch.Tensor.var, (X, 1), {"correction": 0, "keepdim": True}),
    "reciprocal": (torch.reciprocal, (X,), {}),
}


@pytest.mark.parametrize(("func", "args", "kwargs"), CASES.values(), ids=CASES.keys())
def test_the_calls_compute_the_same(func, args, kwargs):
    result = None
    for function, (first, *rest) in rewritten(func, args, kwargs):
        result = function(result if first is None else first, *rest)
    # sums may run in another order: a rounding of 2^-24 for each of up to 120 numbers below 4, and as many for squares
    assert torch.allclose(result, func(*args, **kwargs), rtol=0, atol=240 * 2.0**-24 * 4)
    assert result.shape == func(*args, **kwargs).shape


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (torch.div, (X, 3), {}),
        (torch.div, (X, 0), {}),
        (torch.div, (X, float("inf")), {}),
        (torch.div, (X, X), {}),
        (torch.div, (X, 2), {"rounding_mode": "floor"}),
        (torch.pow, (X, 3), {}),
        (torch.pow, (X, X), {}),
        (torch.mean, (X, 1, True), {}),
        (torch.mean, (X, 7), {}),
        (torch.mean, (X, (1, 1)), {}),
        (torch.mean, (X[0, 0, 0, 0],), {}),
        (torch.sum, (X, 0, True), {}),
        (torch.sum, (X,), {"dtype": torch.float64}),
        (torch.var, (X, 0, True, True), {}),
        (torch.var, (X, 0), {"correction": 2}),
        (torch.var, (X[0, 0, 0, 0],), {}),
        (torch.mean, (X, (2, 3)), {"dtype": torch.float64}),
        (torch.neg, (X,), {"out": X}),
        (F.interpolate, (X,), {"scale_factor": 2, "mode": "bilinear"}),
        (F.interpolate, (X,), {}),
        (F.interpolate, (X, (5, 5, 5)), {}),
        (F.interpolate, (X, 0), {}),
        (F.interpolate, (X,), {"scale_factor": 2, "align_corners": True}),
        (F.pixel_shuffle, (X, 2), {}),
        (torch.exp, (X,), {}),
        (F.relu, (X,), {}),
    ],
)
def test_everything_else_stands_for_itself(func, args, kwargs):
    assert rewritten(func, args, kwargs) is None


def test_in_place_spellings_are_not_rewritten():
    assert not {torch.Tensor.neg_, torch.Tensor.square_, torch.Tensor.div_, torch.Tensor.__itruediv__} & set(REWRITES)


@pytest.mark.parametrize(("factor", "has_places"), [(2, False), (1.5, True)], ids=["whole", "broken"])
def test_only_broken_factors_need_a_table_of_places(factor, has_places, tmp_path):
    model = after(lambda y: F.interpolate(y, scale_factor=factor))
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    found = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert ("Gather" in found) == has_places
