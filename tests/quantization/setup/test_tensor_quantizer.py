"""quant_tensor: Quant where the user asks for it, with a range of its own, in every stage of a model."""

import copy

import onnx
import pytest
import torch
from torch import nn

import linger
from linger import init
from linger.errors import UsageError
from tests.support.wired import Wired, image, quantize

KEY = "_linger_round_tensor_iq_tensor_quant_"


def of_sum(m, x):
    """Two float tensors that no layer quantizes."""
    left = linger.quant_tensor(m, x.sin(), "left")
    right = linger.quant_tensor(m, 3.0 * x, "right")
    return left + right


def test_a_float_model_does_not_change():
    model, x = Wired(of_sum), image()
    assert linger.quant_tensor(model, x) is x
    assert torch.equal(model(x), x.sin() + 3.0 * x)
    assert not any(KEY in key for key in model.state_dict())


def test_values_scale_and_key():
    seen = []
    model = Wired(lambda m, x: seen.append(linger.quant_tensor(m, x)) or m.fc(seen[-1]))
    x = torch.tensor([[0.5, -1.0, 0.25, 0.9]])
    model = quantize(model, x)
    model(torch.tensor([[0.25, -1.0, 2.0, 0.00390625]]))
    # the largest magnitude 1.0 gets 127/1.0 → 2^6 = 64: 0.25·64 = 16, −64, 2·64 = 128 saturates, 0.25 → ⌊0.75⌋ = 0
    assert isinstance(seen[-1], linger.QTensor)
    assert seen[-1].integers().tolist() == [[16, -64, 127, 0]]
    state = model.state_dict()
    assert state[f"{KEY}_default_layername.running_x"] == 1.0
    assert state[f"{KEY}_default_layername.scale_x"] == 64.0
    assert [key for key in state if KEY in key] == [
        f"{KEY}_default_layername.running_x",
        f"{KEY}_default_layername.scale_x",
    ]


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_every_width_exports_and_verifies(bits, tmp_path):
    def forward(m, x):
        return linger.quant_tensor(m, x.sin(), "left", bits=bits) + linger.quant_tensor(m, 3.0 * x, "right", bits=bits)

    model = quantize(Wired(forward), image())
    linger.onnx.export(model, (image(),), tmp_path / "m.onnx")
    nodes = onnx.load(tmp_path / "m.onnx").graph.node
    quants = [n for n in nodes if n.op_type == "Quant"]
    assert [a.i for n in quants for a in n.attribute if a.name == "data_bits"] == [bits, bits]
    assert [n.op_type for n in nodes].count("iqAdd") == 1
    assert linger.verify(model, tmp_path / "m.onnx", [image(seed=7, spread=3.0)]).ok


@pytest.mark.filterwarnings("ignore:calibration. .* saw one and the same number")
def test_two_names_have_two_ranges():
    model = quantize(Wired(of_sum), torch.full((1, 4), 2.0))
    state = model.state_dict()
    assert float(state[f"{KEY}left.running_x"]) == pytest.approx(float(torch.tensor(2.0).sin()))
    assert float(state[f"{KEY}right.running_x"]) == 6.0


def test_one_name_twice_in_a_run_is_an_error():
    model = Wired(lambda m, x: linger.quant_tensor(m, x) + linger.quant_tensor(m, 2.0 * x))
    assert model(image()) is not None  # the float model has no scales to share
    with pytest.raises(UsageError, match=r"'_default_layername' twice.*Give each tensor a name of its own"):
        quantize(model, image())


@pytest.mark.filterwarnings("ignore:calibration. .* saw one and the same number")
def test_a_module_that_runs_twice_has_one_range():
    class Part(nn.Module):
        def forward(self, x):
            return linger.quant_tensor(self, x, "x")

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.fc = Part(), nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.part(x) + self.part(2.0 * x))

    model = quantize(Whole(), torch.full((1, 4), 1.5))
    assert model.state_dict()[f"part.{KEY}x.running_x"] == 3.0


def test_the_range_may_belong_to_another_module_than_the_one_at_work():
    model = Wired(lambda m, x: linger.quant_tensor(m.relu, x, "x") + linger.quant_tensor(m.fc, x, "x"))
    model = quantize(model, image())
    assert {f"relu.{KEY}x.scale_x", f"fc.{KEY}x.scale_x"} <= set(model.state_dict())


def test_quantized_tensors_pass_or_are_requantized(tmp_path):
    kept = []

    def forward(m, x):
        y = m.conv(x)
        kept.append(linger.quant_tensor(m, y, "same") is y)
        wide = linger.quant_tensor(m, y, "wide", bits=16)
        return linger.quant_tensor(m, wide, "narrow", bits=4)

    model = quantize(Wired(forward), image())
    assert all(kept)
    # only what becomes narrower has a range
    assert {key.removeprefix(KEY) for key in model.state_dict() if key.startswith(KEY)} == {
        "narrow.running_x",
        "narrow.scale_x",
    }
    linger.onnx.export(model, (image(),), tmp_path / "m.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node].count("Requant") == 2
    assert linger.verify(model, tmp_path / "m.onnx", [image(seed=7)]).ok


def test_a_tensor_that_a_float_op_wrote_over_is_quantized_again():
    seen = []
    model = Wired(lambda m, x: seen.append(linger.quant_tensor(m, m.conv(x).sin_(), "again")) or seen[-1])
    quantize(model, image())(image())
    assert seen[-1].scale is not None
    assert seen[-1].integers().abs().max() <= 127


def test_the_gradient_passes_and_the_range_learns():
    model = init(Wired(lambda m, x: m.fc(linger.quant_tensor(m, x, "x")))).train()
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().max() > 0
    model(10 * x)
    assert float(model.state_dict()[f"{KEY}x.running_x"]) == pytest.approx(0.9 * 1.0 + 0.1 * 10.0)


def test_a_checkpoint_restores_the_range():
    first, x = quantize(Wired(of_sum), image()), image(seed=3)
    again = init(Wired(of_sum)).eval()
    again.load_state_dict(first.state_dict())
    assert torch.equal(again(x), first(x))
    assert torch.equal(copy.deepcopy(again)(x), first(x))


def test_without_a_range_the_error_names_the_tensor():
    model = init(Wired(of_sum)).eval()
    with pytest.raises(UsageError, match=r"left has no scale yet.*calibration"):
        model(image())


def test_a_part_that_stays_float_keeps_its_tensors_float():
    class Part(nn.Module):
        def forward(self, x):
            return linger.quant_tensor(self, x, "x").sin()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.fc = Part(), nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.part(x))

    by_mark, by_name = Whole(), Whole()
    linger.disable_quant(by_mark.part)
    models = [quantize(by_mark, image()[..., :4]), init(by_name, disable_submodel=["part"]).eval()]
    with linger.calibration():
        models[1](image()[..., :4])
    reasons = ["kept float by linger.disable_quant", "kept float by disable_module or disable_submodel"]
    for model, reason in zip(models, reasons, strict=True):
        found = [(o.where, o.op, o.reason) for o in linger.coverage(model).float_ops if o.op == "quant_tensor"]
        assert found == [("part", "quant_tensor", reason)]


def test_outside_a_run_is_an_error():
    model = quantize(Wired(of_sum), image())
    with pytest.raises(UsageError, match=r"while the model is not running.*inside forward"):
        linger.quant_tensor(model, image(), "left")


@pytest.mark.parametrize("is_quantized", [False, True], ids=["before init", "after init"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"zero_point": 128}, r"zero_point=128: the formats are symmetric"),
        ({"bits": 12}, r"bits=12: no such width"),
        ({"bits": 32}, r"bits=32: no such width"),
        ({"mode": 1}, r"unknown mode 1"),
        ({"name": "a.b"}, r"'a.b' cannot be the name"),
        ({"name": ""}, r"'' cannot be the name"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_arguments(arguments, message, is_quantized):
    model = Wired(lambda m, x: linger.quant_tensor(m, x, **arguments))
    with pytest.raises(UsageError, match=message):
        (init(model).train() if is_quantized else model)(image())


def test_what_is_no_tensor_is_an_error():
    with pytest.raises(UsageError, match=r"not Linear and float.*quant_tensor\(self, x\)"):
        linger.quant_tensor(nn.Linear(1, 1), 1.0)
    model = Wired(lambda m, x: linger.quant_tensor(m, x.long(), "places"))
    with pytest.raises(UsageError, match=r"type torch.int64"):
        quantize(model, image())
