"""The Dumper on whole models: rows against the plain definition, files against the exported model, hooks gone at the end."""

import copy
import gc
import math
import warnings
import weakref

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import linger
from linger import Dumper, init, record
from linger.errors import UsageError
from tests.support.diagnosis import LONG_HEADER
from tests.support.models import Block, SmallNet, settle, small_net
from tests.support.quantization import runtime_of
from tests.support.resnet50 import STAGES, resnet50
from tests.support.wired import Wired, image, quantize


def hooks_on(model):
    """Every hook on every module, by identity."""
    tables = ("_forward_hooks", "_forward_pre_hooks")
    return [(name, id(hook)) for m in model.modules() for name in tables for hook in getattr(m, name).values()]


def naive(*outputs):
    """Mean, maximum and 0.99 order statistic as the documents define them, in float64."""
    values = np.sort(np.abs(np.concatenate([o.detach().double().numpy().reshape(-1) for o in outputs])))
    return values.mean(), values[-1], values[int(len(values) * 0.99) - 1]


def assert_row(row, *outputs, above=0.0):
    mean, maximum, dynamic = naive(*outputs)
    # the mean in float64 is good to 2^-53·n, and is rounded once to float32: half a unit in the last place
    assert row.mean == pytest.approx(mean, rel=2.0**-24 + 2.0**-30)
    assert row.max == maximum
    assert dynamic <= row.dynamic <= dynamic * (1 + above)
    assert row.count == sum(o.numel() for o in outputs)


class Recurrent(nn.Module):
    def __init__(self, *, is_packed):
        super().__init__()
        self.lstm, self.gru, self.is_packed = nn.LSTM(3, 4), nn.GRU(4, 5), is_packed

    def forward(self, x):
        x = pack_padded_sequence(x, torch.tensor([4, 2])) if self.is_packed else x
        hidden, state = self.lstm(x)
        return hidden, state, self.gru(hidden)[0]


class Returning(nn.Module):
    """A layer that returns whatever the test wants."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


# -- rows -------------------------------------------------------------------------------------------------------


def test_rows_of_a_block_with_a_reused_relu():
    torch.manual_seed(3)
    block, x = settle(Block(4)).eval(), torch.randn(5, 4, 6, 6)
    with torch.no_grad():
        conv1 = block.conv1(x)
        bn1 = block.bn1(conv1)
        relu = F.relu(bn1)
        conv2 = block.conv2(relu)
        bn2 = block.bn2(conv2)
        last = F.relu(bn2 + x)
    with Dumper() as dumper:
        dumper.analyse_layer_output(block)
        result = block(x)
    assert torch.equal(result, last)
    rows = dumper.result.rows
    names = ["conv1", "bn1", "relu", "conv2", "bn2", "relu"]
    assert [row.name for row in rows] == [f"root.{name}" for name in names]
    assert [row.call for row in rows] == [0, 0, 0, 0, 0, 1]
    for row, expected in zip(rows, (conv1, bn1, relu, conv2, bn2, last), strict=True):
        assert_row(row, expected)
        assert (row.shape, row.dtype) == ("5×4×6×6", "float32")


def test_further_passes_widen_the_same_rows():
    model = nn.Sequential(nn.Linear(8, 20), nn.ReLU()).eval()
    batches = [torch.randn(size, 8) * spread for size, spread in ((5, 1.0), (300, 0.1), (41, 4.0))]
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        for batch in batches:
            model(batch)
    first, second = dumper.result.rows
    assert_row(first, *(model[0](b) for b in batches), above=2.0**-8)
    assert_row(second, *(model(b) for b in batches), above=2.0**-8)


def test_result_is_the_documented_analysis(tmp_path):
    with Dumper() as dumper:
        model = nn.Linear(4, 2)
        dumper.analyse_layer_output(model)
        model(torch.ones(1, 4))
        found = dumper.save_out_analyse_log(save_log_path=tmp_path / "outputs.log")
    assert (found.header, found.title) == (LONG_HEADER, "layer outputs")
    assert [row.name for row in found.rows] == ["root"]
    assert (tmp_path / "outputs.log").read_text() == found.to_log()
    assert dumper.save_out_analyse_log(None) == found


def test_log_has_its_documented_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Dumper() as dumper:
        model = nn.ReLU()
        dumper.analyse_layer_output(model)
        model(torch.tensor([1e6] + [1.0] * 200))
        dumper.save_out_analyse_log()
    text = (tmp_path / "Analyse_layer_output.log").read_text()
    assert "Multiple(Max/Mean)" in text
    assert "!!!!!!!!!!!!!!" in text.splitlines()[4]


def test_not_a_number_is_counted_and_said(tmp_path):
    model = nn.Sequential(Returning(lambda x: x / x), nn.Identity())
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        model(torch.tensor([0.0, 1.0, 2.0]))
        model(torch.tensor([0.0, 0.0, math.inf]))
        dumper.save_out_analyse_log(tmp_path / "log")
    row = dumper.result.rows[0]
    assert (row.count, row.max, row.is_abnormal) == (2, 1.0, True)
    assert "root.0: 4 NaN, left out of the statistics" in dumper.notes
    assert "root.1: 4 NaN, left out of the statistics" in (tmp_path / "log").read_text()


def test_layers_without_a_row_are_in_the_notes_and_in_the_log(tmp_path):
    model = nn.Sequential(nn.ReLU(), Returning(lambda x: {"text": "x", "none": None}))
    model.unused = nn.Tanh()
    model.forward = lambda x: (model[0](x), model[1](x))
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        model(torch.ones(3))
        dumper.save_out_analyse_log(tmp_path / "log")
    notes = ("root.1: returned no tensor, so there is no row", "root.unused: never called")
    assert [row.name for row in dumper.result.rows] == ["root.0"]
    assert dumper.notes == notes
    assert (tmp_path / "log").read_text().endswith("".join(f"{note}\n" for note in notes))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda x: (x, None, [x[0] * 9], x.argmax(0)), lambda x: (x, x[0] * 9), id="tuple"),
        pytest.param(lambda x: {"a": x, "b": {"c": x + 1}}, lambda x: (x, x + 1), id="dict"),
        pytest.param(lambda x: (x > 0, x.argmax(0)), lambda x: ((x > 0).int(), x.argmax(0)), id="integers"),
        pytest.param(lambda x: x.half(), lambda x: (x.half(),), id="half"),
        pytest.param(lambda x: torch.complex(x, x), lambda x: (torch.complex(x, x).abs(),), id="complex"),
        pytest.param(lambda x: x.relu().to_sparse(), lambda x: (x.relu(),), id="sparse"),
        pytest.param(lambda x: x[:0], None, id="empty"),
    ],
)
def test_any_result_makes_one_row(make, expected):
    layer, x = Returning(make), torch.randn(6, 7)
    with Dumper() as dumper:
        dumper.analyse_layer_output(layer)
        layer(x)
    (row,) = dumper.result.rows
    if expected is None:
        assert (row.count, row.note) == (0, "empty")
    else:
        assert_row(row, *expected(x))


@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
def test_of_recurrent_layers_the_sequence_is_measured(is_packed):
    model, x = Recurrent(is_packed=is_packed), torch.randn(4, 2, 3)
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        hidden, _, last = model(x)
    lstm, gru = dumper.result.rows
    assert_row(lstm, hidden.data if is_packed else hidden)
    assert_row(gru, last.data if is_packed else last)


def test_only_layers_that_match_are_watched():
    model = SmallNet()
    with Dumper() as dumper:
        dumper.analyse_layer_output(model, match_pattern=r"root\.block\.(conv|bn)")
        model(torch.randn(2, 1, 8, 8))
    assert [row.name for row in dumper.result.rows] == [f"root.block.{n}" for n in ("conv1", "bn1", "conv2", "bn2")]


@pytest.mark.parametrize("mode", ["no_grad", "inference", "autograd", "autocast", "training"])
def test_outputs_and_gradients_are_as_without_it(mode):
    torch.manual_seed(5)
    model, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True)), torch.randn(7, 6)
    model.train(mode == "training")

    def run(model):
        if mode == "no_grad":
            with torch.no_grad():
                return model(x)
        if mode == "inference":
            with torch.inference_mode():
                return model(x)
        if mode == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(x)
        return model(x)

    expected = run(copy.deepcopy(model))
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        found = run(model)
    assert torch.equal(found, expected)
    assert (found.requires_grad, found.is_inference()) == (expected.requires_grad, expected.is_inference())
    if found.requires_grad:
        found.sum().backward()
        assert model[0].weight.grad is not None
    assert len(dumper.result.rows) == 3
    if mode == "autocast":
        assert dumper.result.rows[0].dtype == "bfloat16"


class Token:
    """Something that lives as long as the graph that holds it."""


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, token):
        ctx.token = token
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient, None


def test_no_graph_is_kept():
    tokens = [Token()]
    alive = weakref.ref(tokens[0])
    model = nn.Sequential(nn.Linear(3, 3), Returning(lambda x: Doubled.apply(x, tokens.pop())), nn.ReLU())
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        result = model(torch.randn(4, 3))
        gc.collect()
        assert alive() is not None
        del result
        gc.collect()
        assert alive() is None


# -- the documented snippet -------------------------------------------------------------------------------------


def resnet_names():
    """The layers of ResNet-50 in the order of their calls."""
    yield from ("conv1", "bn1", "relu", "maxpool")
    for stage, (_, blocks, _) in enumerate(STAGES, start=1):
        for block in range(blocks):
            for part in (1, 2):
                yield from (f"layer{stage}.{block}.{kind}" for kind in (f"conv{part}", f"bn{part}", "relu"))
            yield from (f"layer{stage}.{block}.{kind}" for kind in ("conv3", "bn3"))
            if block == 0:
                yield from (f"layer{stage}.0.downsample.{i}" for i in (0, 1))
            yield f"layer{stage}.{block}.relu"
    yield from ("avgpool", "fc")


def test_the_documented_snippet_on_resnet50(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = resnet50()
    checkpoint = resnet50().state_dict()
    model.load_state_dict(checkpoint)
    typical_input = torch.randn([1, 3, 64, 64])
    outputs = []
    model.layer2[0].relu.register_forward_hook(lambda m, args, output: outputs.append(output.detach().clone()))

    with linger.Dumper() as dumper:
        dumper.analyse_layer_output(model, match_pattern="root.")
        model(typical_input)
        dumper.save_out_analyse_log(save_log_path="Analyse_layer_output.log")

    names = [f"root.{name}" for name in resnet_names()]
    log = (tmp_path / "Analyse_layer_output.log").read_text().splitlines()
    written = [line.split("|")[1].strip() for line in log if line.startswith("| ") and "Layer_name" not in line]
    assert [name for name in written if "!" not in name] == names
    rows = dumper.result.rows
    assert [row.name for row in rows] == names
    found = [row for row in rows if row.name == "root.layer2.0.relu"]
    assert [row.call for row in found] == [0, 1, 2]
    for row, output in zip(found, outputs, strict=True):
        assert_row(row, output)


# -- quantized models -------------------------------------------------------------------------------------------


def test_rows_of_a_quantized_model_are_its_real_values():
    model, x = small_net()
    (made,) = record(model, (x,))
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        model(x)
    rows = {(row.name, row.call): row for row in dumper.result.rows}
    assert not any("_linger" in name or "bn" in name for name, _ in rows)
    scale = model.fc.read("scale_o")
    assert_row(rows["root.fc", 0], torch.from_numpy(made.integers["fc.LinearInt"]) / scale)
    pool = torch.from_numpy(made.integers["pool.MaxPool"]) / model.block.get_submodule(
        "_linger_round_tensor_iqadd__default_index_0"
    ).read("scale_o")
    assert_row(rows["root.pool", 0], pool)
    assert rows["root.avg", 1].count == rows["root.avg", 0].count


def test_rows_do_not_depend_on_who_else_is_watching(tmp_path):
    """A convolution in front of a ReLU computes both at once, unless somebody wants to see them apart."""
    model, x = small_net()
    results = []
    for is_dumped in (False, True):
        with Dumper() as dumper:
            dumper.analyse_layer_output(model)
            if is_dumped:
                dumper.enable_dump_quanted(model, tmp_path)
            model(x)
            results.append(dumper.result)
    assert results[0] == results[1]


def test_fused_float_layers_are_one_row():
    torch.manual_seed(2)
    model, x = settle(SmallNet()).eval(), torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        expected = model.bn(model.stem(x))
    linger.trace_layers(model, x)
    with torch.no_grad():
        found = model.stem(x)
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        model(x)
    row = dumper.result.rows[0]
    assert row.name == "root.stem"
    assert_row(row, found)
    assert row.max == pytest.approx(float(expected.abs().max()), rel=1e-5)  # folding rounds differently


def test_calibration_and_training_inside_the_block():
    model, x = init(SmallNet()), torch.randn(4, 1, 8, 8)
    unwatched = copy.deepcopy(model)
    with linger.calibration():
        unwatched.eval()(x)
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        with linger.calibration():
            model.eval()(x)
        assert linger.coverage(model) == linger.coverage(unwatched)  # the statistics are no float ops of the model
        model.train()(x).sum().backward()
    assert model.fc.weight.grad is not None
    assert dumper.result.rows[-1].count == 2 * 40


def test_export_and_verify_inside_the_block_are_no_passes(tmp_path):
    model, x = small_net()
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        dumper.enable_dump_quanted(model, tmp_path / "dump")
        model(x[:2])
        before, written = dumper.result, (tmp_path / "dump" / "root.fc.LinearInt.npz").read_bytes()
        linger.onnx.export(model, (x,), tmp_path / "net.onnx")
        assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok
        assert dumper.result == before
        assert (tmp_path / "dump" / "root.fc.LinearInt.npz").read_bytes() == written


def test_float_models_can_be_exported_inside_the_block(tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3)
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        dumper.enable_dump_model(model, tmp_path / "dump")
        linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node] == ["Gemm", "Relu"]


# -- the block --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_failing", [False, True], ids=["normal", "exception"])
def test_hooks_are_gone_after_the_block(tmp_path, is_failing):
    model, x = small_net()
    before = hooks_on(model)
    try:
        with Dumper() as dumper:
            dumper.analyse_layer_output(model)
            dumper.enable_dump_model(model, tmp_path)
            dumper.enable_dump_quanted(model, tmp_path)
            model(x)
            assert hooks_on(model) != before
            if is_failing:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert hooks_on(model) == before
    assert runtime_of(model).observers == []
    rows = dumper.result.rows
    model(x)
    assert dumper.result.rows == rows


def test_dumpers_do_not_share_rows():
    model, x = nn.ReLU(), torch.ones(4)
    with Dumper() as outer:
        outer.analyse_layer_output(model)
        model(x)
        with Dumper() as inner:
            inner.analyse_layer_output(model)
            model(x)
        model(x)
    assert outer.result.rows[0].count == 12
    assert inner.result.rows[0].count == 4


def test_several_models_have_rows_of_their_own():
    first, second = nn.ReLU(), nn.ReLU()
    with Dumper() as dumper:
        dumper.analyse_layer_output(first)
        dumper.analyse_layer_output(second)
        second(torch.ones(2))
        first(torch.ones(3))
        first(torch.ones(3))
    assert [(row.name, row.count) for row in dumper.result.rows] == [("root", 2), ("root", 6)]


def test_a_copy_of_a_watched_model_is_not_watched(tmp_path):
    model, x = small_net()
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        dumper.enable_dump_quanted(model, tmp_path)
        other = copy.deepcopy(model)
        other(x)
        assert list(tmp_path.iterdir()) == []
        assert runtime_of(other).observers == []
        with pytest.raises(UsageError, match="no analyzed layer has run"):
            dumper.result  # noqa: B018
    assert torch.equal(other(x).integers(), model(x).integers())


def test_a_watched_model_can_be_freed_after_the_block():
    model = nn.Sequential(nn.Linear(2, 2))
    with Dumper() as dumper:
        dumper.analyse_layer_output(model)
        model(torch.ones(1, 2))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(dumper.result.rows) == 1


# -- wrong use --------------------------------------------------------------------------------------------------

METHODS = ("analyse_layer_output", "enable_dump_model", "enable_dump_quanted")


@pytest.fixture
def net():
    return quantize(Wired(lambda m, x: m.relu(m.conv(x)) + 1.0), image())


@pytest.mark.parametrize("method", METHODS)
def test_outside_the_block_nothing_is_watched(tmp_path, monkeypatch, net, method):
    monkeypatch.chdir(tmp_path)
    dumper = Dumper()
    with pytest.raises(UsageError, match=f"{method}: this Dumper cannot watch a model, it is outside a `with` block"):
        getattr(dumper, method)(net)
    with dumper:
        pass
    with pytest.raises(UsageError, match=f"{method}: this Dumper cannot watch a model, its `with` block has ended"):
        getattr(dumper, method)(net)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_the_same_model_twice_is_refused(tmp_path, monkeypatch, net, method):
    monkeypatch.chdir(tmp_path)
    with Dumper() as dumper:
        getattr(dumper, method)(net)
        before = hooks_on(net)
        with pytest.raises(UsageError, match=f"{method}: this Dumper watches the model already"):
            getattr(dumper, method)(net)
        assert hooks_on(net) == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[", "is no regular expression"),
        ("conv", r"matches none of the 7 layers, which are called root\.conv, root\.bn"),
    ],
    ids=["invalid", "no match"],
)
def test_wrong_patterns_are_refused_before_anything_is_done(tmp_path, monkeypatch, net, method, pattern, message):
    monkeypatch.chdir(tmp_path)
    before = hooks_on(net)
    with Dumper() as dumper:
        with pytest.raises(UsageError, match=message):
            getattr(dumper, method)(net, match_pattern=pattern)
        assert hooks_on(net) == before
        assert runtime_of(net).observers == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_model_is_refused(method):
    with Dumper() as dumper, pytest.raises(UsageError, match=f"{method}: dict is no model"):
        getattr(dumper, method)({})


@pytest.mark.parametrize("method", METHODS)
def test_scripted_models_are_refused(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch announces the end of its scripts
        model = torch.jit.script(nn.ReLU())
    with Dumper() as dumper, pytest.raises(UsageError, match=f"{method}: a scripted model takes no hooks"):
        getattr(dumper, method)(model)


def test_a_dumper_is_used_once():
    dumper = Dumper()
    with dumper, pytest.raises(UsageError, match="used for one `with` block"):
        dumper.__enter__()
    with pytest.raises(UsageError, match="Make a new one"):
        dumper.__enter__()


def test_without_a_pass_there_is_no_result(tmp_path):
    with Dumper() as dumper:
        with pytest.raises(UsageError, match="no model is analyzed"):
            dumper.save_out_analyse_log(tmp_path / "log")
        dumper.analyse_layer_output(nn.ReLU())
        with pytest.raises(UsageError, match="Run the model on a typical input inside the `with` block first"):
            dumper.save_out_analyse_log(tmp_path / "log")
    with pytest.raises(UsageError, match="Run the model"):
        dumper.notes  # noqa: B018
    assert list(tmp_path.iterdir()) == []
