"""Inputs made up to fit a model."""

import numpy as np
import pytest

from linger.errors import UsageError
from linger.runtime.generated import generated_feeds
from linger.runtime.session import Session
from tests.support.onnx_text import parse


def session(inputs):
    names = [part.split()[-1] for part in inputs.split(";")]
    body = " ".join(f"o{i} = Identity({name})" for i, name in enumerate(names))
    outputs = ", ".join(f"{part.rsplit(' ', 1)[0]} o{i}" for i, part in enumerate(inputs.split(";")))
    return Session(parse(body, inputs=inputs.replace(";", ", "), outputs=outputs))


def test_the_same_seed_gives_the_same_inputs():
    made = session("float[n,3] x")
    first, again, other = (generated_feeds(made, seed)["x"] for seed in (1, 1, 2))
    assert first.shape == (2, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_type_of_a_tensor():
    kinds = ["float", "double", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    feeds = generated_feeds(session(";".join(f"{kind}[4] {kind}_x" for kind in kinds)), 0)
    assert [str(a.dtype) for a in feeds.values()] == ["float32", "float64", *kinds[2:]]
    assert all(a.shape == (4,) for a in feeds.values())


def test_types_without_values_are_named_together():
    with pytest.raises(UsageError, match=r"s \(tensor\(string\)\), t \(tensor\(string\)\)"):
        generated_feeds(session("string[2] s;string[2] t"), 0)


def test_inputs_too_large_to_be_made_up_are_named():
    with pytest.raises(UsageError, match=r"x \(\[1099511627776\]\)"):
        generated_feeds(session("float[1099511627776] x"), 0)
