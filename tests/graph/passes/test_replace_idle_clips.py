"""Clips that the integers make needless."""

import numpy as np
import pytest

from linger.graph.core.tensor_types import infer_element_types
from linger.graph.passes.chip_windows import replace_idle_clips
from tests.support.chip import model_of
from tests.support.onnx_text import printed


def run(body, inputs="int8[4] x", **constants):
    model = model_of(body, inputs=inputs, **constants)
    infer_element_types(model.graph)
    changes = replace_idle_clips(model)
    assert len(replace_idle_clips(model)) == 0
    return printed(model), changes.rows()


@pytest.mark.parametrize(
    ("domain", "kind", "high"),
    [
        pytest.param("thinker.", np.int8, 127, id="8 bits"),
        pytest.param("", np.int8, 127, id="standard"),
        pytest.param("thinker.", np.int16, 32767, id="16 bits"),
    ],
)
def test_from_zero_to_the_largest_is_relu(domain, kind, high):
    text = f"int{np.iinfo(kind).bits}[4] x"
    nodes, changes = run(f"y = {domain}Clip(x, low, high)", text, low=kind(0), high=kind(high))
    assert nodes == [f"y={domain}Relu(x)"]
    assert changes == [("y (Relu)", f"was a Clip from 0 to {high}, which the type itself keeps to")]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param(0, 96, id="acts above"),
        pytest.param(0, 126, id="acts once"),
        pytest.param(-1, 127, id="below 0"),
        pytest.param(1, 127, id="above 0"),
    ],
)
def test_a_bound_that_acts_stays(low, high):
    nodes, changes = run("y = thinker.Clip(x, low, high)", low=np.int8(low), high=np.int8(high))
    assert nodes == ["y=thinker.Clip(x,low,high)"]
    assert changes == []


def test_open_ends_do_not_act():
    assert run("y = Clip(x, low)", low=np.int8(0))[0] == ["y=Relu(x)"]


def test_what_limits_nothing_goes():
    nodes, changes = run("a = thinker.Clip(x, low, high) y = thinker.Relu(a)", low=np.int8(-128), high=np.int8(127))
    assert nodes == ["y=thinker.Relu(x)"]
    assert changes == [("a (Clip)", "removed: it limits nothing")]


def test_floats_and_computed_bounds_are_left_alone():
    assert run("y = Clip(x, low, high)", "float[4] x", low=np.float32(0), high=np.float32(127))[1] == []
    assert run("y = thinker.Clip(x, z, high)", "int8[4] x, int8 z", high=np.int8(127))[1] == []


def test_thresholds_that_nobody_uses_go():
    constants = {"min_thresh": np.int8(0), "max_thresh": np.int8(127), "other_thresh": np.int8(96), "kept": np.int8(1)}
    model = model_of("a = thinker.Clip(x, min_thresh, max_thresh) y = thinker.Clip(a, min_thresh, kept)", **constants)
    infer_element_types(model.graph)
    replace_idle_clips(model)
    assert set(model.graph.initializers) == {"min_thresh", "other_thresh", "kept"}
