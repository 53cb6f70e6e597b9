"""Networks of torch, quantized and exported, as streams: what the steps return is what the whole sequence gives."""

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional

import linger
from tests.support.streams import assert_streams
from tests.support.wired import quantize

pytestmark = pytest.mark.needs_torch


class Chomp(nn.Module):
    """Cuts off what the padding on both sides of a causal convolution has added at the end."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, : -self.size]


class Block(nn.Module):
    """A block of a temporal convolutional network."""

    def __init__(self, channels, dilation):
        super().__init__()
        reach = 2 * dilation
        self.conv = nn.Conv1d(channels, channels, 3, padding=reach, dilation=dilation)
        self.bn = nn.BatchNorm1d(channels)
        self.chomp = Chomp(reach)

    def forward(self, x):
        return torch.relu(x + torch.relu(self.bn(self.chomp(self.conv(x)))))


class Padded(nn.Module):
    """A causal convolution: zeros in front by a function of its own."""

    def __init__(self, before, after, kernel):
        super().__init__()
        self.conv, self.size = nn.Conv1d(before, after, kernel), kernel - 1

    def forward(self, x):
        return torch.relu(self.conv(functional.pad(x, (self.size, 0))))


class Recurrent(nn.Module):
    """A convolution that looks ahead or not, a recurrent layer, a linear one."""

    def __init__(self, kind, padding, layers=1):
        super().__init__()
        self.conv, self.padding = nn.Conv1d(3, 6, 3), padding
        self.cells = kind(6, 5, num_layers=layers, batch_first=True)
        self.linear = nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.conv(functional.pad(x, self.padding)))
        return self.linear(self.cells(x.transpose(1, 2))[0])


class Words(nn.Module):
    """Strides and pools, then the last state: a small keyword spotter."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(Padded(3, 6, 3), nn.MaxPool1d(2), Padded(6, 6, 4))
        self.cells, self.linear = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        y, h = self.cells(self.features(x).transpose(1, 2))
        return self.linear(y[:, -1]), self.linear(h[-1])


NETWORKS = {
    "causal stack": (lambda: nn.Sequential(Padded(3, 8, 3), Padded(8, 8, 5), nn.Conv1d(8, 2, 1)), 0),
    "dilated with residuals": (lambda: nn.Sequential(nn.Conv1d(3, 8, 1), *(Block(8, 2**n) for n in range(3))), 0),
    "both sides": (lambda: nn.Sequential(nn.Conv1d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 2, 3, padding=1)), 3),
    "LSTM": (lambda: Recurrent(nn.LSTM, (2, 0)), 0),
    "GRU": (lambda: Recurrent(nn.GRU, (2, 0)), 0),
    "stacked LSTM": (lambda: Recurrent(nn.LSTM, (2, 0), layers=2), 0),
    "LSTM behind look-ahead": (lambda: Recurrent(nn.LSTM, (0, 2)), None),
}


def exported(make, path):
    torch.manual_seed(3)
    x = torch.randn(1, 3, 16)
    model = quantize(make().eval(), x)
    linger.onnx.export(model, (x,), path)
    file = ir.load(path)
    return file, {file.graph.inputs[0].name: x.numpy()}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.thin
def test_steps_give_what_the_whole_sequence_gives(name, tmp_path):
    make, delay = NETWORKS[name]
    model, feeds = exported(make, tmp_path / "m.onnx")
    for frames in (1, 2, 4):
        stream = assert_streams(model, feeds, frames)
        expected = -(-2 // frames) * frames if delay is None else delay  # whole steps before a recurrent layer
        assert [output.delay for output in stream.outputs] == [expected]


@pytest.mark.parametrize("frames", [2, 4])
def test_the_verdict_of_each_step_is_that_of_the_sequence_so_far(frames, tmp_path):
    model, feeds = exported(Words, tmp_path / "m.onnx")
    stream = assert_streams(model, feeds, frames)
    assert [output.axis for output in stream.outputs] == [None, None]


class Stacked(nn.Module):
    """Two recurrent layers whose states are one tensor of the caller's."""

    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 5, num_layers=2, batch_first=True)

    def forward(self, x, h, c):
        y, (h, c) = self.cells(x, (h, c))
        return y, h, c


def test_states_of_several_layers_in_one_tensor_are_found(tmp_path):
    torch.manual_seed(3)
    given = (torch.randn(1, 12, 3), torch.zeros(2, 1, 5), torch.zeros(2, 1, 5))
    model = linger.init(Stacked()).eval()
    with linger.calibration():
        model(*given)
    linger.onnx.export(model, given, tmp_path / "m.onnx")
    file = ir.load(tmp_path / "m.onnx")
    stream = assert_streams(
        file, {"x": given[0].numpy()} | {n: t.numpy() for n, t in zip("hc", given[1:], strict=True)}, 2
    )
    assert [(state.input, state.output) for state in stream.states] == [("h", "output_1"), ("c", "output_2")]
