"""A tensor of fixed-point numbers: what it is, what it is made of, what becomes of it."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linger import QTensor
from linger.errors import UnsupportedError
from tests.support.quantization import Runtime, dispatch, to_carrier, unwrap
from tests.support.wired import after, image


def qtensor(values=(0.5, -0.25, 1.0), scale=16.0, bits=8):
    return QTensor(torch.tensor(values), scale, bits, Runtime(dispatch))


def test_names_of_the_documents():
    x = qtensor()
    assert (x.scale, x.scale_data, x.bits, x.zero_point) == (16.0, 16.0, 8, 0)
    assert isinstance(x, torch.Tensor)
    assert x.shape == (3,)
    assert x.dtype == torch.float32
    assert len(x) == 3


@pytest.mark.parametrize(
    ("bits", "kind"), [(4, torch.int8), (8, torch.int8), (16, torch.int16), (32, torch.int32)], ids=str
)
def test_integers_are_value_times_scale_in_the_narrowest_type(bits, kind):
    x = QTensor(torch.tensor([0.5, -0.25], dtype=torch.float64), 16.0, bits, Runtime(dispatch))
    assert x.integers().tolist() == [8, -4]
    assert x.integers().dtype == kind


def test_real_values_are_float32_in_the_graph():
    content = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    x = QTensor(content, 16.0, 32, Runtime(dispatch))
    assert x.dequantize().dtype == torch.float32
    x.dequantize().sum().backward()
    assert content.grad.item() == 1.0


def test_repr_shows_scale_bits_and_numbers():
    assert repr(qtensor()) == "QTensor(scale=16.0, bits=8, tensor([ 0.5000, -0.2500,  1.0000]))"


def test_questions_are_answered_from_the_values():
    x = qtensor()
    assert x.tolist() == [0.5, -0.25, 1.0]
    assert x[2].item() == 1.0
    assert (x.dim(), x.numel(), x.size(0), x.is_floating_point()) == (1, 3, 3, True)
    assert np.asarray(x).tolist() == [0.5, -0.25, 1.0]
    assert x.numpy().dtype == np.float32
    assert bool(x[0] > 0)
    assert f"{x[0]:.2f}" == "0.50"
    assert hash(x) == id(x)


def test_a_copy_or_a_saved_tensor_is_an_ordinary_one():
    x = after(lambda h: h)(image())
    clone = copy.deepcopy(x)
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    for made in (clone, loaded):
        assert type(made) is torch.Tensor
        assert torch.equal(made, x.dequantize())
        assert not made.requires_grad


def test_nested_arguments_are_unwrapped():
    x, other = qtensor(), torch.zeros(2)
    found = unwrap({"a": [x, other], "b": (x, 3)})
    assert not any(isinstance(t, QTensor) for t in (found["a"][0], found["b"][0]))
    assert found["a"][1] is other
    assert found["b"][1] == 3


@pytest.mark.parametrize(("bits", "kind"), [(8, torch.float32), (16, torch.float32), (32, torch.float64)])
def test_carrier_holds_the_width(bits, kind):
    assert to_carrier(torch.zeros(1), bits).dtype == kind


def test_overwritten_by_another_quantized_tensor():
    x, other = qtensor(), qtensor((2.0,), 4.0, 16)
    assert x.overwrite(other) is x
    assert (x.scale, x.bits, x.tolist()) == (4.0, 16, [2.0])


def test_overwritten_by_floats_it_is_an_ordinary_tensor():
    x = qtensor()
    x.overwrite(torch.tensor([0.3]))
    assert x.scale is None
    assert torch.equal(x + 1, torch.tensor([0.3]) + 1)
    assert not isinstance(x + 1, QTensor)
    with pytest.raises(TypeError, match="holds no integers"):
        x.integers()


# -- tensors that share memory ------------------------------------------------------------------------------


def test_like_shares_or_owns_its_memory():
    x = qtensor()
    view, fresh = x.like(x.content[:2]), x.like(x.content * 1)
    x.overwrite(qtensor((3.0,)))
    assert fresh.tolist() == [0.5, -0.25, 1.0]
    with pytest.raises(UnsupportedError, match="shares its memory"):
        view.tolist()
    assert x.tolist() == [3.0]


VIEWS = {
    "slice": lambda h: h[:, :2],
    "view": lambda h: h.view(2, -1),
    "reshape": lambda h: h.reshape(2, -1),
    "transpose": lambda h: h.transpose(1, 2),
    "T": lambda h: h.mT,
    "chunk": lambda h: h.chunk(2, 1)[0],
    "detach": lambda h: h.detach(),
    "same": lambda h: h.contiguous(),
    "float": lambda h: h.float(),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("changed", ["the view", "the tensor itself"])
def test_a_tensor_changed_in_place_through_another_is_refused_not_stale(make, changed):
    def forward(h):
        other = make(h)
        first, second = (h, other) if changed == "the tensor itself" else (other, h)
        first += 1.0
        return F.relu(second)

    with pytest.raises(UnsupportedError, match=r"shares its memory .* was changed in place\. Write x = x \+ y"):
        after(forward)


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_may_be_changed_when_nobody_looks_at_the_tensor_again(make):
    def forward(h):
        view = make(h)
        view += 1.0
        return view

    def out_of_place(h):
        return make(h) + 1.0

    torch.manual_seed(0)
    expected = after(out_of_place)(image())
    torch.manual_seed(0)
    assert torch.equal(after(forward)(image()).integers(), expected.integers())


COPIES = {
    "clone": lambda h: h.clone(),
    "flip": lambda h: h.flip(0),
    "repeat": lambda h: h.repeat(1, 1, 1, 1),
    "reshape that copies": lambda h: h.transpose(1, 2).reshape(2, -1),
    "relu": F.relu,
    "relu of what is not negative": lambda h: F.relu(F.relu(h)),
    "max_pool2d": lambda h: F.max_pool2d(h, 1),
}


CHANGES = {"integers": lambda t: t.add_(1.0), "floats": lambda t: t.sub_(1.0), "elements": lambda t: t.fill_(3.0)}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
@pytest.mark.thin(every=2)
def test_a_copy_and_its_source_are_independent(make, change):
    def change_copy(h):
        source = F.relu(h)
        copy = make(source)
        change(copy)
        return source

    def change_source(h):
        source = F.relu(h)
        copy = make(source)
        change(source)
        return copy

    for forward, expected in ((change_copy, F.relu), (change_source, lambda h: make(F.relu(h)))):
        torch.manual_seed(0)
        reference = after(expected)(image())
        torch.manual_seed(0)
        assert torch.equal(after(forward)(image()).integers(), reference.integers())


def test_relu_in_place_is_seen_through_every_name():
    def forward(h):
        view, same = h[:, :2], h
        F.relu_(h)
        return torch.cat([view, same], dim=1)

    def expected(h):
        h = F.relu(h)
        return torch.cat([h[:, :2], h], dim=1)

    torch.manual_seed(0)
    reference = after(expected)(image())
    torch.manual_seed(0)
    assert torch.equal(after(forward)(image()).integers(), reference.integers())


def test_deferred_content_is_made_once_and_only_when_asked_for():
    made = []

    def make():
        made.append(1)
        return torch.tensor([0.25, 0.5])

    x = QTensor(torch.zeros(2), 4.0, 8, Runtime(dispatch)).deferred(make)
    assert (x.scale, x.bits, made) == (4.0, 8, [])
    assert x.integers().tolist() == [1, 2]
    assert (x + 0).tolist() == [0.25, 0.5]
    assert made == [1]
    forgotten = QTensor(torch.zeros(2), 4.0, 8, Runtime(dispatch)).deferred(make)
    forgotten.overwrite(torch.ones(2))
    assert forgotten.content.tolist() == [1.0, 1.0]
    assert made == [1]


def test_deferred_content_that_was_written_in_place_is_used_again():
    x = QTensor(torch.zeros(2), 4.0, 8, Runtime(dispatch)).deferred(lambda: torch.zeros(2).add_(0.5))
    assert x.tolist() == x.tolist() == [0.5, 0.5]
