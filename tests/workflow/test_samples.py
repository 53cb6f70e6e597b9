"""Samples of a job: rows and batches, labels, what is held out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from linger import UsageError
from tests.support.jobs import Piece, Samples, checked_arguments, limited, of_arrays, of_user, seen_before

pytestmark = pytest.mark.needs_torch


class Two(nn.Module):
    """Needs two arguments and takes a third."""

    def forward(self, x, lengths, state=None):
        return x


def rows(count):
    return of_arrays([torch.arange(float(count))[:, None]], torch.arange(count), "x")


def values(samples):
    return [float(piece.arguments[0][0, 0]) for piece in samples.pieces]


@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (4, 1), (5, 1), (12, 2), (100, 20)])
def test_one_sample_in_five_is_held_out_and_one_at_least(count, held_out):
    seen, kept = rows(count).divided()
    assert len(kept) == held_out
    assert sorted(values(seen) + values(kept)) == list(range(count))
    assert values(seen) == sorted(values(seen))
    assert [int(p.labels) for p in kept.pieces] == values(kept) == sorted(values(kept))
    assert values(rows(count).divided()[1]) == values(kept)


def test_data_that_go_round_in_classes_keep_all_of_them():
    _, kept = rows(200).divided()
    assert {value % 10 for value in values(kept)} == set(range(10))


def grouped(*sizes):
    names = [f"{i}.wav" for i, size in enumerate(sizes) for _ in range(size)]
    samples = rows(len(names))
    pieces = [replace(piece, group=name) for piece, name in zip(samples.pieces, names, strict=True)]
    return replace(samples, pieces=tuple(pieces))


@pytest.mark.parametrize("sizes", [(4,) * 10, (90, 10), (30, 1, 1), (2, 1), (3, 3, 3), (7, 1, 9, 4, 2, 8)], ids=str)
def test_the_parts_of_a_group_stay_on_one_side(sizes):
    seen, kept = grouped(*sizes).divided()
    assert not {piece.group for piece in seen.pieces} & {piece.group for piece in kept.pieces}
    assert len(seen) + len(kept) == sum(sizes)
    assert 1 <= len(kept) <= max(min(sizes), 2 * max(1, sum(sizes) // 5))


def test_of_a_single_group_the_end_is_held_out():
    seen, kept = grouped(10).divided()
    assert values(kept) == [8, 9]
    assert values(seen) == list(range(8))


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
    ("found", "model", "arguments", "is_labeled"),
    [
        (torch.zeros(3, 4), nn.Linear(4, 3), 1, False),
        ((torch.zeros(3, 4), LABELS), nn.Linear(4, 3), 1, True),
        ([[torch.zeros(3, 4), LABELS]], nn.Linear(4, 3), 1, True),
        ((torch.zeros(3, 4), torch.zeros(3)), nn.Linear(4, 3), 1, False),
        ((torch.zeros(3, 4), LABELS), Two(), 2, False),
        ((torch.zeros(3, 4), LABELS, LABELS), Two(), 2, True),
        (torch.utils.data.TensorDataset(torch.zeros(3, 4), LABELS), nn.Linear(4, 3), 1, True),
    ],
    ids=["tensor", "with-labels", "as-a-loader-gives-it", "real", "lengths", "lengths-and-labels", "dataset"],
)
def test_the_last_part_is_labels_where_the_model_does_not_need_it(found, model, arguments, is_labeled):
    samples = of_user(found, model, "d", batch=8, limit=None)
    assert {len(piece.arguments) for piece in samples.pieces} == {arguments}
    assert samples.has_labels is is_labeled


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"x": 1}, "dict is no data"),
        (None, "NoneType is no data"),
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


def test_samples_that_are_seen_again_are_counted_whatever_the_batches():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    batches = Samples(tuple(Piece((part,)) for part in x[[3, 1, 5, 0]].split(2)), are_rows=False)
    assert seen_before(of_arrays([x[:4]], None, "x"), batches) == (3, 4)
    assert seen_before(of_arrays([x], None, "x"), of_arrays([x + 1], None, "y")) == (0, 6)
    assert seen_before(of_arrays([x], None, "x"), of_arrays([x.reshape(6, 1, 3)], None, "y")) == (0, 6)  # another shape
    half = of_arrays([x.bfloat16(), x], None, "x")
    assert seen_before(half, half) == (6, 6)
    assert seen_before(half, of_arrays([x.bfloat16(), x + 1], None, "y")) == (0, 6)  # every argument counts


def test_a_batch_without_rows_is_compared_as_a_whole():
    whole = Samples((Piece((torch.ones(2, 3), torch.tensor(1.0))),), are_rows=False)
    other = Samples((Piece((torch.ones(2, 3), torch.tensor(2.0))),), are_rows=False)
    assert (seen_before(whole, whole), seen_before(whole, other)) == ((1, 1), (0, 1))
