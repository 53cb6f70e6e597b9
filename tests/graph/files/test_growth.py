"""Nodes that would make an enormous tensor."""

import re

import pytest

from linger import Session
from linger.errors import GraphError
from linger.graph.files import soundness
from linger.graph.files.soundness import is_bounded, require_bounded
from linger.runtime.reference import Reference
from tests.support.onnx_text import parse

CASES = {
    "ConstantOfShape": "s = Constant <value = int64[2] {3, 5}> () y = ConstantOfShape(s)",
    "Expand": "s = Constant <value = int64[2] {3, 5}> () y = Expand(x, s)",
    "Tile": "s = Constant <value = int64[1] {5}> () y = Tile(x, s)",
    "Range": "a = Constant <value = int64 {2}> () b = Constant <value = int64 {32}> () d = Constant <value = int64 {2}> () y = Range(a, b, d)",
    "Pad": "s = Constant <value = int64[2] {5, 7}> () y = Pad(x, s)",
    "Resize": "e = Constant <value = float[0] {}> () s = Constant <value = int64[1] {15}> () y = Resize(x, e, e, s)",
    "Resize by a factor": "e = Constant <value = float[0] {}> () s = Constant <value = float[1] {5.0}> () y = Resize(x, e, s)",
    "OneHot": "d = Constant <value = int64[1] {15}> () v = Constant <value = float[2] {0, 1}> () y = OneHot(x, d, v)",
    "RandomNormal": "y = RandomNormal <shape: ints = [3, 5]> ()",
    "Pad of old": "y = Pad <pads: ints = [5, 7]> (x)",
    "in a branch": "c = Constant <value = bool {1}> () s = Constant <value = int64[2] {3, 5}> () y = If(c)<then_branch = t () "
    "=> (float[n] p) { p = Expand(x, s) }, else_branch = e () => (float[n] q) { q = Neg(x) }>",
}


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_fifteen_elements_are_counted(body, monkeypatch):
    """Each case makes 15 elements, of an input of three."""
    model = parse(body, inputs="float[3] x")
    monkeypatch.setattr(soundness, "MOST_ELEMENTS", 15)
    require_bounded(model)
    assert is_bounded(model)
    monkeypatch.setattr(soundness, "MOST_ELEMENTS", 14)
    assert not is_bounded(model)
    with pytest.raises(
        GraphError, match=r"the model is not run: \w \(\w+\) makes 15 elements, and at most 14 are supported"
    ):
        require_bounded(model)


@pytest.mark.parametrize(
    "body",
    [
        "y = Expand(x, s)",
        "s2 = Neg(s) y = ConstantOfShape(s2)",
        "a = Constant <value = float {0}> () b = Constant <value = float {1}> () d = Constant <value = float {0}> () y = Range(a, b, d)",
        'a = Constant <value_string: string = "a"> () y = Expand(x, a)',
    ],
    ids=["input", "computed", "no step", "strings"],
)
def test_what_is_not_known_is_not_judged(body, monkeypatch):
    monkeypatch.setattr(soundness, "MOST_ELEMENTS", 2)
    require_bounded(parse(body, inputs="float[3] x, int64[2] s"))


def test_infinite_factors_and_steps_are_enormous():
    body = "e = Constant <value = float[0] {}> () s = Constant <value = float[2] {3e38, 3e38}> () y = Resize(x, e, s)"
    with pytest.raises(GraphError, match="elements"):
        require_bounded(parse(body, inputs="float[3,3] x"))


@pytest.mark.parametrize("run", [Session, Reference])
def test_neither_runtime_begins(run):
    model = parse("s = Constant <value = int64[2] {65536, 65536}> () y = ConstantOfShape(s)")
    with pytest.raises(GraphError, match=re.escape("y (ConstantOfShape) makes 4294967296 elements")):
        run(model)
