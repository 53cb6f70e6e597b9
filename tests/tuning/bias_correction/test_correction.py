# SPDX-License-Identifier: Apache-2.0
"""Bias correction: numbers worked out by hand, every kind of layer, and what makes it worse is undone."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from tests.support.tuning import Kind, ranges_of, real_copy


def quantized(model: nn.Module, *inputs: Tensor) -> tuple[nn.Module, nn.Module]:
    """A quantized and calibrated copy, and the float model."""
    reference = model.eval()
    made = linger.init(copy.deepcopy(model)).eval()
    with torch.no_grad(), linger.calibration():
        made(*inputs)
    return made, reference


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    made = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(weight))
        if bias is not None:
            made.bias.copy_(torch.tensor(bias))
    return made


# by hand: weights up to 127/64 have scale 64, so 2^-7 = 0.5/64 is rounded to 1/64, which is 2^-7 too much
LARGEST, SMALL = 127 / 64, 2.0**-7
INPUT = torch.tensor([[0.0, 1.5], [0.0, 0.5]])  # on the grid of scale 64; the mean of the second column is 1


def test_a_shift_worked_out_by_hand() -> None:
    model, reference = quantized(linear([[LARGEST, SMALL], [LARGEST, 0.0]], [0.25, 0.5]), INPUT)
    result = linger.correct_biases(model, reference, INPUT)
    # channel 0 is 2^-7·1 too large on average, channel 1 is exact
    assert model.bias.tolist() == [0.25 - 2.0**-7, 0.5]
    assert [change.name for change in result.changes] == [""]
    # in float channel 0 is 0.25 + 1.5·2^-7 and 0.25 + 0.5·2^-7, channel 1 is 0.5: σ = 0.1211
    y = reference(INPUT).detach()
    assert result.changes[0].after == pytest.approx(2.0**-7 / float(y.std(correction=0)), rel=1e-5)  # y is float32


def test_a_layer_counts_what_the_corrected_one_before_it_delivers() -> None:
    model, reference = quantized(nn.Sequential(linear([[LARGEST, SMALL]]), linear([[1.0]])), INPUT)
    linger.correct_biases(model, reference, INPUT)
    # the first layer makes the whole error; on uncorrected inputs the second would correct it once more
    assert model[0].bias.item() == -(2.0**-7)
    assert model[1].bias.item() == 0.0


def test_batches_count_by_their_positions() -> None:
    model, reference = quantized(linear([[LARGEST, SMALL]], [0.0]), INPUT)
    batches = [torch.tensor([[0.0, 1.5], [0.0, 1.5], [0.0, 1.5]]), torch.tensor([[0.0, 0.5]])]
    linger.correct_biases(model, reference, batches)
    # the shifts are 1.5 and 0.5, in the ratio 3 : 1, so m = 1.25; s² = 3/4·0.25² + 1/4·0.75² = 0.1875
    assert model.bias.item() == pytest.approx(-(2.0**-7) * 1.25 * 1.25**2 / (1.25**2 + 0.1875))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = linear([[LARGEST, SMALL], [0.0, 1.0]], [0.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(x) + self.shared(x * 0.5)


def test_a_layer_that_runs_twice_gets_the_mean_of_its_runs() -> None:
    model, reference = quantized(Twice(), INPUT)
    linger.correct_biases(model, reference, INPUT)
    # 2^-7 too much in the first run, half of that in the second: m = 0.75 and s² = 0.25²
    assert model.shared.bias.tolist() == pytest.approx([-(2.0**-7) * 0.75 * 0.9, 0.0])


def test_a_shift_that_does_not_last_is_left() -> None:
    model, reference = quantized(linear([[LARGEST, SMALL]], [0.0]), INPUT)
    batches = [torch.tensor([[0.0, 1.5]]), torch.tensor([[0.0, -1.5]])]
    linger.correct_biases(model, reference, batches)
    assert model.bias.item() == 0.0
    constant = [torch.tensor([[0.0, 1.5]])] * 3
    linger.correct_biases(model, reference, constant)
    assert model.bias.item() == -(2.0**-7) * 1.5


class Nets(nn.Module):
    """Every kind of product."""

    def __init__(self, *, bias: bool, affine: bool = True) -> None:
        super().__init__()
        self.signal = nn.Conv1d(3, 6, 3, bias=bias)
        self.upwards = nn.ConvTranspose1d(6, 4, 2, stride=2, bias=bias)
        self.first = nn.Conv2d(1, 6, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(6, affine=affine)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, bias=bias)
        self.transposed = nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2, bias=bias)
        self.last = nn.Linear(4, 5, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.upwards(self.signal(x)).unsqueeze(1)
        x = torch.tanh(self.bn(self.first(x)))
        x = self.transposed(torch.tanh(self.depthwise(x)))
        return self.last(x.flatten(2).transpose(1, 2))


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """With statistics of the batch norms, as after a training."""
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)
    return model.eval()


def coarse(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """With 4 bits of each weight left, so that there are shifts to see, and wide outputs, which do not saturate."""
    for found in ranges_of(model).values():
        if found.kind is Kind.WEIGHT:
            found.choose(found.scale / 16)
        elif found.kind is Kind.OUTPUT and "_linger" not in found.key:
            found.choose(found.scale / 2)
    with torch.no_grad():
        model(*inputs)
    return model


def distances(model: nn.Module, reference: nn.Module, x: Tensor) -> dict[str, float]:
    """How far each layer's channels are from the float ones on average, at most, in steps of the layer's output."""
    found: dict[str, Tensor] = {}

    def keep(path: str):
        def hook(module: nn.Module, _args: object, output: Tensor) -> None:
            y = output.detach().dequantize() if isinstance(output, linger.QTensor) else output.detach()
            axis = -1 if path == "last" else 1
            mean = y.transpose(axis, -1).reshape(-1, y.shape[axis]).mean(0)
            if path in found:
                step = 1.0 / module.read("scale_o")
                steps[path] = float((mean - found[path]).abs().max()) / step
            else:
                found[path] = mean

        return hook

    steps: dict[str, float] = {}
    for net in (reference, model):
        paths = {path: m for path, m in net.named_children() if path in LAYERS}
        handles = [module.register_forward_hook(keep(path)) for path, module in paths.items()]
        net(x)
        for handle in handles:
            handle.remove()
    return steps


LAYERS = ("signal", "upwards", "first", "bn", "depthwise", "transposed", "last")


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "without"])
def test_every_kind_of_layer_agrees_on_average_afterwards(bias: bool) -> None:
    x = torch.rand(8, 3, 12) * 2
    model, reference = quantized(settled(Nets(bias=bias), x), x)
    before = distances(coarse(model, x), reference, x)
    result = linger.correct_biases(model, reference, x)
    assert [change.name for change in result.changes] == list(LAYERS)
    assert result.after_db > result.before_db
    # rounding moves each value by half a step at most, and so the mean; float32 sums move it a little more
    after = distances(model, reference, x)
    assert max(before.values()) > 2
    assert max(after.values()) < 0.6, str(after)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("is_reference_fused", [True, False], ids=["fused", "apart"])
def test_a_folded_batch_norm(affine: bool, is_reference_fused: bool) -> None:
    x = torch.rand(8, 1, 12, 12)
    source = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6, affine=affine), nn.Tanh())
    source = settled(source, x)
    if affine:
        with torch.no_grad():
            source[1].weight.uniform_(-2.0, 2.0)
    fused = copy.deepcopy(source)
    linger.trace_layers(fused, fused, x)
    made = linger.init(copy.deepcopy(fused)).eval()
    with torch.no_grad(), linger.calibration():
        made(x)
    coarse(made, x)
    for parameter in (*made.parameters(), *source.parameters()):
        parameter.requires_grad_(requires_grad=False)
    folded = copy.deepcopy(made)
    result = linger.correct_biases(made, fused if is_reference_fused else source, x)
    assert result.after_db > result.before_db
    expected = source[:2](x).mean((0, 2, 3))
    # rounding moves each value by half a step at most, and so the mean
    found = made[0](x).dequantize().mean((0, 2, 3))
    step = 1.0 / made[0].read("scale_o")
    was = folded[0](x).dequantize().mean((0, 2, 3))
    assert float((was - expected).abs().max()) > step
    assert float((found - expected).abs().max()) <= step


class Functional(nn.Module):
    """Products in its own forward: one with a parameter as bias, called twice, one without."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.weight, self.bias = nn.Parameter(torch.rand(6, 6)), nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(self.first(x), self.weight, bias=self.bias)
        x = F.linear(torch.relu(x), self.weight, self.bias)
        return F.linear(x, self.weight)


def test_a_product_in_a_users_own_forward() -> None:
    x = torch.rand(16, 4)
    model, reference = quantized(Functional(), x)
    model._modules["_linger_round_tensor_function_linear_0"].ranges["w"].choose_range(8.0)
    model(x)
    result = linger.correct_biases(model, reference, x)
    assert [change.name for change in result.changes] == ["first", "bias"]
    assert result.after_db > result.before_db
    assert float(model.bias.detach().abs().max()) > 0
    assert not reference.bias.any()


def test_the_sign_of_the_correction_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(64, 8)
    model, reference = quantized(nn.Linear(8, 4), x)
    model.ranges["w"].choose_range(2.0)
    model(x)
    other = copy.deepcopy(model)
    assert (
        linger.correct_biases(model, reference, x).after_db > 1 + linger.correct_biases(other, reference, x).before_db
    )
    layer = "linger.quantization.layers.layer.QuantLayer.shift_output"
    right = resolve_name(layer)
    monkeypatch.setattr(layer, lambda layer, shift: right(layer, -shift))
    faulty, _ = quantized(reference, x)
    faulty.ranges["w"].choose_range(2.0)
    result = linger.correct_biases(faulty, reference, x)
    assert result.after_db == result.before_db
    assert result.changes[0].what.startswith("undone")


class Crossed(nn.Module):
    """Two branches that are each other's negative: what is subtracted from both cancels, and so does any error of both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) - self.second(x)


def test_what_makes_it_worse_is_undone() -> None:
    """The shift of one layer undoes that of another; where only one of them is corrected, the error grows."""
    x = torch.rand(64, 4)
    source = Crossed()
    with torch.no_grad():
        source.second.weight.copy_(source.first.weight)
        source.second.bias.zero_()
        source.first.bias.fill_(3.0)
    model, reference = quantized(source, x)
    # the same function in float, from other sums: each layer's mean differs by 2 from what the quantized one was made of
    with torch.no_grad():
        reference.second.bias.fill_(2.0)
        reference.first.bias.fill_(5.0)
    for name in ("first", "second"):  # the first saturates where its mean is shifted
        assert getattr(model, name).read("running_o") < 5.0
    before = {key: value.clone() for key, value in model.state_dict().items()}
    result = linger.correct_biases(model, reference, x)
    assert result.after_db == result.before_db
    assert [change.what for change in result.changes] == ["undone: the error rises (dB)"]
    assert result.changes[0].after < result.before_db
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_checkpoints_and_files_hold_the_correction(tmp_path: Path) -> None:
    x = torch.rand(8, 3, 12) * 2
    source = settled(Nets(bias=False), x)
    model, reference = quantized(source, x)
    linger.correct_biases(model, reference, x)
    y = model(x)
    checkpoint = {key: value.clone() for key, value in model.state_dict().items()}
    assert "depthwise.bias" in checkpoint
    fresh = linger.init(copy.deepcopy(source)).eval()
    with torch.no_grad(), linger.calibration():
        fresh(torch.rand(8, 3, 12))
    before = {key: value.clone() for key, value in fresh.state_dict().items()}
    fresh.load_state_dict(checkpoint)
    assert torch.equal(fresh(x).dequantize(), y.dequantize())
    fresh.load_state_dict(before)  # a checkpoint without these biases takes them away again
    assert fresh.depthwise.bias is None
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok


def test_bad_input_leaves_the_model_as_it_was() -> None:
    x = torch.rand(4, 4)
    model, reference = quantized(nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2)), x)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for data, message in (
        ([], "the data are empty"),
        (torch.full((2, 4), math.nan), "holds NaN"),
        (torch.rand(2, 7), "forward pass fails"),
    ):
        with pytest.raises(linger.UsageError, match=message):
            linger.correct_biases(model, reference, data)
    with pytest.raises(linger.UsageError, match="not quantized"):
        linger.correct_biases(reference, reference, x)
    with pytest.raises(linger.UsageError, match="quantized already"):
        linger.correct_biases(model, model, x)
    with pytest.raises(linger.UsageError, match="has no layer 0, 1"):
        linger.correct_biases(model, nn.Linear(4, 2), x)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("is_encoder", [False, True], ids=["attention", "encoder"])
def test_the_projections_of_attention(is_encoder: bool) -> None:
    x = torch.rand(4, 6, 8) + 0.5
    source: nn.Module = nn.MultiheadAttention(8, 2, batch_first=True)
    if is_encoder:
        source = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        inputs: tuple[Tensor, ...] = (x,)
    else:
        inputs = (x, x, x)
    model, reference = quantized(source, *inputs)
    coarse(model, *inputs)
    result = linger.correct_biases(model, reference, inputs)
    path = "self_attn." if is_encoder else ""
    names = [f"{path}in_proj_bias, {name}" for name in ("query", "key", "value")] + [f"{path}out_proj"]
    assert [change.name for change in result.changes][:4] == names
    assert all(change.after > 0.001 for change in result.changes[:4])
    assert result.after_db > result.before_db


class Mixed(nn.Module):
    """Everything that is corrected in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.lstm, self.cell = nn.LSTM(4, 6, bidirectional=True, batch_first=True), nn.GRUCell(12, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.bias, self.weight = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.rand(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.bn(self.conv(x))).flatten(2).transpose(1, 2)
        x, _ = self.lstm(x)
        x = torch.stack([self.cell(step) for step in x.unbind(1)], 1)
        x, _ = self.attention(x, x, x)
        return F.linear(x, self.weight, self.bias)


def test_a_quantized_model_in_real_numbers_is_a_reference_too() -> None:
    x = torch.rand(3, 1, 4, 5)
    source = settled(Mixed(), x)
    linger.trace_layers(source, source, x)
    model, reference = quantized(source, x)
    other, real = copy.deepcopy(model), real_copy(model)
    results = [linger.correct_biases(coarse(m, x), r, x) for m, r in ((model, reference), (other, real))]
    names = [change.name for change in results[0].changes]
    keys = ["conv", "lstm.bias_ih_l0", "lstm.bias_ih_l0_reverse", "cell.bias_ih", "attention.out_proj", "bias"]
    assert set(keys) < set(names)
    assert [change.name for change in results[1].changes] == names
    # both references compute the same in float32, in another order; where a rounding tips over, a shift differs a little
    before = dict(source.named_parameters())
    for key, bias in ((key, p.detach()) for key, p in model.named_parameters() if "bias" in key and key in before):
        shift, difference = bias - before[key].detach(), bias - other.get_parameter(key).detach()
        assert float(difference.abs().max()) <= 0.1 * float(shift.abs().max()), key
