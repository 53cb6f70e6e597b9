"""Weights with a scale for each output channel and unsigned activations: how torch rounds, learns, keeps and exports them."""

import copy
import io
import math

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.quantization import ranges_of

CHANNELS = 8


def uneven(net):
    """A network whose output channels have weights of very different sizes."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in net.modules():
            weight = getattr(module, "weight", None)
            if weight is not None and weight.dim() > 1:
                axis = 1 if isinstance(module, nn.ConvTranspose2d) else 0
                shape = [1] * weight.dim()
                shape[axis] = weight.shape[axis]
                weight.mul_(
                    torch.randint(-3, 2, (weight.shape[axis],), generator=generator).float().exp2().reshape(shape)
                )
    return net.eval()


class Mixed(nn.Module):
    """Convolutions of every kind, sums and joins of signed and unsigned tensors, pools, curves, a product by function."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2)
        self.deep = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)
        self.six, self.gate = nn.ReLU6(), nn.Linear(CHANNELS, CHANNELS)
        self.turned = nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2, groups=2)
        self.weight = nn.Parameter(torch.randn(4, CHANNELS * 4) / 8)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        y = F.relu(x + self.second(x))
        z = F.max_pool2d(self.six(self.deep(y)), 2)
        z = z * torch.sigmoid(self.gate(z.mean((2, 3))))[:, :, None, None]
        z = torch.cat([F.pad(z, (1, 1, 1, 1))[:, :, 1:-1, 1:-1], F.avg_pool2d(y, 2)], 1)[:, :CHANNELS]
        z = F.adaptive_avg_pool2d(F.interpolate(self.turned(z).relu(), scale_factor=0.5), 2)
        return F.linear(z.flatten(1), self.weight)


@pytest.fixture(scope="module")
def images():
    return torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1


def quantized(net, images, **how):
    model = linger.init(linger.trace_layers(copy.deepcopy(net), images[:1]), **how).eval()
    with linger.calibration():
        model(images)
    return model


def outputs(model, images):
    with torch.no_grad():
        result = model(images)
    return result.dequantize() if hasattr(result, "dequantize") else result


def make(kind=Mixed):
    torch.manual_seed(0)
    return uneven(kind())


# exactness
@pytest.mark.parametrize("form", ["dialect", "standard", "bare"])
@pytest.mark.parametrize(
    "how", [{"per_channel": True}, {"unsigned": True}, {"target": "c"}], ids=["channels", "unsigned", "both"]
)
@pytest.mark.parametrize("never_negative", [False, True], ids=["signed input", "input from 0 on"])
@pytest.mark.thin(every=2)
def test_every_form_has_the_integers_of_torch(images, tmp_path, how, form, never_negative):
    images = images.abs() if never_negative else images
    model = quantized(make(), images, **how)
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (images[:1],), path, form=form, dynamic_axes={"x": {0: "n"}})
    proof = linger.verify(model, path, images)
    assert proof.ok, proof.summary()
    assert proof.differing == 0


def test_a_file_says_exponents_and_signs_only_where_there_are_any(images, tmp_path):
    def attributes(**how):
        path = tmp_path / "net.onnx"
        linger.onnx.export(quantized(make(), images, **how), (images[:1],), path, form="bare")
        return {a.name for node in onnx.load(path).graph.node for a in node.attribute}

    assert attributes().isdisjoint({"exponents_w", "o_unsigned"})
    assert attributes(per_channel=True) - attributes() == {"exponents_w"}
    assert attributes(unsigned=True) - attributes() == {"o_unsigned"}


def test_finer_numbers_lose_less(images):
    net = make()
    expected = net(images).detach()

    def error(**how):
        return float((outputs(quantized(net, images, **how), images) - expected).square().sum())

    plain = error()
    assert error(per_channel=True) < plain / 2  # channels lie up to four powers of two apart
    assert error(per_channel=True, unsigned=True) < error(per_channel=True)


# scales of channels
def test_each_channel_has_the_scale_of_its_own_weights(images):
    net = uneven(nn.Sequential(nn.Conv2d(3, CHANNELS, 3)))
    model = quantized(net, images, per_channel=True)
    range_ = ranges_of(model)["0.w"]
    own = [2.0 ** math.floor(math.log2(127 / float(rows.abs().max()))) for rows in net[0].weight.detach()]
    frozen = model.get_submodule("0").freeze(model.get_submodule("0").ranges["x"].scale)
    assert range_.scale == min(own)  # that of the tensor is its coarsest one
    assert [range_.scale * 2**e for e in frozen.exponents] == own
    whole = torch.floor(net[0].weight.detach() * torch.tensor(own)[:, None, None, None] + 0.5)
    assert torch.equal(frozen.weight_integers, whole.to(torch.int8))


def test_channels_of_a_transposed_convolution_are_its_outputs(images):
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, groups=2)
    ).eval()  # outputs 0 to 5, three of each group
    sizes = 0.5 ** torch.arange(6.0)
    with torch.no_grad():
        net[1].weight.uniform_(0.9, 0.99)
        for output in range(6):
            group, place = divmod(output, 3)
            net[1].weight[2 * group : 2 * group + 2, place] *= sizes[output]
    layer = quantized(net, images, per_channel=True).get_submodule("1")
    assert layer.freeze(layer.ranges["x"].scale).exponents == (0, 1, 2, 3, 4, 5)


def test_a_channel_of_zeros_and_a_tiny_one_do_not_refine_the_tensor(images):
    net = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, 0.0, 2.0**-30, 0.25]).reshape(4, 1, 1, 1).expand(4, 3, 1, 1))
    layer = quantized(net, images, per_channel=True).get_submodule("0")
    assert layer.freeze(layer.ranges["x"].scale).exponents == (0, 0, 12, 2)  # no channel is finer than by 2^12


def test_a_bias_that_would_not_fit_makes_its_channel_coarser(images):
    net = nn.Sequential(nn.Conv2d(3, 2, 1)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, 2.0**-10]).reshape(2, 1, 1, 1).expand(2, 3, 1, 1))
        net[0].bias.copy_(torch.tensor([0.0, 1000.0]))
    layer = quantized(net, images, per_channel=True).get_submodule("0")
    scale_x = layer.ranges["x"].scale
    frozen = layer.freeze(scale_x)
    largest = 2**31 - 1
    assert frozen.exponents[1] == math.floor(math.log2(largest / 1000 / scale_x / frozen.scale_w)) < 10
    assert int(frozen.bias_integers[1]) == 1000 * scale_x * frozen.scale_w * 2 ** frozen.exponents[1]


def test_least_squares_finds_the_best_power_of_two_of_every_channel(images):
    net = uneven(nn.Sequential(nn.Conv2d(3, CHANNELS, 3)))
    with torch.no_grad():
        net[0].weight[2, 0, 0, 0] = 40 * net[0].weight[2].abs().max()  # what lies this far out is better cut
    model = quantized(net, images, per_channel=True, parameter_bits=4)
    linger.choose_ranges(model, weights="mse")
    layer = model.get_submodule("0")
    frozen = layer.freeze(layer.ranges["x"].scale)
    scales = [frozen.scale_w * 2**e for e in frozen.exponents]

    def error(rows, scale):
        return float((rows - (rows * scale + 0.5).floor().clamp(-8, 7) / scale).double().square().sum())

    for rows, scale in zip(net[0].weight.detach(), scales, strict=True):
        coarsest = 2.0 ** math.floor(math.log2(7 / float(rows.abs().max())))
        assert error(rows, scale) == min(error(rows, coarsest * 2.0**k) for k in range(5))


def test_one_channel_has_one_scale(images):
    model = quantized(nn.Sequential(nn.Conv2d(3, 1, 1)).eval(), images, per_channel=True)
    assert ranges_of(model)["0.w"].rows is None


# which tensors are unsigned
def test_what_only_a_relu_reads_uses_all_codes(images):
    net = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), nn.ReLU(), nn.Conv2d(CHANNELS, 4, 1)).eval()
    signed, unsigned = (quantized(net, images, unsigned=is_unsigned) for is_unsigned in (False, True))
    behind = {}
    with torch.no_grad():
        behind["signed"], behind["unsigned"] = (
            m.get_submodule("1")(m.get_submodule("0")(images)) for m in (signed, unsigned)
        )
    assert behind["unsigned"].is_unsigned
    assert behind["unsigned"].scale == 2 * behind["signed"].scale
    assert 127 < int(behind["unsigned"].integers().max()) <= 255
    assert behind["unsigned"].integers().dtype == torch.uint8
    assert not ranges_of(unsigned)["2.o"].users.is_unsigned(8)  # its numbers go below zero, and are the model's output


def test_a_tensor_that_somebody_else_reads_stays_signed(images):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.end = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            y = self.conv(x)
            return self.end(F.relu(y)) + self.end(y)

    model = quantized(Both().eval(), images, unsigned=True)
    assert not ranges_of(model)["conv.o"].users.is_unsigned(8)


def test_an_op_without_unsigned_operands_gets_signed_ones(images, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.LayerNorm(4 * 64), nn.Linear(256, 3)).eval()
    model = quantized(net, images, unsigned=True)
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (images[:1],), path)
    assert "Requant" in {node.op_type for node in onnx.load(path).graph.node}
    assert linger.verify(model, path, images[:1]).differing == 0


# inputs
def test_an_input_that_is_never_negative_uses_all_codes(tmp_path):
    """Images of 0 … 1: the step is 1/128 instead of 1/64, and what is below 0 later becomes 0."""
    net = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    nn.init.ones_(net[0].weight)
    x = torch.tensor([[0.0, 1.0], [0.5, 0.25]])
    model = linger.init(copy.deepcopy(net), unsigned=True).eval()
    with linger.calibration():
        model(x)
    assert ranges_of(model)["0.x"].scale == 128.0
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (x[:1],), path, form="bare", dynamic_axes={"input": {0: "n"}})
    (quant, *_) = onnx.load(path).graph.node
    assert {a.name: a.i for a in quant.attribute if a.name == "o_unsigned"} == {"o_unsigned": 1}
    found = linger.Session(path).intermediates({"input": np.array([[-1.0, 1.5], [0.5, 3.0]], np.float32)})
    integers = next(iter(found[name] for name in quant.output))
    assert integers.dtype == np.uint8
    assert integers.tolist() == [[0, 192], [64, 255]]  # worked out by hand: 128·1.5; 128·3 = 384 is beyond 255
    assert linger.verify(model, path, torch.tensor([[-1.0, 1.5], [0.5, 3.0]])).differing == 0


def test_one_negative_number_makes_an_input_signed_for_good():
    model = linger.init(nn.Sequential(nn.Linear(2, 1)), unsigned=True).eval()
    scales = []
    for x in ([[0.0, 1.0]], [[0.0, -0.25]], [[0.0, 1.0]]):
        with linger.calibration():
            model(torch.tensor(x))
        scales.append(ranges_of(model)["0.x"].scale)
    assert scales == [128.0, 64.0, 64.0]
    again = linger.init(nn.Sequential(nn.Linear(2, 1)), unsigned=True).eval()
    again.load_state_dict(model.state_dict())
    with linger.calibration():
        again(torch.tensor([[0.0, 1.0]]))
    assert ranges_of(again)["0.x"].scale == 64.0


def test_an_input_without_the_choice_stays_signed():
    model = linger.init(nn.Sequential(nn.Linear(2, 1)), per_channel=True).eval()
    with linger.calibration():
        model(torch.tensor([[0.0, 1.0]]))
    assert ranges_of(model)["0.x"].scale == 64.0


def test_wide_activations_are_signed(images):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    linger.quant_module(net[0], data_bits=8, parameter_bits=8, out_bits=16)
    model = quantized(net, images, unsigned=True)
    assert not ranges_of(model)["0.o"].users.is_unsigned(16)


# what keeps them
@pytest.fixture
def chosen(images):
    """A model whose ranges were chosen by methods of calibration."""
    model = quantized(make(), images, per_channel=True, unsigned=True)
    linger.choose_ranges(model, weights="mse", outputs="topk")
    return model


def test_a_checkpoint_keeps_them(images, chosen):
    other = linger.init(linger.trace_layers(make(), images[:1]), per_channel=True, unsigned=True).eval()
    other.load_state_dict(chosen.state_dict())
    assert torch.equal(outputs(other, images), outputs(chosen, images))


def test_a_settings_file_keeps_them(images, chosen, tmp_path):
    linger.save_config(chosen, tmp_path / "net.yaml")
    other = linger.init(linger.trace_layers(make(), images[:1]), config_file=tmp_path / "net.yaml").eval()
    assert torch.equal(outputs(other, images), outputs(chosen, images))


def test_copies_and_pickles_keep_them(images, chosen):
    file = io.BytesIO()
    torch.save(chosen, file)
    file.seek(0)
    for other in (copy.deepcopy(chosen), torch.load(file, weights_only=False)):
        assert torch.equal(outputs(other, images), outputs(chosen, images))


def test_a_choice_can_be_undone(images, chosen):
    before = outputs(chosen, images)
    for range_ in ranges_of(chosen).values():
        if range_.scale:
            saved, scale = range_.save(), range_.scale
            range_.choose(2 * scale)
            outputs(chosen, images)
            range_.restore(saved)
    assert torch.equal(outputs(chosen, images), before)


def test_a_chip_refuses_them_by_name():
    with pytest.raises(UsageError, match="venus does not have per_channel=True and unsigned=True"):
        linger.init(nn.Sequential(nn.Conv2d(1, 1, 1)), target="venus", per_channel=True, unsigned=True)


def test_a_word_is_no_choice():
    with pytest.raises(UsageError, match=r"^init: per_channel='no' and unsigned='yes'\. Give True or False"):
        linger.init(nn.Sequential(nn.Conv2d(1, 1, 1)), per_channel="no", unsigned="yes")


# learning
@pytest.mark.parametrize("method", ["tqt", "lsq"])
def test_learned_scales_begin_where_calibration_left_them(images, method):
    model = quantized(make(), images, per_channel=True, unsigned=True)
    before = outputs(model, images)
    linger.learn_scales(model, method)
    assert torch.equal(outputs(model, images), before)
    name = {"tqt": "threshold_w", "lsq": "step_w"}[method]
    assert dict(model.named_parameters())[f"second.{name}"].shape == (CHANNELS,)


def test_the_gradient_of_a_channel_is_that_of_its_own_threshold(images):
    """d/d(log2 t) of y = s·q is ln 2 · s · (q − w/s) for numbers inside, times the gradient that arrives."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False)).eval()
    with torch.no_grad():
        net[0].weight.mul_(torch.tensor([1.0, 0.25, 0.5, 0.125]).reshape(4, 1, 1, 1))
    model = quantized(net, images, per_channel=True)
    linger.learn_scales(model, "tqt")
    layer = model.get_submodule("0")
    frozen = layer.freeze(layer.ranges["x"].scale)
    steps = torch.tensor([1 / (frozen.scale_w * 2**e) for e in frozen.exponents])[:, None]
    weight = layer.weight.detach().flatten(1)
    model.train()
    x = images[:2]
    y = model(x).dequantize()
    y.sum().backward()
    inputs = (x * layer.ranges["x"].scale + 0.5).floor() / layer.ranges["x"].scale
    arriving = inputs.sum((0, 2, 3))[None]  # of each weight: the sum of the numbers that it multiplies
    expected = (math.log(2) * ((weight / steps + 0.5).floor() * steps - weight) * arriving).sum(1)
    found = dict(model.named_parameters())["0.threshold_w"].grad
    # 24 products of float32 are added in another order
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_training_moves_weights_of_every_channel(images):
    model = quantized(make(), images, per_channel=True, unsigned=True).train()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(images).dequantize().square().sum().backward()
        optimizer.step()
    moved = (model.state_dict()["second.weight"] - before["second.weight"]).abs().flatten(1).amax(1)
    assert bool((moved > 0).all())
    model.eval()
    assert bool(outputs(model, images).isfinite().all())


def test_rounding_by_error_fits_every_channel_on_its_own_grid(images, tmp_path):
    torch.manual_seed(0)
    net = uneven(
        nn.Sequential(
            nn.Conv2d(3, 6, 3),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3, groups=2),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 2, groups=2),
        )
    )
    model = linger.init(copy.deepcopy(net), per_channel=True, unsigned=True, parameter_bits=4).eval()
    with linger.calibration():
        model(images)

    def exponents():
        layers = [model.get_submodule(name) for name in ("0", "2", "4")]
        return [layer.freeze(layer.ranges["x"].scale).exponents for layer in layers]

    before = exponents()
    result = linger.round_weights(model, net, list(images.split(4)))
    assert {change.name for change in result.changes} == {"0", "2", "4"}
    assert result.after_db > result.before_db + 0.5
    assert exponents() == before
    linger.onnx.export(model, (images[:1],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", images[:1]).differing == 0


# recurrent layers
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_rows_of_gates_have_scales_of_their_own(kind, tmp_path):
    torch.manual_seed(3)
    net, x = kind(6, 5, batch_first=True, bidirectional=True).eval(), torch.randn(4, 7, 6)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.startswith("weight"):
                parameter.mul_(torch.randint(-4, 1, (len(parameter),)).float().exp2()[:, None])
    model = linger.init(nn.ModuleDict({"r": net})["r"], per_channel=True).eval()
    with linger.calibration():
        model(x)
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (x[:1],), path)
    (first, *_) = [n for n in onnx.load(path).graph.node if n.op_type.startswith(("LSTM", "GRU"))]
    names = {a.name for a in first.attribute}
    assert {"exponents_iw", "exponents_hw"} <= names
    assert linger.verify(model, path, x[:1]).differing == 0


# checkpoints of other numbers
class Gates(nn.Module):
    """A recurrent layer behind a linear one."""

    def __init__(self):
        super().__init__()
        self.linear, self.gates = nn.Linear(6, 6), nn.LSTM(6, 5, batch_first=True)

    def forward(self, x):
        return self.gates(self.linear(x))[0]


class Function(nn.Module):
    """A product that the forward calls."""

    def __init__(self, channels=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 6))

    def forward(self, x):
        return F.linear(x, self.weight)


ROWS = torch.rand(4, 3, 6, generator=torch.Generator().manual_seed(2)) - 0.5


def made_of(kind, *, is_calibrated=True, **how):
    model = linger.init(make(kind), **how).eval()
    if is_calibrated:
        with linger.calibration():
            model(ROWS)
    return model


@pytest.mark.parametrize("is_chosen", [False, True], ids=["largest", "chosen"])
@pytest.mark.parametrize("is_calibrated", [False, True], ids=["fresh", "calibrated"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
@pytest.mark.parametrize("is_finer", [True, False], ids=["finer", "coarser"])
def test_a_checkpoint_of_other_scales_is_refused_by_the_names_of_all_layers(is_finer, strict, is_calibrated, is_chosen):
    source = made_of(Gates, per_channel=is_finer)
    if is_chosen:
        linger.choose_ranges(source, weights="mse")
    target = made_of(Gates, is_calibrated=is_calibrated, per_channel=not is_finer)
    before = copy.deepcopy(target.state_dict())
    many, one = "one for each output channel", "one scale"
    what = f"{many} there, {one} here" if is_finer else f"{one} there, {many} here"
    with pytest.raises(UsageError) as refused:
        target.load_state_dict(source.state_dict(), strict=strict)
    assert f"load_state_dict: linear.w, gates.iw, gates.hw ({what}): " in str(refused.value)
    assert f"linger.init(…, per_channel={is_finer}, unsigned=False)" in str(refused.value)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


def test_the_scales_of_channels_are_in_the_checkpoint():
    model = made_of(Gates, per_channel=True)
    scales = {name: scale.shape for name, scale in model.state_dict().items() if "scale_" in name and "w" in name}
    assert scales == {"linear.scale_w": (6,), "gates.scale_iw": (20,), "gates.scale_hw": (20,)}
    layer = model.linear
    frozen = layer.freeze(layer.ranges["x"].scale)
    assert model.state_dict()["linear.scale_w"].tolist() == [frozen.scale_w * 2**e for e in frozen.exponents]


def test_a_checkpoint_of_unsigned_tensors_is_refused_where_they_are_signed(images):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU()).eval()
    source, target = quantized(net, images, unsigned=True), quantized(net, images)
    with pytest.raises(
        UsageError, match=r"0\.o, 2\.o \(0 … 255 there, signed here\).*per_channel=False, unsigned=True"
    ):
        target.load_state_dict(source.state_dict(), strict=False)


def test_a_checkpoint_of_signed_tensors_keeps_its_integers_in_a_model_with_unsigned_ones(images):
    source, traced = quantized(make(), images), linger.trace_layers(make(), images[:1])
    for target in (quantized(make(), images, unsigned=True), linger.init(traced, unsigned=True).eval()):
        target.load_state_dict(source.state_dict())
        assert torch.equal(outputs(target, images), outputs(source, images))


def test_a_part_and_a_model_around_are_refused_too(images):
    source, target = made_of(Gates, per_channel=True), made_of(Gates)
    with pytest.raises(UsageError, match="load_state_dict: iw, hw "):
        target.gates.load_state_dict(source.gates.state_dict())
    with pytest.raises(UsageError, match=r"load_state_dict: 1\.linear\.w, "):
        nn.Sequential(nn.Identity(), target).load_state_dict(nn.Sequential(nn.Identity(), source).state_dict())


@pytest.mark.parametrize("is_calibrated", [False, True], ids=["fresh", "calibrated"])
def test_scales_of_a_function_are_refused_in_a_model_with_one(is_calibrated):
    target = made_of(Function, is_calibrated=is_calibrated)
    with pytest.raises(UsageError, match=r"function_linear_0\.w \(one for each output channel there"):
        target.load_state_dict(made_of(Function, per_channel=True).state_dict())


def test_one_scale_of_a_function_is_refused_when_its_channels_are_known():
    source, target = made_of(Function), made_of(Function, is_calibrated=False, per_channel=True)
    target.load_state_dict(source.state_dict())
    with pytest.raises(UsageError, match=r"LinearInt\.w \(one scale there, one for each output channel here\)"):
        target(ROWS)
    with pytest.raises(UsageError, match=r"function_linear_0\.w \(one scale there"):
        made_of(Function, per_channel=True).load_state_dict(source.state_dict())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_function_keeps_its_scales_in_a_checkpoint(channels):
    source, target = (linger.init(Function(channels), per_channel=True).eval() for _ in range(2))
    with linger.calibration():
        source(ROWS)
    target.load_state_dict(source.state_dict())
    assert torch.equal(outputs(target, ROWS), outputs(source, ROWS))


def test_a_part_of_a_sharded_checkpoint_does_not_fit_either():
    """`torch.distributed.checkpoint.load` reads only what the model has: the sizes say that it is something else."""
    from torch.distributed.checkpoint import default_planner

    content = default_planner._create_default_local_metadata(made_of(Gates, per_channel=True).state_dict())
    with pytest.raises(
        ValueError, match=r"Size mismatch between saved torch.Size\(\[6\]\) and current: torch.Size\(\[1\]\)"
    ):
        default_planner.create_default_local_load_plan(made_of(Gates).state_dict(), content)
