"""Training on several processes: what they exchange, how often, and what they say when one of them fails.

Starting processes costs more than what they do, so those of one group run all their cases one after the other.
"""

import copy
import math
import os
import signal
import warnings
from contextlib import suppress
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import linger
from tests.support.device_models import image, make_model
from tests.support.processes import Failed, run_processes
from tests.support.quantization import Group, GroupError, agree, exchange, group

pytestmark = pytest.mark.needs_torch

STEPS = 3


class Net(nn.Module):
    """Fused and free batch norms, and functions."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.pool, self.free = nn.MaxPool2d(2), nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 9, 3)

    def forward(self, x):
        x = self.free(self.pool(torch.relu(self.bn(self.conv(x)))))
        return torch.softmax(self.head(torch.cat([x, x + 1.0], 1)[:, :4].flatten(1)), -1)


class Plain(nn.Module):
    """Every sample for itself, with functions."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.hidden = nn.Linear(8, 8), nn.Linear(8, 8), nn.Hardtanh(-0.5, 0.5)

    def forward(self, x):
        x = self.hidden(self.first(x))
        y = torch.cat([x, self.second(x) + x], 1)
        return torch.softmax(y, -1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = kind(8, 4, num_layers=2, bidirectional=True)

    def forward(self, x):
        return self.layers(x.unsqueeze(0))[0] * 1.0


class Branch(nn.Module):
    """A part that only odd processes run."""

    def __init__(self):
        super().__init__()
        self.first, self.rare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x)
        if dist.get_rank() % 2:
            x = torch.relu(self.rare(x) + x)
        return x


class Orders(nn.Module):
    """Functions that processes first call in different orders."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x, is_odd):
        x = self.first(x)
        return torch.tanh(x) * 20 * x if is_odd else x + torch.sigmoid(x)


class Partly(nn.Module):
    """What only one process does: a float input of a layer, a function of ranges with a constant, a layer with learned ranges."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.rare, self.limited = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU6()

    def forward(self, x, is_rare):
        x = self.first(x)
        y = self.second(x.dequantize().clone() if is_rare else x)
        return self.limited(self.rare(y)) if is_rare else y


class Deciding(nn.Module):
    """A softmax whose input leaves the device's format where numbers are large."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.first(x), -1)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.does_repeat = Net(), True

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=False) if self.does_repeat else self.part(x)


def made(module):
    """The module with the same weights in every process, fused, quantized and in training mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1 or "bias" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    net = next((m for m in module.modules() if isinstance(m, Net)), None)
    if net is not None:
        linger.trace_layers(net, net, torch.zeros(1, 2, 8, 8))
    return linger.init(module).train()


def images(count=8, seed=1):
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(seed))


def vectors(seed=1):
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))


def part(batch):
    """What this process gets of a batch, in the order of processes."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def buffers(model):
    return {name: value.tolist() for name, value in model.named_buffers()}


def train(model, batches, *, rate=0.0, wrapped=None):
    """The buffers after every step."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=rate), []
    for batch in batches:
        optimizer.zero_grad()
        (wrapped or model)(part(batch)).square().sum().backward()
        optimizer.step()
        found.append(buffers(model))
    return found


def wrapped_training(broadcasts):
    """DistributedDataParallel, whose weights change, too."""
    model = made(Net())
    with linger.calibration():
        model(images())
    wrapped = DistributedDataParallel(model, broadcast_buffers=broadcasts)
    return train(model, [images(seed=s) for s in range(STEPS)], rate=0.05, wrapped=wrapped)


def orders():
    """Steps in which one process runs what the other one ran before; also the names of buffers in their order."""
    model, found = made(Orders()), []
    wrapped = DistributedDataParallel(model)
    for step in range(STEPS):
        wrapped(part(vectors(step)), (dist.get_rank() + step) % 2).sum().backward()
        found.append(buffers(model))
    return found, [name for name, _ in model.named_buffers()]


def partly():
    """Passes of which process 1 runs more, without and with learned ranges, which an optimizer has moved."""
    model, x, found = made(Partly()), part(vectors()), []
    model(x, is_rare=False)
    model(x, is_rare=dist.get_rank() == 1)
    found.append(buffers(model))
    with linger.calibration():
        model(x, is_rare=True)
    learned = linger.learn_scales(model)
    with torch.no_grad():
        for parameter in learned:
            parameter.add_(2.0)
    model(x, is_rare=dist.get_rank() == 1)
    return *found, buffers(model)


def deciding():
    model = made(Deciding())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the input leaves the device's format
        model(part(vectors()) * (1.0, 100.0)[dist.get_rank()])
    return {path: layer.flags for path, layer in model.named_modules() if path.startswith("_linger")}


def each_for_itself(module, *, is_known):
    """Steps of a network in which a sample knows no other; `is_known`: with ranges from before."""
    model = made(module)
    if is_known:
        with linger.calibration():
            model(vectors())
    return train(model, [vectors(s) * 2 for s in range(STEPS)])


def counted(action):
    """How often processes have told each other something meanwhile."""
    calls, original = [], dist.all_gather
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", lambda *args, **kwargs: (calls.append(1), original(*args, **kwargs))[1])
        action()
    return len(calls)


def collectives():
    """Of networks of one and of eight layers: in training, without gradients, in evaluation."""
    return {depth: collectives_of(made(nn.Sequential(*[nn.Linear(8, 8) for _ in range(depth)]))) for depth in (1, 8)}


def collectives_of(model):
    model(vectors())
    with torch.no_grad():
        without_gradients = counted(lambda: model(vectors()))
    in_training = counted(lambda: model(vectors()).sum().backward())
    model.eval()
    return without_gradients, in_training, counted(lambda: model(vectors()))


def accumulated():
    model = made(Net())
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    with wrapped.no_sync():
        wrapped(part(images(seed=1))).sum().backward()
    wrapped(part(images(seed=2))).sum().backward()
    return buffers(model)


def uneven():
    """A free batch norm on numbers that are integers of its format, in parts of different sizes."""
    model = made(nn.Sequential(nn.BatchNorm2d(2)))
    grid = (images() * 16).round().clamp(-60, 60) / 16
    model(grid)  # sets the range
    before = buffers(model)
    model(grid.split([3, 5])[dist.get_rank()])
    return before, buffers(model), grid.tolist()


def checkpointed(does_repeat):
    model = made(Checkpointed())
    model.does_repeat = does_repeat
    batch = part(images())
    model(batch)
    calls = counted(lambda: model(batch).square().sum().backward())
    gradients = {name: p.grad.tolist() for name, p in model.named_parameters() if p.grad is not None}
    return calls, buffers(model), gradients


def cases_and_failures():
    """Two processes are started once for all that they do."""
    return cases(), failing(), waiting()


def cases():
    """What every group does; one of four, which costs most, does less."""
    found = {
        "no broadcast": wrapped_training(broadcasts=False),
        "known": each_for_itself(Plain(), is_known=True),
    }
    if dist.get_world_size() < 4:
        found |= {
            "broadcast": wrapped_training(broadcasts=True),
            "unknown": each_for_itself(Plain(), is_known=False),
            "lstm": each_for_itself(Recurrent(nn.LSTM), is_known=True),
            "gru": each_for_itself(Recurrent(nn.GRU), is_known=True),
        }
    if dist.get_world_size() == 2:
        found["branch"] = each_for_itself(Branch(), is_known=False)
        found |= {"orders": orders(), "partly": partly(), "deciding": deciding()}
        found |= {"collectives": collectives(), "accumulated": accumulated(), "uneven": uneven()}
        found |= {"checkpointed": checkpointed(does_repeat=True), "not checkpointed": checkpointed(does_repeat=False)}
    return found


@pytest.fixture(scope="module")
def pairs():
    """What each of two processes has found, said in failures, and said when it waited in vain."""
    found = run_processes(cases_and_failures, 2)
    failed = [f.trace or f for f in found if isinstance(f, Failed)]
    assert not failed, failed[0]
    return found


@pytest.fixture(scope="module")
def groups(pairs):
    """What each process of groups of 1, 2 and 4 has found."""
    found = {1: run_processes(cases, 1), 2: [first for first, _, _ in pairs], 4: run_processes(cases, 4)}
    failed = [f.trace for results in found.values() for f in results if isinstance(f, Failed)]
    assert not failed, failed[0]
    return found


ALL = ["broadcast", "no broadcast", "known", "unknown", "lstm", "gru"]


@pytest.mark.parametrize("case", ALL)
def test_all_buffers_are_equal_in_all_processes_after_every_step(groups, case):
    for results in groups.values():
        for other in results[1:]:
            assert other.get(case) == results[0].get(case)
    assert case in groups[2][0]


@pytest.mark.parametrize("case", ["branch", "accumulated", "orders", "partly", "deciding"])
def test_so_they_are_where_processes_differ_in_what_they_run(groups, case):
    first, second = groups[2]
    assert first[case] == second[case]


def test_what_one_process_did_or_decided_holds_in_all(groups):
    (state, _), flags = (groups[2][0][case] for case in ("partly", "deciding"))
    assert state["second.own_x"] == [1.0]
    assert state["limited.max_thresh"] > 0
    assert [any(decided) for decided in flags.values()] == [True]


def test_a_part_that_one_process_runs_has_its_ranges_everywhere(groups):
    last = groups[2][0]["branch"][-1]
    assert last["rare.scale_o"][0] > 0.0
    assert [last[name] for name in last if "iqadd" in name and "scale_o" in name] != []


@pytest.mark.parametrize("case", ["known", "lstm", "gru"])
def test_the_number_of_processes_changes_no_bit_where_a_sample_knows_no_other(groups, case):
    of_one, *others = (results[0][case] for results in groups.values() if case in results[0])
    assert others
    for other in others:
        assert other == of_one


@pytest.mark.parametrize("case", ["unknown", "broadcast", "no broadcast"])
def test_the_number_of_processes_changes_no_scale(groups, case):
    of_one, *others = (results[0][case][-1] for results in groups.values() if case in results[0])
    assert others
    # alpha of a free batch norm is that of each process's own batch
    scales = [name for name in of_one if ".scale_" in name and name != "free.scale_w"]
    assert len(scales) > 5
    for name in scales:
        assert all(other[name] == of_one[name] for other in others), name


def test_broadcasts_change_nothing(groups):
    for count in (1, 2):
        assert groups[count][0]["broadcast"] == groups[count][0]["no broadcast"]


def test_the_first_batch_norm_learns_the_numbers_of_all_processes(groups):
    of_one = groups[1][0]["no broadcast"][0]
    for count in (2, 4):
        other = groups[count][0]["no broadcast"][0]
        # float32 means and variances of parts of a batch: sums of at most 8·36 numbers in another order, 288·2^-24 < 2e-5
        for name in ("conv.bn.running_mean", "conv.bn.running_var"):
            torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(of_one[name]), rtol=2e-5, atol=2e-6)
        assert other["conv.bn.num_batches_tracked"] == of_one["conv.bn.num_batches_tracked"] == 2


def test_parts_of_different_sizes_count_as_torch_counts_the_whole_batch(groups):
    before, after, grid = groups[2][0]["uneven"]
    mean, var = torch.tensor(before["0.running_mean"]), torch.tensor(before["0.running_var"])
    F.batch_norm(torch.tensor(grid), mean, var, training=True, momentum=0.1)
    # both are sums of 8·64 float32 numbers: 512·2^-24 < 4e-5
    torch.testing.assert_close(torch.tensor(after["0.running_mean"]), mean, rtol=4e-5, atol=4e-6)
    torch.testing.assert_close(torch.tensor(after["0.running_var"]), var, rtol=4e-5, atol=0.0)
    assert groups[2][1]["uneven"] == groups[2][0]["uneven"]


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1, 7), (2, 3, 0, 3)], ids=str)
def test_pooled_statistics_are_those_of_the_whole(sizes):
    whole = torch.randn(sum(sizes), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 5
    parts = whole.split(sizes)
    means = torch.stack([p.mean(0) if len(p) else torch.zeros(3, dtype=torch.float64) for p in parts])
    variances = torch.stack([p.var(0) if len(p) > 1 else torch.zeros(3, dtype=torch.float64) for p in parts])
    counts = torch.tensor(sizes, dtype=torch.float64).unsqueeze(1).expand_as(means)
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    F.batch_norm(whole, mean, var, training=True, momentum=1.0)
    found = exchange._pooled(counts, means, variances)
    torch.testing.assert_close(found, (mean, var), rtol=1e-12, atol=1e-12)  # a few float64 operations


def test_processes_talk_once_in_a_training_pass_whatever_the_number_of_layers(groups):
    assert groups[2][0]["collectives"] == {1: (1, 1, 0), 8: (1, 1, 0)}


def test_what_a_checkpoint_runs_again_is_not_exchanged_again(groups):
    for results in groups[2]:
        assert results["checkpointed"] == results["not checkpointed"]
        assert results["checkpointed"][0] == 1


# failures
class Sometimes(nn.Module):
    """Fails in one process."""

    def __init__(self):
        super().__init__()
        self.inner, self.fails, self.is_interrupted = nn.Linear(8, 8), False, False

    def forward(self, x):
        x = self.inner(x)
        if self.fails and dist.get_rank() == 1:
            raise KeyError("no such batch")
        if self.is_interrupted:
            raise KeyboardInterrupt
        return x


class Around(nn.Module):
    """A quantized model inside another one."""

    def __init__(self):
        super().__init__()
        self.part, self.outer = linger.init(Sometimes()), nn.Linear(8, 8)

    def forward(self, x):
        return self.outer(self.part(x).dequantize())


class Wide(nn.Module):
    """A row that one more function makes longer than any before."""

    def __init__(self):
        super().__init__()
        self.free, self.does_more = nn.BatchNorm1d(2034), False

    def forward(self, x):
        x = self.free(x)
        return x + torch.sigmoid(x) if self.does_more else x


def said(action):
    try:
        action()
    except Exception as error:  # noqa: BLE001 - compared by the tests
        return type(error).__name__, str(error)
    return None


def failing():
    """One failure after the other: after each, the group is as good as before."""
    is_second, x = dist.get_rank() == 1, vectors()
    wrong = torch.where(torch.arange(8) == 3, math.nan, x) if is_second else x
    found = {}
    for state in ("first", "later"):
        model = made(Sometimes())
        if state == "later":
            model(x)
        found[f"{state} nan"] = said(lambda m=model: m(wrong))
        found[f"{state} ranges"] = buffers(model)["inner.running_o"][0] > 0.0
        model.fails = True
        found[f"{state} exception"] = said(lambda m=model: m(x))
        model.fails = False
        found[f"{state} again"] = said(lambda m=model: m(x)), buffers(model)
    both = made(Sometimes())
    found["nan everywhere"] = said(lambda: both(x * math.nan))
    found["models"] = said(lambda: made(nn.Sequential(*[nn.Linear(8, 8) for _ in range(1 + dist.get_rank())]))(x))
    typed = made(nn.Sequential(nn.Linear(8, 8)))
    typed = typed.double() if is_second else typed
    found["types"] = said(lambda: typed(x))
    grown = made(Sometimes())
    grown(x)
    if is_second:
        grown.more = copy.deepcopy(grown.inner)
    found["changed"] = said(lambda: grown(x))
    widths = linger.init(nn.Sequential(nn.Linear(8, 8)), parameter_bits=4 if is_second else 8).train()
    found["widths"] = said(lambda: widths(x))
    return found | more_failing(x)


def more_failing(x):
    is_second, found = dist.get_rank() == 1, {}
    around = made(Around())
    around.part.fails = True
    found["inner exception"] = said(lambda: around(x))
    around.part.fails = False
    found["inner again"] = said(lambda: around(x)), buffers(around)
    interrupted, plain = made(Sometimes()), made(Sometimes())
    interrupted.is_interrupted = True
    with suppress(KeyboardInterrupt):
        interrupted(x * 100)
    interrupted.is_interrupted = False
    for model in (interrupted, plain):
        model(x)
    found["interrupted"] = buffers(interrupted), buffers(plain)
    connections = len(dist.distributed_c10d._world.pg_map)
    copy.deepcopy(plain)(x)
    found["connections"] = len(dist.distributed_c10d._world.pg_map) - connections
    wide, row, lengths = made(Wide()), torch.randn(4, 2034, generator=torch.Generator().manual_seed(1)), []
    for wide.does_more in (False, is_second):
        wide(row)
        lengths.append(Group.of_all().length)
    found["wide"] = buffers(wide), lengths
    return found


@pytest.fixture(scope="module")
def failures(pairs):
    return [said for _, said, _ in pairs]


NOT_FINITE = "the tensor holds NaN or infinity, so no scale can be chosen. Check the input and the weights."


@pytest.mark.parametrize("state", ["first", "later"])
def test_nan_of_one_process_is_the_same_sentence_in_all(failures, state):
    first, second = (results[f"{state} nan"] for results in failures)
    assert first == ("GroupError", f"Process 1: inner.Quant: {NOT_FINITE}")
    assert second == ("NotFiniteError", first[1])


def test_so_is_that_of_all(failures):
    first, second = (results["nan everywhere"] for results in failures)
    assert first == second
    assert first[1] == f"Process 0: inner.Quant: {NOT_FINITE} Process 1: inner.Quant: {NOT_FINITE}"


@pytest.mark.parametrize("state", ["first", "later"])
def test_an_exception_of_one_process_is_named_by_the_others_and_stays_its_own(failures, state):
    first, second = (results[f"{state} exception"] for results in failures)
    assert first == ("GroupError", "Process 1 has stopped in this training pass (KeyError: 'no such batch').")
    assert second == ("KeyError", "'no such batch'")


def test_a_failed_pass_leaves_no_range_that_was_not_there(failures):
    assert [(results["first ranges"], results["later ranges"]) for results in failures] == [(False, True)] * 2


def test_an_exception_in_a_model_inside_another_one_is_told_once(failures):
    assert [results["inner exception"][0] for results in failures] == ["GroupError", "KeyError"]
    first, second = (results["inner again"] for results in failures)
    assert first == second
    assert first[0] is None


def test_an_interrupted_pass_is_forgotten(failures):
    for results in failures:
        assert results["interrupted"][0] == results["interrupted"][1]


def test_all_models_share_one_connection(failures):
    assert [results["connections"] for results in failures] == [0, 0]


def test_rows_grow_in_all_processes_at_once(failures):
    first, second = (results["wide"] for results in failures)
    assert first == second
    before, after = first[1]
    assert before < after


@pytest.mark.parametrize("state", ["first", "later"])
def test_after_a_failure_training_goes_on(failures, state):
    first, second = (results[f"{state} again"] for results in failures)
    assert first == second
    assert first[0] is None
    assert first[1]["inner.running_x"][0] > 0.0


@pytest.mark.parametrize(
    ("case", "difference"),
    [
        ("models", "1 is missing in process 0 and LinearInt 8/8/8 bits float32 [8, 8] float32 [8] in process 1"),
        ("changed", "more is missing in process 0 and LinearInt 8/8/8 bits float32 [8, 8] float32 [8] in process 1"),
        (
            "types",
            "0 is LinearInt 8/8/8 bits float32 [8, 8] float32 [8] in process 0 and LinearInt 8/8/8 bits float64 [8, 8] float64 [8] in process 1",
        ),
        (
            "widths",
            "0 is LinearInt 8/8/8 bits float32 [8, 8] float32 [8] in process 0 and LinearInt 8/4/8 bits float32 [8, 8] float32 [8] "
            "in process 1",
        ),
    ],
    ids=["models", "changed later", "types", "widths"],
)
def test_models_that_differ_are_refused_in_every_process(failures, case, difference):
    first, second = (results[case] for results in failures)
    assert first == second
    assert first == (
        "GroupError",
        f"The processes do not train one model: {difference}. Build the same model, with the same types, widths and versions, "
        "in every process.",
    )


def ending():
    """Two passes; one process ends before the second."""
    model = made(nn.Sequential(nn.Linear(8, 8)))
    model(vectors())
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return said(lambda: model(vectors()))


def test_processes_end_with_a_sentence_where_one_was_killed():
    limit = 600
    first, second, third = run_processes(ending, 3, collective_seconds=limit)
    assert second == Failed("SIGKILL", "killed")
    for rank, (kind, message) in ((0, first), (2, third)):
        assert kind == "GroupError"
        assert message.startswith(f"Process {rank} waited for what the 3 processes have seen in a training pass")
        assert f"The time limit of the group is {limit} s" in message
        assert "Every process of the default group must run every training pass" in message


def waiting():
    """One process skips a pass. The limit is short only once all have started."""
    model = made(nn.Sequential(nn.Linear(8, 8)))
    model(vectors())
    store, own = dist.distributed_c10d._get_default_store(), Group.of_all()._group
    if dist.get_rank() == 1:
        store.get("told")
        return None
    limit = group._time_limit(own)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5), own)
    found = said(lambda: model(vectors()))
    store.set("told", "1")
    return *found, limit == group._time_limit(dist.group.WORLD), limit.total_seconds()


def test_no_process_waits_longer_than_the_group_allows(pairs):
    kind, message, is_that_of_all, limit = pairs[0][2]
    assert kind == "GroupError"
    assert is_that_of_all
    assert f"The time limit of the group is {limit:g} s" in message


# a device that is not the CPU, in a group of this process alone
@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_row_is_made_where_the_group_takes_it_from(alone):
    # gloo takes tensors of the CPU; those of a device that it does not know are brought there
    assert Group.device_for(torch.device("cpu")) == torch.device("cpu")
    assert Group.device_for(torch.device("meta")) == torch.device("cpu")


def test_a_row_stays_on_a_device_that_the_group_has_a_backend_for():
    dist.init_process_group("cpu:gloo,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert [Group.device_for(torch.device(kind)).type for kind in ("cpu", "cuda", "xpu")] == ["cpu", "cuda", "cpu"]
    finally:
        dist.destroy_process_group()


def test_where_models_are_compared_a_failure_is_told_in_full(alone):
    sentence = "no such batch: " + "a long path, " * 100
    with pytest.raises(GroupError) as raised:
        agree(Group(), {}, KeyError(sentence), torch.device("cpu"))
    assert str(raised.value) == f"Process 0 has stopped in this training pass (KeyError: '{sentence}')."
    assert agree(Group(), {}, None, torch.device("cpu")) == set()


@pytest.mark.parametrize("limit", [None, timedelta(seconds=90)])
def test_a_time_limit_is_told_where_torch_tells_one(alone, limit):
    no_answer = mock.patch.object(dist, "all_gather", side_effect=RuntimeError("Connection closed by peer."))
    with mock.patch.object(group, "_time_limit", return_value=limit), no_answer, pytest.raises(GroupError) as raised:
        Group().gather(torch.zeros(3), 3)
    assert "one did not answer (Connection closed by peer)." in str(raised.value)
    assert ("The time limit of the group is 90 s." in str(raised.value)) == (limit is not None)


@pytest.mark.parametrize("name", ["function add", "function softmax", "layer LSTM", "layer Conv2d, folded bn"])
def test_ranges_on_a_device_are_those_of_the_cpu(alone, device, name):
    states = []
    for place in ("cpu", device):
        model = linger.init(make_model(name).to(place)).train()
        for seed in (1, 2):
            model(image(seed=seed).to(place))
        states.append({key: value.cpu().tolist() for key, value in model.state_dict().items()})
    assert states[0] == states[1]


def test_nan_on_a_device_is_refused_when_the_pass_ends(alone, device):
    model = linger.init(make_model("function add").to(device)).train()
    model(image().to(device))
    before = {name: model.get_buffer(name).tolist() for name in ("conv.running_x", "conv.running_o", "bn.running_mean")}
    with pytest.raises(linger.UsageError, match=r"^Process 0: conv\.x: the tensor holds NaN"):
        model(image().fill_(math.nan).to(device))
    assert {name: model.get_buffer(name).tolist() for name in before} == before
    model(image().to(device))  # what follows from other ranges is written in every pass
    assert all(value.isfinite().all() for value in model.state_dict().values())
