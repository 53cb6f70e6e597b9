# SPDX-License-Identifier: Apache-2.0
"""Learned rounding of recurrent layers: what goes into each gate, gains, and the same integers in the file."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.tuning.learned_rounding.integer_fit import Pair
from linger.tuning.learned_rounding.recurrent_rounding import _float_operands, _Place, _quantized_operands, _sums
from tests.tuning.learned_rounding.test_rounding import quantized


class Sequences(nn.Module):
    """A recurrent layer of two layers and directions."""

    def __init__(self, kind: type[nn.RNNBase], *, bias: bool = True) -> None:
        super().__init__()
        self.rnn = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Steps(nn.Module):
    """A cell that a caller feeds with its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.cell(x, (h, c))


def together(*shape: int) -> Tensor:
    """Numbers whose last axis mostly moves together, around a mean of 1: there, rounding one by one is not the best."""
    return 1.0 + torch.randn(*shape[:-1], 1) + 0.2 * torch.randn(*shape)


def quantized_pair(model: nn.Module, data: list[Tensor]) -> tuple[nn.Module, nn.Module]:
    linger.quant_module(model, parameter_bits=4)
    return quantized(model, data)


@pytest.mark.parametrize("back", [0, 1], ids=["forwards", "backwards"])
def test_the_operands_of_a_gate_make_the_output_of_the_float_layer(back: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3)
    model, reference = quantized_pair(Sequences(nn.LSTM), [x])
    place, pair = _Place(model.rnn, 1, back), Pair(model, reference, [(x,)], [(x,)], 100, 0)
    with torch.no_grad():
        inputs, before = _float_operands(pair, place, (x,))[0]
        gates = _sums(reference.rnn, place, [inputs, before], ("ih", "hh"))
        expected = reference(x).transpose(0, 1)[..., 4 * back : 4 * back + 4]
        c = torch.zeros(2, 4)
        for step in reversed(range(5)) if back else range(5):
            i, f, g, o = gates[step].chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            # both compute the same sums in another order: a few roundings of 6e-8
            assert torch.allclose(o.sigmoid() * c.tanh(), expected[step], atol=1e-6)
        (rounded, states), attributes = _quantized_operands(pair, place, (x,))[0]
        out = model(x).content.transpose(0, 1)[..., 4 * back : 4 * back + 4]
    assert attributes["go_forward"] == 1 - back
    assert rounded.shape == inputs.shape
    assert torch.equal(states[:-1] if back else states[1:], out[1:] if back else out[:-1])
    assert not states[-1 if back else 0].any()


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_gain(kind: type[nn.RNNBase], tmp_path: Path, *, bias: bool) -> None:
    torch.manual_seed(0)
    data = list(together(32, 6, 3).split(4))
    model, reference = quantized_pair(Sequences(kind, bias=bias), data)
    result = linger.round_weights(model, reference, data)
    assert result.after_db > result.before_db + 1.0
    assert len(result.changes) >= 4
    for name, scale in (("weight_ih_l0", "scale_iw"), ("weight_hh_l1_reverse", "scale_hw_l1_reverse")):
        steps = getattr(model.rnn, name).detach() * model.rnn.read(scale)
        is_on_grid = (steps == steps.round()).all(1)  # a gate that gained nothing keeps its weights
        assert int(is_on_grid.sum()) > len(steps) // 3
    linger.onnx.export(model, (data[0],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (data[0],)).differing == 0


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_rows_with_scales_of_their_own_gain(kind: type[nn.RNNBase], tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = list(together(32, 6, 3).split(4))
    net = Sequences(kind).eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "weight" in name:
                parameter.mul_(torch.randint(-3, 1, (len(parameter),)).float().exp2()[:, None])
    linger.quant_module(net, parameter_bits=4)
    reference = copy.deepcopy(net)
    model = linger.init(net, per_channel=True).eval()
    with linger.calibration(), torch.no_grad():
        for batch in data:
            model(batch)
    result = linger.round_weights(model, reference, data)
    assert result.after_db > result.before_db + 1.0
    assert {change.name for change in result.changes} >= {"rnn.weight_ih_l0", "rnn.weight_hh_l0"}  # each by itself
    linger.onnx.export(model, (data[0],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (data[0],)).differing == 0


def test_a_cell_with_states() -> None:
    torch.manual_seed(0)
    data = [(together(8, 3), together(8, 4).tanh(), torch.randn(8, 4)) for _ in range(8)]
    model = Steps()
    linger.quant_module(model, parameter_bits=4)
    reference = copy.deepcopy(model.eval())
    made = linger.init(model).eval()
    with linger.calibration(), torch.no_grad():
        for batch in data:
            made(*batch)
    result = linger.round_weights(made, reference, data)
    assert result.after_db > result.before_db + 1.0
    assert [change.name for change in result.changes] == ["cell.weight_ih and weight_hh"]


def test_packed_sequences_are_left_alone() -> None:
    class Packed(Sequences):
        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4]), batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    torch.manual_seed(0)
    data = list(torch.randn(8, 6, 3).split(2))
    model, reference = quantized_pair(Packed(nn.LSTM), data)
    assert linger.round_weights(model, reference, data).changes == ()
