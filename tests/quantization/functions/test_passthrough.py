"""Functions that only move numbers keep scale and width; dropout is real in training and nothing in evaluation."""

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init
from linger.errors import UnsupportedError
from tests.support.wired import Wired, after, image

# every entry takes a tensor of shape [2, 4, 6, 6]
MOVES = {
    "reshape": lambda h: h.reshape(2, -1),
    "torch.reshape": lambda h: torch.reshape(h, (2, -1)),
    "torch.reshape by keyword": lambda h: torch.reshape(input=h, shape=(2, -1)),
    "reshape_as": lambda h: h.reshape_as(torch.zeros(8, 36)),
    "view": lambda h: h.view(2, 4, 36),
    "view_as": lambda h: h.view_as(torch.zeros(8, 36)),
    "view_as itself": lambda h: h.view_as(h),
    "flatten": lambda h: h.flatten(1),
    "torch.flatten": lambda h: torch.flatten(h, 1),
    "nn.Flatten": nn.Flatten(),
    "unflatten": lambda h: h.unflatten(1, (2, 2)),
    "nn.Unflatten": nn.Unflatten(1, (2, 2)),
    "transpose": lambda h: h.transpose(1, 3),
    "torch.transpose": lambda h: torch.transpose(h, 1, 3),
    "permute": lambda h: h.permute(0, 2, 3, 1),
    "torch.permute": lambda h: torch.permute(h, (3, 2, 1, 0)),
    "movedim": lambda h: h.movedim(1, -1),
    "T": lambda h: h[0, 0].T,
    "mT": lambda h: h.mT,
    "t": lambda h: h[0, 0].t(),
    "squeeze": lambda h: h[:1].squeeze(0),
    "torch.squeeze": lambda h: torch.squeeze(h[:1]),
    "unsqueeze": lambda h: h.unsqueeze(1),
    "torch.unsqueeze": lambda h: torch.unsqueeze(h, -1),
    "slice": lambda h: h[:, 1:3],
    "strided slice": lambda h: h[..., ::2],
    "index": lambda h: h[1],
    "newaxis": lambda h: h[:, None],
    "mask": lambda h: h[h > 0],
    "list of indices": lambda h: h[:, [2, 0]],
    "narrow": lambda h: h.narrow(1, 1, 2),
    "select": lambda h: h.select(1, 0),
    "index_select": lambda h: h.index_select(1, torch.tensor([3, 0])),
    "contiguous": lambda h: h.transpose(1, 2).contiguous(),
    "expand": lambda h: h[:, :1].expand(2, 5, 6, 6),
    "expand_as": lambda h: h[:1].expand_as(h),
    "repeat": lambda h: h.repeat(1, 2, 1, 1),
    "flip": lambda h: h.flip(1),
    "roll": lambda h: torch.roll(h, 1, 1),
    "detach": lambda h: h.detach(),
    "clone": lambda h: h.clone(),
    "to float32": lambda h: h.to(torch.float32),
    "to device": lambda h: h.to("cpu"),
    "to another": lambda h: h.to(torch.zeros(1)),
    "cpu": lambda h: h.cpu(),
    "float": lambda h: h.float(),
    "type_as": lambda h: h.type_as(torch.zeros(1)),
    "nn.Identity": nn.Identity(),
}
PARTS = {
    "split": lambda h: h.split(2, 1),
    "torch.split": lambda h: torch.split(h, 3, dim=1),
    "split with sizes": lambda h: h.split([1, 3], 1),
    "chunk": lambda h: h.chunk(2, dim=1),
    "torch.chunk": lambda h: torch.chunk(h, 3, 1),
    "tensor_split": lambda h: h.tensor_split(3, 1),
    "unbind": lambda h: h.unbind(1),
    "torch.unbind": torch.unbind,
    "iteration": tuple,
}


def both(function):
    """A calibrated model that returns its convolution's output and what a function makes of it."""
    return after(lambda h: (h, function(h)))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("function", MOVES.values(), ids=MOVES.keys())
def test_scale_width_and_numbers_pass_through(function, mode):
    model = both(function)
    model.train(mode == "train")
    h, moved = model(image())
    assert isinstance(moved, QTensor)
    assert (moved.scale, moved.bits) == (h.scale, h.bits)
    expected = function(h.dequantize())
    assert torch.equal(moved.dequantize(), expected)
    assert moved.shape == expected.shape
    assert torch.equal(moved.integers(), (expected * h.scale).to(torch.int8))
    assert linger.coverage(model).float_ops == ()


@pytest.mark.parametrize("function", PARTS.values(), ids=PARTS.keys())
def test_every_part_keeps_scale_and_width(function):
    model = both(function)
    h, parts = model(image())
    expected = function(h.dequantize())
    assert type(parts) is type(expected)
    assert len(parts) == len(expected) > 1
    for part, real in zip(parts, expected, strict=True):
        assert isinstance(part, QTensor)
        assert (part.scale, part.bits) == (h.scale, h.bits)
        assert torch.equal(part.dequantize(), real)
    assert linger.coverage(model).float_ops == ()


@pytest.mark.parametrize("name", ["reshape", "transpose", "slice", "expand", "clone", "to float32", "T", "unsqueeze"])
def test_gradients_pass_through(name):
    function = MOVES[name]
    model = init(Wired(lambda m, x: function(m.conv(x)))).train()
    result = model(image())
    upstream = torch.randn(result.shape)
    result.backward(upstream)
    reference = torch.zeros(2, 4, 6, 6, requires_grad=True)
    function(reference).backward(upstream)
    # the gradient of the bias is the sum over all outputs of its channel: exact here but for the order of adding
    torch.testing.assert_close(model.conv.bias.grad, reference.grad.sum((0, 2, 3)), rtol=1e-5, atol=1e-5)


def test_detached_tensor_has_no_gradient():
    model = init(Wired(lambda m, x: m.conv(x).detach())).train()
    assert not model(image()).requires_grad


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int32])
def test_another_type_asks_for_real_values(kind):
    model = both(lambda h: h.to(kind))
    h, converted = model(image())
    assert not isinstance(converted, QTensor)
    assert torch.equal(converted, h.dequantize().to(kind))


@pytest.mark.parametrize("name", ["to float32", "to device", "cpu", "float"])
def test_the_type_that_it_has_leaves_nothing_in_a_file(name, tmp_path):
    model = init(Wired(lambda m, x: F.relu(MOVES[name](m.conv(x))))).eval()
    with linger.calibration(), torch.no_grad():
        model(image())
    linger.onnx.export(model, image(), tmp_path / "net.onnx")
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Quant", "Conv2dInt", "Relu", "Dequant"]
    assert linger.verify(model, tmp_path / "net.onnx", image()).ok


@pytest.mark.parametrize("name", ["squeeze_", "unsqueeze_", "transpose_", "t_"])
def test_changing_the_shape_in_place_is_refused_with_advice(name):
    arguments = {"unsqueeze_": (0,), "transpose_": (0, 1)}.get(name, ())
    with pytest.raises(UnsupportedError, match=rf"{name} changes the shape .* Write x = x\.{name.rstrip('_')}\("):
        after(lambda h: getattr(h[0, 0], name)(*arguments))


# -- dropout --------------------------------------------------------------------------------------------------

DROPOUTS = {
    "F.dropout": lambda h, training: F.dropout(h, 0.25, training),
    "F.dropout by keyword": lambda h, training: F.dropout(h, p=0.25, training=training),
    "F.dropout in place": lambda h, training: F.dropout(h, 0.25, training, inplace=True),
    "torch.dropout": lambda h, training: torch.dropout(h, 0.25, training),
    "F.dropout2d": lambda h, training: F.dropout2d(h, 0.25, training),
    "nn.Dropout": lambda h, training: nn.Dropout(0.25).train(training)(h),
    "nn.Dropout in place": lambda h, training: nn.Dropout(0.25, inplace=True).train(training)(h),
    "nn.Dropout2d": lambda h, training: nn.Dropout2d(0.25).train(training)(h),
}


def dropping(function):
    class Net(Wired):
        def __init__(self):
            super().__init__(lambda m, x: (lambda h: (h.clone(), function(h, m.training)))(m.conv(x)), channels=16)

    return Net()


@pytest.mark.parametrize("function", DROPOUTS.values(), ids=DROPOUTS.keys())
def test_dropout_does_nothing_in_evaluation(function):
    model = init(dropping(function)).eval()
    with linger.calibration():
        model(image())
    h, kept = model(image())
    assert isinstance(kept, QTensor)
    assert torch.equal(kept.integers(), h.integers())
    assert linger.coverage(model).float_ops == ()


@pytest.mark.parametrize("function", DROPOUTS.values(), ids=DROPOUTS.keys())
def test_dropout_drops_in_training_and_stays_on_the_grid(function):
    model = init(dropping(function)).train()
    with torch.no_grad():
        model.conv.bias.fill_(1.0)
        h, kept = model(image(batch=64))
    assert (kept.scale, kept.bits) == (h.scale, h.bits)
    steps, before = kept.dequantize() * h.scale, h.dequantize() * h.scale
    assert torch.equal(steps, steps.round())
    assert steps.abs().max() <= 128
    is_dropped = (steps == 0) & (before != 0)
    # 64·16 independent channels at least: a share of 0.25 ± 5·√(0.25·0.75/1024)
    assert abs(float(is_dropped.float().mean()) - 0.25) < 0.07
    survivors = ~is_dropped & (before.abs() < 90)
    expected = torch.floor(before[survivors] / 0.75 + 0.5)
    # the product with 1/0.75 and its rounding: a tie may fall either way
    assert (steps[survivors] - expected).abs().max() <= 1
    assert (steps[survivors] == expected).float().mean() > 0.9
    # what is dropped and what is scaled up balance; saturation and rounding move the mean by less than the noise
    assert abs(float(steps.mean() - before.mean())) < 0.1 * float(before.abs().mean())


def test_dropout_follows_the_random_state():
    model = init(dropping(DROPOUTS["F.dropout"])).train()
    torch.manual_seed(1)
    first = model(image())[1].dequantize()
    torch.manual_seed(1)
    second = model(image())[1].dequantize()
    third = model(image())[1].dequantize()
    assert torch.equal(first, second)
    assert not torch.equal(second, third)


def test_dropout_in_place_changes_the_tensor():
    def forward(h, training):
        F.dropout(h, 0.5, training, inplace=True)
        return h

    h, dropped = init(dropping(forward)).train()(image(batch=16))
    assert float((dropped.dequantize() == 0).float().mean()) > 0.4
    assert float((h.dequantize() == 0).float().mean()) < 0.2


def test_relu_after_alpha_dropout_is_not_skipped():
    model = init(dropping(lambda h, training: F.relu(F.alpha_dropout(F.relu(h), 0.5, training)))).train()
    assert model(image())[1].dequantize().min() == 0


def test_gradient_of_dropout_is_that_of_the_mask():
    model = init(dropping(DROPOUTS["F.dropout"])).train()
    _, kept = model(image())
    kept.sum().backward()
    share = (kept.dequantize() != 0).float().sum((0, 2, 3)) / 0.75
    # dropped elements give nothing, the others 1/0.75; a survivor that is zero itself is counted as dropped
    assert bool((model.conv.bias.grad >= share - 1e-3).all())
    assert bool((model.conv.bias.grad <= 72 / 0.75).all())
