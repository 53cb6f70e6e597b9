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
from tests.support.models import quantized

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


OF_QUANTIZE = {
    "text": "data is a path. Load the arrays",
    "number": "int is no data",
    "a model": "Linear is no data",
    "a class": "type is no data",
    "no known name": "among the arguments is dict. The inputs of a file are tensors",
    "a dataset": None,
}
"""linger.quantize cuts data into samples itself: it takes a Dataset, and says the others in its own words."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The float model, the quantized one calibrated for every argument, and its file with every input."""
    net = Net().eval()
    made = quantized(copy.deepcopy(net), X)
    with linger.calibration():
        made(X, GAIN, shift=GAIN)
        made(X)
    return net, made, tmp_path_factory.mktemp("inputs") / "net.onnx"


def exported_and_verified(models, inputs, data):
    del data
    _, model, path = models
    linger.onnx.export(model, inputs, path)
    return linger.verify(model, path, inputs).ok and linger.onnx.compare(model, path, inputs).ok


def reported(models, inputs, data):
    del data
    reference, model, path = models
    linger.onnx.export(model, inputs, path)
    return linger.report(path, None, model=model, reference=reference, data=inputs)


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
    "quantize": lambda m, x, _: linger.quantize(m[0], x, budget="1 trials").verify().ok,
    "plot_tensors": lambda m, x, _: linger.plot_tensors(m[1], m[2].parent / "images", x, count=1),
    "report": reported,
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
    if function == "quantize" and form in OF_QUANTIZE:
        message = OF_QUANTIZE[form]
    if message is None:
        return
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
    "arrays of 64 bits": (X.numpy().astype(np.float64), GAIN.numpy().astype(np.float64)),
    "args and kwargs": ((X,), {"gain": GAIN}),
    "kwargs alone": ((), {"gain": GAIN, "x": X}),
    "keywords at the end": (X, {"gain": GAIN}),
    "dict": {"gain": GAIN.clone().requires_grad_(), "x": X},
    "tuple with labels": (X, GAIN, LABELS),
}
OF_FILES_MORE = {
    "list of tuples": [(X, GAIN), (X, GAIN)],
    "dicts with labels": [{"labels": LABELS, "gain": GAIN, "x": X}],
    "loader with labels": DataLoader(TensorDataset(X, GAIN, LABELS), batch_size=8),
}

OF_FILE = {
    "verify": lambda files, x, _: linger.verify(None, files[0], x).ok,
    "compare": lambda files, x, _: linger.compare(files[0], files[0], x).ok,
    "write_vectors": lambda files, x, folder: linger.write_vectors(files[0], folder / "vectors", x),
    "report": lambda files, x, _: linger.report(files[0], None, data=x),
    "prove": lambda files, x, _: linger.c.prove(files[1], files[0], x).ok,
}


@pytest.fixture(scope="module")
def files(two_inputs):
    """The file and its program in C."""
    linger.c.export(two_inputs, two_inputs.with_name("c"))
    with linger.c.build(two_inputs.with_name("c")) as program:
        yield two_inputs, program


@pytest.mark.parametrize("form", {**OF_FILES, **OF_FILES_MORE})
@pytest.mark.parametrize("function", OF_FILE)
@pytest.mark.thin(every=2)
def test_a_file_takes_the_same_forms(files, tmp_path, function, form):
    assert OF_FILE[function](files, {**OF_FILES, **OF_FILES_MORE}[form], tmp_path)


WRONG_OF_FILES = {
    "a misspelt name": (
        {"gian": GAIN, "x": X},
        "lacks gain and has (gian, x|unknown gian). The model's inputs are x, gain",
    ),
    "other names": ({"a": X, "b": GAIN}, "lacks x, gain and has (a, b|unknown a, b)"),
    "an argument twice": ((X, {"x": X}), "x is given twice"),
    "too many": (((X, GAIN, X), {"x": X}), "x is given twice"),
    "a tuple of batches": ((X, X, X), "3 were given.*list holds batches|3 arrays without names"),
    "too few": ((X,), "1 were given.*list holds batches|1 arrays without names"),
    "a shape": ((1, 4), r"\(1, 4\) is a shape. Give an array of this shape: np\.random\.randn\(1, 4\)"),
    "a model": (nn.Linear(4, 3), "Linear is no (array|input).*Give an array"),
    "a dataset": (TensorDataset(X, GAIN), "TensorDataset is no (array|input).*Give an array"),
    "a text": ({"x": "a.png", "gain": GAIN}, "x: str is no array of numbers. Give an array"),
    "nothing": ((X, None), "NoneType is no array of numbers. Give an array"),
}


@pytest.mark.parametrize("form", WRONG_OF_FILES)
@pytest.mark.parametrize("function", [*OF_FILE, "Session.run"])
@pytest.mark.thin(every=2)
def test_a_wrong_form_for_a_file_is_one_sentence(files, tmp_path, function, form):
    given, message = WRONG_OF_FILES[form]
    with pytest.raises(UsageError, match=message):
        OF_FILE[function](files, given, tmp_path) if function in OF_FILE else linger.Session(files[0]).run(None, given)


@pytest.mark.parametrize("form", OF_FILES)
def test_a_session_takes_one_pass_in_every_form(two_inputs, form):
    session = linger.Session(two_inputs)
    expected = session.run(None, {"x": X.numpy(), "gain": GAIN.numpy()})
    np.testing.assert_array_equal(session.run(None, OF_FILES[form])[0], expected[0])


def test_a_session_takes_the_batches_of_a_loader_one_by_one(two_inputs):
    session = linger.Session(two_inputs)
    expected = session.run(None, (X, GAIN))
    for batch in OF_FILES_MORE["loader with labels"]:
        np.testing.assert_array_equal(session.run(None, batch)[0], expected[0])
    with pytest.raises(UsageError, match=r"DataLoader is no array of numbers\. Give an array, a tuple"):
        session.run(None, OF_FILES_MORE["loader with labels"])
    with pytest.raises(UsageError, match="this tuple holds no array of numbers"):
        session.run(None, OF_FILES_MORE["list of tuples"])


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


@pytest.mark.parametrize("given", [{"gain": GAIN, "x": X}, ((), {"gain": GAIN, "x": X}), ((X,), {"gain": GAIN})])
def test_the_order_of_names_does_not_matter(models, two_inputs, tmp_path, given):
    """A file has its inputs in the order of forward, whatever the order of a dict."""
    _, model, _ = models
    assert linger.verify(model, two_inputs, given).ok
    assert linger.onnx.compare(model, two_inputs, given).ok
    linger.onnx.export(model, given, tmp_path / "net.onnx")
    assert [i.name for i in linger.Session(tmp_path / "net.onnx").get_inputs()] == ["x", "gain"]
    assert linger.verify(model, tmp_path / "net.onnx", (X, GAIN)).ok


def test_quantize_refuses_batches_with_other_arguments(models):
    with pytest.raises(UsageError, match=r"do not give the same arguments \(1 by position; 1 by position, shift\)"):
        linger.quantize(models[0], X, test_data=((X,), {"shift": GAIN}), budget="1 trials")
    with pytest.raises(UsageError, match=r"do not give the same arguments \(2 by position; 1 by position\)"):
        linger.quantize(models[0], [X, (X, GAIN)], budget="1 trials")


def test_quantize_does_not_take_a_tuple_of_batches_for_targets():
    with pytest.raises(UsageError, match=r"does not take 2 positional.*\[x1, x2\] are two batches"):
        linger.quantize(nn.Sequential(nn.Linear(4, 3)), (X, X), budget="1 trials")


def test_advice_about_a_quantized_model_adds_nothing_to_it(models):
    """Its tensors are read as real numbers: a sum of the analysis is no op of the model."""
    _, model, _ = models
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    assert [item.role for item in linger.advise(model, X).items].count("output") == 1
    after = model.state_dict()
    assert before.keys() == {name for name, value in after.items() if isinstance(value, torch.Tensor)}
    assert all(torch.equal(value, after[name]) for name, value in before.items())
