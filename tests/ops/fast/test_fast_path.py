"""Which fast path an op has."""

from tests.support.fast_paths import (
    ExactFastPath,
    RealFastPath,
    functional_fast_path,
    product_fast_path,
    recurrent_fast_path,
)
from tests.support.ops import find_op, ops


def test_ops_that_compute_have_a_fast_path_and_those_that_move_numbers_have_none():
    found = {name: type(functional_fast_path(op)) for name, op in ops().items()}
    assert {name for name, kind in found.items() if kind is ExactFastPath} >= {
        "iqAdd",
        "iqSub",
        "iqMul",
        "iqMax",
        "BmmInt",
    }
    assert {name for name, kind in found.items() if kind is RealFastPath} >= {"iqSigmoid", "SoftmaxInt", "LayerNormInt"}
    assert functional_fast_path(find_op("Relu")) is None
    assert functional_fast_path(find_op("iqCat")) is None


def test_every_function_whose_output_has_a_range_of_its_own_has_a_fast_path_or_moves():
    free = {name for name, op in ops().items() if op.functions and op.limit and functional_fast_path(op) is None}
    assert free == {"iqCat"}


def test_channels_are_counted_from_the_end():
    axes = {
        name: product_fast_path(op).channel_axis for name, op in ops().items() if op.weight_axes and not op.is_recurrent
    }
    assert axes == {
        "BatchNorm2dInt": -3,
        "Conv1dInt": -2,
        "Conv2dInt": -3,
        "ConvTranspose2dInt": -3,
        "LinearInt": -1,
    }


def test_recurrent_ops_run_all_their_steps():
    assert all(callable(recurrent_fast_path(op).run) for op in ops().values() if op.is_recurrent)
