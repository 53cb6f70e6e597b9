"""One convention for inputs: every public function that runs a model takes every form, and a wrong one is one sentence."""

import copy
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import linger
from linger.errors import UsageError
from tests.support.models import quantised

pytestmark = pytest.mark.needs_torch


class Net(nn.Module):
    """One argument, and two that may be left out, the last by name only."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, gain=None, *, shift=None):
        y = self.fc(x)
        y = y if gain is None else y * gain
        return y if shift is None else y + shift


X = torch.linspace(-2, 2, 32).reshape(8, 4).sin()
GAIN = torch.linspace(0.5, 1.5, 24).reshape(8, 3)
LABELS = torch.arange(8) % 3

FORMS = {
    "tensor": X,
    "array": X.numpy(),
    "array of 64 bits": X.numpy().astype(np.float64),
    "tuple": (X,),
    "tuple of two": (X, GAIN),
    "keywords at the end": (X, {"gain": GAIN}),
    "args and kwargs": ((X,), {"gain": GAIN}),
    "kwargs alone": ((), {"x": X, "gain": GAIN}),
    "by name only": ((X,), {"shift": GAIN}),
    "dict": {"gain": GAIN, "x": X},
    "another mapping": UserDict(x=X),
    "list of tensors": [X, X],
    "list of tuples": [(X, GAIN), (X, GAIN)],
    "list of args and kwargs": [((X,), {"gain": GAIN}), {"x": X, "gain": GAIN}],
    "loader": DataLoader(TensorDataset(X), batch_size=4),
    "loader with labels": DataLoader(TensorDataset(X, LABELS), batch_size=4),
    "arrays with labels": [[X.numpy(), LABELS.numpy()]],
    "dicts with labels": [{"x": X, "labels": LABELS}],
}

WRONG = {
    "text": ("photos", "str is no batch"),
    "number": (3, "int is no batch"),
    "a shape": ((1, 2, 3, 4), r"\(1, 2, 3, 4\) is a shape. Give a tensor of this shape: torch.randn\(1, 2, 3, 4\)"),
    "a model": (nn.Linear(4, 3), "Linear is no batch"),
    "a class": (Net, "type is no batch"),
    "texts": (["a.png", "b.png"], "str is no batch"),
    "a tuple of batches": (
        (X, X, X),
        r"Net.forward\(x, gain=None.*(does not take 3 positional|no tensor).*\[x1, x2\] are two",
    ),
    "a wrong name": ({"x": X, "gian": GAIN}, r"does not take gian \(is it gain\?\) by name.*: x, gain, shift"),
    "no known name": ([{"y": X}] * 2, "fails on the (example )?input"),
    "a dataset": (TensorDataset(X), "a Dataset gives samples. Give batches: torch.utils.data.DataLoader"),
    "objects": (np.array([{}]), "an array of object holds no numbers"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The float model, the quantised one calibrated for every argument, and its file with every input."""
    net = Net().eval()
    made = quantised(copy.deepcopy(net), X)
    with linger.calibration():
        made(X, GAIN, shift=GAIN)
        made(X)
    return net, made, tmp_path_factory.mktemp("inputs") / "net.onnx"


def exported_and_verified(models, inputs, data):
    del data
    _, model, path = models
    linger.onnx.export(model, inputs, path)
    return linger.verify(model, path, inputs).ok and linger.onnx.compare(model, path, inputs).ok


def fresh_pair(models):
    return copy.deepcopy(models[1]), models[0]


FUNCTIONS = {
    "export, verify, compare": exported_and_verified,
    "trace_layers": lambda m, x, _: linger.trace_layers(copy.deepcopy(m[0]), x),
    "advise": lambda m, x, _: linger.advise(m[0], x).items,
    "sensitivity": lambda m, x, _: linger.sensitivity(m[0], x).rows,
    "compare_layers": lambda m, x, _: linger.compare_layers(m[0], m[1], x).rows,
    "record": lambda m, x, _: list(linger.record(m[1], x)),
    "equalize": lambda m, x, _: linger.equalize(copy.deepcopy(m[0]), x),
    "correct_biases": lambda m, x, _: linger.correct_biases(*fresh_pair(m), x),
    "choose_exponents": lambda m, x, _: linger.choose_exponents(*fresh_pair(m), x, max_trials=2),
    "round_weights": lambda m, x, _: linger.round_weights(*fresh_pair(m), x),
    "distill": lambda m, x, _: linger.distill(*fresh_pair(m), x, steps=1),
    "find_bits": lambda m, x, _: linger.find_bits(*fresh_pair(m), x, goal=1, max_trials=2),
    "tune": lambda m, x, _: linger.tune(m[0], x, budget="1 trials"),
}


DAILY_FORMS = ("tensor", "args and kwargs", "by name only", "dict", "list of tuples", "loader with labels")
DAILY_FUNCTIONS = ("trace_layers", "compare_layers", "export, verify, compare")
"""One reader serves all functions: every form is tried every day with these, the other pairs by make test-slow."""


@pytest.mark.parametrize(
    ("function", "form"),
    [
        pytest.param(
            function,
            form,
            marks=() if form in DAILY_FORMS or function in DAILY_FUNCTIONS else pytest.mark.slow,
            id=f"{function}-{form}",
        )
        for function in FUNCTIONS
        for form in FORMS
    ],
)
def test_every_function_takes_every_form(models, function, form):
    assert FUNCTIONS[function](models, FORMS[form], None)


@pytest.mark.parametrize("form", WRONG)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_wrong_form_is_one_sentence(models, function, form):
    given, message = WRONG[form]
    if (function, form) == ("trace_layers", "a model"):
        message = "no part of the root"
    with pytest.raises(UsageError, match=message) as caught:
        FUNCTIONS[function](models, given, None)
    assert "invalid combination" not in str(caught.value)


@pytest.fixture(scope="module")
def two_inputs(models):
    """A file with the inputs x and gain."""
    _, model, path = models
    made = path.with_name("two.onnx")
    linger.onnx.export(model, (X, GAIN), made)
    return made


OF_FILES = {
    "tuple": (X, GAIN),
    "arrays": (X.numpy(), GAIN.numpy()),
    "args and kwargs": ((X,), {"gain": GAIN}),
    "keywords at the end": (X, {"gain": GAIN}),
    "dict": {"gain": GAIN.requires_grad_(), "x": X},
    "list of tuples": [(X, GAIN), (X, GAIN)],
    "loader with labels": DataLoader(TensorDataset(X, GAIN.detach(), LABELS), batch_size=8),
}

OF_FILE = {
    "verify": lambda path, x, _: linger.verify(None, path, x).ok,
    "compare": lambda path, x, _: linger.compare(path, path, x).ok,
    "write_vectors": lambda path, x, folder: linger.write_vectors(path, folder / "vectors", x),
    "report": lambda path, x, _: linger.report(path, None, data=x),
}


@pytest.mark.parametrize("form", OF_FILES)
@pytest.mark.parametrize("function", OF_FILE)
def test_a_file_takes_the_same_forms(two_inputs, tmp_path, function, form):
    assert OF_FILE[function](two_inputs, OF_FILES[form], tmp_path)


@pytest.mark.parametrize(
    "feed", [{"x": X, "gain": GAIN}, (X, GAIN.detach().numpy()), [X.numpy(), GAIN]], ids=["dict", "tuple", "list"]
)
def test_a_session_takes_tensors_and_arrays_in_order(two_inputs, feed):
    session = linger.Session(two_inputs)
    expected = session.run(None, {"x": X.numpy(), "gain": GAIN.detach().numpy()})
    np.testing.assert_array_equal(session.run(None, feed)[0], expected[0])


def test_a_session_names_the_inputs_it_wants(two_inputs):
    with pytest.raises(
        UsageError, match=r"the feed is 1 arrays without names. The model's inputs are x, gain: give a dict"
    ):
        linger.Session(two_inputs).run(None, X)


class Named(nn.Module):
    """Takes two inputs by name only; they cannot be swapped."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, a, b):
        return self.left(x) + self.right(a) * b


def test_a_dict_may_have_any_order(tmp_path):
    torch.manual_seed(0)
    model = linger.init(Named()).eval()
    given = {"x": torch.randn(6, 4), "a": torch.randn(6, 4), "b": 2.0 * torch.rand(6, 4)}
    turned = dict(reversed(given.items()))
    with linger.calibration():
        model(**given)
    for one, other in ((given, turned), (turned, given)):
        linger.onnx.export(model, one, tmp_path / "net.onnx", dynamic_axes={name: {0: "n"} for name in given})
        assert linger.verify(model, tmp_path / "net.onnx", [one, other], sizes=1).ok
        assert linger.onnx.compare(model, tmp_path / "net.onnx", [one, other]).ok


def test_inputs_that_a_file_calls_otherwise_stay_in_their_order(tmp_path):
    torch.manual_seed(0)
    model, given = linger.init(Named()).eval(), {"a": torch.randn(6, 4), "b": torch.rand(6, 4)}
    x = torch.randn(6, 4)
    with linger.calibration():
        model(x, **given)
    linger.onnx.export(model, (x, given), tmp_path / "net.onnx", input_names=["first", "second", "third"])
    assert linger.verify(model, tmp_path / "net.onnx", (x, given)).ok


def test_quantize_takes_dicts_of_any_order():
    torch.manual_seed(0)
    batches = [{"x": torch.randn(6, 4), "a": torch.randn(6, 4), "b": 2.0 * torch.rand(6, 4)} for _ in range(6)]
    turned = [dict(reversed(batch.items())) if place % 2 else batch for place, batch in enumerate(batches)]
    found = [linger.quantize(Named().eval(), data, budget="1 trials").made for data in (batches, turned)]
    assert all(one.proof.ok for one in found)
