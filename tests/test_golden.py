"""Recorded vectors of an independent engine: linger gives the same numbers, bit for bit.

The vectors share no code with linger, so they hold the formulas themselves to account, not only the agreement of the
kernels. `tools/make_golden.py` copied them; Clip has none (the engine refuses it) and is worked by hand instead.
"""

import numpy as np
import pytest

from linger import Session
from linger.runtime.reference import Reference
from tests.support.comparison import assert_same
from tests.support.golden import (
    GOLDEN,
    NETS,
    case_names,
    entries,
    file_digests,
    golden_mismatches,
    recorded,
    run_expanded,
    run_reference,
    run_session,
    run_torch,
)

CASES = 129
"""Raised whenever tools/make_golden.py finds more; a smaller number means that vectors were lost."""

FIRST_OPS = (
    "Quant",
    "Requant",
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "LinearInt",
    "BatchNorm2dInt",
    "LayerNormInt",
    "AvgPool2dInt",
    "MaxPool",
    "Relu",
    "iqAdd",
    "iqMul",
    "iqDiv",
    "iqCat",
    "iqPad",
    "ShuffleChannel",
    "iqSigmoid",
    "iqTanh",
    "SoftmaxInt",
    "LogSoftmaxInt",
)

RUNS = {
    "onnxruntime": run_session,
    "onnxruntime, expanded": run_expanded,
    "numpy": run_reference,
    "torch": run_torch,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("case", case_names())
def test_recorded_arrays_come_out(case, run):
    assert list(golden_mismatches([case], run)) == []


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["case"])
def test_files_are_those_the_manifest_describes(entry):
    assert file_digests(entry["case"]) == entry["sha256"]


def test_no_case_has_vanished():
    assert len(case_names()) == len(set(case_names())) == CASES


def test_folder_holds_the_cases_and_nothing_else():
    named = {name for entry in entries() for name in entry["sha256"]}
    assert {path.name for path in GOLDEN.iterdir()} == named | {"manifest.json", NETS.name}


@pytest.mark.parametrize("op", FIRST_OPS)
def test_op_has_vectors_of_its_own(op):
    assert case_names(op)


def test_dequant_occurs_in_the_recorded_graphs():
    assert any("Dequant" in entry["ops"] for entry in entries())


@pytest.mark.parametrize("case", case_names())
def test_recorded_outputs_are_not_constant(case):
    _, expected = recorded(case)
    assert expected
    assert all(len(np.unique(array)) > 1 for array in expected.values())


@pytest.fixture(scope="module")
def resnet(shared):
    """A whole network of the original toolkit."""
    return shared / "golden" / "resnet18-12-regular.onnx"


@pytest.fixture(scope="module")
def resnet_vectors(shared):
    """16 images and the 100 class values the engine gave for each."""
    with np.load(shared / "golden" / "ops" / "resnet18-12-regular.npz") as content:
        return {name: content[name] for name in content.files}


@pytest.fixture(scope="module")
def resnet_outputs(resnet, resnet_vectors):
    """What ONNX Runtime gives, one image at a time, default optimization."""
    session = Session(resnet)
    images = resnet_vectors["input"]
    return np.concatenate([session.run(None, {"input": images[i : i + 1]})[0] for i in range(len(images))])


def test_resnet_in_onnxruntime_gives_the_recorded_outputs(resnet_outputs, resnet_vectors):
    assert resnet_outputs.shape == (16, 100)
    assert_same(resnet_outputs, resnet_vectors["output"])


def test_resnet_sees_the_apple(resnet_outputs):
    assert resnet_outputs[0].argmax() == 0


@pytest.mark.parametrize("index", [0, 9], ids=["the apple", "another image"])
def test_resnet_in_numpy_gives_the_recorded_outputs(resnet, resnet_vectors, index):
    found = Reference(resnet).run({"input": resnet_vectors["input"][index : index + 1]})
    assert_same(found["output"], resnet_vectors["output"][index : index + 1])
