"""Export for a chip: what it cannot take is refused with the remedies, and nothing is written."""

import importlib.util
import logging

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import LingerError, UnsupportedError, UsageError
from tests.conftest import REPOSITORY
from tests.support.wired import Wired, image, quantize


def export(model, x, path, **options):
    linger.onnx.export(model, (x,), path, input_names=["x"], output_names=["y"], **options)
    return onnx.load(path)


@pytest.fixture(scope="module")
def digits():
    """The network of examples/01_digits.py, calibrated on noise."""
    spec = importlib.util.spec_from_file_location("digits", REPOSITORY / "examples" / "01_digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    x = torch.randn(8, 1, 8, 8)
    model = module.DigitsNet() if hasattr(module, "DigitsNet") else module.Net()
    linger.trace_layers(model, model, x[:1])
    return quantize(model, x), x


@pytest.mark.parametrize("form", ["dialect", "bare"])
def test_the_digits_network_is_taken_without_a_word(digits, tmp_path, caplog, form):
    model, x = digits
    with caplog.at_level(logging.INFO, logger="linger.onnx.exporter.assembly"):
        export(model, x[:1], tmp_path / "net.onnx", target="venus", form=form, verify=True)
    assert [r.getMessage() for r in caplog.records if r.name == "linger.onnx.exporter.assembly"] == []


def test_every_error_is_in_one_message_and_nothing_is_written(tmp_path):
    net = nn.Sequential(
        nn.Conv2d(3, 4, 7, padding=3), nn.Conv2d(4, 4, 3, stride=3), nn.Hardsigmoid(), nn.Conv2d(4, 4, 1)
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(b"older")
    with pytest.raises(UnsupportedError) as caught:
        export(quantize(net, image(spread=2.0)), image(1), path, target="venus")
    text = str(caught.value)
    assert text.startswith("export: venus cannot take this model: 3 of 3 findings are errors. Nothing was written.")
    for part in (
        "0.Conv2dInt (Conv2dInt): a kernel of 7×7; venus has 1 to 5. Use a size",
        "1.Conv2dInt (Conv2dInt): a stride of 3×3; venus has 1, 2 or 4. Use a size",
        "(iqHardsigmoid): venus's packer has no iqHardsigmoid. No exact form is known. Compute it outside of the model.",
    ):
        assert part in text
    assert isinstance(caught.value, LingerError)
    assert path.read_bytes() == b"older"


def test_without_a_target_no_limit_applies(tmp_path):
    export(quantize(nn.Sequential(nn.Conv2d(3, 4, 7, padding=3)), image()), image(1), tmp_path / "net.onnx")


def test_warnings_are_logged_and_the_file_is_written(tmp_path, caplog):
    x = torch.randn(1, 3, 16, 16)
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)), x)
    with caplog.at_level(logging.INFO):
        export(model, x, tmp_path / "net.onnx", target="venus")
    (message,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert message.getMessage().startswith(
        "export for venus: 1.AvgPool2dInt (AvgPool2dInt): a window of 256 pixels may add"
    )


def test_what_could_not_be_checked_is_logged_quietly(tmp_path, caplog):
    model = quantize(Wired(lambda m, x: F.softmax(m.conv(x), -1)), image())
    with caplog.at_level(logging.INFO):
        export(model, image(1), tmp_path / "a.onnx", target="venus", dynamic_axes={"x": {3: "w"}})
    said = [(r.levelno, r.getMessage()) for r in caplog.records if "could not be checked" in r.getMessage()]
    assert [level for level, _ in said] == [logging.INFO, logging.INFO]
    assert "export for venus: a size is open, so the memory for tensors could not be checked" in said[0][1]
    assert "SoftmaxInt (SoftmaxInt): a size is open, so the length of its rows could not be checked" in said[1][1]


def relu6_net(spread):
    torch.manual_seed(1)
    return quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU6(), nn.Conv2d(4, 4, 3)), image(spread=spread))


@pytest.mark.parametrize("form", ["dialect", "bare"])
def test_relu6_becomes_relu_where_the_integers_saturate_below_6(tmp_path, form):
    model = relu6_net(1.0)
    assert (model[1].max_thresh, model[1].scale_x >= 32) == (127, True)
    plain = export(model, image(1), tmp_path / "plain.onnx", form=form)
    made = export(model, image(1), tmp_path / "venus.onnx", target="venus", form=form)
    assert [n.op_type for n in plain.graph.node].count("Clip") == 1
    assert [n.op_type for n in made.graph.node].count("Clip") == 0
    assert [n.op_type for n in made.graph.node].count("Relu") == 1
    assert not [i.name for i in made.graph.initializer if "thresh" in i.name]
    assert linger.verify(model, tmp_path / "venus.onnx", (image(1, seed=3),)).ok


def test_relu6_that_acts_is_a_finding(tmp_path):
    model = relu6_net(30.0)
    assert model[1].max_thresh < 127
    with pytest.raises(UnsupportedError, match=r"1\.Clip \(Clip\): venus's packer cannot take Clip \(ReLU6, clamp\)"):
        export(model, image(1), tmp_path / "net.onnx", target="venus")
    assert not (tmp_path / "net.onnx").exists()


def test_the_remedy_for_relu6_works(tmp_path):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU6(), nn.Conv2d(4, 4, 3))
    linger.normalize_module(net[0], normalize_output_value=4)
    model = quantize(linger.normalize_layers(net), image(spread=30.0))
    export(model, image(1), tmp_path / "net.onnx", target="venus", verify=True)


def test_a_scalar_that_a_simplifier_moved_would_be_found(tmp_path):
    model = quantize(Wired(lambda m, x: m.conv(x) * 0.75), image())
    export(model, image(1), tmp_path / "net.onnx", target="venus")


def test_debug_stages_show_the_file_without_clips(tmp_path):
    export(relu6_net(1.0), image(1), tmp_path / "net.onnx", target="venus", debug_dump=tmp_path / "stages")
    stages = tmp_path / "stages"
    assert (
        "_suited.onnx: 1 changes of form that venus wants; they change no number" in (stages / "stages.txt").read_text()
    )
    kinds = {p.stem.partition("_")[2]: [n.op_type for n in onnx.load(p).graph.node] for p in stages.glob("*.onnx")}
    assert [kinds[stage].count("Clip") for stage in ("named", "suited", "bare")] == [1, 0, 0]
    assert [kinds[stage].count("Relu") for stage in ("named", "suited", "bare")] == [0, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"target": "arc"}, r"no chip 'arc' \(is 'arcs' meant\?\)\. Choose one of venus", id="unknown"),
        pytest.param({"target": "venus", "form": "standard"}, "needs the form dialect or bare", id="form"),
        pytest.param({"target": "venus", "is_update_dequant": False}, "cannot be judged", id="no dequants"),
    ],
)
def test_wishes_that_do_not_go_together(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        export(quantize(nn.Sequential(nn.Conv2d(3, 4, 3)), image()), image(1), tmp_path / "net.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_float_model_has_no_target(tmp_path):
    with pytest.raises(UsageError, match=r"is for quantized models\. Call linger\.init"):
        export(nn.Conv2d(3, 4, 3), image(1), tmp_path / "net.onnx", target="venus")
