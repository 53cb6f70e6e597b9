"""Calibration: forward passes that set the scales."""

import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import linger
from linger import calibration, init, record
from linger.errors import UsageError
from tests.support import int64
from tests.support.quantization import is_calibrating
from tests.support.wired import Wired, image, quantize


def residual(m, x):
    h = F.relu(m.conv(x))
    return F.relu(m.conv2(h) + h)


def ranges(model):
    return {k: v.item() for k, v in model.state_dict().items() if "running_" in k and v.numel() == 1}


def scales(model):
    return {k: v.item() for k, v in model.state_dict().items() if "scale" in k}


def calibrated(batches, seed=0):
    torch.manual_seed(seed)
    return quantize(Wired(residual), *batches)


NO_PASS = pytest.mark.filterwarnings("ignore:calibration. no quantized model ran")


@NO_PASS
def test_block_is_left_on_exit_and_on_error():
    assert not is_calibrating()
    with calibration():
        assert is_calibrating()
        with calibration():
            assert is_calibrating()
        assert is_calibrating()
    with pytest.raises(KeyError), calibration():
        raise KeyError
    assert not is_calibrating()


@NO_PASS
def test_gradients_are_off_inside_and_as_before_outside():
    model = init(Wired(residual)).eval()
    with calibration():
        assert not torch.is_grad_enabled()
        assert not model(image()).requires_grad
    assert torch.is_grad_enabled()
    with torch.no_grad():
        with calibration():
            pass
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_input_range_is_the_largest_over_any_number_of_batches(count):
    batches = [image(seed=i, spread=1 + (i * 7) % 5) for i in range(count)]
    model = calibrated(batches)
    assert model.conv.read("running_x") == max(float(b.abs().max()) for b in batches)


def test_scales_do_not_depend_on_the_order_of_the_batches():
    batches = [image(seed=1), image(seed=2, spread=1.3), image(seed=3, spread=0.7)]
    models = [calibrated(order) for order in itertools.permutations(batches)]
    assert len({m.conv.read("running_x") for m in models}) == 1
    assert all(scales(m) == scales(models[0]) for m in models)


def test_one_large_batch_is_as_good_as_its_parts():
    x = image(batch=6)
    whole, parts = calibrated([x]), calibrated([*x.split(2), x])
    assert scales(whole) == scales(parts)


def test_a_second_block_widens_and_never_narrows():
    model = calibrated([image()])
    before = ranges(model)
    with calibration():
        model(image(spread=0.1))
    kept = ranges(model)
    assert all(kept[k] >= before[k] for k in before)
    with calibration():
        model(image(spread=10.0))
    assert ranges(model)["conv.running_x"] == float(image(spread=10.0).abs().max())
    assert ranges(model)["conv.running_o"] > 5 * before["conv.running_o"]


def test_evaluation_changes_no_range():
    model = calibrated([image()])
    before = ranges(model) | scales(model)
    with torch.no_grad():
        model(image(spread=50.0))
    assert ranges(model) | scales(model) == before


def test_training_moves_the_ranges_from_where_calibration_left_them():
    model = calibrated([image()])
    before = model.conv.read("running_x")
    model.train()(image(spread=2.0))
    expected = np.float32(0.9 * before + 0.1 * float(image(spread=2.0).abs().max()))
    assert model.conv.read("running_x") == expected


def test_training_starts_at_the_first_batch():
    model = init(Wired(residual)).train()
    model(image(seed=1))
    assert model.conv.read("running_x") == float(image(seed=1).abs().max())
    with torch.no_grad():
        model.eval()(image(seed=1))  # so that one step is enough to evaluate


def test_a_block_without_a_pass_says_so():
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="calibration: no quantized model ran inside the block") as said, calibration():
        model(torch.ones(1, 2))  # the float model
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with calibration(), calibration():  # the passes of an inner block count for the outer one
            init(Wired(residual)).eval()(image())


def test_an_error_inside_is_not_followed_by_a_warning():
    with pytest.raises(KeyError), calibration():
        raise KeyError


def test_constant_data_are_named_unless_another_input_varies():
    with pytest.warns(UserWarning, match=r"calibration: conv.Quant saw one and the same number everywhere"):
        calibrated([torch.full((2, 3, 6, 6), 0.5), torch.full((1, 3, 6, 6), 0.5)])
    calibrated([torch.full((2, 3, 6, 6), 0.5), torch.full((1, 3, 6, 6), 0.25)])
    two = Wired(lambda m, x, gain: m.conv(x) * linger.quant_tensor(m, gain))
    model = init(two).eval()
    with calibration():
        model(image(), torch.full((2, 1, 1, 1), 2.0))
    with pytest.warns(UserWarning, match=r"calibration: Quant saw nothing but zeros"), calibration():
        model(image(), torch.zeros(2, 1, 1, 1))


def test_zeros_calibrate_with_a_warning():
    with pytest.warns(UserWarning, match=r"calibration: conv.Quant saw nothing but zeros"):
        model = calibrated([torch.zeros(2, 3, 6, 6)])
    with torch.no_grad():
        assert torch.isfinite(model(torch.zeros(2, 3, 6, 6)).dequantize()).all()
    assert model.conv.read("scale_x") == 128.0
    with calibration():
        model(image())
    assert model.conv.read("running_x") == float(image().abs().max())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_input_that_is_no_number_names_the_tensor_and_changes_nothing(bad):
    model = calibrated([image()])
    before = ranges(model)
    x = image()
    x[0, 0, 0, 0] = bad
    with pytest.raises(UsageError, match=r"^conv\.Quant: the tensor holds NaN or infinity"), calibration():
        model(x)
    assert ranges(model) == before
    with calibration():
        model(image())
    assert ranges(model) == before


def test_overflow_inside_the_model_names_the_layer():
    model = init(Wired(lambda m, x: m.conv2(torch.exp(m.conv(x) * 50.0)))).eval()
    with pytest.raises(UsageError, match=r"^conv2\.Quant: the tensor holds NaN or infinity"), calibration():
        model(image(spread=30.0))


def test_empty_batch_is_allowed_between_others():
    empty = torch.zeros(0, 3, 6, 6)
    assert ranges(calibrated([image(), empty])) == ranges(calibrated([image()]))


def test_empty_batch_alone_sets_nothing():
    with pytest.raises(UsageError, match="no scale yet"):
        calibrated([torch.zeros(0, 3, 6, 6)])


def test_calibrated_data_are_never_clipped():
    model, x = calibrated([image()]), image()
    (made,) = record(model, (x,))
    found = made.integers
    quantized = np.floor(x.numpy() * model.conv.read("scale_x") + np.float32(0.5))
    np.testing.assert_array_equal(found["conv.Quant"], quantized)
    for layer, name in ((model.conv, "conv.Quant"), (model.conv2, "Relu")):
        frozen = layer.freeze(layer.read("scale_x"))
        weight, bias = frozen.weight_integers.numpy(), frozen.bias_integers.numpy()
        total = int64.convolved(found[name], weight, bias, layer.geometry)
        shift = int64.exponent(layer.read("scale_x") * frozen.scale_w) - int64.exponent(layer.read("scale_o"))
        unlimited = int64.shifted(total, shift)
        assert -128 <= unlimited.min() <= unlimited.max() <= 127
        assert np.abs(unlimited).max() >= 63  # and no bit is wasted


finite = st.floats(-1e4, 1e4, width=32)


@pytest.mark.filterwarnings("ignore:calibration")
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    weights=st.lists(finite, min_size=6, max_size=6),
    bias=st.lists(finite, min_size=2, max_size=2),
    inputs=st.lists(finite, min_size=9, max_size=9),
    constants=st.tuples(finite, finite),
    bits=st.sampled_from([4, 8, 16]),
)
def test_the_device_only_ever_shifts_right(weights, bias, inputs, constants, bits):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = linger.quant_module(nn.Linear(3, 2), data_bits=bits, parameter_bits=bits, out_bits=bits)
            with torch.no_grad():
                self.fc.weight.copy_(torch.tensor(weights).reshape(2, 3))
                self.fc.bias.copy_(torch.tensor(bias))
            self.scales = []

        def forward(self, x):
            h = self.fc(x)
            pairs = [(h, h * constants[0]), (h, h + constants[1])]
            for a, b in pairs:
                total, product = a + b, a * b
                self.scales.append((a.scale, b.scale, total.scale, product.scale))
            return h

    model = init(Net()).eval()
    x = torch.tensor(inputs).reshape(3, 3)
    with calibration():
        model(x)
    fc = model.fc
    assert fc.read("scale_o") <= fc.read("scale_x") * fc.read("scale_w")
    for a, b, total, product in model.scales:
        assert total <= min(a, b)
        assert product <= a * b
    frozen = fc.freeze(fc.read("scale_x"))
    assert frozen.weight_integers.abs().max() <= 2 ** (bits - 1) - 1
    # int32 holds the bias without saturating
    exact = torch.floor(fc.bias.detach().double() * fc.read("scale_x") * frozen.scale_w + 0.5)
    assert torch.equal(frozen.bias_integers.double(), exact)


def test_inference_mode_calibrates_too():
    model = init(Wired(residual)).eval()
    with torch.inference_mode(), calibration():
        model(image())
    reference = init(Wired(residual)).eval()
    reference.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(image()).integers(), reference(image()).integers())
    model.train()(image()).sum().backward()
    assert model.conv.weight.grad is not None


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 4)

    def forward(self, x):
        return torch.softmax(self.scores(x).clamp(*((-2.0, 300.0) if float(x.max()) > 50 else (-1.0, 1.0))), -1)


def test_an_error_undoes_methods_uses_and_decisions():
    torch.manual_seed(0)
    model = init(Decides()).eval()
    with calibration("mse"):
        model(torch.randn(3, 4))
    layer, function = model.scores, model.get_submodule("_linger_round_tensor_SoftmaxInt_0")

    def found():
        found = [(r.used_interval, r.width, r.bound, r.method, r.histogram) for r in layer.ranges.values()]
        return found, function.decisions(), model.state_dict().keys()

    def run():
        with calibration(layers={"nowhere": "max"}):
            model(3000 * torch.rand(3, 4))
            seen.append(found())

    before, seen = found(), []
    with pytest.raises(UsageError, match="nowhere"):
        run()
    assert seen != [before]
    assert found() == before
    assert seen[0][0][2][0] == (-2.0, 300.0) != before[0][2][0]
    assert seen[0][1] != before[1]
