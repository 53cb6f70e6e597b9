"""PackedSequence in and out, however its functions were imported, in simulation and in files."""

import pytest
import torch
import torch.nn.utils.rnn
from torch import nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import linger
from tests.support.quantization import packing

LENGTHS = {"sorted": [5, 3, 3, 1], "unsorted": [2, 5, 1, 4], "shorter than the padding": [3, 1, 3, 2]}
SPELLINGS = {
    "name": (pack_padded_sequence, pad_packed_sequence),
    "module": (rnn.pack_padded_sequence, rnn.pad_packed_sequence),
    "path": (torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence),
}


class Packed(nn.Module):
    def __init__(
        self, kind, spelling="name", *, has_linear=True, batch_first=True, total=None, padding=0.0, **settings
    ):
        super().__init__()
        self.first = nn.Linear(4, 6) if has_linear else nn.Identity()
        self.rnn = kind(6 if has_linear else 4, 5, batch_first=batch_first, **settings)
        self.out = nn.Linear(5 * (2 if settings.get("bidirectional") else 1), 3)
        self.pack, self.pad = SPELLINGS[spelling]
        self.batch_first, self.total, self.padding = batch_first, total, padding

    def forward(self, x, lengths):
        x = x if self.batch_first else x.transpose(0, 1)
        packed = self.pack(self.first(x), lengths, batch_first=self.batch_first, enforce_sorted=False)
        packed, state = self.rnn(packed)
        y, again = self.pad(packed, batch_first=self.batch_first, total_length=self.total, padding_value=self.padding)
        return self.out(y), state[0] if isinstance(state, tuple) else state, again


def prepared(lengths, kind=nn.LSTM, **settings):
    torch.manual_seed(0)
    model, x, n = Packed(kind, **settings).eval(), torch.randn(4, 5, 4), torch.tensor(lengths)
    with torch.no_grad():
        expected = model(x, n)
    made = linger.init(model)
    with linger.calibration():
        made(x, n)
    return made, x, n, expected


def real(t):
    return t.dequantize() if hasattr(t, "bits") else t


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=["LSTM", "GRU"])
def test_numbers_are_those_of_the_float_model(kind, lengths, spelling):
    made, x, n, expected = prepared(lengths, kind, spelling=spelling, bidirectional=True)
    with torch.no_grad():
        found = made(x, n)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (real(a) - b).abs().max() < 0.06
    assert torch.equal(found[2], n)
    assert linger.coverage(made).float_ops == ()


@pytest.mark.parametrize(
    "settings", [{}, {"has_linear": False}, {"batch_first": False, "num_layers": 2, "bidirectional": True}], ids=str
)
@pytest.mark.parametrize(
    ("lengths", "dynamo"),
    [*((n, False) for n in LENGTHS.values()), (LENGTHS["shorter than the padding"], True)],
    ids=[*LENGTHS, "newer exporter"],
)
@pytest.mark.thin
def test_file_equals_the_simulation(tmp_path, lengths, settings, dynamo):
    made, x, n, _ = prepared(lengths, **settings)
    linger.onnx.export(made, (x, n), tmp_path / "m.onnx", dynamo=dynamo)
    for other in (n, n.flip(0)):
        result = linger.verify(made, tmp_path / "m.onnx", (torch.randn_like(x), other))
        assert result.ok, result.summary()


def test_lengths_of_a_file_are_open(tmp_path):
    made, x, n, _ = prepared([5, 3, 3, 1], nn.GRU)
    names = {"input_names": ["x", "n"], "dynamic_axes": {"x": [0, 1], "n": [0]}}
    linger.onnx.export(made, (x, n), tmp_path / "m.onnx", **names)
    result = linger.verify(made, tmp_path / "m.onnx", (torch.randn(2, 9, 4), torch.tensor([7, 2])))
    assert result.ok, result.summary()


@pytest.mark.parametrize("settings", [{"total": 8}, {"total": 8, "padding": -1.0}, {"padding": 0.5}], ids=str)
def test_total_length_and_padding_value(tmp_path, settings):
    made, x, n, expected = prepared([4, 2, 3, 1], **settings)
    with torch.no_grad():
        found = made(x, n)
    assert found[0].shape == expected[0].shape
    assert (real(found[0]) - expected[0]).abs().max() < 0.06
    linger.onnx.export(made, (x, n), tmp_path / "m.onnx")
    result = linger.verify(made, tmp_path / "m.onnx", (torch.randn_like(x), n))
    assert result.ok, result.summary()


def test_initial_state_follows_the_order_of_the_sequences():
    torch.manual_seed(0)
    made = linger.init(nn.Sequential(nn.LSTM(4, 5)).eval())
    x, n, state = torch.randn(5, 4, 4), torch.tensor([2, 5, 1, 4]), (torch.rand(1, 4, 5), torch.rand(1, 4, 5))
    with linger.calibration():
        made[0](x, state)
    with torch.no_grad():
        packed, (h, c) = made[0](pack_padded_sequence(x, n, enforce_sorted=False), state)
        for b in range(4):
            own = tuple(s[:, b : b + 1] for s in state)
            _, (h1, c1) = made[0](x[: n[b], b : b + 1], own)
            assert torch.equal(real(h)[:, b], real(h1)[:, 0])
            assert torch.equal(c[:, b], c1[:, 0])
    assert isinstance(packed, PackedSequence)


def test_training_through_packed_sequences():
    made, x, n, _ = prepared([2, 5, 1, 4], nn.GRU)
    made.train()
    y, h, _ = made(x, n)
    (y.sum() + h.sum()).backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in made.parameters())


def test_steps_that_are_added_have_the_type_of_the_others():
    longer = packing._longer(torch.ones(2, 1, 3, dtype=torch.float16), 2, 0.5)
    assert (longer.dtype, longer.shape) == (torch.float16, (4, 1, 3))
    assert longer[:, 0, 0].tolist() == [1.0, 1.0, 0.5, 0.5]
