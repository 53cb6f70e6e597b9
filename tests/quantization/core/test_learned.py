"""Learned ranges: gradients by hand, one rule for scales, checkpoints, processes, errors."""

import copy
import io
import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import linger
from tests.support.device_models import image, make_model
from tests.support.emulated_device import take_host_reads
from tests.support.processes import run_processes
from tests.support.quantization import Grid, QuantizedBase, learn_grid, ranges_of, unwrap

pytestmark = pytest.mark.needs_torch

each_method = pytest.mark.parametrize("method", ["tqt", "lsq"])
LN2 = math.log(2.0)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """Layers with and without batch norm, in place and not, and functions of each kind."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.mix, self.norm, self.end = nn.Conv2d(4, 4, 1), nn.LayerNorm(64), nn.Linear(64, 3)

    def forward(self, x):
        y = torch.relu_(self.bn(self.conv(x)))
        y = torch.relu_(y + self.mix(y)) * torch.sigmoid(y)
        y = F.gelu(torch.cat([y, y], 1)[:, :4])
        return self.end(self.norm(y.flatten(1)))


def calibrated(model=None, x=None, bits=8):
    torch.manual_seed(0)
    model = Net() if model is None else model
    x = draw(16, 1, 4, 4) if x is None else x
    if bits != 8:
        linger.quant_module(model, data_bits=bits, parameter_bits=bits, out_bits=bits)
    model = linger.init(linger.trace_layers(model, x[:1])).eval()
    with linger.calibration():
        model(x)
    return model


def linear(*, x=None, **how):
    return calibrated(nn.Sequential(nn.Linear(4, 3)), draw(32, 4) if x is None else x, **how)


def groups(model, learned, rate, own_rate):
    ids = {id(p) for p in learned}
    rest = [p for p in model.parameters() if id(p) not in ids]
    return [{"params": rest, "lr": rate}, {"params": learned, "lr": own_rate}]


def learned_state(model):
    return {n: p.item() for n, p in model.named_parameters() if "threshold_" in n or "step_" in n}


# gradients
def gradient(real, grid, upstream=None):
    parameter = nn.Parameter(torch.zeros(1))
    low, high = -(2 ** (grid.bits - 1)), 2 ** (grid.bits - 1) - 1
    rounded = (real * grid.scale + 0.5).floor().clamp(0 if grid.is_relu else low, high) / grid.scale
    learned = learn_grid(rounded, parameter, real, grid)
    (learned if upstream is None else learned * upstream).sum().backward()
    return parameter.grad.item()


def test_gradient_of_a_threshold_by_hand():
    # 4 bits at scale 4: −8 … 7 quarters. 0.3 → 1 quarter, −0.05; 1.5 → 6, 0; 3 saturates at 7/4; −5 at −2
    real, grid = torch.tensor([0.3, 1.5, 3.0, -5.0]), Grid(4.0, 4, 4.0, is_logarithm=True)
    assert gradient(real, grid) == pytest.approx(LN2 * (-0.05 + 0.0 + 1.75 - 2.0))
    assert gradient(real, grid, torch.tensor([1.0, 2.0, 3.0, 0.0])) == pytest.approx(LN2 * (-0.05 + 3 * 1.75))


def test_gradient_of_a_step_by_hand():
    # in steps: 1 − 1.2, 6 − 6, 7, −8; divided by √(4·7)
    real, grid = torch.tensor([0.3, 1.5, 3.0, -5.0]), Grid(4.0, 4, 4.0, is_logarithm=False)
    assert gradient(real, grid) == pytest.approx((-0.2 + 7 - 8) / math.sqrt(28))


def test_behind_a_relu_negative_numbers_have_no_gradient():
    # −0.1 would round to zero by itself, and is zero before; 0.3 → 1 quarter; 2 saturates
    grid = Grid(4.0, 4, 4.0, is_logarithm=True, is_relu=True)
    assert gradient(torch.tensor([-0.1, -9.0, 0.3, 2.0]), grid) == pytest.approx(LN2 * (-0.05 + 1.75))


def test_integers_have_the_gradient_of_their_real_values():
    real, plain = torch.tensor([0.3, 3.0]), Grid(4.0, 4, 4.0, is_logarithm=True)
    of_integers = gradient(real, replace(plain, is_integer=True))
    assert of_integers == pytest.approx(4.0 * gradient(real, plain))


@pytest.mark.parametrize(("wanted", "kept"), [(4.0, (1, -1)), (8.0, (0, -1)), (2.0, (1, 0))], ids=str)
def test_a_gradient_never_leads_away_from_what_the_device_allows(wanted, kept):
    grid = Grid(4.0, 8, wanted, is_logarithm=True)
    numbers = torch.tensor([1.0, -1.0])
    assert grid.inward(numbers).tolist() == list(kept)
    there = replace(grid, scale=torch.tensor(4.0), requested=torch.tensor(wanted))
    assert there.inward(numbers).tolist() == list(kept)
    # 0.3 lies below the place 0.25 that it is rounded to: the gradient has the other sign than what comes from above
    real, size = torch.tensor([0.3]), gradient(torch.tensor([0.3]), replace(grid, requested=4.0), -1.0)
    assert size > 0.0
    assert [gradient(real, grid, upstream) for upstream in (-1.0, 1.0)] == [size * sign for sign in kept]


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_gradient_is_the_difference_quotient_of_the_straight_through_surrogate(bits):
    # where the integer q stays, y(s) = x + (q − x/s₀)·s; where it saturates, y(s) = q·s
    top = 2 ** (bits - 1)
    real = draw(500, seed=3).double() * top / 2
    scale, upstream = 1.0, draw(500, seed=4).double()
    integers = (real + 0.5).floor().clamp(-top, top - 1)
    is_held = integers == (real + 0.5).floor()
    assert 0 < int(is_held.sum()) < 500

    def loss(theta):
        step = 2.0**theta
        y = torch.where(is_held, real + (integers - real) * step, integers * step)
        return float((y * upstream).sum())

    quotient = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert gradient(real, Grid(scale, bits, scale, is_logarithm=True), upstream) == pytest.approx(quotient, rel=1e-4)


@pytest.mark.parametrize(
    ("layer", "shape", "weights"),
    [
        (nn.Linear(4, 3), (8, 4), {"w": "weight"}),
        (nn.Conv2d(2, 3, 3, groups=1), (4, 2, 5, 5), {"w": "weight"}),
        (nn.ConvTranspose1d(2, 3, 2), (4, 2, 5), {"w": "weight"}),
        (
            nn.LSTM(3, 4, bidirectional=True, batch_first=True),
            (4, 5, 3),
            {
                "iw": "weight_ih_l0",
                "hw": "weight_hh_l0",
                "iw_reverse": "weight_ih_l0_reverse",
                "hw_reverse": "weight_hh_l0_reverse",
            },
        ),
        (nn.GRU(3, 4), (4, 5, 3), {"iw": "weight_ih_l0", "hw": "weight_hh_l0"}),
    ],
    ids=["linear", "conv", "transposed", "lstm", "gru"],
)
def test_thresholds_of_layers_get_the_sum_over_rounding_errors(layer, shape, weights):
    # nothing saturates at the largest magnitude, so a weight's own gradient is that of its rounded value
    model = calibrated(nn.Sequential(copy.deepcopy(layer)), draw(*shape))
    linger.learn_scales(model)
    x = draw(*shape).requires_grad_()
    model.train()
    result = model(x)
    (unwrap(result[0] if isinstance(result, tuple) else result) * draw(1)).square().sum().backward()
    quantized = model[0]
    pairs = [(name, getattr(quantized, key)) for name, key in weights.items()]
    pairs.append(("i" if "iw" in weights else "x", x))
    for name, real in pairs:
        scale = quantized.read(f"scale_{name}")
        rounded = (real.detach() * scale + 0.5).floor() / scale
        expected = LN2 * float((real.grad * (rounded - real.detach())).sum())
        assert quantized.ranges[name].learned.parameter.grad.item() == pytest.approx(expected, rel=1e-3, abs=1e-5), name


def test_every_learned_range_of_a_network_gets_a_gradient():
    model = calibrated()
    learned = linger.learn_scales(model)
    unwrap(model.train()(draw(16, 1, 4, 4))).square().sum().backward()
    assert all(p.grad is not None and p.grad.item() != 0.0 for p in learned)


# one rule
def scales_in(model, x):
    found = {}

    def keep(layer, _, out):
        found[layer.path] = out.scale

    hooks = [
        layer.register_forward_hook(keep)
        for layer in model.modules()
        if isinstance(layer, QuantizedBase) and layer.is_layer
    ]
    out = model(x)
    for hook in hooks:
        hook.remove()
    return found | {"": out.scale}, out


@pytest.mark.parametrize("bits", [4, 8, 16])
@each_method
def test_training_evaluation_and_file_have_one_scale(method, bits, tmp_path):
    model, x = calibrated(bits=bits), draw(16, 1, 4, 4)
    before = unwrap(model(x))
    learned = linger.learn_scales(model, method)
    assert torch.equal(unwrap(model(x)), before)  # it begins at the present scales
    with torch.no_grad():
        for number, parameter in enumerate(learned):
            shift = (-1.0, 0.0, 1.0)[number % 3]
            parameter.copy_(parameter + shift if method == "tqt" else parameter * 2.0**shift)
    in_training, out = scales_in(model.train(), x)
    integers = out.content * out.scale
    assert torch.equal(integers, integers.round())
    in_evaluation, _ = scales_in(model.eval(), x)
    assert in_training == in_evaluation
    linger.onnx.export(model, (x[:2],), tmp_path / "net.onnx")
    proof = linger.verify(model, tmp_path / "net.onnx", (x[:2],))
    assert proof.ok
    assert proof.differing == 0


def test_a_range_that_is_looked_at_has_come_where_its_parameter_is():
    model = linear()
    linger.learn_scales(model)
    before = ranges_of(model)["0.o"].scale
    with torch.no_grad():
        model[0].threshold_o += 2.0
    assert ranges_of(model)["0.o"].scale == before / 4


def test_the_format_of_the_device_still_bounds_a_learned_scale():
    model = linear()
    linger.learn_scales(model)
    with torch.no_grad():
        model[0].threshold_o -= 60.0
    out = model.train()(draw(8, 4))
    assert out.scale == model[0].read("scale_x") * model[0].read("scale_w")
    unwrap(out).sum().backward()
    assert model[0].threshold_o.grad.item() <= 0.0


def test_a_learned_range_is_not_observed():
    model = linear()
    linger.learn_scales(model, layers=["0.o"])
    model.train()(draw(8, 4))
    before = {name: model[0].read(f"running_{name}") for name in "xo"}
    model.train()(100 * draw(8, 4))
    assert model[0].read("running_o") == before["o"]
    assert model[0].read("running_x") > 5 * before["x"]


def test_a_fixed_parameter_is_a_fixed_scale():
    model = linear()
    for parameter in linger.learn_scales(model):
        parameter.requires_grad_(requires_grad=False)
    before = [(r.scale, r.largest) for r in ranges_of(model).values()]
    unwrap(model.train()(100 * draw(8, 4))).sum().backward()
    assert [(r.scale, r.largest) for r in ranges_of(model).values()] == before
    assert [p.grad for p in linger.learn_scales(model)] == [None] * 3


@each_method
def test_another_width_keeps_the_range(method):
    model = linear()
    linger.learn_scales(model, method)
    layer = model[0]
    wide = layer.train()(draw(8, 4)).scale
    layer.widths = replace(layer.widths, output=4, parameter=4)
    narrow = layer(draw(8, 4))
    assert narrow.scale == wide / 16
    unwrap(narrow).sum().backward()
    assert layer.ranges["o"].learned.parameter.grad is not None


def test_the_sign_of_a_step_does_not_count():
    model = linear()
    linger.learn_scales(model, "lsq")
    other, x = copy.deepcopy(model), draw(8, 4)
    with torch.no_grad():
        for parameter in linger.learn_scales(other, "lsq"):
            parameter.neg_()
    for each in (model, other):
        unwrap(each.train()(x)).square().sum().backward()
    assert torch.equal(unwrap(model(x)), unwrap(other(x)))
    assert model[0].step_o.grad.item() == -other[0].step_o.grad.item() != 0.0


# learning
def test_a_range_shrinks_that_one_outlier_had_set():
    x = draw(64, 4)
    x[0, 0] = 40.0
    model = linear(x=x, bits=4)
    threshold, typical = model[0], draw(256, 4, seed=1)
    target = F.linear(typical, model[0].weight, model[0].bias).detach()
    before = threshold.read("scale_x")
    fit(model, linger.learn_scales(model), typical, target)
    assert threshold.read("scale_x") >= 8 * before


def test_a_range_grows_that_cuts_off_too_much():
    model = linear(x=0.05 * draw(64, 4))
    typical = draw(256, 4, seed=1)
    target = F.linear(typical, model[0].weight, model[0].bias).detach()
    before = model[0].read("scale_x")
    fit(model, linger.learn_scales(model), typical, target)
    assert model[0].read("scale_x") <= before / 8
    assert (unwrap(model.eval()(typical)) - target).square().mean().item() < 0.01


def fit(model, learned, x, target):
    optimizer = torch.optim.Adam(learned, lr=0.25)
    model.train()
    for _ in range(30):
        optimizer.zero_grad()
        (unwrap(model(x)) - target).square().mean().backward()
        optimizer.step()


# around it
def trained(model, x, run=None, steps=2):
    learned = [p for n, p in model.named_parameters() if "threshold_" in n]
    optimizer = torch.optim.SGD(groups(model, learned, 1e-3, 0.1))
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x) if run is None else run(model, x)
        unwrap(out).float().square().sum().backward()
        optimizer.step()
    return learned_state(model), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def checkpointed(*, is_reentrant):
    return lambda model, x: checkpoint(model, x.clone().requires_grad_(), use_reentrant=is_reentrant)


def in_bfloat16(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x)


@pytest.mark.parametrize(
    "run",
    [checkpointed(is_reentrant=False), checkpointed(is_reentrant=True), in_bfloat16],
    ids=["checkpoint", "reentrant checkpoint", "autocast"],
)
def test_thresholds_learn_the_same(run):
    model, x = calibrated(), draw(16, 1, 4, 4)
    linger.learn_scales(model)
    plain, expected = trained(copy.deepcopy(model), x)
    other, found = trained(copy.deepcopy(model), x, run)
    assert other == plain
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_copy_learns_on_its_own():
    model, x = calibrated(), draw(16, 1, 4, 4)
    linger.learn_scales(model)
    before = learned_state(model)
    other = copy.deepcopy(model)
    after, _ = trained(other, x)
    assert learned_state(model) == before != after
    assert trained(model, x)[0] == after


def test_other_types_leave_the_parameters_as_they_are():
    model = linear()
    linger.learn_scales(model)
    before = learned_state(model)
    model.half()
    assert {p.dtype for n, p in model.named_parameters() if "threshold" in n} == {torch.float32}
    assert learned_state(model) == before


def test_calibration_sets_a_learned_range_anew():
    model = linear()
    linger.learn_scales(model)
    with linger.calibration():
        model(50 * draw(32, 4))
    assert 2 ** model[0].threshold_x.item() > 50
    linger.choose_ranges(model, weights="max", outputs="percentile:50")
    assert model[0].threshold_o.item() == pytest.approx(math.log2(127 / model[0].read("scale_o")) - 0.5)


def run_with_methods(model, part, layers):
    del part
    with linger.calibration(layers=layers):
        model(50 * draw(32, 4))


def merge_with_methods(model, part, layers):
    linger.merge_statistics(model, part, layers=layers)


@pytest.mark.parametrize("act", [run_with_methods, merge_with_methods], ids=["calibration", "merge_statistics"])
def test_a_calibration_that_fails_leaves_the_parameters_as_they_were(act, tmp_path):
    linger.save_statistics(linear(x=50 * draw(32, 4)), tmp_path / "part.stat")
    model = linear()
    learned = linger.learn_scales(model, "lsq")
    before = {name: value.tolist() for name, value in model.state_dict().items()}
    with pytest.raises(linger.UsageError, match="no layer or range has such a path"):
        act(model, tmp_path / "part.stat", {"nowhere": "mse"})
    assert {name: value.tolist() for name, value in model.state_dict().items()} == before
    assert all(now is then for now, then in zip(linger.learn_scales(model, "lsq"), learned, strict=True))


# checkpoints
@each_method
def test_a_checkpoint_gives_its_parameters_to_a_model_without(method):
    model, x = calibrated(), draw(16, 1, 4, 4)
    learned = linger.learn_scales(model, method)
    with torch.no_grad():
        for parameter in learned:
            parameter.copy_(parameter - 1.0 if method == "tqt" else parameter / 2)
    kept = io.BytesIO()
    torch.save(model.state_dict(), kept)
    kept.seek(0)
    fresh = linger.init(linger.trace_layers(Net(), x[:1])).eval()
    fresh.load_state_dict(torch.load(kept))
    assert learned_state(fresh) == learned_state(model)
    assert torch.equal(unwrap(fresh(x)), unwrap(model.eval()(x)))


def test_an_older_checkpoint_loads_into_a_model_that_learns():
    older = linear(x=8 * draw(32, 4))
    model = linear()
    linger.learn_scales(model, "lsq")
    model.load_state_dict(older.state_dict())
    assert torch.equal(unwrap(model(draw(8, 4))), unwrap(older(draw(8, 4))))
    before = learned_state(model)
    model.load_state_dict({"0.weight": torch.ones(3, 4), "0.bias": torch.zeros(3)})  # of a float model
    assert learned_state(model) == before


def test_a_checkpoint_with_another_method_is_refused():
    model, other = linear(), linear(x=9 * draw(32, 4))
    learned = linger.learn_scales(model, "lsq")
    linger.learn_scales(other, "tqt")
    before = learned_state(model)
    with pytest.raises(linger.UsageError, match=r"0\.w \(tqt there, lsq here\), 0\.o \(tqt"):
        nn.Sequential(model).load_state_dict(nn.Sequential(other).state_dict())
    assert learned_state(model) == before
    assert learned[0] is model[0].step_x
    linger.learn_scales(model, "mom")  # a model without takes those of the checkpoint
    model.load_state_dict(other.state_dict())
    assert learned_state(model) == learned_state(other)


def test_a_checkpoint_of_a_single_layer_with_another_method_is_refused():
    layers = []
    for method in ("lsq", "tqt"):
        layer = linger.init(nn.Linear(4, 3)).eval()
        with linger.calibration():
            layer(draw(32, 4))
        linger.learn_scales(layer, method)
        layers.append(layer)
    with pytest.raises(linger.UsageError, match=r"load_state_dict: .*\bw \(tqt there, lsq here\)"):
        layers[0].load_state_dict(layers[1].state_dict())


# processes
def train_together(per_rank):
    model = calibrated()
    learned = linger.learn_scales(model)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(groups(model, learned, 1e-3, 0.05))
    x = per_rank * draw(8, 1, 4, 4, seed=dist.get_rank())
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        unwrap(wrapped(x)).square().mean().backward()
        optimizer.step()
    return learned_state(model)


@pytest.mark.slow
def test_thresholds_are_the_same_on_every_process():
    first, second = run_processes(train_together, 2, 3.0)
    assert first == second
    assert first != learned_state_at_start()


def gradients_of_steps():
    torch.manual_seed(0)
    model = calibrated(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), draw(16, 4))
    linger.learn_scales(model, "lsq")
    wrapped = DistributedDataParallel(model.train())
    own = draw(16, 4, seed=1).chunk(dist.get_world_size())[dist.get_rank()]
    unwrap(wrapped(own)).square().mean().backward()
    return {name: p.grad.item() for name, p in model.named_parameters() if "step_" in name}


def test_gradients_of_steps_do_not_depend_on_the_number_of_processes():
    (alone,), (first, second) = run_processes(gradients_of_steps, 1), run_processes(gradients_of_steps, 2)
    assert first == second == pytest.approx(alone, rel=1e-4)
    assert {"0.step_x", "0.step_w", "2.step_o"} <= alone.keys()


def learned_state_at_start():
    model = calibrated()
    linger.learn_scales(model)
    return learned_state(model)


# devices
@pytest.mark.parametrize(
    ("name", "method"),
    [("layer Conv2d, folded bn", "tqt"), ("layer LSTM", "tqt"), ("function add", "lsq")],
    ids=["tqt conv", "tqt lstm", "lsq add"],
)
def test_a_device_learns_the_same_and_is_not_read(name, method, device):
    def train(where):
        torch.manual_seed(0)
        model = linger.init(make_model(name)).eval()
        with linger.calibration():
            model(image())
        learned = linger.learn_scales(model.to(where), method)
        optimizer = torch.optim.SGD(groups(model, learned, 1e-3, 1e-3))
        model.train()
        for _ in range(2):
            take_host_reads()
            optimizer.zero_grad()
            unwrap(model(image(seed=2).to(where))).square().mean().backward()
            optimizer.step()
            reads = take_host_reads()
        return model.eval()(image(seed=2).to(where)), learned, reads

    plain, expected, _ = train("cpu")
    there, found, reads = train(device)
    assert reads == 0
    assert torch.equal(unwrap(there).cpu(), unwrap(plain))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
        assert ours.grad.item() == pytest.approx(theirs.grad.item(), rel=1e-3, abs=1e-7)
    with torch.no_grad():
        found[0].fill_(math.nan)
    with pytest.raises(linger.UsageError, match="is nan, so no scale"):
        there.runtime.layers[0](image().to(device))


# methods and errors
def test_methods_can_be_changed_and_left():
    model, x = calibrated(), draw(16, 1, 4, 4)
    before = unwrap(model(x))
    plain = [n for n, _ in model.named_parameters()]
    thresholds = linger.learn_scales(model)
    assert linger.learn_scales(model) == thresholds
    steps = linger.learn_scales(model, "lsq")
    assert len(steps) == len(thresholds)
    assert all("threshold_" not in name for name in model.state_dict())
    assert torch.equal(unwrap(model(x)), before)
    assert linger.learn_scales(model, "mom") == []
    assert [n for n, _ in model.named_parameters()] == plain
    assert not [name for name in model.state_dict() if "step_" in name or "bits_" in name]
    assert torch.equal(unwrap(model(x)), before)


def test_layers_and_weights_can_be_left_out():
    model = calibrated()
    linger.learn_scales(model, layers=["conv", "mix.o"], weights=False)
    assert list(learned_state(model)) == ["conv.threshold_x", "conv.threshold_o", "mix.threshold_o"]


def test_outputs_of_recurrent_layers_and_moved_numbers_follow_the_data():
    model = calibrated(nn.Sequential(nn.LSTM(3, 4, num_layers=2)), draw(4, 5, 3))
    linger.learn_scales(model)
    assert [n.removeprefix("0.threshold_") for n in learned_state(model)] == ["i", "iw", "hw", "iw_l1", "hw_l1"]
    with pytest.raises(linger.UsageError, match=r"none of 0\.o can be learned"):
        linger.learn_scales(model, layers=["0.o"])
    assert not any("iqcat" in name for name in learned_state_at_start())


def test_a_configuration_says_how_ranges_are_learned_now(tmp_path):
    model = linear()
    linger.learn_scales(model, "lsq", layers=["0.o"])
    linger.save_config(model, tmp_path / "net.yaml")
    assert "scales: lsq" in (tmp_path / "net.yaml").read_text().splitlines()


@pytest.mark.filterwarnings("ignore:init. no layer of Sequential was replaced")
@pytest.mark.parametrize(
    ("make", "how", "message"),
    [
        (lambda: nn.Linear(2, 2), {}, "Linear is not quantized"),
        (lambda: linger.init(nn.Sequential(nn.Linear(2, 2))), {}, "no scale is known yet"),
        (lambda: linger.init(nn.Sequential(nn.Flatten())), {}, "Sequential has no quantized layer"),
        (linear, {"method": "TQT"}, r"no method 'TQT'.*Did you mean 'tqt'\?"),
        (linear, {"layers": ["0.p"]}, r"did you mean '0\.[xwo]'\?"),
    ],
    ids=["float", "not calibrated", "no layers", "method", "layer"],
)
def test_what_cannot_be_learned_is_refused(make, how, message):
    model = make()
    before = [n for n, _ in model.named_parameters()]
    with pytest.raises(linger.UsageError, match=message):
        linger.learn_scales(model, **how)
    assert [n for n, _ in model.named_parameters()] == before


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("tqt", math.nan, r"0\.o: the learned threshold_o is nan"),
        ("lsq", math.inf, r"0\.o: the learned step_o is inf"),
    ],
    ids=["nan", "inf"],
)
def test_a_parameter_that_gives_no_scale_is_named(method, value, message):
    model = linear()
    linger.learn_scales(model, method)
    with torch.no_grad():
        model[0].ranges["o"].learned.parameter.fill_(value)
    with pytest.raises(linger.UsageError, match=message):
        model.train()(draw(8, 4))
