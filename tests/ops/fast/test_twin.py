"""Which twin an op has."""

from linger.dialect import find_op, ops
from linger.ops.fast.twin import ExactTwin, RealTwin, functional_twin, product_twin, recurrent_twin


def test_ops_that_compute_have_a_twin_and_those_that_move_numbers_have_none():
    found = {name: type(functional_twin(op)) for name, op in ops().items()}
    assert {name for name, kind in found.items() if kind is ExactTwin} >= {"iqAdd", "iqSub", "iqMul", "iqMax", "BmmInt"}
    assert {name for name, kind in found.items() if kind is RealTwin} >= {"iqSigmoid", "SoftmaxInt", "LayerNormInt"}
    assert functional_twin(find_op("Relu")) is None
    assert functional_twin(find_op("iqCat")) is None


def test_every_function_whose_output_has_a_range_of_its_own_has_a_twin_or_moves():
    free = {name for name, op in ops().items() if op.functions and op.limit and functional_twin(op) is None}
    assert free == {"iqCat"}


def test_channels_are_counted_from_the_end():
    axes = {name: product_twin(op).channel_axis for name, op in ops().items() if op.weight_axes and not op.is_recurrent}
    assert axes == {
        "BatchNorm2dInt": -3,
        "Conv1dInt": -2,
        "Conv2dInt": -3,
        "ConvTranspose2dInt": -3,
        "LinearInt": -1,
    }


def test_recurrent_ops_run_all_their_steps():
    assert all(callable(recurrent_twin(op).run) for op in ops().values() if op.is_recurrent)
