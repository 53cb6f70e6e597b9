"""What PyTorch puts around a model in training: the integers stay those of the plain loop, and the file those of the model.

Recomputation, autocast and the compiler have files of their own in `core`; here are the combinations that they leave out.
"""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

import linger
from linger.errors import UsageError
from tests.support.processes import run_processes
from tests.support.quantization import EVERYTHING, QuantizedBase, is_power_of_two

pytestmark = pytest.mark.needs_torch
CLASSES = 3


class Net(nn.Module):
    """A fused and a free batch norm, a norm, a recurrent layer, and functions with ranges of their own."""

    is_reentrant = None  # no checkpoint

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.free = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.norm, self.gru, self.end = nn.LayerNorm(6), nn.GRU(24, 5, batch_first=True), nn.Linear(5, CLASSES)

    def middle(self, h):
        rows = torch.sigmoid(self.norm(self.free(h) + 0.5)).permute(0, 2, 1, 3).flatten(2)
        return self.gru(torch.cat([rows, rows * 1.5], 1))[0][:, -1]

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        again = functools.partial(checkpoint, self.middle, use_reentrant=self.is_reentrant)
        return self.end(again(h) if self.training and self.is_reentrant is not None else self.middle(h))


def batch(seed, count=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 6, 6, generator=generator) * (1 + seed % 3)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


def prepared():
    """A quantized net that knows its ranges."""
    torch.manual_seed(0)
    model = linger.init(linger.trace_layers(Net(), batch(0)[0])).eval()
    with linger.calibration():
        model(batch(0)[0])
    return model


def backward(model, seed, *, parts=1, count=8):
    x, y = batch(seed, count)
    (F.cross_entropy(model(x), y) / parts).backward()


def trained(model, steps=3, after_step=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        after_step()
    return model


def integers(model):
    """What the device would compute for images that were not trained on."""
    with torch.no_grad():
        return model.eval()(batch(99)[0]).integers()


def assert_same(found, wanted):
    """The same state, bit for bit, and the same integers."""
    state, expected = found.state_dict(), wanted.state_dict()
    assert state.keys() == expected.keys()
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []
    assert torch.equal(integers(found), integers(wanted))


def assert_proven(model, folder):
    """Scales are powers of two, and the file of the model computes its integers."""
    expected = integers(model)
    scales = {name: float(b) for name, b in model.named_buffers() if name.rpartition(".")[2].startswith("scale_")}
    assert [name for name, scale in scales.items() if scale and not is_power_of_two(scale)] == []  # 0: not used
    linger.onnx.export(model, (batch(99)[0],), folder / "net.onnx")
    proof = linger.verify(model, folder / "net.onnx", [batch(99)[0]])
    assert proof.ok, proof.summary()
    assert proof.integers > 0
    assert torch.equal(integers(model), expected)


# -- gradient accumulation -----------------------------------------------------------------------------------------


def test_micro_batches_of_one_step_give_the_gradients_of_a_loop_over_them():
    model, alone = prepared().train(), prepared().train()
    total = {name: torch.zeros_like(p) for name, p in alone.named_parameters()}
    for part in range(3):
        backward(model, part, parts=3)
        alone.zero_grad()
        backward(alone, part, parts=3)
        total = {n: total[n] if p.grad is None else total[n] + p.grad for n, p in alone.named_parameters()}
    assert all(torch.equal(total[n], p.grad) for n, p in model.named_parameters() if p.grad is not None)
    assert_same(model, alone)


def accumulated(is_synchronized):
    """Two steps of three micro-batches each, in this process's half; the state and the integers afterwards."""
    model, rank = prepared(), torch.distributed.get_rank()
    together = DistributedDataParallel(model).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        optimizer.zero_grad()
        for part in range(3):
            seed = 10 * step + 2 * part + rank
            if is_synchronized or part == 2:
                backward(together, seed, parts=3, count=4)
            else:
                with together.no_sync():
                    backward(together, seed, parts=3, count=4)
        optimizer.step()
    state = {name: value.detach().clone().numpy() for name, value in model.state_dict().items()}
    return state, integers(model).numpy()


@pytest.mark.slow
def test_no_sync_gives_every_process_the_same_state_and_integers():
    (first, numbers), (second, other_numbers) = run_processes(accumulated, 2, False)
    assert [name for name in first if not (first[name] == second[name]).all()] == []
    assert (numbers == other_numbers).all()


@pytest.mark.slow
def test_no_sync_is_the_mean_of_all_micro_batches():
    without, within = run_processes(accumulated, 2, False), run_processes(accumulated, 2, True)
    for (state, _), (expected, _) in zip(without, within, strict=True):
        for name, values in state.items():  # the order of six float32 summands differs
            torch.testing.assert_close(torch.tensor(values), torch.tensor(expected[name]), rtol=1e-4, atol=1e-6)


# -- gradient checkpointing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_checkpointed_functions_and_a_recurrent_layer_learn_the_same(is_reentrant):
    model = prepared()
    model.is_reentrant = is_reentrant
    assert_same(trained(model, steps=2), trained(prepared(), steps=2))


# -- autocast ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.bfloat16, id="bfloat16"), pytest.param(torch.float16, id="float16", marks=pytest.mark.slow)],
)
def test_autocast_with_a_scaler_that_skips_a_step_changes_no_integer(dtype):
    plain, mixed = prepared().train(), prepared().train()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (plain, mixed)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(mixed(batch(step)[0]).float(), batch(step)[1])
        scaler.scale(loss * 4.0).backward()  # the first one overflows: the step is left out and the factor halved
        before = scaler.get_scale()
        scaler.step(optimizers[1])
        scaler.update()
        backward(plain, step, parts=0.25)
        if scaler.get_scale() == before:
            optimizers[0].step()
    assert scaler.get_scale() < 2.0**127
    assert scaler.get_scale() == before
    assert_same(mixed, plain)


# -- averages of weights -------------------------------------------------------------------------------------------

AVERAGES = {"EMA": lambda: get_ema_multi_avg_fn(0.6), "SWA": lambda: None}
buffers_too = pytest.mark.parametrize("use_buffers", [True, False], ids=["averaged buffers", "copied buffers"])


def averaged(kind, *, use_buffers, steps=4):
    model = prepared()
    average = AveragedModel(model, multi_avg_fn=AVERAGES[kind](), use_buffers=use_buffers)
    trained(model, steps, lambda: average.update_parameters(model))
    return average, model


@buffers_too
@pytest.mark.parametrize("kind", ["EMA", pytest.param("SWA", marks=pytest.mark.slow)])
def test_averaged_model_is_exact_and_its_scales_are_those_of_its_ranges(kind, use_buffers, tmp_path):
    average, model = averaged(kind, use_buffers=use_buffers)
    inner = average.module
    odd = [n for n, b in inner.named_buffers() if "scale_" in n and b and not is_power_of_two(float(b))]
    assert bool(odd) == use_buffers  # else the test would show nothing
    assert_proven(inner, tmp_path)
    for name, range_ in inner.named_buffers():
        layer, _, last = name.rpartition(".")
        if last in ("running_o", "running_x") and not use_buffers:
            assert torch.equal(range_, model.get_submodule(layer).get_buffer(last)), name
    again = prepared()
    again.load_state_dict(inner.state_dict())
    assert torch.equal(integers(again), integers(inner))


class Later(nn.Module):
    """Finds and decides more when it is whole: see `BUFFERS`."""

    is_whole = False

    def __init__(self):
        super().__init__()
        self.first, self.both, self.branch = (nn.Linear(6, 6) for _ in range(3))
        self.six, self.slope = nn.ReLU6(), nn.Parameter(torch.full((1,), 0.25))
        self.act = nn.Module()
        self.act.forward = lambda x: F.leaky_relu(x, 0.3)
        self.callers = nn.ModuleList([Caller(self.act), Caller(self.act)])

    def forward(self, x):
        first = self.first(x)
        y = self.callers[0](F.prelu(self.both(first), self.slope))
        again = self.callers[1](self.both(x * 4)) if self.is_whole else first
        other = self.six(self.branch(first)) if self.is_whole else first
        return F.softmax((y + again + other) * (900.0 if self.is_whole else 1.0), -1)


class Caller(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x)


BUFFERS = ("below_max", "bits", "chosen_w", "finer", "own_x", "shared", "used_o")


def calibrated():
    """The net before it is whole, from a checkpoint of a time when no function was finer than its input."""
    torch.manual_seed(0)
    model = linger.init(Later()).eval()
    with linger.calibration():
        model(torch.randn(8, 6))
    model.load_state_dict({name: value for name, value in model.state_dict().items() if not name.endswith(".finer")})
    return model


def present(model):
    """The last parts of the names in a checkpoint that are there only where they say something."""
    return {name.rpartition(".")[2] for name in model.state_dict()} & {*BUFFERS}


def found_by(model):
    """What each layer makes of its buffers, by name."""
    found = {}
    for path, layer in model.named_modules():
        if isinstance(layer, QuantizedBase):
            uses = [each.used_interval for each in layer.ranges.values()]
            chosen = [each.chosen_range() for each in layer.ranges.values()]
            found[path] = layer.flags, layer.keeps_own_input, uses, chosen, str(getattr(layer, "widths", ""))
    return found


def train_whole(model, schedule, after_step, steps=2):
    model.is_whole = True
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model.train()(torch.randn(8, 6, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
        schedule.step()
        after_step()


@pytest.mark.filterwarnings("ignore:.*SoftmaxInt.*format")
@buffers_too
def test_average_has_what_the_model_has_found_since_it_was_made(use_buffers):
    model = calibrated()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.6), use_buffers=use_buffers)
    names = [name for name, _ in model.named_buffers()]
    assert present(model) == set()
    train_whole(model, linger.Schedule(model, widths={0: 16, 1: 4}, freeze_ranges=1, freeze_weights=True), lambda: None)
    assert present(model) == {*BUFFERS}
    average.update_parameters(model)
    assert [name for name, _ in model.named_buffers()] == names
    assert [name for name, _ in average.module.named_buffers()] == names
    for name, value in average.module.named_buffers():
        assert torch.equal(value, model.get_buffer(name)), name
    assert found_by(average.eval().module) == found_by(model.eval())
    assert average.module.state_dict().keys() == model.state_dict().keys()
    other = calibrated()
    other.load_state_dict(average.module.state_dict())
    assert found_by(other) == found_by(model)


@pytest.mark.filterwarnings("ignore:.*SoftmaxInt.*format")
@buffers_too
def test_average_of_models_before_and_after_they_have_found_something(use_buffers):
    model = calibrated()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.6), use_buffers=use_buffers)
    average.update_parameters(model)
    expected = dict(average.module.named_buffers())
    expected = {name: b.clone() for name, b in expected.items() if "running_" in name}
    seen = []

    def update():
        average.update_parameters(model)
        for name, before in expected.items():
            now = model.get_buffer(name)
            expected[name] = before.lerp(now, 0.4) if use_buffers else now.clone()
            seen.append(float(now))
            torch.testing.assert_close(average.module.get_buffer(name), expected[name])

    train_whole(model, linger.Schedule(model, freeze_ranges=2, freeze_weights=True), update, steps=3)
    assert len(set(seen)) > len(expected)  # else the test would show nothing
    found, wanted = found_by(average.eval().module), found_by(model)
    for path, (flags, is_own, uses, chosen, _) in wanted.items():
        if use_buffers:  # what one of the models did not know is not known
            assert found[path][:2] == (flags, is_own), path
            assert found[path][3] == [None for _ in chosen], path
            assert all(use in (EVERYTHING, last) for use, last in zip(found[path][2], uses, strict=True)), path
        else:
            assert found[path] == wanted[path]
    with torch.no_grad():
        average.module(torch.randn(8, 6))


def test_mean_of_widths_is_refused_with_the_way_out():
    model = calibrated()
    schedule = linger.Schedule(model, widths={0: 16, 1: 4})
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.6), use_buffers=True)
    average.update_parameters(model)
    schedule.step()
    average.update_parameters(model)
    with pytest.raises(
        UsageError, match=r"^first: its widths are 8/11/8, a mean .* AveragedModel\(model, use_buffers=False\)\.$"
    ):
        average.eval()


def test_average_that_was_made_before_any_pass_is_refused_when_it_runs():
    model = linger.init(Later())
    average = AveragedModel(model)
    model.train()(torch.randn(8, 6))
    with pytest.raises((RuntimeError, ValueError), match=r"shape|longer"):  # torch's own
        average.update_parameters(model)
    with pytest.raises(UsageError, match=r"has no scale yet\. .* \(AveragedModel\) is made after that\.$"):
        average.eval()(torch.randn(8, 6))


def test_copy_of_an_average_reads_what_the_average_was_given():
    model = calibrated()
    average = AveragedModel(model)
    average.module.both.read("running_o")
    model.both.write("running_o", 77.0)
    average.update_parameters(model)
    assert copy.deepcopy(average).module.both.read("running_o") == 77.0


def test_update_bn_learns_the_statistics_of_the_averaged_weights(tmp_path):
    average, model = averaged("EMA", use_buffers=False)
    before = average.module.conv.bn.running_mean.clone()
    data = [batch(seed)[0] for seed in range(3)]
    update_bn(data, average)
    bn = average.module.conv.bn
    assert bn.num_batches_tracked == len(data)
    assert bn.momentum == model.conv.bn.momentum
    assert not torch.equal(bn.running_mean, before)
    assert_proven(average.module, tmp_path)


@pytest.mark.slow
def test_swa_schedule_ends_in_a_proven_file(tmp_path):
    model = prepared()
    average, optimizer = AveragedModel(model), torch.optim.SGD(model.parameters(), 0.1)
    schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    model.train()
    for epoch in range(3):
        optimizer.zero_grad()
        backward(model, epoch)
        optimizer.step()
        average.update_parameters(model)
        schedule.step()
    assert average.n_averaged == 3
    assert_proven(average.module, tmp_path)


def test_wrapper_itself_cannot_be_exported_and_the_sentence_says_what_can(tmp_path):
    average = AveragedModel(prepared())
    with pytest.raises(UsageError, match=r"If it is a wrapper for training, export model\.module\.$"):
        linger.onnx.export(average, (batch(0)[0],), tmp_path / "net.onnx")


# -- frozen parts --------------------------------------------------------------------------------------------------


def freeze_conv(model):
    for name, module in model.named_children():
        if name in ("conv", "free"):
            module.requires_grad_(requires_grad=False)
            module.eval()
    return model


def test_frozen_part_in_evaluation_mode_computes_its_integers_and_keeps_its_state(tmp_path):
    model = prepared()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    freeze_conv(model)
    seen = []
    model.conv.register_forward_hook(lambda layer, args, output: seen.append(output.detach().dequantize()))
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    with torch.no_grad():
        model.conv(batch(2)[0])
    assert torch.equal(seen[-1], seen[-2])  # in training the frozen layer is exact already
    changed = {
        name.partition(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert not changed & {"conv", "free"}
    assert {"gru", "end"} <= changed
    assert_proven(model, tmp_path)


# -- torch.compile -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_net_with_a_recurrent_layer_and_functions_learns_the_same(backend, tmp_path):
    model = prepared()
    plain = trained(copy.deepcopy(model), steps=2)
    compiled = trained(torch.compile(model, backend=backend), steps=2)
    assert torch.equal(integers(compiled), integers(plain))
    assert_same(model, plain)
    assert_proven(model, tmp_path)
