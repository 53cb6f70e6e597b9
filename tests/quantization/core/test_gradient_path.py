"""A torch.autograd.Function behind quantized layers: the gradients are those of the function spelled out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor


class Doubled(torch.autograd.Function):
    """Returns a quantized tensor of its own, computed where torch follows no gradient; keeps its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0


class Flipped(torch.autograd.Function):
    """Only moves numbers."""

    @staticmethod
    def forward(ctx, x):
        return x.flip(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(-1)


class Viewed(torch.autograd.Function):
    """Returns a view of what it was given."""

    @staticmethod
    def forward(ctx, x):
        return x.view(3, 2, 5)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(6, 5)


class Same(torch.autograd.Function):
    """Returns its input itself."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Sine(torch.autograd.Function):
    """Returns an ordinary tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.cos(ctx.saved_tensors[0])


class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(4, 5), nn.Linear(5, 3), middle

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def gradients(middle, *, bits=8):
    torch.manual_seed(0)
    net = Net(middle)
    linger.quant_module(net.first, data_bits=8, parameter_bits=8, out_bits=bits)
    net = linger.init(net).train()
    net(torch.randn(6, 4)).pow(2).sum().backward()
    return {n: p.grad for n, p in net.named_parameters()}


def in_place(x):
    x *= 2
    return x


CASES = {
    "computes": (Doubled.apply, lambda x: x * 2),
    "moves": (Flipped.apply, lambda x: x.flip(-1)),
    "float": (Sine.apply, torch.sin),
    "two in a row": (lambda x: Flipped.apply(Flipped.apply(x)), lambda x: x.flip(-1).flip(-1)),
    "views": (Viewed.apply, lambda x: x.view(3, 2, 5)),
    "after a view": (lambda x: Flipped.apply(x.view(-1, 5)), lambda x: x.view(-1, 5).flip(-1)),
    "after a change in place": (lambda x: Flipped.apply(in_place(x)), lambda x: in_place(x).flip(-1)),
    "after relu in place": (lambda x: Flipped.apply(F.relu_(x)), lambda x: F.relu(x).flip(-1)),
    "changed in place afterwards": (lambda x: in_place(Flipped.apply(x)), lambda x: in_place(x.flip(-1))),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_function_spelled_out(case):
    own, spelled_out = CASES[case]
    wanted = gradients(spelled_out)
    found = gradients(own)
    assert all(torch.equal(found[n], wanted[n]) for n in wanted)
    assert all(g.any() for g in wanted.values())


def test_tensor_of_32_bits_has_a_gradient_too():
    assert torch.equal(
        gradients(Flipped.apply, bits=32)["first.weight"], gradients(lambda x: x.flip(-1), bits=32)["first.weight"]
    )


def test_function_that_returns_its_input_hands_its_gradient_on():
    found, plain = gradients(Same.apply), gradients(lambda x: x)
    assert torch.equal(found["last.weight"], plain["last.weight"])
    torch.testing.assert_close(
        found["first.weight"], 3 * plain["first.weight"], rtol=1e-6, atol=0
    )  # three times the last bit


def test_saved_tensor_that_is_changed_afterwards_is_noticed():
    def middle(x):
        y = Doubled.apply(x)
        x += 1
        return y + x

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(middle)


def test_change_without_gradients_keeps_the_gradient_path():
    def middle(x):
        with torch.no_grad():
            x *= 2
        return x

    found, wanted = gradients(middle), gradients(lambda x: x + (x.detach() * 2 - x.detach()))
    assert found["first.weight"] is not None
    assert found["first.weight"].shape == wanted["first.weight"].shape
    assert found["first.weight"].any()


def test_overwritten_tensor_keeps_no_gradient_path():
    found = gradients(lambda x: Flipped.apply(x.fill_(0.25)))
    assert not found["first.weight"].any()  # torch's own fill_ says so with zeros
    assert found["last.weight"].any()


@pytest.mark.parametrize("bits", [8, 32])
def test_quantized_leaf_of_ones_own_collects_a_gradient(bits):
    """What a checkpoint does with its inputs."""
    seen = {}

    def middle(x):
        leaf = seen["leaf"] = x.detach()
        leaf.requires_grad = True
        assert leaf.requires_grad
        assert isinstance(leaf, QTensor)
        return Flipped.apply(leaf)

    found = gradients(middle, bits=bits)
    assert found["first.weight"] is None
    assert seen["leaf"].grad.shape == (6, 5)
    assert seen["leaf"].grad.any()


def test_evaluation_with_gradients_goes_through_a_function_too():
    torch.manual_seed(0)
    net = linger.init(Net(Flipped.apply)).train()
    x = torch.randn(6, 4, requires_grad=True)
    net(x)
    net.eval()(x).sum().backward()
    assert x.grad.any()
    assert net.first.weight.grad.any()


def test_the_input_of_a_function_that_returns_it_is_used_again():
    """As FSDP does ahead of a part that it has sharded; a residual connection then reads the input."""
    torch.manual_seed(0)
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            h = self.first(x)
            return h + self.second(Same.apply(h))

    model = linger.init(Residual()).train()
    model(torch.randn(6, 5)).dequantize().sum().backward()
    assert model.first.weight.grad.abs().sum() > 0
