"""Ops between DQ and Q run on integers where that gives the same numbers, and only there."""

import numpy as np
import pytest

import linger
from linger.graph import fill_float_islands
from linger.runtime.reference import Reference
from tests.support.onnx_text import parse, printed
from tests.support.other_tools import EVERY, between
from tests.support.passes import applied, body_of, remove_identity

IMAGE = {"shape": "[1,4,8,8]", "out": "[a,b,c,d]"}
ISLANDS = {
    "Relu": ("g = Relu(f)", {}),
    "Clip": ("g = Clip(f, lo, hi)", {"extra": ", float lo = {-3.0}, float hi = {6.05}"}),
    "Clip, half open": ("g = Clip(f, lo)", {"extra": ", float lo = {-100}"}),
    "MaxPool": ("g = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(f)", IMAGE),
    "ReduceMax": ("g = ReduceMax<keepdims = 0>(f)", {**IMAGE, "out": ""}),
    "ReduceMin": ("g = ReduceMin(f, i)", {**IMAGE, "extra": ", int64[1] i = {1}"}),
    "Reshape": ("g = Reshape(f, i)", {"extra": ", int64[2] i = {16, 16}", "out": "[a,b]"}),
    "Flatten": ("g = Flatten(f)", {**IMAGE, "out": "[a,b]"}),
    "Transpose": ("g = Transpose<perm = [0, 2, 3, 1]>(f)", IMAGE),
    "Squeeze": ("g = Squeeze(f, i)", {**IMAGE, "extra": ", int64[1] i = {0}", "out": "[a,b,c]"}),
    "Unsqueeze": ("g = Unsqueeze(f, i)", {"extra": ", int64[1] i = {0}", "out": "[a,b]"}),
    "Slice": ("g = Slice(f, i, j)", {"extra": ", int64[1] i = {3}, int64[1] j = {-5}"}),
    "Gather": ("g = Gather(f, i)", {"extra": ", int64[3] i = {3, 3, -1}"}),
    "GatherElements": ("g = GatherElements(f, i)", {"extra": ", int64[3] i = {3, 3, -1}"}),
    "GatherND": ("g = GatherND(f, i)", {"extra": ", int64[2,1] i = {3, 4}"}),
    "Expand": ("g = Expand(f, i)", {"extra": ", int64[2] i = {2, 256}", "out": "[a,b]"}),
    "Tile": ("g = Tile(f, i)", {"extra": ", int64[1] i = {2}"}),
    "Concat": ("g = Concat<axis = 0>(f, f)", {}),
    "Identity": ("g = Identity(f)", {}),
    "DepthToSpace": ("g = DepthToSpace<blocksize = 2>(f)", IMAGE),
    "SpaceToDepth": ("g = SpaceToDepth<blocksize = 2>(f)", IMAGE),
    "Pad": ("g = Pad(f, i)", {"extra": ", int64[2] i = {1, 2}"}),
    "Pad, a border": ("g = Pad(f, i, j)", {"extra": ", int64[2] i = {1, 2}, float j = {6.02}"}),
    "Pad, reflected": ('g = Pad<mode = "reflect">(f, i)', {"extra": ", int64[2] i = {1, 2}"}),
    "a chain": ("a = Relu(f)  b = MaxPool<kernel_shape = [2, 2]>(a)  g = Flatten(b)", {**IMAGE, "out": "[a,b]"}),
    "a diamond": ("a = Relu(f)  b = Clip(f, lo)  g = Concat<axis = 0>(a, b)", {"extra": ", float lo = {-3.0}"}),
}
NARROW_ONLY = {"Relu", "Clip", "MaxPool", "ReduceMax", "ReduceMin", "DepthToSpace", "SpaceToDepth", "Pad"}


def numbers(kind, settings):
    every = EVERY[kind]
    x = every if every.size == 256 else every[:: every.size // 256]
    return np.random.default_rng(1).permutation(x).reshape(1, 4, 8, 8) if "shape" in settings else x


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("name", ISLANDS)
def test_the_integers_are_the_same_without_floats(name, kind):
    body, settings = ISLANDS[name]
    model = between(body, kind=kind, zero="3", **settings)
    rows = applied(fill_float_islands, model, x=numbers(kind, settings))
    assert not any("uantizeLinear" in line for line in printed(model))
    assert rows
    assert all(what == f"runs on {kind} now, without DequantizeLinear and QuantizeLinear" for _, what in rows)


@pytest.mark.parametrize("name", [n for n in ISLANDS if n.split(",")[0] not in NARROW_ONLY and " " not in n])
def test_numbers_of_16_bits_are_moved_too(name):
    body, settings = ISLANDS[name]
    model = between(body, kind="int16", **settings)
    assert applied(fill_float_islands, model, x=numbers("int16", settings))


@pytest.mark.parametrize("name", [n for n in ISLANDS if n in NARROW_ONLY])
def test_ops_without_a_kernel_for_16_bits_are_left(name):
    body, settings = ISLANDS[name]
    model = between(body, kind="int16", **settings)
    assert applied(fill_float_islands, model, x=numbers("int16", settings)) == []


def test_relu_limits_at_the_zero_point():
    model = between("g = Relu(f)")
    applied(fill_float_islands, model, x=EVERY["int8"])
    assert printed(model) == ["y=Clip(x,g_3)"]
    assert model.graph.initializers["g_3"].const_value.numpy() == np.int8(3)


def test_bounds_are_quantized_by_hand():
    # -3 / 0.3 + 3 = -7; 6.05 / 0.3 + 3 = 23.17, rounded 23
    body, settings = ISLANDS["Clip"]
    model = between(body, **settings)
    applied(fill_float_islands, model, x=EVERY["int8"])
    assert printed(model) == ["y=Clip(x,g_-7,g_23)"]


def test_both_runtimes_agree_before_and_after():
    body, settings = ISLANDS["a diamond"]
    model = between(body, **settings)
    feeds = {"x": EVERY["int8"]}
    before = linger.Session(model).run(None, feeds)[0]
    fill_float_islands(model)
    np.testing.assert_array_equal(linger.Session(model).run(None, feeds)[0], before)
    np.testing.assert_array_equal(Reference(model).run(feeds)["y"], before)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(between("g = Relu(f)", again="0.6"), id="another scale behind"),
        pytest.param(between("g = Exp(f)"), id="no op that keeps order"),
        pytest.param(between("g = Clip(f, lo)", extra=", float lo = {0.45}"), id="a bound between two integers"),
        pytest.param(between("g = Neg(f)"), id="order turned round"),
        pytest.param(between("g = Relu(f)", opset=11), id="no kernel in this opset"),
        pytest.param(between("a = Abs(f)  b = Relu(f)  g = Concat<axis = 0>(a, b)"), id="other floats come in"),
    ],
)
def test_what_would_change_numbers_is_left(model):
    before = printed(model)
    assert applied(fill_float_islands, model) == []
    assert printed(model) == before


def test_scales_for_each_channel_are_left():
    model = parse(
        "f = DequantizeLinear<axis = 0>(x, s)  g = Relu(f)  y = QuantizeLinear<axis = 0>(g, s, z)",
        inputs="int8[2,2] x",
        outputs="int8[2,2] y",
        extra="<float[2] s = {0.3, 0.7}, int8[2] z = {0, 0}>",
    )
    assert applied(fill_float_islands, model) == []


def test_an_island_whose_floats_are_used_elsewhere_is_left():
    model = between("g = Relu(f)  w = Exp(g)")
    model.graph.outputs.append(model.graph.node(2).outputs[0])
    assert applied(fill_float_islands, model) == []


def test_floats_that_are_an_output_stay():
    model = between("g = Relu(f)")
    model.graph.outputs.append(model.graph.node(1).outputs[0])
    assert applied(fill_float_islands, model) == []


def test_a_dequantization_that_others_use_stays():
    model = between("g = Relu(f)  w = Exp(f)", kind="uint8")
    model.graph.outputs.append(model.graph.node(2).outputs[0])
    assert len(applied(fill_float_islands, model, x=EVERY["uint8"])) == 1
    assert printed(model) == ["f=DequantizeLinear(x,s,z)", "y=Clip(x,g_3)", "w=Exp(f)"]


def test_indices_of_a_pool_are_no_floats():
    body = "g, i = MaxPool<kernel_shape = [2, 2]>(f)"
    model = between(body, **IMAGE)
    model.graph.outputs.append(model.graph.node(1).outputs[1])
    assert len(applied(fill_float_islands, model, x=numbers("int8", IMAGE))) == 1


def test_two_outputs_behind_one_island():
    model = between("g = Relu(f)  w = QuantizeLinear(g, s, z)")
    second = model.graph.node(2).outputs[0]
    second.type, second.shape = model.graph.outputs[0].type, model.graph.outputs[0].shape
    model.graph.outputs.append(second)
    applied(fill_float_islands, model, x=EVERY["int8"])
    assert printed(model) == ["w=Clip(x,g_3)", "y=Identity(w)"]


def test_an_island_in_a_branch_with_captured_integers():
    model = parse(
        """f = DequantizeLinear(x, s, z)
           y = If(c)<then_branch = t () => (int8[n] p) { g = Relu(f)  k = QuantizeLinear(g, s, z)  p = Identity(k) },
                     else_branch = e () => (int8[n] q) { h = Identity(f)  q = QuantizeLinear(h, s, z) }>""",
        inputs="int8[n] x, bool c",
        outputs="int8[n] y",
        extra="<float s = {0.3}, int8 z = {3}>",
        opset=17,
    )
    rows = applied(fill_float_islands, model, x=EVERY["int8"], c=np.array(True))
    assert len(rows) == 2
    assert "{ k = Clip (x, g_3) p = Identity (k) }" in body_of(model).replace("<int8 g_3 = {3}> ", "")
    assert "{ q = Identity (x) }" in body_of(model)


def test_a_relu_at_the_lowest_number_limits_nothing_and_runs():
    model = between("g = Relu(f)", kind="uint8", zero="0")
    applied(fill_float_islands, model, x=EVERY["uint8"])
    assert printed(model) == ["y=Clip(x,g_0)"]
    assert remove_identity(model).rows() == []
