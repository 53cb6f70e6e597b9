"""The quantized layer: what it keeps of the layer it replaced, how it learns, what it remembers and when it forgets."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init, trace_layers
from linger.errors import UsageError
from tests.support import naive
from tests.support.models import SmallNet, settle
from tests.support.quantization import scale_for
from tests.support.wired import Wired, after, image, quantize


def conv_bn(*, relu=False, bias=True, seed=0):
    """A calibrated convolution with a live batch norm."""
    torch.manual_seed(seed)
    model = settle(Wired((lambda m, x: F.relu(m.bn(m.conv(x)))) if relu else (lambda m, x: m.bn(m.conv(x))), bias=bias))
    model.eval()
    trace_layers(model, image())
    return quantize(model, image())


def evaluate(model, x):
    with torch.no_grad():
        return model(x).integers().clone()


# -- what is kept -------------------------------------------------------------------------------------


def test_parameters_and_constants_are_those_of_the_layer_replaced():
    conv, linear = nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2, dilation=2), nn.Linear(5, 7, bias=False)
    weights = [conv.weight, conv.bias, linear.weight]
    model = init(nn.Sequential(conv, linear))
    assert [model[0].weight, model[0].bias, model[1].weight] == weights
    assert all(a is b for a, b in zip([model[0].weight, model[0].bias, model[1].weight], weights, strict=True))
    assert model[1].bias is None
    names = ["kernel_size", "stride", "padding", "dilation", "groups", "in_channels", "out_channels", "padding_mode"]
    assert all(getattr(model[0], name) == getattr(conv, name) for name in names)
    assert (model[1].in_features, model[1].out_features) == (5, 7)


def test_pooling_layers_keep_their_constants():
    model = init(nn.Sequential(nn.AvgPool2d(2, stride=1), nn.AdaptiveAvgPool2d(1)))
    assert (model[0].kernel_size, model[0].stride, model[1].output_size) == (2, 1, 1)


def test_description_names_the_op_and_the_widths():
    model = conv_bn(relu=True)
    assert "Conv2dInt, 8/8/8 bits, before relu" in str(model)


# -- copies -------------------------------------------------------------------------------------------


def copied_by_deepcopy(model):
    return copy.deepcopy(model)


def copied_by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def copied_by_torch_save(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [copied_by_deepcopy, copied_by_pickle, copied_by_torch_save])
def test_a_copy_gives_equal_integers_and_is_independent(copied):
    model = settle(SmallNet()).eval()
    x = torch.randn(4, 1, 8, 8)
    trace_layers(model, x)
    quantize(model, x)
    expected = evaluate(model, x)
    clone = copied(model)
    assert torch.equal(evaluate(clone, x), expected)
    assert clone.fc.runtime is not model.fc.runtime
    assert all(layer.runtime is clone.fc.runtime for layer in clone.fc.runtime.layers)
    with torch.no_grad():
        clone.fc.weight.mul_(-1)
    assert not torch.equal(evaluate(clone, x), expected)
    assert torch.equal(evaluate(model, x), expected)
    assert len(linger.coverage(clone).integer_ops) == len(linger.coverage(model).integer_ops)


def test_a_copied_model_goes_on_learning():
    model = copy.deepcopy(conv_bn()).train()
    before = model.conv.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(image()).sum().backward()
    optimizer.step()
    assert not torch.equal(model.conv.weight, before)


# -- what is remembered is forgotten when a parameter changes --------------------------------------------


def by_optimizer(layer):
    optimizer = torch.optim.SGD([layer.weight], lr=0.5)
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()


def in_place(layer):
    with torch.no_grad():
        layer.weight.add_(0.3)


def through_data(layer):
    layer.weight.data.mul_(-0.5)


def through_data_keeping_the_sum(layer):
    layer.weight.data.copy_(layer.weight.data.flip(0))


def one_element_through_data(layer):
    layer.weight.data[0, 0, 0, 0] = layer.weight.data.abs().max()


def by_replacing_data(layer):
    layer.weight.data = layer.weight.data * -1


def by_replacing_the_parameter(layer):
    layer.weight = nn.Parameter(layer.weight.detach() * -1)


def bias_through_data(layer):
    layer.bias.data.add_(1.0)


def by_loading(layer):
    state = {k: v.clone() for k, v in layer.state_dict().items()}
    state["weight"] *= -1
    layer.load_state_dict(state)


def by_loading_with_assign(layer):
    state = {k: v.clone() for k, v in layer.state_dict().items()}
    state["weight"] *= -1
    layer.load_state_dict(state, assign=True)


CHANGES = [
    by_optimizer,
    in_place,
    through_data,
    through_data_keeping_the_sum,
    one_element_through_data,
    by_replacing_data,
    by_replacing_the_parameter,
    bias_through_data,
    by_loading,
    by_loading_with_assign,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_is_noticed(change):
    model = after(lambda h: h)
    x = image()
    before = evaluate(model, x)
    assert torch.equal(evaluate(model, x), before)
    change(model.conv)
    changed = evaluate(model, x)
    assert not torch.equal(changed, before)
    fresh = copy.deepcopy(model)  # a copy has nothing in memory
    assert torch.equal(evaluate(fresh, x), changed)


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_a_changed_batch_norm_is_noticed(name):
    model = conv_bn()
    before = evaluate(model, image())
    getattr(model.conv.bn, name).data.add_(0.7)
    changed = evaluate(model, image())
    assert not torch.equal(changed, before)
    assert torch.equal(evaluate(copy.deepcopy(model), image()), changed)


def test_weights_of_zero_sum_are_compared_too():
    model = after(lambda h: h)
    with torch.no_grad():
        model.conv.weight[:2], model.conv.weight[2:] = 0.25, -0.25
    before = evaluate(model, image())
    model.conv.weight.data.mul_(0.5)
    assert model.conv.weight.sum() == 0
    assert not torch.equal(evaluate(model, image()), before)


def test_changed_ranges_are_noticed():
    model = after(lambda h: h)
    before = evaluate(model, image())
    model.conv.running_o.mul_(4)
    assert not torch.equal(evaluate(model, image()), before)


def test_changed_widths_are_noticed():
    model = after(lambda h: h)
    before = evaluate(model, image())
    linger.quant_module(model, parameter_bits=4)
    assert not torch.equal(evaluate(model, image()), before)


# -- gradients ------------------------------------------------------------------------------------------


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_backward_in_evaluation_mode_does_not_depend_on_what_ran_before():
    model = conv_bn()
    first = gradients(model, image())
    evaluate(model, image())
    with torch.inference_mode():
        model(image())
    second = gradients(model, image())
    assert {"conv.weight", "conv.bn.weight", "conv.bn.bias"} <= set(first)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(g.abs().sum() > 0 for name, g in first.items() if name.startswith("conv."))


def test_input_of_a_frozen_model_has_a_gradient_in_evaluation_mode():
    model = after(lambda h: h)
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    evaluate(model, image())
    x = image().requires_grad_()
    model(x).sum().backward()
    scale = model.conv.freeze(model.conv.read("scale_x"))
    # nothing saturates on calibrated data, so the gradient is that of the convolution with the rounded weights
    expected = torch.autograd.grad(F.conv2d(x, scale.weight, padding=1).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)  # both are float32 convolutions with the same operands
    assert torch.equal(model(x.detach()).integers(), evaluate(model, x.detach()))


def test_trainable_bias_of_a_frozen_weight_has_a_gradient_in_evaluation_mode():
    model = after(lambda h: h)
    model.conv.weight.requires_grad_(requires_grad=False)
    evaluate(model, image())
    model(image()).sum().backward()
    assert model.conv.bias.grad.tolist() == [2 * 36.0] * 4  # every output is one bias plus something


def plain_layer(x, weight, bias, scale_x, bits=8):
    """Fake quantization step by step, with the layer's own formulas."""
    q = naive.quantized(x, scale_x, bits)
    scale_w = scale_for(float(weight.detach().abs().max()), bits)
    w = naive.rounded(weight, scale_w) / scale_w
    b = naive.quantized(bias.double(), scale_x * scale_w, 32).float()
    y = F.conv2d(q, w, b, padding=1)
    scale_o = min(scale_for(float(y.detach().abs().max()), bits), scale_x * scale_w)
    return naive.quantized(y, scale_o, bits)


def test_training_step_is_the_plain_composition():
    model = init(Wired(lambda m, x: m.conv(x))).train()
    reference = [p.detach().clone().requires_grad_() for p in (model.conv.weight, model.conv.bias)]
    x, mine = image().requires_grad_(), image().requires_grad_()
    upstream = torch.randn(2, 4, 6, 6)
    found = model(mine)
    found.backward(upstream)
    expected = plain_layer(x, *reference, scale_for(float(x.detach().abs().max()), 8))
    expected.backward(upstream)
    assert torch.equal(found.dequantize(), expected)
    # the same sums of products in another order: 72 terms of float32
    for grad, plain in zip((mine.grad, model.conv.weight.grad, model.conv.bias.grad), (x, *reference), strict=True):
        torch.testing.assert_close(grad, plain.grad, rtol=1e-5, atol=1e-5)


def test_fused_relu_learns_below_half_a_step():
    model = Wired(lambda m, x: F.relu(m.conv(x)))
    trace_layers(model, image())
    model = init(model).train()
    with torch.no_grad():
        model.conv.weight.zero_()
        model.conv.bias.copy_(torch.tensor([1.0, 1e-3, 0.0, -1e-3]))
    result = model(image())
    result.sum().backward()
    assert result.dequantize().amax((0, 2, 3)).tolist() == [1.0, 0, 0, 0]  # 1e-3 is below half a step of 1/64
    assert model.conv.bias.grad.tolist() == [72.0, 72.0, 0.0, 0.0]


@pytest.mark.parametrize("mode", ["calibration", "training"])
def test_range_ahead_of_relu_is_that_of_the_positive_part(mode):
    model = Wired(lambda m, x: F.relu(m.conv(x)))
    trace_layers(model, image())
    with torch.no_grad():
        model.conv.weight.zero_()
        model.conv.bias.copy_(torch.tensor([1.5, -9.0, 0.5, -3.0]))
    model = init(model).train(mode == "training")
    if mode == "training":
        result = model(image())
    else:
        with linger.calibration():
            result = model(image())
    assert model.conv.read("running_o") == 1.5
    assert model.conv.read("scale_o") == 64.0
    assert result.dequantize().amax((0, 2, 3)).tolist() == [1.5, 0, 0.5, 0]


# -- training with a live batch norm ---------------------------------------------------------------------


def on_the_grid(model):
    """Weights, statistics and inputs whose rounding is exact, so that only batch norm is left to compare."""
    with torch.no_grad():
        model.conv.weight.copy_(torch.randint(-60, 61, model.conv.weight.shape) / 64)
        model.conv.weight[0, 0, 0, 0] = 127 / 64  # the largest folded weight: γ/σ = ¾ at most
        model.bn.weight.copy_(torch.tensor([0.5, -0.5, 0.5, -0.5]))
        model.bn.running_var.fill_(1 - model.bn.eps)
    return torch.randint(-100, 101, (8, 3, 6, 6)) / 64


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_statistics_are_learned_as_without_quantization(has_bias):
    model = Wired(lambda m, x: m.bn(m.conv(x)), bias=has_bias)
    x = on_the_grid(model)
    reference = copy.deepcopy(model).train()
    model.eval()
    trace_layers(model, x)
    model = init(model).train()
    with torch.no_grad():
        found, expected = model(x).dequantize(), reference(x)
    # weights and inputs are whole steps: both convolutions give the same numbers but for 27 roundings of 2^-24
    torch.testing.assert_close(model.conv.bn.running_mean, reference.bn.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.conv.bn.running_var, reference.bn.running_var, rtol=1e-5, atol=1e-6)
    assert model.conv.bn.num_batches_tracked == 1
    # the output is rounded to steps of 1/scale_o; eps on γ²/σ²·var instead of var changes it by eps/(2γ²) = 2e-5
    step = 1 / model.conv.read("scale_o")
    assert float((found - expected).abs().max()) <= step / 2 + 1e-4 * float(expected.abs().max())


def test_statistics_of_a_rounded_layer_stay_near_those_of_the_float_layer():
    model = settle(Wired(lambda m, x: m.bn(m.conv(x)))).train()
    reference = copy.deepcopy(model)
    trace_layers(model, image())
    model = init(model).train()
    for seed in range(5):
        x = image(batch=16, seed=seed)
        model(x)
        reference(x)
    # rounding weights (½ of 1/64 … of a range) and inputs adds less than 2 % of noise to a variance near 1
    torch.testing.assert_close(model.conv.bn.running_var, reference.bn.running_var, rtol=0.05, atol=0)
    torch.testing.assert_close(model.conv.bn.running_mean, reference.bn.running_mean, rtol=0, atol=0.05)
    assert model.conv.bn.num_batches_tracked == 5


def test_evaluation_and_calibration_learn_no_statistics():
    model = conv_bn()
    before = {k: v.clone() for k, v in model.conv.bn.state_dict().items()}
    evaluate(model, image(spread=3.0))
    with linger.calibration():
        model(image(spread=3.0))
    assert all(torch.equal(v, before[k]) for k, v in model.conv.bn.state_dict().items())


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_frozen_batch_norm_has_the_gradients_of_the_folded_layer(has_bias):
    model = conv_bn(bias=has_bias).train()
    model.conv.bn.eval()
    before = model.conv.bn.running_mean.clone()
    x, upstream = image(seed=5), torch.randn(2, 4, 6, 6)
    reference = copy.deepcopy(model.conv)
    model(x).backward(upstream)
    assert torch.equal(model.conv.bn.running_mean, before)

    bn, weight = reference.bn, reference.weight
    factor = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    bias = bn.bias - factor * bn.running_mean + (factor * reference.bias if has_bias else 0)
    folded = weight * factor.reshape(-1, 1, 1, 1)
    plain_layer(x, folded, bias, model.conv.read("scale_x")).backward(upstream)
    # the plain layer takes the output's scale from this batch, the real one from a running range: both above it
    for name in ("weight", "bn.weight", "bn.bias") + (("bias",) if has_bias else ()):
        found, expected = model.conv.get_parameter(name).grad, reference.get_parameter(name).grad
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_zero_gamma_learns():
    # as in networks that start their residual branches at zero
    model = Wired(lambda m, x: m.bn(m.conv(x)))
    nn.init.zeros_(model.bn.weight)
    reference = copy.deepcopy(model).train()
    trace_layers(model, image())
    model = init(model).train()
    upstream = torch.randn(2, 4, 6, 6)
    model(image()).backward(upstream)
    reference(image()).backward(upstream)
    found, expected = model.conv.bn.weight.grad, reference.bn.weight.grad
    # rounding to 8 bits moves a normalized output by about a hundredth
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.3)
    assert found.abs().min() > 0


# -- errors ---------------------------------------------------------------------------------------------


def test_uncalibrated_model_names_every_layer():
    model = init(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2)))).eval()
    with pytest.raises(UsageError, match=r"^0, 2\.0 have no scale yet\. Run data") as caught:
        model(torch.zeros(1, 4))
    assert "linger.calibration()" in str(caught.value)


def test_one_uncalibrated_layer_is_named_alone():
    with pytest.raises(UsageError, match=r"^0\.Quant has no scale yet\."):
        init(nn.Sequential(nn.Linear(4, 4))).eval()(torch.zeros(1, 4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(bad):
    model = after(lambda h: h)
    with torch.no_grad():
        model.conv.weight[0, 0, 0, 0] = bad
    with pytest.raises(UsageError, match="conv: the weights hold NaN or infinity"):
        evaluate(model, image())
    with pytest.raises(UsageError, match="conv: the weights hold NaN or infinity"):
        model.train()(image())


def test_integer_input_is_refused():
    with pytest.raises(UsageError, match=r"has type torch\.int64; a quantized layer needs a float tensor"):
        after(lambda h: h)(torch.zeros(2, 3, 6, 6, dtype=torch.long))


# -- small things -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_float_inputs_are_taken(dtype):
    model = after(lambda h: h)
    x = image().to(dtype)
    assert torch.equal(evaluate(model, x), evaluate(model, x.float()))


def test_image_without_a_batch_axis():
    model = after(lambda h: h)
    assert torch.equal(evaluate(model, image()[0]), evaluate(model, image())[0])


def test_empty_batch():
    model = after(lambda h: F.relu(h) + h)
    assert evaluate(model, torch.zeros(0, 3, 6, 6)).shape == (0, 4, 6, 6)


def test_result_is_a_quantized_tensor_with_the_layers_scale():
    model = after(lambda h: h)
    result = model(image())
    assert isinstance(result, QTensor)
    assert (result.scale, result.bits) == (model.conv.read("scale_o"), 8)


def test_pooling_that_has_no_integer_form_stays_float_and_says_why():
    x = image()[0]  # an image without a batch is not cut into slices
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(4)), x)
    found = model(x)
    expected = F.adaptive_avg_pool2d(model[0](x).dequantize(), 4)
    assert not isinstance(found, QTensor)
    assert torch.equal(found, expected)
    (record,) = [op for op in linger.coverage(model).float_ops if op.where == "1"]
    assert "AdaptiveAvgPool2d to 4 has uneven windows" in record.reason


def test_thresholds_follow_the_width():
    model = init(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6()))
    linger.quant_module(model, data_bits=16, out_bits=16)
    model.eval()
    with linger.calibration():
        model(image(spread=50.0))
    model(image())  # the range before ReLU6 was brought down to 6 when the pass had ended
    assert model[1].max_thresh.item() == 6 * model[0].read("scale_o")
    assert model[1].max_thresh.dtype == torch.int16
    assert model(image(spread=50.0)).dequantize().max() == 6
