"""LSTMCell and GRUCell: one step of the layer, streamed by the caller."""

import pytest
import torch
from torch import nn

import linger

CELLS = {"LSTMCell": (nn.LSTMCell, nn.LSTM), "GRUCell": (nn.GRUCell, nn.GRU)}


class Stream(nn.Module):
    def __init__(self, cell, size=5, hidden=6):
        super().__init__()
        self.cell, self.out = cell(size, hidden), nn.Linear(hidden, 2)

    def forward(self, x, state=None):
        outputs = []
        for item in x.unbind(0):
            state = self.cell(item, state)
            outputs.append(self.out(state[0] if isinstance(state, tuple) else state))
        return torch.stack(outputs), state


def prepared(cell, x):
    torch.manual_seed(0)
    float_model = Stream(cell).eval()
    made = linger.init(Stream(cell).eval())
    made.load_state_dict(float_model.state_dict())
    with linger.calibration():
        made(x)
    return float_model, made


def real(t):
    return t.dequantize() if hasattr(t, "bits") else t


@pytest.mark.parametrize(("cell", "layer"), CELLS.values(), ids=CELLS.keys())
def test_cell_is_the_layer_step_by_step(cell, layer):
    x = torch.randn(7, 3, 5)
    _, made = prepared(cell, x)
    whole = nn.Sequential(layer(5, 6))
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    whole[0].load_state_dict({f"{n}_l0": getattr(made.cell, n) for n in names})
    whole = linger.init(whole.eval())
    for name in ("i", "o"):
        whole[0].write(f"running_{name}", made.cell.read(f"running_{name}"))
    with torch.no_grad():
        steps, state = [], None
        for item in x.unbind(0):
            state = made.cell(item, state)
            steps.append(real(state[0] if isinstance(state, tuple) else state))
        out, last = whole(x)
    assert torch.equal(torch.stack(steps), real(out))
    assert all(
        torch.equal(real(a), real(b)[0])
        for a, b in zip(*((s if isinstance(s, tuple) else (s,)) for s in (state, last)), strict=True)
    )


@pytest.mark.parametrize("cell", [c for c, _ in CELLS.values()], ids=CELLS.keys())
def test_stream_is_close_to_float_and_equal_to_its_file(tmp_path, cell):
    x = torch.randn(4, 3, 5)
    float_model, made = prepared(cell, x)
    with torch.no_grad():
        assert (real(made(x)[0]) - float_model(x)[0]).abs().max() < 0.05
        state = made(x)[1]
        first, carried = made(x[:2])
        second, _ = made(x[2:], carried)
        assert torch.equal(torch.cat([real(first), real(second)]), real(made(x)[0]))
    linger.onnx.export(made, (x, state), tmp_path / "m.onnx")
    result = linger.verify(made, tmp_path / "m.onnx", (torch.randn(4, 3, 5), state))
    assert result.ok, result.summary()
    assert linger.coverage(made).float_ops == ()


def test_one_vector_without_a_batch():
    x = torch.randn(4, 3, 5)
    _, made = prepared(nn.LSTMCell, x)
    with torch.no_grad():
        h, c = made.cell(x[0])
        h1, c1 = made.cell(x[0, 0])
        h2, c2 = made.cell(x[1, 0], (h1, c1))
        both = made.cell(x[1], (h, c))
    assert torch.equal(real(h1), real(h)[0])
    assert torch.equal(real(h2), real(both[0])[0])
    assert torch.equal(c2, both[1][0])


def test_cells_train():
    x = torch.randn(4, 3, 5)
    _, made = prepared(nn.GRUCell, x)
    made.train()
    made(x)[0].sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in made.parameters())


def test_keys_are_those_of_the_cell():
    made = linger.init(nn.Sequential(nn.GRUCell(3, 4)))
    parameters = {k for k in made.state_dict() if "running" not in k and "scale" not in k}
    assert parameters == {"0.weight_ih", "0.weight_hh", "0.bias_ih", "0.bias_hh"}
