"""Example calls in every form a user may write."""

import pytest
import torch
from torch import nn

from linger.errors import UsageError
from linger.onnx.call import Call, FlatModel, default_names, read_call, run_once

X, Y = torch.ones(2), torch.full((2,), 3.0)


class Model(nn.Module):
    def forward(self, x, y=None, scale=1.0, flags=None):
        if isinstance(x, dict):
            x, y = x["left"], x["right"]
        y = 0 if y is None else y
        return (x + y) * scale


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (X, None, Call((X,), {})),
        ((X, Y), None, Call((X, Y), {})),
        ((X, {"y": Y}), None, Call((X,), {"y": Y})),
        ({"x": X, "y": Y}, None, Call((), {"x": X, "y": Y})),
        ({"left": X, "right": Y}, None, Call(({"left": X, "right": Y},), {})),
        ((X, {}), {"scale": 2.0}, Call((X,), {"scale": 2.0})),
    ],
    ids=["tensor", "tuple", "keywords last", "keywords alone", "a dict argument", "kwargs"],
)
def test_call_is_what_the_user_means(args, kwargs, expected):
    call = read_call(Model(), args, kwargs)
    assert [k for k, _ in call.leaves()] == [k for k, _ in expected.leaves()]
    assert torch.equal(run_once(Model(), call), run_once(Model(), expected))


def test_numbers_become_inputs_and_flags_stay():
    call = read_call(Model(), (X, Y, 2.0, True), None)
    assert [t.dim() for t in call.tensors()] == [1, 1, 0]
    assert default_names(Model(), call) == ("x", "y", "scale")
    assert not call.is_plain
    flat = FlatModel(Model(), call)
    assert torch.equal(flat(X, Y, torch.tensor(5.0)), (X + Y) * 5)


def test_nested_inputs_are_named_by_their_keys():
    call = read_call(Model(), ({"left": X, "right": Y},), None)
    assert default_names(Model(), call) == ("x.left", "x.right")
    assert torch.equal(FlatModel(Model(), call)(X, Y), X + Y)


def test_failing_forward_is_one_sentence():
    with pytest.raises(UsageError, match=r"Model: the forward pass fails on the example input \[\(2,\), \(3,\)\]"):
        run_once(Model(), Call((X, torch.ones(3)), {}))
