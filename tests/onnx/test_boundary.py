"""Integers at the ends, Dequants left out."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import linger
from linger.runtime.session import Session
from tests.support.models import Traced, quantised, small_net


@pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
def test_integer_inputs_and_outputs(tmp_path, form):
    model, x = small_net()
    names = {"input_names": ["x"], "output_names": ["y"]}
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_input_quant=True, form=form, **names)
    proto = onnx.load(tmp_path / "net.onnx")
    kinds = {n.op_type for n in proto.graph.node}
    assert "Dequant" not in kinds
    assert "Quant" not in kinds
    ends = [v.type.tensor_type.elem_type for v in (*proto.graph.input, *proto.graph.output)]
    assert ends == [onnx.TensorProto.INT8] * 2
    (recorded,) = linger.onnx.recorder.record(model, (x,)) if hasattr(linger.onnx, "recorder") else record(model, x)
    y = Session(tmp_path / "net.onnx").run(None, {"x": recorded.integers["stem.Quant"]})[0]
    np.testing.assert_array_equal(y, recorded.integers["fc.LinearInt"])


def record(model, x):
    from linger.onnx.recorder import record as run

    return list(run(model, (x,)))


def test_float_islands_keep_their_dequants(tmp_path):
    x = torch.randn(3, 6)
    model = quantised(Traced(), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_input_quant=True, form="bare")
    kinds = [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds == ["LinearInt", "Dequant", "Sin", "Quant", "LinearInt"]


def test_without_the_dequant_pass_the_file_is_written_and_the_user_warned_once(tmp_path):
    x = torch.randn(3, 6)
    model = quantised(Traced(), x)
    with pytest.warns(UserWarning, match="is_update_dequant=False leaves out 2 Dequant nodes") as caught:
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_update_dequant=False)
    assert len(caught) == 1
    kinds = [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds == ["Quant", "LinearInt", "Sin", "Quant", "LinearInt"]
    with pytest.raises(Exception, match=r"."):
        ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
