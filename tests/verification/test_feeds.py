"""Inputs as a caller has them, or made up."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.errors import UsageError
from linger.verification.feeds import batch_parts, cut, given_feeds, spread_feeds
from tests.support.onnx_text import parse
from tests.support.small_dialect import model

ONE = parse("y = Exp(x)", inputs="float[1,3] x", outputs="float[1,3] y")
TWO = parse("y = Add(x, z)", inputs="float[n] x, float[n] z")


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return tmp_path / "x.npz"

    return write


def test_one_feed_in_every_form(npz):
    x = np.float32([[1, 2, 3]])
    for given in (x, {"x": x}, npz(x=x), str(npz(x=x)), npz(other=x), [x], [{"x": x}]):
        (feed,) = given_feeds(given, ONE)
        assert np.array_equal(feed["x"], x)


def test_several_feeds():
    x = np.float32([[1, 2, 3]])
    assert [feed["x"][0, 0] for feed in given_feeds([x, {"x": x + 1}], ONE)] == [1, 2]


def test_arrays_in_order():
    (feed,) = given_feeds([(np.float32([1]), np.float32([2]))], TWO)
    assert (feed["x"][0], feed["z"][0]) == (1, 2)


def test_types_are_made_to_fit():
    (feed,) = given_feeds(np.array([[1.0, 2.0, 3.0]]), ONE)
    assert feed["x"].dtype == np.float32
    (feed,) = given_feeds(np.int64([1, -2]), parse("y = Abs(x)", inputs="int8[n] x", outputs="int8[n] y"))
    assert feed["x"].dtype == np.int8


@pytest.mark.parametrize("array", [np.int64([300]), np.float32([0.5])], ids=["too large", "a fraction"])
def test_integers_are_never_changed(array):
    with pytest.raises(UsageError, match=r"x is .*, expected int8\[\?\]"):
        given_feeds(array, parse("y = Abs(x)", inputs="int8[n] x", outputs="int8[n] y"))


def test_all_wrong_sizes_are_named():
    net = parse("y = Add(x, z)", inputs="float[2] x, float[3] z", outputs="float[2] y")
    with pytest.raises(
        UsageError, match=r"x is float32\[5\], expected float\[2\], z is float32\[1, 3\], expected float\[3\]"
    ):
        given_feeds({"x": np.zeros(5, np.float32), "z": np.zeros((1, 3), np.float32)}, net)


def test_missing_inputs_are_named(npz):
    with pytest.raises(UsageError, match=r"x\.npz: it lacks z and has x. The model's inputs are x, z"):
        given_feeds(npz(x=np.float32([1])), TWO)


@pytest.mark.parametrize("given", [{"x": "text"}, {"x": object()}, np.array([1j])], ids=["text", "object", "complex"])
def test_what_is_no_array_is_named(given):
    with pytest.raises(UsageError, match=r"x: .* is no array of numbers|no arrays of numbers: x"):
        given_feeds(given, ONE)


def test_an_empty_list():
    with pytest.raises(UsageError, match="the list is empty"):
        given_feeds([], ONE)


def test_a_pile_of_batches_is_cut():
    pile = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert [feed["x"].tolist() for feed in given_feeds(pile, ONE)] == [[row] for row in pile.tolist()]


def test_only_equal_piles_are_cut():
    net = parse("y = Add(x, z)", inputs="float[1,3] x, float[1,3] z", outputs="float[1,3] y")
    assert batch_parts({"x": np.zeros((4, 3)), "z": np.zeros((4, 3))}, net) == 4
    assert batch_parts({"x": np.zeros((4, 3)), "z": np.zeros((2, 3))}, net) == 1
    assert batch_parts({"x": np.zeros((4, 2)), "z": np.zeros((4, 2))}, net) == 1
    assert len(cut({"x": np.zeros((5, 3))}, parse("y = Exp(x)", inputs="float[2,3] x", outputs="float[2,3] y"))) == 1


def test_made_up_inputs_are_the_same_for_a_seed():
    net = ir.from_proto(model())
    first, second = spread_feeds(net, seed=3, batches=2)
    assert first["x"].shape == (2, 2, 1, 3)
    assert not np.array_equal(first["x"], second["x"])
    assert np.array_equal(spread_feeds(net, seed=3, batches=1)[0]["x"], first["x"])
    assert not np.array_equal(spread_feeds(net, seed=4, batches=1)[0]["x"], first["x"])


def test_made_up_floats_fill_the_range_of_their_quant():
    net = parse("y = thinker.Quant<data_bits=8, scale_x=0.5>(x)", inputs="float[4000] x", domains=', "thinker": 1')
    (feed,) = spread_feeds(net, seed=0, batches=1)
    # ±256 is the range: three standard deviations of 85.3; of 4000 numbers the spread is known to a hundredth
    assert abs(feed["x"].std() - 256 / 3) < 4


@pytest.mark.parametrize(("kind", "low", "high"), [("int8", -128, 127), ("int64", 1, 2), ("bool", 0, 1)])
def test_made_up_integers(kind, low, high):
    net = parse("y = Identity(x)", inputs=f"{kind}[2000] x", outputs=f"{kind}[2000] y")
    (feed,) = spread_feeds(net, seed=0, batches=1)
    assert (feed["x"].min(), feed["x"].max()) == (low, high)


def test_inputs_that_cannot_be_made_up_are_all_named():
    net = parse("y = Identity(x)", inputs="string[n] x, float z, int8[99999,99999] w", outputs="string[n] y")
    net.graph.inputs[1].shape = None
    with pytest.raises(UsageError, match=r"x \(string\[\?\]\), z \(open rank\), w \(int8\[99999, 99999\]\)"):
        spread_feeds(net, seed=0, batches=1)
