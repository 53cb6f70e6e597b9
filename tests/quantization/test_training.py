"""Training as integers: it learns, it stays on the grid, and evaluation agrees with what it learned."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init, trace_layers


class Tiny(nn.Module):
    """Convolution, live batch norm, residual sum, pooling, dropout, linear."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        h = F.relu(self.bn2(self.conv2(h)) + h)
        return self.fc(self.drop(F.max_pool2d(h, 6).flatten(1)))


def bars(count, seed):
    """Images with a bright row (class 0) or a bright column (class 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(count, 1, 6, 6, generator=generator)
    y = torch.randint(0, 2, (count,), generator=generator)
    at = torch.randint(0, 6, (count,), generator=generator)
    for i in range(count):
        if y[i]:
            x[i, 0, :, at[i]] += 1.0
        else:
            x[i, 0, at[i], :] += 1.0
    return x, y


def prepared(*, is_traced=True, is_calibrated=True, bits=8):
    torch.manual_seed(0)
    model = Tiny()
    x, _ = bars(32, 1)
    if is_traced:
        trace_layers(model, x)
    init(model, parameter_bits=bits)
    if is_calibrated:
        with linger.calibration():
            model(x)
    return model


def trained(model, steps=30):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    model.train()
    for step in range(steps):
        x, y = bars(32, 100 + step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def accuracy(model):
    x, y = bars(200, 7)
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("is_traced", [True, False], ids=["fused", "batch norm apart"])
@pytest.mark.parametrize("is_calibrated", [True, False], ids=["calibrated", "from scratch"])
def test_a_separable_task_is_learned_and_evaluation_knows_it(is_calibrated, is_traced):
    model = prepared(is_traced=is_traced, is_calibrated=is_calibrated)
    losses = trained(model)
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert accuracy(model) > 0.9
    x, _ = bars(4, 3)
    assert isinstance(model(x), QTensor)


def test_four_bit_weights_learn_too():
    model = prepared(bits=4)
    losses = trained(model)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert accuracy(model) > 0.85


def test_every_parameter_gets_a_finite_gradient():
    model = prepared()
    x, y = bars(32, 1)
    F.cross_entropy(model.train()(x), y).backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name == "conv.bias":  # batch norm takes a bias away, so it learns nothing
            continue
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_training_is_reproducible():
    first, second = (trained(prepared(), steps=3) for _ in range(2))
    assert first == second


def test_a_copy_trains_like_its_source():
    model = prepared()
    clone = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = trained(model, steps=3)
    torch.manual_seed(1)
    assert trained(clone, steps=3) == expected
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in clone.state_dict().items())


def test_evaluation_between_steps_changes_nothing():
    model, plain = prepared(), prepared()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    for step in range(4):
        x, y = bars(16, step)
        accuracy(model)
        for m, optimizer in zip((model, plain), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            F.cross_entropy(m.train()(x), y).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_activations_of_training_are_on_the_grid():
    model = prepared().train()
    seen = []
    for module in model.modules():
        module.register_forward_hook(lambda m, args, output: seen.append(output))
    with torch.no_grad():
        model(bars(16, 2)[0])
    quantized = [t for t in seen if isinstance(t, QTensor)]
    assert len(quantized) >= 6
    for t in quantized:
        steps = t.dequantize() * t.scale
        assert torch.equal(steps, steps.round())
        assert steps.min() >= -128
        assert steps.max() <= 127


def test_gradients_accumulate_over_several_passes():
    x, y = bars(16, 2)
    model = prepared(is_calibrated=False).eval()
    with linger.calibration():
        model(x)  # the same batch again moves no scale
    model.fc.train()
    ranges = {k: v.clone() for k, v in model.state_dict().items()}

    def backward():
        F.cross_entropy(model(x), y).backward()
        return model.fc.weight.grad.clone()

    first, second = backward(), backward()
    assert torch.equal(second, 2 * first)
    # calibration has seen real numbers, training sees rounded ones
    assert all(torch.equal(v, ranges[k]) for k, v in model.state_dict().items() if k != "fc.running_o")


def test_frozen_layers_train_the_rest():
    model = prepared().train()
    for parameter in model.conv.parameters():
        parameter.requires_grad_(requires_grad=False)
    before = {k: v.clone() for k, v in model.conv.named_parameters()}
    trained(model, steps=2)
    assert all(torch.equal(v, before[k]) for k, v in model.conv.named_parameters())
    assert model.conv2.weight.grad is not None
