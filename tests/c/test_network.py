"""Files as networks with known sizes: what is a constant, what is refused, and small networks that once failed."""

import numpy as np
import pytest

from linger.c import build, export
from linger.c.network import load_network
from linger.c.steps import make_plan
from linger.errors import UnsupportedError
from linger.runtime.reference import Reference
from tests.support.c_compiler import require_compiler
from tests.support.c_networks import assert_proven, compared, prove
from tests.support.dialect_text import quantizing

PAIR = {"inputs": "float[2,4] x", "outputs": "float[2,4] y"}


def op_types(network):
    return [node.op_type for node in network.nodes]


def test_what_no_input_changes_is_a_constant_whatever_op_computes_it():
    body = """
        some = Reshape (borders, four)
        pads = Cast <to = 7> (some)
        wide = Pad (x, pads)
        q = Q16(wide)
        y = DQ16(q)
    """
    extra = "<float[2,2] borders = {0.0, 1.0, 0.0, 2.0}, int64[1] four = {4}>"
    network = load_network(quantizing(body, inputs="float[2,4] x", outputs="float[2,7] y", extra=extra))
    assert op_types(network) == ["Quant", "Pad", "Dequant"]
    assert network.constants[network.nodes[1].inputs[1].name].tolist() == [0, 1, 0, 2]


def test_sizes_are_constants_behind_nodes_whose_sizes_no_inference_knows():
    """As in files of packed sequences whose length was fixed afterwards."""
    body = """
        end = Abs (length)
        part = Slice (x, zero, end, axis)
        sizes = Shape (part)
        rows = Gather <axis = 0> (sizes, zero)
        many = Squeeze (rows)
        numbers = Range (first, many, step)
        picked = Gather <axis = 0> (part, numbers)
        q = Q16(picked)
        y = DQ16(q)
    """
    extra = "<int64[1] length = {-2}, int64[1] zero = {0}, int64[1] axis = {0}, int64 first = {0}, int64 step = {1}>"
    network = load_network(quantizing(body, **PAIR, extra=extra))
    assert op_types(network) == ["Slice", "Quant", "Gather", "Dequant"]  # Shape reads the Slice as well
    assert network.constants["numbers"].tolist() == [0, 1]


def test_numbers_by_chance_are_no_constants():
    body = "r = RandomNormalLike (bias)\n s = Concat <axis = 0> (x, r)\n q = Q16(s)\n y = DQ16(q)"
    model = quantizing(body, inputs="float[2,4] x", outputs="float[3,4] y", extra="<float[1,4] bias = {1, 2, 3, 4}>")
    with pytest.raises(UnsupportedError, match="RandomNormalLike"):
        load_network(model)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("m = Gather <axis = 0> (x, n)", r"Gather.* takes sizes or indices from data \(n\)"),
        ("m = Slice (x, zero, n, zero)", r"Slice.* takes sizes or indices from data \(n\)"),
        ("m = Tile (x, n)", r"Tile.* takes sizes or indices from data \(n\)"),
    ],
    ids=["indices", "ends", "counts"],
)
def test_sizes_and_indices_that_depend_on_data_are_refused(line, named):
    body = f"{line}\n q = Q16(m)\n y = DQ16(q)"
    size = "int64[2] n" if "Tile" in line else "int64[1] n"
    model = quantizing(body, inputs=f"float[2,4] x, {size}", outputs="float[a,b] y", extra="<int64[1] zero = {0}>")
    with pytest.raises(UnsupportedError, match=named):
        load_network(model)


def test_outputs_that_need_no_computation_are_refused_all_by_name():
    body = "q = Q16(x)\n y = DQ16(q)\n k = Identity (c)\n s = Shape (y)"
    model = quantizing(
        body,
        inputs="float[2,4] x, float[3] z",
        outputs="float[2,4] y, float[3] z, float[1] k, int64[2] s",
        extra="<float[1] c = {1.0}>",
    )
    with pytest.raises(UnsupportedError, match="for the outputs z, k, s: they are constants or unchanged inputs"):
        make_plan(load_network(model))


def proven(body, folder, **graph):
    require_compiler()
    proof = prove(quantizing(body, **graph), folder)
    assert_proven(proof)
    return proof


def test_one_wrong_integer_and_a_tensor_that_is_not_shown_are_seen(tmp_path):
    require_compiler()
    model = quantizing("q = Q16(x)\n r = thinker.Relu(q)\n y = DQ16(r)", **PAIR)
    sample = {"x": np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)}
    wanted = Reference(model).intermediates(sample)
    wanted["r"][1, 2] += 1
    wanted["y"][0, 0] = -0.0
    with build(export(model, tmp_path / "c")) as program:
        found = compared(program, [sample], [wanted], {"q", "r", "s"})
    assert found.differing == ("r: 1 in 1 samples", "y: 2 in 1 samples")  # y of both builds
    assert found.missing == ("s",)
    with pytest.raises(AssertionError):
        assert_proven(found)


def test_a_choice_by_a_constant_mask_and_a_join_with_constants_are_moves(tmp_path):
    body = """
        q = Q16(x)
        r = thinker.Relu(q)
        chosen = Where (mask, q, other)
        joined = Concat <axis = 0> (r, rows, chosen)
        y = DQ16(joined)
    """
    extra = (
        "<bool[2,4] mask = {1, 0, 0, 1, 0, 1, 1, 0}, int8[4] other = {5, -6, 7, -8}, int8[1,4] rows = {1, 2, -3, 4}>"
    )
    proven(body, tmp_path / "c", inputs="float[2,4] x", outputs="float[5,4] y", extra=extra)


@pytest.mark.parametrize("value", ["-0.1", "3.0e-5", "1.0e30"])
def test_a_border_of_real_numbers_has_its_exact_value(value, tmp_path):
    body = "wide = Pad (x, pads, value)\n q = Q16(wide)\n y = DQ16(q)"
    extra = f"<int64[4] pads = {{0, 1, 0, 2}}, float value = {{{value}}}>"
    outputs = "float[2,7] y, float[2,7] wide"  # an output stays where it is
    proven(body, tmp_path / "c", inputs="float[2,4] x", outputs=outputs, extra=extra)


CONV = (
    "thinker.Conv1dInt <data_bits = 8, parameter_bits = 8, o_bits = 8, dilations = [{d}], group = 1, kernel_shape = [3], "
    "pads = [{d}, {d}], strides = [1], scale_x: float = 16.0, scale_w: float = 16.0, scale_o: float = 16.0>"
)


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_window_over_one_column_compiles_without_warnings(dilation, tmp_path):
    """The place of its only column was a variable that nothing read."""
    body = f"q = Q16(x)\n c = {CONV.format(d=dilation)} (q, w, b)\n y = DQ16(c)"
    extra = "<int8[2,1,3] w = {1, 20, -3, 4, -50, 6}, int32[2] b = {100, -100}>"
    proven(body, tmp_path / "c", inputs="float[1,1,1] x", outputs="float[1,2,1] y", extra=extra)


def test_tensors_inside_a_step_are_shown_although_the_result_lies_where_the_operand_lay(tmp_path):
    """They were computed once more from the operand, when the result had taken its place."""
    body = """
        q = thinker.Quant <data_bits: int = 16, scale_x: float = 256.0> (x)
        a, b = Split <axis = 1> (q)
        s = thinker.iqSub <scale_x: float = 256.0, scale_y: float = 256.0, scale_o: float = 32.0, o_bits = 32> (b, a)
        r = thinker.Requant <data_bits = 32, o_bits = 16, scale_x: float = 32.0, scale_o: float = 8.0> (s)
        y = thinker.Dequant <scale_o: float = 8.0> (r)
    """
    proof = proven(body, tmp_path / "c", inputs="float[2,4] x", outputs="float[2,2] y")
    assert proof.tensors == 6


def test_what_is_no_number_gives_what_numpy_gives(tmp_path):
    model = quantizing("q = Q16(x)\n y = DQ16(q)", inputs="float[1,4] x", outputs="float[1,4] y")
    strange = {"x": np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32)}
    with build(export(model, tmp_path / "c")) as program, np.errstate(invalid="ignore"):
        assert program.run_q({"x": np.zeros((1, 4), np.int8)})["y"].tolist() == [[0, 0, 0, 0]]
        assert program(strange)["y"].tolist() == [[0.0, 7.9375, -8.0, 1.0]]
