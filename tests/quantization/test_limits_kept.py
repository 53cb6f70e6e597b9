"""Limits of the float stage in a quantized model: parameters, ranges, gradients, and the file, bit for bit."""

import logging

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import linger
from linger import (
    NormalizeConv2d,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTransposeBN2d,
    NormalizeFastGRU,
    NormalizeFastLSTM,
    NormalizeLinear,
    coverage,
    normalize_layers,
    normalize_module,
    quant_module,
    trace_layers,
)
from linger.errors import UsageError
from tests.support.models import SmallNet, settle
from tests.support.quantization import (
    NORMALIZED,
    QUANTIZATION,
    Limits,
    NormalizeBatchNorm3d,
    Normalized,
    Widths,
    init,
    quantized_layers,
    unwrap,
)
from tests.support.wired import Wired, image, quantize

pytestmark = pytest.mark.filterwarnings("ignore:calibration. .* saw one and the same number")


def linear(weight, bias=None, **limits):
    layer = NormalizeLinear(len(weight[0]), len(weight), bias=bias is not None, **limits)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def integers(layer):
    return layer.freeze(layer.read("scale_x")).weight_integers


# -- weights and biases ---------------------------------------------------------------------------------------------------


def test_a_limit_of_eight_is_q4_in_eight_bits():
    # ±8 itself would be 128/16: then the scale would be 8, and 7.9375 the number 63½
    layer = quantize(linear([[20.0, -8.0, 1.0]], normalize_weight=8), torch.ones(1, 3))
    assert layer.read("scale_w") == 16.0
    assert integers(layer).tolist() == [[127, -127, 16]]
    unlimited = quantize(linear([[20.0, -8.0, 1.0]]), torch.ones(1, 3))
    assert unlimited.read("scale_w") == 4.0  # 127/20 = 6.35
    assert integers(unlimited).tolist() == [[80, -32, 4]]


@pytest.mark.parametrize(
    ("limit", "bits", "scale", "largest"),
    [
        (8, 8, 16.0, 127),
        (1, 8, 128.0, 127),
        (0.25, 8, 512.0, 127),
        (8, 4, 1.0, 7),
        (8, 16, 4096.0, 32767),
        (6, 8, 16.0, 96),  # 127/6 = 21.2 → 16; 6·16
        (5, 4, 1.0, 5),
    ],
)
def test_weights_beyond_a_limit_saturate_there(limit, bits, scale, largest):
    layer = linear([[100.0, -100.0]], normalize_weight=limit)
    layer = init(layer, parameter_bits=bits).eval()
    with linger.calibration():
        layer(torch.ones(1, 2))
    assert layer.read("scale_w") == scale
    assert integers(layer).tolist() == [[largest, -largest]]


def test_weights_inside_a_limit_keep_their_own_scale():
    layer = quantize(linear([[0.5, -0.25]], normalize_weight=8), torch.ones(1, 2))
    assert layer.read("scale_w") == 128.0
    assert integers(layer).tolist() == [[64, -32]]


def test_a_bias_is_limited_exactly():
    layer = quantize(linear([[1.0], [1.0]], [9.0, -0.5], normalize_bias=2), torch.ones(1, 1))
    frozen = layer.freeze(layer.read("scale_x"))
    assert layer.read("scale_x") * frozen.scale_w == 64 * 64
    assert frozen.bias_integers.tolist() == [2 * 4096, -2048]


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_gradients_are_zero_outside_and_straight_through_inside(is_training):
    layer = quantize(
        linear([[20.0, 8.0, 7.9375, 0.3]], [3.0], normalize_weight=8, normalize_bias=1), torch.ones(1, 4)
    ).train(is_training)
    x = torch.tensor([[1.0, 0.5, 0.25, -0.5]])
    unwrap(layer(x)).sum().backward()
    # 8 is beyond the integers' bound 7.9375, which is itself inside
    assert layer.weight.grad.tolist() == [[0.0, 0.0, 0.25, -0.5]]
    assert layer.bias.grad.tolist() == [0.0]


def test_widths_chosen_later_move_the_bound():
    layer = quantize(linear([[20.0]], normalize_weight=8), torch.ones(1, 1))
    quant_module(layer, parameter_bits=4)
    layer(torch.ones(1, 1))
    assert integers(layer).tolist() == [[7]]


# -- outputs ----------------------------------------------------------------------------------------------------------------


def test_an_output_limit_of_eight_is_q4():
    layer = quantize(linear([[1.0]], normalize_data=8), torch.tensor([[50.0], [-50.0]]))
    assert layer.read("running_o") == 7.9375
    assert layer.read("scale_o") == 16.0
    # scale_x = 2 (127/50), scale_w = 64: products are multiples of 1/128
    y = layer(torch.tensor([[50.0], [-50.0], [7.5], [8.0], [-8.0]]))
    assert y.integers().flatten().tolist() == [127, -128, 120, 127, -128]


@pytest.mark.parametrize(
    ("limit", "bits", "scale"), [(8, 8, 16.0), (6, 8, 16.0), (2, 8, 64.0), (8, 4, 1.0), (8, 16, 4096.0)]
)
def test_the_range_of_an_output_ends_at_its_limit(limit, bits, scale):
    layer = linear([[1.0]], normalize_data=limit)
    quant_module(layer, data_bits=16, parameter_bits=16, out_bits=bits)
    layer = quantize(layer, torch.tensor([[50.0]]))
    assert layer.read("scale_o") == scale


def test_a_smaller_output_keeps_its_own_range():
    layer = quantize(linear([[1.0]], normalize_data=8), torch.tensor([[0.5]]))
    assert layer.read("running_o") == 0.5
    assert layer.read("scale_o") == 128.0


def test_training_saturates_at_the_limit_and_the_gradient_ends_there():
    layer = init(linear([[1.0]], normalize_data=8)).train()
    x = torch.tensor([[30.0], [7.0], [-9.0]], requires_grad=True)
    y = unwrap(layer(x))
    assert layer.read("running_o") == 7.9375
    assert y.flatten().tolist() == [7.9375, 7.0, -8.0]
    y.sum().backward()
    assert x.grad.flatten().tolist() == [0.0, 1.0, 0.0]


def test_training_and_evaluation_agree():
    layer = init(linear([[1.0, 12.0]], [0.3], normalize_weight=8, normalize_bias=0.25, normalize_data=8)).train()
    x = torch.tensor([[3.0, -1.0], [0.5, 0.25], [0.0, 2.0]])
    for _ in range(3):  # the same batch: the ranges are at rest
        trained = unwrap(layer(x))
    assert torch.equal(unwrap(layer.eval()(x)), trained)


def test_the_mean_of_training_ranges_is_one_of_limited_ranges():
    layer = init(linear([[1.0]], normalize_data=8)).train()
    layer(torch.tensor([[4.0]]))
    layer(torch.tensor([[100.0]]))
    # 0.9·4 + 0.1·7.9375, not 0.1·100; then float32
    assert layer.read("running_o") == float(torch.tensor(0.9 * 4 + 0.1 * 7.9375, dtype=torch.float32))


def test_a_range_from_a_model_without_limits_is_cut_too():
    wide = quantize(nn.Sequential(linear([[1.0]])), torch.tensor([[50.0]]))
    assert wide[0].read("scale_o") == 2.0
    layer = init(nn.Sequential(linear([[1.0]], normalize_data=8))).eval()
    layer.load_state_dict(wide.state_dict())
    assert layer(torch.tensor([[50.0]])).integers().tolist() == [[127]]
    assert layer[0].read("scale_o") == 16.0


def test_an_output_before_relu_is_limited_above_only():
    model = nn.Sequential(linear([[1.0]], normalize_data=8), nn.ReLU())
    trace_layers(model, torch.ones(1, 1))
    model = quantize(model, torch.tensor([[50.0], [-90.0]]))
    assert model[0].is_ahead_of_relu
    assert model(torch.tensor([[50.0], [-90.0], [3.0]])).integers().flatten().tolist() == [127, 0, 48]


def test_nan_is_still_refused():
    layer = init(linear([[1.0]], normalize_data=8)).train()
    with pytest.raises(UsageError, match="NaN or infinity"):
        layer(torch.tensor([[float("nan")]]))
    with pytest.raises(UsageError, match="the weights hold NaN"):
        init(linear([[float("nan")]], normalize_weight=8)).train()(torch.ones(1, 1))


# -- folded batch norm --------------------------------------------------------------------------------------------------------


def pair(**limits):
    """u = x; batch statistics of x = (0, 2): μ = 1, σ² = 1 + eps 3 = 4, so alpha = 64/2 = 32 and β' = 30 − 32 = −2."""
    made = NormalizeConvBN2d(1, 1, 1, eps=3.0, momentum=0.5, **limits)
    with torch.no_grad():
        made.conv.weight.fill_(1.0)
        made.conv.bias.zero_()
        made.bn.weight.fill_(64.0)
        made.bn.bias.fill_(30.0)
    return made


BATCH = torch.tensor([0.0, 2.0]).reshape(2, 1, 1, 1)
FOLDED = {
    # 32·x − 2 → 7.9375·x − 1: (−1, 14.875); without a bias limit (−2, 13.875)
    "weight and bias": ({"normalize_weight": 8, "normalize_bias": 1}, [-1.0, 14.875], 0.0, 0.0),
    "weight": ({"normalize_weight": 8}, [-2.0, 13.875], None, 2.0),
    # 32·x − 1: (−1, 63)
    "bias": ({"normalize_bias": 1}, [-1.0, 63.0], None, 0.0),
}


@pytest.mark.parametrize(("limits", "expected", "gamma", "beta"), FOLDED.values(), ids=FOLDED.keys())
def test_training_limits_the_folded_parameters(limits, expected, gamma, beta):
    layer = init(nn.Sequential(pair(**limits)))[0].train()
    y = unwrap(layer(BATCH))
    assert y.flatten().tolist() == expected
    y.sum().backward()
    if gamma is not None:
        assert layer.bn.weight.grad.tolist() == [gamma]
        assert layer.weight.grad.flatten().tolist() == [0.0]
    assert layer.bn.bias.grad.tolist() == [beta]
    # the statistics of the unlimited convolution: ½·0 + ½·1, ½·1 + ½·2 (unbiased)
    assert layer.bn.running_mean.tolist() == [0.5]
    assert layer.bn.running_var.tolist() == [1.5]


def test_limits_that_nothing_reaches_change_no_bit_in_training():
    limited, plain = (
        init(nn.Sequential(pair(**o))).train() for o in ({"normalize_weight": 64, "normalize_bias": 8}, {})
    )
    for _ in range(3):
        assert torch.equal(unwrap(limited(BATCH)), unwrap(plain(BATCH)))
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in limited.state_dict().items())


def test_weights_that_only_the_running_statistics_put_beyond_a_limit_are_rounded_as_finely():
    layer = init(nn.Sequential(pair(normalize_weight=8)))[0].train()
    layer(10 * BATCH)
    # by the batch σ² = 100 + 3, alpha = 64/10.15 = 6.3, inside ±8: Q4; by the running σ = 2 it would be 32: Q1
    assert layer.read("scale_w") == 16.0


def test_evaluation_limits_the_folded_parameters():
    made = pair(normalize_weight=8, normalize_bias=1)
    with torch.no_grad():
        made.bn.running_mean.fill_(1.0)  # running_var is 1 from the start
    layer = quantize(nn.Sequential(made), BATCH)[0]
    assert layer.read("scale_w") == 16.0
    assert integers(layer).flatten().tolist() == [127]
    assert layer.freeze(32.0).bias_integers.tolist() == [-512]  # −1·32·16
    assert layer(BATCH).dequantize().flatten().tolist() == [-1.0, 14.875]


def settled_pair(limit, *, momentum=1.0):
    torch.manual_seed(4)
    model = nn.Sequential(NormalizeConvBN2d(3, 8, 3, momentum=momentum, normalize_weight=limit))
    return init(model).train()


@pytest.mark.parametrize("limit", [0.03, 0.1, 8])
def test_training_and_evaluation_are_one_function_however_tight_the_limit(limit):
    model = settled_pair(limit)
    x = torch.randn(32, 3, 12, 12)
    for _ in range(4):
        trained = unwrap(model(x)).detach()
    evaluated = unwrap(model.eval()(x)).detach()
    step = 1 / model[0].read("scale_o")
    # 32·100 values per channel: the unbiased variance is larger by 1/3199, so that alpha differs by 2^-12.6, a weight
    # by at most one step and an output (27 products of |x| < 5) by at most 27·5 steps of the weights and its own rounding
    bound = 27 * 5 / model[0].read("scale_w") + step
    assert float((evaluated - trained).abs().max()) <= bound
    assert float((evaluated - trained).abs().mean()) <= step  # typically nothing of the kind happens
    spread = trained.std((0, 2, 3))
    assert (spread < 0.9).all() if limit == 0.03 else (spread > 0.3).all()  # the tight limit does act in training


def test_statistics_stay_where_they_are_while_a_limit_acts():
    model = settled_pair(0.01)
    x = torch.randn(16, 3, 8, 8)
    model(x)
    before = model[0].bn.running_var.clone()
    for _ in range(20):
        model(x)
    # the rounding of the unlimited weights, at most one step of 2^-7 of the largest, is all that could move them
    torch.testing.assert_close(model[0].bn.running_var, before, rtol=0.05, atol=0)


def test_a_frozen_batch_norm_is_limited_in_training_too():
    made = pair(normalize_weight=8, normalize_bias=1)
    made.bn.eval()
    with torch.no_grad():
        made.bn.running_mean.fill_(1.0)
    layer = init(nn.Sequential(made))[0]
    y = unwrap(layer(BATCH))
    assert y.flatten().tolist() == [-1.0, 14.875]
    y.sum().backward()
    assert layer.bn.weight.grad.tolist() == [0.0]
    assert layer.weight.grad.flatten().tolist() == [0.0]


# -- the cost ------------------------------------------------------------------------------------------------------------------


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def ops_of_a_step(limits):
    model = init(nn.Sequential(pair(**limits))).train()
    with Count() as count:
        unwrap(model(BATCH)).sum().backward()
    return count.names


def test_a_layer_without_limits_does_no_more_work():
    names = ops_of_a_step({})
    assert names.count("convolution") == 1
    assert not {"clamp", "var_mean"} & set(names)
    assert ops_of_a_step({"normalize_data": 1e6}) == names


def test_a_second_convolution_runs_only_where_a_limit_is_exceeded():
    assert ops_of_a_step({"normalize_weight": 64, "normalize_bias": 8}).count("convolution") == 1
    assert ops_of_a_step({"normalize_weight": 8}).count("convolution") == 2


# -- which layers ---------------------------------------------------------------------------------------------------------------


def test_layers_within_limits_are_quantized_with_their_limits():
    model = init(
        normalize_layers(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(2, 2), nn.ReLU6()), normalize_bias_value=2)
    )
    found = {path: layer.limited_to for path, layer in quantized_layers(model).items()}
    assert found == {"0": Limits(8.0, 2.0, 8.0), "1": Limits(8.0, 2.0, 8.0), "2": Limits()}


class Strange(NormalizeConv2d):
    """Computes something else."""

    def forward(self, x):
        return -super().forward(x)


class Renamed(NormalizeConv2d):
    """The same computation under another name."""


def test_subclasses_of_normalize_layers_count_unless_they_override_forward(caplog):
    with caplog.at_level(logging.WARNING):
        model = init(nn.Sequential(Strange(3, 4, 3), Renamed(4, 4, 3)))
    assert set(quantized_layers(model)) == {"1"}
    assert caplog.messages == ["0 (Strange) stays float: it overrides forward"]


def zoo():
    return nn.Sequential(
        NormalizeConv2d(3, 4, 3, normalize_weight=1), nn.Conv2d(4, 4, 3), NormalizeConvBN2d(4, 4, 3), nn.Linear(2, 2)
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"quant_modules": [NormalizeConv2d]}, {"0"}),
        ({"quant_modules": [nn.Conv2d]}, {"0", "1", "2"}),
        ({"quant_modules": [NormalizeConvBN2d, nn.Linear]}, {"2", "3"}),
        ({"quant_modules": [NormalizeFastLSTM, NormalizeConvTransposeBN2d, NormalizeConvBN1d]}, set()),
        ({"disable_module": [NormalizeConv2d]}, {"1", "2", "3"}),
        ({"disable_module": [NormalizeConvBN2d]}, {"0", "1", "3"}),
        ({"disable_module": [nn.Conv2d]}, {"3"}),
    ],
    ids=[
        "normalized",
        "convolutions",
        "pairs and linear",
        "no such layer",
        "not normalized",
        "no pairs",
        "no convolutions",
    ],
)
def test_types_of_init(options, expected):
    model = init(zoo(), **options)
    assert set(quantized_layers(model)) == expected
    model[2].eval()(torch.randn(2, 4, 5, 5)) if "2" not in expected else None  # a pair that stays float still runs


def test_every_normalize_type_is_accepted_in_lists():
    kinds = [*NORMALIZED.values(), NormalizeConvBN1d, NormalizeConvBN2d, NormalizeConvTransposeBN2d]
    assert all(issubclass(kind, Normalized) for kind in kinds)
    init(nn.Sequential(nn.Linear(2, 2)), quant_modules=kinds, disable_module=kinds)
    quant_module(nn.Linear(2, 2), kinds)
    with pytest.raises(UsageError, match="RNN has no integer form"):
        init(nn.Sequential(nn.Linear(2, 2)), quant_modules=[nn.RNN])


def test_widths_for_a_pair_are_marked_by_its_type_or_its_convolution():
    for kinds in ([NormalizeConvBN2d], [nn.Conv2d], None):
        model = zoo()
        quant_module(model[2], kinds, parameter_bits=4)
        assert QUANTIZATION.of(model[2]).widths == Widths(8, 4, 8)
        assert init(model)[2].widths == Widths(8, 4, 8)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's own
def test_layers_without_an_integer_form_stay_float_within_their_limits(caplog):
    model = nn.Sequential(
        NormalizeBatchNorm3d(2, normalize_data=0.5),
        NormalizeFastLSTM(2, 4, proj_size=2, normalize_data=0.01), NormalizeFastGRU(2, 2), nn.LSTM(2, 2),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        init(model)
    assert caplog.messages == [
        "0 (NormalizeBatchNorm3d) stays float, within its limits: it has no integer form",
        "1 (NormalizeFastLSTM) stays float: proj_size makes the state smaller by a product that has no integer form",
    ]
    assert model[1](torch.randn(3, 1, 2))[0].abs().max() <= 0.01
    assert model[0](100 * torch.randn(1, 2, 4, 2, 2)).abs().max() == 0.5


def test_a_pair_without_statistics_stays_float(caplog):
    model = nn.Sequential(NormalizeConvBN2d(3, 4, 3, track_running_stats=False))
    with caplog.at_level(logging.WARNING):
        init(model)
    assert caplog.messages == ["0 (Conv2d) stays float: its batch norm keeps no statistics that could be folded"]
    model.eval()(torch.randn(2, 3, 5, 5))


def test_the_parts_of_a_pair_are_never_quantized_by_themselves():
    model = nn.Sequential(NormalizeConvBN2d(3, 4, 3, track_running_stats=False))
    assert quantized_layers(init(model)) == {}
    model(torch.randn(2, 3, 5, 5))


class WithLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        h = torch.relu(self.bn(self.conv(x)))
        return self.fc(self.lstm(h.flatten(2).transpose(1, 2))[0])


def prepared(make, x, **limits):
    torch.manual_seed(2)
    model = settle(make()).eval()
    return quantize(normalize_layers(trace_layers(model, x), **limits), x)


def test_coverage_of_a_model_with_float_layers_within_limits():
    x = torch.randn(2, 1, 4, 4)
    report = coverage(prepared(WithLSTM, x))
    assert [(op.where, op.op) for op in report.integer_ops if op.op.endswith("Int")] == [
        ("conv", "Conv2dInt"),
        ("lstm", "LSTMInt"),
        ("fc", "LinearInt"),
    ]
    assert report.float_ops == ()


# -- the file --------------------------------------------------------------------------------------------------------------------

TIGHT = {"normalize_weight_value": 0.25, "normalize_bias_value": 0.5, "normalize_output_value": 2}
CASES = {
    "tight": TIGHT,
    "default": {},
    "no power of two": {"normalize_weight_value": 0.3, "normalize_bias_value": 0.7, "normalize_output_value": 1.7},
}


def verified(model, x, path, **options):
    linger.onnx.export(model, (x,), path, **options)
    result = linger.verify(model, path, [x, 3 * x])
    assert result.differing == 0
    assert result.ok
    return result, onnx.load(path)


@pytest.mark.parametrize("limits", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
@pytest.mark.thin
def test_the_file_computes_every_integer_of_the_model(limits, form, tmp_path):
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    result, file = verified(prepared(SmallNet, x, **limits), x, tmp_path / "net.onnx", form=form)
    assert result.integers > 20_000
    if form == "dialect":
        kinds = [node.op_type for node in file.graph.node]
        assert kinds.count("Clip") == 1  # relu6; no node limits anything


def test_limits_make_scales_finer():
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    limits = {"normalize_weight_value": 0.25, "normalize_output_value": 0.5}
    tight, plain = prepared(SmallNet, x, **limits), prepared(SmallNet, x)
    for path in ("stem", "block.conv1", "block.conv2", "fc"):
        layer = tight.get_submodule(path)
        assert layer.read("scale_w") >= 512.0  # ¼·127/128 is 127/512
        assert layer.read("scale_o") >= 256.0  # ½·127/128 is 127/256
    assert tight.stem.read("scale_w") == 512.0 > plain.stem.read("scale_w")
    assert tight.stem.read("scale_o") == 256.0 > plain.stem.read("scale_o")
    assert int((tight.stem(x).integers() == 127).sum()) > 0


def test_a_model_trained_within_limits_is_exact(tmp_path):
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    model = prepared(SmallNet, x, **TIGHT).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.tensor([0, 1, 2, 3])).backward()
        optimizer.step()
    verified(model.eval(), x, tmp_path / "net.onnx")


def test_float_layers_within_limits_are_exported_with_them(tmp_path):
    x = torch.randn(2, 1, 4, 4)
    model = prepared(WithLSTM, x, normalize_weight_value=0.25, normalize_output_value=0.05)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    session = linger.Session(tmp_path / "net.onnx")
    with torch.no_grad():
        expected = unwrap(model(x)).numpy()
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    # a float op may round differently in its last bit, and a value next to a rounding edge with it: one step of fc's
    # input moves an output by at most 5·¼ of that step
    step = 1.25 / model.fc.read("scale_x") + 1 / model.fc.read("scale_o")
    assert abs(found - expected).max() <= step


def test_torch_export_of_a_model_within_limits_runs():
    x = torch.randn(4, 1, 8, 8)
    model = prepared(SmallNet, x, **TIGHT)
    with torch.no_grad():
        expected = unwrap(model(x))
        program = torch.export.export(model, (x,))
        assert torch.equal(program.module()(x), expected)


def test_marks_reach_the_integers():
    model = settle(Wired(lambda m, x: m.bn2(m.conv2(m.bn(m.conv(x)))))).eval()
    normalize_module(model.conv2, normalize_weight_value=0.125, normalize_bias_value=None)
    model = quantize(normalize_layers(trace_layers(model, image())), image())
    assert model.conv.limited_to == Limits(8.0, None, 8.0)
    assert model.conv2.limited_to == Limits(0.125, None, 8.0)
    assert model.conv2.read("scale_w") >= 1024.0
