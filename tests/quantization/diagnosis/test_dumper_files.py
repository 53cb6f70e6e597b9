"""The files that a Dumper writes: those of a quantized model against the exported file, those of any model against torch."""

import logging

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import Dumper, QTensor, record
from linger.errors import UsageError
from tests.support.diagnosis import Reference
from tests.support.models import Block, SmallNet, quantized, settle, small_net
from tests.support.quantization import runtime_of
from tests.support.wired import Wired, image, quantize


class Returning(nn.Module):
    """A layer that returns whatever the test wants."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


# -- files of a quantized model ---------------------------------------------------------------------------------


def load(folder, name):
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


def dump(model, folder, *arguments, **options):
    with Dumper() as dumper:
        dumper.enable_dump_quanted(model, folder, **options)
        return model(*arguments)


def file_tensors(path, x):
    """Every tensor of an exported file by name, its initializers included, and its dialect nodes."""
    proto = onnx.load(path)
    found = Reference(path).intermediates({proto.graph.input[0].name: x.numpy()})
    found |= {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    return found, proto.graph.node


OPERANDS = {
    "Quant": ["input"],
    "Conv2dInt": ["q_input", "q_weights", "q_bias"],
    "LinearInt": ["q_input", "q_weights", "q_bias"],
    "iqAdd": ["q_input1", "q_input2"],
    "iqMul": ["q_input1", "q_input2"],
    "iqCat": ["q_input1", "q_input2"],
    "Clip": ["q_input", "q_low", "q_high"],
}
"""What the file's inputs are called in a dump; any other op has one."""


@pytest.mark.parametrize("is_gradient_on", [False, True], ids=["no_grad", "autograd"])
def test_dumped_integers_are_those_of_the_exported_file(tmp_path, is_gradient_on):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare", input_names=["x"])
    with torch.set_grad_enabled(is_gradient_on):
        result = dump(model, tmp_path / "dump", x)
    tensors, nodes = file_tensors(tmp_path / "net.onnx", x)
    compared = []
    for node in nodes:
        if node.name not in tensors or node.op_type in ("Constant", "Dequant", "Reshape", "Flatten"):
            continue
        stored = load(tmp_path / "dump", f"root.{node.name}")
        np.testing.assert_array_equal(stored["q_outputs"], tensors[node.output[0]], strict=True)
        keys = OPERANDS.get(node.op_type, ["q_input"])
        inputs = [tensors[name] for name in node.input if name]
        assert len(keys) == len(inputs)
        for key, expected in zip(keys, inputs, strict=True):
            np.testing.assert_array_equal(stored[key], expected.reshape(stored[key].shape))
            assert stored[key].dtype == expected.dtype
        for attribute in node.attribute:
            np.testing.assert_array_equal(stored[attribute.name], _value(attribute))
        compared.append(node.name)
    assert sorted(p.stem for p in (tmp_path / "dump").glob("*.npz")) == sorted(f"root.{name}" for name in compared)
    assert {n.op_type for n in nodes if n.name in compared} >= {*OPERANDS, "Relu", "MaxPool", "AvgPool2dInt"}
    assert "block.relu.Relu_1" in compared
    assert torch.equal(result.integers(), model(x).integers())


def _value(attribute):
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def test_real_values_are_the_integers_over_their_scale(tmp_path):
    model, x = small_net()
    dump(model, tmp_path, x)
    for path in tmp_path.glob("*.npz"):
        stored = load(tmp_path, path.stem)
        np.testing.assert_array_equal(stored["outputs"] * stored["scale_o"], stored["q_outputs"])
        if "q_input" in stored:
            np.testing.assert_array_equal(stored["input"] * stored["scale_x"], stored["q_input"])
        if "q_weights" in stored:
            np.testing.assert_array_equal(stored["weights"] * stored["scale_w"], stored["q_weights"])
            scale = stored["scale_x"] * stored["scale_w"]
            np.testing.assert_array_equal(stored["bias"] * scale, stored["q_bias"])
            assert stored["q_bias"].dtype == np.int32


def test_texts_hold_what_the_arrays_hold(tmp_path):
    model, x = small_net()
    dump(model, tmp_path, x)
    texts = [path for path in tmp_path.iterdir() if path.suffix != ".npz"]
    assert {path.name.partition("Conv2dInt.")[2] for path in texts if "stem.Conv2dInt" in path.name} == {
        *("input", "weights", "bias", "outputs"),
        *("q_input", "q_weights", "q_bias", "q_outputs"),
    }
    for path in texts:
        expected = load(tmp_path, path.name.rpartition(".")[0])[path.name.rpartition(".")[2]]
        assert path.read_text() == "".join(f"{number:.6f}\n" for number in expected.reshape(-1).tolist())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"root\.stem$", {"root.stem.Quant", "root.stem.Conv2dInt"}),
        (r"root\.block\.relu", {"root.block.relu.Relu", "root.block.relu.Relu_1"}),
        (r"root\.(iqMul|fc)", {"root.iqMul", "root.iqMul_1", "root.fc.LinearInt"}),
        (r".*\.Conv2dInt", {f"root.{name}.Conv2dInt" for name in ("stem", "block.conv1", "block.conv2")}),
    ],
)
def test_pattern_names_modules_or_ops(tmp_path, pattern, expected):
    model, x = small_net()
    dump(model, tmp_path, x, match_pattern=pattern)
    assert {path.stem for path in tmp_path.glob("*.npz")} == expected


def test_the_next_pass_writes_over_the_files(tmp_path):
    model, x = small_net()
    with Dumper() as dumper:
        dumper.enable_dump_quanted(model, tmp_path)
        model(x)
        files = sorted(tmp_path.iterdir())
        model(x[:1])
    assert sorted(tmp_path.iterdir()) == files
    assert load(tmp_path, "root.fc.LinearInt")["outputs"].shape == (1, 10)


def test_an_operand_that_is_written_over_is_dumped_as_it_was(tmp_path):
    model = quantize(Wired(lambda m, x: m.relu_in_place(m.conv(x))), image())
    result = dump(model, tmp_path, image())
    stored = load(tmp_path, "root.relu_in_place.Relu")
    assert stored["q_input"].min() < 0
    np.testing.assert_array_equal(stored["q_input"], load(tmp_path, "root.conv.Conv2dInt")["q_outputs"])
    np.testing.assert_array_equal(stored["q_outputs"], result.integers().numpy())


def test_ops_that_change_nothing_are_dumped_too(tmp_path):
    model = quantize(Wired(lambda m, x: F.relu(F.relu(m.conv(x)))), image())
    dump(model, tmp_path, image(), match_pattern="root.Relu")
    first, second = (load(tmp_path, f"root.{name}") for name in ("Relu", "Relu_1"))
    np.testing.assert_array_equal(second["q_input"], first["q_outputs"])
    np.testing.assert_array_equal(second["q_outputs"], first["q_outputs"])


def test_views_live_on_beside_an_in_place_relu(tmp_path):
    def forward(m, x):
        h = m.conv(x)
        part = h[:, :1]
        return F.relu_(h), part

    model = quantize(Wired(forward), image())
    whole, part = dump(model, tmp_path, image())
    assert torch.equal(whole[:, :1].integers(), part.integers())


def test_layers_without_bias_have_no_bias_file(tmp_path):
    model = quantize(Wired(lambda m, x: m.conv(x), bias=False), image())
    dump(model, tmp_path, image())
    assert not list(tmp_path.glob("*bias*"))
    assert "bias" not in load(tmp_path, "root.conv.Conv2dInt")


@pytest.mark.parametrize(("bits", "dtype"), [(4, np.int8), (16, np.int16), (32, np.int32)])
def test_other_widths_have_their_types(tmp_path, bits, dtype):
    model = Wired(lambda m, x: m.conv2(m.conv(x)))
    linger.quant_module(model.conv2, out_bits=bits, parameter_bits=4)
    model = quantize(model, image())
    result = dump(model, tmp_path, image())
    stored = load(tmp_path, "root.conv2.Conv2dInt")
    assert (stored["q_outputs"].dtype, stored["o_bits"], stored["parameter_bits"]) == (dtype, bits, 4)
    np.testing.assert_array_equal(stored["q_outputs"], result.integers().numpy())
    assert abs(stored["q_weights"]).max() <= 8


def test_two_dumpers_write_at_the_same_time(tmp_path):
    model, x = small_net()
    with Dumper() as first, Dumper() as second:
        first.enable_dump_quanted(model, tmp_path / "a")
        second.enable_dump_quanted(model, tmp_path / "b", match_pattern="root.fc")
        model(x)
    assert len(list((tmp_path / "b").glob("*.npz"))) == 1
    name = "root.fc.LinearInt.npz"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_recorder_and_observers_see_the_same_integers(tmp_path):
    model, x = small_net()
    (expected,) = record(model, (x,))
    seen = {}
    runtime_of(model).observers.append(
        lambda name, op, operands, attributes, result: seen.update({name: result.integers()})
    )
    (made,) = record(model, (x,))
    assert list(seen) == list(made.integers) == list(expected.integers)
    for name, integers in seen.items():
        np.testing.assert_array_equal(integers.numpy(), expected.integers[name])


@pytest.mark.parametrize("mode", ["training", "calibration"])
def test_passes_that_are_no_evaluation_are_not_written(tmp_path, caplog, mode):
    model, x = small_net()
    with Dumper() as dumper, caplog.at_level(logging.WARNING):
        dumper.enable_dump_quanted(model, tmp_path)
        for _ in range(2):
            if mode == "calibration":
                with linger.calibration():
                    model(x)
            else:
                model.train()(x)
        assert list(tmp_path.iterdir()) == []
        assert [r.message for r in caplog.records if "dump" in r.message] == [
            "enable_dump_quanted: passes in training mode or calibration are not written"
        ]
        model.eval()(x)
        assert (tmp_path / "root.fc.LinearInt.q_outputs").exists()


def test_model_in_training_mode_is_refused(tmp_path):
    model, _ = small_net()
    with Dumper() as dumper, pytest.raises(UsageError, match=r"in training mode.*Call model\.eval\(\) first"):
        dumper.enable_dump_quanted(model.train(), tmp_path / "dump")
    assert list(tmp_path.iterdir()) == []


def test_float_model_is_sent_to_the_other_method(tmp_path):
    with Dumper() as dumper, pytest.raises(UsageError, match=r"not quantized.*or use enable_dump_model"):
        dumper.enable_dump_quanted(SmallNet().eval(), tmp_path)


def test_part_of_a_quantized_model_is_told_apart(tmp_path):
    model, _ = small_net()
    for other in (model.block, nn.Sequential(model)):
        with Dumper() as dumper, pytest.raises(UsageError, match=r"Give the model that linger\.init returned"):
            dumper.enable_dump_quanted(other.eval(), tmp_path)


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    model, _ = small_net()
    (tmp_path / "dump").touch()
    for method in ("enable_dump_quanted", "enable_dump_model"):
        with Dumper() as dumper, pytest.raises(UsageError, match=f"{method}: the folder '.*dump' cannot be made"):
            getattr(dumper, method)(model, tmp_path / "dump")
    assert runtime_of(model).observers == []


def test_disk_trouble_in_a_pass_is_told_and_leaves_the_model_usable(tmp_path):
    model, x = small_net()
    with Dumper() as dumper:
        dumper.enable_dump_quanted(model, tmp_path)
        (tmp_path / "root.fc.LinearInt.npz").mkdir()
        with pytest.raises(UsageError, match="this is a folder"):
            model(x)
    assert isinstance(model(x), QTensor)


# -- files of any model -----------------------------------------------------------------------------------------


def dump_float(model, folder, *arguments, **options):
    with Dumper() as dumper:
        dumper.enable_dump_model(model.eval(), folder, **options)
        return model(*arguments)


def numbers(path):
    return np.array([float(line) for line in path.read_text().splitlines()])


def test_inputs_and_outputs_of_layers(tmp_path):
    torch.manual_seed(1)
    block, x = settle(Block(4)).eval(), torch.randn(2, 4, 5, 5)
    dump_float(block, tmp_path / "new" / "dump", x)
    folder = tmp_path / "new" / "dump"
    conv1 = block.conv1(x).detach().numpy()
    stored = load(folder, "root.conv1")
    np.testing.assert_array_equal(stored["input"], x.numpy())
    np.testing.assert_array_equal(stored["output"], conv1)
    # %f rounds to six digits behind the point
    np.testing.assert_allclose(numbers(folder / "root.conv1_input_float"), x.numpy().reshape(-1), rtol=0, atol=5.1e-7)
    np.testing.assert_allclose(numbers(folder / "root.conv1_output_float"), conv1.reshape(-1), rtol=0, atol=5.1e-7)
    stems = ("root.conv1", "root.bn1", "root.relu", "root.conv2", "root.bn2", "root.relu@1")
    names = {f"{stem}{suffix}" for stem in stems for suffix in ("_input_float", "_output_float", ".npz")}
    assert {path.name for path in folder.iterdir()} == names


def test_input_of_an_in_place_layer_is_what_it_received(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.randn(3, 4)
    dump_float(model, tmp_path, x)
    stored = load(tmp_path, "root.1")
    np.testing.assert_array_equal(stored["input"], model[0](x).detach().numpy())
    np.testing.assert_array_equal(stored["output"], np.maximum(stored["input"], 0))
    assert stored["input"].min() < 0


def test_several_inputs_and_outputs(tmp_path):
    class Pair(nn.Module):
        def forward(self, x, y, *, gain):
            return x * gain, (y, None)

    x, y, gain = torch.ones(2, 2), torch.arange(3), torch.tensor(2.0)
    with Dumper() as dumper:
        model = Pair().eval()
        dumper.enable_dump_model(model, tmp_path)
        model(x, y, gain=gain)
    stored = load(tmp_path, "root")
    assert {key: array.tolist() for key, array in stored.items()} == {
        "input_0": [[1.0, 1.0], [1.0, 1.0]],
        "input_1": [0, 1, 2],
        "input_2": 2.0,
        "output_0": [[2.0, 2.0], [2.0, 2.0]],
        "output_1": [0, 1, 2],
    }
    assert stored["input_1"].dtype == np.int64
    assert numbers(tmp_path / "root_input_float").tolist() == [1.0] * 4
    assert numbers(tmp_path / "root_output_float").tolist() == [2.0] * 4 + [0.0, 1.0, 2.0]


def test_text_of_a_recurrent_layer_is_its_sequence(tmp_path):
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    hidden, (h, c) = dump_float(model, tmp_path, x)
    np.testing.assert_allclose(
        numbers(tmp_path / "root_output_float"), hidden.detach().numpy().reshape(-1), rtol=0, atol=5.1e-7
    )
    stored = load(tmp_path, "root")
    for i, expected in enumerate((hidden, h, c)):
        np.testing.assert_array_equal(stored[f"output_{i}"], expected.detach().numpy())


def test_layer_without_tensors_writes_nothing(tmp_path):
    dump_float(Returning(lambda x: "text"), tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_layer_without_tensor_input_has_an_output(tmp_path):
    dump_float(Returning(lambda x: torch.ones(1)), tmp_path, None)
    assert {path.name for path in tmp_path.iterdir()} == {"root_output_float", "root.npz"}


def test_quantized_layers_are_dumped_as_real_values(tmp_path):
    model, x = small_net()
    result = dump_float(model, tmp_path, x, match_pattern="root.fc")
    np.testing.assert_array_equal(load(tmp_path, "root.fc")["output"], result.dequantize().detach().numpy())
    assert {path.name for path in tmp_path.iterdir()} == {"root.fc_input_float", "root.fc_output_float", "root.fc.npz"}


def test_training_passes_write_nothing_and_say_so_once(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(2, 2)).train()
    with Dumper() as dumper, caplog.at_level(logging.WARNING):
        dumper.enable_dump_model(model, tmp_path)
        model(torch.ones(1, 2))
        model(torch.ones(1, 2))
        assert list(tmp_path.iterdir()) == []
        messages = [r.message for r in caplog.records]
        assert messages == ["enable_dump_model: passes in training mode or calibration are not written"]
        model.eval()(torch.ones(1, 2))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_pass_that_fails_leaves_the_next_one_right(tmp_path):
    def act(x):
        if x.dim() == 1:
            raise RuntimeError("stop")
        return x * 2

    model = nn.Sequential(nn.Identity(), Returning(act))
    with Dumper() as dumper:
        dumper.enable_dump_model(model.eval(), tmp_path)
        with pytest.raises(RuntimeError, match="stop"):
            model(torch.zeros(1))
        model(torch.ones(1, 1))
        assert load(tmp_path, "root.1")["input"].tolist() == [[1.0]]
        assert not list(tmp_path.glob("*@*"))
        with pytest.raises(RuntimeError, match="stop"):
            model(torch.zeros(1))
        model.train()(torch.full((1, 1), 5.0))
    assert load(tmp_path, "root.1")["output"].tolist() == [[2.0]]


def test_hook_forward_has_no_effect_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        dump_float(nn.ReLU(), tmp_path, torch.ones(1), hook_forward=print)
    assert [r.message for r in caplog.records] == ["enable_dump_model: hook_forward has no effect"]
    assert len(list(tmp_path.iterdir())) == 3


def test_odd_names_stay_in_the_folder(tmp_path):
    folder = tmp_path / "a" / "dump"
    model = nn.Sequential(nn.ModuleDict({"/etc/x": nn.ReLU(), "\0": nn.Tanh()}))
    model._modules["../../up"] = nn.ReLU()
    model.forward = lambda x: [layer(x) for layer in (*model[0].values(), model._modules["../../up"])]
    dump_float(model, folder, torch.ones(1))
    assert {path.name for path in tmp_path.rglob("*.npz")} == {
        "root.0.%2Fetc%2Fx.npz",
        "root.0.%00.npz",
        "root...%2F..%2Fup.npz",
    }
    assert all(path.parent == folder for path in tmp_path.rglob("*.npz"))


def test_fused_models_calibrate_and_dump_as_documented(tmp_path, monkeypatch):
    """The old calls with their defaults."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(2, 1, 8, 8)
    model = quantized(settle(SmallNet()), x)
    with linger.Dumper() as dumper:
        dumper.enable_dump_quanted(model)
        model(x)
    assert (tmp_path / "dump" / "root.stem.Conv2dInt.q_input").exists()
