"""torch's two exporters behind one door."""

import inspect
import warnings
from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.export import Dim

import linger
from tests.support.models import SmallNet, settle, small_net

AXES = {"x": {0: "n", 2: "h", 3: "w"}, "y": {0: "n"}}
NAMES = {"input_names": ["x"], "output_names": ["y"]}


class FullyConvolutional(nn.Module):
    """Runs at any image size: nothing may be baked in."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = self.head(torch.max_pool2d(x, 2))
        return x.view(x.size(0), 2, -1)


def run(path, x):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x.numpy()})[0]


def prepared(kind):
    torch.manual_seed(3)
    model = settle(FullyConvolutional()).eval()
    x = torch.randn(2, 1, 8, 8)
    if kind == "quantized":
        linger.trace_layers(model, x)
        linger.init(model)
        with linger.calibration():
            model(torch.randn(4, 1, 12, 10))
    return model, x


def the_newer_exporter():
    """Every pair of settings; the other half of the combinations takes as many seconds again, in make test-slow."""
    for kind, opset, is_dynamic in product(("float", "quantized"), (18, 20), (False, True)):
        is_slow = (kind == "float") ^ (opset == 18) ^ is_dynamic
        sizes = "dynamic" if is_dynamic else "static"
        marks = pytest.mark.slow if is_slow else ()
        yield pytest.param(kind, opset, True, is_dynamic, marks=marks, id=f"{kind}-{opset}-dynamo-{sizes}")


@pytest.mark.parametrize(
    ("kind", "opset", "dynamo", "is_dynamic"),
    [("float", o, False, d) for o in (9, 12, 13, 15, 17, 18, 20) for d in (False, True)]
    + [("quantized", o, False, d) for o in (11, 12, 13, 15, 17, 18, 20) for d in (False, True)]
    + list(the_newer_exporter()),
)
@pytest.mark.thin(every=3)
def test_matrix_of_kinds_opsets_sizes_and_exporters(tmp_path, kind, opset, dynamo, is_dynamic):
    model, x = prepared(kind)
    path = tmp_path / "net.onnx"
    axes = {"x": {0: "n", 2: "h", 3: "w"}} if is_dynamic else None
    linger.onnx.export(model, (x,), path, opset_version=opset, dynamo=dynamo, dynamic_axes=axes, **NAMES)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert next(o.version for o in proto.opset_import if o.domain == "") == opset
    sizes = [x, torch.randn(5, 1, 12, 6)] if is_dynamic else [x]
    for batch in sizes:
        expected = model(batch).detach()
        if kind == "quantized":
            np.testing.assert_array_equal(run(path, batch), expected.numpy())
        else:
            # float32: two layers of at most 9·4 products; rounding 2^-24 relative each, values below 8
            np.testing.assert_allclose(run(path, batch), expected.numpy(), atol=2e-5)
    if kind == "quantized":
        assert linger.verify(model, path, sizes).ok


def test_both_exporters_write_the_same_dialect_nodes(tmp_path):
    model, x = small_net()
    nodes = []
    for dynamo in (False, True):
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", opset_version=18, dynamo=dynamo, form="bare", **NAMES)
        proto = onnx.load(tmp_path / "net.onnx")
        nodes.append([(n.name, n.op_type, sorted(a.name for a in n.attribute)) for n in proto.graph.node if n.domain])
        assert {i.name for i in proto.graph.initializer} >= {"stem.weight", "stem.bias", "fc.weight"}
    assert nodes[0] == nodes[1]


@pytest.mark.parametrize(
    "axes",
    [
        {"x": [0, 2, 3], "y": [0]},
        {"x": {0: "batch", 2: "height", 3: "width"}, "y": {0: "batch"}},
        {"x": [0, 2, 3], "y": {0: "batch"}},
    ],
    ids=["list", "names", "mixed"],
)
@pytest.mark.parametrize("kind", ["float", "quantized"])
def test_dynamic_axes_in_their_three_forms(tmp_path, kind, axes):
    model, x = prepared(kind)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", dynamic_axes=axes, **NAMES)
    other = torch.randn(3, 1, 6, 10)
    assert run(tmp_path / "net.onnx", other).shape == (3, 2, 15)


@pytest.mark.parametrize(
    "shapes", [{"x": {0: Dim("n"), 2: Dim("h")}}, ({0: "n", 2: "h"},)], ids=["dims by name", "names by position"]
)
def test_dynamic_shapes_reach_the_tracing_exporter(tmp_path, shapes):
    model, x = prepared("quantized")
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", dynamic_shapes=shapes, **NAMES)
    shape = onnx.load(tmp_path / "net.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in shape] == ["n", "", "h", ""]


def test_old_positional_order_still_works(tmp_path):
    model, x = small_net()
    path = tmp_path / "net.onnx"
    linger.onnx.export(
        model, (x,), path, True, False, torch.onnx.TrainingMode.EVAL, ["x"], ["y"], False, False, None, 11
    )
    assert onnx.load(path).opset_import[0].version == 11
    assert [i.name for i in onnx.load(path).graph.input] == ["x"]


def test_aten_fallback_and_no_grad_are_accepted(tmp_path):
    model, x = small_net()
    fallback = torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK
    with torch.no_grad():
        linger.onnx.export(model, x, tmp_path / "a.onnx", opset_version=11, operator_export_type=fallback, **NAMES)
    linger.onnx.export_debug(
        model, x, tmp_path / "b.onnx", True, opset_version=12, operator_export_type=fallback, **NAMES
    )
    assert np.array_equal(run(tmp_path / "a.onnx", x), run(tmp_path / "b.onnx", x))


def test_removed_arguments_warn_and_are_ignored(tmp_path):
    model, x = small_net()
    with pytest.warns(DeprecationWarning, match="'example_outputs'") as caught:
        linger.onnx.export(model, x, tmp_path / "a.onnx", example_outputs=x, _retain_param_name=True)
    assert len(caught) == 1


def test_weights_as_typed_inputs(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", export_params=False, **NAMES)
    proto = onnx.load(tmp_path / "net.onnx")
    assert not proto.graph.initializer
    kinds = {i.name: i.type.tensor_type.elem_type for i in proto.graph.input}
    assert kinds["fc.weight"] == onnx.TensorProto.INT8
    assert kinds["fc.bias"] == onnx.TensorProto.INT32
    full = tmp_path / "full.onnx"
    linger.onnx.export(model, (x,), full, **NAMES)
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(full).graph.initializer}
    session = ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    y = session.run(None, {"x": x.numpy()} | weights)[0]
    assert np.array_equal(y, run(full, x))


def test_float_weights_as_inputs(tmp_path):
    model = nn.Linear(3, 2)
    linger.onnx.export(model, (torch.randn(1, 3),), tmp_path / "net.onnx", export_params=False)
    proto = onnx.load(tmp_path / "net.onnx")
    assert {"weight", "bias"} <= {i.name for i in proto.graph.input}


def test_verbose_prints_a_readable_listing(tmp_path, capsys):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", verbose=True, **NAMES)
    text = capsys.readouterr().out
    assert "thinker.Conv2dInt" in text
    assert "stem.weight: int8[8, 1, 3, 3]" in text
    assert len(text) < 20_000


class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, factor=1.0, extra=None):
        y = self.fc(x)
        if extra is not None:
            y = y + self.fc(extra["more"])
        return {"scaled": y.dequantize() * factor if hasattr(y, "scale") else y * factor, "pair": (y, [torch.relu(y)])}


@pytest.mark.parametrize("kind", ["float", "quantized"])
def test_scalars_dicts_keywords_and_nested_outputs(tmp_path, kind):
    torch.manual_seed(0)
    x, more = torch.randn(3, 4), torch.randn(3, 4)
    model = Outputs().eval()
    if kind == "quantized":
        linger.init(model)
        with linger.calibration():
            model(x, 2.0, extra={"more": more})
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (x, 2.0), path, kwargs={"extra": {"more": more}})
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["x", "factor", "extra.more"]
    y = session.run(None, {"x": x.numpy(), "factor": np.array(3.0, np.float32), "extra.more": more.numpy()})
    expected = model(x, 3.0, extra={"more": more})
    flat = [expected["scaled"], expected["pair"][0], expected["pair"][1][0]]
    assert len(y) == 3
    for have, want in zip(y, flat, strict=True):
        np.testing.assert_allclose(have, want.detach().numpy(), atol=0 if kind == "quantized" else 1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_loop_becomes_a_loop_and_traced_one_unrolls(tmp_path):
    class Repeat(nn.Module):
        def forward(self, x, n: int):
            for _ in range(n):
                x = x * 2
            return x

    x = torch.ones(2)
    linger.onnx.export(torch.jit.script(Repeat()), (x, torch.tensor(3)), tmp_path / "script.onnx")
    kinds = [n.op_type for n in onnx.load(tmp_path / "script.onnx").graph.node]
    assert "Loop" in kinds
    linger.onnx.export(torch.jit.trace(lambda x: x * 2 * 2, x), (x,), tmp_path / "trace.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "trace.onnx").graph.node].count("Mul") == 2


def test_stages_are_kept_where_the_caller_wants_them(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", debug_dump=tmp_path / "stages")
    files = sorted(p.name for p in (tmp_path / "stages").iterdir())
    assert files == ["1_traced.onnx", "2_named.onnx", "3_dialect.onnx", "stages.txt"]
    text = (tmp_path / "stages" / "stages.txt").read_text()
    assert all(name in text for name in files[:3])
    linger.onnx.export(model, (x,), tmp_path / "other.onnx", debug_dump=True)
    assert (tmp_path / "other_debug" / "stages.txt").exists()


def test_verify_on_request(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", verify=True)


def test_exporting_makes_no_noise(tmp_path, capfd):
    model, x = small_net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linger.onnx.export(model, (x,), tmp_path / "net.onnx")
        linger.onnx.export(SmallNet().eval(), (x,), tmp_path / "float.onnx")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_defaults_are_the_documented_ones(tmp_path):
    defaults = {name: p.default for name, p in inspect.signature(linger.onnx.export).parameters.items()}
    assert defaults["is_update_dequant"] is True
    assert defaults["is_scoped_info"] is True
    assert defaults["debug_dump"] is False
    linger.onnx.export(nn.Linear(3, 2), (torch.ones(1, 3),), tmp_path / "net.onnx")
    assert onnx.load(tmp_path / "net.onnx").opset_import[0].version == 12


def test_aten_fallback_of_a_float_model_keeps_its_weights_inside(tmp_path):
    fallback = torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK
    linger.onnx.export(nn.Linear(3, 2), (torch.ones(1, 3),), tmp_path / "a.onnx", operator_export_type=fallback)
    assert len(onnx.load(tmp_path / "a.onnx").graph.input) == 1
