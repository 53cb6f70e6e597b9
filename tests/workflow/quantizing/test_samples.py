"""Samples of a job: rows and batches, labels, what is held out."""

import numpy as np
import pytest
import torch
from torch import nn

from linger import UsageError
from linger.workflow.quantizing.samples import checked_arguments, limited, of_arrays, of_user

pytestmark = pytest.mark.needs_torch


class Two(nn.Module):
    """Needs two arguments and takes a third."""

    def forward(self, x, lengths, state=None):
        return x


def rows(count):
    return of_arrays([torch.arange(float(count))[:, None]], torch.arange(count), "x")


def values(samples):
    return [float(piece.arguments[0][0, 0]) for piece in samples.pieces]


@pytest.mark.parametrize(
    ("count", "held_out"),
    [(2, [1]), (4, [3]), (5, [4]), (12, [4, 9])],
    ids=["two", "four", "five", "twelve"],
)
def test_every_fifth_sample_is_held_out_of_fewer_the_last(count, held_out):
    seen, kept = rows(count).divided()
    assert values(kept) == held_out
    assert sorted(values(seen) + values(kept)) == list(range(count))
    assert [int(p.labels) for p in kept.pieces] == held_out


def test_one_sample_serves_for_both_and_a_note_says_so():
    seen, kept = rows(1).divided()
    assert values(seen) == values(kept) == [0]
    assert "data that tuning has seen" in kept.notes[0]


def test_rows_become_batches_and_batches_of_a_user_stay():
    assert [len(p.arguments[0]) for p in rows(7).batches(3)] == [3, 3, 1]
    given = of_user([torch.zeros(2, 4), torch.zeros(5, 4)], nn.Linear(4, 1), "d", batch=3, limit=None)
    assert [len(p.arguments[0]) for p in given.batches(3)] == [2, 5]
    assert not given.are_rows


def test_a_limit_takes_samples_evenly():
    assert values(limited(rows(10), 3)) == [0, 3, 6]


LABELS = torch.tensor([1, 0, 2])


@pytest.mark.parametrize(
    ("found", "model", "arguments", "is_labelled"),
    [
        (torch.zeros(3, 4), nn.Linear(4, 3), 1, False),
        ((torch.zeros(3, 4), LABELS), nn.Linear(4, 3), 1, True),
        ([[torch.zeros(3, 4), LABELS]], nn.Linear(4, 3), 1, True),
        ((torch.zeros(3, 4), torch.zeros(3)), nn.Linear(4, 3), 2, False),
        ((torch.zeros(3, 4), LABELS), Two(), 2, False),
        ((torch.zeros(3, 4), LABELS, LABELS), Two(), 2, True),
        (torch.utils.data.TensorDataset(torch.zeros(3, 4), LABELS), nn.Linear(4, 3), 1, True),
    ],
    ids=["tensor", "with-labels", "as-a-loader-gives-it", "real", "lengths", "lengths-and-labels", "dataset"],
)
def test_the_last_part_is_labels_where_the_model_does_not_need_it(found, model, arguments, is_labelled):
    samples = of_user(found, model, "d", batch=8, limit=None)
    assert {len(piece.arguments) for piece in samples.pieces} == {arguments}
    assert samples.has_labels is is_labelled


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"x": 1}, "it returned dict"),
        (None, "it returned NoneType"),
        ([], "it gave no batch"),
        ([()], "an empty batch"),
        ((x / 0 for x in [1]), "it fails while it gives batches (ZeroDivisionError"),
    ],
    ids=["dict", "nothing", "no-batch", "empty-batch", "failing"],
)
def test_what_is_no_data_is_told(found, message):
    with pytest.raises(UsageError) as told:
        of_user(found, nn.Linear(4, 3), "my.py:data", batch=8, limit=None)
    assert message in str(told.value)


def test_arrays_of_different_lengths_and_labels_that_do_not_fit():
    with pytest.raises(UsageError, match="the arrays hold 3, 2 samples"):
        of_arrays([torch.zeros(3, 1), torch.zeros(2, 1)], None, "x.npz")
    with pytest.raises(UsageError, match="2 labels for 3 samples"):
        of_arrays([torch.zeros(3, 1)], torch.zeros(2), "x.npz")
    with pytest.raises(UsageError, match="hold 0 samples"):
        of_arrays([torch.zeros(0, 1)], None, "x.npz")


def test_every_sample_that_is_not_finite_is_named():
    data = torch.zeros(4, 2)
    data[1, 0], data[3, 1] = np.nan, np.inf
    with pytest.raises(UsageError, match="sample 1, 3 holds NaN or infinity"):
        checked_arguments(of_arrays([data], None, "x"), "x")


def test_arguments_are_tensors():
    nested = of_user([(torch.zeros(2, 4), (torch.zeros(1, 2, 3),))], nn.GRU(4, 3), "d", batch=8, limit=None)
    with pytest.raises(UsageError, match=r"among the arguments is tuple\. The inputs of a file are tensors"):
        checked_arguments(nested, "d")
