"""Networks as users write them, for chips: accepted as they are, with the simulation's integers in the file."""

from functools import partial

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.chip_networks import attribute, op_types

pytestmark = pytest.mark.needs_torch

PROVEN = ["venus", "arcs"]


def block(inputs, outputs, size=3, relu=nn.ReLU, **settings):
    """Convolution, batch norm, activation."""
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **settings)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), relu())


class InvertedResidual(nn.Module):
    """The block of MobileNetV2: wide, depthwise, narrow, and a way around it."""

    def __init__(self, inputs, outputs, stride, factor):
        super().__init__()
        wide = inputs * factor
        self.has_shortcut = stride == 1 and inputs == outputs
        self.way = nn.Sequential(
            block(inputs, wide, 1, nn.ReLU6),
            block(wide, wide, 3, nn.ReLU6, stride=stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
        return x + self.way(x) if self.has_shortcut else self.way(x)


def mobile_net():
    return nn.Sequential(
        block(3, 8, 3, nn.ReLU6, stride=2),
        InvertedResidual(8, 8, 1, 2),
        InvertedResidual(8, 12, 2, 4),
        InvertedResidual(12, 12, 1, 4),
        block(12, 32, 1, nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, 10),
    )


class UNet(nn.Module):
    """Down, up by transposed convolutions, with and without bias, and joins."""

    def __init__(self):
        super().__init__()
        self.top, self.middle, self.bottom = block(1, 8), block(8, 16), block(16, 32)
        self.up_first, self.first = nn.ConvTranspose2d(32, 16, 2, 2), block(32, 16)
        self.up_second, self.second = nn.ConvTranspose2d(16, 8, 2, 2, bias=False), block(16, 8)
        self.out, self.pool = nn.Conv2d(8, 2, 1), nn.MaxPool2d(2)

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(self.pool(top))
        y = self.up_first(self.bottom(self.pool(middle)))
        y = self.up_second(self.first(torch.cat([y, middle], 1)))
        return self.out(self.second(torch.cat([y, top], 1)))


class Residual(nn.Module):
    """The basic block of a ResNet, with a 1×1 convolution of stride 2 around it."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = block(inputs, outputs, stride=stride)
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.around = nn.Identity() if stride == 1 and inputs == outputs else around

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.around(x))


def resnet():
    return nn.Sequential(
        block(3, 8),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Attention(nn.Module):
    """torch's own attention between linear layers."""

    def __init__(self):
        super().__init__()
        self.into, self.attention, self.out = (
            nn.Linear(16, 32),
            nn.MultiheadAttention(32, 4, batch_first=True),
            nn.Linear(32, 10),
        )

    def forward(self, x):
        y = self.into(x)
        return self.out(self.attention(y, y, y, need_weights=False)[0])


class Encoder(nn.Module):
    """torch's own encoder layer between linear layers, its biases as torch makes them."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(16, 32), nn.Linear(32, 10)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.out(self.layer(self.into(x)))


class VisionTransformer(nn.Module):
    """Patches, a learned position, attention and a linear way, each with a norm before it."""

    def __init__(self):
        super().__init__()
        self.patches, self.position = nn.Conv2d(3, 32, 4, 4), nn.Parameter(0.1 * torch.randn(1, 16, 32))
        self.first, self.second, self.head = nn.LayerNorm(32), nn.LayerNorm(32), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(x + self.narrow(F.relu(self.wide(self.second(x)))))


def ds_cnn():
    """The keyword spotter: 25×5 in front of the global pool."""
    pairs = [(block(32, 32, 3, groups=32), block(32, 32, 1)) for _ in range(2)]
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1),
        nn.ReLU(),
        *(layer for pair in pairs for layer in pair),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 12),
    )


class Inception(nn.Module):
    """Ways of several kernels side by side, ten channels together."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([block(3, 4, 1), block(3, 3, 3), block(3, 3, 5)])
        self.out = nn.Linear(10, 5)

    def forward(self, x):
        return self.out(F.adaptive_avg_pool2d(torch.cat([way(x) for way in self.ways], 1), 1).flatten(1))


class Excited(nn.Module):
    """Squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.into, self.out = block(3, 16), nn.Linear(16, 10)
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)

    def forward(self, x):
        x = self.into(x)
        x = x * torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        return self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))


def vgg(first=32):
    """Convolutions and max pools of 64×64 pixels."""
    return nn.Sequential(
        block(3, first),
        nn.MaxPool2d(2),
        block(first, 32),
        nn.MaxPool2d(2),
        block(32, 32),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


class Detector(nn.Module):
    """One head on two levels."""

    def __init__(self):
        super().__init__()
        self.top, self.down, self.head = block(3, 8), block(8, 8, stride=2), nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x):
        x = self.top(x)
        return self.head(x), self.head(self.down(x))


class Recognizer(nn.Module):
    """CRNN: convolutions, then an LSTM over the columns."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(block(1, 8), nn.MaxPool2d(2), block(8, 16), nn.MaxPool2d((4, 1)))
        self.into, self.lstm, self.out = nn.Linear(16, 16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x):
        x = self.body(x).squeeze(2).transpose(1, 2)
        return self.out(self.lstm(self.into(x))[0])


NETWORKS = {
    "mobile net": (mobile_net, (3, 32, 32)),
    "u-net": (UNet, (1, 32, 32)),
    "resnet": (resnet, (3, 32, 32)),
    "resnet, odd sizes": (resnet, (3, 33, 33)),
    "attention": (Attention, (12, 16)),
    "encoder": (Encoder, (12, 16)),
    "vision transformer": (VisionTransformer, (3, 16, 16)),
    "DS-CNN": (ds_cnn, (1, 50, 10)),
    "inception": (Inception, (3, 16, 16)),
    "squeeze and excitation": (Excited, (3, 16, 16)),
    "VGG, 64 pixels": (vgg, (3, 64, 64)),
    "VGG, 24 channels": (partial(vgg, 24), (3, 64, 64)),
    "head on two levels": (Detector, (3, 16, 16)),
    "CRNN": (Recognizer, (1, 8, 32)),
}

REFUSED = {
    ("VGG, 64 pixels", "venus"): "131072 bytes of input of a max pool, in parts of 65536",
    ("encoder", "arcs"): "arcs runs LayerNormInt and was seen to compute something else",
    ("vision transformer", "arcs"): "arcs runs LayerNormInt and was seen to compute something else",
    ("CRNN", "arcs"): "arcs's packer or engine stops at LSTMInt",
}
"""What keeps a network from a chip."""


def calibrated(name, target, spread=1.0):
    """The network with settled batch norms, fused, quantized for the chip and calibrated; and its data."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    x = spread * torch.randn(4, *shape)
    model = make().train()
    model(x)
    linger.trace_layers(model, model.eval(), x[:1])
    model = linger.init(model, target=target).eval()
    with linger.calibration():
        model(x)
    return model, x


def written(model, x, path):
    """The file of the model's chip, proven on every sample; the check has no error."""
    linger.onnx.export(model, (x[:1],), path, verify=True)
    assert linger.verify(model, path, [x[i : i + 1] for i in range(len(x))]).ok
    target = linger.quantization.core.runtime.runtime_of(model).target
    assert linger.check(path, target).errors == ()
    return onnx.load(path)


CASES = [(name, target) for name in NETWORKS if name != "mobile net" for target in PROVEN]
CASES += [("resnet", "venusA"), ("DS-CNN", "venusA")]


@pytest.mark.parametrize(("name", "target"), [case for case in CASES if case in REFUSED], ids=str)
def test_networks_that_a_chip_cannot_take_are_refused_with_the_reason(tmp_path, name, target):
    model, x = calibrated(name, target)
    with pytest.raises(linger.UnsupportedError) as caught:
        linger.onnx.export(model, (x[:1],), tmp_path / "net.onnx")
    assert REFUSED[name, target] in str(caught.value)
    assert not (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize(("name", "target"), [case for case in CASES if case not in REFUSED], ids=str)
@pytest.mark.thin(every=2)
def test_networks_are_accepted_as_they_are(tmp_path, name, target):
    file = written(*calibrated(name, target), tmp_path / "net.onnx")
    assert linger.memory(tmp_path / "net.onnx", target).ok
    assert {"Clip", "iqSub"}.isdisjoint(op_types(file))


@pytest.mark.parametrize("target", [*PROVEN, "venusA"])
def test_a_mobile_net_is_accepted_and_what_changes_is_said(tmp_path, target):
    with pytest.warns(
        UserWarning, match=f"{target} has no Clip, so Relu stands for ReLU6 and saturates at 7.94 instead of 6"
    ) as said:
        model, x = calibrated("mobile net", target, spread=4.0)
    file = written(model, x, tmp_path / "net.onnx")
    assert "Clip" not in op_types(file)
    (message,) = (str(w.message) for w in said)
    assert " %" in message
    reasons = [row.reason for row in linger.coverage(model).ops if row.reason]
    assert reasons
    assert all("saturates at 7.94 instead of 6" in reason for reason in reasons)


def test_shortcuts_step_by_kernels_with_zeros(tmp_path):
    for name, kernels in (("resnet", [[2, 2], [2, 2]]), ("resnet, odd sizes", [[3, 3], [3, 3]])):
        file = written(*calibrated(name, "venus"), tmp_path / "net.onnx")
        around = [n for n in file.graph.node if n.op_type == "Conv2dInt" and "around" in n.name]
        assert [attribute(n, "kernel_shape") for n in around] == kernels


def test_training_goes_on_with_what_the_chip_computes(tmp_path):
    with pytest.warns(UserWarning, match="venus has no Clip"):
        model, x = calibrated("mobile net", "venus", spread=4.0)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    written(model.eval(), x, tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("venu", "venus"), ("Venus", "venus"), ("venusB", "venus"), ("arc", "arcs"), ("pluto", None), (5, None),
     (["venus"], "venus"), ({}, None)],
    ids=str,
)  # fmt: skip
def test_an_unknown_chip_is_one_sentence_with_the_nearest_name(tmp_path, name, nearest):
    meant = f" (is {nearest!r} meant?)" if nearest else ""
    expected = f"target: there is no chip {name!r}{meant}. Choose one of venus, arcs, venusA, c, onnxruntime, or None for no limits."
    model, x = calibrated("resnet", None)
    path = tmp_path / "net.onnx"
    for call in (
        lambda: linger.init(resnet(), target=name),
        lambda: linger.onnx.export(model, (x[:1],), path, target=name),
        lambda: linger.memory(path, name),
        lambda: linger.check(path, name),
        lambda: linger.repair(path, target=name),
        lambda: linger.tune(resnet(), [x], target=name),
    ):
        with pytest.raises(linger.UsageError) as caught:
            call()
        assert str(caught.value) == expected
    assert not path.exists()


def test_a_target_other_than_that_of_init_is_one_sentence(tmp_path):
    model, x = calibrated("resnet", "venus")
    with pytest.raises(linger.UsageError) as caught:
        linger.onnx.export(model, (x[:1],), tmp_path / "net.onnx", target="arcs")
    assert str(caught.value) == (
        "export: the model computes as venus does (linger.init), not as arcs. Leave target out, or quantize the model anew with "
        "linger.init(model, target='arcs')."
    )
    assert not (tmp_path / "net.onnx").exists()


def test_a_file_without_weights_is_for_no_chip(tmp_path):
    model, x = calibrated("resnet", "venus")
    with pytest.raises(linger.UsageError, match=r"packers refuse one without\. Leave export_params at True"):
        linger.onnx.export(model, (x[:1],), tmp_path / "net.onnx", export_params=False)
    assert not (tmp_path / "net.onnx").exists()
