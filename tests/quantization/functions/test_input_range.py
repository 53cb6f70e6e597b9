"""Inputs that leave the device's format: said once, by name and range, and a softmax that keeps its decision."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UnsupportedError
from tests.support.wired import Wired, image

CLASSES = 10
FORMS = ("dialect", "bare", "standard", "qdq")


class Classifier(nn.Module):
    """A linear classifier whose logits reach some hundreds; the loss does not mind."""

    def __init__(self, function=torch.softmax):
        super().__init__()
        self.fc = nn.Linear(16, CLASSES, bias=False)
        self.function = function

    def forward(self, x):
        return self.function(self.fc(x), -1)


def data(count=200):
    """Points around ten directions: logits of the nearest ones lie close together, far beyond 64."""
    generator = torch.Generator().manual_seed(0)
    directions = F.normalize(torch.randn(CLASSES, 16, generator=generator), dim=1)
    labels = torch.arange(count) % CLASSES
    return directions[labels] + 0.08 * torch.randn(count, 16, generator=generator), labels, directions


def classifier(function=torch.softmax, lift=150.0):
    """A trained classifier; its logits have a large part in common, which the loss does not see and leaves as it was."""
    x, labels, directions = data()
    model = Classifier(function)
    with torch.no_grad():
        model.fc.weight.copy_(lift * F.normalize(directions.sum(0), dim=0).expand(CLASSES, -1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model.fc(x), labels).backward()
        optimizer.step()
    return model, x, labels


def calibrated(model, x, **options):
    """The quantized model, and what calibration says."""
    made = linger.init(model, **options).eval()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with linger.calibration():
            made(x)
    return made, [str(w.message) for w in said]


def accuracy(model, x, labels):
    return (model(x).argmax(-1) == labels).float().mean().item()


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax], ids=["softmax", "log_softmax"])
def test_decisions_survive_logits_beyond_64(function, tmp_path):
    model, x, labels = classifier(function)
    before = accuracy(model, x, labels)
    assert before > 0.95
    with torch.no_grad():
        assert model.fc(x).max() > 100
    chip, on_chip = calibrated(copy.deepcopy(model), x, target="venus")
    assert accuracy(chip, x, labels) < 0.8  # what the device's format makes of it
    made, said = calibrated(model, x)
    assert accuracy(made, x, labels) > before - 0.03  # the rounding to 8 bits alone
    (sentence,) = said
    assert sentence.startswith(("SoftmaxInt: its input ran from ", "LogSoftmaxInt: its input ran from "))
    assert "the device's format ends at ±64. So the largest number of each row is subtracted before it" in sentence
    assert "venus has no op that subtracts the largest number first" in on_chip[0]
    report = str(linger.coverage(made))
    assert "the largest number of each row is subtracted first" in report
    assert "numbers are lost" in str(linger.coverage(chip))
    for form in FORMS:
        linger.onnx.export(made, (x[:1],), tmp_path / f"{form}.onnx", form=form)
        assert linger.verify(made, tmp_path / f"{form}.onnx", (x[:1],)).ok, form
    assert "LGR507" not in {f.rule for f in linger.check(tmp_path / "dialect.onnx").findings}
    # whether a chip has the op is that chip's finding
    with pytest.raises(UnsupportedError, match="venus's packer has no iqSubMax"):
        linger.onnx.export(made, (x[:1],), tmp_path / "chip.onnx", target="venus")
    linger.onnx.export(chip, (x[:1],), tmp_path / "chip.onnx")
    assert [f.severity for f in linger.check(tmp_path / "chip.onnx").findings if f.rule == "LGR507"] == ["warning"]


def test_the_subtraction_is_part_of_the_checkpoint():
    model, x, _ = classifier()
    fresh = copy.deepcopy(model)
    made, _ = calibrated(model, x)
    other = linger.init(fresh).eval()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x).dequantize(), made(x).dequantize())
    assert "subtracted first" in str(linger.coverage(other))
    # a checkpoint of an earlier linger has ranges and no such buffer: it computes as it did, and that is said
    older = {key: value for key, value in made.state_dict().items() if not key.endswith("below_max")}
    other.load_state_dict(older)
    with pytest.warns(UserWarning, match="Calibrate the model again: linger then subtracts"):
        other(x)
    assert not torch.equal(other(x).dequantize(), made(x).dequantize())
    # the weights alone decide nothing
    made.load_state_dict({"fc.weight": made.fc.weight.detach().clone()}, strict=False)
    assert "_linger_round_tensor_SoftmaxInt_0.below_max" in made.state_dict()


def test_rows_in_range_are_the_same_integers_with_and_without_it():
    model, x, _ = classifier(lift=0.0)
    plain, said = calibrated(copy.deepcopy(model), x)
    assert said == []
    assert "_linger_round_tensor_SoftmaxInt_0.below_max" not in plain.state_dict()
    forced = copy.deepcopy(plain)
    forced._linger_round_tensor_SoftmaxInt_0.subtract_max(is_wanted=True)
    assert torch.equal(plain(x).dequantize(), forced(x).dequantize())


def test_training_sees_it_from_its_statistics_and_follows_them():
    model, x, labels = classifier()
    made = linger.init(model).train()
    with pytest.warns(
        UserWarning, match="SoftmaxInt: the running range of its input needs a format of ±128.*subtracted before it"
    ):
        probabilities = made(x)
    assert (probabilities.argmax(-1) == labels).float().mean() > 0.9
    probabilities.dequantize()[:, 0].sum().backward()
    assert made.fc.weight.grad.abs().max() > 0
    assert "_linger_round_tensor_SoftmaxInt_0.below_max" in made.state_dict()
    with torch.no_grad():
        made.fc.weight.mul_(0.01)
    for _ in range(60):  # the running range forgets a tenth each time
        made(x)
    assert "_linger_round_tensor_SoftmaxInt_0.below_max" not in made.state_dict()


def test_rows_that_lie_below_the_format_are_seen_too():
    model, x, _ = classifier()
    model.fc.bias = nn.Parameter(torch.full((CLASSES,), -500.0))
    _, said = calibrated(model, x)
    assert "its input ran from -" in said[0]
    quiet = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    with torch.no_grad():
        quiet[0].weight.zero_()
        quiet[0].bias.copy_(torch.tensor([20.0, 0.0, -100.0]))  # the lowest is far from deciding
    assert calibrated(quiet, torch.randn(8, 4))[1] == []


@pytest.mark.parametrize(("function", "name"), [(F.gelu, "iqGelu"), (F.silu, "iqSwish")])
def test_gelu_and_silu_say_what_lies_beyond_16(function, name):
    model = Wired(lambda m, x: function(30 * m.conv(x)))
    made, said = calibrated(model, image())
    assert [s.split(":")[0] for s in said] == [name]
    assert (
        "ends at ±16. What lies beyond counts as ±16. Limit the layer before it with linger.normalize_module" in said[0]
    )
    assert "numbers are lost" in str(linger.coverage(made))
    assert made(image()).dequantize().max() <= 16


def test_the_advised_limit_brings_the_input_into_the_format():
    model, x, _ = classifier()
    linger.normalize_module(model.fc, None, None, None, normalize_output_value=64)
    linger.normalize_layers(model, normalize_weight_value=None, normalize_output_value=None)
    made, said = calibrated(model, x)
    assert said == []
    assert made.fc.scale_o.item() == 2.0


@pytest.mark.parametrize(("function", "last"), [(torch.sigmoid, 127), (torch.tanh, 127)])
def test_sigmoid_and_tanh_lose_nothing_beyond_16(function, last):
    # the device's curve and the real function agree from ±16 on: the last integer of the output, or the first
    model = Wired(lambda m, x: function(60 * m.conv(x)))
    made, said = calibrated(model, image())
    assert said == []
    seen = []
    made.conv.register_forward_hook(lambda layer, args, out: seen.append(60 * out.dequantize()))
    integers = (made(image()).dequantize() * 128).round()
    beyond = seen[0].abs() > 16
    assert beyond.any()
    expected = (function(seen[0]) * 128 + 0.5).floor().clamp(-128, last)
    assert torch.equal(integers[beyond], expected[beyond])


def test_a_mask_makes_room_without_a_warning():
    def masked(m, x):
        scores = m.conv(x)
        return torch.softmax(scores.masked_fill(x.mean(1, keepdim=True) > 0, float("-inf")), -1)

    assert calibrated(Wired(masked), image())[1] == []
