"""What a time step of a recurrent layer costs, counted: calls of torch and numpy, and numbers read back."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.fast_paths import recurrent_fast_path
from tests.support.ops import find_op
from tests.support.recurrent import Formats, random_layer, tensors
from tests.support.torch_arithmetic import timeline

CELLS = {name: (recurrent_fast_path(find_op(f"{name}Int")), gates) for name, gates in (("LSTM", 4), ("GRU", 3))}
USUAL = Formats(32.0, 128.0, (256.0,), (256.0,))
NUMPY_CALLS = {"LSTM": (12, 6), "GRU": (10, 5)}
"""Calls of the arithmetic in a step, forward and backward."""
TORCH_CALLS = {"LSTM": (19, 5), "GRU": (18, 4)}
"""The same of torch where it does the steps, with views."""


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def arguments(name, steps):
    draw = np.random.default_rng(5)
    layer = random_layer(draw, gates=CELLS[name][1], sizes=(steps, 3, 4, 5, 1), formats=USUAL, gain=0.5, bias=0.5)
    return tensors(layer, has_cell=name == "LSTM")


def torch_calls(name, steps, *, learns):
    """Calls of torch in the forward and the backward pass."""
    given = arguments(name, steps)
    given[-5].requires_grad_(learns)
    with Counting() as forward:
        out = CELLS[name][0].run(*given, wants_reach=learns).out
    with Counting() as backward:
        if learns:
            out.sum().backward()
    return forward.calls, backward.calls


def per_step(name, *, learns):
    _, few, many = (torch_calls(name, steps, learns=learns) for steps in (10, 10, 30))  # the first one makes tables
    return [{key: (b[key] - a[key]) / 20 for key in b if b[key] != a[key]} for a, b in zip(few, many, strict=True)]


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("learns", [False, True], ids=["evaluation", "training"])
def test_steps_on_the_cpu_call_no_torch(name, learns):
    assert per_step(name, learns=learns) == [{}, {}]


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("learns", [False, True], ids=["evaluation", "training"])
def test_steps_by_torch_are_few_and_read_nothing_back(name, learns, monkeypatch):
    monkeypatch.setattr(timeline, "LARGEST_STEP", 0)
    for found, most in zip(per_step(name, learns=learns), TORCH_CALLS[name], strict=True):
        assert not {key for key in found if "local_scalar" in key}
        assert sum(found.values()) <= most


@pytest.mark.parametrize("name", CELLS)
def test_steps_by_numpy_are_few(name, monkeypatch):
    calls = Counter()

    def counted(key):
        own = getattr(timeline._NumpySteps, key)
        is_static = isinstance(vars(timeline._NumpySteps)[key], staticmethod)

        def call(*given, **options):
            calls[key] += 1
            return own(*given, **options)

        monkeypatch.setattr(timeline._NumpySteps, key, staticmethod(call) if is_static else call)

    for key in (
        "add",
        "multiply",
        "subtract",
        "floor",
        "round",
        "product",
        "add_product",
        "multiply_add",
        "limit",
        "look_up",
    ):
        counted(key)
    counts = []
    for steps in (10, 30):
        given = arguments(name, steps)
        given[-5].requires_grad_()
        calls.clear()
        out = CELLS[name][0].run(*given, wants_reach=True).out
        forward = calls.total()
        out.sum().backward()
        counts.append((forward, calls.total() - forward))
    found = [(b - a) / 20 for a, b in zip(*counts, strict=True)]
    assert all(own <= most for own, most in zip(found, NUMPY_CALLS[name], strict=True)), found


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("settings", [{"LARGEST_STEP": 0}, {"LARGEST_PRODUCT": 30}, {"MOST_BLOCKS": 0}], ids=str)
def test_other_ways_give_the_same_integers(name, settings, monkeypatch):
    given = arguments(name, 9)
    expected = CELLS[name][0].run(*given, wants_reach=True)
    for key, value in settings.items():
        monkeypatch.setattr(timeline, key, value)
    found = CELLS[name][0].run(*given, wants_reach=True)
    assert found.reach == expected.reach
    assert all(torch.equal(a, b) for a, b in zip(found[:-1], expected[:-1], strict=True))


@pytest.mark.parametrize("name", CELLS)
def test_gradients_overflow_without_a_word(name):
    given = arguments(name, 3)
    given[0].requires_grad_()
    out = CELLS[name][0].run(*given, wants_reach=False).out
    out.backward(torch.full_like(out, np.inf))
    assert not given[0].grad.isfinite().all()
