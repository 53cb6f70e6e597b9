"""torch and ONNX Runtime side by side."""

import copy

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger.errors import GraphError, UsageError
from tests.support.custom_ops import torch_export, whole
from tests.support.models import small_net


def text_model(tmp_path, text, opset=13):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}'), path)
    return path


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.bn = nn.BatchNorm2d(16)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(16 * 36, 10)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.bn(self.conv(x)))).flatten(1))


class Twice(nn.Module):
    def forward(self, x):
        return x * 2


TWICE = "g (float[n] x) => (float[n] y) { y = Add (x, x) }"


def test_faithful_file_is_within_what_rounding_explains(tmp_path):
    model, path = Net(), tmp_path / "net.onnx"
    torch_export(model, (torch.randn(2, 1, 8, 8),), path, opset_version=13)
    found = linger.onnx.compare(model, path, [torch.randn(2, 1, 8, 8) for _ in range(3)])
    (row,) = found.outputs
    assert found.ok
    assert found.runs == 3
    assert row.shapes == ((2, 10),)
    assert 0 < row.max_abs <= row.atol
    assert row.rtol == 0
    assert row.atol < 1e-3


def test_model_stays_as_it_was(tmp_path):
    model, path = Net(), tmp_path / "net.onnx"
    torch_export(model, (torch.randn(2, 1, 8, 8),), path, opset_version=13)
    model.train()
    model.drop.eval()
    x = torch.randn(2, 1, 8, 8)
    state, noise = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    linger.onnx.compare(model, path, x)
    assert [m.training for m in model.modules()] == [True, True, True, False, True]
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_small_change_of_one_parameter_is_found(tmp_path):
    model, path = Net(), tmp_path / "net.onnx"
    torch_export(model, (torch.randn(2, 1, 8, 8),), path, opset_version=13)
    with torch.no_grad():
        model.fc.bias[3] += 1e-4
    found = linger.onnx.compare(model, path, torch.randn(2, 1, 8, 8))
    assert not found.ok
    assert "FAILS" in str(found)


def test_another_formula_of_the_same_function_is_found(tmp_path):
    class Gelu(nn.Module):
        def forward(self, x):
            return nn.functional.gelu(x)

    text = 'g (float[n] x) => (float[n] y) { y = Gelu <approximate = "tanh"> (x) }'
    path = text_model(tmp_path, text, opset=20)
    assert not linger.onnx.compare(Gelu(), path, torch.linspace(-3, 3, 50)).ok
    path = text_model(tmp_path, text.replace("tanh", "none"), opset=20)
    assert linger.onnx.compare(Gelu(), path, torch.linspace(-3, 3, 50)).ok


def test_errors_and_tolerance_are_those_of_the_definition(tmp_path):
    class Off(nn.Module):
        def forward(self, x):
            return x * 2 + torch.tensor([0.0, 0.5, 0.0])

    path = text_model(tmp_path, TWICE)
    x = torch.tensor([1.0, 4.0, -8.0])  # torch 2, 8.5, −16; the file 2, 8, −16
    (row,) = linger.onnx.compare(Off(), path, x).outputs
    assert row.max_abs == 0.5
    assert row.max_rel == pytest.approx(0.5 / 8.5)
    assert linger.onnx.compare(Off(), path, x, atol=0.5).ok
    assert not linger.onnx.compare(Off(), path, x, atol=0.49).ok
    assert linger.onnx.compare(Off(), path, x, rtol=0.5 / 8.5 + 1e-6).ok
    assert linger.onnx.compare(Off(), path, x, atol=0.25, rtol=0.25 / 8.5 + 1e-6).ok


@pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
def test_quantized_outputs_must_be_equal(tmp_path, form):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form=form)
    found = linger.onnx.compare(model, tmp_path / "net.onnx", x)
    (row,) = found.outputs
    assert found.ok
    assert (row.max_abs, row.atol, row.rtol) == (0, 0, 0)


def test_nested_outputs_are_matched_in_order(tmp_path):
    class Nested(nn.Module):
        def forward(self, x):
            return {"sum": x + x, "parts": (x * 3, [x * 4]), "index": x.long()}

    path = text_model(
        tmp_path,
        """g (float[n] x) => (float[n] sum, float[n] three, float[n] four, int64[n] whole) {
             sum = Add (x, x)  three = Add (sum, x)  four = Add (sum, sum)  whole = Cast <to = 7> (x) }""",
    )
    found = linger.onnx.compare(Nested(), path, whole(4))
    assert found.ok
    assert [o.name for o in found.outputs] == ["sum", "three", "four", "whole"]


def test_integers_must_be_equal(tmp_path):
    class Floor(nn.Module):
        def forward(self, x):
            return x.floor().long()

    path = text_model(tmp_path, "g (float[n] x) => (int64[n] y) { y = Cast <to = 7> (x) }")
    assert linger.onnx.compare(Floor(), path, torch.tensor([0.5, 2.5])).ok
    (row,) = linger.onnx.compare(Floor(), path, torch.tensor([-0.5, 2.5])).outputs
    assert (row.max_abs, row.atol, row.is_within) == (1, 0, False)


def test_missing_and_extra_outputs_are_rows_that_fail(tmp_path):
    class Two(nn.Module):
        def forward(self, x):
            return x + x, x

    found = linger.onnx.compare(Two(), text_model(tmp_path, TWICE), whole(3))
    assert [(o.name, o.is_within) for o in found.outputs] == [("y", True), ("torch output 1", False)]
    assert "the file has no such output" in str(found)
    both = "g (float[n] x) => (float[n] y, float[n] z) { y = Add (x, x)  z = Neg (x) }"
    found = linger.onnx.compare(Twice(), text_model(tmp_path, both), whole(3))
    assert not found.ok
    assert "torch has no such output" in str(found)


def test_other_shape_and_other_type_fail(tmp_path):
    text = "g (float[n] x) => (float[m] y) { z = Add (x, x)  y = Concat <axis = 0> (z, z) }"
    (row,) = linger.onnx.compare(Twice(), text_model(tmp_path, text), whole(3)).outputs
    assert row.note == "torch has shape [3], the file [6]"
    text = "g (float[n] x) => (double[n] y) { z = Add (x, x)  y = Cast <to = 11> (z) }"
    (row,) = linger.onnx.compare(Twice(), text_model(tmp_path, text), whole(3)).outputs
    assert row.note == "torch has float32, the file float64"
    assert (row.max_abs, row.is_within) == (0, False)


def test_nan_equals_nan_and_nothing_else(tmp_path):
    class Root(nn.Module):
        def forward(self, x):
            return torch.sqrt(x)

    x = torch.tensor([4.0, -1.0, float("inf")])
    path = text_model(tmp_path, "g (float[n] x) => (float[n] y) { y = Sqrt (x) }")
    assert linger.onnx.compare(Root(), path, x).ok
    path = text_model(tmp_path, "g (float[n] x) => (float[n] y) { z = Abs (x)  y = Sqrt (z) }")
    (row,) = linger.onnx.compare(Root(), path, x, atol=100.0, rtol=1.0).outputs
    assert not row.is_within
    assert row.note == "1 values are NaN on one side only"


def test_infinity_is_not_near_anything(tmp_path):
    class Limited(nn.Module):
        def forward(self, x):
            return (x * 2).clamp(max=1e30)

    (row,) = linger.onnx.compare(
        Limited(), text_model(tmp_path, TWICE), torch.tensor([3e38]), atol=1.0, rtol=1.0
    ).outputs
    assert (row.max_abs, row.is_within) == (np.inf, False)


def test_errors_of_several_inputs_are_joined(tmp_path):
    class Drifting(nn.Module):
        def forward(self, x):
            return x * 2 + (0.25 if x.shape[0] == 3 else 0.0)

    found = linger.onnx.compare(Drifting(), text_model(tmp_path, TWICE), [whole(2), whole(3), whole(2)])
    (row,) = found.outputs
    assert (row.shapes, row.max_abs, row.is_within) == (((2,), (3,)), 0.25, False)


def test_keywords_numbers_and_dicts_reach_their_inputs(tmp_path):
    class Mixed(nn.Module):
        def forward(self, x, factor=1.0, *, shift):
            return x * factor + shift["by"]

    text = "g (float[n] x, float factor, float[n] s) => (float[n] y) { z = Mul (x, factor)  y = Add (z, s) }"
    path, x, shift = text_model(tmp_path, text), whole(3), {"by": whole(3)}
    assert linger.onnx.compare(Mixed(), path, (x, 2.0, {"shift": shift})).ok
    assert linger.onnx.compare(Mixed(), path, {"x": x, "factor": 2.0, "shift": shift}).ok
    baked = "g (float[n] x, float[n] s) => (float[n] y) { z = Add (x, x)  y = Add (z, s) }"
    assert linger.onnx.compare(Mixed(), text_model(tmp_path, baked), (x, 2.0, {"shift": shift})).ok


def test_input_that_the_file_does_not_have_is_left_out_by_name(tmp_path):
    class Ignoring(nn.Module):
        def forward(self, unused, x):
            return x * 2

    assert linger.onnx.compare(Ignoring(), text_model(tmp_path, TWICE), (whole(5), whole(3))).ok


def test_wrong_number_of_inputs_is_refused(tmp_path):
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b

    with pytest.raises(UsageError, match=r"the file has 1 inputs \(x\), the call gives 2 \(a, b\)"):
        linger.onnx.compare(Sum(), text_model(tmp_path, TWICE), (whole(3), whole(3)))


def test_forward_that_fails_is_one_sentence(tmp_path):
    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("nothing")

    with pytest.raises(UsageError, match=r"Broken: the forward pass fails"):
        linger.onnx.compare(Broken(), text_model(tmp_path, TWICE), whole(3))


def test_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(GraphError, match="not a complete ONNX model"):
        linger.onnx.compare(Twice(), tmp_path / "broken.onnx", whole(3))


def test_scripted_model_is_compared_too(tmp_path):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(Twice())
    assert linger.onnx.compare(scripted, text_model(tmp_path, TWICE), whole(3)).ok


def test_nothing_compared_is_not_ok(tmp_path):
    assert not linger.onnx.compare(Twice(), text_model(tmp_path, TWICE), []).ok


def test_the_table_is_its_text_and_the_interpreter_shows_one_line(tmp_path, capsys):
    found = linger.onnx.compare(Twice(), text_model(tmp_path, TWICE), whole(3))
    assert capsys.readouterr() == ("", "")
    assert repr(found) == f"ModelComparison({str(found).splitlines()[0]})"
    heading, columns, row = str(found).splitlines()
    assert heading == "1 output on 1 input, all within tolerance"
    assert columns.split() == ["output", "type", "shape", "max", "abs", "max", "rel", "tolerance"]
    assert row.split()[:5] == ["y", "float32", "3", "0", "0"]
    assert row.endswith("ok")
    assert [len(cells) for cells in found.rows()] == [len(found.COLUMNS)]


def test_tolerance_given_is_the_tolerance_shown(tmp_path):
    found = linger.onnx.compare(Twice(), text_model(tmp_path, TWICE), whole(3), atol=1e-4, rtol=1e-2)
    assert "0.0001 + 0.01·|torch|" in str(found)
