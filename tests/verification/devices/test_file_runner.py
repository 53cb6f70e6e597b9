"""Every tensor of a file, by both engines."""

import numpy as np
import onnx
import pytest

from linger.errors import GraphError, UsageError
from linger.verification.devices.file_runner import ENGINES, FileRunner
from tests.support.onnx_text import BRANCH, parse
from tests.support.small_dialect import TENSORS, X, model


@pytest.mark.parametrize("engine", ENGINES)
def test_both_engines_give_the_numbers_worked_out_by_hand(engine):
    runner = FileRunner(model(), "a", engine)
    found = runner.run({"x": X})
    assert list(found) == ["q", "r", "s", "y"]  # in the order of execution, the input left out
    for name, array in found.items():
        assert array.dtype == TENSORS[name].dtype
        assert np.array_equal(array, TENSORS[name])


def test_constants_are_not_computed():
    runner = FileRunner(parse("c = Constant<value = float[1] {2.0}>() y = Mul(x, c)"), "a")
    assert list(runner.run({"x": np.float32([1, 2])})) == ["y"]


def test_the_label_is_the_path(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    assert FileRunner(tmp_path / "m.onnx", "a").label == str(tmp_path / "m.onnx")
    assert FileRunner(model(), "a").label == "a"


def test_what_branches_hold_is_said():
    assert FileRunner(parse(BRANCH), "a").notes() == [
        "a: 3 tensors inside branches and loops are not compared, only what these return."
    ]
    assert FileRunner(model(), "a").notes() == []


def test_unknown_engine():
    with pytest.raises(UsageError, match="engine 'tpu' is none of onnxruntime, numpy"):
        FileRunner(model(), "a", "tpu")


def test_what_the_reference_cannot_do_is_a_sentence():
    with pytest.raises(GraphError, match=r"the numpy reference cannot take the model: .*'Nothing'"):
        FileRunner(parse("y = Nothing(x)"), "a", "numpy")
    net = parse("y = Reshape(x, s)", extra="<int64[1] s = {7}>")
    with pytest.raises(GraphError, match=r"the numpy reference cannot run .*reshape"):
        FileRunner(net, "a", "numpy").run({"x": np.float32([1])})
