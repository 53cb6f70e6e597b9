"""Example calls in every form a user may write."""

import onnx
import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from linger.simulation import ExampleCall, FlatModel, default_names, read_call, run_once
from tests.support.models import quantized

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
        (X, None, ExampleCall((X,), {})),
        ((X, Y), None, ExampleCall((X, Y), {})),
        ((X, {"y": Y}), None, ExampleCall((X,), {"y": Y})),
        ({"x": X, "y": Y}, None, ExampleCall((), {"x": X, "y": Y})),
        ({"left": X, "right": Y}, None, ExampleCall(({"left": X, "right": Y},), {})),
        ((X, {}), {"scale": 2.0}, ExampleCall((X,), {"scale": 2.0})),
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
        run_once(Model(), ExampleCall((X, torch.ones(3)), {}))


class Plain(nn.Module):
    """Parameters by name, a result of several tensors."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, image, output=None):
        y = self.fc(image)
        return y if output is None else {"a": y, "b": [self.fc(output)]}


class Variadic(Plain):
    """Parameters without names."""

    def forward(self, *images):
        return self.fc(images[0]) + self.fc(images[1])


@pytest.mark.parametrize("is_quantized", [True, False], ids=["quantized", "float"])
@pytest.mark.parametrize(
    ("make", "count", "names", "expected"),
    [
        (Plain, 1, {}, [["image"], ["output"]]),
        (Plain, 2, {}, [["image", "output"], ["output_1", "output_1_1"]]),
        (Plain, 2, {"input_names": ["x"], "output_names": ["y"]}, [["x", "output"], ["y", "output_1"]]),
        (Variadic, 2, {}, [["input_0", "input_1"], ["output"]]),
    ],
    ids=["one", "a parameter called output", "some given", "no names"],
)
def test_ends_are_named_after_forward(tmp_path, make, count, names, expected, is_quantized):
    torch.manual_seed(0)
    inputs = tuple(torch.randn(3, 4) for _ in range(count))
    model = quantized(make(), *inputs) if is_quantized else make().eval()
    linger.onnx.export(model, inputs, tmp_path / "net.onnx", **names)
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [[value.name for value in values] for values in (graph.input, graph.output)] == expected


def test_input_called_as_a_weight_of_the_model(tmp_path):
    class Odd(nn.Linear):
        def forward(self, weight):
            return super().forward(weight)

    model = nn.Sequential(Odd(4, 2)).eval()
    linger.onnx.export(model[0], (torch.ones(1, 4),), tmp_path / "net.onnx")
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [v.name for v in graph.input] == ["weight"]
    onnx.checker.check_model(tmp_path / "net.onnx", full_check=True)
    found = linger.Session(tmp_path / "net.onnx").run(None, {"weight": torch.ones(1, 4).numpy()})[0]
    torch.testing.assert_close(
        torch.from_numpy(found), model(torch.ones(1, 4)).detach(), rtol=1e-6, atol=1e-6
    )  # 4 float32 products
