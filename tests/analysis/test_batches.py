"""What inputs may be, and a forward pass on one batch."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from linger.errors import UnsupportedError, UsageError
from tests.support.analysis import as_batches, can_be_labels, float_tensors, fresh, run_batch

ONE, TWO = torch.ones(1), torch.ones(2)


class Anything(nn.Module):
    def forward(self, *parts):
        return parts


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((ONE, TWO), [(ONE, TWO)]),
        (ONE, [(ONE,)]),
        ([ONE, (ONE, TWO)], [(ONE,), (ONE, TWO)]),
        (iter([ONE, TWO]), [(ONE,), (TWO,)]),
        ([], []),
        ([{"x": 1}], [({"x": 1},)]),
    ],
    ids=["tuple", "tensor", "list", "iterator", "nothing", "another kind of argument"],
)
def test_batches_come_in_every_form(given, expected):
    found = list(as_batches(Anything(), given))
    assert [[id(part) if isinstance(part, torch.Tensor) else part for part in batch] for batch in found] == [
        [id(part) if isinstance(part, torch.Tensor) else part for part in batch] for batch in expected
    ]
    assert all(isinstance(batch, tuple) for batch in found)


@pytest.mark.parametrize(
    "given", [None, 3, "text", nn.Identity(), nn.Linear], ids=["None", "number", "text", "model", "class"]
)
def test_what_is_no_batch_is_refused_at_once(given):
    with pytest.raises(UsageError, match=rf"{type(given).__name__} is no batch\. Give a tensor, a tuple"):
        as_batches(Anything(), given)


class Named(nn.Module):
    def forward(self, image, gain=None):
        return image if gain is None else image * gain


def test_a_wrong_name_is_no_argument_of_its_own():
    with pytest.raises(UsageError, match=r"does not take gian \(is it gain\?\) by name.*: image, gain"):
        list(as_batches(Named(), [{"image": ONE, "gian": TWO}]))
    (batch,) = as_batches(Named(), [{"key": ONE}])
    assert batch == ({"key": ONE},)


def test_a_fresh_copy_shares_no_memory_and_keeps_everything_else():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    tree = {"a": [ONE, 3, None], "b": packed}
    made = fresh(tree)
    made["a"][0].zero_()
    made["b"].data.zero_()
    assert ONE.item() == 1.0
    assert packed.data.min().item() == 1.0
    assert made["a"][1:] == [3, None]
    assert type(made["b"]) is type(packed)
    assert torch.equal(made["b"].batch_sizes, packed.batch_sizes)


def test_a_tensor_given_twice_stays_one_tensor():
    first, (second,) = fresh((ONE, [ONE]))
    assert first is second is not ONE


def test_a_failing_pass_names_model_shapes_and_cause():
    with pytest.raises(
        UsageError, match=r"Linear: the forward pass fails on the input \[\(2, 3\)\]: RuntimeError: .*"
    ) as caught:
        run_batch(nn.Linear(4, 1), (torch.ones(2, 3),))
    assert isinstance(caught.value.__cause__, RuntimeError)


class Raises(nn.Module):
    def forward(self, error):
        raise error


@pytest.mark.parametrize("error", [UnsupportedError("no"), KeyboardInterrupt()], ids=["ours", "interrupt"])
def test_errors_that_say_enough_pass(error):
    with pytest.raises(type(error)):
        run_batch(Raises(), (error,))


def test_a_tuple_of_batches_is_explained():
    batches = torch.ones(4, 3).split(2)  # a tuple, which torch means as a list
    with pytest.raises(
        UsageError, match=r"\[\(2, 3\), \(2, 3\)\].*A tuple holds the arguments of one forward pass, a list holds"
    ):
        run_batch(nn.Linear(3, 1), batches)


def test_labels_beside_a_single_number_are_left_out():
    x = torch.tensor(1.5)
    for labels in (torch.tensor(2), 3, "three"):
        assert [tuple(batch) for batch in as_batches(nn.Identity(), (x, labels))] == [(x,)]
    with pytest.raises(UsageError, match="does not take 2 positional arguments"):
        list(as_batches(nn.Identity(), (x, torch.tensor([2, 3]))))


def test_keywords_are_given():
    assert run_batch(nn.Identity(), (), {"input": ONE}) is ONE


@dataclass
class Result:
    logits: torch.Tensor
    rest: tuple
    number: int = 3


def test_float_tensors_are_found_in_every_nest():
    a, b, c, d, e = (torch.full((1,), float(i)) for i in range(5))
    packed = pack_sequence([d])
    tree = OrderedDict(x=(a, [b, None, torch.ones(1, dtype=torch.long)]), y=Result(c, (packed, "text")), z={"e": e})
    assert [leaf.item() for leaf in float_tensors(tree)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert float_tensors(Result) == []


@pytest.mark.parametrize(
    ("parts", "are_labels"),
    [
        ((torch.zeros(2, 4), torch.tensor([1, 2])), True),
        ((torch.zeros(2, 4), torch.zeros(3, 4), torch.tensor([1, 2])), True),
        ((torch.zeros(3, 4), torch.tensor([1, 2])), False),
        ((torch.zeros(2, 4), torch.tensor([1.0, 2.0])), False),
        ((torch.tensor(1.0), torch.tensor([1])), False),
        ((torch.zeros(1, 4), torch.tensor(1)), False),
        (([1, 2], torch.tensor([1, 2])), False),
    ],
    ids=["labels", "two inputs", "other rows", "real", "one number", "one label", "no tensor"],
)
def test_labels_are_a_whole_number_for_each_row_of_the_first(parts, are_labels):
    assert can_be_labels(parts) == are_labels
