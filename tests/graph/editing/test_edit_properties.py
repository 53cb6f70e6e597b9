"""Random graphs, random edits that must not change what is computed; a refused edit changes nothing at all."""

import random

import numpy as np
import onnx_ir as ir
import pytest

from linger.errors import LingerError
from linger.graph import extract, find, insert, new_model, remove, replace
from tests.support.onnx_text import content, run

UNARY, BINARY = ("Neg", "Abs", "Relu", "Tanh", "Identity"), ("Add", "Mul", "Sub", "Max")


def random_model(dice):
    """A graph of a few ops, some of them in branches that capture tensors, with two outputs."""

    def build(g, x):
        tensors = [x]
        for _ in range(dice.randint(2, 12)):
            a, b = dice.choice(tensors), dice.choice(tensors)
            kind = dice.random()
            if kind < 0.5:
                tensors.append(g.op(dice.choice(UNARY), a))
            elif kind < 0.85:
                tensors.append(g.op(dice.choice(BINARY), a, dice.choice([b, 0.5])))
            else:
                condition = g.Greater(g.ReduceSum(x, keepdims=0), 0.0)
                then_branch = g.graph(lambda inner, a=a, b=b: inner.Neg(inner.Add(a, b)))
                else_branch = g.graph(lambda inner, a=a: inner.Abs(inner.Neg(a)))
                tensors.append(g.If(condition, then_branch=then_branch, else_branch=else_branch))
        return tensors[-1], dice.choice(tensors)

    return new_model({"x": "float[3]"}, {"y": "float[3]", "z": "float[3]"}, build)


def random_edit(model, dice):
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    vectors = [o for n in nodes for o in n.outputs if o.shape is not None and len(o.shape) == 1]
    one, other = dice.choice(vectors), dice.choice(vectors)
    edits = [
        lambda: insert(model, one, lambda g, v: g.Neg(g.Neg(v))),
        lambda: insert(model, one, lambda g, v: g.Add(v, g.Mul(other, 0.0))),
        lambda: replace(model, lambda g, a: g.Relu(a), lambda g, a: g.Max(a, 0.0)),
        lambda: replace(model, lambda g, a: g.Neg(g.Neg(a)), lambda g, a: a),
        lambda: replace(model, lambda g, a, b: g.Add(a, b), lambda g, a, b: g.Sub(a, g.Neg(b))),
        lambda: replace(model, lambda g, a: g.Abs(g.Neg(a)), lambda g, a: g.Abs(a)),
        lambda: remove(model, find(model, "Identity"), prune=dice.random() < 0.5),
    ]
    return dice.choice(edits)


def no_ghosts(model):
    """Whether only nodes of the model use its tensors."""
    nodes = set(ir.traversal.RecursiveGraphIterator(model.graph))
    values = [v for n in nodes for v in (*n.inputs, *n.outputs) if v is not None]
    return all(use.node in nodes for value in values for use in value.uses())


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.thin(every=4)
def test_edits_that_keep_the_function_keep_the_values(seed):
    dice = random.Random(seed)
    model = random_model(dice)
    x = np.random.default_rng(seed).normal(size=3).astype(np.float32)
    expected = run(model, x=x)
    for _ in range(6):
        before = content(model)
        edit = random_edit(model, dice)
        try:
            edit()
        except LingerError:
            assert content(model) == before
        assert no_ghosts(model)
        # each edit is exact in float32; x + 0·v is too, as long as v is finite
        np.testing.assert_array_equal(run(model, x=x), expected)
    np.testing.assert_array_equal(run(extract(model, ["x"], ["y", "z"]), x=x), expected)
