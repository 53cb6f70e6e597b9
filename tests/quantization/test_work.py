"""How much a quantized network works: passes over activations and weights, numbers read back, calls of Python; not timed."""

import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import linger
from tests.support.quantization import limited, unwrap

IMAGE = (4, 8, 12, 12)
ACTIVATIONS = 4 * 8 * 12 * 12
WEIGHTS = 8 * 8 * 3 * 3
ROUNDING = Counter(add=1, floor_=1, mul_=1)
"""x·scale + ½, the floor, and the way back to real values."""

MOVES_NOTHING = {"detach", "expand", "view", "as_strided"}


class Work(TorchDispatchMode):
    """Counts calls of torch by name and by the elements of their largest tensor."""

    def __init__(self):
        super().__init__()
        self.passes = {ACTIVATIONS: Counter(), WEIGHTS: Counter()}
        self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.reads += name == "_local_scalar_dense"
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        largest = max((t.numel() for t in tensors), default=0)
        if largest in self.passes and name not in MOVES_NOTHING:
            self.passes[largest][name] += 1
        return result


class Block(nn.Module):
    """Two convolutions with batch norms and a sum: every tensor between them has the same size."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


@pytest.fixture
def x():
    return torch.randn(IMAGE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = linger.init(linger.trace_layers(nn.Sequential(nn.Conv2d(8, 8, 1), Block()), x)).train()
    for _ in range(2):  # ranges, and who uses them, are known from the second step on
        step(made, x)
    return made


def step(model, x):
    model.zero_grad()
    unwrap(model(x)).sum().backward()


def test_passes_of_a_training_step_over_activations(model, x):
    with Work() as work:
        step(model, x)
    expected = Counter()
    for _ in range(5):  # the input, three products and the sum are rounded
        expected += ROUNDING
    # each of them is looked at once for its range; behind ReLU the largest number does
    expected += Counter(aminmax=4, max=1)
    # the rest is what a float network does: ReLU is the lower end of a clamp in the one, and its own pass behind the sum
    expected += Counter(convolution=3, native_batch_norm=2, clamp_=1, add=1, relu_=1, sum=1)
    expected += Counter(convolution_backward=3, native_batch_norm_backward=2, threshold_backward=2)
    expected += Counter(add=1)  # the gradients of both ways to the sum's operand
    assert work.passes[ACTIVATIONS] <= expected


def test_passes_of_a_training_step_over_weights(model, x):
    with Work() as work:
        step(model, x)
    # of each of the two layers: times γ/σ, the largest one, x·scale + ½, the floor; and the gradient's way back through both
    each = Counter(mul=1, aminmax=1, add=1, floor_=1, mul_=1)
    assert work.passes[WEIGHTS] <= each + each


def test_numbers_read_back_in_a_training_step(model, x):
    with Work() as work:
        step(model, x)
    ranges = 4 * 2 + 1  # both ends of a tensor, or the largest number behind ReLU
    weights = 3 * 2
    bias = 2  # of the layer without a batch norm
    factors = 2  # whether a γ of a batch norm is zero
    assert work.reads <= ranges + weights + bias + factors


def test_rounded_weights_are_written_where_those_of_the_last_step_were(model, x):
    def where():
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
            loss = unwrap(model(x)).sum()
        loss.backward()
        return [memory for memory in kept if memory in {layer.memory._free[0].data_ptr() for layer in layers}]

    layers = [model[0], model[1].conv1, model[1].conv2]
    first = where()
    assert len(first) == 3
    assert where() == first


def test_passes_of_an_exact_evaluation(model, x):
    model.eval()
    with torch.no_grad():
        model(x)  # freezes the parameters
        with Work() as work:
            model(x)
    # the product delivers x·scale + ½ itself; three passes make integers of it, and ReLU is the lower end of one of them
    products = Counter(convolution=3, floor_=3, clamp_=3, mul_=3)
    # the input, and the sum with its ReLU
    others = Counter(add=1, floor_=1, clamp_=1, mul_=1) + Counter(add=2, floor_=1, clamp_=1, mul_=1, relu_=1)
    assert work.passes[ACTIVATIONS] <= products + others
    assert not work.passes[WEIGHTS]  # they are integers already
    assert work.reads == 0


class Doubled(nn.Module):
    """A sum."""

    def forward(self, x):
        return x + x


def test_a_sum_is_limited_where_it_lies_unless_gradients_need_it():
    total = torch.tensor([-20.0, 1.0, 20.0])
    assert limited(total, 16.0, 8).data_ptr() == total.data_ptr()
    assert total.tolist() == [-8.0, 1.0, 7.9375]
    kept = torch.tensor([20.0], requires_grad=True) * 1.0
    assert limited(kept, 16.0, 8).data_ptr() != kept.data_ptr()
    assert kept.tolist() == [20.0]


def calls_into_linger(layer, count):
    """Calls of linger's functions in an exact evaluation of so many layers behind a convolution; a generator counts each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(IMAGE)
        layers = [nn.Conv2d(8, 8, 1), *(layer() for _ in range(count))]
        made = linger.init(linger.trace_layers(nn.Sequential(*layers), x)).train()
    step(made, x)
    made.eval()
    home, calls = str(Path(linger.__file__).parent), 0

    def see(frame, event, arg):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(home)

    before = sys.getprofile()
    with torch.no_grad():
        made(x)  # freezes the parameters
        sys.setprofile(see)
        try:
            made(x)
        finally:
            sys.setprofile(before)
    return calls


@pytest.mark.parametrize(
    ("layer", "most"),
    [(partial(nn.Conv2d, 8, 8, 3, padding=1), 52), (Doubled, 110), (partial(nn.ReLU, inplace=True), 16)],
    ids=["a convolution", "a sum", "a ReLU that the layer before has done"],
)
def test_python_calls_of_a_layer_in_an_exact_evaluation(layer, most):
    assert calls_into_linger(layer, 3) - calls_into_linger(layer, 1) <= 2 * most
