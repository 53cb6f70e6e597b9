"""Declarations as torch's exporters call them."""

import io

import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import linger
from linger.errors import UnsupportedError, UsageError
from linger.onnx import attach_bodies, translation_table
from linger.onnx.operators.bodies import ArgumentMap
from linger.onnx.operators.declaration import Carrier, Symbolic, declare, table_entries
from tests.support.custom_ops import (
    SCALE_BODY,
    UNSHIFTED_BODY,
    Doubling,
    Scaled,
    register_scale,
    run_stock,
    torch_export,
    whole,
)


@pytest.fixture(autouse=True)
def _scale_op():
    library = register_scale()
    yield
    library._destroy()


def declared(**options):
    arguments = ArgumentMap(None, options.pop("attributes", None))
    return declare(options.pop("source", "mylib::scale"), options.pop("to", "custom::scale"), arguments, **options)


def test_node_has_the_type_and_size_of_the_trace(tmp_path):
    with linger.onnx.operator("mylib::scale", to="custom::scale"):
        torch_export(Scaled(), (whole(2, 1, 4, 4),), tmp_path / "scale.onnx", opset_version=12)
    proto = onnx.load(tmp_path / "scale.onnx")
    # the size is known behind the op, so view is a Reshape to constants
    assert [n.op_type for n in proto.graph.node] == ["Conv", "scale", "Constant", "Reshape"]


def test_size_that_is_open_at_an_input_is_open_behind_the_node(tmp_path):
    with linger.onnx.operator("mylib::scale", to="custom::scale"):
        torch_export(
            Scaled(),
            (whole(2, 1, 4, 4),),
            tmp_path / "scale.onnx",
            opset_version=12,
            input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
        )
    assert "Shape" in [n.op_type for n in onnx.load(tmp_path / "scale.onnx").graph.node]


class Sized(nn.Module):
    """A trace would keep the size of the example; a script computes it."""

    def forward(self, x):
        return torch.ops.mylib.scale(x, power=x.size(0))


def scripted(model):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        return torch.jit.script(model)


def test_attribute_computed_in_the_graph_is_refused(tmp_path):
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    with (
        linger.onnx.operator("mylib::scale", to="custom::scale"),
        pytest.raises(UnsupportedError, match=r"argument 'power' is computed while the model runs"),
    ):
        torch_export(scripted(Sized()), (whole(2, 3),), tmp_path / "scale.onnx", opset_version=12, **axes)


def test_number_computed_in_the_graph_can_be_an_input(tmp_path):
    body = """scale (x, power) => (y) {
        two = Constant <value = float {2.0}> ()
        exponent = Cast <to = 1> (power)
        factor = Pow (two, exponent)
        y = Mul (x, factor)
    }"""
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    with linger.onnx.operator("mylib::scale", to="custom::scale", inputs=["x", "power"], body=body):
        torch_export(scripted(Sized()), (whole(2, 3),), tmp_path / "scale.onnx", opset_version=12, **axes)
    x = whole(5, 3)
    assert (run_stock(tmp_path / "scale.onnx", x=x) == Sized()(x).numpy()).all()


def test_several_outputs_are_as_many_outputs(tmp_path):
    class Extremes(nn.Module):
        def forward(self, x):
            return torch.aminmax(x, dim=1, keepdim=True)

    body = """both <dim> (x) => (low, high) {
        minus = Neg (x)
        k = Constant <value = int64[1] {1}> ()
        down, i = TopK <axis: int = @dim> (minus, k)
        high, j = TopK <axis: int = @dim> (x, k)
        low = Neg (down)
    }"""
    with linger.onnx.operator("aten::aminmax", to="custom::both", body=body):
        torch_export(Extremes(), (whole(2, 4),), tmp_path / "both.onnx", opset_version=12)
    assert linger.onnx.compare(Extremes(), tmp_path / "both.onnx", whole(2, 4)).ok


def test_carrier_hands_the_body_of_the_export_under_way():
    symbolic = Symbolic(declared(body=[SCALE_BODY, UNSHIFTED_BODY], opset=None))
    symbolic.opset = 14
    function = Carrier(symbolic, "custom.without_shift").to_function_proto()
    assert (function.domain, function.opset_import[0].version) == ("custom.without_shift", 14)
    with pytest.raises(UsageError, match="custom::scale is an ONNX op"):
        Carrier(symbolic, "custom")()


def test_table_has_an_entry_per_overload_and_none_for_autograd_functions():
    assert list(table_entries(declared(body=None, opset=None))) == [torch.ops.mylib.scale.default]
    both = declared(source="aten::add", to="custom::add", body=None, opset=None)
    assert list(table_entries(both)) == [torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar]
    assert table_entries(declared(source=Doubling, body=None, opset=None)) == {}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # what torch.export itself does under the new exporter
def test_dynamo_exporter_writes_declared_nodes_and_standard_ones():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled(power=2, sizes=[3, 4], levels=[0.5], is_odd=True, mode="fine")

        def forward(self, x):
            return torch.asinh(self.scaled(x))

    linger.restore()
    x = whole(2, 1, 4, 4)
    with (
        linger.onnx.operator("mylib::scale", to="custom::scale", body=[SCALE_BODY, UNSHIFTED_BODY]),
        linger.onnx.operator("aten::asinh", to="Asinh"),
    ):
        program = torch.onnx.export(
            Both().eval(), (x,), dynamo=True, custom_translation_table=translation_table(), verbose=False
        )
        attach_bodies(program.model)
    content = io.BytesIO()
    onnx.save(program.model_proto, content)
    proto = onnx.load_from_string(content.getvalue())
    node = next(n for n in proto.graph.node if n.domain == "custom.without_shift")
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert found == {"factor": 2.0, "power": 2, "is_odd": 1, "sizes": [3, 4], "levels": [0.5], "mode": b"fine"}
    assert ("", "Asinh") in [(n.domain, n.op_type) for n in proto.graph.node]
    session = ort.InferenceSession(content.getvalue(), providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == [2, 8]
    assert linger.onnx.compare(Both(), content.getvalue(), x).ok
