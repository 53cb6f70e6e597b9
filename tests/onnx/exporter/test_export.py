"""The exported file, and what the export leaves untouched."""

import copy
import inspect
import io
import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.models import SmallNet, Traced, quantized, settle, small_net

NAMES = {"input_names": ["image"], "output_names": ["scores"]}
AXES = {"image": {0: "batch"}, "scores": {0: "batch"}}


def simulate(model, x):
    with torch.no_grad():
        return model(x).dequantize().numpy()


def run_stock(content, x):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize("form", ["dialect", "standard"])
@pytest.mark.parametrize("opset", [11, 12, 13, 15, 17, 18, 20])
@pytest.mark.thin
def test_stock_onnx_runtime_gives_the_simulations_numbers(tmp_path, form, opset):
    model, x = small_net()
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (x[:1],), path, opset_version=opset, dynamic_axes=AXES, form=form, **NAMES)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert onnx.load(path).opset_import[0].version == opset
    for batch in (x[:1], x, x[:3]):
        np.testing.assert_array_equal(run_stock(path.read_bytes(), batch), simulate(model, batch))


def test_file_runs_in_a_process_that_never_imports_linger(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", **NAMES)
    np.save(tmp_path / "x.npy", x.numpy())
    script = (
        "import sys, json, numpy, onnxruntime\n"
        "s = onnxruntime.InferenceSession('net.onnx', providers=['CPUExecutionProvider'])\n"
        "y = s.run(None, {'image': numpy.load('x.npy')})[0]\n"
        "assert not any(m.split('.')[0] in ('linger', 'torch') for m in sys.modules)\n"
        "print(json.dumps(y.tolist()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    np.testing.assert_array_equal(np.array(json.loads(done.stdout), np.float32), simulate(model, x))


def test_dialect_file_has_the_documented_nodes_attributes_and_initializers(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare", **NAMES)
    proto = onnx.load(tmp_path / "net.onnx")
    assert not proto.functions
    assert proto.ir_version <= 7
    nodes = {n.name: n for n in proto.graph.node}
    conv = nodes["stem.Conv2dInt"]
    assert sorted(a.name for a in conv.attribute) == sorted(
        [
            "castor_mode",
            "data_bits",
            "dilations",
            "group",
            "kernel_shape",
            "o_bits",
            "pads",
            "parameter_bits",
            "platform_quant",
            "scale_o",
            "scale_w",
            "scale_x",
            "strides",
        ]
    )
    assert list(conv.input)[1:] == ["stem.weight", "stem.bias"]
    types = {i.name: i.data_type for i in proto.graph.initializer}
    assert types["stem.weight"] == onnx.TensorProto.INT8
    assert types["stem.bias"] == onnx.TensorProto.INT32
    assert {"block.conv1.weight", "block.conv1.bias", "fc.weight", "fc.bias"} <= set(types)
    assert {a.name for a in nodes["stem.Quant"].attribute} == {"data_bits", "platform_quant", "scale_x"}
    add = nodes["block.iqAdd"]
    assert {a.name for a in add.attribute} == {"mode", "platform_quant", "scale_o", "scale_x", "scale_y"}
    assert nodes["block.relu.Relu"].domain == ""
    assert nodes["pool.MaxPool"].domain == ""
    clip = nodes["relu6.Clip"]
    assert (clip.domain, len(clip.input)) == ("", 3)
    assert proto.graph.node[-1].op_type == "Dequant"


def test_consumer_scales_equal_producer_scales(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare", **NAMES)
    scales = {}
    checked = 0
    for node in onnx.load(tmp_path / "net.onnx").graph.node:
        attributes = {a.name: a.f for a in node.attribute if a.name.startswith("scale")}
        wanted = [attributes.get("scale_x"), attributes.get("scale_y")]
        if node.op_type == "iqCat":
            wanted = [attributes[f"scale_x_{i}"] for i in range(len(node.input))]
        if node.op_type == "Dequant":
            wanted = [attributes["scale_o"]]
        for source, scale in zip(node.input, wanted, strict=False):
            if node.op_type != "Quant" and source in scales and scale is not None:
                assert scales[source] == scale, node.name
                checked += 1
        given = attributes.get("scale_x" if node.op_type == "Quant" else "scale_o")
        if node.op_type != "Constant":
            scales[node.output[0]] = given if given is not None else scales.get(node.input[0])
        if "scale_w" in attributes:
            assert attributes["scale_o"] <= attributes["scale_x"] * attributes["scale_w"]
    assert checked >= 8


def test_float_island_gets_one_shared_dequant(tmp_path):
    class TwoUses(Traced):
        def forward(self, x):
            first = self.first(x)
            return self.second(torch.sin(first) * torch.cos(first))

    x = torch.randn(3, 6)
    model = quantized(TwoUses(), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    kinds = [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds.count("Dequant") == 2  # one for both float ops, one at the output
    assert kinds.count("Quant") == 2
    assert {o.op for o in linger.coverage(model).float_ops} == {"sin", "cos", "mul"}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_export_changes_nothing(tmp_path, training):
    model, x = small_net()
    model.train(training)
    model.drop.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if training:  # weights newer than the ranges: the export must not bring the buffers up to date
        nn.functional.cross_entropy(model(x), torch.arange(6)).backward()
        optimizer.step()
    state = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    noise = torch.get_rng_state()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert torch.equal(noise, torch.get_rng_state())
    assert [m.training for m in model.modules()] == modes
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    after = model.state_dict()
    assert list(after) == list(state)
    for name, value in state.items():
        assert torch.equal(value, after[name]), name
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert (grad is None and parameter.grad is None) or torch.equal(grad, parameter.grad)


def test_training_continues_after_an_export_and_improves_the_loss(tmp_path):
    model, x = small_net()
    target = torch.arange(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_now():
        model.eval()
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), target))

    before = loss_now()
    for step in range(30):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        if step % 10 == 0:
            linger.onnx.export(model, (x,), tmp_path / f"net{step}.onnx")
    assert loss_now() < 0.7 * before


def test_failing_forward_leaves_no_file_and_the_model_intact(tmp_path):
    class Breaks(SmallNet):
        is_broken = False

        def forward(self, x):
            y = super().forward(x)
            if self.is_broken:
                raise KeyError("no such thing")
            return y

    x = torch.randn(4, 1, 8, 8)
    model = quantized(settle(Breaks()), x)
    expected = simulate(model, x)
    state = copy.deepcopy(model.state_dict())
    model.train()
    model.is_broken = True
    (tmp_path / "old.onnx").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"Breaks: the forward pass fails.*KeyError"):
        linger.onnx.export(model, (x,), tmp_path / "old.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["old.onnx"]
    assert (tmp_path / "old.onnx").read_bytes() == b"old"
    assert model.training
    model.is_broken = False
    model.eval()
    np.testing.assert_array_equal(simulate(model, x), expected)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())


_CALLS = []


class Forgetful(nn.Module):
    """Computes something else in every pass, by a count that linger cannot know of."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        _CALLS.append(1)
        return self.fc(x * (len(_CALLS) % 5 + 1.0))


@pytest.mark.parametrize("old", [b"old", None], ids=["over a file", "new"])
def test_export_that_cannot_be_proven_writes_nothing(tmp_path, old):
    x, path = torch.linspace(-1, 1, 8).reshape(2, 4), tmp_path / "net.onnx"
    model = quantized(Forgetful(), x)
    if old:
        path.write_bytes(old)
    with pytest.raises(linger.LingerError, match=r"net\.onnx: nothing is written: .* integers differ"):
        linger.onnx.export(model, (x,), path, verify=True)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_file_object_is_proven_before_it_is_written():
    model, x = small_net()
    buffer = io.BytesIO()
    linger.onnx.export(model, (x,), buffer, verify=True)
    np.testing.assert_array_equal(run_stock(buffer.getvalue(), x), simulate(model, x))


@pytest.mark.parametrize("place", [None, 3], ids=repr)
def test_no_place_for_a_file_is_said_before_the_work(place):
    with pytest.raises(UsageError, match=rf"f={place} is no place for a file"):
        linger.onnx.export(nn.Linear(4, 2), (torch.ones(1, 4),), place)


def test_tensors_without_numbers_are_named(tmp_path):
    model, x = small_net()
    with pytest.raises(UsageError, match=r"input 0 on the device 'meta'"):
        linger.onnx.export(model, (x.to("meta"),), tmp_path / "net.onnx")
    with pytest.raises(UsageError, match=r"input 0, weight and bias on the device 'meta'|input 0, weight, bias on"):
        linger.onnx.export(nn.Linear(4, 2, device="meta"), (torch.ones(1, 4, device="meta"),), tmp_path / "net.onnx")
    with pytest.raises(UsageError, match=r"stem\.weight.* on the device 'meta'"):
        linger.onnx.export(model.to("meta"), (x,), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_bfloat16_needs_an_opset_that_has_it(tmp_path):
    model, x = nn.Linear(4, 2).bfloat16(), torch.ones(1, 4).bfloat16()
    with pytest.raises(UsageError, match=r"input 0.*weight.* bfloat16.*from opset 13.*model\.float\(\)"):
        linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", opset_version=13)
    onnx.checker.check_model(tmp_path / "net.onnx", full_check=True)
    integers, image = small_net()
    with pytest.raises(UsageError, match=r"export: input 0 of type bfloat16"):
        linger.onnx.export(integers, (image.bfloat16(),), tmp_path / "net.onnx")


def test_unwritable_folder_is_one_sentence_and_no_file(tmp_path):
    model, x = small_net()
    with pytest.raises(UsageError, match="does not exist"):
        linger.onnx.export(model, (x,), tmp_path / "missing" / "net.onnx")
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(simulate(model, x), simulate(model, x))


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    model, x = small_net()
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")

    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(UsageError, match="No space left"):
        linger.onnx.export(model, (x,), path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_uncalibrated_model_names_every_layer(tmp_path):
    model = linger.init(settle(SmallNet()))
    with pytest.raises(UsageError, match=r"linger\.calibration") as caught:
        linger.onnx.export(model, (torch.randn(1, 1, 8, 8),), tmp_path / "net.onnx")
    for name in ("stem", "block.conv1", "block.conv2", "relu6", "avg", "gap", "fc"):
        assert name in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (lambda x: (x, x), {}, "does not take 2 positional arguments"),
        (lambda x: (x[:, :, :2, 0],), {}, "the forward pass fails on the example input"),
        (lambda x: (x,), {"input_names": ["x"], "output_names": ["x"]}, "x as the name of an input and of an output"),
        (lambda x: (x,), {"form": "qonnx"}, "no form 'qonnx'"),
        (lambda x: (x,), {"opset_version": 10}, "opset 10 is not available for a quantized model. Use 11 to 20"),
    ],
    ids=["two inputs", "wrong rank", "one name twice", "unknown form", "old opset"],
)
def test_wrong_call_is_one_sentence(tmp_path, arguments, options, message):
    model, x = small_net()
    with pytest.raises(UsageError, match=message):
        linger.onnx.export(model, arguments(x), tmp_path / "net.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_float_model_gives_torchs_own_graph(tmp_path):
    model = settle(SmallNet()).eval()
    x = torch.randn(2, 1, 8, 8)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", opset_version=12)
    proto = onnx.load(tmp_path / "net.onnx")
    assert {n.domain for n in proto.graph.node} == {""}
    # float32: ten layers of at most 8·9 products, each rounded to 2^-24 relative
    np.testing.assert_allclose(run_stock(proto.SerializeToString(), x), model(x).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "ops"),
    [({}, ["MatMul"]), ({"do_constant_folding": False}, ["Transpose", "MatMul"])],
    ids=["by itself", "told not to"],
)
def test_constants_of_a_float_model_are_folded(tmp_path, options, ops):
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3))

        def forward(self, x):
            return x @ self.weight.t()

    linger.onnx.export(Turned(), (torch.ones(2, 3),), tmp_path / "net.onnx", **options)
    assert [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node] == ops


def test_a_module_around_a_quantized_model_is_refused_and_named(tmp_path):
    model, x = small_net()
    with pytest.raises(UsageError, match=r"is quantized, the model as a whole is not\..* export model\.0\.$"):
        linger.onnx.export(nn.Sequential(model), (x,), tmp_path / "net.onnx")


def test_file_object_and_bare_tensor_are_accepted():
    model, x = small_net()
    buffer = io.BytesIO()
    linger.onnx.export(model, x, buffer)
    np.testing.assert_array_equal(run_stock(buffer.getvalue(), x), simulate(model, x))


def test_module_called_twice_has_two_nodes_and_one_weight(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.fc(x)))

    x = torch.randn(5, 4)
    model = quantized(Twice(), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare")
    proto = onnx.load(tmp_path / "net.onnx")
    calls = [n for n in proto.graph.node if n.op_type == "LinearInt"]
    assert [n.name for n in calls] == ["fc.LinearInt", "fc.LinearInt_1"]
    assert {n.input[1] for n in calls} == {"fc.weight"}
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("form", ["standard", "qdq"])
@pytest.mark.thin
def test_standard_and_qdq_files_are_exact_at_every_optimization_level(tmp_path, form, level):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form=form, opset_version=13, **NAMES)
    proto = onnx.load(tmp_path / "net.onnx")
    assert {n.domain for n in proto.graph.node} == {""}
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(tmp_path / "net.onnx", options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"image": x.numpy()})[0], simulate(model, x))


def test_qdq_says_what_is_not_exact_everywhere(tmp_path, caplog):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="qdq", qdq_symmetric=True, opset_version=13)
    assert "stem.Conv2dInt" in caplog.text


def test_warnings_point_at_the_line_that_calls_the_export():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x, unused):
            return self.fc(x if x.sum() > 0 else -x)

    x = torch.arange(4.0).reshape(2, 2)
    model = quantized(Reads(), x, x)
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns() as caught:
        linger.onnx.export(model, (x, x), io.BytesIO(), aten=True, is_update_dequant=False)
    assert [warning.lineno for warning in caught] == [line] * 4
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("form", ["dialect", "standard"])
def test_keep_initializers_as_inputs_lists_the_integers_too(tmp_path, form):
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    model = quantized(Traced(), x)
    linger.onnx.export(model, (x,), tmp_path / "m.onnx", keep_initializers_as_inputs=True, form=form)
    graph = onnx.load(tmp_path / "m.onnx").graph
    assert {tensor.name for tensor in graph.initializer} < {value.name for value in graph.input}
    assert graph.initializer
    assert linger.verify(model, tmp_path / "m.onnx", (x,)).ok
