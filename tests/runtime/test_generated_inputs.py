"""Inputs made up for a model."""

import hashlib

import numpy as np
import onnx
import pytest

from linger.errors import UsageError
from linger.runtime.generated_inputs import random_feeds
from linger.runtime.session import Session


def session(*inputs):
    names = ", ".join(text.split()[-1] for text in inputs)
    outputs = ", ".join(text.replace(" ", " o") for text in inputs)
    body = " ".join(f"o{name} = Identity({name})" for name in names.split(", "))
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({", ".join(inputs)}) => ({outputs}) {{ {body} }}'
    return Session(onnx.parser.parse_model(text))


def test_a_seed_gives_the_same_numbers_forever():
    x = random_feeds(session("float[4,n] x"), 3)["x"]
    assert (x.dtype, x.shape) == (np.float32, (4, 2))
    # fixed once: a certificate that names a seed depends on it
    assert hashlib.sha256(x.tobytes()).hexdigest()[:16] == "f3e1fcc20a922274"
    assert not np.array_equal(x, random_feeds(session("float[4,n] x"), 4)["x"])


def test_floats_are_nearly_normal():
    x = random_feeds(session("float[200,200] x"), 0)["x"].astype(np.float64)
    # 40 000 numbers: the mean is within 5/200 and the variance within 5·√2/200 but for one seed in a million
    assert abs(x.mean()) < 0.025
    assert abs(x.var() - 1) < 0.036
    assert 3.5 < np.abs(x).max() <= 6


def test_integers_take_their_range():
    made = random_feeds(session("int8[5000] a", "uint8[5000] b", "int64[500] c", "bool[50] d", "int16[9] e"), 0)
    assert (made["a"].dtype, made["a"].min(), made["a"].max()) == (np.int8, -128, 127)
    assert (made["b"].dtype, made["b"].min(), made["b"].max()) == (np.uint8, 0, 255)
    assert (made["c"].dtype, made["c"].min(), made["c"].max()) == (np.int64, -8, 7)
    assert set(made["d"].tolist()) == {True, False}
    assert made["e"].dtype == np.int16


def test_two_inputs_of_one_model_differ():
    made = random_feeds(session("float[9] a", "float[9] b"), 0)
    assert not np.array_equal(made["a"], made["b"])


def test_what_cannot_be_made_up_is_named_all_of_it():
    with pytest.raises(UsageError, match=r"a has type tensor\(string\), b has 1000000000000 elements.*Give the inputs"):
        random_feeds(session("string[2] a", "float[1000000,1000000] b", "float[2] c"), 0)
