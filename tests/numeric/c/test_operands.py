"""What a product reads again and again lies in an array; and inputs that have no C are refused by name."""

import numpy as np
import pytest

from linger.errors import UnsupportedError, UsageError
from tests.support.c_units import Input, Unit


def scratch(body, *inputs):
    """The arrays that a function needs beside its inputs and outputs."""
    return [(buffer.shape, buffer.ctype) for buffer in Unit().add("f", body, inputs, {}, title="f").scratch]


def plain(k, x):
    return x


def raised(k, x):
    return k.add(k.wide(x), k.scalar(1.0))


def flat(k, x):
    return k.squeeze_first(x)


def product(of_x=plain, of_w=plain):
    return lambda k, x, w: k.store(k.linear(of_x(k, x), of_w(k, w), None, x_bits=8, w_bits=8), 32)


X, W = Input((2, 4), "int8"), Input((3, 4), "int8")
CASES = {
    "inputs": (product(), (X, W), []),
    "weights that are known": (product(), (X, Input.of(np.ones((3, 4), np.int8), is_known=True)), []),
    "computed data": (product(raised), (X, W), [((2, 4), "int16_t")]),
    "computed on both sides": (product(raised, raised), (X, W), [((2, 4), "int16_t"), ((3, 4), "int16_t")]),
    "moved": (product(lambda k, x: k.shuffle(x, 2)), (X, W), []),
    "moved and cut": (product(flat), (Input((1, 2, 4), "int8"), W), []),
    # once, as it was computed; not as it was moved
    "computed, then moved": (
        product(lambda k, x: flat(k, raised(k, x))),
        (Input((1, 2, 4), "int8"), W),
        [((1, 2, 4), "int16_t")],
    ),
    "zeros": (
        lambda k, x, w: k.store(k.linear(k.zero_state(x, w), w, None, x_bits=8, w_bits=8), 32),
        (Input((5, 2, 4), "int8"), W),
        [],
    ),
}


@pytest.mark.parametrize(("body", "inputs", "arrays"), CASES.values(), ids=CASES)
def test_a_product_computes_its_operands_once_and_copies_none(body, inputs, arrays):
    assert scratch(body, *inputs) == arrays


TYPES = "float32, bool, uint8, int8, int16, int32, int64"
REFUSED = {
    "a type": (
        Input((2,), "float64"),
        UnsupportedError,
        f"act: an input has the type float64; C is written for {TYPES}.",
    ),
    "an unsigned type": (
        Input((2,), "uint16"),
        UnsupportedError,
        f"act: an input has the type uint16; C is written for {TYPES}.",
    ),
    "a name for a size": (
        Input((2, "n"), "int8"),
        UnsupportedError,
        "act: an input has the shape (2, 'n'); C is written for sizes that are known.",
    ),
    "a size below 0": (
        Input((-1, 2), "int8"),
        UnsupportedError,
        "act: an input has the shape (-1, 2); C is written for sizes that are known.",
    ),
    "another content": (
        Input((2, 1), "int8", np.zeros((1, 2), np.int8)),
        UsageError,
        "act: an input of shape (2, 1) is known as an array of (1, 2).",
    ),
}


@pytest.mark.parametrize(("given", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_inputs_without_c_are_refused_by_name(given, kind, message):
    with pytest.raises(kind) as caught:
        Unit().add("act", lambda k, x: k.relu(x), [given], {}, title="act")
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("is_known", [False, True], ids=["open", "known"])
def test_every_known_size_has_c(shape, is_known):
    array = np.zeros(shape, np.int8)
    function = Unit().add("act", lambda k, x: k.relu(x), [Input.of(array, is_known=is_known)], {}, title="act")
    assert [(b.shape, b.ctype) for b in (*function.inputs, *function.outputs)] == [(shape, "int8_t")] * 2


def test_content_that_is_known_bounds_what_is_computed():
    # any byte + 127 needs 16 bits; −5 + 127 and 0 + 127 fit in 8
    known = Input.of(np.int8([-5, 0]), is_known=True)

    def ctype(given):
        function = Unit().add(
            "f",
            lambda k, x, w: k.store(k.linear(k.add(k.wide(x), k.scalar(127.0)), w, None, x_bits=8, w_bits=8), 32),
            [given, Input((1, 2), "int8")],
            {},
            title="f",
        )
        return [buffer.ctype for buffer in function.scratch]

    assert ctype(Input(known.shape, "int8")) == ["int16_t"]
    assert ctype(known) == ["int8_t"]


def test_weights_that_are_known_bound_the_sum_by_their_total():
    # one weight of 127 and zeros: 128·127 fits in 32 bits, what their largest alone allows, 200000·128·127, does not
    weights = np.zeros((1, 200_000), np.int8)
    weights[0, 0] = 127
    x = Input((1, 200_000), "int8")

    def text(weight):
        return (
            Unit()
            .add(
                "f",
                lambda k, a, w: k.store(
                    k.clip(k.linear(a, w, None, x_bits=8, w_bits=8), k.scalar(-128.0), k.scalar(127.0)), 8
                ),
                [x, weight],
                {},
                title="f",
            )
            .text
        )

    assert "int64_t" in text(Input(weights.shape, "int8"))
    assert "int64_t" not in text(Input.of(weights, is_known=True))
