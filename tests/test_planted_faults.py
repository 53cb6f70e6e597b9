"""Tests of the tests: a mistake in any kernel, or in what all kernels share, does not go unnoticed.

The checks are those of the real tests: `contract_mismatches` compares kernel with kernel on the ops' samples,
`golden_mismatches` compares with the recorded vectors. Each is run without a fault too, and then reports nothing.
"""

from functools import partial

import numpy as np
import pytest

from linger.dialect import find_op, ops
from tests.support.comparison import contract_mismatches, difference
from tests.support.faults import (
    FAULTS,
    KERNELS,
    NUMBER_FAULTS,
    plant,
    plant_in_blocks,
    plant_in_numbers,
    plant_in_op,
    plant_wrong_axis,
)
from tests.support.golden import case_names, golden_mismatches, run_reference, run_session
from tests.support.hand_worked import WAYS, assert_gives
from tests.support.samples import arrays, run_function, run_numpy, run_torch

BIASED = ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "LinearInt")
TIED = (
    "AvgPool2dInt",
    "BatchNorm2dInt",
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "LSTMInt",
    "LinearInt",
    "Requant",
    "iqAdd",
    "iqCat",
    "iqMul",
    "iqSigmoid",
    "iqTanh",
)
SHIFTED = (
    *TIED,
    "LayerNormInt",
    "SoftmaxInt",
    "LogSoftmaxInt",
)  # of whose inner ties 8 bits show nothing; a logarithm is never one
VISIBLE_IN = {
    "half-even": ("Quant", *TIED),
    # an average stays in the range, and no recorded layer norm leaves it (worked by hand instead)
    "wrap": ("Quant", *(name for name in SHIFTED if name not in ("AvgPool2dInt", "LayerNormInt"))),
    "shift + 1": ("Dequant", *SHIFTED),
    "shift − 1": ("Dequant", *SHIFTED),
    "no bias": (*BIASED, "LSTMInt"),
}
FAULT_AND_OP = [(fault, name) for fault in FAULTS for name in VISIBLE_IN[fault]]

OWN_TIED = (
    "iqAdaptiveAvgPool",
    "iqClamp",
    "iqGelu",
    "iqHardsigmoid",
    "iqHardswish",
    "iqInterpolate",
    "iqLeakyRelu",
    "iqPRelu",
    "iqSwish",
)
OWN = [
    *((fault, "GRUInt") for fault in FAULTS),
    *(("half-even", name) for name in OWN_TIED),
    # an average stays in the range, and a sigmoid is never beyond its own by much
    *(("wrap", name) for name in OWN_TIED if name not in ("iqAdaptiveAvgPool", "iqHardsigmoid")),
    *((fault, name) for fault in ("shift + 1", "shift − 1") for name in OWN_TIED),
]
"""Ops without recorded vectors: worked by hand, and compared kernel with kernel."""

each_kernel = pytest.mark.parametrize("kernel", KERNELS)
each_fault = pytest.mark.parametrize("fault", FAULTS)


def samples_of(*names):
    return [(op, sample) for op in ops().values() if op.name in names or not names for sample in op.samples]


def few_of_each():
    """Two samples of every op: test_contract has them all."""
    return [(op, sample) for op in ops().values() for sample in op.samples[:2]]


def caught(mismatches):
    """Whether wrong numbers were found; a wrong type or shape would be a mistake of the fault itself."""
    return any("differ, first at" in found for found in mismatches)


def disagreements(kernel, compute, pairs):
    """The kernel against the reference; the reference against torch."""
    first, second = (run_torch, compute) if kernel == "numpy" else (compute, run_numpy)
    return contract_mismatches(pairs, first, second)


@each_kernel
def test_contract_check_is_silent_without_a_fault(kernel, monkeypatch):
    compute, _ = plant(monkeypatch, kernel, None)
    assert list(disagreements(kernel, compute, few_of_each())) == []


@each_kernel
def test_golden_check_is_silent_without_a_fault(kernel, monkeypatch):
    _, run = plant(monkeypatch, kernel, None)
    assert list(golden_mismatches(case_names()[::3], run)) == []  # test_golden has them all


@each_kernel
@pytest.mark.parametrize(("fault", "name"), FAULT_AND_OP)
@pytest.mark.thin(every=2)
def test_contract_check_catches_a_fault_of_one_kernel(kernel, fault, name, monkeypatch):
    compute, _ = plant(monkeypatch, kernel, fault)
    assert caught(disagreements(kernel, compute, samples_of(name)))


@each_kernel
@pytest.mark.parametrize(("fault", "name"), OWN)
def test_contract_check_catches_a_fault_in_an_op_without_vectors(kernel, fault, name, monkeypatch):
    compute, _ = plant(monkeypatch, kernel, fault)
    assert caught(disagreements(kernel, compute, samples_of(name)))


@each_kernel
@each_fault
@pytest.mark.thin(every=2)
def test_golden_check_catches_a_fault_of_one_kernel(kernel, fault, monkeypatch):
    _, run = plant(monkeypatch, kernel, fault)
    assert caught(golden_mismatches(case_names(), run))


@pytest.mark.parametrize(("fault", "name"), FAULT_AND_OP)
def test_vectors_of_an_op_catch_a_fault_in_it_alone(fault, name, monkeypatch):
    cases = case_names(name) or case_names()  # Dequant ends every case and has none of its own
    plant_in_op(monkeypatch, find_op(name), fault)
    assert caught(golden_mismatches(cases, run_reference))


SHARED_BY = {"numpy and torch": run_torch, "numpy and onnxruntime": partial(run_function, opset=12)}
FILE_RUNS = {"numpy": run_reference, "onnxruntime": run_session}


@pytest.mark.parametrize("compute", SHARED_BY.values(), ids=SHARED_BY.keys())
@each_fault
@pytest.mark.thin(every=4)
def test_contract_check_cannot_see_a_fault_that_all_kernels_share(fault, compute, monkeypatch):
    """Why agreement is not correctness: this is what the vectors are for."""
    plant_in_blocks(monkeypatch, fault, [find_op(name) for name in BIASED])
    assert list(contract_mismatches(few_of_each(), compute, run_numpy)) == []


@pytest.mark.parametrize("run", FILE_RUNS.values(), ids=FILE_RUNS.keys())
@each_fault
@pytest.mark.thin(every=2)
def test_golden_check_catches_a_fault_that_all_kernels_share(fault, run, monkeypatch):
    plant_in_blocks(monkeypatch, fault, [find_op(name) for name in BIASED])
    assert caught(golden_mismatches(case_names(), run))


def worked_by_hand():
    """LinearInt, one product per line: ties of both signs, both ends, a bias that decides."""
    x, w = np.array([[1]], np.int8), np.array([[20], [-20], [127], [-128], [0]], np.int8)
    b = np.array([0, 0, 16000, -16000, 12], np.int32)
    attributes = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 8.0, "scale_w": 8.0, "scale_o": 8.0}
    # /8: 20 → 2½ → 3; −20 → −2½ → −2; 16127 → 2015.9 → 127; −16128 → −2016 → −128; 12 → 1½ → 2
    return find_op("LinearInt"), [x, w, b], attributes, np.array([[3, -2, 127, -128, 2]], np.int8)


def test_hand_worked_numbers_come_out_without_a_fault():
    assert_gives(*worked_by_hand())


@each_fault
def test_hand_worked_numbers_catch_a_fault_that_all_kernels_share(fault, monkeypatch):
    plant_in_blocks(monkeypatch, fault, [find_op(name) for name in BIASED])
    with pytest.raises(AssertionError) as failure:
        assert_gives(*worked_by_hand())
    assert all(way in str(failure.value) for way in WAYS)  # none of them is right


def has_numbers_of_ours(fault):
    """Samples in which a fault of exponents, or of unsigned numbers, shows."""
    name = "o_unsigned" if fault == "ends at 127" else "exponents_w"
    pairs = [(op, sample) for op in ops().values() for sample in op.samples if name in sample.attributes]
    return [pair for pair in pairs if fault != "other order" or pair[1].attributes.get("group") == 2]


@each_kernel
@pytest.mark.parametrize("fault", NUMBER_FAULTS)
def test_contract_check_catches_a_fault_of_exponents_or_unsigned_numbers(kernel, fault, monkeypatch):
    compute, _ = plant(monkeypatch, kernel, fault)
    pairs = has_numbers_of_ours(fault)
    names = {op.name for op, _ in pairs}
    assert {"Conv1dInt", "Conv2dInt", "ConvTranspose2dInt"} <= names
    for name in names:
        found = disagreements(kernel, compute, [pair for pair in pairs if pair[0].name == name])
        assert caught(found), name


def channels_by_hand(name):
    """Two groups of two outputs: 8 and 24, shifted by 0, 1 and by 2, 3; then 300 and −300, which 0 … 255 cannot hold."""
    op, group = find_op(name), {} if name == "LinearInt" else {"group": 2}
    attributes = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 1.0, "scale_w": 1.0, "scale_o": 1.0}
    if name == "LinearInt":
        x, w = np.array([[8, 24]], np.uint8), np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.int8)
        bias, shape = [0, 0, 0, 0], (1, 4)
    else:
        geometry = {"dilations": (1, 1), "kernel_shape": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1)}
        geometry |= {"output_padding": (0, 0)} if name == "ConvTranspose2dInt" else {}
        attributes |= geometry | group
        x = np.array([8, 24], np.uint8).reshape(1, 2, 1, 1)
        w = np.ones((2, 2, 1, 1) if name == "ConvTranspose2dInt" else (4, 1, 1, 1), np.int8)
        bias, shape = [0, 0, 0, 0], (1, 4, 1, 1)
    attributes |= {"exponents_w": (0, 1, 2, 3), "o_unsigned": 1}
    bias[1] = 2 * 200 - 8  # 400/2 = 200, more than 127
    return op, [x, w, np.array(bias, np.int32)], attributes, np.array([8, 200, 6, 3], np.uint8).reshape(shape)


WITH_CHANNELS = ("Conv2dInt", "ConvTranspose2dInt", "LinearInt")


@pytest.mark.parametrize("name", WITH_CHANNELS)
def test_channels_worked_by_hand_come_out_without_a_fault(name):
    assert_gives(*channels_by_hand(name))


@pytest.mark.parametrize("name", WITH_CHANNELS)
@pytest.mark.parametrize("fault", NUMBER_FAULTS)
def test_channels_worked_by_hand_catch_a_fault_that_all_kernels_share(fault, name, monkeypatch):
    plant_in_numbers(monkeypatch, fault)
    with pytest.raises(AssertionError) as failure:
        assert_gives(*channels_by_hand(name))
    assert all(way in str(failure.value) for way in WAYS)


def test_exponents_along_the_rows_of_a_transposed_convolution_are_caught(monkeypatch):
    op, *by_hand, expected = channels_by_hand("ConvTranspose2dInt")
    samples = [
        s for s in op.samples if "exponents_w" in s.attributes and "depthwise" not in s.name
    ]  # there, rows are channels
    right = [run_torch(op, arrays(sample), sample.attributes) for sample in samples]
    plant_wrong_axis(monkeypatch, op)
    assert (run_numpy(op, *by_hand) != expected).any()
    assert len(samples) > 2
    for sample, numbers in zip(samples, right, strict=True):
        assert difference(numbers, run_numpy(op, arrays(sample), sample.attributes)) is not None
