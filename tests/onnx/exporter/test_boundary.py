"""Integers at the ends, Dequants left out."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import linger
from linger import Session
from tests.support.models import Traced, quantized, small_net


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
    (recorded,) = linger.record(model, (x,))
    y = Session(tmp_path / "net.onnx").run(None, {"x": recorded.integers["stem.Quant"]})[0]
    np.testing.assert_array_equal(y, recorded.integers["fc.LinearInt"])


def test_float_islands_keep_their_dequants(tmp_path):
    x = torch.randn(3, 6)
    model = quantized(Traced(), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_input_quant=True, form="bare")
    kinds = [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds == ["LinearInt", "Dequant", "Sin", "Quant", "LinearInt"]


def test_without_the_dequant_pass_the_file_is_written_and_the_user_warned_once(tmp_path):
    x = torch.randn(3, 6)
    model = quantized(Traced(), x)
    with pytest.warns(UserWarning, match="is_update_dequant=False leaves out 2 Dequant nodes") as caught:
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_update_dequant=False)
    assert len(caught) == 1
    kinds = [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds == ["Quant", "LinearInt", "Sin", "Quant", "LinearInt"]
    with pytest.raises(Exception, match=r"."):
        ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])


INTEGER, FLOAT = onnx.TensorProto.INT8, onnx.TensorProto.FLOAT


class Own(nn.Module):
    """Layers by name, and what to do with them."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args):
        return self.run(self, *args)


def ends(path):
    graph = onnx.load(path).graph
    return [[v.type.tensor_type.elem_type for v in values] for values in (graph.input, graph.output)]


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def talk(m, words, x):
    return m.norm(m.lstm(m.table(words))[0]), m.gru(x)[0]


WHOLE = {
    "batch norm": (Own(lambda m, x: m.n(x), n=nn.BatchNorm2d(3)), drawn(2, 3, 4, 4)),
    "group norm": (Own(lambda m, x: m.n(x), n=nn.GroupNorm(1, 3)), drawn(2, 3, 4, 4)),
    "instance norm": (Own(lambda m, x: m.n(x), n=nn.InstanceNorm2d(3)), drawn(2, 3, 4, 4)),
    "layer norm": (Own(lambda m, x: m.n(x), n=nn.LayerNorm(4)), drawn(2, 3, 4)),
    "lstm": (Own(lambda m, x: m.n(x)[0], n=nn.LSTM(4, 5)), drawn(2, 3, 4)),
    "gru": (Own(lambda m, x: m.n(x)[0], n=nn.GRU(4, 5)), drawn(2, 3, 4)),
    "prelu": (Own(lambda m, x: m.p(m.n(x)), n=nn.Linear(4, 5), p=nn.PReLU(5)), drawn(2, 4)),
    "sum": (Own(lambda m, x: m.n(x).sum(-1), n=nn.Linear(4, 5)), drawn(2, 4)),
    "reshape first": (Own(lambda m, x: m.n(x.reshape(2, 4)), n=nn.Linear(4, 5)), drawn(2, 2, 2)),
    "transpose first": (Own(lambda m, x: m.n(x.permute(0, 2, 1).flatten(1)), n=nn.Linear(4, 5)), drawn(2, 2, 2)),
    "slices first": (Own(lambda m, x: m.n(x[:, :2]) + m.n(x[:, 2:]), n=nn.Linear(2, 5)), drawn(2, 4)),
}


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.thin
def test_every_layer_may_stand_at_the_ends(tmp_path, case):
    model, x = WHOLE[case]
    model, path = quantized(model, x), tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, is_input_quant=True, verify=True)
    assert ends(path) == [[INTEGER], [INTEGER]]
    assert not {"Quant", "Dequant"} & {n.op_type for n in onnx.load(path).graph.node}


def test_indices_stay_indices_and_both_outputs_are_integers(tmp_path):
    layers = {"table": nn.Embedding(7, 4), "lstm": nn.LSTM(4, 5), "norm": nn.LayerNorm(5), "gru": nn.GRU(4, 5)}
    inputs, path = (torch.arange(6).reshape(2, 3), drawn(2, 3, 4)), tmp_path / "net.onnx"
    linger.onnx.export(quantized(Own(talk, **layers), *inputs), inputs, path, is_input_quant=True, verify=True)
    assert ends(path) == [[onnx.TensorProto.INT64, INTEGER], [INTEGER, INTEGER]]


def as_documented(model, inputs, path):
    """The call of the documents for a file without Dequants."""
    kind = torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK
    options = {"is_update_dequant": False, "is_scoped_info": False, "debug_dump": False}
    with pytest.warns(UserWarning, match="is_update_dequant=False leaves out"):
        linger.onnx.export_debug(model, inputs, path, opset_version=12, operator_export_type=kind, **options)


def several(m, words, x):
    spoken = m.norm(m.lstm(m.table(words))[0])
    return torch.sin(spoken), torch.cat([spoken, spoken * 0.5, m.gru(x)[0]], -1)


UNDONE = {
    "images": small_net,
    "a float function": lambda: (quantized(Traced(), drawn(3, 6)), drawn(3, 6)),
    "words": lambda: (
        quantized(
            Own(several, table=nn.Embedding(7, 4), lstm=nn.LSTM(4, 5), norm=nn.LayerNorm(5), gru=nn.GRU(4, 5)),
            torch.arange(6).reshape(2, 3),
            drawn(2, 3, 4),
        ),
        (torch.arange(6).reshape(2, 3), drawn(2, 3, 4)),
    ),
}


@pytest.mark.parametrize("case", UNDONE)
def test_file_without_dequants_runs_as_the_simulation_after_its_repair(tmp_path, case):
    model, inputs = UNDONE[case]()
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    as_documented(model, inputs, tmp_path / "export_debug.onnx")
    result = linger.fix_dequant(tmp_path / "export_debug.onnx", False)
    assert result.ok
    assert set(ends(result.path)[1]) == {FLOAT}
    session = ort.InferenceSession(result.path, providers=["CPUExecutionProvider"])
    feeds = dict(zip((each.name for each in session.get_inputs()), map(torch.Tensor.numpy, inputs), strict=True))
    with torch.no_grad():
        expected = model(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
        plain = theirs.dequantize() if hasattr(theirs, "dequantize") else theirs
        # sines are computed by two libraries, which differ in the last bit
        np.testing.assert_allclose(mine, plain.numpy(), rtol=2e-7 if case == "words" else 0, atol=0)


@pytest.mark.parametrize(
    ("form", "is_input_quant"),
    [
        pytest.param("dialect", False, id="dialect"),
        pytest.param("dialect", True, id="integer ends"),
        pytest.param("bare", False, id="bare"),
    ],
)
def test_repair_leaves_a_sound_export_alone(tmp_path, form, is_input_quant):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form=form, is_input_quant=is_input_quant)
    repaired = linger.fix_dequant(tmp_path / "net.onnx", False)
    assert repaired.changes == ()
    assert repaired.path.read_bytes() == (tmp_path / "net.onnx").read_bytes()


def behind_a_batch_norm(m, x):
    return m.fc((torch.relu(m.norm(m.conv(x))) + 0.5).flatten(1))


SOUND = {
    **UNDONE,
    "a batch norm that is not fused": lambda: (
        quantized(
            Own(behind_a_batch_norm, conv=nn.Conv2d(2, 3, 1), norm=nn.BatchNorm2d(3), fc=nn.Linear(12, 4)),
            drawn(2, 2, 2, 2),
        ),
        drawn(2, 2, 2, 2),
    ),
    "both directions": lambda: (quantized(nn.LSTM(4, 5, bidirectional=True), drawn(2, 3, 4)), drawn(2, 3, 4)),
}


@pytest.mark.parametrize("form", ["dialect", "bare", "standard", "qdq"])
@pytest.mark.parametrize("case", SOUND)
def test_repair_finds_nothing_to_do_in_a_sound_export(tmp_path, case, form):
    """Every tensor says its type, also behind ops whose bodies onnx cannot follow, and no body has a step without use."""
    model, inputs = SOUND[case]()
    linger.onnx.export(model, inputs, tmp_path / "net.onnx", opset_version=13, form=form)
    assert [f"{change.rule}: {change}" for change in linger.fix_dequant(tmp_path / "net.onnx").changes] == []


def test_repair_of_a_bare_file_leaves_it_bare(tmp_path):
    model, x = small_net()
    with pytest.warns(UserWarning, match="is_update_dequant=False leaves out"):
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare", is_update_dequant=False)
    result = linger.fix_dequant(tmp_path / "net.onnx")
    assert not result.model.functions  # a device packer takes no others
    assert ends(result.path)[1] == [FLOAT]


FLOAT_INPUTS = {
    "a float function": (lambda m, x: m.a(torch.sin(x)), r"Sin\) reads its real values"),
    "a float function beside": (lambda m, x: m.a(x) + m.b(torch.sin(x)), r"Sin\) reads its real values"),
    "two scales": (lambda m, x: m.a(x) + m.b(x), "quantized with the scales"),
    "an output": (lambda m, x: (m.a(x.reshape(2, 4)), x.reshape(2, 4)), "an output as well|reads its real values"),
}


@pytest.mark.parametrize("case", FLOAT_INPUTS)
def test_input_that_stays_float_is_told_with_the_reason(tmp_path, case):
    run, reason = FLOAT_INPUTS[case]
    x, path = drawn(2, 4), tmp_path / "net.onnx"
    model = quantized(Own(run, a=nn.Linear(4, 5), b=nn.Linear(4, 5)), x)
    if case == "two scales":
        model.b.running_x.mul_(8)
    with pytest.warns(UserWarning, match=rf"is_input_quant leaves an input float: '.*', as .*({reason})") as caught:
        linger.onnx.export(model, (x,), path, is_input_quant=True)
    assert len(caught) == 1
    assert ends(path)[0] == [FLOAT]
