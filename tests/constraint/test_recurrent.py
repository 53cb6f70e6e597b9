"""LSTM and GRU within limits: against cells written out, against torch with limited parameters, in every layout."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from linger import NormalizeFastGRU, NormalizeFastLSTM
from tests.support.quantization import Limits

KINDS = {"lstm": (NormalizeFastLSTM, nn.LSTM), "gru": (NormalizeFastGRU, nn.GRU)}
each_kind = pytest.mark.parametrize(("kind", "plain_kind"), KINDS.values(), ids=KINDS.keys())
LAYOUTS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "both directions": {"bidirectional": True},
    "three layers": {"num_layers": 3},
    "no bias": {"bias": False},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cut(t, limit):
    return torch.where(t.abs() > limit, limit * t.sign(), t)


def limited_twin(layer, plain_kind, of_weights, of_biases, **options):
    """The torch layer whose parameters are limited once and for all."""
    twin = plain_kind(layer.input_size, layer.hidden_size, dtype=torch.float64, **options)
    state = {k: cut(v, of_biases if k.startswith("bias") else of_weights) for k, v in layer.state_dict().items()}
    twin.load_state_dict(state)
    return twin


def states(result):
    return result[1] if isinstance(result[1], tuple) else (result[1],)


# -- cells written out ---------------------------------------------------------------------------------------------


def lstm_by_hand(parameters, x, hidden):
    w_ih, w_hh, b_ih, b_hh = parameters
    h = c = torch.zeros(x.shape[1], hidden, dtype=x.dtype)
    outputs = []
    for step in x:
        i, f, g, o = (step @ w_ih.T + b_ih + h @ w_hh.T + b_hh).split(hidden, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def gru_by_hand(parameters, x, hidden):
    w_ih, w_hh, b_ih, b_hh = parameters
    h = torch.zeros(x.shape[1], hidden, dtype=x.dtype)
    outputs = []
    for step in x:
        r_x, z_x, n_x = (step @ w_ih.T + b_ih).split(hidden, 1)
        r_h, z_h, n_h = (h @ w_hh.T + b_hh).split(hidden, 1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        h = (1 - z) * torch.tanh(n_x + r * n_h) + z * h
        outputs.append(h)
    return torch.stack(outputs), h


@pytest.mark.parametrize(
    ("kind", "by_hand"), [(NormalizeFastLSTM, lstm_by_hand), (NormalizeFastGRU, gru_by_hand)], ids=KINDS.keys()
)
def test_a_cell_written_out_with_limited_parameters(kind, by_hand):
    layer = kind(3, 4, dtype=torch.float64, normalize_weight=0.2, normalize_bias=0.1, normalize_data=0.05)
    x = draw(6, 2, 3)
    parameters = [cut(p, 0.1 if name.startswith("bias") else 0.2) for name, p in layer.named_parameters()]
    expected, *state = by_hand(parameters, x, 4)
    result = layer(x)
    close = {"rtol": 0, "atol": 1e-13}  # float64, below 1: six steps of some thirty roundings of 2^-53
    assert (expected.abs() > 0.05).any()
    torch.testing.assert_close(result[0], cut(expected, 0.05), **close)
    for found, wanted in zip(states(result), state, strict=True):
        torch.testing.assert_close(found[0], wanted, **close)  # not limited


# -- against torch ---------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_every_layout_is_torch_with_limited_parameters(kind, plain_kind, options, is_training):
    layer = kind(
        3, 4, dtype=torch.float64, normalize_weight=0.2, normalize_bias=0.1, normalize_data=0.03, **options
    ).train(is_training)
    twin = limited_twin(layer, plain_kind, 0.2, 0.1, **options)
    x = draw(5, 6, 3)
    found, expected = layer(x), twin(x)
    assert (expected[0].abs() > 0.03).any()
    assert torch.equal(found[0], cut(expected[0], 0.03))
    for mine, torchs in zip(states(found), states(expected), strict=True):
        assert torch.equal(mine, torchs)


def test_a_projection_is_limited_as_a_weight():
    layer = NormalizeFastLSTM(3, 6, proj_size=2, dtype=torch.float64, normalize_weight=0.1)
    assert any(name.startswith("weight_hr") for name, _ in layer.named_parameters())
    twin = limited_twin(layer, nn.LSTM, 0.1, 1e9, proj_size=2)
    x = draw(5, 2, 3)
    assert torch.equal(layer(x)[0], twin(x)[0])


@each_kind
def test_a_given_state_is_taken(kind, plain_kind):
    layer = kind(3, 4, dtype=torch.float64, normalize_weight=0.2)
    twin = limited_twin(layer, plain_kind, 0.2, 1e9)
    state = draw(1, 2, 4, seed=3)
    hx = (state, draw(1, 2, 4, seed=4)) if plain_kind is nn.LSTM else state
    assert torch.equal(layer(draw(5, 2, 3), hx)[0], twin(draw(5, 2, 3), hx)[0])
    assert torch.equal(layer(input=draw(5, 2, 3), hx=hx)[0], twin(draw(5, 2, 3), hx)[0])


@each_kind
def test_packed_sequences(kind, plain_kind):
    layer = kind(3, 4, bidirectional=True, dtype=torch.float64, normalize_weight=0.2, normalize_data=0.05)
    twin = limited_twin(layer, plain_kind, 0.2, 1e9, bidirectional=True)
    packed = pack_padded_sequence(draw(5, 3, 3), torch.tensor([2, 5, 3]), enforce_sorted=False)
    found, expected = layer(packed)[0], twin(packed)[0]
    assert isinstance(found, PackedSequence)
    values, lengths = pad_packed_sequence(found)
    assert lengths.tolist() == [2, 5, 3]
    assert torch.equal(values, cut(pad_packed_sequence(expected)[0], 0.05))


@each_kind
def test_without_limits_it_is_torchs_own(kind, plain_kind):
    layer = kind(3, 4, num_layers=2, dtype=torch.float64)
    twin = plain_kind(3, 4, num_layers=2, dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())
    assert list(layer.state_dict()) == list(twin.state_dict())
    assert torch.equal(layer(draw(5, 2, 3))[0], twin(draw(5, 2, 3))[0])


@each_kind
def test_gradients_are_zero_exactly_beyond_the_limits(kind, plain_kind):
    layer = kind(3, 4, dtype=torch.float64, normalize_weight=0.2, normalize_bias=0.1)
    twin = limited_twin(layer, plain_kind, 0.2, 0.1)
    layer(draw(5, 2, 3))[0].square().sum().backward()
    twin(draw(5, 2, 3))[0].square().sum().backward()
    for (name, mine), torchs in zip(layer.named_parameters(), twin.parameters(), strict=True):
        is_inside = mine.abs() <= (0.1 if name.startswith("bias") else 0.2)
        assert 0 < is_inside.sum() < mine.numel(), name
        assert torch.equal(mine.grad, torch.where(is_inside, torchs.grad, 0.0)), name


@each_kind
def test_parameters_that_change_are_seen_at_once(kind, plain_kind):
    layer = kind(3, 4, dtype=torch.float64, normalize_weight=0.2)
    x = draw(5, 2, 3)
    layer(x)
    with torch.no_grad():
        layer.weight_ih_l0.mul_(0.5)
    assert torch.equal(layer(x)[0], limited_twin(layer, plain_kind, 0.2, 1e9)(x)[0])
    layer.weight_hh_l0 = nn.Parameter(draw(*layer.weight_hh_l0.shape))
    assert torch.equal(layer(x)[0], limited_twin(layer, plain_kind, 0.2, 1e9)(x)[0])
    layer.load_state_dict({k: 2 * v for k, v in layer.state_dict().items()})
    assert torch.equal(layer(x)[0], limited_twin(layer, plain_kind, 0.2, 1e9)(x)[0])
    assert layer.float()(x.float())[0].dtype == torch.float32


@each_kind
def test_a_converted_layer_shares_its_parameters(kind, plain_kind):
    plain = plain_kind(3, 4, dtype=torch.float64)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    layer = kind.from_layer(plain, Limits(weight=0.2, output=0.1))
    assert all(a is b for a, b in zip(layer.parameters(), plain.parameters(), strict=True))
    assert "_flat_weights" not in layer.__dict__  # torch's list would go stale
    before = layer.weight_ih_l0.detach().clone()
    x = draw(5, 2, 3)
    layer(x)[0].sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight_ih_l0, before)
    assert torch.equal(layer(x)[0], cut(limited_twin(layer, plain_kind, 0.2, 1e9)(x)[0], 0.1))


@each_kind
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_compute_the_same_with_parameters_of_their_own(kind, plain_kind, clone):
    for layer in (
        kind(3, 4, dtype=torch.float64, normalize_weight=0.2),
        kind.from_layer(plain_kind(3, 4, dtype=torch.float64), Limits(weight=0.2)),
    ):
        again = clone(layer)
        x = draw(5, 2, 3)
        assert torch.equal(again(x)[0], layer(x)[0])
        with torch.no_grad():
            again.weight_ih_l0.zero_()
        assert torch.equal(again(x)[0], limited_twin(again, plain_kind, 0.2, 1e9)(x)[0])
        assert layer.weight_ih_l0.abs().sum() > 0


@each_kind
def test_limits_that_are_removed_do_not_act(kind, plain_kind):
    layer = kind(3, 4, dtype=torch.float64, normalize_weight=0.01)
    layer.limit_to(Limits())
    assert torch.equal(layer(draw(5, 2, 3))[0], limited_twin(layer, plain_kind, 1e9, 1e9)(draw(5, 2, 3))[0])
