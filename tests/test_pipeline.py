"""linger.verify: the proof itself must be able to fail."""

import copy
import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.models import SmallNet, Traced, quantized, settle, small_net


@pytest.fixture
def exported(tmp_path):
    model, x = small_net()
    path = tmp_path / "net.onnx"
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    linger.onnx.export(model, (x,), path, input_names=["x"], output_names=["y"], dynamic_axes=axes)
    return model, x, path


def test_every_integer_of_every_batch_is_compared(exported):
    model, x, path = exported
    result = linger.verify(model, path, [x, x * 3, x[:1]])
    assert result.ok
    assert result.batches == 3
    assert result.differing == 0
    names = [r.name for r in result.rows]
    assert {
        "stem.Quant",
        "stem.Conv2dInt",
        "block.iqAdd",
        "relu6.Clip",
        "iqCat",
        "gap.AvgPool2dInt",
        "fc.LinearInt",
    } <= set(names)
    assert result.integers == sum(r.values for r in result.rows) > 20_000
    assert "0 of" in result.summary()


def damage(path, change):
    proto = onnx.load(path)
    change(proto)
    onnx.save(proto, path)


def weight_off_by_one(proto):
    tensor = next(i for i in proto.graph.initializer if i.name == "block.conv2.weight")
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[0, 0, 0, 0] += 1 if array[0, 0, 0, 0] < 127 else -1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def shift_off_by_one(proto):
    node = next(n for n in proto.graph.node if n.name == "block.conv2.Conv2dInt")
    attribute = next(a for a in node.attribute if a.name == "scale_o")
    attribute.f *= 2


def bias_dropped(proto):
    tensor = next(i for i in proto.graph.initializer if i.name == "block.conv2.bias")
    array = np.zeros_like(onnx.numpy_helper.to_array(tensor))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


@pytest.mark.parametrize("change", [weight_off_by_one, shift_off_by_one, bias_dropped])
def test_a_wrong_file_is_caught_at_its_first_wrong_layer(exported, change):
    model, x, path = exported
    damage(path, change)
    result = linger.verify(model, path, (x,))
    assert not result.ok
    assert result.differing > 0
    assert result.first.tensor == "block.conv2.Conv2dInt"
    assert result.first.expected_by == "torch"
    assert len(result.first.index) == 4
    assert result.first.expected != result.first.found
    assert "block.conv2.Conv2dInt" in result.summary()


def test_function_body_that_rounds_differently_is_caught(exported):
    model, x, path = exported

    def round_to_even(proto):
        waiting = [node for function in proto.functions if function.name == "iqAdd" for node in function.node]
        for node in waiting:  # the list grows while it is walked
            waiting += [inner for attribute in node.attribute for inner in attribute.g.node]
            if node.op_type == "Floor":
                node.op_type = "Round"

    damage(path, round_to_even)
    result = linger.verify(model, path, (x,))
    assert not result.ok
    assert (result.first.tensor, result.first.found_by) == ("block.iqAdd", "ONNX Runtime")


def test_tensor_missing_from_the_file_is_reported(exported):
    model, x, path = exported

    def rename(proto):
        for node in proto.graph.node:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == "stem.Conv2dInt":
                        names[i] = "other"

    damage(path, rename)
    result = linger.verify(model, path, (x,))
    assert not result.ok
    assert set(result.missing) == {"stem.Conv2dInt", "other"}


@pytest.mark.filterwarnings("ignore:calibration. .* saw nothing but zeros")
def test_tensor_of_few_values_is_listed(tmp_path):
    model = quantized(SmallNet(), torch.zeros(2, 1, 8, 8))
    linger.onnx.export(model, (torch.zeros(2, 1, 8, 8),), tmp_path / "net.onnx")
    result = linger.verify(model, tmp_path / "net.onnx", (torch.zeros(2, 1, 8, 8),))
    assert result.ok
    assert "stem.Quant" in [r.name for r in result.narrow]


def test_float_island_is_reported_but_not_judged(tmp_path):
    class EndsInFloat(Traced):
        def forward(self, x):
            return torch.sin(self.first(x))

    x = torch.randn(5, 6)
    model = quantized(EndsInFloat(), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    result = linger.verify(model, tmp_path / "net.onnx", (x,))
    assert result.ok
    assert 0 <= result.float_error < 1e-6


def test_float_model_and_wrong_inputs_are_refused(exported):
    model, x, path = exported
    with pytest.raises(UsageError, match="not quantized"):
        linger.verify(SmallNet(), path, (x,))
    with pytest.raises(UsageError, match="does not take 2 positional arguments"):
        linger.verify(model, path, (x, x))


def test_nothing_compared_is_not_a_proof(exported):
    model, _, path = exported
    assert not linger.verify(model, path, []).ok


def test_verification_leaves_the_model_as_it_was(exported):
    model, x, path = exported
    model.train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    linger.verify(model, path, (x,))
    assert model.training
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())


def test_recordings_of_a_model_prove_the_file_later(exported, tmp_path):
    model, x, path = exported
    files = linger.save_recordings(linger.record(model, [x, x * 3]), tmp_path / "recorded")
    assert [f.name for f in files] == ["batch_0000.npz", "batch_0001.npz"]
    result = linger.verify(tmp_path / "recorded", path)
    assert result.ok
    assert (result.batches, result.integers) == (2, linger.verify(model, path, [x, x * 3]).integers)
    damage(path, weight_off_by_one)
    found = linger.verify(tmp_path / "recorded", path)
    assert (found.ok, found.first.tensor, found.first.expected_by) == (False, "block.conv2.Conv2dInt", "recording")
    assert found.first.inputs_agree


def test_the_certificate_of_a_model_holds_without_it(exported, tmp_path):
    model, x, path = exported
    assert linger.verify(model, path, [x], levels=("basic", "all"), certificate=tmp_path / "c.json").ok
    content = json.loads((tmp_path / "c.json").read_text())
    assert (content["expected_by"], content["versions"]["torch"]) == ("torch", torch.__version__)
    assert linger.check_certificate(tmp_path / "c.json").levels == ("basic", "all")


@pytest.mark.parametrize("opset", [12, 17])
def test_qdq_files_of_older_opsets_are_proved(tmp_path, opset):
    model, x = small_net()
    path = tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, form="qdq", opset_version=opset)
    result = linger.verify(None, path, x.numpy(), levels=("disable", "all"))
    assert result.ok, result.summary()
    assert result.integers > 1000


def test_a_model_without_inputs_is_refused(exported):
    model, _, path = exported
    with pytest.raises(UsageError, match="a model needs inputs to run on"):
        linger.verify(model, path)


# -- images ---------------------------------------------------------------------------------------------------


def sick_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        model[2].weight[0, 0] = 100.0
    return model


def test_plot_tensors_draws_the_most_worrying_first(tmp_path):
    files = linger.plot_tensors(sick_model(), tmp_path / "new" / "folder", torch.randn(8, 16), count=3, suffix=".svg")
    assert next(f.name for f in files) == "00_weight_2.weight.svg"
    assert len(files) == 3
    assert all(f.read_text().lstrip().startswith("<?xml") for f in files)


def test_plot_tensors_of_a_checkpoint(tmp_path):
    torch.save(sick_model().state_dict(), tmp_path / "w.pt")
    assert len(linger.plot_tensors(tmp_path / "w.pt", tmp_path, count=1)) == 1


def test_plot_tensors_refuses_before_it_writes(tmp_path):
    with pytest.raises(UsageError, match=r"\.png, \.svg"):
        linger.plot_tensors(sick_model(), tmp_path / "new", suffix=".bmp")
    with pytest.raises(UsageError, match="no such file"):
        linger.plot_tensors(tmp_path / "absent.pt", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_plot_layers_of_a_ranking_and_of_a_comparison(tmp_path):
    model, x = sick_model().eval(), torch.randn(32, 16)
    ranking = linger.sensitivity(model, x)
    assert linger.plot_layers(ranking, tmp_path / "ranking.png").read_bytes().startswith(b"\x89PNG")
    integers = linger.init(copy.deepcopy(model)).eval()
    with linger.calibration():
        integers(x)
    comparison = linger.compare_layers(model, integers, x)
    text = linger.plot_layers(comparison, tmp_path / "comparison.svg").read_text()
    assert all(f"<!-- {row.name} -->" in text for row in comparison.rows)


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        (nn.Sequential(nn.Conv3d(1, 1, 1), nn.ReLU()), {}, "it holds Conv3d, ReLU"),
        (nn.Linear(2, 2), {"disable_module": [nn.Linear]}, "no layer of Linear was replaced"),
        (nn.Sequential(nn.Linear(2, 2)), {"quant_modules": [nn.LSTM]}, "Look at quant_modules"),
    ],
    ids=["no such op", "kept float", "another type"],
)
def test_an_init_that_replaces_nothing_says_so(model, options, named):
    with pytest.warns(UserWarning, match=named) as said:
        linger.init(model, **options)
    assert said[0].filename == __file__


class OnlyFunctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return x @ self.table


class OnlyTensors(nn.Module):
    def forward(self, x):
        return torch.relu(linger.quant_tensor(self, x))


@pytest.mark.parametrize("make", [OnlyFunctions, OnlyTensors])
def test_functions_that_become_integers_are_something(make):
    linger.init(make())  # a warning would be an error


@pytest.mark.parametrize("opset", [11, 13, 14])
def test_float_batch_norm_between_quantized_layers_is_proved(tmp_path, opset):
    torch.manual_seed(1)
    x = torch.randn(4, 2, 8, 8)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    model = linger.init(settle(net).eval(), disable_module=[nn.BatchNorm2d])
    with linger.calibration():
        model(x)
    linger.onnx.export(model, (x,), tmp_path / "m.onnx", opset_version=opset, do_constant_folding=False)
    assert "BatchNormalization" in [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node]
    proof = linger.verify(model, tmp_path / "m.onnx", x)
    # a float op may flip a value between two integers; onnx's own reference differed in a quarter of all
    assert proof.ok or proof.flips, proof.summary()
