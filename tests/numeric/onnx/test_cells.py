"""Recurrent loops in ONNX: random layers equal the body, no step has more nodes than it needs, and a known batch of one helps."""

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import linger
from linger.graph import Network
from linger.runtime.session import fastest
from tests.support.arithmetic import fixed
from tests.support.comparison import assert_same
from tests.support.ops import find_op
from tests.support.samples import (
    attach_functions,
    expand_dialect,
    run_expanded,
    run_function,
    run_numpy,
    single_node_model,
)

pytestmark = pytest.mark.needs_torch

GATES = {"LSTMInt": 4, "GRUInt": 3}
SCALES = {"scale_i": 32.0, "scale_iw": 128.0, "scale_h": 128.0, "scale_hw": 128.0}
FORMATS = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}


def layer(name, rng, *, batch=1, steps=6, inputs=3, hidden=4, gain=1.0, go_forward=1, **scales):
    """(inputs, attributes) of a node of 8 bits, time first."""
    rows = GATES[name] * hidden
    x = rng.integers(*fixed.limits(8), (steps, batch, inputs), endpoint=True).astype(np.int8)
    weights = [np.round(rng.integers(*fixed.limits(8), (rows, n)) * gain).astype(np.int8) for n in (inputs, hidden)]
    biases = [rng.integers(-9000, 9000, rows).astype(np.int32) for _ in range(2)]
    attributes = {"input_size": inputs, "hidden_size": hidden, "batch_first": 0, "go_forward": go_forward}
    attributes |= SCALES | scales | FORMATS
    return [x, *weights, *biases], attributes | {"scale_o": attributes["scale_h"]}


def steps_of(model):
    """The op types of one time step; constants cost nothing there."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    (scan,) = [n for graph in graphs for n in graph if n.op_type == "Scan"]
    return [n.op_type for n in scan.attributes["body"].as_graph() if n.op_type != "Constant"]


def written(name, form, **settings):
    """The steps of a layer in a form."""
    inputs, attributes = layer(name, np.random.default_rng(0), **settings)
    model = single_node_model(find_op(name), inputs, attributes, opset=12)
    form(model)
    return steps_of(model)


@pytest.mark.parametrize("run", [run_function, run_expanded])
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("seed", range(8))
def test_random_layers_equal_the_body(seed, name, run):
    rng = np.random.default_rng(seed)
    scales = {key: 2.0 ** rng.integers(3, 10) for key in ("scale_i", "scale_iw", "scale_hw")}
    scale_h = 2.0 ** rng.choice([0, 5, 6, 7, 8, 13, 14, 16])
    sizes = {"batch": int(rng.choice([1, 3])), "hidden": int(rng.choice([1, 5, 16])), "gain": rng.choice([0.1, 1.0])}
    inputs, attributes = layer(name, rng, **sizes, **scales, scale_h=scale_h, go_forward=seed % 2)
    op, opset = find_op(name), (11, 12, 18, 21)[seed % 4]
    assert_same(run(op, inputs, attributes, opset=opset), run_numpy(op, inputs, attributes))


@pytest.mark.parametrize(
    ("name", "form", "settings", "most"),
    [
        ("LSTMInt", expand_dialect, {"batch": 1}, 15),
        ("LSTMInt", expand_dialect, {"batch": 2}, 19),
        ("LSTMInt", attach_functions, {}, 22),
        ("GRUInt", expand_dialect, {"batch": 1}, 14),
        ("GRUInt", expand_dialect, {"batch": 2}, 18),
        ("GRUInt", attach_functions, {}, 25),
    ],
)
def test_a_step_has_no_more_nodes_than_it_needs(name, form, settings, most):
    # every node costs a runtime about as much as its arithmetic
    found = written(name, form, **settings)
    assert len(found) <= most, found
    assert "Reshape" not in found or settings != {"batch": 1}


@pytest.mark.parametrize("name", GATES)
def test_one_sum_gives_places_only_where_it_is_exact(name):
    # fine weights, 2^-10 of a gate: places of some thousands need more than 24 bits
    few, more = written(name, expand_dialect), written(name, expand_dialect, scale_hw=2.0**14, hidden=64)
    assert ("Floor" in more[:2], "Floor" in few[:2]) == (True, False)
    assert len(more) == len(few) + 2


@pytest.mark.parametrize(("name", "largest"), [("LSTMInt", 2.0**18), ("GRUInt", 2.0**17)])
def test_tables_do_not_grow_beyond_any_memory(name, largest):
    # a state of 128 at a weight of 2^8·w: the gate is 2^15·w·2^11/(128·scale_hw)
    attributes = SCALES | FORMATS | {"scale_hw": 1.0}
    for share, is_narrow in ((0.5, True), (1.0, False)):
        w = np.full((GATES[name], 1), largest * share * 128 / 2.0**11 / 2.0**7)
        zero, b = np.zeros((GATES[name], 1)), np.zeros(GATES[name])
        given = {"w_ih": zero, "w_hh": w, "b_ih": b, "b_hh": b}
        assert find_op(name).is_narrow_exact(given, attributes) is is_narrow


@pytest.mark.parametrize(
    ("scale_h", "o_bits"), [(16.0, 8), (128.0, 8), (256.0, 8), (2.0**13, 16), (2.0**14, 16), (2.0**15, 16)]
)
def test_outputs_round_half_up_and_saturate(scale_h, o_bits):
    # weights of zero, i = 0, f = 127/128, g = 0: h = ⌊o·tanh(c)·scale_h/2^14⌉ of many o and c at once
    op, size, rng = find_op("LSTMInt"), 256, np.random.default_rng(0)
    zero = np.zeros((4 * size, 1), np.int8), np.zeros((4 * size, size), np.int8)
    b = np.repeat([-12000, 12000, 0, 0], size).astype(np.int32)
    b[-size:] = rng.integers(-6000, 6000, size)
    states = np.zeros((1, 4, size), np.float32), rng.normal(0, 1, (1, 4, size)).astype(np.float32)
    inputs = [np.zeros((1, 4, 1), np.int8), np.ones(4, np.int64), *states, *zero, b, np.zeros_like(b)]
    _, attributes = layer("LSTMInt", rng, hidden=size, scale_h=scale_h, scale_i=1.0, scale_iw=2.0**11)
    attributes |= {"input_size": 1, "o_bits": o_bits}
    expected = run_numpy(op, inputs, attributes)
    assert len(np.unique(expected)) > 20
    for run in (run_function, run_expanded):
        assert_same(run(op, inputs, attributes, opset=12), expected)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_export_knows_its_batch(name, batch, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(5, batch, 3)
    model = linger.init(nn.Sequential(getattr(nn, name)(3, 4)))
    with linger.calibration():
        model(x)
    linger.onnx.export(model.eval(), (x,), tmp_path / "standard.onnx", form="standard")
    linger.onnx.export(model, (x,), tmp_path / "dialect.onnx")
    standard, dialect = ir.load(tmp_path / "standard.onnx"), ir.load(tmp_path / "dialect.onnx")
    assert ("Reshape" in steps_of(standard)) is (batch > 1)
    assert steps_of(fastest(Network(dialect))[0]) == steps_of(standard)  # a session writes a dialect file the same way
    for name in ("standard", "dialect"):
        assert linger.verify(model, tmp_path / f"{name}.onnx", (x,)).ok


def test_an_open_batch_stays_open(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(5, 1, 3)
    model = linger.init(nn.Sequential(nn.LSTM(3, 4)))
    with linger.calibration():
        model(x)
    settings = {"form": "standard", "input_names": ["x"], "dynamic_axes": {"x": {1: "batch"}}}
    linger.onnx.export(model.eval(), (x,), tmp_path / "m.onnx", **settings)
    assert "Reshape" in steps_of(ir.load(tmp_path / "m.onnx"))
    assert math.prod(linger.Session(tmp_path / "m.onnx").run(None, {"x": torch.randn(5, 7, 3).numpy()})[0].shape) == 140
