"""One count of multiply-accumulates: that of the file, the program in C, the report and the coverage, worked out by hand."""

import pytest

import linger
from linger import report
from tests.support.analysis import products_of

pytestmark = pytest.mark.needs_torch


def networks():
    """Kinds of networks: the module, the size of one sample, and its multiply-accumulates."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Causal(nn.Module):
        """Pads the float input, whose border the file computes."""

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv1d(4, 8, 3, dilation=2), nn.Conv1d(8, 8, 3, groups=8)
            self.out = nn.Linear(8, 2)

        def forward(self, x):
            x = torch.relu(self.a(F.pad(x, (4, 0))))
            return self.out(self.b(F.pad(x, (2, 0)))[:, :, -1])

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            batch, steps, width = x.shape
            q, k, v = (y(x).view(batch, steps, 2, 4).transpose(1, 2) for y in (self.q, self.k, self.v))
            weights = torch.softmax(q @ k.transpose(-1, -2), -1)
            return self.out((weights @ v).transpose(1, 2).reshape(batch, steps, width).mean(1))

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
            self.gru = nn.GRU(12, 5, batch_first=True)
            self.out = nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.gru(self.lstm(x)[0])[0][:, -1])

    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1, stride=2)  # 8×4×4 of 27 products
            self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)  # 8×4×4 of 9
            self.grouped = nn.Conv2d(8, 12, 1, groups=4)  # 12×4×4 of 2
            self.up = nn.ConvTranspose2d(12, 4, 2, stride=2)  # 12×4×4 give 4·4 each
            self.up_grouped = nn.ConvTranspose2d(4, 4, 3, groups=2)  # 4×8×8 give 2·9 each
            self.out = nn.Linear(4, 5)

        def forward(self, x):
            x = self.up_grouped(self.up(self.grouped(F.relu(self.depthwise(F.relu(self.first(x)))))))
            return self.out(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))

    return {
        "causal": (Causal, (4, 10), 8 * 10 * 12 + 8 * 10 * 3 + 8 * 2),
        "attention": (Attention, (5, 8), 3 * 5 * 64 + 2 * (2 * 5 * 5 * 4) + 8 * 3),
        "recurrent": (Recurrent, (7, 4), 2 * 7 * 4 * 6 * (4 + 6) + 7 * 3 * 5 * (12 + 5) + 5 * 3),
        "images": (Images, (3, 8, 8), 128 * 27 + 128 * 9 + 192 * 2 + 192 * 16 + 256 * 18 + 4 * 5),
    }


@pytest.mark.parametrize("name", ["causal", "attention", "recurrent", "images"])
def test_every_count_is_the_one_by_hand(name, tmp_path):
    import torch

    make, size, macs = networks()[name]
    torch.manual_seed(0)
    net, x, file = linger.init(make()).eval(), torch.randn(3, *size), tmp_path / "net.onnx"
    with linger.calibration():
        net(x)
    linger.onnx.export(net, (x,), file, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    use = linger.memory(file)
    assert (use.macs, use.has_all_macs, use.batch_axes) == (macs, True, ("batch",))
    assert "at least" not in use.summary()
    assert linger.c.memory(file).macs == macs
    if name == "causal":
        assert report(file, None).runs[0].macs == macs
    assert linger.coverage(net).macs == 3 * macs  # its pass had three samples


def test_a_branch_that_a_batch_of_one_always_takes_is_counted(tmp_path):
    import torch
    from torch import nn

    class Squeezing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(nn.functional.avg_pool2d(self.first(x), 4).squeeze(-1).squeeze(-1))

    net, x, file = linger.init(Squeezing()).eval(), torch.randn(2, 3, 6, 6), tmp_path / "net.onnx"
    with linger.calibration():
        net(x)
    linger.onnx.export(net, (x,), file, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    assert "If" in {node.op_type for node in linger.graph.load(file).graph}
    use = linger.memory(file)
    assert (use.macs, use.is_lower_bound) == (4 * 16 * 27 + 4 * 2, False)
    assert linger.c.memory(file).macs == use.macs


@pytest.mark.parametrize(
    ("op", "shapes", "macs"),
    [
        pytest.param("QLinearMatMul", [(2, 3), (2, 5), (), (), (5, 3)], 2 * 3 * 5, id="quantized product"),
        pytest.param("Conv2dInt", [(1, 4, None, 8), (1, 3, 8, 8), (4, 3, 3, 3)], None, id="open size"),
        pytest.param("Conv2dInt", [None, (1, 3, 8, 8), (4, 3, 3, 3)], None, id="no shape"),
        pytest.param("LinearInt", [(0, 4), (0, 6), (4, 6)], 0, id="empty"),
        pytest.param("Relu", [(4,), (4,)], 0, id="no products"),
    ],
)
def test_shapes(op, shapes, macs):
    assert products_of(op, shapes) == macs
