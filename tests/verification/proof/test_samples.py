"""Batches are cut into samples, and tensors of samples joined."""

import numpy as np
import pytest

from linger.errors import GraphError, UsageError
from linger.verification.proof.witness import Join, cut_to

X = np.arange(24, dtype=np.int8).reshape(4, 2, 3)


def shapes(samples):
    return [{name: array.shape for name, array in sample.items()} for sample in samples]


@pytest.mark.parametrize(
    ("sample", "count"),
    [((1, 2, 3), 4), ((2, 2, 3), 2), ((4, 2, 3), 1), ((4, 1, 3), 2), (("n", 2, 3), 1), (("n", 2, 1), 3)],
    ids=["ones", "pairs", "whole", "middle axis", "open", "open and last axis"],
)
def test_the_axis_that_differs_is_cut(sample, count):
    found = cut_to({"x": sample}, {"x": X}, "it")
    assert len(found) == count
    axis = next((a for a in range(3) if found[0]["x"].shape[a] != X.shape[a]), 0)
    assert np.array_equal(np.concatenate([part["x"] for part in found], axis), X)


def test_an_input_without_a_batch_belongs_to_every_sample():
    found = cut_to({"x": (1, 2, 3), "table": (5,)}, {"x": X, "table": np.arange(5)}, "it")
    assert shapes(found) == [{"x": (1, 2, 3), "table": (5,)}] * 4


def test_an_input_of_unknown_size_is_not_cut():
    assert shapes(cut_to({}, {"x": X}, "it")) == [{"x": (4, 2, 3)}]


def test_a_batch_without_samples_has_none():
    assert cut_to({"x": (1, 2, 3)}, {"x": X[:0]}, "it") == []


@pytest.mark.parametrize(
    "sample", [(3, 2, 3), (1, 1, 3), (1, 2), (0, 2, 3)], ids=["no divisor", "two axes", "rank", "nothing"]
)
def test_what_is_no_multiple_is_refused(sample):
    with pytest.raises(UsageError, match=r"it takes x \[.*\]; the batch has x \[4, 2, 3\], which is no multiple of it"):
        cut_to({"x": sample}, {"x": X}, "it")


def test_inputs_must_agree_on_the_number_of_samples():
    with pytest.raises(UsageError, match="no multiple"):
        cut_to({"x": (1, 2, 3), "z": (1,)}, {"x": X, "z": np.arange(3)}, "it")


def join(file, answers, computed=None):
    def compute(sample):
        if computed is None:
            raise GraphError("no single samples")
        return computed[sample["number"]]

    samples = [{"number": number} for number in range(len(answers))]
    return Join(samples, {"t": file}, compute).all([{"t": answer, "other": answer} for answer in answers])


def test_samples_are_joined_along_the_axis_of_the_batch():
    assert np.array_equal(join(X, list(np.split(X, 4)))["t"], X)
    middle = X.transpose(1, 0, 2)
    assert np.array_equal(join(middle, np.split(middle, 4, 1))["t"], middle)
    assert list(join(X, [X])) == ["t"]  # the file has no tensor "other"


def test_the_file_decides_whether_rows_alternate():
    parts = [X[number] for number in range(4)]
    rows = X.transpose(1, 0, 2).reshape(8, 3)
    computed = [{"t": part} for part in parts]
    assert np.array_equal(join(rows, parts, computed)["t"], rows)
    wrong = [parts[1], *parts[1:]]
    assert not np.array_equal(join(rows, wrong, computed)["t"], rows)
    assert not np.array_equal(join(rows, parts)["t"], rows)  # the file cannot be asked: samples in turn
    assert np.array_equal(join(X.reshape(8, 3), wrong, computed)["t"], np.concatenate(wrong))


def test_a_tensor_that_depends_on_no_sample_must_be_the_same_in_each():
    fixed = np.array([1, 2], np.int8)
    assert np.array_equal(join(fixed, [fixed, fixed])["t"], fixed)
    assert join(fixed, [fixed, fixed + np.int8(1)])["t"].tolist() == [2, 3]


@pytest.mark.parametrize(
    "answers",
    [
        [X[:1], X],
        [X, X[:1]],
        [X[:2], X[:2], X[:2]],
        [X[:2], X[2:].astype(np.int16)],
        [X, X.astype(np.int16)],
        [X.reshape(24), X.reshape(24)],
    ],
    ids=["one whole", "one part", "too many", "types", "whole of two types", "rank"],
)
def test_samples_that_make_no_batch_keep_their_shape_or_type(answers):
    found = join(X, answers)["t"]
    assert (found.shape, found.dtype) != (X.shape, X.dtype)
