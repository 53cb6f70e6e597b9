"""A calibration block in several processes of one group: the scales of one process, and the same sentence everywhere."""

import os
import signal
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.processes import Failed, run_processes
from tests.support.quantization import calibration_parts as coding

pytestmark = pytest.mark.needs_torch

METHODS = ["max", "percentile:99", "mse", "kl", "topk"]


class Net(nn.Module):
    """A convolution with a batch norm, a branch for few of the data, a recurrent layer, a softmax beyond the device's format."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.rare = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.cell, self.head = nn.LSTM(4, 5), nn.Linear(5, 4)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        if float(x.detach().abs().max()) > 4.0:
            h = self.rare(h) + h
        h = self.head(self.cell(h.flatten(2).permute(2, 0, 1))[0])
        return torch.softmax(h * 150.0, -1)


DATA = [
    torch.randn((1, 2, 5, 5), generator=torch.Generator().manual_seed(n)) * (0.4 + (n % 3) * (n == 4)) for n in range(8)
]


def quantized(make=Net, seed=3):
    torch.manual_seed(seed)
    model = make()
    if isinstance(model, Net):
        model = linger.trace_layers(model, DATA[0])
    return linger.init(model).eval()


def small():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


def state_of(model):
    return {name: value.tolist() for name, value in sorted(model.state_dict().items())}


def by_every_method(methods=METHODS):
    """The states of a model whose data are divided among the processes, and of one that is calibrated in two blocks."""
    warnings.simplefilter("ignore")
    rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    own, found = DATA[rank::count], []
    for method in methods:
        model = quantized()
        with linger.calibration(method):
            for x in own:
                model(x)
        found.append(state_of(model))
    model = quantized()
    for data in (own[:1], own[1:]):
        with linger.calibration():
            for x in data:
                model(x)
    linger.choose_ranges(model, "kl")
    return [*found, state_of(model)]


@pytest.fixture(scope="module")
def alone():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return by_every_method()


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_scales_are_those_of_one_process(count, alone):
    found = run_processes(by_every_method, count)
    assert any(key.startswith("rare") for key in alone[0])
    assert any(key.endswith("below_max") for key in alone[0])
    for states in found:
        assert not isinstance(states, Failed), states
        assert states == alone


# what is refused, in one group: an error leaves it usable
def attempt(model, act):
    """The kind of error that a block ends with, its message, and whether the model is as it was."""
    with linger.calibration():
        model(torch.randn(2, 2) + 1.0)
    before = state_of(model)
    try:
        act(model)
    except Exception as error:  # noqa: BLE001 - the test judges it
        return type(error).__name__, str(error), state_of(model) == before
    return "nothing", "", state_of(model) == before


def one_has_no_data(model):
    with linger.calibration():
        if dist.get_rank() == 0:
            model(torch.randn(2, 2))


def one_fails(model):
    with linger.calibration():
        model(10 * torch.randn(2, 2))
        if dist.get_rank() == 1:
            message = "no such image"
            raise OSError(message)


def one_has_nan(model):
    with linger.calibration():
        model(torch.full((2, 2), float("nan") if dist.get_rank() == 1 else 9.0))


def methods_differ(model):
    with linger.calibration("mse" if dist.get_rank() else "max"):
        model(10 * torch.randn(2, 2))


def weights_differ(model):
    with torch.no_grad():
        model[2].weight += 0.25 * dist.get_rank()
    with linger.calibration():
        model(10 * torch.randn(2, 2))


def models_differ(_model):
    deeper = quantized(lambda: nn.Sequential(*small(), nn.Linear(2, 2)) if dist.get_rank() else small())
    with linger.calibration():
        deeper(10 * torch.randn(2, 2))


def widths_differ(_model):
    net = small()
    linger.quant_module(net[0], data_bits=4 if dist.get_rank() else 8)
    with linger.calibration():
        quantized(lambda: net)(10 * torch.randn(2, 2))


def types_differ(_model):
    made = quantized(lambda: small().double() if dist.get_rank() else small())
    with linger.calibration():
        made(torch.randn(2, 2, dtype=made[0].weight.dtype))


def versions_differ(model):
    original, coding.FORMAT = coding.FORMAT, coding.FORMAT + dist.get_rank()
    try:
        with linger.calibration():
            model(10 * torch.randn(2, 2))
    finally:
        coding.FORMAT = original


def counted_before(_model):
    model = quantized(small)
    with linger.calibration():
        model(torch.randn(2, 2))
    if dist.get_rank() == 0:
        model.load_state_dict(model.state_dict())  # which forgets what was counted
    with linger.calibration():
        model(10 * torch.randn(2, 2))


def nobody_has_data(model):
    del model
    with linger.calibration():
        pass


REFUSED = {
    one_has_no_data: "calibration: rank 1 ran no quantized model inside the block. All ranges",
    one_fails: "calibration: rank 1 failed inside the block (OSError: no such image). All ranges",
    one_has_nan: "calibration: rank 1 failed inside the block (UsageError: 0.Quant: the tensor holds NaN",
    methods_differ: "calibration: rank 1 has other methods than rank 0. All ranges",
    weights_differ: "rank 1 has another model than rank 0: its model has other weights or statistics in 2. All",
    models_differ: "calibration: rank 1 has another model than rank 0: its model also has 3. All ranges",
    widths_differ: "rank 1 has another model than rank 0: its model has other types, sizes or widths in 0. All",
    types_differ: "rank 1 has another model than rank 0: its model has other types, sizes or widths in 0, 2. All",
    versions_differ: "has format 2 of statistics",
    counted_before: "calibration: rank 1 had counted other data than rank 0. All ranges",
}


def look_alone():
    """What the first process finds by functions that look at its own data, while the other one does something else."""
    if dist.get_rank():
        return None
    data = [torch.randn((4, 2), generator=torch.Generator().manual_seed(0))]
    linger.equalize(small().eval(), data)
    return linger.sensitivity(small(), data).quantised_db > 0


def every_refusal():
    warnings.simplefilter("ignore")
    alone = look_alone()
    refused = [attempt(quantized(small), act) for act in REFUSED]
    return refused, by_every_method(METHODS[:1])[:1], alone, with_warnings()


@pytest.fixture(scope="module")
def told():
    """What two processes say of all that follows."""
    return run_processes(every_refusal, 2)


def test_every_process_raises_the_same_sentence(told):
    for act, one, two, sentence in zip(REFUSED, told[0][0], told[1][0], REFUSED.values(), strict=True):
        assert one[0] == "UsageError", (act, one)
        assert sentence in one[1]
        if act is one_fails:
            assert two[:2] == ("OSError", "no such image")
        elif act is one_has_nan:
            assert two[0] == "UsageError"
            assert two[1].startswith("0.Quant: the tensor holds NaN")
        elif act is versions_differ:
            assert "rank 0 has format 1 of statistics" in two[1]
        else:
            assert one[:2] == two[:2]
        assert one[2] or act is weights_differ
        assert two[2] or act is weights_differ


def test_an_error_leaves_the_group_usable(told, alone):
    assert told[0][1] == told[1][1] == alone[:1]


def test_what_looks_at_its_own_data_asks_no_other_process(told):
    assert told[0][2] is True


def with_warnings():
    """What each process warns of: the data of all, by the first of them."""
    found = []
    for value in ((0.0, 0.0), (0.0, 1.0)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = quantized(small)
            with linger.calibration():
                model(torch.tensor([[value[dist.get_rank()], 0.0]] * 2))
        found.append([str(each.message).partition(",")[0] for each in told])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nobody_has_data(None)
    return [*found, [str(each.message).partition(",")[0] for each in told]]


def test_the_first_process_warns_of_the_data_of_all(told):
    first, second = told[0][3], told[1][3]
    assert first == [
        ["calibration: 0.Quant saw nothing but zeros"],
        [],
        ["calibration: no quantized model ran inside the block"],
    ]
    assert second == [[], [], []]


def one_is_killed():
    model = quantized(small)
    with linger.calibration():
        model(torch.randn(2, 2))
    return attempt_with(model)


def attempt_with(model):
    before = state_of(model)
    try:
        with linger.calibration():
            model(10 * torch.randn(2, 2))
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    except linger.UsageError as error:
        return str(error), state_of(model) == before
    return "nothing", False


def test_a_killed_process_is_one_sentence_in_the_others():
    (message, is_unchanged), killed = run_processes(one_is_killed, 2)
    assert killed == Failed("SIGKILL", "killed")
    assert message.startswith("calibration: another process of the group has ended, or did not come")
    assert is_unchanged


def one_stays_away():
    model = quantized(small)
    if dist.get_rank() == 1:
        dist.barrier(async_op=True)
        return None
    try:
        with linger.calibration():
            model(torch.randn(2, 2))
    except linger.UsageError as error:
        return str(error)
    return "nothing"


@pytest.mark.slow
def test_a_process_that_does_not_come_is_waited_for_no_longer_than_the_group_says():
    first = run_processes(one_stays_away, 2, collective_seconds=2)[0]
    assert first.startswith("calibration: another process of the group has ended, or did not come")
